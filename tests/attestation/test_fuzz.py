"""Bytes from anybody: every parser answers or raises MalformedMessage, and keeps little of what it gets."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.attestation.appraisal import examine
from assay.attestation.certificates import read_certificate
from assay.attestation.devices import nvidia
from assay.attestation.devices import sev_snp as snp
from assay.attestation.devices.intel_quote import parse_quote
from assay.attestation.evidence import REPORT_BYTES_MAX, Collateral, DeviceFamily, Evidence, Report
from assay.attestation.files import read_collateral, read_evidence
from assay.attestation.reasons import TrustTier
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import MalformedMessage
from tests.attestation.authorities import AT_S, a_collateral, a_policy
from tests.attestation.evidence_file import write_evidence
from tests.attestation.fake_devices import a_gpu_report, amd_collateral, amd_policy, an_snp_report
from tests.attestation.fake_intel_devices import a_td_report, an_sgx_report, intel_collateral
from tests.attestation.test_appraisal import gpus, snp_evidence, software

pytestmark = pytest.mark.slow

PARSERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "quote": (parse_quote, a_td_report(bytes(64)).body),
    "quote 5": (parse_quote, a_td_report(bytes(64), version=5).body),
    "sgx quote": (parse_quote, an_sgx_report(bytes(64)).body),
    "snp": (snp.parse_report, an_snp_report(bytes(64)).body),
    "gpu": (nvidia.parse_report, a_gpu_report(bytes(32)).body),
    "certificate": (read_certificate, an_snp_report(bytes(64)).certificates[0]),
    "evidence": (lambda data: decode(Evidence, data), encode(snp_evidence(gpus=gpus()))),
    "collateral": (lambda data: decode(Collateral, data), encode(amd_collateral())),
    "evidence file": (read_evidence, write_evidence(snp_evidence(gpus=gpus())).encode()),
    "collateral file": (read_collateral, b'{"fetched_at": "2026-11-20T00:00:00Z", "certificates": ["AAAA"]}'),
}


@st.composite
def broken(draw: st.DrawFn, good: bytes) -> bytes:
    """Something like `good`: cut, grown, or with a few bytes changed; or nothing like it."""
    match draw(st.integers(0, 4)):
        case 0:
            return draw(st.binary(max_size=2048))
        case 1:
            return good[: draw(st.integers(0, len(good)))]
        case 2:
            return good + draw(st.binary(min_size=1, max_size=64))
        case 3:
            at, size = draw(st.integers(0, len(good))), draw(st.integers(0, 64))
            return good[:at] + good[at + size :]
        case _:
            body = bytearray(good)
            for _ in range(draw(st.integers(1, 4))):
                body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
            return bytes(body)


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_answers_or_says_what_it_expected(name):
    parse, good = PARSERS[name]
    parse(good)

    @settings(max_examples=300, deadline=None)
    @given(broken(good))
    @example(b"")
    @example(bytes(5 << 20))
    @example(b"[" * (1 << 20))
    def attempt(data: bytes) -> None:
        with contextlib.suppress(MalformedMessage):
            parse(data)

    attempt()


@pytest.mark.parametrize("family", DeviceFamily)
def test_no_report_makes_an_examiner_raise_or_affirm(family):
    good = {
        DeviceFamily.TDX: a_td_report(bytes(64)),
        DeviceFamily.SGX: an_sgx_report(bytes(64)),
        DeviceFamily.SEV_SNP: an_snp_report(bytes(64)),
        DeviceFamily.NVIDIA_CC: a_gpu_report(bytes(32)),
        DeviceFamily.SOFTWARE: software().main,
    }[family]
    if family in (DeviceFamily.TDX, DeviceFamily.SGX):
        pytest.importorskip("dcap_qvl", reason="the optional extra `attestation` is not installed")
    policy, collateral = (
        a_policy(*DeviceFamily, roots=amd_policy().roots),
        amd_collateral(intel=intel_collateral().intel),
    )

    @settings(max_examples=150, deadline=None)
    @given(broken(good.body), st.lists(st.binary(max_size=200), max_size=3))
    def attempt(body: bytes, certificates: list[bytes]) -> None:
        report = Report(family=family, body=body, certificates=(*good.certificates, *certificates))
        verdict = examine(report, bytes(64), policy, collateral, AT_S)[0].verdict
        assert verdict is TrustTier.CONTRAINDICATED

    attempt()


@settings(max_examples=200, deadline=None)
@given(broken(intel_collateral().intel))
def test_no_collateral_makes_an_examiner_raise(body):
    pytest.importorskip("dcap_qvl", reason="the optional extra `attestation` is not installed")
    policy = a_policy(DeviceFamily.TDX)

    device, _ = examine(a_td_report(bytes(64)), bytes(64), policy, a_collateral(intel=body), AT_S)

    assert device.verdict in (TrustTier.CONTRAINDICATED, TrustTier.NONE)


@settings(max_examples=200, deadline=None)
@given(broken(amd_collateral().crls[0]))
def test_no_revocation_list_makes_an_examiner_raise(crl):
    device, _ = examine(an_snp_report(bytes(64)), bytes(64), amd_policy(), amd_collateral(crls=(crl,)), AT_S)

    assert device.verdict in (
        TrustTier.CONTRAINDICATED,
        TrustTier.AFFIRMING,
    )  # the list's end may read the same


@pytest.mark.parametrize("name", ["quote", "snp", "gpu", "certificate"])
def test_a_parser_keeps_no_more_than_a_small_multiple_of_its_bound(name):
    parse, good = PARSERS[name]
    huge = [good + bytes(64 << 20), good.ljust(REPORT_BYTES_MAX, b"\xff"), bytes([255]) * REPORT_BYTES_MAX]
    tracemalloc.start()
    try:
        for data in huge:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            with contextlib.suppress(MalformedMessage):
                parse(data)
            assert tracemalloc.get_traced_memory()[1] - before < 16 * REPORT_BYTES_MAX
    finally:
        tracemalloc.stop()


def test_evidence_files_say_what_they_hold():
    evidence = snp_evidence(gpus=gpus())

    assert read_evidence(write_evidence(evidence).encode()) == evidence
    for text, words in (
        (b"{}", "report"),
        (b'{"family": "sev-snp", "report": "A"}', "report"),
        (b'{"family": "sev-snp", "report": "AAAA\\n"}', "report"),
        (b'{"family": "arm", "report": ""}', "family"),
        (b'{"family": "tdx", "report": "", "new": 1}', "new"),
        (b"[" * 300 + b"]" * 300, "nested"),
    ):
        with pytest.raises(MalformedMessage, match=words):
            read_evidence(text)
    for moment in (
        "2026-11-20",
        "2026-11-20T00:00:00+00:00",
        "1969-12-31T23:59:59Z",
        "2026-11-20T00:00:60Z",
        "",
    ):
        with pytest.raises(MalformedMessage, match="fetched_at"):
            read_collateral(b'{"fetched_at": "%s"}' % moment.encode())
