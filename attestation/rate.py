"""Rate: how far a node's evidence lowers the rate at which its steps are audited.

Room: attestation (pure). Evidence is a discount on audits, never a replacement.
Operators own their machines and can open them, and one leaked key forges perfect
evidence for every machine of a family; so the floor stays, what deters stays, and
pay and votes know nothing of this.
"""

from __future__ import annotations

import enum

from attestation.evidence import Family
from attestation.reasons import Verdict
from attestation.result import AttestationResult
from protocol.params import PPM


class Discount(enum.IntEnum):
    """What a node's adaptive rate is multiplied with, in millionths."""

    NONE = 1_000_000
    PROCESSOR = 800_000  # a processor alone, or a warning: nothing says which GPU did the work
    PROCESSOR_AND_GPU = 400_000  # both, bound to each other, nothing against either


def discount_of(result: AttestationResult | None, at_s: int) -> Discount:
    """The discount that a node's newest result earns at Unix time `at_s`.

    NONE for no result, one that is not affirming or warning, one made after `at_s`,
    one that has expired (`at_s >= expires_s`), and a GPU's without a processor's.
    """
    if result is None or result.verdict not in (Verdict.AFFIRMING, Verdict.WARNING):
        return Discount.NONE
    if not result.at_s <= at_s < result.expires_s or result.main.family is Family.NVIDIA_CC:
        return Discount.NONE
    is_complete = bool(result.gpus) and result.verdict is Verdict.AFFIRMING
    return Discount.PROCESSOR_AND_GPU if is_complete else Discount.PROCESSOR


def rate_ppm(*, adaptive_ppm: int, deterrent_ppm: int, floor_ppm: int, discount: Discount) -> int:
    """Probability of an audit, in millionths: `min(1, max(deterrent, discount * adaptive, floor))`.

    Only the adaptive part is multiplied, and rounded up. Hence, for all arguments:
    the result is at least `floor_ppm` and at least `deterrent_ppm`; it is at most
    what it is with `Discount.NONE`; and with `Discount.NONE` it is
    `min(1_000_000, max(deterrent_ppm, adaptive_ppm, floor_ppm))`, as if there
    were no attestation.

    Args:
        adaptive_ppm: What a node's record asks for, before the floor: `1_000_000 * probation // clean`.
            0 or more; more than 1,000,000 counts as it is, then the result is cut.
        deterrent_ppm: What must hold whatever the node shows: 1,000,000 during probation, the rate at
            which cheating does not pay, 0 if neither applies. 0 to 1,000,000.
        floor_ppm: The run's floor. 1 to 1,000,000.
        discount: From `discount_of`.

    Raises:
        ValueError: an argument is outside of its bounds (our own mistake).
    """
    if adaptive_ppm < 0 or not 0 <= deterrent_ppm <= PPM or not 0 < floor_ppm <= PPM:
        raise ValueError(
            f"rates {adaptive_ppm}, {deterrent_ppm}, {floor_ppm}: "
            f"expected 0 or more, 0 to {PPM}, and 1 to {PPM} millionths"
        )
    discounted = -(-adaptive_ppm * int(discount) // PPM)
    return min(PPM, max(deterrent_ppm, discounted, floor_ppm))
