"""Finding: result type of appraising one device's report.

Room: attestation (pure).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from assay.attestation.policy import TcbStatus
from assay.attestation.reasons import Reason

FOREVER_S = 253_402_300_799  # end of the year 9999: vendors write it for "does not expire"


class Debug(enum.IntEnum):
    """Debug state of the guest, in which the host can read its memory."""

    NOT_STATED = 0  # not in the report; the measurements decide
    DISABLED = 1  # since the guest was started
    ENABLED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFinding:
    """Reasons against a report, and the contents of a report with a valid signature.

    Without a valid signature everything but `reasons` has its default.
    """

    reasons: tuple[Reason, ...]
    device: bytes = b""  # the vendor's id of the device
    claims: dict[str, str] = field(default_factory=dict)
    debug: Debug = Debug.NOT_STATED
    tcb: TcbStatus = TcbStatus.NOT_STATED
    advisories: tuple[str, ...] = ()
    not_after_s: int = FOREVER_S  # Unix time: expiry of certificates and collateral
