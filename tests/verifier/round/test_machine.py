"""What a verifier collects for the next manifest, and what it lets pass; every signature is real."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.chain.commit_statement import commit_statement, evm_address
from assay.chain.statements import recover
from assay.participant.links import extend
from assay.protocol.agreement.quorum import faults_tolerated, quorum
from assay.protocol.auditing.audits import REFERENCE, Audit, AuditStatus
from assay.protocol.auditing.commitments import known_answer_proofs, known_answer_root
from assay.protocol.errors import AssayError, MalformedMessage, OutOfPhase, PeerFault
from assay.protocol.identity import Domain, sign
from assay.protocol.membership import ADMISSION_S
from assay.protocol.messages import (
    LOSS_MICRO_MAX,
    Admission,
    Appraisal,
    Attendance,
    AttendanceKind,
    BeaconShare,
    Discount,
    Evaluation,
    KnownAnswer,
    Outcome,
    OwnData,
    Score,
    SignedAdmission,
    SignedAppraisal,
    SignedAttendance,
    SignedCommit,
    SignedInclusionList,
)
from assay.protocol.params import AcceptSpec, ComputeSpec, Milestone, Precision, Stratum
from assay.protocol.permitted import may_commit_verdict
from assay.protocol.run_state import next_chain
from assay.protocol.state_transition import BEACON_PAUSE, advance, beacon_of
from assay.protocol.types import NO_DIGEST, Digest, RoundId
from assay.testing.members import DOMAIN, RUN_ID, a_deployment, a_digest, a_peer_key, name_of, peer
from assay.testing.messages import SIGNED, a_sketch_opening, an_evaluation_commitment
from assay.testing.run import an_attendance as said_by
from assay.testing.signed import (
    NODES,
    STATE,
    VERIFIERS,
    a_certified,
    a_commit,
    a_commitment,
    a_member,
    a_reveal,
    a_signed_commit,
    a_spec,
    a_verdict,
    an_inclusion_list,
    audit_messages,
    by_peer,
    funded,
)
from assay.testing.signed import a_history as the_start
from assay.testing.signed import a_manifest as the_next
from assay.testing.specs import a_money_spec, a_rule
from assay.training.codec.wire import update_bytes_max
from assay.training.data.batches import batch_positions, batch_root
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
from assay.verifier.round import commits
from assay.verifier.round.ancestors import base_history
from assay.verifier.round.beacon import REVEALS_PER_VERIFIER, valid_shares
from assay.verifier.round.commits import Rules, admit, contradiction, is_sign_of_life
from assay.verifier.round.examination import AHEAD_S, examine
from assay.verifier.round.leader import (
    HEARD_MAX,
    awaits_return,
    due_list,
    gathered,
    is_held_up,
    lacking_commits,
    manifest_of,
    may_propose,
    missing,
)
from assay.verifier.round.machine import (
    ADMISSIONS_PER_VERIFIER,
    MESSAGES_PER_VERIFIER,
    Advanced,
    Equivocation,
    Heard,
    Round,
    step,
)

AGGREGATE = a_digest("aggregate")
BLOCKS = layout_of(a_spec().model).blocks
RULES = Rules(
    deployment=a_deployment(),
    domain=DOMAIN,
    zero_momentum=zero_root(RUN_ID, a_spec().rule, BLOCKS),
    block_count=BLOCKS,
)


def a_round(run_state=None, opened_ms=0):
    run_state = run_state or the_start()
    return Round(rules=RULES, run_state=run_state, state=STATE, opened_ms=opened_ms, funding_reports=funded())


def after(run_state, *events):
    """A round on this history that has taken these events."""
    state = a_round(run_state)
    for event in events:
        state, _ = step(state, event)
    return state


def grown(run_state, count, nodes=NODES, votes=None):
    """So many manifests later; every auditor on duty seals and opens a MATCH, or says what `votes` has."""
    for _ in range(count):
        run_state = advance(
            run_state, the_next(run_state, nodes, everyone(run_state) if votes is None else votes)
        )
    return run_state


def everyone(run_state, outcome=Outcome.MATCH):
    """Every verifier says this of every open audit, as soon as it may."""
    return {step: dict.fromkeys(VERIFIERS, outcome) for step, a in run_state.audits.items() if a.is_open}


def words_on(run_state, votes=None):
    """As events, what may be said for the next manifest."""
    said = audit_messages(run_state, everyone(run_state) if votes is None else votes)
    return [
        *said["commitments"], *said["verdicts"], *said["sketch_openings"]
    ]  # fmt: skip


def everything(run_state, nodes=NODES, verifiers=VERIFIERS, votes=None):
    """All that may arrive for the next manifest."""
    events = work([name for name in nodes if peer(name) in run_state.active], run_state)
    if run_state.round:
        events += [a_reveal(name, run_state) for name in verifiers]
    return [*events, *words_on(run_state, votes)]


def work(nodes, run_state):
    """These nodes' commits, and every verifier's list of them."""
    commits = [a_signed_commit(name, run_state) for name in nodes]
    return commits + [an_inclusion_list(name, run_state, nodes) for name in VERIFIERS]


def refusal(run_state, signed, state=STATE):
    with pytest.raises(PeerFault) as caught:
        admit(RULES, run_state, state, signed)
    assert caught.value.peer == signed.commit.node
    return str(caught.value)


# ---- commits


def test_a_commit_that_keeps_every_rule_is_taken():
    run_state = the_start()
    signed = a_signed_commit("nora", run_state)

    state, effects = step(a_round(run_state), signed)

    assert effects == ()
    assert state.commits == {peer("nora"): signed}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run_id": a_digest("other run")}, "is of another run"),
        ({"round": RoundId(1)}, "during round 0"),
        ({"parent": a_digest("other parent")}, "during round 0"),
        ({"state": a_digest("other parameters")}, "diverged: used parameters"),
        ({"batch_root": a_digest("other batch")}, "another batch"),
        ({"tokens": a_spec().tokens_per_step + 1}, "tokens, expected"),
        ({"tokens": a_spec().tokens_per_step - 1}, "tokens, expected"),
        ({"update_bytes": update_bytes_max(BLOCKS, 32) + 1}, "an update of"),
        ({"momentum_before": a_digest("other momentum")}, "momentum does not continue"),
        ({"momentum_before": NO_DIGEST}, "momentum does not continue"),
        ({"exec_class": REFERENCE}, "of the reference class, in which nobody trains"),
        ({"loss_micro": LOSS_MICRO_MAX + 1}, "a loss of"),
        ({"base": 1}, "continues base 1"),
        ({"inner": (a_digest("a state"),)}, "1 inner states, expected 0"),
    ],
)
def test_a_commit_beside_one_rule_is_refused_and_the_words_name_the_rule(changes, words):
    run_state = the_start()
    signed = a_signed_commit("nora", run_state, **changes)
    state = a_round(run_state)

    with pytest.raises(PeerFault, match=words):
        step(state, signed)

    assert not state.commits


SIZED = {
    "rule": a_rule(sequences=2, sequences_max=6),
    "compute": ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2),
}


@pytest.mark.parametrize("count", [2, 4, 6])
def test_a_commit_may_count_for_each_size_that_the_run_allows(count):
    run_state = the_start(**SIZED)
    signed = a_signed_commit("nora", run_state, tokens=count * run_state.spec.model.context)

    state, _ = step(a_round(run_state), signed)

    assert state.commits == {peer("nora"): signed}


@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_a_commit_of_any_other_size_is_refused(count):
    run_state = the_start(**SIZED)
    signed = a_signed_commit("nora", run_state, tokens=count * run_state.spec.model.context)

    with pytest.raises(PeerFault, match=f"{count * 16} tokens, expected 32 to 96 in steps of 32"):
        step(a_round(run_state), signed)


def test_the_batch_of_a_commit_is_that_of_the_size_that_it_counts_for():
    run_state = the_start(**SIZED)
    spec = run_state.spec
    other = batch_root(spec, batch_positions(spec, peer("nora"), 0, spec.tokens_per_step))
    signed = a_signed_commit("nora", run_state, tokens=spec.most_tokens_per_step, batch_root=other)

    with pytest.raises(PeerFault, match="another batch"):
        step(a_round(run_state), signed)


def test_without_replacement_a_batch_is_drawn_for_the_seat_that_its_node_has():
    data = replace(the_start().spec.data, replaces=False)
    run_state, uniform = the_start(data=data), the_start()
    seat = run_state.nodes[peer("nora")].seat
    for other in {0, 1, 2} - {seat}:
        positions = batch_positions(
            run_state.spec, peer("nora"), 0, run_state.spec.tokens_per_step, seat=other
        )
        changes = {"seat": other, "batch_root": batch_root(run_state.spec, positions)}
        assert f"of seat {other}, expected {seat}" in refusal(
            run_state, a_signed_commit("nora", run_state, **changes)
        )
        lie = a_signed_commit("nora", run_state, batch_root=changes["batch_root"])
        assert "another batch" in refusal(run_state, lie)
    admit(RULES, run_state, STATE, a_signed_commit("nora", run_state))
    assert "of seat 1, expected 0" in refusal(uniform, a_signed_commit("nora", uniform, seat=1))


@pytest.mark.parametrize(
    "changes",
    [{"update_bytes": update_bytes_max(BLOCKS, 32)}, {"loss_micro": LOSS_MICRO_MAX}, {"loss_micro": 0}],
)
def test_a_commit_at_a_bound_is_taken(changes):
    admit(RULES, the_start(), STATE, a_signed_commit("nora", the_start(), **changes))


@pytest.mark.parametrize("changes", [{"round": RoundId(1)}, {"parent": a_digest("other parent")}])
def test_a_commit_of_another_place_is_late_and_nobodys_lie(changes):
    with pytest.raises(OutOfPhase):
        admit(RULES, the_start(), STATE, a_signed_commit("nora", the_start(), **changes))


def test_a_stranger_may_not_commit():
    run_state = the_start()
    stranger = a_signed_commit("nora", run_state, node=peer("vera"))

    assert "may not train" in refusal(run_state, stranger)


def test_a_barred_node_may_not_commit_and_the_others_may():
    run_state = banned_run_state("mallory")

    assert "may not train" in refusal(run_state, a_signed_commit("mallory", run_state))
    admit(RULES, run_state, STATE, a_signed_commit("nora", run_state))


def test_nobody_may_commit_once_training_is_over():
    run_state = grown(the_start(), 6)

    assert run_state.round == 6 == run_state.spec.rounds
    assert "may not train" in refusal(run_state, a_signed_commit("nora", run_state))


def test_the_parameters_are_named_on_every_state_every_th_round_and_on_no_other():
    run_state = the_start(state_every=2)
    admit(RULES, run_state, STATE, a_signed_commit("nora", run_state))

    run_state = grown(run_state, 1)
    admit(RULES, run_state, STATE, a_signed_commit("nora", run_state))
    assert a_commit("nora", run_state).state == NO_DIGEST
    assert "diverged" in refusal(run_state, a_signed_commit("nora", run_state, state=STATE))

    run_state = grown(run_state, 1)
    admit(RULES, run_state, STATE, a_signed_commit("nora", run_state))
    assert "diverged" in refusal(run_state, a_signed_commit("nora", run_state, state=NO_DIGEST))


def test_momentum_continues_from_the_last_accepted_step_or_from_zero_and_from_nothing_else():
    run_state = grown(the_start(), 2)
    last = run_state.nodes[peer("nora")].momentum
    first, last_of_nils = (
        a_commit(name, grown(the_start(), at)).momentum_after for name, at in (("nora", 0), ("nils", 1))
    )
    assert last == a_commit("nora", grown(the_start(), 1)).momentum_after

    for base, root in ((2, last), (0, RULES.zero_momentum)):
        admit(RULES, run_state, STATE, a_signed_commit("nora", run_state, base=base, momentum_before=root))
    for base, root in (
        (2, first),
        (2, last_of_nils),
        (2, NO_DIGEST),
        (2, RULES.zero_momentum),
        (0, last),
    ):
        signed = a_signed_commit("nora", run_state, base=base, momentum_before=root)
        assert "momentum does not continue" in refusal(run_state, signed)
    for base in (1, 3):
        assert f"continues base {base}" in refusal(run_state, a_signed_commit("nora", run_state, base=base))


@pytest.mark.parametrize(("method", "states"), [("demo", 0), ("sparseloco", 2), ("fedavg", 2)])
def test_a_commit_names_one_inner_state_for_each_segment_of_the_rule(method, states):
    rule = a_rule(method, steps=1 if method == "demo" else 3, segment=2)
    run_state = the_start(rule=rule)
    rules = replace(RULES, zero_momentum=zero_root(RUN_ID, rule, BLOCKS))
    for count in range(4):
        inner = tuple(a_digest(f"state {number}") for number in range(count))
        signed = a_signed_commit("nora", run_state, inner=inner)
        if count == states:
            admit(rules, run_state, STATE, signed)
            continue
        with pytest.raises(PeerFault, match=f"{count} inner states, expected {states}"):
            admit(rules, run_state, STATE, signed)


def test_a_commit_signed_by_another_peer_key_is_refused():
    assert "signature" in refusal(the_start(), a_signed_commit("nora", the_start(), peer_key="nils"))


def test_a_statement_signed_by_another_hot_key_is_refused():
    assert "hot key" in refusal(the_start(), a_signed_commit("nora", the_start(), hot_key="nils"))


@pytest.mark.parametrize("statement", [bytes(65), b"\xff" * 65])
def test_a_statement_that_is_no_signature_is_refused(statement):
    signed = replace(a_signed_commit("nora", the_start()), statement=statement)

    assert "statement" in refusal(the_start(), signed)


def test_a_batch_is_drawn_for_its_node_alone_and_once_however_many_commits_come(monkeypatch):
    """A large one is half a second of every verifier's event loop."""
    drawn = []

    def counting(spec, node, *step):
        drawn.append(node)
        return batch_positions(spec, node, *step)

    run_state = the_start()
    wrong = {"batch_root": a_digest("other batch")}
    right = a_signed_commit("nora", run_state)
    commits._assigned.cache_clear()
    monkeypatch.setattr(commits, "batch_positions", counting)

    for key, words in (("peer_key", "signature"), ("hot_key", "hot key")):
        assert words in refusal(run_state, a_signed_commit("nora", run_state, **wrong, **{key: "nils"}))
    assert drawn == []

    for number in range(3):
        lie = a_signed_commit("nora", run_state, loss_micro=number, **wrong)
        assert "another batch" in refusal(run_state, lie)
    admit(RULES, run_state, STATE, right)
    after(run_state, right)
    assert drawn == [peer("nora")]


