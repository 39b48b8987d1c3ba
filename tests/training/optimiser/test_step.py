"""A round of any method: all parties hold the same bits, nothing is lost, nodes go on from their own."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST
from assay.protocol.update_rule import BLOCK_SIZE, PPM, Outer, Transform, Values, Wire
from assay.testing.members import RUN_ID, peer
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule
from assay.training.codec.contribution import contribution_bytes_max, decode_contribution
from assay.training.fragments import fragment_blocks, fragment_positions
from assay.training.layout import layout_of, to_blocks
from assay.training.optimiser.aggregate import encode_round
from assay.training.optimiser.inner import InnerState, fresh
from assay.training.optimiser.momentum_root import zero_root
from assay.training.optimiser.node_state import NodeState, commit, start_private
from assay.training.optimiser.outer import OuterState, apply, public_digest, start_public
from assay.training.optimiser.step import Work, begin, compress, encode, local
from assay.verifier.aggregation.registry import rule_of

LAYOUT = layout_of(a_spec().model)
SIZE, BLOCKS = LAYOUT.parameters, LAYOUT.blocks
NORA, NILS = peer("nora"), peer("nils")
ROUNDS = 6

CASES = {
    "demo": ("demo", {}),
    "demo, no transform": ("demo", {"transform": Transform.NONE}),
    "demo, mean sizes": ("demo", {"values": Values.SIGN_MEAN, "outer": Outer.SGD, "lr_nano": 10**9}),
    "demo, rank 2": ("demo", {"rank": 2, "outer": Outer.SGD, "lr_nano": 10**9}),
    "sparseloco": ("sparseloco", {}),
    "sparseloco, int8": ("sparseloco", {"values": Values.INT8}),
    "sparseloco, e3m0 of the transform": ("sparseloco", {"values": Values.E3M0, "transform": Transform.DCT}),
    "sparseloco, moments dropped": ("sparseloco", {"keeps_moments": False}),
    "diloco": ("diloco", {}),
    "muloco": ("muloco", {"wire": Wire.MESSAGE}),
    "diloco, bytes down": ("diloco", {"wire": Wire.MESSAGE}),
    "diloco, rank 2 both ways": ("diloco", {"rank": 2, "feedback_micro": PPM, "wire": Wire.MESSAGE}),
    "diloco, int16": ("diloco", {"values": Values.INT16}),
    "diloco, 2 bits and feedback": ("diloco", {"values": Values.TWO_BIT, "feedback_micro": 900_000}),
    "diloco, rank 2 and feedback": ("diloco", {"rank": 2, "feedback_micro": PPM}),
    "diloco, reads late": ("diloco", {"read_lag": 2}),
    "diloco, applies late": ("diloco", {"apply_lag": 2, "momentum_micro": 200_000}),
    "streaming": ("streaming-diloco", {}),
    "streaming, at once": ("streaming-diloco", {"fragments": 2, "apply_lag": 0}),
    "streaming, 3 rounds late": ("streaming-diloco", {"apply_lag": 3, "feedback_micro": 900_000}),
    "streaming, rank 1": ("streaming-diloco", {"rank": 1, "fragments": 2}),
    "elastic": ("diloco", {"merge_ppm": 900_000, "outer": Outer.SGD, "lr_nano": 10**9}),
    "fedavg": ("fedavg", {}),
    "fedprox": ("fedavg", {"proximal_micro": 10_000}),
    "fedadam": ("fedavg", {"outer": Outer.ADAM}),
    "fedyogi": ("fedavg", {"outer": Outer.YOGI}),
}
every_method = pytest.mark.parametrize("name", CASES)


def a_run(name: str, **more) -> RunSpec:
    method, choices = CASES[name]
    steps = {} if method == "demo" else {"steps": 3, "segment": 2}
    rule = a_rule(method, **{**steps, "inner_lr_nano": 10_000_000, **choices, **more})
    return a_spec(rule=rule, rounds=ROUNDS)


def some(seed: int, scale: float = 1.0, size: int = SIZE) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def a_gradient(theta: np.ndarray, tokens: np.ndarray) -> tuple[float, np.ndarray]:
    """Pulls to a point that depends on the tokens."""
    aim = some(int(tokens.sum()) % 997, 0.1)
    return float(np.mean((theta - aim) ** 2)), theta - aim


def tokens_of(spec: RunSpec, node: int, round_id: int) -> np.ndarray:
    count = spec.rule.sequences_per_round
    return np.random.default_rng(1000 * node + round_id).integers(0, 256, (count, 17))


def mean_of(spec: RunSpec, messages: dict, round_id: int) -> bytes:
    """What a verifier makes of these bytes."""
    named = spec.rule.aggregation
    updates = {node: decode_contribution(spec, LAYOUT, round_id, body) for node, body in messages.items()}
    rule = rule_of(named.name, named.f, bytes(32))
    return encode_round(spec.rule, rule(updates, BLOCKS), BLOCKS)


def a_step(
    spec: RunSpec, states: list[OuterState], private: NodeState, node: int
) -> tuple[Work, NodeState, bytes]:
    """One node's round on top of these public states."""
    round_id = len(states) - 1
    theta = states[max(round_id - spec.rule.read_lag, 0)].theta_P
    work = local(spec, LAYOUT, theta, private, tokens_of(spec, node, round_id), round_id, a_gradient)
    return work, *encode(spec, LAYOUT, round_id, private, work)


