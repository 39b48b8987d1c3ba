"""The fold over the chain: who may train, what is audited, and who can be convicted by whom."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from assay.ledger.settlement.payouts import UnpaidReason, settle
from assay.participant.links import check_messages
from assay.protocol.auditing.audits import REFERENCE
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Outcome
from assay.protocol.permitted import awaited, may_open_verdict
from assay.protocol.run_state import VerifierRecord, next_chain, start
from assay.protocol.state_transition import advance
from assay.protocol.types import Digest, PeerId
from assay.testing.members import NODES, RUN_ID, VERIFIERS, a_digest
from assay.testing.messages import UNSIGNED, a_commit, a_verdict
from assay.testing.run import a_manifest, a_spec, a_start, grow

NODE = NODES[0]
STEP = (0, NODE)


def audited(**changes):
    """A history in which the steps of round 0 are drawn; the verifiers of NODE's audit in their order."""
    run_state = grow(a_start(**changes), 2)
    return run_state, run_state.audits[STEP].order


# ---- training ----


def test_every_commit_of_a_final_round_counts_and_its_momentum_is_known():
    run_state = grow(a_start(), 3)

    record = run_state.nodes[NODE]
    assert record.accepted == 3
    assert record.momentum == a_commit(2, NODE).momentum_after
    assert run_state.steps == {(r, n): run_state.spec.tokens_per_step for r in range(3) for n in NODES}


def test_a_run_trains_then_closes_audits_and_disputes_then_is_complete():
    spec = a_spec(rounds=4)
    run_state = grow(start(spec, RUN_ID), 4)
    assert not run_state.is_training and run_state.active == () and not run_state.is_complete

    run_state = grow(run_state, spec.ordered.last_round + 1 - 4)

    assert spec.ordered.last_round == 3 + 6 + 3
    assert run_state.is_complete
    assert not any(audit.is_open for audit in run_state.audits.values())


def test_the_chain_digest_binds_nodes_updates_order_and_aggregate():
    first, second = a_commit(0, NODES[0]), a_commit(0, NODES[1])
    base = next_chain(Digest(bytes(32)), (first, second), Digest(bytes(32)))

    others = [
        next_chain(Digest(b"\1" * 32), (first, second), Digest(bytes(32))),
        next_chain(Digest(bytes(32)), (second, first), Digest(bytes(32))),
        next_chain(Digest(bytes(32)), (first,), Digest(bytes(32))),
        next_chain(Digest(bytes(32)), (first, second), Digest(b"\1" * 32)),
        next_chain(Digest(bytes(32)), (replace(first, update=second.update), second), Digest(bytes(32))),
    ]

    assert len({base, *others}) == 6


def test_a_manifest_out_of_turn_stops_the_fold():
    run_state = a_start()
    manifest = a_manifest(run_state)

    for wrong in (replace(manifest, round=1), replace(manifest, parent=Digest(bytes(32)))):
        with pytest.raises(AssertionError):
            advance(run_state, wrong)
    assert advance(run_state, manifest).round == 1
    assert run_state.round == 0  # the old one is not modified


# ---- draws ----


def test_all_parties_draw_alike_and_another_manifest_draws_otherwise():
    first, again = grow(a_start(), 2), grow(a_start(), 2)
    other = grow(advance(a_start(), a_manifest(a_start(), nodes=NODES[1:])), 1)

    assert first.audits == again.audits
    assert first.audits[(0, NODES[1])].seed != other.audits[(0, NODES[1])].seed


def test_a_newcomer_is_always_drawn_and_a_proven_node_less_often():
    run_state = a_start(rounds=60, probation=2, floor_ppm=100_000)
    drawn = []
    for _ in range(60):
        new = grow(run_state, 1, {step: {a.order[0]: Outcome.MATCH} for step, a in run_state.audits.items()})
        drawn.append(len(set(new.audits) - set(run_state.audits)))
        run_state = new

    assert drawn[1:6] == [3] * 5  # until two audits of each are clean
    assert 0 < sum(drawn[20:]) < 3 * 40 // 2


def test_the_draw_of_a_round_falls_only_with_the_manifest_after_it():
    run_state = grow(a_start(), 1)
    assert run_state.audits == {}

    assert set(grow(run_state, 1).audits) == {(0, node) for node in NODES}


# ---- what is forgotten ----


