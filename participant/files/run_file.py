"""Run file: what a participant of a run needs besides keys and network: the spec, and all addresses.

Room: participant (pure; `read_run_file` and `write_run_file` touch one file). The buyer signs it, with its
account's key or the one that the spec names for an account without a key, and the escrow holds the spec's
digest, so that nobody else can add a peer or pass on another spec. The spec names the data by digest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from eth_utils.crypto import keccak

from assay.chain.commit_statement import evm_address
from assay.chain.statements import BadSignatureError, recover, sign_digest
from assay.ledger.settlement.results import run_id_of
from assay.participant.files.armour import from_text, read_text, to_text, write_text
from assay.participant.files.index import signer_text
from assay.participant.files.record import Role, SignedRecord, check_record
from assay.protocol.encoding.codec import Max, digest
from assay.protocol.errors import ConfigError, MalformedMessage, PeerFault
from assay.protocol.params import RunSpec, check_spec
from assay.protocol.types import Digest, HotSignature, PeerId
from assay.training.layout import layout_of
from assay.training.optimiser.matrices import check_start

PREFIX = "assay-run-1"
RUN_FILE_BYTES_MAX = 1 << 20
RECORDS_MAX = 256
_TAG = b"assay/run-file-buyer/1"
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """A run's spec, and the record of everybody who takes part."""

    TAG: ClassVar[bytes] = b"assay/run-content/1"
    spec: RunSpec
    records: Annotated[tuple[SignedRecord, ...], Max(RECORDS_MAX)]  # ascending by peer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A run's content, signed by its buyer: with the key of `RunSpec.signer`."""

    TAG: ClassVar[bytes] = b"assay/run-file/1"
    content: RunContent
    by_buyer: HotSignature

    @property
    def spec(self) -> RunSpec:
        """What was bought."""
        return self.content.spec

    @property
    def run_id(self) -> Digest:
        """The run's id: a function of deployment, buyer and spec."""
        return run_id_of(self.spec)

    @property
    def ledger_service(self) -> PeerId | None:
        """The peer that keeps the run's books."""
        peers = [s.record.peer for s in self.content.records if s.record.role is Role.LEDGER]
        return peers[0] if peers else None


def run_file_of(spec: RunSpec, records: Sequence[SignedRecord], buyer_key: bytes) -> RunFile:
    """The run file of this spec and these records, signed with the key of the spec's signer."""
    content = RunContent(
        spec=spec, records=tuple(sorted(records, key=lambda signed: bytes(signed.record.peer)))
    )
    return RunFile(content=content, by_buyer=HotSignature(sign_digest(_digest(content), buyer_key)))


def check_run_file(found: RunFile, now_s: int) -> None:
    """Do nothing if the run file is its buyer's, and its records are those of the spec's members.

    Raises:
        ConfigError: what does not fit.
    """
    spec, records = found.spec, [signed.record for signed in found.content.records]
    try:
        check_spec(spec)
        check_start(spec.rule, layout_of(spec.model))
        signer = recover(_digest(found.content), found.by_buyer)
        for signed in found.content.records:
            check_record(signed, now_s)
    except (ValueError, ArithmeticError, BadSignatureError, PeerFault) as error:
        raise ConfigError(f"run file: {error}") from None
    if signer != evm_address(spec.signer):
        expected = signer_text(evm_address(spec.buyer), evm_address(spec.signer))
        raise ConfigError(f"run file: signed by {signer}, expected {expected}")
    peers = [record.peer for record in records]
    if peers != sorted(set(peers)):
        raise ConfigError("run file: records must ascend by peer, each once")
    for role, members in (
        (Role.NODE, spec.nodes),
        (Role.VERIFIER, sorted(spec.judges, key=lambda one: one.peer)),
    ):
        if [record.member for record in records if record.role is role] != list(members):
            raise ConfigError(f"run file: its records of role {role.name.lower()} are not the spec's members")
    treasuries = [record.account for record in records if record.role is Role.LEDGER]
    if len(treasuries) > 1 or any(account != spec.money.treasury for account in treasuries):
        raise ConfigError(f"run file: a ledger of another account than {evm_address(spec.money.treasury)}")


def _digest(content: RunContent) -> bytes:
    """What the buyer signs: the digest of no EIP-712 statement and no transaction."""
    return keccak(_TAG + digest(content))


def write_run_file(path: Path, found: RunFile) -> None:
    """Write a run's file."""
    spec = found.spec
    notes = [
        f"Assay run {spec.name!a}, {spec.rounds} rounds, {len(spec.nodes)} nodes",
        f"id {found.run_id.hex()}",
        f"data {spec.data.root.hex()}",
    ]
    write_text(path, to_text(PREFIX, found, notes))


def read_run_id(text: str) -> Digest | None:
    """A run's id from its 64 hexadecimal digits; None if this is something else."""
    return Digest(bytes.fromhex(text)) if _ID.fullmatch(text) else None


def missing_run(path: Path) -> ConfigError:
    """The error of a participant that has no run file."""
    return ConfigError(f"run file {path} is missing: the buyer's `assay order place` writes it")


def read_run_file(path: Path, now_s: int) -> RunFile:
    """A checked run file.

    Raises:
        ConfigError: it cannot be read, is damaged, or `check_run_file` refuses it.
    """
    if not path.exists():
        raise missing_run(path)
    try:
        found = from_text(PREFIX, RunFile, read_text(path, "run file", RUN_FILE_BYTES_MAX))
        check_run_file(found, now_s)
    except (MalformedMessage, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return found