def play(spec: RunSpec, rounds: int = ROUNDS) -> list[OuterState]:
    """Two nodes for some rounds; the public states that follow."""
    states = [start_public(spec, some(0, 0.1))]
    privates = [start_private(LAYOUT), start_private(LAYOUT)]
    for round_id in range(rounds):
        messages = {}
        for number, node in enumerate((NORA, NILS)):
            _, privates[number], messages[node] = a_step(spec, states, privates[number], number)
        states.append(apply(spec, LAYOUT, states[-1], round_id, mean_of(spec, messages, round_id)))
    return states


def dense(update, shape: tuple[int, int]) -> np.ndarray:
    """What a receiver of an update with amplitudes reconstructs, block by block."""
    out = np.zeros(shape)
    rows = update.blocks_B[:, None]
    out[rows, update.index_BK] = np.ldexp(update.value_BK.astype(float), update.exponent_B[:, None])
    return out


# ---- everybody


@pytest.mark.slow
@every_method
def test_two_parties_that_hear_the_nodes_in_any_order_hold_the_same_bits(name):
    spec = a_run(name)
    mine = theirs = start_public(spec, some(0, 0.1))
    states, privates = [mine], [start_private(LAYOUT), start_private(LAYOUT)]
    for round_id in range(4):
        sent = []
        for number in range(2):
            _, privates[number], body = a_step(spec, states, privates[number], number)
            assert len(body) <= contribution_bytes_max(spec.rule, BLOCKS)
            sent.append(body)
        mine = apply(
            spec, LAYOUT, mine, round_id, mean_of(spec, dict(zip((NORA, NILS), sent, strict=True)), round_id)
        )
        back = {NILS: sent[1], NORA: sent[0]}
        theirs = apply(spec, LAYOUT, theirs, round_id, mean_of(spec, back, round_id))
        states.append(mine)
        assert public_digest(mine) == public_digest(theirs)

    assert np.isfinite(mine.theta_P).all()
    assert not np.array_equal(mine.theta_P, states[0].theta_P)


@pytest.mark.slow
@every_method
def test_a_round_repeated_is_the_same_bytes_and_the_same_private_state(name):
    spec = a_run(name)
    states = play(spec, 2)
    before = NodeState(some(5, 0.01, BLOCKS * BLOCK_SIZE).reshape(BLOCKS, -1), None, 2)
    if spec.rule.carries_inner:
        state = fresh(spec.rule.local, some(6, 0.1))
        before = replace(
            before, inner=replace(state, moments=tuple(np.abs(some(7)) for _ in state.moments), count=6)
        )

    results = [a_step(spec, states, before, 0) for _ in range(2)]

    (_, one, body), (_, other, again) = results
    assert body == again
    assert commit(RUN_ID, spec.rule, LAYOUT, one) == commit(RUN_ID, spec.rule, LAYOUT, other)
    assert one.base == 3


