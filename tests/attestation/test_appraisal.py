"""Evidence as a whole: binding, time, the policy's switches, GPUs bound to their processor, and software."""

from __future__ import annotations

import ast
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from nacl.signing import SigningKey

from assay import attestation
from assay.attestation.appraisal import appraise, examine, ueid_of
from assay.attestation.attester import Attester
from assay.attestation.binding import gpu_nonce, report_data
from assay.attestation.devices.software import SoftwareAttester, key_digest, sign_statement
from assay.attestation.evidence import DeviceFamily, Evidence, Report
from assay.attestation.policy import Root, TcbStatus
from assay.attestation.reasons import Reason, TrustTier, verdict_of
from assay.attestation.result import AttestationResult
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError
from assay.protocol.identity import peer_of
from assay.protocol.types import Digest
from tests.attestation.authorities import AT_S, DAY_S, a_binding, a_collateral, a_policy, a_reference, a_root
from tests.attestation.fake_devices import (
    CHIP,
    GPU_VALUES,
    a_gpu_key,
    a_gpu_report,
    amd_collateral,
    amd_policy,
    amd_root,
    an_snp_report,
    gpu_crls,
    gpu_policy,
    gpu_rom,
    gpu_root,
)
from tests.attestation.fake_intel_devices import a_td_report, intel_collateral, td_policy

BOTH = (DeviceFamily.SEV_SNP, DeviceFamily.NVIDIA_CC)
KEY = SigningKey(bytes(range(32)))
GUEST = Digest(b"G" * 32)


def both_policy(**changed: Any) -> Any:
    fields: dict[str, Any] = {
        "families": BOTH,
        "roots": (a_root(DeviceFamily.SEV_SNP, amd_root()), a_root(DeviceFamily.NVIDIA_CC, gpu_root())),
        "references": (*amd_policy().references, a_reference(DeviceFamily.NVIDIA_CC, GPU_VALUES)),
    }
    return amd_policy(**fields | changed)


def both_collateral(**changed: Any) -> Any:
    return amd_collateral(**{"crls": (*amd_collateral().crls, *gpu_crls())} | changed)


def snp_evidence(binding: Any = None, gpus: tuple[Report, ...] = (), **changed: Any) -> Evidence:
    report = an_snp_report(report_data(binding or a_binding(), gpus), **changed)
    return Evidence(main=report, gpus=gpus)


def gpus(count: int = 1) -> tuple[Report, ...]:
    nonce = gpu_nonce(a_binding())
    return tuple(a_gpu_report(nonce, rom=gpu_rom(f"the boot ROM of GPU {n}")) for n in range(count))


def judge(evidence: Evidence | None = None, **changed: Any) -> AttestationResult:
    arguments: dict[str, Any] = {
        "binding": a_binding(),
        "policy": both_policy(),
        "collateral": both_collateral(),
        "at_s": AT_S,
    }
    return appraise(evidence or snp_evidence(), **arguments | changed)


def software_policy(**changed: Any) -> Any:
    fields: dict[str, Any] = {
        "roots": (Root(family=DeviceFamily.SOFTWARE, sha256=key_digest(peer_of(KEY))),),
        "references": (a_reference(DeviceFamily.SOFTWARE, {"measurement": GUEST.hex()}),),
    }
    return a_policy(DeviceFamily.SOFTWARE, **fields | changed)


# --- the whole ---


def test_a_processor_and_its_gpus_are_affirming_together_and_everything_is_named():
    evidence, collateral = snp_evidence(gpus=gpus(2)), both_collateral()

    result = judge(evidence, collateral=collateral)

    assert (result.verdict, result.all_reasons) == (TrustTier.AFFIRMING, ())
    assert [gpu.verdict for gpu in result.gpus] == [TrustTier.AFFIRMING] * 2
    assert result.evidence == digest(evidence)
    assert result.policy == digest(both_policy())
    assert result.collateral == digest(collateral)
    assert result.binding == a_binding()


def test_the_same_arguments_give_the_same_result():
    evidence, collateral = snp_evidence(gpus=gpus()), both_collateral()

    assert judge(evidence, collateral=collateral) == judge(evidence, collateral=collateral)


def test_the_evidence_of_a_software_attester_is_appraised():
    attester: Attester = SoftwareAttester(key=KEY, measurement=GUEST)

    result = appraise(attester.evidence(a_binding()), a_binding(), software_policy(), a_collateral(), AT_S)

    assert result.verdict is TrustTier.AFFIRMING