def test_a_commit_for_another_run_with_the_same_spec_is_not_replayed_here():
    """The domain of the signature names the run, whatever the field says."""
    commit = a_commit("nora", the_start())
    elsewhere = Domain(DOMAIN.deployment_id, a_digest("other run"))
    signed = replace(
        a_signed_commit("nora", the_start()), signature=sign(a_peer_key("nora"), elsewhere, commit)
    )

    assert "signature" in refusal(the_start(), signed)


# ---- two commits


def test_the_same_commit_again_changes_nothing():
    signed = a_signed_commit("mallory", the_start())
    state = after(the_start(), signed)

    assert step(state, signed) == (state, ())


def test_two_different_commits_are_evidence_and_the_first_word_stands():
    run_state = the_start()
    first = a_signed_commit("mallory", run_state)
    second = a_signed_commit("mallory", run_state, update=a_digest("another update"))
    state = after(run_state, first)

    later, effects = step(state, second)

    pair = contradiction(first, second)
    assert effects == (Equivocation(pair),)
    assert later.commits == state.commits
    assert later.contradictions == {peer("mallory"): pair}


def test_the_evidence_is_two_statements_about_one_slot_that_the_court_recovers_to_the_hot_key():
    run_state, spec, deployment = the_start(), a_spec(), a_deployment()
    first = a_signed_commit("mallory", run_state)
    second = a_signed_commit("mallory", run_state, loss_micro=1)
    state = after(run_state, first)

    ((evidence,),) = step(state, second)[1:]

    statements = [
        commit_statement(spec, signed.commit) for signed in (evidence.pair.first, evidence.pair.second)
    ]
    signers = {
        recover(deployment.digest(statement), signed.statement)
        for statement, signed in zip(statements, (evidence.pair.first, evidence.pair.second), strict=True)
    }
    assert signers == {evm_address(a_member("mallory").hot)}
    assert statements[0].value != statements[1].value
    assert replace(statements[0], value=statements[1].value) == statements[1]


def test_evidence_from_another_verifier_bars_the_node_in_the_next_manifest():
    run_state = the_start()
    pair = contradiction(
        a_signed_commit("mallory", run_state),
        a_signed_commit("mallory", run_state, update=a_digest("another")),
    )
    state, effects = step(a_round(run_state), pair)
    assert effects == (Equivocation(pair),)
    assert step(state, pair) == (state, ())  # told again, it is not told on again

    for event in work(["nora"], run_state):
        state, _ = step(state, event)
    manifest = manifest_of(state, (), AGGREGATE)
    examine(a_round(run_state), (), manifest)

    assert manifest.contradictions == (pair,)
    assert peer("mallory") not in advance(run_state, manifest).active
    later, _ = step(state, Advanced(advance(run_state, manifest), STATE, 0))
    assert later.contradictions == {}


def test_a_manifest_carries_contradictions_ascending_by_node_whatever_the_order_in_which_they_came():
    run_state = the_start()
    pairs = {
        name: contradiction(
            a_signed_commit(name, run_state), a_signed_commit(name, run_state, update=a_digest("another"))
        )
        for name in ("mallory", "nils")
    }
    state = a_round(run_state)
    for name in sorted(pairs, key=peer, reverse=True):
        state, _ = step(state, pairs[name])
    for event in work(["nora"], run_state):
        state, _ = step(state, event)

    manifest = manifest_of(state, (), AGGREGATE)

    examine(a_round(run_state), (), manifest)
    assert manifest.contradictions == tuple(pairs[name] for name in sorted(pairs, key=peer))


def test_a_pair_that_the_node_did_not_sign_with_both_keys_is_no_evidence_anywhere():
    run_state = the_start()
    mine = a_signed_commit("mallory", run_state)
    for forged in (
        a_signed_commit("mallory", run_state, peer_key="nora", update=a_digest("another")),
        a_signed_commit("mallory", run_state, hot_key="nora", update=a_digest("another")),
    ):
        pair = contradiction(mine, forged)
        with pytest.raises((PeerFault, MalformedMessage)):
            step(a_round(run_state), pair)
        with pytest.raises((PeerFault, MalformedMessage)):
            examine(a_round(run_state), (), the_next(run_state, contradictions=(pair,)))
    with pytest.raises(OutOfPhase):
        step(a_round(run_state), contradiction(mine, mine))


def test_a_verifiers_word_on_evidence_is_pooled_carried_and_forgotten_and_a_forged_one_is_refused():
    audit = replace(a_spec().audit, attestation=a_digest("policy"), attested_rounds=6)
    run_state = advance(the_start(audit=audit), the_next(the_start(audit=audit), NODES))
    word = Appraisal(
        run_id=RUN_ID, round=RoundId(0), node=peer("nora"), verifier=peer("vera"),
        discount=Discount.PROCESSOR, evidence=a_digest("evidence"), result=a_digest("result"),
    )  # fmt: skip
    signed = SignedAppraisal(appraised=word, signature=sign(a_peer_key("vera"), DOMAIN, word))
    forged = replace(signed, signature=sign(a_peer_key("vito"), DOMAIN, word))
    state = after(run_state, signed, *everything(run_state))

    manifest = manifest_of(state, (), NO_DIGEST)

    assert manifest.appraised == (signed,)
    examine(state, (), replace(manifest, aggregate=NO_DIGEST))
    with pytest.raises(PeerFault):
        step(state, forged)
    with pytest.raises(PeerFault):
        examine(state, (), replace(manifest, appraised=(forged,)))
    with pytest.raises(OutOfPhase):
        step(state, replace(signed, appraised=replace(word, round=RoundId(1))))
    later, _ = step(state, Advanced(advance(run_state, manifest), STATE, 0))
    assert later.appraised == {}


def a_score(loss):
    return Score(loss_micro=loss, acc_count=0, acc_norm_count=0)


def a_measured_run(at):
    """A run whose epoch 0, of three rounds, has a milestone, before the manifest of this round."""
    asked = (Milestone(epoch=0, most_loss_micro=9),)
    accept = AcceptSpec(share_ppm=1, sequences=1, milestones=asked)
    return grown(the_start(money=a_money_spec(accept=accept)), at)


def the_found(name="vera", **changes):
    found = Evaluation(run_id=RUN_ID, epoch=0, verifier=peer(name), score=a_score(8), salt=a_digest(name))
    return replace(found, **changes)


def test_a_commitment_to_an_evaluation_is_pooled_carried_and_forgotten_and_a_forged_one_is_refused():
    run_state, sealed = a_measured_run(3), an_evaluation_commitment(the_found())
    signed = SIGNED.evaluation_commitment(sealed)
    forged = replace(signed, signature=sign(a_peer_key("vito"), DOMAIN, sealed))
    state = after(run_state, signed, *everything(run_state))

    manifest = manifest_of(state, (), AGGREGATE)

    assert manifest.evaluation_commitments == (signed,)
    examine(state, (), manifest)
    with pytest.raises(PeerFault):
        step(a_round(run_state), forged)
    with pytest.raises(PeerFault):
        examine(state, (), replace(manifest, evaluation_commitments=(forged,)))
    with pytest.raises(OutOfPhase, match="EvaluationCommitment of epoch 1"):
        step(state, SIGNED.evaluation_commitment(replace(sealed, epoch=1)))
    other = an_evaluation_commitment(the_found(score=a_score(7)))
    again, _ = step(state, SIGNED.evaluation_commitment(other))
    assert again.evaluation_commitments == state.evaluation_commitments  # a verifier's first counts
    later, _ = step(state, Advanced(advance(run_state, manifest), STATE, 0))
    assert later.evaluation_commitments == {}


def sealed_run(at, *found):
    """The run before the manifest of this round, whose fourth has commitments to these evaluations."""
    run_state = a_measured_run(3)
    sealed = tuple(SIGNED.evaluation_commitment(an_evaluation_commitment(one)) for one in found)
    run_state = advance(run_state, the_next(run_state, NODES, evaluation_commitments=sealed))
    return grown(run_state, at - 4)