@every_method
def test_a_message_speaks_only_of_what_is_synced_in_its_round(name):
    spec = a_run(name)
    states, private = play(spec, 2), start_private(LAYOUT)

    _, _, body = a_step(spec, states, private, 0)

    update = decode_contribution(spec, LAYOUT, 2, body)
    parts = fragment_blocks(LAYOUT, spec.rule.fragments)
    assert len(update.blocks_B)
    assert set(parts[update.blocks_B]) == {2 % spec.rule.fragments}


# ---- what is sent and what stays


with_amplitudes = [name for name in CASES if a_run(name).rule.compress.values is not Values.SIGN]


@pytest.mark.parametrize("name", with_amplitudes)
def test_what_was_sent_and_what_stays_are_what_there_was(name):
    """q + E' = beta E + x to one rounding of float32, in synced blocks; others stay as they are."""
    spec = a_run(name)
    beta = np.float32(spec.rule.compress.feedback_micro / PPM)
    x = some(1, 0.01, BLOCKS * BLOCK_SIZE).reshape(BLOCKS, -1)
    before = some(2, 0.01, BLOCKS * BLOCK_SIZE).reshape(BLOCKS, -1)
    if not spec.rule.compress.keeps_error:
        before[:] = 0
    synced = fragment_blocks(LAYOUT, spec.rule.fragments) == 1 % spec.rule.fragments

    moved = compress(spec, LAYOUT, 1, 1, before, x)

    _, body = encode(spec, LAYOUT, 1, NodeState(before, None, 1), Work(x, 0.0, (a_state(),)))
    update = decode_contribution(spec, LAYOUT, 1, body)
    sent = dense(update, x.shape)
    assert np.array_equal(sent, dense(moved.sent, x.shape))  # the wire changes nothing
    assert not sent[~synced].any()
    assert np.array_equal(moved.after_BC[~synced], before[~synced])
    if not spec.rule.compress.keeps_error:
        assert not moved.after_BC.any()
        return
    there_was = (before * beta + x)[synced].astype(float)
    there_is = moved.after_BC[synced].astype(float) + sent[synced]
    assert np.all(np.abs(there_is - there_was) <= np.spacing(np.abs(there_was).max().astype(np.float32)))
    assert np.linalg.norm(moved.after_BC[synced]) < np.linalg.norm(there_was)


def a_state() -> InnerState:
    return InnerState(some(1), (some(2), np.abs(some(3))), 7)


@pytest.mark.parametrize("name", [n for n in CASES if not a_run(n).rule.compress.keeps_error])
def test_a_rule_that_keeps_no_error_has_none_after_any_round(name):
    spec = a_run(name)
    states, private = [start_public(spec, some(0, 0.1))], start_private(LAYOUT)
    for round_id in range(3):
        _, private, body = a_step(spec, states, private, 0)
        states.append(apply(spec, LAYOUT, states[-1], round_id, mean_of(spec, {NORA: body}, round_id)))
        assert not private.error_NC.any()


def test_the_distance_that_enters_is_from_the_networks_parameters_to_the_nodes_last():
    spec = a_run("diloco, int16", feedback_micro=0)
    states = [start_public(spec, some(0, 0.1))]

    work, _, _ = a_step(spec, states, start_private(LAYOUT), 0)

    distance = to_blocks(LAYOUT, states[0].theta_P - work.ends[-1].theta_P).reshape(BLOCKS, -1)
    assert np.array_equal(work.x_NC, distance)
    assert len(work.ends) == spec.rule.segments == 2
    assert [end.count for end in work.ends] == [2, 3]


def test_reading_late_starts_from_the_parameters_of_that_many_rounds_ago():
    late, now = a_run("diloco, reads late"), a_run("diloco")
    states = play(now, 3)

    work, _, _ = a_step(late, states, start_private(LAYOUT), 0)
    private = start_private(LAYOUT)
    same = local(now, LAYOUT, states[1].theta_P, private, tokens_of(now, 0, 3), 3, a_gradient)

    assert np.array_equal(work.x_NC, same.x_NC)


