"""Real evidence: quotes and reports of Intel, AMD and NVIDIA give the verdicts that their manifest expects.

The files are other people's and no part of this repository. They are read from the
folder that ASSAY_TEE_VECTORS names, else `../shared/vectors/tee`; without them these
tests are skipped. Nobody made this evidence for one of our nodes, so each report is
examined by itself, for the bytes that it says it is about; a wrong one is tried too.
"""

from __future__ import annotations

import calendar
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from assay.attestation.appraisal import examine
from assay.attestation.certificates import check_path, read_certificate
from assay.attestation.devices import nvidia
from assay.attestation.devices import sev_snp as snp
from assay.attestation.devices.intel_quote import parse_quote
from assay.attestation.evidence import Collateral, DeviceFamily, Report
from assay.attestation.policy import (
    REQUIRED_CLAIMS,
    AppraisalPolicy,
    Claim,
    Reference,
    Root,
    SnpTcb,
    TcbStatus,
)
from assay.attestation.reasons import Reason, TrustTier
from assay.attestation.result import DeviceResult
from tests.attestation.authorities import a_collateral, a_policy

ROOT = Path(__file__).parents[2]
VECTORS = Path(os.environ.get("ASSAY_TEE_VECTORS") or ROOT.parent / "shared" / "vectors" / "tee")

pytestmark = [
    pytest.mark.skipif(
        not (VECTORS / "manifest.json").exists(), reason=f"no attestation vectors in {VECTORS}"
    ),
    pytest.mark.filterwarnings("ignore:.*serial number.*"),  # AMD's VCEKs have serial number 0
]


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / "manifest.json").read_text())
    return found


def case(name: str) -> dict[str, Any]:
    return next(case for case in manifest()["cases"] if case["id"] == name)


def read(name: str) -> bytes:
    body = (VECTORS / name).read_bytes()
    return bytes.fromhex(body.decode()) if name.endswith(".hex") else body


def ders(name: str) -> list[bytes]:
    if name.endswith(".der"):
        return [read(name)]
    return [c.public_bytes(Encoding.DER) for c in x509.load_pem_x509_certificates(read(name))]


def unix_s(text: str) -> int:
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def a_report(entry: dict[str, Any]) -> tuple[Report, Collateral, list[bytes]]:
    """A case's report, its collateral, and the certificates that may be roots."""
    body, *others = entry["files"]
    at_s = unix_s(entry["at"])
    if body.startswith(("tdx", "sgx")):
        family = DeviceFamily.TDX if body.startswith("tdx") else DeviceFamily.SGX
        intel = b""
        if others and others[0].endswith("_collateral.json"):
            intel = read(others[0])
        elif others:  # Intel's replies, without the certificates that sign them
            info, identity, pck_crl, root_crl = map(read, others)
            intel = json.dumps(
                {
                    "tcb_info": json.dumps(json.loads(info)["tcbInfo"]),
                    "tcb_info_signature": json.loads(info)["signature"],
                    "qe_identity": json.dumps(json.loads(identity)["enclaveIdentity"]),
                    "qe_identity_signature": json.loads(identity)["signature"],
                    "pck_crl": pck_crl.hex(),
                    "root_ca_crl": root_crl.hex(),
                }
            ).encode()
        report = Report(family=family, body=read(body), certificates=())
        return report, a_collateral(intel=intel, fetched_at_s=at_s), ders("sgx/intel_sgx_root_ca.der")
    if body.startswith("sev-snp"):
        ask, ark = ders(others[1])
        report = Report(family=DeviceFamily.SEV_SNP, body=read(body), certificates=(*ders(others[0]), ask))
        return report, a_collateral(certificates=(ark,), fetched_at_s=at_s), [ark]
    report = Report(family=DeviceFamily.NVIDIA_CC, body=read(body), certificates=tuple(ders(others[0])))
    return report, a_collateral(fetched_at_s=at_s), ders(others[1])