def test_an_evaluation_is_pooled_carried_and_forgotten_and_a_forged_one_is_refused():
    found = the_found()
    run_state, signed = sealed_run(8, found), SIGNED.evaluation(found)
    forged = replace(signed, signature=sign(a_peer_key("vito"), DOMAIN, found))
    state = after(run_state, signed, *everything(run_state))

    manifest = manifest_of(state, (), NO_DIGEST)

    assert manifest.evaluations == (signed,)
    examine(state, (), manifest)
    with pytest.raises(PeerFault):
        step(a_round(run_state), forged)
    with pytest.raises(PeerFault):
        examine(state, (), replace(manifest, evaluations=(forged,)))
    for lie in (replace(found, epoch=1), replace(found, score=a_score(7)), the_found("vito")):
        with pytest.raises(OutOfPhase, match="Evaluation of epoch"):
            step(state, SIGNED.evaluation(lie))
    later, _ = step(state, Advanced(advance(run_state, manifest), STATE, 0))
    assert later.evaluations == {}


def test_an_evaluation_that_is_shown_before_the_last_commitments_are_final_is_refused():
    found = the_found()
    run_state = sealed_run(5, found)
    with pytest.raises(OutOfPhase, match="Evaluation of epoch 0"):
        step(a_round(run_state), SIGNED.evaluation(found))
    early = the_next(run_state, (), evaluations=(SIGNED.evaluation(found),))
    with pytest.raises(MalformedMessage, match=r"an evaluation by .* not admissible"):
        examine(after(run_state, *everything(run_state)), (), early)


def test_a_leader_waits_for_committed_evaluations_before_each_of_the_last_manifests_that_may_open_them():
    found = [the_found("vera"), the_found("vito")]
    for at, is_awaited in ((7, False), (8, True), (9, True)):
        run_state = sealed_run(at, *found)
        state = after(run_state, SIGNED.evaluation(found[0]), *everything(run_state))
        assert ("evaluations" in missing(state)) == is_awaited
        whole = after(run_state, *map(SIGNED.evaluation, found), *everything(run_state))
        assert "evaluations" not in missing(whole)
        away = replace(run_state, away={peer("vito"): 99})
        assert "evaluations" not in missing(replace(state, run_state=away))


def test_a_leader_waits_for_commitments_before_each_of_the_last_manifests_that_may_carry_them():
    sealed = [
        SIGNED.evaluation_commitment(an_evaluation_commitment(the_found(name)))
        for name in ("vera", "viktor", "vlad", "vito")
    ]
    for at, is_awaited in ((4, True), (5, True), (6, False)):
        run_state = sealed_run(at)
        state = after(run_state, *everything(run_state), *(sealed[:3] if is_awaited else ()))
        assert ("evaluations" in missing(state)) == is_awaited
        whole = after(run_state, *everything(run_state), *(sealed if is_awaited else ()))
        assert "evaluations" not in missing(whole)
        away = replace(run_state, away={peer("vito"): 99})
        assert "evaluations" not in missing(replace(state, run_state=away))


def test_a_leader_waits_for_no_commitment_while_others_may_still_carry_it():
    run_state = a_measured_run(3)
    assert "evaluations" not in missing(after(run_state, *everything(run_state)))


def test_a_forged_second_commit_is_no_evidence():
    run_state = the_start()
    state = after(run_state, a_signed_commit("nora", run_state))
    forged = a_signed_commit("nora", run_state, loss_micro=1, peer_key="mallory")

    with pytest.raises(PeerFault, match="signature"):
        admit(state.rules, run_state, state.state, forged)
    lists = [an_inclusion_list(name, run_state, ["nora"]) for name in VERIFIERS]
    manifest = manifest_of(after(run_state, forged, *lists), (), a_digest("aggregate"))
    with pytest.raises(PeerFault, match="signature"):
        examine(state, (), manifest)


# ---- reveals


def test_a_reveal_counts_for_the_last_manifest_if_its_proof_holds():
    run_state = grown(the_start(), 1)
    good = a_reveal("vera", run_state)
    wrong_key = a_reveal("vito", run_state, verifier=peer("viktor"))
    state = after(run_state, good, wrong_key)

    assert valid_shares(state.beacon_shares, run_state) == (good,)


@pytest.mark.parametrize(
    "changes",
    [{"round": RoundId(1)}, {"run_id": a_digest("other run")}, {"proof": bytes(80)}, {"proof": b""}],
)
def test_a_reveal_of_another_place_or_without_a_proof_does_not_count(changes):
    run_state = grown(the_start(), 1)
    state = after(run_state, a_reveal("vera", run_state, **changes))

    assert valid_shares(state.beacon_shares, run_state) == ()


def test_a_stranger_may_not_reveal():
    with pytest.raises(PeerFault, match="stranger"):
        step(a_round(), a_reveal("vera", grown(the_start(), 1), verifier=peer("nora")))


def test_nonsense_in_a_verifiers_name_never_pushes_out_the_reveal_that_counts():
    run_state = grown(the_start(), 1)
    good = a_reveal("vera", run_state)
    junk = [a_reveal("vera", run_state, proof=bytes([i]) * 80) for i in range(3 * REVEALS_PER_VERIFIER)]

    state = after(run_state, good, *(one for one in junk))

    assert valid_shares(state.beacon_shares, run_state) == (good,)
    assert len(state.beacon_shares[peer("vera")]) == REVEALS_PER_VERIFIER


def test_a_verifiers_pool_of_reveals_is_bounded():
    run_state = grown(the_start(), 1)
    junk = [a_reveal("vera", run_state, proof=bytes([i]) * 80) for i in range(50)]

    state = after(run_state, *junk)

    assert len(state.beacon_shares[peer("vera")]) == REVEALS_PER_VERIFIER


def test_a_reveal_that_came_before_its_manifest_was_final_counts_after():
    run_state = the_start()
    manifest = the_next(run_state, NODES)
    later = advance(run_state, manifest)
    state = after(run_state, a_reveal("vera", later))

    state, _ = step(state, Advanced(later, STATE, 7))

    assert valid_shares(state.beacon_shares, later) == (a_reveal("vera", later),)


# ---- messages about audits


def audited(rounds=2):
    """A history with an open audit of nora whose first auditor may seal now, and that audit."""
    run_state = grown(the_start(), rounds, votes={})
    return run_state, run_state.audits[(RoundId(0), peer("nora"))]


def banned_run_state(name):
    """A history in which a quorum upheld a fault of this node, while training goes on."""
    run_state = the_start(rounds=20)
    while not run_state.nodes[peer(name)].banned:
        votes = {
            step: dict.fromkeys(VERIFIERS, Outcome.MISMATCH if step[1] == peer(name) else Outcome.MATCH)
            for step in run_state.audits
        }
        run_state = advance(run_state, the_next(run_state, NODES, votes))
    return run_state


def spoken(name, audit, outcome=Outcome.MATCH, **changes):
    """A verdict, and its seal, as events and values."""
    signed = a_verdict(name, audit, outcome, **changes)
    return a_commitment(signed, pattern=audit.pattern), signed


@pytest.mark.parametrize(("which", "pool"), [(0, "commitments"), (1, "verdicts")])
def test_a_word_is_pooled_with_its_signature_checked_and_the_newest_stands(which, pool):
    run_state, audit = audited()
    first, second = spoken("vera", audit)[which], spoken("vera", audit, Outcome.MISMATCH)[which]

    state = after(run_state, first)
    assert list(getattr(state, pool).values()) == [first]
    state, _ = step(state, second)
    assert list(getattr(state, pool).values()) == [second]


@pytest.mark.parametrize("which", [0, 1])
def test_a_word_by_a_stranger_of_another_run_or_signed_by_somebody_else_is_refused(which):
    run_state, audit = audited()
    mine, other = spoken("vera", audit)[which], spoken("vito", audit)[which]

    with pytest.raises(PeerFault, match="stranger"):
        step(a_round(run_state), spoken("nils", audit)[which])
    with pytest.raises(PeerFault, match="another run"):
        step(a_round(run_state), spoken("vera", audit, run_id=a_digest("other run"))[which])
    with pytest.raises(PeerFault, match="signature"):
        step(a_round(run_state), replace(mine, signature=other.signature))


@pytest.mark.parametrize(("which", "pool"), [(0, "commitments"), (1, "verdicts")])
def test_a_verifier_may_have_only_so_many_words_waiting_and_takes_nobody_elses_room(which, pool):
    run_state, audit = audited()
    word = spoken("vera", audit)[which]
    full = {(RoundId(i), peer("nora"), peer("vera")): word for i in range(100, 100 + MESSAGES_PER_VERIFIER)}
    state = replace(a_round(run_state), **{pool: full})

    with pytest.raises(PeerFault, match="messages waiting"):
        step(state, word)
    state, _ = step(state, spoken("vito", audit)[which])
    assert len(getattr(state, pool)) == MESSAGES_PER_VERIFIER + 1


def test_a_word_about_another_time_is_late_and_nobodys_lie():
    run_state, audit = audited()

    def told(at, about):
        step(
            a_round(replace(run_state, round=RoundId(at))),
            a_verdict("vera", replace(audit, round=about)),
        )

    oldest = 40 - run_state.spec.closing_rounds
    for about in (RoundId(oldest), RoundId(42)):
        told(40, about)
    for about in (RoundId(oldest - 1), RoundId(43)):
        with pytest.raises(OutOfPhase):
            told(40, about)


def test_a_node_opens_only_the_seal_of_a_step_that_is_audited_and_only_truly():
    run_state, audit = audited()
    word = a_sketch_opening(audit)

    assert list(after(run_state, word).sketch_openings.values()) == [word]
    with pytest.raises(PeerFault, match="do not open"):
        step(a_round(run_state), replace(word, salt=a_digest("other")))
    with pytest.raises(OutOfPhase):
        step(a_round(run_state), replace(word, round=RoundId(40)))
    with pytest.raises(PeerFault, match="which has announced no list"):
        step(
            a_round(run_state),
            KnownAnswer(run_id=RUN_ID, round=word.round, node=word.node, index=0, salt=word.salt, path=()),
        )


def test_the_next_round_begins_empty_but_for_words_that_may_still_count():
    run_state, audit = audited(2)
    run_state = grown(run_state, 2, votes={(0, audit.node): {name_of(audit.order[0]): Outcome.MATCH}})
    votes = {(0, audit.node): {name_of(audit.order[0]): Outcome.MATCH}}
    waiting = a_verdict(name_of(audit.order[1]), run_state.audits[(RoundId(1), audit.node)])
    state = after(run_state, *everything(run_state, votes=votes), waiting)
    assert len(state.verdicts) == 2
    later = advance(run_state, the_next(run_state, NODES, votes))

    state, effects = step(state, Advanced(later, a_digest("later parameters"), 99))

    assert effects == ()
    assert (state.run_state, state.state, state.opened_ms) == (later, a_digest("later parameters"), 99)
    assert not state.commits
    assert list(state.verdicts.values()) == [waiting]  # the chain carries the other