# ---- where a round begins


def carrying(theta: np.ndarray, round_id: int) -> NodeState:
    return NodeState(
        np.zeros((BLOCKS, BLOCK_SIZE), np.float32),
        InnerState(theta, (some(2), np.abs(some(3))), 9),
        round_id + 1,
    )


def test_a_node_without_a_past_begins_fresh_at_the_networks_parameters():
    theta = some(1)
    for name in ("sparseloco", "streaming", "fedavg"):
        state = begin(a_run(name), LAYOUT, theta, start_private(LAYOUT), 3)
        assert np.array_equal(state.theta_P, theta)
        assert state.count == 0
        assert not any(moment.any() for moment in state.moments)


def test_moments_live_on_at_the_networks_parameters_where_the_rule_keeps_them():
    theta, private = some(1), carrying(some(4), 2)

    kept = begin(a_run("sparseloco"), LAYOUT, theta, private, 3)
    dropped = begin(a_run("sparseloco, moments dropped"), LAYOUT, theta, replace(private, inner=None), 3)

    assert np.array_equal(kept.theta_P, theta)
    assert kept.count == 9
    assert all(a is b for a, b in zip(kept.moments, private.inner.moments, strict=True))
    assert dropped.count == 0


@pytest.mark.parametrize("merge_ppm", [0, 250_000, PPM])
@pytest.mark.parametrize(("lag", "applied"), [(0, 2), (1, 1), (3, 3)])
def test_own_parameters_live_on_and_the_fragment_that_was_applied_is_merged(lag, applied, merge_ppm):
    """After the step of round 2, the aggregate of round 2 - lag was applied; round 3 begins."""
    spec = a_run("streaming", merge_ppm=merge_ppm, apply_lag=lag)
    mine, theirs = some(1), some(2)

    begun = begin(spec, LAYOUT, theirs, carrying(mine, 2), 3)

    if lag > 2:  # nothing is due before round 3
        assert np.array_equal(begun.theta_P, mine)
        return
    own = np.float32(merge_ppm / PPM)
    mixed = theirs * (np.float32(1) - own) + mine * own
    is_in = fragment_positions(LAYOUT, 4, applied)
    assert is_in.any()
    assert np.array_equal(begun.theta_P, np.where(is_in, mixed, mine))
    assert begun.count == 9


@pytest.mark.parametrize("round_id", [3, 9])
def test_without_fragments_the_whole_of_a_nodes_own_parameters_is_pulled_once(round_id):
    mine, theirs, own = some(1), some(2), np.float32(0.9)
    spec = a_run("elastic")

    begun = begin(spec, LAYOUT, theirs, carrying(mine, 2), round_id)

    assert np.array_equal(begun.theta_P, theirs * (np.float32(1) - own) + mine * own)
    assert begun.count == 9


def test_after_missed_rounds_every_fragment_applied_since_is_merged_and_no_other():
    spec = a_run("streaming", merge_ppm=0, apply_lag=1)
    mine, theirs = some(1), some(2)
    parts = [fragment_positions(LAYOUT, 4, number) for number in range(4)]

    for missed_to, fragments in ((3, {1}), (4, {1, 2}), (5, {1, 2, 3}), (6, {0, 1, 2, 3}), (9, {0, 1, 2, 3})):
        begun = begin(spec, LAYOUT, theirs, carrying(mine, 2), missed_to)
        is_in = np.any([parts[number] for number in fragments], axis=0)
        assert np.array_equal(begun.theta_P, np.where(is_in, theirs, mine)), missed_to


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("back_in", [10, 127])
def test_a_fragment_applied_twice_since_is_merged_once(lag, back_in):
    """However long a node was away, an auditor's work stays that of one turn of all fragments.

    After the next round that 128 divides, nothing of the node's own is left.
    """
    spec = a_run("streaming", merge_ppm=500_000, apply_lag=lag)
    mine, theirs = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)

    begun = begin(spec, LAYOUT, theirs, carrying(mine, 2), back_in)

    assert set(begun.theta_P.tolist()) == {0.5}


