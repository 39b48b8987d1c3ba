"""TDX and SGX: quotes under a root of our own, through dcap-qvl and our rules on top."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from itertools import count
from typing import Any

import pytest

from assay.attestation.appraisal import examine
from assay.attestation.devices import intel
from assay.attestation.devices.intel_quote import parse_quote, pem_chain
from assay.attestation.evidence import REPORT_BYTES_MAX, Collateral, DeviceFamily, Report
from assay.attestation.policy import AppraisalPolicy, TcbStatus
from assay.attestation.reasons import Reason, TrustTier
from assay.attestation.result import DeviceResult
from assay.protocol.errors import ConfigError, MalformedMessage
from tests.attestation.authorities import AT_S, DAY_S, a_collateral, a_crl, a_root, an_authority
from tests.attestation.fake_devices import gpu_root
from tests.attestation.fake_intel_devices import (
    MR_ENCLAVE,
    TD_VALUES,
    a_pck,
    a_td_report,
    an_sgx_report,
    intel_collateral,
    intel_json,
    intel_root,
    platform_ca,
    sgx_policy,
    td_policy,
)

pytest.importorskip("dcap_qvl", reason="the optional extra `attestation` is not installed")

EXPECTED = bytes(range(64))
SGX = DeviceFamily.SGX


def judge(
    report: Report | None = None,
    *,
    policy: AppraisalPolicy | None = None,
    collateral: Collateral | None = None,
    at_s: int = AT_S,
    **changed: Any,
) -> DeviceResult:
    report = report or a_td_report(EXPECTED, **changed)
    return examine(report, EXPECTED, policy or td_policy(), collateral or intel_collateral(), at_s)[0]


@pytest.mark.parametrize("changed", [{}, {"version": 5}, {"version": 5, "service_td": bytes(48)}], ids=str)
def test_a_quote_of_an_allowed_guest_on_a_current_platform_is_affirming(changed):
    result = judge(**changed)

    assert (result.verdict, result.reasons, result.tcb) == (TrustTier.AFFIRMING, (), TcbStatus.UP_TO_DATE)
    assert TD_VALUES.items() <= {claim.name: claim.value for claim in result.claims}.items()


def test_a_quote_of_an_allowed_enclave_is_affirming():
    collateral = a_collateral(intel=intel_json(SGX))
    result = judge(an_sgx_report(EXPECTED), policy=sgx_policy(), collateral=collateral)

    assert (result.verdict, result.reasons) == (TrustTier.AFFIRMING, ())
    assert {claim.name: claim.value for claim in result.claims}["mr_enclave"] == MR_ENCLAVE.hex()


def test_reasons_are_told_in_ascending_order():
    result = judge(attributes=1 << 28 | 1, seam_signer=b"x" * 48)

    assert len(result.reasons) > 1
    assert result.reasons == tuple(sorted(set(result.reasons)))


def test_collateral_with_one_value_that_is_no_text_is_malformed():
    told = json.loads(intel_json())
    told["tcb_info"] = 7

    assert judge(collateral=a_collateral(intel=json.dumps(told).encode())).reasons == (Reason.MALFORMED,)


@pytest.mark.parametrize("bit", range(8))
def test_a_guest_under_debug_is_refused_whichever_bit_says_so(bit):
    result = judge(attributes=1 << 28 | 1 << bit)

    assert result.verdict is TrustTier.CONTRAINDICATED
    assert Reason.DEBUG in result.reasons


def test_an_enclave_under_debug_is_refused():
    collateral = a_collateral(intel=intel_json(SGX))
    result = judge(an_sgx_report(EXPECTED, attributes=0x07), policy=sgx_policy(), collateral=collateral)

    assert result.verdict is TrustTier.CONTRAINDICATED
    assert Reason.DEBUG in result.reasons


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"attributes": 1 << 28 | 1 << 29}, Reason.MIGRATION),
        ({"seam_signer": b"\x01" * 48}, Reason.MODULE),
        ({"version": 5, "service_td": b"\x01" * 48}, Reason.MODULE),
        ({"mr_td": b"\x02" * 48}, Reason.MEASUREMENT),
        ({"pck": a_pck(is_dynamic=True)}, Reason.PLATFORM),
        ({"pck": a_pck(is_cached=True)}, Reason.PLATFORM),
        ({"pck": a_pck(is_smt=True)}, Reason.PLATFORM),
    ],
    ids=[
        "migratable",
        "another module",
        "a service guest",
        "another measurement",
        "platform changes",
        "keys are cached",
        "threads share a core",
    ],
)
def test_what_a_well_signed_quote_says_against_itself_is_refused(changed, reason):
    result = judge(**changed)

    assert result.verdict is TrustTier.CONTRAINDICATED
    assert reason in result.reasons


def test_a_platforms_settings_count_only_where_the_policy_refuses_them():
    allowed = td_policy(is_smt_allowed=True, is_dynamic_platform_allowed=True, are_cached_keys_allowed=True)

    assert judge(pck=a_pck(True, True, True), policy=allowed).verdict is TrustTier.AFFIRMING


def test_bytes_over_which_the_quote_is_not_are_refused():
    assert judge(a_td_report(EXPECTED[:-1] + b"\0")).reasons == (Reason.BINDING,)


@pytest.mark.parametrize(
    ("status", "worst", "verdict"),
    [
        ("UpToDate", TcbStatus.UP_TO_DATE, TrustTier.AFFIRMING),
        ("SWHardeningNeeded", TcbStatus.UP_TO_DATE, TrustTier.CONTRAINDICATED),
        ("SWHardeningNeeded", TcbStatus.SW_HARDENING_NEEDED, TrustTier.WARNING),
        ("ConfigurationNeeded", TcbStatus.SW_HARDENING_NEEDED, TrustTier.CONTRAINDICATED),
        ("OutOfDate", TcbStatus.OUT_OF_DATE, TrustTier.WARNING),
        ("OutOfDateConfigurationNeeded", TcbStatus.OUT_OF_DATE, TrustTier.CONTRAINDICATED),
        ("Revoked", TcbStatus.OUT_OF_DATE_CONFIGURATION_NEEDED, TrustTier.CONTRAINDICATED),
    ],
)
def test_a_status_is_affirmed_tolerated_or_refused(status, worst, verdict):
    result = judge(collateral=intel_collateral(status=status), policy=td_policy(tcb_worst=worst))

    assert result.verdict is verdict
    refused = (Reason.TCB_TOO_OLD,) if verdict is TrustTier.CONTRAINDICATED else ()
    assert result.reasons == (refused or ((Reason.TCB_TOLERATED,) if verdict is TrustTier.WARNING else ()))


def test_advisories_warn_and_those_on_the_deny_list_refuse():
    collateral = intel_collateral(advisories=["INTEL-SA-1", "INTEL-SA-2"])

    assert judge(collateral=collateral).reasons == (Reason.ADVISORIES,)
    assert judge(collateral=collateral).verdict is TrustTier.WARNING
    turned = intel_collateral(advisories=["INTEL-SA-2", "INTEL-SA-1"])
    assert judge(collateral=turned).advisories == ("INTEL-SA-1", "INTEL-SA-2")
    denied = td_policy(refused_advisories=("INTEL-SA-2",))
    assert judge(collateral=collateral, policy=denied).reasons == (Reason.ADVISORY_REFUSED,)


def test_the_number_of_the_evaluation_has_a_minimum():
    assert judge(policy=td_policy(tcb_evaluation_min=17)).verdict is TrustTier.AFFIRMING
    assert judge(policy=td_policy(tcb_evaluation_min=18)).reasons == (Reason.TCB_DATA_TOO_OLD,)


def test_signed_tcb_data_age_whatever_the_fetcher_says():
    ten_days = td_policy(collateral_age_max_s=2 * DAY_S)

    assert judge(policy=ten_days).verdict is TrustTier.AFFIRMING
    assert judge(policy=ten_days, at_s=AT_S + 1).reasons == (Reason.COLLATERAL_TOO_OLD,)


@pytest.mark.parametrize(
    ("collateral", "at_s", "reason"),
    [
        (intel_collateral(), AT_S + 29 * DAY_S, Reason.COLLATERAL_EXPIRED),
        (intel_collateral(), AT_S - 3 * DAY_S, Reason.COLLATERAL_IN_FUTURE),
        (intel_collateral(minimum=1), AT_S, Reason.TCB_UNKNOWN),
        (intel_collateral(revoked=(a_pck(),)), AT_S, Reason.CHAIN),
        (intel_collateral(pck_crl=a_crl(intel_root()).hex()), AT_S, Reason.CHAIN),
        (intel_collateral(tcb_info_signature="00" * 64), AT_S, Reason.SIGNATURE),
        (intel_collateral(qe_identity_signature="00" * 64), AT_S, Reason.SIGNATURE),
        (intel_collateral(status="Excellent"), AT_S, Reason.NOT_ENDORSED),
        (a_collateral(intel=intel_json(SGX)), AT_S, Reason.NOT_ENDORSED),
        (a_collateral(), AT_S, Reason.NO_COLLATERAL),
        (intel_collateral(tcb_info_issuer_chain=""), AT_S, Reason.NO_COLLATERAL),
        (intel_collateral(extra=""), AT_S, Reason.MALFORMED),
        (intel_collateral(pck_crl="zz"), AT_S, Reason.MALFORMED),
        (a_collateral(intel=b"[]"), AT_S, Reason.MALFORMED),
        (a_collateral(intel=b'{"tcb_info": 1}'), AT_S, Reason.MALFORMED),
        (a_collateral(intel=b"{" * 5000), AT_S, Reason.MALFORMED),
        (a_collateral(intel=b"\xff"), AT_S, Reason.MALFORMED),
    ],
)
def test_collateral_that_does_not_hold_gives_its_reason(collateral, at_s, reason):
    result = judge(collateral=collateral, at_s=at_s)

    assert result.reasons == (reason,)
    expected = TrustTier.NONE if reason is Reason.NO_COLLATERAL else TrustTier.CONTRAINDICATED
    assert result.verdict is expected


def test_an_appraisal_stands_until_the_first_of_intels_lists_and_data_ends():
    issued_s = AT_S - 2 * DAY_S
    soon = a_crl(platform_ca(), from_s=issued_s, to_s=issued_s + 9 * DAY_S).hex()
    report = a_td_report(EXPECTED)

    def end_s(collateral: Collateral) -> int:
        return examine(report, EXPECTED, td_policy(), collateral, AT_S)[1]

    assert end_s(intel_collateral(issued_s=issued_s)) == issued_s + 30 * DAY_S
    assert end_s(intel_collateral(issued_s=issued_s, pck_crl=soon)) == issued_s + 9 * DAY_S


def test_parts_of_a_quote_under_other_keys_give_their_reason():
    body = a_td_report(EXPECTED).body
    signature, key = 48 + 584 + 4, 48 + 584 + 4 + 64
    authentication = key + 64 + 6 + 384 + 64 + 2

    for at, reason in (
        (signature, Reason.SIGNATURE),
        (key, Reason.SIGNATURE),
        (authentication, Reason.SIGNATURE),
    ):
        broken = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        report = Report(family=DeviceFamily.TDX, body=broken, certificates=())
        assert judge(report).reasons == (reason,)


def test_a_root_that_is_not_pinned_is_refused_though_the_chain_holds():
    stranger = td_policy(roots=(a_root(DeviceFamily.TDX, gpu_root()),))

    assert judge(policy=stranger).reasons == (Reason.ROOT,)


def test_one_family_does_not_pass_for_the_other():
    report = dataclasses.replace(an_sgx_report(EXPECTED), family=DeviceFamily.TDX)

    assert judge(report).reasons == (Reason.MALFORMED,)
    beside = dataclasses.replace(a_td_report(EXPECTED), certificates=(platform_ca().der,))
    assert judge(beside).reasons == (Reason.CHAIN,)


class PanicException(BaseException):
    """As the extension raises where its own code has a bug."""


def fake(answer: Any) -> types.SimpleNamespace:
    def verify(*_: object) -> types.SimpleNamespace:
        if isinstance(answer, BaseException):
            raise answer
        return types.SimpleNamespace(to_json=lambda: json.dumps(answer))

    return types.SimpleNamespace(
        QuoteCollateralV3=lambda **_: None,
        QuoteVerifier=lambda _: types.SimpleNamespace(verify_with_policy=verify),
        QuotePolicy=types.SimpleNamespace(claims_only=lambda _: None),
    )


def test_a_panic_of_the_extension_refuses_the_quote_and_nothing_else_is_swallowed(monkeypatch):
    monkeypatch.setitem(sys.modules, "dcap_qvl", fake(PanicException("index out of bounds")))
    assert judge().reasons == (Reason.NOT_ENDORSED,)

    monkeypatch.setitem(sys.modules, "dcap_qvl", fake(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        judge()


def test_claims_of_another_version_are_not_guessed_at(monkeypatch):
    monkeypatch.setitem(sys.modules, "dcap_qvl", fake({"claims_version": 2}))

    with pytest.raises(ConfigError, match="claims are of version 2"):
        judge()


def test_a_quote_that_two_parsers_read_differently_is_refused(monkeypatch):
    import dcap_qvl

    real = dcap_qvl.QuoteVerifier(intel_root().der)
    other = a_td_report(EXPECTED, mr_td=b"\x09" * 48).body
    collateral = intel_collateral()
    given = json.loads(collateral.intel)
    parts = {name: given[name] for name in intel.TEXTS} | {n: bytes.fromhex(given[n]) for n in intel.HEX}
    policy = dcap_qvl.QuotePolicy.claims_only(AT_S)
    claims = real.verify_with_policy(other, dcap_qvl.QuoteCollateralV3(**parts), AT_S, policy).to_json()
    monkeypatch.setitem(sys.modules, "dcap_qvl", fake(json.loads(claims)))

    assert judge(collateral=collateral).reasons == (Reason.MALFORMED,)


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (0, 6, "version 6"),
        (2, 3, "the attestation key's type"),
        (4, 0x82, "tee type 0x82"),
        (48 + 584, 0xFF, "signature needs|certification data's size"),
        (48 + 584 + 4 + 128, 5, "the certification data's type"),
    ],
)
def test_a_field_out_of_its_format_is_refused_in_words(at, value, words):
    body = bytearray(a_td_report(EXPECTED).body)
    body[at] = value

    with pytest.raises(MalformedMessage, match=words):
        parse_quote(bytes(body))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"\n-----END", b"\n\n-----END", "canonical PEM"),
        (b"\nMII", b"\n MII", "is not base64|canonical PEM"),
        (b"=\n-----END", b"=====\n-----END", "is not base64|canonical PEM"),
        (b"-----BEGIN CERTIFICATE-----", b"-----BEGIN CERTIFICAT3-----", "begins with"),
        (b"-----END CERTIFICATE-----\n", b"-----END CERTIFICATE-----\t", "0 certificates"),
    ],
)
def test_certificates_have_one_spelling(old, new, words):
    # Signatures differ in length, so not every certificate has padding: sign again until one has.
    signed = (an_authority("Leaf", platform_ca(), kind="p256") for _ in count())
    leaf = next(one for one in signed if b"=\n" in one.pem)
    pem = leaf.pem + platform_ca().pem + intel_root().pem
    assert pem_chain(pem, 3) == (leaf.der, platform_ca().der, intel_root().der)
    assert old in pem

    with pytest.raises(MalformedMessage, match=words):
        pem_chain(pem.replace(old, new), 3)


def test_what_follows_a_quote_is_no_part_of_it():
    report = a_td_report(EXPECTED)
    padded = dataclasses.replace(report, body=report.body + bytes(100))

    assert parse_quote(padded.body).end == len(report.body)
    assert judge(padded).verdict is TrustTier.AFFIRMING


def test_a_quote_with_more_behind_it_than_any_page_is_refused():
    body = a_td_report(EXPECTED).body

    parse_quote(body.ljust(REPORT_BYTES_MAX, b"\0"))
    with pytest.raises(MalformedMessage, match="at most 32768 expected"):
        parse_quote(body.ljust(REPORT_BYTES_MAX + 1, b"\0"))