def test_words_are_forgotten_once_no_manifest_can_carry_them():
    run_state, audit = audited()
    state = after(run_state, spoken("vera", audit)[0], spoken("vera", audit)[1])
    bare = replace(run_state, audits={})
    last = int(audit.round) + run_state.spec.closing_rounds

    kept, _ = step(state, Advanced(replace(bare, round=RoundId(last)), STATE, 0))
    gone, _ = step(state, Advanced(replace(bare, round=RoundId(last + 1)), STATE, 0))

    assert (len(kept.verdicts), len(kept.commitments)) == (1, 1)
    assert (len(gone.verdicts), len(gone.commitments)) == (0, 0)


# ---- when to propose


def test_a_leader_waits_for_every_active_node():
    run_state = the_start()
    lists = [an_inclusion_list(name, run_state, NODES[:2]) for name in VERIFIERS]
    state = after(run_state, *lists, *(a_signed_commit(name, run_state) for name in NODES[:2]))

    assert missing(state) == ("1 commits",)
    assert not may_propose(state, (), 0, follows=True)

    state, _ = step(state, a_signed_commit(NODES[2], run_state))
    assert missing(state) == ()
    assert may_propose(state, (), 0, follows=True)


def test_a_leader_waits_in_the_first_rounds_for_who_has_to_bind_itself_to_its_data(monkeypatch):
    """And as long as nobody else may train: rounds without work would else pass at once."""
    waited = ("announcements of data",)
    for number, own, is_awaited in ((0, 1, True), (1, 1, True), (2, 1, False), (2, 3, True)):
        run_state = grown(the_start(), number)
        parts = (*[Stratum(tokens=0, seats=1)] * own, Stratum(tokens=40_000, seats=3 - own))
        spec = replace(run_state.spec, data=replace(run_state.spec.data, strata=parts))
        run_state = replace(run_state, spec=spec)
        free = [name for name in NODES if peer(name) in run_state.active]
        assert len(free) == 3 - own
        state = after(run_state, *everything(run_state, nodes=free))
        assert missing(state) == (waited if is_awaited else ())
        if own == 3 or number == 0:
            late = run_state.spec.timing.collect_ms
            assert not may_propose(state, (), late - 1, follows=True)
            assert may_propose(state, (), late, follows=True)
        for node in spec.bringing_nodes:
            bound = OwnData(root=a_digest("root"), windows=300)
            state, _ = step(state, said_by(run_state, node, AttendanceKind.DATA, own=bound))
        assert missing(state) == ()


def test_a_leader_does_not_wait_for_a_barred_node():
    run_state = banned_run_state("mallory")
    others = [name for name in NODES if name != "mallory"]

    state = after(run_state, *everything(run_state, nodes=others))

    assert missing(state) == ()


def test_nobody_waits_for_a_node_that_was_silent_for_two_rounds_until_it_is_heard():
    others = [name for name in NODES if name != "nora"]
    for rounds, lacking in ((1, ("1 commits",)), (2, ())):
        run_state = grown(the_start(), rounds, nodes=others)
        state = after(run_state, *everything(run_state, nodes=others))
        assert missing(state) == lacking

    state, _ = step(state, Heard(peer("nora")))  # its commit came too late for the last round
    assert missing(state) == ("1 commits",)
    later = replace(run_state, round=RoundId(int(run_state.round) + 2))
    state, _ = step(state, Advanced(later, STATE, 0))
    assert "1 commits" not in missing(state)


def test_a_manifest_says_when_it_was_made_and_nobody_votes_for_one_of_the_future():
    run_state = replace(the_start(), time_s=1000)
    state = after(run_state, *everything(run_state))

    assert manifest_of(state, (), AGGREGATE, wall_s=900).time_s == 1000  # a clock that is behind
    manifest = manifest_of(state, (), AGGREGATE, wall_s=2000)
    assert manifest.time_s == 2000
    examine(state, (), manifest, wall_s=2000 - AHEAD_S)
    examine(state, (), manifest, wall_s=5000)  # it took long to arrive
    with pytest.raises(MalformedMessage, match="its time is 2000, our clock says 1989"):
        examine(state, (), manifest, wall_s=1999 - AHEAD_S)
    examine(state, (), replace(manifest, time_s=1000), wall_s=0)  # agreed already, whatever our clock says

    patient = the_start(audit=replace(a_spec().audit, absence_s=1600))
    state = after(patient, *everything(patient))
    manifest = manifest_of(state, (), AGGREGATE, wall_s=2000)
    examine(state, (), manifest, wall_s=1900)  # a clock that is late by a 16th of what is measured
    with pytest.raises(MalformedMessage, match="at most 100 s ahead expected"):
        examine(state, (), manifest, wall_s=1899)


# ---- nodes that were away


def absent_run_state(rounds=20, outcome=Outcome.WITHHELD, tasks=NO_DIGEST):
    """A history in which nora's opening of round 0, or her task of it, is overdue until time 3600."""
    rules = replace(a_spec().audit, absence_s=3600, known_answer_count=int(tasks != NO_DIGEST))
    run_state = the_start(rounds=rounds, audit=rules)
    record = replace(run_state.nodes[peer("nora")], tasks=tasks)
    run_state = grown(replace(run_state, nodes={**run_state.nodes, peer("nora"): record}), 2)
    key, others = (0, peer("nora")), [name for name in NODES if name != "nora"]
    while run_state.audits[key].ruling is not AuditStatus.OVERDUE:
        assert run_state.round < 15
        votes = {**everyone(run_state), key: dict.fromkeys(VERIFIERS, outcome)}
        run_state = grown(run_state, 1, nodes=others, votes=votes)
    return run_state


def a_return(run_state, key="nora"):
    return an_attendance(run_state, AttendanceKind.RETURN, key=key)


def an_attendance(run_state, kind, key="nora", tasks=NO_DIGEST):
    said = Attendance(run_id=RUN_ID, round=run_state.round, node=peer("nora"), kind=kind, tasks=tasks)
    return SignedAttendance(attendance=said, signature=sign(a_peer_key(key), DOMAIN, said))


def test_an_absent_node_is_not_waited_for_and_its_return_goes_into_the_next_manifest():
    run_state = absent_run_state()
    others = [name for name in NODES if name != "nora"]
    state = after(run_state, *everything(run_state, nodes=others))
    assert missing(state) == ()

    state, _ = step(state, a_return(run_state))
    manifest = manifest_of(state, (), AGGREGATE, wall_s=100)

    assert manifest.attendance == (a_return(run_state),)
    examine(a_round(run_state), (), manifest, wall_s=100)
    forged = replace(manifest, attendance=(a_return(run_state, key="mallory"),))
    with pytest.raises(PeerFault, match="signature"):
        examine(a_round(run_state), (), forged, wall_s=100)
    after_it = advance(run_state, manifest)
    assert step(state, Advanced(after_it, STATE, 0))[0].attendance == {}  # used


def test_a_return_is_taken_only_from_a_node_that_is_absent_and_signed_since():
    with pytest.raises(OutOfPhase):
        step(a_round(), a_return(the_start()))
    run_state = absent_run_state()
    old = replace(run_state, round=RoundId(int(run_state.round) - 1))
    with pytest.raises(OutOfPhase):
        step(a_round(run_state), a_return(old))
    with pytest.raises(PeerFault, match="signature"):
        step(a_round(run_state), a_return(run_state, key="mallory"))


def test_when_only_overdue_openings_are_left_the_chain_waits_for_a_return_or_their_time():
    run_state = replace(absent_run_state(), audits={}, round=RoundId(1000), training_rounds=3)
    audit = absent_run_state().audits[(0, peer("nora"))]
    run_state = replace(run_state, audits={(0, peer("nora")): audit})
    assert run_state.due_s == 3600

    state = a_round(run_state)
    assert awaits_return(state, (), 3599)
    assert not awaits_return(state, (), 3600)
    state, _ = step(state, a_return(run_state))
    assert not awaits_return(state, (), 100)


def test_when_only_a_task_is_overdue_the_chain_waits_until_it_is_shown():
    tasks = [(Digest(b"s" * 32), RoundId(0), peer("nora"))]
    run_state = absent_run_state(outcome=Outcome.MISMATCH, tasks=known_answer_root(tasks))
    run_state = replace(run_state, round=RoundId(1000), training_rounds=3)
    overdue = run_state.audits[(0, peer("nora"))]
    run_state = replace(run_state, audits={(0, peer("nora")): overdue})
    assert run_state.due_s == 3600

    state = a_round(run_state)
    assert awaits_return(state, (), 100)
    state, _ = step(state, known_answer_proofs(run_state.run_id, tasks)[0])
    assert not awaits_return(state, (), 100)
    assert manifest_of(state, (), NO_DIGEST, wall_s=100).known_answers


def test_when_every_node_owes_an_opening_the_chain_goes_on_without_commits():
    """Else nobody could carry their returns, and the run would stand for ever."""
    run_state = absent_run_state()
    every = frozenset(run_state.nodes)
    run_state = replace(run_state, late=every)
    overdue = run_state.audits[(0, peer("nora"))]
    only = replace(run_state, audits={(0, peer("nora")): overdue})
    assert only.is_deserted and only.due_s == 3600

    state = after(only, *(a_reveal(name, only) for name in VERIFIERS))
    assert awaits_return(state, (), 100)
    state, _ = step(state, a_return(only))
    assert not awaits_return(state, (), 100)
    assert due_list(state, peer("vera"), 0) is not None
    for name in VERIFIERS:
        state, _ = step(state, an_inclusion_list(name, only, ()))
    assert missing(state) == ()
    manifest = manifest_of(state, (), NO_DIGEST, wall_s=100)
    assert (manifest.commits, manifest.attendance) == ((), (a_return(only),))
    examine(state, (), manifest, wall_s=100)


@pytest.mark.parametrize("sent", [HEARD_MAX, HEARD_MAX + 1])
def test_nobody_waits_for_ever_for_a_node_that_sends_commits_of_which_none_is_taken(sent):
    others = [name for name in NODES if name != "nora"]
    run_state = grown(the_start(rounds=60), 2, nodes=others)
    state = a_round(run_state)
    for round_id in range(2, 2 + sent):
        run_state = replace(run_state, round=RoundId(round_id))
        state, _ = step(state, Advanced(run_state, STATE, 0))
        for _ in range(3):
            state, _ = step(state, Heard(peer("nora")))
    assert ("3 commits" if sent == HEARD_MAX else "2 commits") in missing(state)

    accepted = replace(run_state.nodes[peer("nora")], missed=0)
    run_state = replace(run_state, round=RoundId(2 + sent))
    with_hers = replace(run_state, nodes={**run_state.nodes, peer("nora"): accepted})
    for event in (Advanced(with_hers, STATE, 0), Advanced(run_state, STATE, 0), Heard(peer("nora"))):
        state, _ = step(state, event)
    assert "3 commits" in missing(state)


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"tokens": 1}, True),  # a commit that no manifest may carry
        ({"peer_key": "nils"}, False),
        ({"run_id": a_digest("other run")}, False),
        ({"round": RoundId(1)}, True),
        ({"round": RoundId(0)}, False),
        ({"round": RoundId(3)}, False),
    ],
)
def test_a_node_is_heard_by_what_it_signed_for_this_round_or_the_last(changes, counts):
    run_state = grown(the_start(), 2)

    assert is_sign_of_life(RULES, run_state, a_signed_commit("nora", run_state, **changes)) is counts


