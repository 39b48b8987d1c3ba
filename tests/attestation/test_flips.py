"""No bit of evidence is free: a thousand flips of each kind, drawn from one seed, are all refused.

What is flipped is the report and every certificate that comes with it: signed bodies,
signatures, padding, lengths, certificate text. Nothing of it is left out; the one thing
of a quote that its format does not cover, bytes after its declared end, is none of it
(test_intel.py, "what follows a quote is no part of it"). No flip is the other valid
signature that ECDSA has for each: it makes no other device.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from assay.attestation.appraisal import examine
from assay.attestation.binding import report_data
from assay.attestation.evidence import Collateral, DeviceFamily, Report
from assay.attestation.policy import AppraisalPolicy
from assay.attestation.reasons import TrustTier
from tests.attestation.authorities import AT_S, a_binding, a_collateral
from tests.attestation.fake_devices import (
    a_gpu_report,
    a_twin,
    amd_collateral,
    amd_policy,
    an_snp_report,
    gpu_crls,
    gpu_policy,
)
from tests.attestation.fake_intel_devices import (
    a_td_report,
    an_sgx_report,
    intel_collateral,
    intel_json,
    sgx_policy,
    td_policy,
)
from tests.attestation.test_appraisal import software, software_policy

pytestmark = pytest.mark.slow

FLIPS = 1000
Case = tuple[Report, bytes, AppraisalPolicy, Collateral]


def _software() -> Case:
    return software().main, report_data(a_binding(), ()), software_policy(), a_collateral()


def _tdx(**changed: Any) -> Case:
    pytest.importorskip("dcap_qvl", reason="the optional extra `attestation` is not installed")
    return a_td_report(b"e" * 64, **changed), b"e" * 64, td_policy(), intel_collateral()


def _sgx() -> Case:
    pytest.importorskip("dcap_qvl", reason="the optional extra `attestation` is not installed")
    return an_sgx_report(b"e" * 64), b"e" * 64, sgx_policy(), a_collateral(intel=intel_json(DeviceFamily.SGX))


CASES: dict[str, Callable[[], Case]] = {
    "tdx 4": _tdx,
    "tdx 5": lambda: _tdx(version=5, service_td=bytes(48)),
    "sgx": _sgx,
    "sev-snp": lambda: (an_snp_report(b"e" * 64), b"e" * 64, amd_policy(), amd_collateral()),
    "nvidia-cc": lambda: (a_gpu_report(b"e" * 32), b"e" * 32, gpu_policy(), a_collateral(crls=gpu_crls())),
    "software": _software,
}


def parts(report: Report) -> list[bytes]:
    return [report.body, *report.certificates]


def flipped(report: Report, bit: int) -> Report:
    """The report with one bit changed, counted through its body and then its certificates."""
    changed = []
    for part in parts(report):
        if 0 <= bit < 8 * len(part):
            part = part[: bit // 8] + bytes([part[bit // 8] ^ 1 << bit % 8]) + part[bit // 8 + 1 :]
            bit = -1
        elif bit >= 0:
            bit -= 8 * len(part)
        changed.append(part)
    return replace(report, body=changed[0], certificates=tuple(changed[1:]))


@pytest.mark.parametrize("kind", CASES)
def test_every_flipped_bit_is_refused(kind):
    report, expected, policy, collateral = CASES[kind]()
    assert examine(report, expected, policy, collateral, AT_S)[0].verdict is TrustTier.AFFIRMING
    bits = 8 * sum(map(len, parts(report)))
    draw = random.Random(kind)

    for bit in draw.sample(range(bits), FLIPS):
        broken = flipped(report, bit)
        assert broken != report
        verdict = examine(broken, expected, policy, collateral, AT_S)[0].verdict
        assert verdict is TrustTier.CONTRAINDICATED, f"bit {bit} of {bits}"


@pytest.mark.parametrize("at", range(4))
def test_the_other_signature_of_a_gpus_certificate_makes_no_other_gpu(at):
    report, expected, policy, collateral = CASES["nvidia-cc"]()
    certificates = list(report.certificates)
    certificates[at] = a_twin(certificates[at])

    known = examine(report, expected, policy, collateral, AT_S)[0]
    twin = examine(replace(report, certificates=tuple(certificates)), expected, policy, collateral, AT_S)[0]

    is_pinned = at == 3  # the root's digest is in the policy
    assert twin.ueid == (bytes(32) if is_pinned else known.ueid)
    assert twin.verdict is (TrustTier.CONTRAINDICATED if is_pinned else TrustTier.AFFIRMING)