def said(report: Report) -> tuple[bytes, dict[str, str]]:
    """What the report itself says: the bytes it is about, and what a reference would have to name."""
    if report.family is DeviceFamily.SEV_SNP:
        found = snp.parse_report(report.body)
        return found.report_data, {"measurement": found.measurement.hex()}
    if report.family is DeviceFamily.NVIDIA_CC:
        gpu = nvidia.parse_report(report.body)
        return gpu.nonce, {
            "driver": nvidia.version_text(gpu.opaque[nvidia.DRIVER_VERSION]),
            "vbios": nvidia.vbios_text(gpu.opaque[nvidia.VBIOS_VERSION]),
            "block2": gpu.blocks[2].hex(),
        }
    quote = parse_quote(report.body)
    return quote.report_data, {name: quote.claims[name] for name in REQUIRED_CLAIMS[report.family]}


def a_lenient_policy(report: Report, roots: list[bytes], **changed: Any) -> AppraisalPolicy:
    """Accepts what is in the report, as far as any policy can; what is refused under it is never accepted."""
    values = tuple(Claim(name=name, value=value) for name, value in said(report)[1].items())
    fields: dict[str, Any] = {
        "roots": tuple(Root(family=report.family, sha256=hashlib.sha256(der).digest()) for der in roots),
        "references": (
            Reference(name="it", family=report.family, values=values, not_before_s=0, not_after_s=2**40),
        ),
        "tcb_worst": TcbStatus.OUT_OF_DATE_CONFIGURATION_NEEDED,
        "snp_tcb_min": SnpTcb(fmc=0, bootloader=0, tee=0, snp=0, microcode=0),
        "is_smt_allowed": True,
        "is_dynamic_platform_allowed": True,
        "are_cached_keys_allowed": True,
        "is_revocation_required": False,
    }
    return a_policy(report.family, **fields | changed)


def judge(name: str, *, expected: bytes | None = None, at: str | None = None, **changed: Any) -> DeviceResult:
    entry = case(name)
    report, collateral, roots = a_report(entry)
    if report.family in (DeviceFamily.TDX, DeviceFamily.SGX):
        pytest.importorskip("dcap_qvl", reason="the optional extra `attestation` is not installed")
    policy = a_lenient_policy(report, roots, **changed)
    expected = said(report)[0] if expected is None else expected
    return examine(report, expected, policy, collateral, unix_s(at or entry["at"]))[0]