def test_audits_steps_and_reveals_are_kept_until_their_epoch_is_settled_and_then_forgotten():
    spec = a_spec(rounds=8)
    run_state = start(spec, RUN_ID)
    kept = {}
    while not run_state.is_complete:
        run_state = grow(run_state, 1)
        kept[int(run_state.round) - 1] = {step[0] // 4 for step in run_state.steps}

    assert spec.ordered.settled_at(0) == 3 + 6 + 3
    assert 0 in kept[spec.ordered.settled_at(0)]
    assert 0 in kept[spec.ordered.settled_at(0) + 1]  # one manifest of grace
    assert 0 not in kept[spec.ordered.settled_at(0) + 2]
    assert 1 in kept[spec.ordered.settled_at(1)]


def test_every_audit_of_an_epoch_is_ruled_when_the_epoch_settles():
    spec = a_spec(rounds=8)
    run_state = start(spec, RUN_ID)
    for _ in range(spec.ordered.settled_at(0) + 1):
        votes = {step: {a.order[3]: Outcome.MISMATCH} for step, a in run_state.audits.items()}
        run_state = grow(run_state, 1, votes)

    first = [audit for step, audit in run_state.audits.items() if step[0] < 4]
    assert first
    assert not any(audit.is_open for audit in first)


# ---- drift between execution classes ----


def leaning_history(leaning):
    """Rounds in which every auditor of another class says MATCH, and these say that NODE leans."""
    run_state = a_start(rounds=40, limits=Digest(b"l" * 32), probation=1)
    cleans = []
    for _ in range(20):
        votes = {
            step: {
                verifier: (
                    Outcome.MATCH,
                    {
                        "exec_class": REFERENCE,
                        "is_biased": audit.node == NODE and verifier in leaning,
                    },
                )
                for verifier in VERIFIERS
            }
            for step, audit in run_state.audits.items()
        }
        run_state = grow(run_state, 1, votes)
        cleans.append((run_state.nodes[NODE].clean, run_state.nodes[NODES[1]].clean))
    return run_state, cleans


def test_a_node_that_more_than_f_verifiers_see_leaning_is_on_probation_again():
    none, before = leaning_history(())
    assert all(later >= earlier for (earlier, _), (later, _) in pairwise(before)) and before[-1][0] > 0
    assert none.nodes[NODE].is_biased == frozenset()

    run_state, cleans = leaning_history(VERIFIERS)

    assert any(later < earlier for (earlier, _), (later, _) in pairwise(cleans))
    assert all(later >= earlier for (_, earlier), (_, later) in pairwise(cleans))
    assert not run_state.nodes[NODE].banned
    assert run_state.suspect_steps and {node for _, node in run_state.suspect_steps} == {NODE}
    assert not none.suspect_steps


def test_a_node_found_leaning_is_unpaid_until_it_has_passed_probation_and_its_earlier_steps_are_paid():
    probation = 2
    run_state = grow(a_start(probation=probation), 1)
    record = replace(run_state.nodes[NODE], clean=0, is_suspect=True)
    run_state = replace(run_state, nodes={**run_state.nodes, NODE: record})
    cleared, table = -1, None
    while table is None:
        votes = {step: dict.fromkeys(VERIFIERS, Outcome.MATCH) for step in run_state.audits}
        run_state = grow(run_state, 1, votes)
        if cleared < 0 and not run_state.nodes[NODE].is_suspect:
            assert run_state.nodes[NODE].clean == probation
            cleared = int(run_state.round)
        ripe = run_state.calendar.ripe_at(int(run_state.round) - 1)
        table = None if ripe is None else settle(run_state, ripe)

    assert cleared > 1
    unpaid = {(one.round, one.node): one.reason for one in table.unpaid}
    last = min(cleared, run_state.spec.money.epoch_rounds)
    assert unpaid == dict.fromkeys([(n, NODE) for n in range(1, last)], UnpaidReason.BIASED)


def test_one_liar_of_four_puts_nobody_on_probation():
    heard: set[PeerId] = set()
    for liar in VERIFIERS:  # whom the draw sends to NODE depends on the run
        run_state, cleans = leaning_history((liar,))
        assert run_state.nodes[NODE].is_biased <= {liar}
        assert all(later >= earlier for (earlier, _), (later, _) in pairwise(cleans))
        heard |= run_state.nodes[NODE].is_biased

    assert heard


def test_a_new_machine_starts_without_the_record_of_the_old_one_but_with_its_bias_reports():
    run_state = grow(a_start(), 3, {STEP: dict.fromkeys(VERIFIERS, Outcome.MATCH)})
    record = replace(run_state.nodes[NODE], clean=7, is_biased=frozenset(VERIFIERS[:1]))
    run_state = replace(run_state, nodes={**run_state.nodes, NODE: record})
    manifest = a_manifest(run_state, nodes=[NODE])
    moved = replace(manifest.commits[0].commit, exec_class=Digest(b"n" * 32))

    same = advance(run_state, manifest).nodes[NODE]
    other = advance(run_state, replace(manifest, commits=(replace(manifest.commits[0], commit=moved),)))

    assert (same.clean, same.is_biased) == (7, frozenset(VERIFIERS[:1]))
    assert (other.nodes[NODE].clean, other.nodes[NODE].is_biased) == (0, frozenset(VERIFIERS[:1]))


@pytest.mark.parametrize(
    ("outcome", "exec_class", "is_taken"),
    [
        (Outcome.MATCH, REFERENCE, True),
        (Outcome.MATCH, a_digest("class"), False),  # of the node's own class: there every bit is equal
        (Outcome.MISMATCH, REFERENCE, False),
        (Outcome.BORDERLINE, REFERENCE, False),
    ],
)
def test_only_a_match_between_classes_can_say_that_a_node_leans(outcome, exec_class, is_taken):
    run_state = grow(a_start(limits=Digest(b"l" * 32)), 2)
    audit = run_state.audits[STEP]
    votes = {STEP: {audit.order[0]: (outcome, {"exec_class": exec_class, "is_biased": True})}}
    while run_state.audits[STEP].open_from != run_state.round:
        run_state = grow(run_state, 1, votes)
    said = a_verdict(audit, audit.order[0], outcome, exec_class=exec_class, is_biased=True)
    manifest = a_manifest(run_state, verdicts=(UNSIGNED.verdict(said),))

    assert may_open_verdict(run_state, run_state.audits[STEP], said) is is_taken
    if is_taken:
        check_messages(run_state, manifest)
    else:
        with pytest.raises(MalformedMessage, match="is biased"):
            check_messages(run_state, manifest)


def test_each_share_that_a_verifier_misses_in_a_row_doubles_its_pause_from_16_rounds_to_256():
    run_state, pauses = grow(start(a_spec(), RUN_ID), 1), []
    for _ in range(6):
        run_state = grow(run_state, 1)
        pauses.append({run_state.away[peer] - int(run_state.round) for peer in VERIFIERS})

    assert pauses == [{16}, {32}, {64}, {128}, {256}, {256}]


def test_a_verifier_that_pauses_is_awaited_again_in_the_round_in_which_its_pause_ends():
    run_state = replace(grow(start(a_spec(), RUN_ID), 3), away={VERIFIERS[0]: 4})
    assert run_state.beacon == VERIFIERS[1:]
    assert replace(run_state, away={VERIFIERS[0]: 3}).beacon == VERIFIERS
    assert replace(run_state, away=dict.fromkeys(VERIFIERS[:2], 4)).beacon == VERIFIERS  # no quorum is left


def test_a_verifier_at_fault_is_waited_for_as_leader_no_more_while_more_than_f_others_are_there():
    run_state = grow(start(a_spec(), RUN_ID), 3)

    def leaders(at_fault, away=()):
        records = dict.fromkeys(at_fault, VerifierRecord(fault_round=1))
        found = replace(run_state, verifiers={**run_state.verifiers, **records}, away=dict.fromkeys(away, 9))
        assert set(found.beacon) == set(VERIFIERS) - set(away)  # whose shares are due is another matter
        return found.leaders

    assert leaders(()) == VERIFIERS
    assert leaders(VERIFIERS[:1]) == VERIFIERS[1:]
    assert leaders(VERIFIERS[:1], VERIFIERS[3:]) == VERIFIERS[1:3]
    assert leaders(VERIFIERS[:2]) == VERIFIERS[2:]
    assert leaders(VERIFIERS[:2], VERIFIERS[3:]) == VERIFIERS[:3]  # the one that is left may be dead
    assert leaders(VERIFIERS) == VERIFIERS


def test_a_run_seats_no_more_than_1024_nodes_in_all_however_many_have_left():
    run_state = start(replace(a_spec(), seats=len(NODES) + 2), RUN_ID)
    gone = replace(run_state.nodes[NODES[0]], fault_round=0)
    assert run_state.free_seats == 2
    for count, free in ((1023, 1), (1024, 0)):
        left = {PeerId(n.to_bytes(32, "big")): gone for n in range(count - len(NODES))}
        assert replace(run_state, nodes={**run_state.nodes, **left}).free_seats == free


def test_an_audit_is_awaited_in_the_last_two_manifests_that_may_bind_its_auditors():
    run_state, awaited_rounds = grow(start(a_spec(audit_rounds=6), RUN_ID), 2), {}
    for _ in range(5):
        awaited_rounds[int(run_state.round)] = [int(round_id) for round_id, _ in awaited(run_state)]
        run_state = grow(run_state, 1)

    last, one = [0] * len(NODES), [1] * len(NODES)
    assert awaited_rounds == {2: [], 3: [], 4: last, 5: [*last, *one], 6: [*one, *(2 for _ in NODES)]}
