"""Appraisal: appraises a node's attestation evidence under a policy (RFC 9334), as a pure function.

Room: attestation (pure). No clock, no network, no environment: the
same evidence, binding, policy, collateral and time give the same result, so a
dispute can repeat it. Malformed evidence gives CONTRAINDICATED, never an exception.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from assay.attestation.binding import Binding, gpu_nonce, report_data
from assay.attestation.devices import intel, nvidia, software
from assay.attestation.devices import sev_snp as snp
from assay.attestation.evidence import Collateral, DeviceFamily, Evidence, Report
from assay.attestation.finding import DeviceFinding
from assay.attestation.policy import AppraisalPolicy, Claim, check_policy, family_faults
from assay.attestation.reasons import Reason, TrustTier, verdict_of
from assay.attestation.result import AttestationResult, DeviceResult
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import MalformedMessage
from assay.protocol.types import Digest

Examine = Callable[[Report, bytes, AppraisalPolicy, Collateral, int], DeviceFinding]

EXAMINERS: dict[DeviceFamily, Examine] = {
    DeviceFamily.TDX: intel.examine,
    DeviceFamily.SGX: intel.examine,
    DeviceFamily.SEV_SNP: snp.examine,
    DeviceFamily.NVIDIA_CC: nvidia.examine,
    DeviceFamily.SOFTWARE: software.examine,
}


def appraise(
    evidence: Evidence, binding: Binding, policy: AppraisalPolicy, collateral: Collateral, at_s: int
) -> AttestationResult:
    """Appraise `evidence` of the node of `binding` at Unix time `at_s`, under `policy`.

    Args:
        evidence: From the node; untrusted.
        binding: Expected binding, with the nonce that the verifiers drew.
        policy: The appraisal policy.
        collateral: Vendors' data, from the verifier's own fetcher.
        at_s: Unix time of the appraisal.

    Returns:
        The result. Its verdict is the worst of the processor's and the GPUs'; it is
        AFFIRMING only if there is no reason against any of them.

    Raises:
        ConfigError: the evidence is Intel's and dcap-qvl is not installed.
        ValueError: the policy contradicts itself (our own mistake).
    """
    check_policy(policy)
    is_gpu = evidence.main.family is DeviceFamily.NVIDIA_CC
    expected = gpu_nonce(binding) if is_gpu else report_data(binding, evidence.gpus)
    main, main_end_s = examine(evidence.main, expected, policy, collateral, at_s)
    gpus = [examine(gpu, gpu_nonce(binding), policy, collateral, at_s) for gpu in evidence.gpus]
    reasons = _reasons_of_all(evidence, binding, policy, collateral, at_s)
    named = [gpu.ueid for gpu, _ in gpus] + [main.ueid]
    known = [ueid for ueid in named if any(ueid)]
    if len(set(known)) != len(known):
        reasons.append(Reason.DUPLICATE_DEVICE)
    verdict = max((verdict_of(reasons), main.verdict, *(gpu.verdict for gpu, _ in gpus)))
    ends = (
        at_s + policy.result_life_s,
        binding.nonce_at_s + policy.evidence_age_max_s,
        collateral.fetched_at_s + policy.collateral_age_max_s,
        main_end_s,
        *(end_s for _, end_s in gpus),
    )
    return AttestationResult(
        binding=binding,
        verdict=verdict,
        reasons=tuple(sorted(set(reasons))),
        main=main,
        gpus=tuple(gpu for gpu, _ in gpus),
        evidence=digest(evidence),
        collateral=digest(collateral),
        policy=digest(policy),
        at_s=at_s,
        # Negative results do not expire later: unless it affirms or warns, the result ends at `at_s`.
        expires_s=max(at_s, min(ends)) if verdict <= TrustTier.WARNING else at_s,
    )


def examine(
    report: Report, expected: bytes, policy: AppraisalPolicy, collateral: Collateral, at_s: int
) -> tuple[DeviceResult, int]:
    """Appraise one device's report by itself; returns the result and its expiry (Unix time).

    Args:
        report: Untrusted.
        expected: Expected report data: 64 bytes of a processor, a GPU's 32-byte nonce.
        policy: The appraisal policy.
        collateral: Vendors' data.
        at_s: Unix time.

    Raises:
        ConfigError: the report is Intel's and dcap-qvl is not installed.
    """
    refused = family_faults(policy, report.family)
    if refused:
        found = DeviceFinding(reasons=refused)
    else:
        try:
            found = EXAMINERS[report.family](report, expected, policy, collateral, at_s)
        except MalformedMessage:
            found = DeviceFinding(reasons=(Reason.MALFORMED,))
    ueid = ueid_of(report.family, found.device)
    refused_device = (Reason.DEVICE_REFUSED,) if ueid in policy.refused_devices else ()
    reasons = tuple(sorted({*found.reasons, *refused_device}))
    device = DeviceResult(
        family=report.family,
        verdict=verdict_of(reasons),
        reasons=reasons,
        ueid=ueid,
        debug=found.debug,
        tcb=found.tcb,
        advisories=found.advisories,
        claims=tuple(Claim(name=name, value=value) for name, value in sorted(found.claims.items())),
    )
    return device, found.not_after_s


def ueid_of(family: DeviceFamily, device: bytes) -> Digest:
    """A device's id in results: a digest, so that serial numbers are not disclosed; zero if unknown."""
    if not any(device):
        return Digest(bytes(32))
    return Digest(hashlib.sha256(b"assay/ueid/v1" + bytes([family]) + device).digest())


def _reasons_of_all(
    evidence: Evidence, binding: Binding, policy: AppraisalPolicy, collateral: Collateral, at_s: int
) -> list[Reason]:
    """Reasons against the evidence as a whole."""
    is_gpu = evidence.main.family is DeviceFamily.NVIDIA_CC
    faults = {
        Reason.GPU_ALONE: is_gpu,
        # A GPU cannot bind other devices, and only GPUs can be bound.
        Reason.MALFORMED: any(gpu.family is not DeviceFamily.NVIDIA_CC for gpu in evidence.gpus)
        or (is_gpu and bool(evidence.gpus)),
        Reason.EVIDENCE_TOO_OLD: at_s - binding.nonce_at_s > policy.evidence_age_max_s,
        Reason.EVIDENCE_IN_FUTURE: binding.nonce_at_s > at_s,
        Reason.COLLATERAL_TOO_OLD: at_s - collateral.fetched_at_s > policy.collateral_age_max_s,
        Reason.COLLATERAL_IN_FUTURE: collateral.fetched_at_s > at_s,
    }
    return [reason for reason, holds in faults.items() if holds]