def test_the_files_are_those_of_the_manifest():
    for entry in manifest()["files"]:
        assert hashlib.sha256((VECTORS / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]


EXPECTED = {
    "tdx-v4-uptodate": (TrustTier.AFFIRMING, ()),
    "tdx-v4-expired-collateral": (TrustTier.CONTRAINDICATED, (Reason.COLLATERAL_EXPIRED,)),
    "tdx-v4-collateral-not-yet-valid": (TrustTier.CONTRAINDICATED, (Reason.COLLATERAL_IN_FUTURE,)),
    "tdx-v5-no-tcb-level": (TrustTier.CONTRAINDICATED, (Reason.TCB_UNKNOWN,)),
    "sgx-v3-needs-policy": (TrustTier.WARNING, (Reason.TCB_TOLERATED, Reason.ADVISORIES)),
    "tdx-v4-signature-only": (TrustTier.NONE, (Reason.NO_COLLATERAL,)),
    "tdx-v5-signature-only": (TrustTier.NONE, (Reason.NO_COLLATERAL,)),
    "snp-milan-debug": (TrustTier.CONTRAINDICATED, (Reason.DEBUG,)),
    "snp-milan-production": (TrustTier.AFFIRMING, ()),
    "snp-wrong-vcek": (TrustTier.CONTRAINDICATED, (Reason.SIGNATURE,)),
    "snp-wrong-product-chain": (TrustTier.CONTRAINDICATED, (Reason.CHAIN,)),
    "nv-h100-single": (TrustTier.AFFIRMING, ()),
}
CHAIN_ONLY = "snp-turin-chain"


def test_every_case_of_the_manifest_is_tried():
    assert {entry["id"] for entry in manifest()["cases"]} == {*EXPECTED, CHAIN_ONLY}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_case_gives_the_verdict_that_its_manifest_expects(name):
    result = judge(name)

    assert (result.verdict, result.reasons) == EXPECTED[name]


def test_a_valid_signature_with_the_debug_bit_is_refused_for_that_bit_alone():
    result = judge("snp-milan-debug")

    assert case("snp-milan-debug")["signature"] == "valid"
    assert result.reasons == (Reason.DEBUG,)


def test_tcb_status_and_advisories_are_those_of_the_manifest():
    for name in ("tdx-v4-uptodate", "sgx-v3-needs-policy"):
        result, entry = judge(name), case(name)
        assert result.tcb.label == entry["status"]
        assert list(result.advisories) == entry.get("advisories", [])


def test_a_strict_policy_refuses_what_needs_one():
    assert case("sgx-v3-needs-policy")["strict_policy"] == "reject"

    result = judge("sgx-v3-needs-policy", tcb_worst=TcbStatus.UP_TO_DATE)

    assert result.reasons == (Reason.ADVISORIES, Reason.TCB_TOO_OLD)


@pytest.mark.parametrize(
    "name", [name for name, (verdict, _) in EXPECTED.items() if verdict <= TrustTier.WARNING]
)
def test_evidence_that_passes_does_not_pass_for_another_binding_or_measurement(name):
    expected = said(a_report(case(name))[0])[0]

    assert Reason.BINDING in judge(name, expected=bytes(len(expected))).reasons
    assert Reason.MEASUREMENT in judge(name, references=()).reasons


def test_a_milan_certificate_counts_within_its_dates():
    first, last = case("snp-milan-production")["valid"]

    assert judge("snp-milan-production", at=f"{last}T00:00:00Z").verdict is TrustTier.AFFIRMING
    assert judge("snp-milan-production", at="2030-04-04T00:00:00Z").reasons == (Reason.CERTIFICATE_TIME,)
    assert judge("snp-milan-production", at=f"{first}T00:00:00Z").reasons == (Reason.CERTIFICATE_TIME,)


def test_intels_collateral_counts_within_its_dates():
    first, last = case("tdx-v4-uptodate")["valid"]

    assert judge("tdx-v4-uptodate", at=first).verdict is TrustTier.AFFIRMING
    assert judge("tdx-v4-uptodate", at=last).verdict is TrustTier.AFFIRMING
    # The processors' revocation list ends a second later; dcap-qvl calls that a chain that does not hold.
    assert judge("tdx-v4-uptodate", at="2025-07-19T10:00:37Z").reasons == (Reason.CHAIN,)
    assert judge("tdx-v4-uptodate", at="2025-07-19T10:32:28Z").reasons == (Reason.COLLATERAL_EXPIRED,)


def test_the_gpus_nonce_and_driver_are_those_of_the_manifest():
    report, _, _ = a_report(case("nv-h100-single"))
    nonce, values = said(report)

    assert nonce.hex() == case("nv-h100-single")["nonce"]
    assert values["driver"] == case("nv-h100-single")["driver"]


def test_a_gpu_whose_measurements_nobody_lists_is_not_appraised_as_good():
    assert case("nv-h100-single")["status"] == "signature-only:no-RIM"
    assert judge("nv-h100-single", references=()).reasons == (Reason.MEASUREMENT,)


def test_revocation_is_asked_for_where_the_policy_requires_it():
    for name in ("snp-milan-production", "nv-h100-single"):
        assert Reason.REVOCATION_UNKNOWN in judge(name, is_revocation_required=True).reasons


def test_a_turin_certificate_leads_to_its_root_and_names_its_firmware():
    entry = case(CHAIN_ONLY)
    vcek, (ask, ark) = ders(entry["files"][0])[0], ders(entry["files"][1])
    given = [read_certificate(der) for der in (vcek, ask, ark)]
    policy = a_policy(DeviceFamily.SEV_SNP, is_revocation_required=False)

    path = check_path(given, (), (), frozenset({given[-1].sha256}), policy, unix_s(entry["at"]))

    assert path.reasons == ()
    assert snp.vcek_tcb(given[0]) == SnpTcb(fmc=0, bootloader=0, tee=0, snp=0, microcode=9)
