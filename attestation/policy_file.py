"""Policy file: builds an `AppraisalPolicy` from the tables of a TOML or JSON file.

Room: attestation (pure). Package `cli` reads the file. Every omitted key
has its strict default; unknown keys are refused,
because a misspelt prohibition would have no effect. Example: examples/attestation/policy.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timezone
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from assay.attestation.evidence import DeviceFamily
from assay.attestation.policy import (
    AppraisalPolicy,
    Claim,
    Reference,
    Root,
    SnpTcb,
    TcbStatus,
    check_policy,
)
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest

DAY_S = 86_400


def _family(name: object) -> object:
    return next((family for family in DeviceFamily if family.label == name), name)


def _status(name: object) -> object:
    return next((status for status in TcbStatus if status.label == name), name)


def _sha256(text: object) -> object:
    if not isinstance(text, str):
        raise ValueError("expected 64 hexadecimal digits")
    raw = bytes.fromhex(text)
    if len(raw) != 32:
        raise ValueError(f"{len(raw)} bytes, expected 32 in hexadecimal")
    return raw


_FamilyName = Annotated[DeviceFamily, BeforeValidator(_family)]
_Sha256 = Annotated[bytes, BeforeValidator(_sha256)]
_Svn = Annotated[int, Field(ge=0, le=255)]
_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[int, Field(ge=1)]
_Moment = Annotated[AwareDatetime, Field(strict=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _RootTable(_Table):
    family: _FamilyName
    sha256: _Sha256


class _MeasurementTable(_Table):
    name: str
    family: _FamilyName
    not_before: _Moment
    not_after: _Moment
    values: dict[str, str]


class _SnpTable(_Table):
    fmc: _Svn = 0
    bootloader: _Svn
    tee: _Svn
    snp: _Svn
    microcode: _Svn


class _PolicyTable(_Table):
    name: str
    families: list[_FamilyName]
    killed: list[_FamilyName] = []
    root: list[_RootTable]
    measurement: list[_MeasurementTable]
    tcb_worst: Annotated[TcbStatus, BeforeValidator(_status)] = TcbStatus.UP_TO_DATE
    tcb_evaluation_min: _Count = 0
    snp_tcb_min: _SnpTable | None = None  # required if SEV-SNP is accepted
    refused_advisories: list[str] = []
    refused_devices: list[_Sha256] = []
    allow_smt: bool = False
    allow_dynamic_platform: bool = False
    allow_cached_keys: bool = False
    require_revocation: bool = True
    evidence_age_max_s: _Seconds = DAY_S
    collateral_age_max_s: _Seconds = 30 * DAY_S
    result_life_s: _Seconds = DAY_S


def policy_of(tables: Mapping[str, Any], where: str = "policy") -> AppraisalPolicy:
    """The policy in a file's tables.

    Args:
        tables: Parsed TOML or JSON.
        where: The file's name, for error texts.

    Raises:
        ConfigError: something in it is unknown, missing, out of bounds, or does not fit the rest.
    """
    try:
        table = _PolicyTable.model_validate(dict(tables))
    except ValidationError as cause:
        first = cause.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {place}: {first['msg']}") from None
    try:
        policy = _policy(table)
        check_policy(policy)
        encode(policy)  # checks every bound of every field
    except ValueError as cause:
        raise ConfigError(f"{where}: {cause}") from None
    return policy


def _policy(table: _PolicyTable) -> AppraisalPolicy:
    snp = table.snp_tcb_min
    if snp is None:
        if DeviceFamily.SEV_SNP in table.families:
            raise ValueError("sev-snp is accepted, expected a table [snp_tcb_min]")
        snp = _SnpTable(bootloader=0, tee=0, snp=0, microcode=0)
    return AppraisalPolicy(
        name=table.name,
        families=tuple(table.families),
        killed=tuple(table.killed),
        roots=tuple(Root(family=root.family, sha256=Digest(root.sha256)) for root in table.root),
        references=tuple(_reference(entry) for entry in table.measurement),
        tcb_worst=table.tcb_worst,
        tcb_evaluation_min=table.tcb_evaluation_min,
        snp_tcb_min=SnpTcb(**snp.model_dump()),
        refused_advisories=tuple(table.refused_advisories),
        refused_devices=tuple(map(Digest, table.refused_devices)),
        is_smt_allowed=table.allow_smt,
        is_dynamic_platform_allowed=table.allow_dynamic_platform,
        are_cached_keys_allowed=table.allow_cached_keys,
        is_revocation_required=table.require_revocation,
        evidence_age_max_s=table.evidence_age_max_s,
        collateral_age_max_s=table.collateral_age_max_s,
        result_life_s=table.result_life_s,
    )


def _reference(entry: _MeasurementTable) -> Reference:
    return Reference(
        name=entry.name,
        family=entry.family,
        values=tuple(Claim(name=name, value=value) for name, value in sorted(entry.values.items())),
        not_before_s=int(entry.not_before.astimezone(timezone.utc).timestamp()),
        not_after_s=int(entry.not_after.astimezone(timezone.utc).timestamp()),
    )
