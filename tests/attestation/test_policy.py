"""A policy says what it can mean, or is refused in words."""

from __future__ import annotations

import copy
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.attestation.evidence import DeviceFamily
from assay.attestation.files import read_time
from assay.attestation.policy import SnpTcb, TcbStatus, check_policy, tcb_faults
from assay.attestation.policy_file import policy_of
from assay.attestation.reasons import Reason
from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.errors import ConfigError
from tests.attestation.authorities import a_policy, a_reference, a_root
from tests.attestation.fake_devices import GPU_VALUES, amd_policy, amd_root, gpu_policy

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLE = Path(__file__).parents[2] / "examples" / "attestation" / "policy.toml"


def tables(**changed: Any) -> dict[str, Any]:
    return copy.deepcopy(tomllib.loads(EXAMPLE.read_text())) | changed


def test_the_example_is_a_policy():
    policy = policy_of(tables())

    assert policy.families == (DeviceFamily.SEV_SNP, DeviceFamily.NVIDIA_CC)
    assert policy.tcb_worst is TcbStatus.UP_TO_DATE
    assert policy.snp_tcb_min == SnpTcb(fmc=0, bootloader=3, tee=0, snp=8, microcode=115)
    assert policy.references[0].not_before_s == 1_793_491_200
    assert policy.is_smt_allowed


def test_what_is_left_out_is_strict():
    table = tables()
    for name in ("allow_smt", "require_revocation", "tcb_worst", "killed", "evidence_age_max_s"):
        del table[name]

    policy = policy_of(table)

    assert not (policy.is_smt_allowed or policy.is_dynamic_platform_allowed or policy.are_cached_keys_allowed)
    assert policy.is_revocation_required
    assert policy.tcb_worst is TcbStatus.UP_TO_DATE
    assert policy.evidence_age_max_s == 86_400
    assert policy.collateral_age_max_s == 30 * 86_400


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kiled": ["sev-snp"]}, "kiled"),
        ({"families": ["sev"]}, "families.0"),
        ({"families": ["tdx"]}, "tdx is accepted, expected at least one root"),
        ({"families": "sev-snp"}, "families"),
        ({"tcb_worst": "Revoked"}, "tcb_worst is Revoked"),
        ({"tcb_worst": "Fine"}, "tcb_worst"),
        ({"allow_smt": 1}, "allow_smt"),
        ({"evidence_age_max_s": 0}, "evidence_age_max_s"),
        ({"evidence_age_max_s": 2**70}, "evidence_age_max_s"),
        ({"tcb_evaluation_min": -1}, "tcb_evaluation_min"),
        ({"snp_tcb_min": None}, "snp_tcb_min"),
        ({"snp_tcb_min": {"bootloader": 256, "tee": 0, "snp": 0, "microcode": 0}}, "snp_tcb_min.bootloader"),
        ({"refused_devices": ["00"]}, "refused_devices.0"),
        ({"refused_devices": ["zz"]}, "refused_devices.0"),
        ({"root": []}, "expected at least one root"),
        ({"measurement": [{}]}, "measurement.0"),
        ({"name": "x" * 65}, "name"),
    ],
)
def test_a_mistake_is_refused_and_named(changed, words):
    with pytest.raises(ConfigError, match=words):
        policy_of(tables(**changed))


def test_moments_need_a_zone_and_an_order():
    table = tables()
    table["measurement"][0]["not_after"] = table["measurement"][0]["not_before"].replace(year=2020)
    with pytest.raises(ConfigError, match="ends before it begins"):
        policy_of(table)
    table["measurement"][0]["not_after"] = "2027-01-01T00:00:00"
    with pytest.raises(ConfigError, match=r"measurement\.0\.not_after"):
        policy_of(table)
    table["measurement"][0]["not_after"] = "2027-01-01T01:00:00+01:00"
    assert policy_of(table).references[0].not_after_s == 1_798_761_600


@pytest.mark.parametrize(
    ("family", "values", "words"),
    [
        (DeviceFamily.TDX, {"mr_td": "00"}, "expected also rtmr0, rtmr1, rtmr2"),
        (DeviceFamily.SGX, {"mr_signer": "00"}, "expected also mr_enclave"),
        (DeviceFamily.SEV_SNP, {}, "expected also measurement"),
        (DeviceFamily.NVIDIA_CC, {"driver": "1", "vbios": "2"}, "at least one of block1"),
        (DeviceFamily.NVIDIA_CC, {"block1": "00"}, "expected also driver, vbios"),
    ],
)
def test_a_reference_identifies_something(family, values, words):
    policy = a_policy(references=(a_reference(family, values),))

    with pytest.raises(ValueError, match=words):
        check_policy(policy)


def test_a_value_is_named_once():
    reference = a_reference(DeviceFamily.SEV_SNP, {"measurement": "00"})
    twice = dataclasses.replace(reference, values=reference.values * 2)

    with pytest.raises(ValueError, match="named twice"):
        check_policy(a_policy(references=(twice,)))


def test_every_field_is_in_the_digest():
    policy = amd_policy()
    assert decode(type(policy), encode(policy)) == policy
    changed: dict[str, Any] = {
        "name": "other",
        "families": (),
        "killed": (DeviceFamily.TDX,),
        "roots": (a_root(DeviceFamily.TDX, amd_root()),),
        "references": (a_reference(DeviceFamily.NVIDIA_CC, GPU_VALUES),),
        "tcb_worst": TcbStatus.OUT_OF_DATE,
        "tcb_evaluation_min": 1,
        "snp_tcb_min": SnpTcb(fmc=1, bootloader=3, tee=0, snp=8, microcode=115),
        "refused_advisories": ("A",),
        "refused_devices": (b"d" * 32,),
        "is_smt_allowed": True,
        "is_dynamic_platform_allowed": True,
        "are_cached_keys_allowed": True,
        "is_revocation_required": False,
        "evidence_age_max_s": 1,
        "collateral_age_max_s": 1,
        "result_life_s": 1,
    }
    assert set(changed) == {field.name for field in dataclasses.fields(policy)}

    digests = {digest(dataclasses.replace(policy, **{name: value})) for name, value in changed.items()}

    assert len(digests | {digest(policy)}) == len(changed) + 1


def test_the_policies_of_these_tests_are_policies():
    check_policy(amd_policy())
    check_policy(gpu_policy())


def test_a_revoked_platform_is_refused_by_whatever_policy():
    policy = a_policy(tcb_worst=TcbStatus.REVOKED)

    assert tcb_faults(policy, TcbStatus.REVOKED) == (Reason.TCB_TOO_OLD,)
    assert tcb_faults(policy, TcbStatus.OUT_OF_DATE_CONFIGURATION_NEEDED) == (Reason.TCB_TOLERATED,)


def test_statuses_have_intels_names():
    assert [status.label for status in TcbStatus][1:] == [
        "UpToDate", "SWHardeningNeeded", "ConfigurationNeeded", "ConfigurationAndSWHardeningNeeded",
        "OutOfDate", "OutOfDateConfigurationNeeded", "Revoked",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59Z", "2026-11-20T0:00:00Z", "2026-11-20T00:00:00z"])
def test_a_time_of_another_form_or_before_1970_is_refused(text):
    with pytest.raises(ValueError):
        read_time(text)


def test_the_first_second_of_1970_is_a_time():
    assert read_time("1970-01-01T00:00:00Z") == 0
