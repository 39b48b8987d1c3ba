"""SEV-SNP: one good report, and every way in which one can be refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from assay.attestation.appraisal import examine
from assay.attestation.certificates import read_certificate
from assay.attestation.devices.sev_snp import parse_report, report_tcb, vcek_tcb
from assay.attestation.evidence import Collateral, Report
from assay.attestation.policy import AppraisalPolicy, SnpTcb, TcbStatus
from assay.attestation.reasons import Reason, TrustTier
from assay.attestation.result import DeviceResult
from assay.protocol.errors import MalformedMessage
from tests.attestation import fake_devices as devices
from tests.attestation.authorities import AT_S, DAY_S, a_crl, a_key, an_authority
from tests.attestation.fake_devices import (
    a_vcek,
    amd_collateral,
    amd_policy,
    amd_root,
    amd_signer,
    an_snp_report,
)

EXPECTED = bytes(range(64))


def judge(
    report: Report | None = None,
    *,
    policy: AppraisalPolicy | None = None,
    collateral: Collateral | None = None,
    at_s: int = AT_S,
    **changed: Any,
) -> DeviceResult:
    report = report or an_snp_report(EXPECTED, **changed)
    return examine(report, EXPECTED, policy or amd_policy(), collateral or amd_collateral(), at_s)[0]


def test_a_report_of_an_allowed_guest_on_current_firmware_is_affirming():
    result = judge()

    assert (result.verdict, result.reasons, result.tcb) == (TrustTier.AFFIRMING, (), TcbStatus.UP_TO_DATE)
    assert {claim.name: claim.value for claim in result.claims}["measurement"] == devices.MEASUREMENT.hex()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"guest_policy": 0x30000 | 1 << 19}, Reason.DEBUG),
        ({"guest_policy": 0x30000 | 1 << 18}, Reason.MIGRATION),
        ({"migration_agent": b"\xff" * 31 + b"\xfe"}, Reason.MIGRATION),
        ({"vmpl": 1}, Reason.VMPL),
        ({"vmpl": 0xFFFFFFFF}, Reason.VMPL),
        ({"key": 1 << 2}, Reason.SIGNING_KEY),
        ({"key": 7 << 2}, Reason.SIGNING_KEY),
        ({"key": 1 << 1}, Reason.CHIP_MASKED),
        ({"chip": bytes(64)}, Reason.CHIP_MASKED),
        ({"chip": bytes(range(2, 66))}, Reason.CHIP_MISMATCH),
        ({"reported": bytes([3, 0, 0, 0, 0, 0, 8, 114])}, Reason.TCB_MISMATCH),
        ({"reported": bytes([3, 0, 0, 0, 0, 0, 8, 116])}, Reason.TCB_MISMATCH),
        ({"reported": bytes([3, 0, 1, 0, 0, 0, 8, 115])}, Reason.TCB_MISMATCH),
        ({"platform": 1}, Reason.PLATFORM),
        ({"measurement": b"\x5b" * 48}, Reason.MEASUREMENT),
        ({"report_data": EXPECTED[:-1] + b"\xff"}, Reason.BINDING),
        ({"report_data": b"\xff" + EXPECTED[1:]}, Reason.BINDING),
        ({"version": 1}, Reason.MALFORMED),
        ({"version": 6}, Reason.MALFORMED),
    ],
)
def test_what_a_well_signed_report_says_against_itself_is_refused(changed, reason):
    result = judge(**changed)

    assert (result.verdict, result.reasons) == (TrustTier.CONTRAINDICATED, (reason,))


def test_smt_counts_only_where_the_policy_refuses_it():
    assert judge(platform=1, policy=amd_policy(is_smt_allowed=True)).verdict is TrustTier.AFFIRMING


@pytest.mark.parametrize("component", ["fmc", "bootloader", "tee", "snp", "microcode"])
def test_each_security_version_is_required_by_itself(component):
    least = SnpTcb(fmc=0, bootloader=3, tee=0, snp=8, microcode=115)
    more = dataclasses.replace(least, **{component: getattr(least, component) + 1})

    assert judge(policy=amd_policy(snp_tcb_min=least)).verdict is TrustTier.AFFIRMING
    assert judge(policy=amd_policy(snp_tcb_min=more)).reasons == (Reason.TCB_TOO_OLD,)
    tolerant = amd_policy(snp_tcb_min=more, tcb_worst=TcbStatus.OUT_OF_DATE)
    assert judge(policy=tolerant).reasons == (Reason.TCB_TOLERATED,)
    assert judge(policy=tolerant).verdict is TrustTier.WARNING


def test_turin_orders_its_versions_and_names_its_chips_differently():
    chip = bytes(range(1, 9))
    vcek = a_vcek(chip=chip, is_turin=True, fmc=2, bootloader=3, snp=8, microcode=200)
    reported = bytes([2, 3, 0, 8, 0, 0, 0, 200])
    report = an_snp_report(EXPECTED, vcek, chip=chip.ljust(64, b"\0"), reported=reported)

    assert judge(report).verdict is TrustTier.AFFIRMING
    other = an_snp_report(EXPECTED, vcek, chip=chip.ljust(64, b"\1"), reported=reported)
    assert judge(other).reasons == (Reason.CHIP_MISMATCH,)
    assert report_tcb(reported, has_fmc=False) is None


def test_a_certificate_of_another_chip_does_not_cover_the_report():
    other_key = an_authority("another chip", amd_signer(), is_issuer=False)
    report = an_snp_report(EXPECTED)
    swapped = dataclasses.replace(report, certificates=(other_key.der, *report.certificates[1:]))

    assert judge(swapped).reasons == (Reason.SIGNATURE,)


def test_a_key_of_another_curve_signs_no_reports():
    vcek = a_vcek(kind="p256", key=a_key("small", "p256"))

    assert judge(an_snp_report(EXPECTED, vcek)).reasons == (Reason.SIGNATURE,)


def test_the_chain_must_end_in_a_pinned_root():
    same_key = an_authority("ARK-Tests", kind="rsa", path_length=1, serial=99)
    other_key = an_authority("ARK-Tests", key=devices.gpu_root().key)

    assert judge(policy=amd_policy(roots=())).reasons == (Reason.ROOT,)
    assert judge(collateral=amd_collateral(certificates=(same_key.der,))).reasons == (Reason.ROOT,)
    assert judge(collateral=amd_collateral(certificates=(other_key.der,))).reasons == (Reason.CHAIN,)


def test_a_missing_superfluous_or_absent_certificate_is_refused():
    report = an_snp_report(EXPECTED)
    vcek, signer = report.certificates

    for certificates in ((vcek,), (signer, vcek), (vcek, signer, devices.gpu_root().der), ()):
        result = judge(dataclasses.replace(report, certificates=certificates))
        assert Reason.CHAIN in result.reasons, certificates


def test_an_issuer_that_may_not_issue_makes_no_chain():
    plain = an_authority("SEV-Tests", amd_root(), kind="rsa", is_issuer=False)
    vcek = a_vcek(issuer=plain)
    report = dataclasses.replace(an_snp_report(EXPECTED, vcek), certificates=(vcek.der, plain.der))

    assert judge(report).reasons == (Reason.CHAIN,)


def test_an_issuer_deeper_than_its_own_issuer_allows_makes_no_chain():
    between = an_authority("between", amd_root(), kind="rsa", path_length=0)
    below = an_authority("below", between, kind="rsa", signs_crls=False)
    vcek = a_vcek(issuer=below)
    certificates = (vcek.der, below.der, between.der)
    report = dataclasses.replace(an_snp_report(EXPECTED, vcek), certificates=certificates)
    collateral = amd_collateral(crls=(a_crl(amd_root()), a_crl(between)))

    assert judge(report, collateral=collateral).reasons == (Reason.CHAIN,)


def test_an_issuers_own_key_signs_no_reports():
    issuing = a_vcek(is_issuer=True)

    assert judge(an_snp_report(EXPECTED, issuing)).reasons == (Reason.CHAIN,)


@pytest.mark.parametrize(
    ("offset", "is_good"), [(-1, False), (0, True), (10 * DAY_S, True), (10 * DAY_S + 1, False)]
)
def test_certificates_count_from_their_first_to_their_last_second(offset, is_good):
    start = AT_S - 3 * DAY_S
    vcek = a_vcek(from_s=start, to_s=start + 10 * DAY_S)
    collateral = amd_collateral(crls=(a_crl(amd_root(), from_s=start - DAY_S, to_s=start + 30 * DAY_S),))

    result = judge(an_snp_report(EXPECTED, vcek), at_s=start + offset, collateral=collateral)

    assert result.reasons == (() if is_good else (Reason.CERTIFICATE_TIME,))


def test_a_revoked_issuer_is_refused_even_by_a_list_out_of_date():
    for from_s, to_s in ((AT_S - DAY_S, AT_S + DAY_S), (AT_S - 9 * DAY_S, AT_S - 8 * DAY_S)):
        crl = a_crl(amd_root(), [amd_signer()], from_s=from_s, to_s=to_s)
        assert Reason.REVOKED in judge(collateral=amd_collateral(crls=(crl,))).reasons


@pytest.mark.parametrize(
    "crls",
    [
        lambda: (),
        lambda: (a_crl(amd_root(), from_s=AT_S - 9 * DAY_S, to_s=AT_S - 1),),
        lambda: (a_crl(amd_root(), from_s=AT_S + 1, to_s=AT_S + DAY_S),),
        lambda: (a_crl(an_authority("ARK-Tests", key=devices.gpu_root().key)),),
    ],
    ids=["none", "old", "future", "signed by somebody else"],
)
def test_without_a_current_list_revocation_is_unknown(crls):
    collateral = amd_collateral(crls=crls())

    assert judge(collateral=collateral).reasons == (Reason.REVOCATION_UNKNOWN,)
    lenient = amd_policy(is_revocation_required=False)
    assert judge(collateral=collateral, policy=lenient).verdict is TrustTier.AFFIRMING


def test_a_certificate_that_names_no_versions_is_malformed():
    bare = an_authority("SEV-VCEK", amd_signer(), is_issuer=False)

    assert judge(an_snp_report(EXPECTED, bare)).reasons == (Reason.MALFORMED,)


def test_padding_that_no_signature_covers_must_be_zero():
    body = an_snp_report(EXPECTED).body
    for at in (672 + 48, 672 + 71, 672 + 72 + 48, 672 + 144, 1183):
        broken = body[:at] + b"\x01" + body[at + 1 :]
        with pytest.raises(MalformedMessage, match="is not zero"):
            parse_report(broken)


@pytest.mark.parametrize("size", [0, 671, 1183, 1185, 1 << 20])
def test_another_size_is_refused_in_words(size):
    with pytest.raises(MalformedMessage, match="SEV-SNP report: "):
        parse_report(b"\x02\0\0\0".ljust(size, b"\0")[:size])


def test_a_certificate_that_is_none_is_refused_in_words():
    for der in (b"", b"\x30\x80", b"\x30" * 100, bytes(5000)):
        with pytest.raises(MalformedMessage, match="certificate: "):
            read_certificate(der)


def test_what_a_certificates_signature_does_not_cover_has_one_value():
    der = an_snp_report(EXPECTED).certificates[0]
    signature = der.index(bytes.fromhex("0382010100"), len(der) - 300)
    algorithm = der.rindex(bytes.fromhex("06092a864886f70d01010a"))
    salt = der.index(bytes.fromhex("020130"), algorithm)

    for at, words in ((signature + 4, "whole bytes"), (salt + 2, "algorithms differ|no X.509")):
        for bit in range(8):
            broken = der[:at] + bytes([der[at] ^ 1 << bit]) + der[at + 1 :]
            with pytest.raises(MalformedMessage, match=words + "|error parsing"):
                read_certificate(broken)


@pytest.mark.parametrize("number", [0, 127, 128, 255])
def test_a_version_is_any_number_of_one_byte(number):
    vcek = a_vcek(microcode=number)

    assert vcek_tcb(read_certificate(vcek.der)).microcode == number