def test_only_nodes_of_the_run_are_heard():
    state, _ = step(a_round(), Heard(peer("a stranger")))
    assert state.heard == {}


def test_after_the_deadline_a_leader_proposes_what_it_has_and_without_a_commit_it_waits():
    run_state = the_start()
    collect_ms = run_state.spec.timing.collect_ms
    nothing = a_round(run_state, opened_ms=50)
    something = replace(after(run_state, *work(["nora"], run_state)), opened_ms=50)

    assert not may_propose(something, (), 50 + collect_ms - 1, follows=True)
    assert may_propose(something, (), 50 + collect_ms, follows=True)
    assert not may_propose(nothing, (), 50 + 100 * collect_ms, follows=True)


def test_once_most_commits_are_here_the_others_have_three_times_as_long_and_a_third_more_at_least():
    run_state = the_start()
    collect_ms, me = run_state.spec.timing.collect_ms, peer("vera")
    lists = [an_inclusion_list(name, run_state, NODES[:2]) for name in VERIFIERS]
    early = gathered(after(run_state, *work(NODES[:1], run_state)), 9)
    for most_ms, wait_ms in (
        (0, collect_ms // 3), (100, 100 + collect_ms // 3), (collect_ms // 5, collect_ms * 3 // 5),
        (collect_ms // 2, collect_ms), (2 * collect_ms, collect_ms),
    ):  # fmt: skip
        state = replace(early, opened_ms=50)
        for message in (a_signed_commit(NODES[1], run_state), *lists):
            state, _ = step(state, message)
        assert not may_propose(
            state, (), 50 + collect_ms - 1, follows=True
        )  # one of three is not most of them

        state = gathered(gathered(state, 50 + most_ms), 50 + collect_ms)  # the first time counts
        assert not may_propose(state, (), 50 + wait_ms - 1, follows=True)
        assert may_propose(state, (), 50 + wait_ms, follows=True)
        alone = replace(state, inclusion_lists={})
        assert due_list(alone, me, 50 + wait_ms - 1) is None
        due = due_list(alone, me, 50 + wait_ms)
        assert due is not None and due.nodes == lists[0].inclusion_list.nodes

        state, _ = step(state, Advanced(grown(run_state, 1), STATE, 0))
        assert state.most_ms is None  # each round has its own


def test_a_leader_waits_for_all_reveals_until_the_deadline_and_for_a_quorum_for_ever():
    run_state = grown(the_start(), 1, votes={})
    ready_ms, collect_ms = run_state.spec.timing.ready_ms, run_state.spec.timing.collect_ms
    assert ready_ms < collect_ms
    commits = work(NODES, run_state)
    with_two = after(run_state, *commits, *(a_reveal(name, run_state) for name in VERIFIERS[:2]))
    with_three, _ = step(with_two, a_reveal(VERIFIERS[2], run_state))
    with_four, _ = step(with_three, a_reveal(VERIFIERS[3], run_state))

    for follows in (True, False):
        assert not may_propose(with_two, (), 100 * collect_ms, follows=follows)
        assert not may_propose(with_three, (), ready_ms - 1, follows=follows)
        assert may_propose(with_four, (), 0, follows=follows)
    # Only after another leader was given up: who follows at once cannot choose whose share counts.
    assert may_propose(with_three, (), ready_ms, follows=False)
    assert not may_propose(with_three, (), 100 * collect_ms, follows=True)
    assert is_held_up(with_three, ready_ms)
    assert not is_held_up(with_three, ready_ms - 1)
    assert not is_held_up(with_two, collect_ms)
    assert not is_held_up(with_four, collect_ms)


def test_a_share_that_is_missing_beside_a_commit_is_waited_for_as_long_as_the_commit():
    run_state = grown(the_start(), 1, votes={})
    ready_ms, collect_ms = run_state.spec.timing.ready_ms, run_state.spec.timing.collect_ms
    state = after(
        run_state, *work(NODES[:-1], run_state), *(a_reveal(name, run_state) for name in VERIFIERS[:3])
    )

    assert not may_propose(state, (), ready_ms, follows=False)
    assert not may_propose(state, (), collect_ms - 1, follows=False)


def test_a_leader_that_follows_at_once_is_refused_without_every_share_of_the_beacon():
    run_state = grown(the_start(), 2, votes={})
    whole = the_next(run_state, NODES)
    part = replace(whole, beacon_shares=whole.beacon_shares[:3], is_partial=True)

    examine(a_round(run_state), (), whole, follows=True)
    examine(a_round(run_state), (), part, follows=False)
    with pytest.raises(MalformedMessage, match="3 reveals, expected 4"):
        examine(a_round(run_state), (), part, follows=True)


def test_a_manifest_says_truly_whether_its_beacon_is_partial():
    run_state = grown(the_start(), 2, votes={})
    whole = the_next(run_state, NODES)
    part = replace(whole, beacon_shares=whole.beacon_shares[:3])

    for manifest in (replace(whole, is_partial=True), replace(part, is_partial=False)):
        with pytest.raises(MalformedMessage, match="says is_partial"):
            examine(a_round(run_state), (), manifest, follows=False)


RARE = 10**6  # clean audits: drawn at the floor's rate


def rarely_drawn(rounds, count=2):
    """Before the manifest that draws the steps of round `count - 1`, whose nodes are hardly ever drawn."""
    run_state = grown(the_start(rounds=rounds), count, votes={})
    nodes = {node: replace(record, clean=RARE) for node, record in run_state.nodes.items()}
    return replace(run_state, audits={}, nodes=nodes)


@pytest.mark.parametrize("count", range(2, 12))
def test_whatever_shares_a_leader_leaves_out_the_drawn_steps_do_not_get_fewer(count):
    run_state = rarely_drawn(30, count)
    manifest = the_next(run_state, NODES)
    steps = {(RoundId(count - 1), peer(name)) for name in NODES}
    drawn = set(advance(run_state, manifest).audits)
    assert drawn <= steps

    for size in (3, 2):
        for shares in itertools.combinations(manifest.beacon_shares, size):
            partial = advance(run_state, replace(manifest, beacon_shares=shares, is_partial=True))
            assert not partial.audits  # nothing is drawn by a seed that a leader could choose
            following = the_next(partial, NODES)
            after_it = advance(partial, replace(following, is_partial=False))
            found = {step: audit for step, audit in after_it.audits.items() if step[0] == count - 1}
            assert set(found) == steps
            assert {audit.seed for audit in found.values()} == {beacon_of(partial, following)}
            assert not after_it.undrawn


def test_partial_beacons_one_after_another_postpone_a_draw_only_to_its_last_chance():
    run_state = rarely_drawn(30)
    last = int(run_state.round) - 1 + run_state.spec.audit.audit_rounds - 2
    while int(run_state.round) <= last:
        assert not run_state.audits
        run_state = advance(run_state, replace(the_next(run_state, NODES), is_partial=True))

    assert {step for step in run_state.audits if step[0] == 1} == {(RoundId(1), peer(name)) for name in NODES}
    audit = run_state.audits[(RoundId(1), peer(NODES[0]))]
    assert may_commit_verdict(run_state, audit, audit.order[0])


@pytest.mark.parametrize(("audit_rounds", "takeover_rounds", "after"), [(12, 2, 7), (12, 1, 8), (6, 2, 2)])
def test_beacons_that_stay_partial_draw_while_an_honest_auditor_and_leader_are_sure_to_come(
    audit_rounds: int, takeover_rounds: int, after: int
):
    """One of four lies: it may be drawn first and be silent, and leave an honest commitment out as leader."""
    run_state = rarely_drawn(60)
    rules = replace(run_state.spec.audit, audit_rounds=audit_rounds, takeover_rounds=takeover_rounds)
    run_state = replace(run_state, spec=replace(run_state.spec, audit=rules))
    first = RoundId(int(run_state.round) - 1)
    drawn_at = None
    for number in range(int(first) + 1, int(first) + audit_rounds):
        run_state = advance(run_state, replace(the_next(run_state, NODES), is_partial=True))
        drawn_at = number if drawn_at is None and (first, peer(NODES[0])) in run_state.audits else drawn_at
    assert drawn_at == first + after
    assert {audit.auditors_wanted for audit in run_state.audits.values()} == {2}, "more than f"


def test_by_a_partial_beacon_every_audit_is_replicated():
    run_state = grown(the_start(), 2, votes={})
    step_id = (RoundId(0), peer(NODES[0]))
    run_state = grown(
        run_state, 1, votes={step_id: {name_of(run_state.audits[step_id].order[0]): Outcome.MATCH}}
    )
    manifest = the_next(run_state, NODES)

    assert advance(run_state, replace(manifest, is_partial=True)).audits[step_id].auditors_wanted == 2
    assert advance(run_state, manifest).audits[step_id].auditors_wanted == 1


def test_whose_share_was_missing_is_away_for_a_while_and_then_asked_again():
    run_state = grown(the_start(rounds=30), 2, votes={})
    absent = peer(VERIFIERS[3])
    without = replace(the_next(run_state, NODES), beacon_shares=the_next(run_state, NODES).beacon_shares[:3])
    run_state = advance(run_state, without)
    assert absent not in run_state.beacon

    with pytest.raises(MalformedMessage, match="that was away"):
        examine(a_round(run_state), (), the_next(run_state, NODES), follows=True)
    state = after(run_state, *(a_reveal(name, run_state) for name in VERIFIERS))
    assert absent not in {
        beacon_share.verifier for beacon_share in valid_shares(state.beacon_shares, run_state)
    }
    for _ in range(BEACON_PAUSE):
        assert absent not in run_state.beacon
        manifest = the_next(run_state, NODES)
        run_state = advance(run_state, replace(manifest, beacon_shares=manifest.beacon_shares[:3]))
    assert absent in run_state.beacon
    assert len(run_state.beacon_shares[int(run_state.round) - 2]) == 3


def test_who_is_away_stands_in_for_a_share_that_is_missing_unpaid_and_only_after_a_given_up_iteration():
    """Else an honest verifier that is away and one that falls silent would stop a run of four for good."""
    run_state = grown(the_start(rounds=30), 2, votes={})
    absent, silent = VERIFIERS[3], VERIFIERS[2]
    whole = the_next(run_state, NODES)
    run_state = advance(run_state, replace(whole, beacon_shares=whole.beacon_shares[:3], is_partial=True))
    collect_ms = run_state.spec.timing.collect_ms
    shares = [a_reveal(name, run_state) for name in VERIFIERS if name != silent]
    state = after(run_state, *work(NODES, run_state), *shares)

    assert not may_propose(state, (), collect_ms, follows=True)
    assert may_propose(state, (), collect_ms, follows=False)
    manifest = manifest_of(state, (), a_digest("aggregate"), wall_s=run_state.time_s)
    assert {one.verifier for one in manifest.beacon_shares} == {peer(n) for n in VERIFIERS if n != silent}
    assert manifest.is_partial
    examine(state, (), manifest, follows=False)
    with pytest.raises(MalformedMessage, match="3 reveals, expected 3"):
        examine(state, (), manifest, follows=True)
    paid = advance(run_state, manifest).beacon_shares[int(run_state.round) - 1]
    assert set(paid) == {peer(name) for name in VERIFIERS} - {peer(absent), peer(silent)}

    all_of_them = tuple(sorted((*manifest.beacon_shares, a_reveal(silent, run_state)), key=the_verifier))
    with pytest.raises(MalformedMessage, match="that was away"):
        examine(state, (), replace(manifest, beacon_shares=all_of_them, is_partial=False), follows=False)


def the_verifier(share):
    """Key of a manifest's order."""
    return share.verifier


@pytest.mark.slow
def test_the_pause_doubles_with_each_share_missed_in_a_row_up_to_a_bound():
    def pause(run_state):
        manifest = the_next(run_state, NODES)
        run_state = advance(run_state, replace(manifest, beacon_shares=manifest.beacon_shares[:3]))
        count = 0
        while absent not in run_state.beacon:
            manifest = the_next(run_state, ())
            run_state = advance(run_state, replace(manifest, beacon_shares=manifest.beacon_shares[:3]))
            count += 1
        return run_state, count

    run_state, absent = grown(the_start(rounds=1200), 2, votes={}), peer(VERIFIERS[3])
    for expected in (16, 32, 64, 128, 256, 256):
        run_state, count = pause(run_state)
        assert count == expected
    run_state = advance(run_state, the_next(run_state, NODES))  # with all four shares
    assert pause(run_state)[1] == 16


def test_too_many_away_are_all_asked_again():
    run_state = grown(the_start(), 2, votes={})
    manifest = the_next(run_state, NODES)

    assert set(advance(run_state, replace(manifest, beacon_shares=manifest.beacon_shares[:2])).beacon) == {
        peer(name) for name in VERIFIERS
    }


def test_reveals_are_due_after_a_round_without_commits_too():
    run_state = grown(the_start(), 1, nodes=(), votes={})

    state = after(run_state, *work(NODES, run_state))

    assert missing(state) == ("beacon shares",)


def without_words(run_state):
    kinds = (SignedCommit, SignedInclusionList, BeaconShare)
    return [event for event in everything(run_state) if isinstance(event, kinds)]


def with_audits_of(audit_rounds):
    run_state = the_start()
    rules = replace(run_state.spec.audit, audit_rounds=audit_rounds)
    return replace(run_state, spec=replace(run_state.spec, audit=rules))


def test_a_leader_waits_for_one_seal_on_each_audit_whose_last_honest_leader_it_may_be():
    run_state = grown(with_audits_of(5), 3, votes={})
    audits = [audit for audit in run_state.audits.values() if audit.round == 0]
    state = after(run_state, *without_words(run_state))
    assert run_state.round == run_state.spec.audit.audit_rounds - 2  # one of four may lie, and lead the last

    for audit in audits:  # messages on other steps decide nothing about these
        other = run_state.audits[(RoundId(1), audit.node)]
        state, _ = step(state, spoken(name_of(audit.order[0]), other)[0])
    assert missing(state) == ("verdicts",)
    for audit in audits:
        state, _ = step(state, spoken(name_of(audit.order[0]), audit)[0])
    assert missing(state) == ()


def test_nodes_that_choose_the_size_of_their_steps_have_all_of_the_time_that_they_plan_by():
    run_state = the_start()
    local = replace(run_state.spec.rule.local, sequences_max=2 * run_state.spec.rule.local.sequences)
    run_state = replace(
        run_state, spec=replace(run_state.spec, rule=replace(run_state.spec.rule, local=local))
    )
    collect_ms = run_state.spec.timing.collect_ms
    state = gathered(after(run_state, *work(NODES[:2], run_state)), 0)

    assert state.most_ms == 0 and not may_propose(state, (), collect_ms - 1, follows=True)
    assert may_propose(state, (), collect_ms, follows=True)


def test_a_verdict_that_is_due_is_waited_for_as_long_as_ever_whenever_most_commits_came():
    run_state = grown(with_audits_of(5), 3, votes={})
    collect_ms = run_state.spec.timing.collect_ms
    state = gathered(after(run_state, *without_words(run_state)), 0)
    assert state.most_ms == 0 and missing(state) == ("verdicts",)

    assert not may_propose(state, (), collect_ms - 1, follows=True)
    assert may_propose(state, (), collect_ms, follows=True)


def test_a_leader_waits_for_sealed_verdicts_and_the_nodes_sketch_at_their_last_chance():
    run_state = grown(the_start(), 2, votes={})
    first = {step: {name_of(a.order[0]): Outcome.MATCH} for step, a in run_state.audits.items()}
    run_state = grown(run_state, 2, votes=first)
    state = after(run_state, *without_words(run_state))
    assert missing(state) == ("verdicts",)

    for audit in (a for a in run_state.audits.values() if a.round == 0):
        state, _ = step(state, spoken(name_of(audit.order[0]), audit)[1])
    assert missing(state) == ("verdicts",)
    for audit in (a for a in run_state.audits.values() if a.round == 0):
        state, _ = step(state, a_sketch_opening(audit))
    # The audits of rounds 1 and 2 may find no other honest leader to be sealed, and that is waited for too.
    for audit in (a for a in run_state.audits.values() if a.round in (1, 2)):
        state, _ = step(state, spoken(name_of(audit.order[0]), audit)[0])
    assert missing(state) == ()


def test_a_leader_does_not_wait_for_the_verdict_of_a_verifier_that_is_away():
    run_state = grown(the_start(), 2, votes={})
    first = {step: {name_of(a.order[0]): Outcome.MATCH} for step, a in run_state.audits.items()}
    run_state = grown(run_state, 2, votes=first)
    by_round = {at: [a for a in run_state.audits.values() if a.round == at] for at in (0, 1, 2)}
    absent = by_round[0][0].order[0]

    for away, lacking in (({absent: 99}, ()), ({}, ("verdicts",))):
        state = after(replace(run_state, away=away), *without_words(run_state))
        for audit in by_round[0]:
            state, _ = step(state, a_sketch_opening(audit))
            if audit.order[0] != absent:
                state, _ = step(state, spoken(name_of(audit.order[0]), audit)[1])
        for audit in (*by_round[1], *by_round[2]):
            able = next(verifier for verifier in audit.order if verifier != absent)
            state, _ = step(state, spoken(name_of(able), audit)[0])
        assert missing(state) == lacking


def test_a_verdict_that_does_not_open_its_seal_is_not_what_a_leader_waits_for():
    run_state = grown(the_start(), 2, votes={})
    step_id = (RoundId(0), peer("nora"))
    auditor = name_of(run_state.audits[step_id].order[0])
    run_state = grown(run_state, 2, votes={step_id: {auditor: Outcome.MATCH}})

    other = spoken(auditor, run_state.audits[step_id], Outcome.MISMATCH)[1]
    state = after(run_state, *without_words(run_state), other)

    assert manifest_of(state, (), AGGREGATE).verdicts == ()
    assert missing(state) == ("verdicts",)


def test_a_leader_does_not_wait_for_words_that_have_time():
    run_state = grown(with_audits_of(7), 2, votes={})

    assert missing(after(run_state, *without_words(run_state))) == ()


def test_a_leader_leaves_out_a_seal_that_was_made_before_the_alarm_and_goes_on_waiting_for_its_verifier():
    step_id = (RoundId(0), peer("nora"))
    run_state = grown(the_start(), 2, votes={})
    order = [name_of(verifier) for verifier in run_state.audits[step_id].order]
    early = spoken(order[1], run_state.audits[step_id])[0]
    alarm = grown(run_state, 3, votes={step_id: {order[0]: Outcome.MISMATCH}})
    calm = {step: v for step, v in everyone(alarm).items() if step != step_id}
    run_state = grown(alarm, 1, votes=calm)
    calm = {step: v for step, v in everyone(run_state).items() if step != step_id}
    fresh = [spoken(name, run_state.audits[step_id])[0] for name in order[1:]]

    state = after(run_state, *everything(run_state, votes=calm), *fresh[1:], early)

    assert order[1] not in {
        name_of(s.commitment.verifier)
        for s in manifest_of(state, (), AGGREGATE).commitments
        if (s.commitment.round, s.commitment.node) == step_id
    }
    assert missing(state) == ("verdicts",)
    assert missing(step(state, fresh[0])[0]) == ()


def test_what_a_verifier_signed_before_a_dispute_does_not_evict_what_it_signs_in_it():
    step_id = (RoundId(0), peer("nora"))
    run_state = grown(the_start(), 2, votes={})
    order = [name_of(verifier) for verifier in run_state.audits[step_id].order]
    early = spoken(order[1], run_state.audits[step_id])
    disputed = grown(run_state, 3, votes={step_id: {order[0]: Outcome.MISMATCH}})
    fresh = spoken(order[1], disputed.audits[step_id])
    committed = grown(disputed, 1, votes={step_id: dict.fromkeys(order[1:], Outcome.MATCH)})
    key = (*step_id, peer(order[1]))

    assert after(disputed, fresh[0], early[0]).commitments[key] == fresh[0]
    assert after(committed, fresh[1], early[1]).verdicts[key] == fresh[1]


def test_in_a_dispute_the_last_chance_waits_for_the_whole_committee():
    step_id = (RoundId(0), peer("nora"))
    start = grown(the_start(), 2, votes={})
    order = [name_of(verifier) for verifier in start.audits[step_id].order]
    alarm = grown(start, 3, votes={step_id: {order[0]: Outcome.MISMATCH}})
    audit = alarm.audits[step_id]
    assert audit.ruling is AuditStatus.DISPUTED
    others = {step: v for step, v in everyone(alarm).items() if step != step_id}
    run_state = grown(alarm, 1, votes=others)  # one manifest more, in which the committee says nothing
    calm = {step: v for step, v in everyone(run_state).items() if step != step_id}
    state = after(run_state, *everything(run_state, votes=calm))
    assert missing(state) == ("verdicts",)

    for name in order[1:]:
        assert missing(state) == ("verdicts",)
        state, _ = step(state, spoken(name, run_state.audits[step_id])[0])

    assert missing(state) == ()


@pytest.mark.parametrize("verifier_count", [*range(1, 20), 31, 64])
def test_liars_alone_never_uphold_a_fault_however_many_verifiers_there_are(verifier_count):
    """The draw may put every liar first in the order; one honest verifier must still agree."""
    order = tuple(a_digest(f"verifier {i}") for i in range(verifier_count))
    audit = replace(an_audit_of_nothing(), order=order)

    assert quorum(len(audit.committee)) > faults_tolerated(verifier_count)
    assert len(audit.committee) <= max(5, verifier_count // 2 + 1)
    assert len(audit.committee) >= min(5, verifier_count)


# ---- proposing on a parent that is notarised, not final


def test_on_a_parent_that_is_not_final_a_manifest_carries_no_commits_and_waits_for_none():
    run_state = the_start()
    parent = the_next(run_state, NODES)
    on_top = base_history(run_state, (parent,))
    state = after(
        run_state,
        *(a_signed_commit(name, run_state) for name in NODES),
        *(a_reveal(name, on_top) for name in VERIFIERS),
    )

    assert missing(state, (parent,)) == ()
    manifest = manifest_of(state, (parent,), NO_DIGEST)

    assert manifest.commits == () and manifest.round == 1 and len(manifest.beacon_shares) == 4
    examine(state, (parent,), manifest)


def test_commits_on_a_parent_that_is_not_final_are_refused():
    run_state = the_start()
    parent = the_next(run_state, NODES)
    on_top = base_history(run_state, (parent,))

    with pytest.raises(MalformedMessage, match="parent that is not final"):
        examine(a_round(run_state), (parent,), the_next(on_top, NODES))


def test_a_list_that_its_verifier_did_not_sign_is_refused_on_a_parent_that_is_not_final_too():
    """The chain hears of a seat by its list: a forged one would keep who is gone from being replaced."""
    run_state = the_start()
    parent = the_next(run_state, NODES)
    on_top = base_history(run_state, (parent,))
    state = after(run_state, *(a_reveal(name, on_top) for name in VERIFIERS[1:]))
    honest = manifest_of(state, (parent,), NO_DIGEST)
    listed = an_inclusion_list(VERIFIERS[0], on_top, ())
    forged = replace(listed, signature=an_inclusion_list(VERIFIERS[1], on_top, ()).signature)

    examine(state, (parent,), replace(honest, inclusion_lists=(listed,)))
    with pytest.raises(PeerFault, match="signature"):
        examine(state, (parent,), replace(honest, inclusion_lists=(forged,)))


def test_ancestors_that_are_final_by_now_are_passed_over():
    run_state = the_start()
    parent = the_next(run_state, NODES)
    later = advance(run_state, parent)

    assert base_history(later, (parent,)) == later


def test_ancestors_that_the_final_chain_left_aside_end_no_process():
    """Two blocks were notarised in a row, then another first block became final."""
    run_state = the_start()
    abandoned = the_next(run_state, NODES)
    on_top = the_next(advance(run_state, abandoned))
    final = advance(run_state, the_next(run_state, NODES[:1]))

    assert base_history(final, (abandoned, on_top)) == final
    with pytest.raises(MalformedMessage):
        examine(a_round(final), (abandoned, on_top), the_next(advance(advance(run_state, abandoned), on_top)))


# ---- what an honest leader proposes passes everywhere


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_an_honest_leader_proposes_another_honest_verifier_accepts(data):
    """Also with liars about: events come in any order, some not at all, some are nonsense."""
    run_state = the_start(rounds=4)
    for _ in range(data.draw(st.integers(1, 9), "rounds")):
        outcomes = st.sampled_from(list(Outcome))
        lies = [
            message
            for audit in run_state.audits.values()
            for name in VERIFIERS
            for message in spoken(name, audit, data.draw(outcomes))
        ]
        nonsense = [
            replace(a_reveal("vera", grown(the_start(), 1)), round=run_state.round, proof=bytes(80)),
            a_signed_commit("mallory", run_state, loss_micro=3),
            a_signed_commit("nora", run_state, tokens=1),
            a_verdict("vlad", an_audit_of_nothing()),
        ]
        events = data.draw(st.permutations([*everything(run_state), *lies, *nonsense]), "order")
        events = events[: data.draw(st.integers(0, len(events)), "arrived")]
        leader = a_round(run_state)
        for event in events:
            try:
                leader, _ = step(leader, event)
            except (PeerFault, OutOfPhase):
                continue
        if not may_propose(leader, (), 1 << 40, follows=True):
            for event in everything(run_state):
                leader, _ = step(leader, event)
        manifest = manifest_of(leader, (), AGGREGATE if leader.commits else NO_DIGEST)

        examine(a_round(run_state), (), manifest)
        if run_state.round == 0:
            assert extend(run_state, a_certified(manifest)) == advance(run_state, manifest)
        run_state = advance(run_state, manifest)


@settings(max_examples=40, deadline=None)
@given(
    limits=st.sampled_from([NO_DIGEST, a_digest("limits")]),
    outcome=st.sampled_from(list(Outcome)),
    exec_class=st.sampled_from([NO_DIGEST, REFERENCE, None, a_digest("another class")]),
    is_biased=st.booleans(),
    in_reference=st.booleans(),
    distance=st.sampled_from([0, 10**12, (1 << 64) - 1]),
)
def test_whatever_an_auditor_says_an_honest_leaders_manifest_is_accepted(
    limits, outcome, exec_class, is_biased, in_reference, distance
):
    audit_rules = replace(a_spec().audit, limits=limits)
    run_state = grown(the_start(rounds=20, audit=audit_rules), 2, votes={})
    _, audit = min(run_state.audits.items())
    name = name_of(audit.order[0])
    said = a_verdict(
        name,
        audit,
        outcome,
        exec_class=audit.commit.exec_class if exec_class is None else exec_class,
        is_biased=is_biased,
        distance_ppb=distance,
    )
    committed, carried = a_commitment(said, in_reference=in_reference), []
    for _ in range(3):
        leader = after(run_state, *everything(run_state, votes={}))
        leader, _ = step(leader, committed)
        leader, _ = step(leader, said)
        manifest = manifest_of(leader, (), AGGREGATE)
        examine(a_round(run_state), (), manifest)
        carried += manifest.commitments
        run_state = advance(run_state, manifest)
    assert carried == [committed]


def an_audit_of_nothing():
    return Audit(
        round=RoundId(77), node=peer("nora"), commit=a_commit("nora", the_start()), seed=NO_DIGEST, order=()
    )


# ---- what a lying leader proposes


def proposable(rounds_before=4):
    """A manifest with commits, reveals, seals, verdicts and sketches that passes, and its history."""
    run_state = grown(the_start(), rounds_before)
    leader = after(run_state, *everything(run_state))
    manifest = manifest_of(leader, (), AGGREGATE)
    assert manifest.commits and manifest.beacon_shares and manifest.commitments
    assert manifest.verdicts and manifest.sketch_openings
    examine(a_round(run_state), (), manifest)
    return run_state, manifest


def relinked(run_state, manifest, **changes):
    """The manifest with changes and a chain digest that follows from them."""
    manifest = replace(manifest, **changes)
    commits = tuple(signed.commit for signed in manifest.commits)
    return replace(manifest, chain=next_chain(run_state.chain, commits, manifest.aggregate))


def refused(run_state, manifest, words):
    with pytest.raises(AssayError, match=words):
        examine(a_round(run_state), (), manifest)


def test_reordered_or_repeated_commits_are_refused():
    run_state, manifest = proposable()
    backwards = tuple(reversed(manifest.commits))
    twice = (manifest.commits[0], *manifest.commits)

    refused(run_state, relinked(run_state, manifest, commits=backwards), "ascend by node")
    refused(run_state, relinked(run_state, manifest, commits=twice), "ascend by node")


def test_a_commit_that_breaks_a_rule_is_refused_inside_a_proposal_too():
    run_state, manifest = proposable()
    bad = a_signed_commit(name_of(manifest.commits[0].commit.node), run_state, loss_micro=LOSS_MICRO_MAX + 1)
    forged = replace(manifest.commits[0], signature=manifest.commits[1].signature)

    refused(run_state, relinked(run_state, manifest, commits=(bad, *manifest.commits[1:])), "a loss of")
    refused(run_state, relinked(run_state, manifest, commits=(forged, *manifest.commits[1:])), "signature")


def test_a_manifest_that_leaves_out_a_commit_which_more_than_f_verifiers_list_is_refused():
    run_state, manifest = proposable()
    fewer = relinked(run_state, manifest, commits=manifest.commits[1:])
    refused(run_state, fewer, "leaves out the commits of " + manifest.commits[0].commit.node.hex()[:8])

    some, names = [name_of(one.commit.node) for one in fewer.commits], by_peer(list(VERIFIERS))
    for count in range(4):  # verifiers that list it all the same
        lists = tuple(
            an_inclusion_list(name, run_state, NODES if i < count else some) for i, name in enumerate(names)
        )
        listed = replace(fewer, inclusion_lists=lists)
        if count > 1:
            refused(run_state, listed, "leaves out the commits")
        else:
            examine(a_round(run_state), (), listed)


def test_a_manifest_of_a_paid_round_on_a_final_parent_shows_that_it_is_complete():
    run_state, manifest = proposable()
    first, *rest = manifest.inclusion_lists
    changed = replace(first.inclusion_list, nodes=b"\x00")
    forged = (replace(first, inclusion_list=changed), *rest)
    long = (an_inclusion_list(name_of(changed.verifier), run_state, (), nodes=b"\x08"), *rest)
    late = (an_inclusion_list(name_of(changed.verifier), run_state, NODES, round=RoundId(2)), *rest)

    examine(a_round(run_state), (), replace(manifest, inclusion_lists=tuple(rest)))  # three of four
    refused(run_state, replace(manifest, inclusion_lists=tuple(rest[:2])), "2 inclusion lists, expected 3")
    refused(run_state, replace(manifest, inclusion_lists=(first, first, *rest[:1])), "ascend by verifier")
    refused(run_state, replace(manifest, inclusion_lists=forged), "signature")
    refused(run_state, replace(manifest, inclusion_lists=long), "no bitmap of 3 nodes")
    refused(run_state, replace(manifest, inclusion_lists=late), "of another round")
    empty = relinked(run_state, manifest, commits=(), aggregate=NO_DIGEST)
    refused(run_state, empty, "leaves out the commits")
    refused(run_state, replace(empty, inclusion_lists=()), "without commits on a parent that is final")


def test_a_verifier_lists_what_it_holds_once_it_is_complete_or_late_and_again_if_more_comes():
    run_state = the_start()
    collect_ms, me = run_state.spec.timing.collect_ms, peer("vera")
    commits = [a_signed_commit(name, run_state) for name in NODES]
    state = after(run_state, *commits[:2])
    assert due_list(state, me, collect_ms - 1) is None
    assert due_list(a_round(run_state), me, collect_ms) is None  # nothing to list

    late = due_list(state, me, collect_ms)
    assert late == an_inclusion_list("vera", run_state, NODES[:2]).inclusion_list
    state, _ = step(state, an_inclusion_list("vera", run_state, NODES[:2]))
    assert due_list(state, me, collect_ms) is None
    state, _ = step(state, commits[2])
    assert due_list(state, me, 0) == an_inclusion_list("vera", run_state, NODES).inclusion_list


def test_a_leader_proposes_only_what_a_quorum_of_lists_allows():
    run_state = the_start()
    first, second, third = NODES
    held = [a_signed_commit(name, run_state) for name in (first, second)]
    both = [an_inclusion_list(name, run_state, (first, second)) for name in VERIFIERS[:2]]
    one, other = (an_inclusion_list(name, run_state, NODES) for name in VERIFIERS[2:])
    late_ms = run_state.spec.timing.collect_ms

    assert not may_propose(after(run_state, *held, *both), (), late_ms, follows=True)
    state = after(run_state, *held, *both, one)
    assert may_propose(state, (), late_ms, follows=True) and not lacking_commits(state)
    state, _ = step(state, other)  # now more than f list the third, so the leader goes to fetch it
    assert lacking_commits(state) == {peer(third): tuple(peer(name) for name in VERIFIERS[2:])}
    manifest = manifest_of(state, (), AGGREGATE)  # and may propose without one of these lists meanwhile
    assert len(manifest.inclusion_lists) == 3
    examine(a_round(run_state), (), manifest)

    stubborn = after(run_state, *held, one, other, an_inclusion_list(VERIFIERS[0], run_state, NODES))
    assert not may_propose(stubborn, (), 100 * late_ms, follows=True)


def test_a_list_that_comes_a_round_early_is_kept_and_counts_then():
    before = the_start()
    manifest = the_next(before, NODES)
    run_state = advance(before, manifest)
    early = an_inclusion_list("vera", run_state, NODES)

    state, _ = step(a_round(before), early)
    assert not lacking_commits(state)
    state, _ = step(state, Advanced(run_state, STATE, 0))
    assert state.inclusion_lists == {peer("vera"): early}
    with pytest.raises(OutOfPhase):
        step(state, an_inclusion_list("vera", before, NODES))


def test_reveals_are_a_quorum_of_true_ones_of_this_round():
    run_state, manifest = proposable()
    first, *rest = manifest.beacon_shares
    false = replace(first, proof=rest[0].proof)
    late = replace(first, round=RoundId(1))
    stranger = replace(first, verifier=peer("nora"))

    examine(
        a_round(run_state), (), replace(manifest, beacon_shares=manifest.beacon_shares[:3], is_partial=True)
    )
    refused(run_state, replace(manifest, beacon_shares=manifest.beacon_shares[:2]), "expected 3")
    refused(run_state, replace(manifest, beacon_shares=()), "expected 3")
    refused(run_state, replace(manifest, beacon_shares=(false, *rest)), "VRF proof")
    refused(run_state, replace(manifest, beacon_shares=(late, *rest)), "another round")
    refused(
        run_state, replace(manifest, beacon_shares=(first, *manifest.beacon_shares)), "ascend by verifier"
    )
    refused(
        run_state, replace(manifest, beacon_shares=tuple(sorted((stranger, *rest), key=str))), "beacon share"
    )


def test_reveals_before_the_first_round_are_refused():
    run_state = the_start()
    manifest = the_next(run_state, NODES)

    strange = a_reveal("vera", grown(run_state, 1))
    refused(run_state, replace(manifest, beacon_shares=(strange,)), "before there is a round")


def test_words_with_a_forged_signature_are_refused():
    run_state, manifest = proposable()
    commitment, verdict = manifest.commitments[0], manifest.verdicts[0]

    for changes in (
        {
            "commitments": (
                replace(commitment, signature=manifest.commitments[1].signature),
                *manifest.commitments[1:],
            )
        },
        {"verdicts": (replace(verdict, signature=commitment.signature), *manifest.verdicts[1:])},
    ):
        refused(run_state, replace(manifest, **changes), "signature")


def test_words_of_another_run_are_refused_although_their_verifier_signed_them():
    run_state, manifest = proposable()
    first = manifest.commitments[0]
    audit = run_state.audits[(first.commitment.round, first.commitment.node)]
    strange = a_commitment(a_verdict(name_of(audit.order[0]), audit), run_id=a_digest("other run"))

    refused(run_state, replace(manifest, commitments=(strange,)), "another run")


def test_a_seal_by_somebody_who_is_not_on_duty_is_refused():
    run_state, audit = audited()
    manifest = the_next(run_state, NODES)

    examine(
        a_round(run_state), (), replace(manifest, commitments=(spoken(name_of(audit.order[0]), audit)[0],))
    )
    for early in audit.order[1:]:
        refused(
            run_state,
            replace(manifest, commitments=(spoken(name_of(early), audit)[0],)),
            "may not commit to a verdict",
        )


def test_a_word_on_a_step_that_was_never_drawn_is_refused():
    run_state, _ = audited()
    manifest = the_next(run_state, NODES)
    commitment, verdict = spoken("vera", an_audit_of_nothing())

    refused(run_state, replace(manifest, verdicts=(verdict,)), "not audited")
    refused(run_state, replace(manifest, commitments=(commitment,)), "not audited")


def test_one_verifier_has_one_verdict_on_a_step():
    run_state, manifest = proposable()
    first = manifest.verdicts[0]

    refused(run_state, replace(manifest, verdicts=(first, first)), "verdicts must ascend")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chain": a_digest("other chain")}, "chain digest"),
        ({"parent": a_digest("other parent")}, "does not extend"),
        ({"round": RoundId(1)}, "expected round 4"),
        ({"run_id": a_digest("other run")}, "another run"),
        ({"aggregate": a_digest("other aggregate")}, "chain digest"),
        ({"aggregate": NO_DIGEST}, "chain digest"),
        ({"commits": ()}, "aggregate of no commits"),
    ],
)
def test_a_manifest_that_does_not_fit_its_place_is_refused(changes, words):
    run_state, manifest = proposable()

    refused(run_state, replace(manifest, **changes), words)


def test_a_leader_that_looks_again_at_its_ancestors_folds_none_of_them_anew():
    run_state = the_start()
    first = the_next(run_state, NODES)
    second = the_next(advance(run_state, first), ())

    found = base_history(run_state, (first, second))

    assert found.round == run_state.round + 2
    assert base_history(run_state, (first, second)) is found
    assert base_history(run_state, (first,)).parent == second.parent


# ---- joining and leaving


NEWCOMER = a_member("newcomer")


def open_run():
    return the_start(seats=len(NODES) + 1)


def an_admission(run_state, name, key=None, **changes):
    one = Admission(run_id=RUN_ID, time_s=run_state.time_s, member=NEWCOMER, verifier=peer(name))
    one = replace(one, **changes)
    return SignedAdmission(admission=one, signature=sign(a_peer_key(key or name), DOMAIN, one))


def test_a_quorums_admissions_go_into_the_next_manifest_and_seat_the_node():
    run_state = open_run()
    votes = [an_admission(run_state, name) for name in VERIFIERS]
    state = after(run_state, *everything(run_state), *votes[:2])
    assert manifest_of(state, (), AGGREGATE).admissions == ()

    state, _ = step(state, votes[2])
    manifest = manifest_of(state, (), AGGREGATE)
    assert {one.admission.verifier for one in manifest.admissions} == set(map(peer, VERIFIERS[:3]))
    examine(a_round(run_state), (), manifest)
    seated = advance(run_state, manifest)
    assert NEWCOMER.peer in seated.active
    assert step(state, Advanced(seated, STATE, 0))[0].admissions == {}


def test_a_manifest_with_a_forged_admission_is_refused():
    run_state = open_run()
    state = after(run_state, *everything(run_state), *(an_admission(run_state, n) for n in VERIFIERS[:3]))
    manifest = manifest_of(state, (), AGGREGATE)
    forged = tuple(
        replace(one, signature=an_admission(run_state, "vera", key="mallory").signature)
        for one in manifest.admissions
    )
    with pytest.raises(PeerFault, match="signature"):
        examine(a_round(run_state), (), replace(manifest, admissions=forged))


def test_an_admission_is_kept_only_as_its_verifier_signed_it_and_while_it_may_count():
    run_state = open_run()
    late = replace(run_state, time_s=ADMISSION_S)
    assert step(a_round(late), an_admission(run_state, "vera"))[0].admissions != {}
    with pytest.raises(OutOfPhase):
        step(a_round(replace(late, time_s=ADMISSION_S + 1)), an_admission(run_state, "vera"))
    for bad in (
        an_admission(run_state, "vera", member=a_member("nora")),
        an_admission(run_state, "vera", run_id=bytes(32)),
    ):
        with pytest.raises(OutOfPhase):
            step(a_round(run_state), bad)
    for bad in (an_admission(run_state, "vera", key="mallory"), an_admission(run_state, "nora")):
        with pytest.raises(PeerFault):
            step(a_round(run_state), bad)
    with pytest.raises(OutOfPhase):
        step(a_round(the_start()), an_admission(run_state, "vera"))  # no seat is free


def test_one_verifier_fills_only_its_own_part_of_the_pool_and_its_oldest_votes_make_room():
    run_state, state = open_run(), a_round(open_run())
    other = an_admission(run_state, VERIFIERS[1])
    state, _ = step(state, other)
    for number in range(ADMISSIONS_PER_VERIFIER + 1):
        vote = an_admission(run_state, VERIFIERS[0], time_s=number // 10, member=a_member(f"sybil {number}"))
        state, _ = step(state, vote)

    assert len(state.admissions) == ADMISSIONS_PER_VERIFIER + 1
    assert (peer("sybil 0"), peer(VERIFIERS[0])) not in state.admissions
    assert other in state.admissions.values()


def test_votes_for_nodes_that_stopped_asking_are_dropped_by_their_verifiers_own_clock():
    run_state, state = open_run(), a_round(open_run())
    for name in VERIFIERS[:2]:
        state, _ = step(state, an_admission(run_state, name, time_s=5))
    asks = a_member("asks")

    state, _ = step(state, an_admission(run_state, VERIFIERS[0], time_s=5 + ADMISSION_S, member=asks))
    assert len(state.admissions) == 3
    state, _ = step(state, an_admission(run_state, VERIFIERS[0], time_s=6 + ADMISSION_S, member=asks))
    assert set(state.admissions) == {(NEWCOMER.peer, peer(VERIFIERS[1])), (asks.peer, peer(VERIFIERS[0]))}


def test_a_node_that_leaves_is_in_the_next_manifest_and_no_longer_waited_for():
    run_state = the_start()
    state = after(run_state, *everything(run_state), an_attendance(run_state, AttendanceKind.LEAVE))
    manifest = manifest_of(state, (), AGGREGATE)
    assert [one.attendance.node for one in manifest.attendance] == [peer("nora")]
    examine(a_round(run_state), (), manifest)
    left = advance(run_state, manifest)
    others = [name for name in NODES if name != "nora"]
    assert missing(after(left, *everything(left, nodes=others))) == ()
    with pytest.raises(OutOfPhase):
        step(a_round(left), an_attendance(left, AttendanceKind.LEAVE))


def test_a_nodes_list_of_known_answer_tasks_is_in_the_next_manifest_and_no_second_one_is_taken():
    spec = the_start().spec
    run_state = the_start(rounds=20, audit=replace(spec.audit, known_answer_count=1))
    said = an_attendance(run_state, AttendanceKind.TASKS, tasks=a_digest("list"))
    state, _ = step(a_round(run_state), said)
    state = after(run_state, *everything(run_state), said)

    manifest = manifest_of(state, (), AGGREGATE)

    assert manifest.attendance == (said,)
    examine(a_round(run_state), (), manifest)
    announced = advance(run_state, manifest)
    assert step(state, Advanced(announced, STATE, 0))[0].attendance == {}  # used
    for root in (a_digest("list"), a_digest("another list")):
        with pytest.raises(OutOfPhase):
            step(a_round(announced), an_attendance(announced, AttendanceKind.TASKS, tasks=root))
    bare = the_start()  # which orders none
    with pytest.raises(OutOfPhase):
        step(a_round(bare), an_attendance(bare, AttendanceKind.TASKS, tasks=a_digest("list")))
    with pytest.raises(PeerFault, match="signature"):
        step(
            a_round(run_state),
            an_attendance(run_state, AttendanceKind.TASKS, key="mallory", tasks=a_digest("list")),
        )


def test_an_early_inclusion_list_over_other_members_is_not_counted_and_does_no_harm():
    """A verifier a round ahead lists over the members that its manifest seated."""
    run_state = the_start()
    wrong = an_inclusion_list("vera", run_state, NODES, nodes=bytes(3))
    state = after(run_state, wrong)
    assert due_list(after(run_state, wrong, *everything(run_state)), peer("vera"), 0) is None
    assert lacking_commits(state) == {}
