"""Reasons: reason codes of an appraisal, and the trust tier that follows from them.

Room: attestation (pure). Checks only add codes. Tiers are
the four of AR4SI (RATS attestation results).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable


class TrustTier(enum.IntEnum):
    """Trust tier of evidence, better to worse."""

    AFFIRMING = 1
    WARNING = 2
    NONE = 3  # it could not be appraised
    CONTRAINDICATED = 4

    @property
    def label(self) -> str:
        """Name in results."""
        return self.name.lower()


class Reason(enum.IntEnum):
    """Reason codes against evidence. Numbers are part of signed results: never reuse one."""

    # It could not be appraised.
    NO_COLLATERAL = 1  # Intel's signed TCB data are missing or incomplete

    # Appraised, with warnings.
    TCB_TOLERATED = 10  # older or weaker than the vendor recommends, and the policy allows it
    ADVISORIES = 11  # advisories apply that the policy does not refuse
    GPU_ALONE = 12  # a GPU's report without a processor's can be another machine's

    # The bytes and their certificates.
    MALFORMED = 20  # not the expected structure
    SIGNATURE = 21  # invalid for these bytes
    CHAIN = 22  # a certificate is missing, superfluous, or not issued by the next
    ROOT = 23  # the chain does not end in a pinned root
    CERTIFICATE_TIME = 24  # a certificate is not valid now
    REVOKED = 25
    REVOCATION_UNKNOWN = 26  # a list that the policy requires is missing, unsigned or out of date
    NOT_ENDORSED = 27  # the vendor's own rules refuse it

    # Its binding.
    BINDING = 30  # the device signed other bytes than this node, run, epoch, code and nonce give
    EVIDENCE_TOO_OLD = 31
    EVIDENCE_IN_FUTURE = 32
    COLLATERAL_EXPIRED = 33
    COLLATERAL_TOO_OLD = 34
    COLLATERAL_IN_FUTURE = 35
    DUPLICATE_DEVICE = 36

    # The device's own statements.
    DEBUG = 40
    MIGRATION = 41  # a migration agent or migratable guest: another party may move its memory
    VMPL = 42  # requested from a less privileged level than 0, or from the host
    SIGNING_KEY = 43  # not by the chip's own VCEK
    CHIP_MASKED = 44
    CHIP_MISMATCH = 45  # the certificate is another chip's
    TCB_MISMATCH = 46  # the certificate is another firmware's
    FIRMWARE_MISMATCH = 47  # GPU: the certificate is another firmware's
    PLATFORM = 48  # SMT, cached keys or a dynamic platform, which the policy does not allow
    MODULE = 49  # TDX: a module that is not Intel's, or a service guest attached

    # The policy.
    FAMILY_REFUSED = 60  # not an accepted family
    FAMILY_KILLED = 61  # the policy's kill switch
    MEASUREMENT = 62  # no reference value matches
    MEASUREMENT_TIME = 63  # one matches, but not now
    TCB_TOO_OLD = 64
    TCB_UNKNOWN = 65  # the vendor's data have no level for it, or one of unknown name
    TCB_DATA_TOO_OLD = 66  # evaluation data number below the policy's
    ADVISORY_REFUSED = 67
    DEVICE_REFUSED = 68

    @property
    def label(self) -> str:
        """Name in results, such as `tcb-too-old`."""
        return self.name.lower().replace("_", "-")


_UNAPPRAISED_MAX = 9
_WARNINGS_MAX = 19


def verdict_of(reasons: Iterable[Reason]) -> TrustTier:
    """The worst tier that any of them implies; affirming if there are none."""
    worst = max(map(_weight, reasons), default=0)
    return (TrustTier.AFFIRMING, TrustTier.WARNING, TrustTier.NONE, TrustTier.CONTRAINDICATED)[worst]


def _weight(reason: Reason) -> int:
    if reason > _WARNINGS_MAX:
        return 3
    return 1 if reason > _UNAPPRAISED_MAX else 2