def test_streaming_nodes_drift_apart_between_syncs_and_stay_near():
    """The public parameters of a fragment move only in its turn; a node's own move in every round."""
    spec = a_run("streaming, at once")
    states, private = [start_public(spec, some(0, 0.1))], start_private(LAYOUT)
    ends = []
    for round_id in range(4):
        work, private, body = a_step(spec, states, private, 0)
        states.append(apply(spec, LAYOUT, states[-1], round_id, mean_of(spec, {NORA: body}, round_id)))
        ends.append(work.ends[-1].theta_P)
    for number, (before, after) in enumerate(pairwise(states)):
        is_in = fragment_positions(LAYOUT, 2, number % 2)
        assert not (before.theta_P != after.theta_P)[~is_in].any()
        assert (before.theta_P != after.theta_P)[is_in].any()
    for before, after in pairwise(ends):
        assert np.mean(before != after) > 0.9


def test_elastic_nodes_stay_apart_and_the_networks_parameters_are_their_mean():
    """With an outer rate of 1, as in PAPA; from the network's they are pulled by a tenth a round."""
    spec = a_run("elastic", values=Values.INT16)
    states, privates = [start_public(spec, some(0, 0.1))], [start_private(LAYOUT)] * 2
    for round_id in range(4):
        works, sent = {}, {}
        for number, node in enumerate((NORA, NILS)):
            works[node], privates[number], sent[node] = a_step(spec, states, privates[number], number)
        states.append(apply(spec, LAYOUT, states[-1], round_id, mean_of(spec, sent, round_id)))
        first, second = (work.ends[-1].theta_P for work in works.values())
        spread = np.abs(first - second).max()
        # Blocks are clipped to the median length, which moves the mean a little.
        assert np.abs(states[-1].theta_P - (first + second) / 2).max() < spread / 20
        for number, end in enumerate((first, second)):
            begun = begin(spec, LAYOUT, states[-1].theta_P, privates[number], round_id + 1)
            pulled = states[-1].theta_P + np.float32(0.9) * (end - states[-1].theta_P)
            assert np.allclose(begun.theta_P, pulled, atol=1e-6)


# ---- what a commit binds


def test_each_part_of_a_private_state_changes_its_root_and_the_round_does_not():
    rule = a_run("sparseloco").rule
    private = carrying(some(1), 2)

    def flip(array: np.ndarray) -> np.ndarray:
        other = array.copy()
        other.reshape(-1).view(np.uint32)[-1] ^= 1
        return other

    inner = private.inner
    others = [
        replace(private, error_NC=flip(private.error_NC)),
        replace(private, inner=None),
        replace(private, inner=replace(inner, theta_P=flip(inner.theta_P))),
        replace(private, inner=replace(inner, moments=(flip(inner.moments[0]), inner.moments[1]))),
        replace(private, inner=replace(inner, moments=(inner.moments[0], flip(inner.moments[1])))),
        replace(private, inner=replace(inner, count=8)),
    ]
    roots = {commit(RUN_ID, rule, LAYOUT, one) for one in (private, *others)}

    assert len(roots) == 1 + len(others)
    assert commit(RUN_ID, rule, LAYOUT, replace(private, base=5)) in roots  # `Commit.base` binds the round


@every_method
def test_the_root_of_a_start_is_the_one_everybody_knows_and_a_step_leads_to_another_or_keeps_nothing(name):
    spec = a_run(name)
    start = start_private(LAYOUT)
    root = zero_root(RUN_ID, spec.rule, BLOCKS)
    assert commit(RUN_ID, spec.rule, LAYOUT, start) == root != NO_DIGEST

    _, after, _ = a_step(spec, [start_public(spec, some(0, 0.1))], start, 0)

    keeps = spec.rule.compress.keeps_error or spec.rule.carries_inner
    assert (commit(RUN_ID, spec.rule, LAYOUT, after) != root) == keeps
