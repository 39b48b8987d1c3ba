"""Combining a round: rule, standing and wire in one place, the same for whoever restarts or checks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from assay.protocol.errors import MalformedMessage
from assay.protocol.run_state import start
from assay.protocol.update_rule import BLOCK_SIZE, Wire
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.signed import a_spec
from assay.training.codec.wire import Update
from assay.training.layout import layout_of
from assay.training.optimiser.aggregate import decode_round, decode_step
from assay.verifier.aggregation.combine import combine, rounds_behind, rounds_remembered, tolerated
from assay.verifier.aggregation.registry import DECODED, decoded_rule_of, rule_of
from assay.verifier.aggregation.reputation import Reputation

PEERS = sorted(peer(name) for name in ("nora", "nils", "mallory"))
SPEC = a_spec(rounds=100)
LAYOUT = layout_of(SPEC.model)
K = SPEC.rule.compress.k


def named(name: str, f: int):
    aggregation = replace(SPEC.rule.aggregation, name=name, f=f)
    return replace(SPEC, rule=replace(SPEC.rule, aggregation=aggregation))


def with_signs(spec):
    aggregation = replace(spec.rule.aggregation, wire=Wire.SIGNS)
    return replace(spec, rule=replace(spec.rule, aggregation=aggregation))


def some_updates(round_id: int, *, senders=PEERS) -> dict:
    """Updates whose signs mostly repeat from round to round, as honest ones do; the last sender lies."""
    direction = np.where(np.random.default_rng(7).random((LAYOUT.blocks, BLOCK_SIZE)) < 0.5, -1, 1)
    updates = {}
    for place, sender in enumerate(senders):
        rng = np.random.default_rng(1000 * round_id + place)
        order = np.argsort(rng.random((LAYOUT.blocks, 256)), axis=1)[:, :K]
        index = np.sort(order, axis=1)  # of few places, so that they meet again
        sign = np.take_along_axis(direction, index, axis=1) * (-1 if sender == PEERS[-1] else 1)
        updates[sender] = Update(np.arange(LAYOUT.blocks), index, sign.astype(np.int8))
    return updates


def test_standing_rebuilt_from_the_last_rounds_is_that_of_whoever_saw_all_of_them():
    spec = named("reputation+mean", 1)
    rounds = [some_updates(round_id) for round_id in range(rounds_behind(spec) + 7)]
    whole = Reputation()
    for updates in rounds:
        whole = combine(spec, LAYOUT, a_digest("parent"), 1, whole, updates).reputation
    rebuilt = Reputation()
    for updates in rounds[-rounds_behind(spec) :]:
        rebuilt = combine(spec, LAYOUT, a_digest("parent"), 1, rebuilt, updates).reputation

    now = some_updates(99)
    ends = [combine(spec, LAYOUT, a_digest("parent"), 1, reputation, now) for reputation in (whole, rebuilt)]
    assert ends[0].body == ends[1].body
    for one, other in zip(ends[0].reputation.window, ends[1].reputation.window, strict=True):
        assert one.peers == other.peers
        assert np.array_equal(one.net_NN, other.net_NN)


def test_rounds_that_send_everything_are_compared_with_one_round_and_others_with_the_last_few():
    spec = named("reputation+mean", 1)
    dense = replace(spec, rule=replace(spec.rule, compress=replace(spec.rule.compress, k=BLOCK_SIZE)))
    assert rounds_remembered(dense) == dense.rule.fragments == 1
    assert rounds_remembered(spec) > rounds_remembered(dense)
    assert rounds_behind(spec) - rounds_behind(dense) == rounds_remembered(spec) - rounds_remembered(dense)
    assert rounds_behind(named("mean", 0)) == 0


def test_one_round_less_is_not_enough_to_rebuild_it():
    spec = named("reputation+mean", 1)
    rounds = [some_updates(round_id) for round_id in range(rounds_behind(spec) + 7)]
    ends = []
    for seen in (rounds, rounds[-rounds_behind(spec) + 2 :]):
        reputation = Reputation()
        for updates in seen:
            reputation = combine(spec, LAYOUT, a_digest("parent"), 1, reputation, updates).reputation
        ends.append(reputation)

    assert not all(
        np.array_equal(a.net_NN, b.net_NN) for a, b in zip(ends[0].window, ends[1].window, strict=False)
    )


def test_who_contradicts_the_others_is_not_heard_after_some_rounds():
    spec, reputation = named("reputation+mean", 1), Reputation()
    for round_id in range(12):
        reputation = combine(
            spec, LAYOUT, a_digest("parent"), 1, reputation, some_updates(round_id)
        ).reputation
    now = some_updates(12)

    body = combine(spec, LAYOUT, a_digest("parent"), 1, reputation, now).body

    honest = {sender: update for sender, update in now.items() if sender != PEERS[-1]}
    assert body == combine(named("mean", 0), LAYOUT, a_digest("parent"), 0, Reputation(), honest).body


@pytest.mark.parametrize(
    ("name", "count"),
    [("reputation+mean", 2), ("centered-clip", 2), ("trimmed-mean", 1), ("mean", 2), ("normalize+mean", 1)],
)
def test_a_rule_with_too_few_honest_nodes_moves_nothing_and_says_why(name, count):
    updates = some_updates(0, senders=PEERS[:count])

    combined = combine(named(name, 1), LAYOUT, a_digest("parent"), 1, Reputation(), updates)

    assert combined.body == b""
    assert "f = 1" in combined.refusal


def test_a_mean_of_whom_reputation_admits_needs_no_majority_of_its_own():
    updates = some_updates(0)
    rule = rule_of("reputation+mean", 1, bytes(32))

    assert len(rule(dict(list(updates.items())[:2]), LAYOUT.blocks).value_T)


def test_a_round_without_commits_leaves_standing_as_it_is():
    spec = named("reputation+mean", 1)
    reputation = combine(spec, LAYOUT, a_digest("parent"), 1, Reputation(), some_updates(0)).reputation

    combined = combine(spec, LAYOUT, a_digest("parent"), 1, reputation, {})

    assert combined.body == b""
    assert combined.reputation is reputation


def test_the_order_in_which_updates_arrive_does_not_matter():
    spec, updates = named("reputation+mean", 1), some_updates(3)
    shuffled = dict(reversed(list(updates.items())))

    bodies = [
        combine(spec, LAYOUT, a_digest("parent"), 1, Reputation(), one).body for one in (updates, shuffled)
    ]

    assert bodies[0] == bodies[1]
    aggregate = decode_round(spec.rule, bodies[0], LAYOUT.blocks)
    at = (aggregate.blocks * BLOCK_SIZE + aggregate.index_T).tolist()
    assert all(before < after for before, after in pairwise(at))


def test_signs_move_what_the_coefficients_would_have_moved():
    spec, updates = named("reputation+mean", 1), some_updates(3)
    signed = with_signs(spec)

    bodies = [
        combine(one, LAYOUT, a_digest("parent"), 1, Reputation(), updates).body for one in (spec, signed)
    ]

    steps = [
        decode_step(one.rule, body, LAYOUT.blocks) for one, body in zip((spec, signed), bodies, strict=True)
    ]
    assert bodies[0] != bodies[1]
    assert np.array_equal(*steps) and steps[0].any()
    with pytest.raises(MalformedMessage):
        decode_step(signed.rule, bodies[0], LAYOUT.blocks)
    with pytest.raises(MalformedMessage):
        decode_step(spec.rule, bodies[1], LAYOUT.blocks)


@pytest.mark.parametrize("name", DECODED)
def test_a_decoded_rule_in_a_run_is_the_one_of_the_simulation_and_refuses_too_few(name):
    spec, updates = with_signs(named(name, 1)), some_updates(3)

    body = combine(spec, LAYOUT, a_digest("parent"), 1, Reputation(), updates).body

    assert np.array_equal(
        decode_step(spec.rule, body, LAYOUT.blocks), decoded_rule_of(name, 1)(updates, LAYOUT.blocks)
    )
    few = combine(spec, LAYOUT, a_digest("parent"), 1, Reputation(), dict(list(updates.items())[:2]))
    assert few.body == b"" and few.refusal


def test_a_barred_node_is_a_liar_less_to_reckon_with_but_never_less_than_none():
    run_state = start(named("reputation+mean", 1), RUN_ID)
    assert tolerated(run_state) == 1
    banned = {p: replace(record, fault_round=0) for p, record in run_state.nodes.items() if p != PEERS[0]}

    assert tolerated(replace(run_state, nodes={**run_state.nodes, PEERS[1]: banned[PEERS[1]]})) == 0
    assert tolerated(replace(run_state, nodes={**run_state.nodes, **banned})) == 0


def test_where_seats_are_free_nobody_lowers_f_by_sending_in_nodes_to_be_banned():
    spec = named("trimmed-mean", 1)
    run_state = start(replace(spec, seats=len(spec.nodes) + 1), RUN_ID)
    banned = {one: replace(run_state.nodes[one], fault_round=0) for one in PEERS[:1]}
    assert tolerated(replace(run_state, nodes={**run_state.nodes, **banned})) == 1