def test_nothing_in_the_room_reads_a_clock_a_file_the_network_or_the_environment():
    banned = {
        "os",
        "sys",
        "time",
        "socket",
        "pathlib",
        "random",
        "secrets",
        "urllib",
        "subprocess",
        "trio",
        "ssl",
    }
    calls = {"open", "now", "utcnow", "today", "input", "getenv"}
    for path in Path(attestation.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not banned & {alias.name.split(".")[0] for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in banned, path
            elif isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                assert name not in calls, f"{path}: {name}"


@pytest.mark.parametrize(
    "changed",
    [
        {"deployment_id": Digest(b"d" * 32)},
        {"node": b"n" * 32},
        {"run_id": Digest(b"r" * 32)},
        {"epoch": 4},
        {"code_digest": Digest(b"c" * 32)},
        {"nonce": Digest(b"x" * 32)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_evidence_for_anything_else_is_refused(changed):
    evidence = snp_evidence(a_binding(**changed), gpus())

    result = judge(evidence)

    assert result.verdict is TrustTier.CONTRAINDICATED
    assert result.main.reasons == (Reason.BINDING,)


def test_a_result_ends_with_its_first_gpus_certificate():
    gpu = a_gpu_report(gpu_nonce(a_binding()), a_gpu_key(to_s=AT_S + 7))

    assert judge(snp_evidence(gpus=(*gpus(), gpu))).expires_s == AT_S + 7


def test_evidence_counts_from_its_nonce_to_its_greatest_age():
    start = a_binding().nonce_at_s

    def reasons(offset: int) -> tuple[Reason, ...]:
        return judge(at_s=start + offset, collateral=both_collateral(fetched_at_s=start - 1)).all_reasons

    assert reasons(-1) == (Reason.EVIDENCE_IN_FUTURE,)
    assert reasons(0) == ()
    assert reasons(DAY_S) == ()
    assert reasons(DAY_S + 1) == (Reason.EVIDENCE_TOO_OLD,)


def test_collateral_counts_from_its_fetching_to_its_greatest_age():
    def reasons(offset: int) -> tuple[Reason, ...]:
        collateral = both_collateral(fetched_at_s=AT_S - offset)
        return judge(collateral=collateral).all_reasons

    assert reasons(-1) == (Reason.COLLATERAL_IN_FUTURE,)
    assert reasons(0) == ()
    assert reasons(30 * DAY_S) == ()
    assert reasons(30 * DAY_S + 1) == (Reason.COLLATERAL_TOO_OLD,)


@pytest.mark.parametrize(
    ("changed", "expires_s"),
    [
        ({}, AT_S + 3600),
        ({"policy": both_policy(result_life_s=10 * DAY_S)}, AT_S - 60 + DAY_S),
        (
            {
                "policy": both_policy(result_life_s=10 * DAY_S, evidence_age_max_s=50 * DAY_S),
                "collateral": both_collateral(fetched_at_s=AT_S - 29 * DAY_S),
            },
            AT_S + DAY_S,
        ),
        (
            {
                "policy": both_policy(
                    result_life_s=90 * DAY_S, evidence_age_max_s=90 * DAY_S, collateral_age_max_s=90 * DAY_S
                )
            },
            AT_S + 29 * DAY_S,  # the revocation list's end
        ),
        (
            {
                "policy": both_policy(
                    references=tuple(
                        dataclasses.replace(reference, not_after_s=AT_S + 5)
                        for reference in both_policy().references
                    )
                )
            },
            AT_S + 5,
        ),
        ({"policy": both_policy(killed=(DeviceFamily.SEV_SNP,))}, AT_S),
    ],
    ids=["its life", "evidence", "collateral", "revocation list", "reference", "refused"],
)
def test_a_result_ends_with_whatever_ends_first(changed, expires_s):
    assert judge(**changed).expires_s == expires_s


@pytest.mark.parametrize(
    ("offset", "reason"), [(-1, Reason.MEASUREMENT_TIME), (0, None), (9, None), (10, Reason.MEASUREMENT_TIME)]
)
def test_a_reference_counts_from_its_first_to_its_last_second(offset, reason):
    references = (
        dataclasses.replace(
            amd_policy().references[0], not_before_s=AT_S - offset, not_after_s=AT_S - offset + 9
        ),
    )

    result = judge(policy=both_policy(references=references))

    assert result.all_reasons == (() if reason is None else (reason,))


def test_of_two_references_one_is_enough():
    old, new = (dataclasses.replace(amd_policy().references[0], name=name) for name in ("old", "new"))
    ended = dataclasses.replace(old, not_after_s=AT_S - 1)

    assert judge(policy=both_policy(references=(ended, new))).verdict is TrustTier.AFFIRMING
    assert judge(policy=both_policy(references=(ended,))).all_reasons == (Reason.MEASUREMENT_TIME,)


# --- the policy's switches ---


def test_a_family_that_is_not_accepted_is_refused():
    result = judge(policy=both_policy(families=(DeviceFamily.NVIDIA_CC,)))

    assert (result.verdict, result.main.reasons) == (TrustTier.CONTRAINDICATED, (Reason.FAMILY_REFUSED,))


def test_the_kill_switch_refuses_a_family_whatever_else_is_said():
    evidence = snp_evidence(gpus=gpus())

    for family, index in ((DeviceFamily.SEV_SNP, 0), (DeviceFamily.NVIDIA_CC, 1)):
        result = judge(evidence, policy=both_policy(killed=(family,)))
        devices = (result.main, *result.gpus)
        assert result.verdict is TrustTier.CONTRAINDICATED
        assert devices[index].reasons == (Reason.FAMILY_KILLED,)
        assert devices[1 - index].verdict is TrustTier.AFFIRMING


def test_a_device_on_the_deny_list_is_refused():
    denied = both_policy(refused_devices=(ueid_of(DeviceFamily.SEV_SNP, CHIP),))

    assert judge(policy=denied).main.reasons == (Reason.DEVICE_REFUSED,)


def test_debug_is_refused_though_everything_else_holds():
    result = judge(snp_evidence(guest_policy=0x30000 | 1 << 19))

    assert (result.verdict, result.all_reasons) == (TrustTier.CONTRAINDICATED, (Reason.DEBUG,))


# --- GPUs ---


def test_a_gpu_that_the_processor_did_not_sign_is_not_bound():
    shown = dataclasses.replace(snp_evidence(), gpus=gpus())

    assert judge(shown).main.reasons == (Reason.BINDING,)


def test_a_gpu_left_out_or_in_another_order_is_not_what_the_processor_signed():
    two = gpus(2)
    evidence = snp_evidence(gpus=two)

    for others in ((), two[:1], two[::-1]):
        assert judge(dataclasses.replace(evidence, gpus=others)).main.reasons == (Reason.BINDING,)


def test_a_gpu_that_answered_another_nonce_spoils_the_whole():
    relayed = (a_gpu_report(gpu_nonce(a_binding(epoch=4))),)

    result = judge(snp_evidence(gpus=relayed))

    assert result.main.verdict is TrustTier.AFFIRMING
    assert result.gpus[0].reasons == (Reason.BINDING,)
    assert result.verdict is TrustTier.CONTRAINDICATED


def test_one_gpu_does_not_count_as_two():
    one = gpus()[0]

    assert judge(snp_evidence(gpus=(one, one))).all_reasons == (Reason.DUPLICATE_DEVICE,)


def test_a_gpu_alone_is_never_more_than_a_warning():
    evidence = Evidence(main=gpus()[0], gpus=())

    result = appraise(evidence, a_binding(), gpu_policy(), a_collateral(crls=gpu_crls()), AT_S)

    assert (result.verdict, result.all_reasons) == (TrustTier.WARNING, (Reason.GPU_ALONE,))


def test_only_gpus_are_bound_and_only_by_processors():
    other = an_snp_report(report_data(a_binding(), ()))

    assert Reason.MALFORMED in judge(snp_evidence(gpus=(other,))).reasons
    assert Reason.MALFORMED in judge(Evidence(main=gpus()[0], gpus=gpus())).reasons


# --- software ---


def software(binding: Any = None, **changed: Any) -> Evidence:
    fields: dict[str, Any] = {"key": KEY, "measurement": GUEST} | changed
    return SoftwareAttester(**fields).evidence(binding or a_binding())


def judge_software(evidence: Evidence, **changed: Any) -> AttestationResult:
    collateral = a_collateral(crls=gpu_crls())
    return appraise(evidence, a_binding(), software_policy(**changed), collateral, AT_S)


def test_software_is_refused_by_a_policy_that_does_not_name_it():
    result = judge(software())

    assert (result.verdict, result.main.reasons) == (TrustTier.CONTRAINDICATED, (Reason.FAMILY_REFUSED,))


@pytest.mark.parametrize(
    ("evidence", "changed", "reasons"),
    [
        (software(), {}, ()),
        (software(a_binding(epoch=9)), {}, (Reason.BINDING,)),
        (software(is_debug=True), {}, (Reason.DEBUG,)),
        (software(tcb=TcbStatus.OUT_OF_DATE), {}, (Reason.TCB_TOO_OLD,)),
        (software(tcb=TcbStatus.REVOKED), {"tcb_worst": TcbStatus.OUT_OF_DATE}, (Reason.TCB_TOO_OLD,)),
        (software(tcb=TcbStatus.NOT_STATED), {}, (Reason.TCB_UNKNOWN,)),
        (software(tcb=TcbStatus.OUT_OF_DATE), {"tcb_worst": TcbStatus.OUT_OF_DATE}, (Reason.TCB_TOLERATED,)),
        (software(measurement=Digest(b"H" * 32)), {}, (Reason.MEASUREMENT,)),
        (software(key=SigningKey(b"x" * 32)), {}, (Reason.ROOT,)),
        (software(), {"killed": (DeviceFamily.SOFTWARE,)}, (Reason.FAMILY_KILLED,)),
    ],
)
def test_software_is_held_to_the_rules_of_a_device(evidence, changed, reasons):
    result = judge_software(evidence, **changed)

    assert result.all_reasons == reasons
    assert result.verdict is verdict_of(reasons)


def test_software_signs_with_the_key_that_it_names():
    honest = SoftwareAttester(key=KEY, measurement=GUEST)
    statement = dataclasses.replace(honest_statement(), key=peer_of(SigningKey(b"y" * 32)))
    body = sign_statement(KEY, statement)
    forged = body[:-1] + bytes([body[-1] ^ 1])

    assert honest.evidence(a_binding()).main.body == sign_statement(KEY, honest_statement())
    report = Report(family=DeviceFamily.SOFTWARE, body=forged, certificates=())
    expected = report_data(a_binding(), ())
    assert examine(report, expected, software_policy(), a_collateral(), AT_S)[0].reasons == (
        Reason.SIGNATURE,
    )


def test_a_software_report_comes_without_certificates():
    evidence = software()
    beside = dataclasses.replace(evidence.main, certificates=(amd_root().der,))

    assert judge_software(dataclasses.replace(evidence, main=beside)).all_reasons == (Reason.CHAIN,)


def honest_statement() -> Any:
    from assay.attestation.devices.software import Statement

    return Statement(
        key=peer_of(KEY),
        report_data=report_data(a_binding(), ()),
        measurement=GUEST,
        is_debug=False,
        tcb=TcbStatus.UP_TO_DATE,
    )


def test_software_may_carry_gpus_so_that_the_whole_path_can_be_tried():
    policy = software_policy(
        families=(DeviceFamily.SOFTWARE, DeviceFamily.NVIDIA_CC),
        roots=software_policy().roots + gpu_policy().roots,
        references=software_policy().references + gpu_policy().references,
    )

    result = appraise(software(gpus=gpus()), a_binding(), policy, a_collateral(crls=gpu_crls()), AT_S)

    assert (result.verdict, result.all_reasons) == (TrustTier.AFFIRMING, ())


# --- Intel without its extra ---


def test_without_the_extra_the_words_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dcap_qvl", None)
    arguments = (bytes(64), td_policy(), intel_collateral(), AT_S)

    with pytest.raises(ConfigError, match=r"pip install 'assay\[attestation\]'"):
        examine(a_td_report(bytes(64)), *arguments)


# --- reasons ---


def test_the_worst_reason_makes_the_verdict():
    assert verdict_of(()) is TrustTier.AFFIRMING
    assert verdict_of((Reason.ADVISORIES, Reason.GPU_ALONE)) is TrustTier.WARNING
    assert verdict_of((Reason.ADVISORIES, Reason.NO_COLLATERAL)) is TrustTier.NONE
    assert verdict_of((Reason.NO_COLLATERAL, Reason.DEBUG)) is TrustTier.CONTRAINDICATED
    warnings = {Reason.TCB_TOLERATED, Reason.ADVISORIES, Reason.GPU_ALONE}
    for reason in set(Reason) - warnings - {Reason.NO_COLLATERAL}:
        assert verdict_of((reason,)) is TrustTier.CONTRAINDICATED, reason
