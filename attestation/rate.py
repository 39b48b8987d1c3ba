"""Rate: the discount on a node's audit rate that an attestation result gives.

Room: attestation (pure). Evidence lowers the audit rate and never replaces audits.
Operators have physical access to their machines, and one leaked key forges perfect
evidence for every machine of a family; so the rate keeps its floor and its deterrent part, and
pay and votes do not depend on evidence. The rate itself: `assay.protocol.auditing.draws.discounted_ppm`.
"""

from __future__ import annotations

from assay.attestation.evidence import DeviceFamily
from assay.attestation.reasons import TrustTier
from assay.attestation.result import AttestationResult
from assay.protocol.messages import Discount


def discount_of(result: AttestationResult | None, at_s: int) -> Discount:
    """The discount for a node's newest result at Unix time `at_s`.

    NONE for no result, one that is not affirming or warning, one made after `at_s`,
    one that has expired (`at_s >= expires_s`), and a GPU's without a processor's.
    """
    if result is None or result.verdict not in (TrustTier.AFFIRMING, TrustTier.WARNING):
        return Discount.NONE
    if not result.at_s <= at_s < result.expires_s or result.main.family is DeviceFamily.NVIDIA_CC:
        return Discount.NONE
    is_complete = bool(result.gpus) and result.verdict is TrustTier.AFFIRMING
    return Discount.PROCESSOR_AND_GPU if is_complete else Discount.PROCESSOR
