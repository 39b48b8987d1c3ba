"""Policy: the appraisal policy of a run, one value whose digest goes into every result.

Room: attestation (pure). Some rules are in no policy because no policy may switch
them off: debug is refused; so are SEV-SNP reports from another level than VMPL 0,
with a migration agent, a masked chip id, or a certificate for another chip or TCB;
and TDX guests that can be migrated or run on a module that is not Intel's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, ClassVar

from assay.attestation.evidence import DeviceFamily
from assay.attestation.reasons import Reason
from assay.protocol.encoding.codec import Max
from assay.protocol.types import Digest

MEASUREMENTS_MAX = 1024
ROOTS_MAX = 32
LIST_MAX = 1024
ADVISORIES_MAX = 256  # of one result
CLAIMS_MAX = 80  # a GPU has 64 measurements and two versions
NAME_MAX = 64
VALUE_MAX = 512

REQUIRED_CLAIMS: dict[DeviceFamily, frozenset[str]] = {
    # Without the runtime registers a reference would fix firmware and leave kernel and programs open.
    DeviceFamily.TDX: frozenset({"mr_td", "rtmr0", "rtmr1", "rtmr2"}),
    DeviceFamily.SGX: frozenset({"mr_enclave"}),
    DeviceFamily.SEV_SNP: frozenset({"measurement"}),
    # Versions and at least one measured block, which `check_policy` requires.
    DeviceFamily.NVIDIA_CC: frozenset({"driver", "vbios"}),
    DeviceFamily.SOFTWARE: frozenset({"measurement"}),
}


class TcbStatus(enum.IntEnum):
    """How up to date a platform's TCB is, better to worse; the names are Intel's."""

    NOT_STATED = 0  # unknown
    UP_TO_DATE = 1
    SW_HARDENING_NEEDED = 2
    CONFIGURATION_NEEDED = 3
    CONFIGURATION_AND_SW_HARDENING_NEEDED = 4
    OUT_OF_DATE = 5
    OUT_OF_DATE_CONFIGURATION_NEEDED = 6
    REVOKED = 7

    @property
    def label(self) -> str:
        """Intel's name, such as `SWHardeningNeeded`."""
        return self.name.title().replace("_", "").replace("Sw", "SW")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A pinned vendor root."""

    TAG: ClassVar[bytes] = b"assay/attest-root/1"
    family: DeviceFamily
    sha256: Digest  # of the root certificate in DER; of the public key for SOFTWARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One measured value by its name: hexadecimal for digests, text for versions."""

    TAG: ClassVar[bytes] = b"assay/attest-claim/1"
    name: Annotated[str, Max(NAME_MAX)]
    value: Annotated[str, Max(VALUE_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Reference values that together identify an accepted guest or firmware, with a validity period."""

    TAG: ClassVar[bytes] = b"assay/attest-reference/1"
    name: Annotated[str, Max(NAME_MAX)]
    family: DeviceFamily
    values: Annotated[tuple[Claim, ...], Max(CLAIMS_MAX)]  # all must equal the evidence's
    not_before_s: int  # Unix time; start of validity
    not_after_s: int  # end of validity


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpTcb:
    """Security version numbers of an AMD platform, per component."""

    TAG: ClassVar[bytes] = b"assay/attest-snp-tcb/1"
    fmc: Annotated[int, Max(255)]  # Turin and later; 0 before
    bootloader: Annotated[int, Max(255)]
    tee: Annotated[int, Max(255)]
    snp: Annotated[int, Max(255)]
    microcode: Annotated[int, Max(255)]

    def reaches(self, least: SnpTcb) -> bool:
        """Whether every component is at least that of `least`."""
        return (
            self.fmc >= least.fmc
            and self.bootloader >= least.bootloader
            and self.tee >= least.tee
            and self.snp >= least.snp
            and self.microcode >= least.microcode
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AppraisalPolicy:
    """All configurable rules of an appraisal."""

    TAG: ClassVar[bytes] = b"assay/attest-policy/1"
    name: Annotated[str, Max(NAME_MAX)]
    families: Annotated[tuple[DeviceFamily, ...], Max(8)]  # accepted; SOFTWARE only if named here
    killed: Annotated[tuple[DeviceFamily, ...], Max(8)]  # refused in any case: its keys have leaked
    roots: Annotated[tuple[Root, ...], Max(ROOTS_MAX)]
    references: Annotated[tuple[Reference, ...], Max(MEASUREMENTS_MAX)]
    tcb_worst: TcbStatus  # the worst tolerated; anything worse than UP_TO_DATE is a warning
    tcb_evaluation_min: int  # Intel's tcbEvaluationDataNumber
    snp_tcb_min: SnpTcb
    refused_advisories: Annotated[tuple[Annotated[str, Max(NAME_MAX)], ...], Max(LIST_MAX)]
    refused_devices: Annotated[tuple[Digest, ...], Max(LIST_MAX)]  # by `ueid` in results
    is_smt_allowed: bool  # threads of one core share side channels
    is_dynamic_platform_allowed: bool  # Intel: processors may be added after registration
    are_cached_keys_allowed: bool  # Intel: platform keys are stored outside of the processor
    is_revocation_required: bool  # a list for every issuer that may sign one
    evidence_age_max_s: int  # since the nonce was drawn
    collateral_age_max_s: int  # since it was fetched, and since Intel signed its TCB data
    result_life_s: int  # validity of a result

    def pinned(self, family: DeviceFamily) -> frozenset[Digest]:
        """Digests of the pinned roots of a family."""
        return frozenset(root.sha256 for root in self.roots if root.family is family)


def check_policy(policy: AppraisalPolicy) -> None:
    """Do nothing if the parts of a policy fit together.

    Raises:
        ValueError: which part does not fit, what it is and what was expected.
    """
    if not TcbStatus.UP_TO_DATE <= policy.tcb_worst < TcbStatus.REVOKED:
        raise ValueError(
            f"tcb_worst is {policy.tcb_worst.label}, expected UpToDate to OutOfDateConfigurationNeeded"
        )
    for seconds in ("evidence_age_max_s", "collateral_age_max_s", "result_life_s"):
        if getattr(policy, seconds) < 1:
            raise ValueError(f"{seconds} is {getattr(policy, seconds)}, expected at least 1")
    for family in policy.families:
        if not policy.pinned(family):
            raise ValueError(f"{family.label} is accepted, expected at least one root for it")
    for reference in policy.references:
        names = [claim.name for claim in reference.values]
        missing = REQUIRED_CLAIMS[reference.family] - set(names)
        if missing:
            raise ValueError(f"reference {reference.name}: expected also {', '.join(sorted(missing))}")
        if len(set(names)) != len(names):
            raise ValueError(f"reference {reference.name}: a value is named twice")
        if reference.family is DeviceFamily.NVIDIA_CC and not any(name.startswith("block") for name in names):
            raise ValueError(f"reference {reference.name}: expected at least one of block1 to block255")
        if reference.not_after_s < reference.not_before_s:
            raise ValueError(f"reference {reference.name}: ends before it begins")


def family_faults(policy: AppraisalPolicy, family: DeviceFamily) -> tuple[Reason, ...]:
    """Reasons of the policy against a whole device family, before anything is parsed."""
    killed = (Reason.FAMILY_KILLED,) if family in policy.killed else ()
    refused = (Reason.FAMILY_REFUSED,) if family not in policy.families else ()
    return killed + refused


def match_reference(
    policy: AppraisalPolicy, family: DeviceFamily, claims: dict[str, str], at_s: int
) -> tuple[tuple[Reason, ...], int]:
    """Reasons of the allow-list against these values, and the match's expiry (Unix time; 0 if none).

    A reference matches if every value in it equals the evidence's.
    """
    fitting = [
        reference
        for reference in policy.references
        if reference.family is family
        and REQUIRED_CLAIMS[family] <= {claim.name for claim in reference.values}
        and all(claims.get(claim.name) == claim.value for claim in reference.values)
    ]
    current = [r.not_after_s for r in fitting if r.not_before_s <= at_s <= r.not_after_s]
    if current:
        return (), max(current)
    return ((Reason.MEASUREMENT_TIME,) if fitting else (Reason.MEASUREMENT,)), 0


def tcb_faults(policy: AppraisalPolicy, status: TcbStatus) -> tuple[Reason, ...]:
    """Reasons of the policy against a platform of this status."""
    if status is TcbStatus.NOT_STATED:
        return (Reason.TCB_UNKNOWN,)
    if status is TcbStatus.REVOKED or status > policy.tcb_worst:
        return (Reason.TCB_TOO_OLD,)
    return () if status is TcbStatus.UP_TO_DATE else (Reason.TCB_TOLERATED,)
