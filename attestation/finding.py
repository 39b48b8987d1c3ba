"""Finding: what the appraisal of one device's report came to.

Room: attestation (pure).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from assay.attestation.policy import TcbStatus
from assay.attestation.reasons import Reason

FOREVER_S = 253_402_300_799  # end of the year 9999: vendors write it for "does not expire"


class Debug(enum.IntEnum):
    """Whether somebody outside could look in."""

    NOT_STATED = 0  # the report does not say; the measurements must
    DISABLED = 1  # since the guest was started
    ENABLED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFinding:
    """What speaks against a report, and what a report with a good signature says.

    Everything but `reasons` is left at its default where no signature vouches for it.
    """

    reasons: tuple[Reason, ...]
    device: bytes = b""  # the vendor's name for it
    claims: dict[str, str] = field(default_factory=dict)
    debug: Debug = Debug.NOT_STATED
    tcb: TcbStatus = TcbStatus.NOT_STATED
    advisories: tuple[str, ...] = ()
    not_after_s: int = FOREVER_S  # Unix time: certificates and collateral end here
