"""GPU reports: one good exchange, and every way in which one can be refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from assay.attestation.appraisal import examine
from assay.attestation.devices.nvidia import parse_report, vbios_text, version_text
from assay.attestation.evidence import Collateral, DeviceFamily, Report
from assay.attestation.policy import AppraisalPolicy
from assay.attestation.reasons import Reason, TrustTier
from assay.attestation.result import DeviceResult
from assay.protocol.errors import MalformedMessage
from tests.attestation.authorities import AT_S, a_collateral, a_crl, a_reference
from tests.attestation.fake_devices import (
    FIRMWARE,
    GPU_VALUES,
    GpuFields,
    a_gpu_key,
    a_gpu_report,
    a_twin,
    gpu_crls,
    gpu_model,
    gpu_policy,
    gpu_rom,
    gpu_root,
)

NONCE = bytes(range(32))


def judge(
    report: Report | None = None,
    *,
    policy: AppraisalPolicy | None = None,
    collateral: Collateral | None = None,
    **changed: Any,
) -> DeviceResult:
    report = report or a_gpu_report(changed.pop("nonce", NONCE), **changed)
    collateral = collateral or a_collateral(crls=gpu_crls())
    return examine(report, NONCE, policy or gpu_policy(), collateral, AT_S)[0]


def blocks(**changed: bytes) -> dict[int, bytes]:
    return GpuFields().blocks | {int(name[5:]): value for name, value in changed.items()}


def opaque(**changed: bytes) -> dict[int, bytes]:
    return GpuFields().opaque | {int(name[5:]): value for name, value in changed.items()}


def test_a_report_of_an_allowed_driver_and_firmware_is_affirming():
    result = judge()

    assert (result.verdict, result.reasons) == (TrustTier.AFFIRMING, ())
    claims = {claim.name: claim.value for claim in result.claims}
    assert claims["driver"] == "550.90.07"
    assert claims["vbios"] == "96.00.9F.00.01"
    assert claims["block17"] == "11" * 48


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"nonce": bytes(32)}, Reason.BINDING),
        ({"blocks": blocks(block1=b"\x02" * 48)}, Reason.MEASUREMENT),
        ({"blocks": {1: b"\x01" * 48}}, Reason.MEASUREMENT),
        ({"opaque": opaque(field3=b"550.90.08\0")}, Reason.MEASUREMENT),
        ({"opaque": opaque(field3=b"\xff" * 9)}, Reason.MEASUREMENT),
        ({"opaque": opaque(field6=bytes(8))}, Reason.MEASUREMENT),
        ({"opaque": opaque(field20=b"\x78" * 48)}, Reason.FIRMWARE_MISMATCH),
        ({"opaque": opaque(field20=b"")}, Reason.FIRMWARE_MISMATCH),
        ({"opaque": opaque(field20=FIRMWARE[1:])}, Reason.FIRMWARE_MISMATCH),
        ({"blocks": blocks(block0=b"\0" * 48)}, Reason.MALFORMED),
        ({"blocks": blocks(block65=b"\0" * 48)}, Reason.MALFORMED),
        ({"blocks": blocks(block1=b"\0" * 65)}, Reason.MALFORMED),
    ],
)
def test_what_a_well_signed_report_says_against_itself_is_refused(changed, reason):
    result = judge(**changed)

    assert (result.verdict, result.reasons) == (TrustTier.CONTRAINDICATED, (reason,))


def test_blocks_that_no_reference_names_may_be_anything():
    assert judge(blocks=blocks(block2=b"\xee" * 48)).verdict is TrustTier.AFFIRMING


def test_versions_without_a_measured_block_are_no_reference_for_matching_alone():
    bare = {name: value for name, value in GPU_VALUES.items() if not name.startswith("block")}
    policy = gpu_policy(references=(a_reference(DeviceFamily.NVIDIA_CC, {"driver": bare["driver"]}),))

    assert judge(policy=policy).reasons == (Reason.MEASUREMENT,)


def test_every_certificate_but_the_gpus_own_boot_rom_needs_a_list():
    for crls in ((), (a_crl(gpu_root()),), (a_crl(gpu_model()),)):
        assert Reason.REVOCATION_UNKNOWN in judge(collateral=a_collateral(crls=crls)).reasons
    revoked = (a_crl(gpu_root(), [gpu_model()]), a_crl(gpu_model()))
    assert Reason.REVOKED in judge(collateral=a_collateral(crls=revoked)).reasons


def test_another_gpus_certificate_does_not_cover_the_report():
    report = a_gpu_report(NONCE)
    other = a_gpu_key("another GPU")

    swapped = dataclasses.replace(report, certificates=(other.der, *report.certificates[1:]))

    assert judge(swapped).reasons == (Reason.SIGNATURE,)


def test_a_chain_to_another_root_is_refused():
    assert judge(policy=gpu_policy(roots=())).reasons == (Reason.ROOT,)


def test_a_gpu_on_the_deny_list_is_refused_whatever_its_signature_and_firmware():
    known = a_gpu_report(NONCE)
    policy = gpu_policy(refused_devices=(judge(known).ueid,))
    twin = dataclasses.replace(known, certificates=(a_twin(known.certificates[0]), *known.certificates[1:]))
    assert twin != known

    for report in (known, twin, a_gpu_report(NONCE, a_gpu_key("another firmware"))):
        assert judge(report, policy=policy).reasons == (Reason.DEVICE_REFUSED,)
    assert judge(a_gpu_report(NONCE, rom=gpu_rom("another GPU")), policy=policy).reasons == ()


def test_a_gpu_is_known_though_its_boot_roms_certificate_comes_from_the_collateral():
    report = a_gpu_report(NONCE)
    alone = dataclasses.replace(report, certificates=report.certificates[:1])
    others = a_collateral(certificates=report.certificates[1:], crls=gpu_crls())

    assert judge(alone, collateral=others).ueid == judge(report).ueid


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (0, 0x12, "the request's SPDM version"),
        (1, 0x60, "the request's code"),
        (3, 0x01, "the request's operation"),
        (37, 0x10, "the response's SPDM version"),
        (38, 0x7F, "the response's code"),
        (41, 0x41, "at most 64"),
        (41, 0x3F, "bytes after the end"),
        (44, 0x01, "measurement record needs"),
        (46, 0x02, "the measurement specification"),
        (47, 0x34, "holds a value of"),
        (45 + 55, 0x01, "is there twice"),
    ],
)
def test_a_field_out_of_its_format_is_refused_in_words(at, value, words):
    body = bytearray(a_gpu_report(NONCE).body)
    body[at] = value

    with pytest.raises(MalformedMessage, match=words):
        parse_report(bytes(body))


def test_an_opaque_field_that_is_there_twice_is_refused():
    body = a_gpu_report(NONCE, opaque={3: b"a", 4: b"b"}).body
    twice = body.replace(b"\x04\0\x01\0b", b"\x03\0\x01\0b")

    with pytest.raises(MalformedMessage, match="opaque field 3 is there twice"):
        parse_report(twice)


def test_versions_that_are_none_are_empty():
    assert version_text(b"550\x1b[2J\0") == ""
    assert version_text(b"5" * 65) == ""
    assert vbios_text(b"\0" * 7) == ""
