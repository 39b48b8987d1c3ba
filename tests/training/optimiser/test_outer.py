"""The outer step: the optimisers are the field's, only an aggregate moves it, the bits are everybody's."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from assay.protocol.errors import MalformedMessage
from assay.protocol.params import RunSpec
from assay.protocol.update_rule import PPM, Curve, Outer, Transform, Values
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule
from assay.training.codec.wire import encode_aggregate
from assay.training.fragments import fragment_blocks, fragment_positions
from assay.training.layout import layout_of, to_blocks
from assay.training.optimiser.outer import OuterState, applied_fragments, apply, public_digest, start_public
from assay.training.optimiser.schedule import rate
from assay.training.transform.compress import in_basis, transition
from tests.training.places import placed

pytestmark = pytest.mark.slow

LAYOUT = layout_of(a_spec().model)
SIZE, BLOCKS = LAYOUT.parameters, LAYOUT.blocks


def a_run(outer: Outer, method: str = "fedavg", **choices) -> RunSpec:
    """A run that moves by the distance as it is: no transform, a constant rate."""
    return a_spec(rule=a_rule(method, outer=outer, **{"curve": Curve.CONSTANT, **choices}))


def some(seed: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(SIZE) * scale).astype(np.float32)


def aggregate_of(step: np.ndarray, unit: int = -13) -> bytes:
    """An aggregate of exactly these values, which must be whole multiples of 2^unit below 2^14 of them."""
    whole = np.ldexp(to_blocks(LAYOUT, step).reshape(BLOCKS, -1).astype(np.float64), -unit)
    assert np.array_equal(whole, np.rint(whole)) and np.abs(whole).max() <= 1 << 14
    block_T, index_T = np.nonzero(whole)
    exponent_N = np.where(whole.any(axis=1), unit, 0)
    value_T = whole[block_T, index_T].astype(np.int32)
    return encode_aggregate(placed(BLOCKS, block_T, index_T, value_T, exponent_N), BLOCKS, has_scale=True)


def a_distance(seed: int) -> np.ndarray:
    """A step that an aggregate can say exactly."""
    rng = np.random.default_rng(seed)
    return np.ldexp(rng.integers(-(1 << 13), 1 << 13, SIZE).astype(np.float32), -13)


def signs_of(step: np.ndarray) -> bytes:
    blocks = to_blocks(LAYOUT, step).reshape(BLOCKS, -1)
    block_T, index_T = np.nonzero(blocks)
    value_T = (np.sign(blocks[block_T, index_T]) * (1 << 14)).astype(np.int32)
    return encode_aggregate(placed(BLOCKS, block_T, index_T, value_T), BLOCKS)


def same(mine: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.array_equal(mine.view(np.uint32), np.asarray(other, np.float32).view(np.uint32)))


def run(
    spec: RunSpec, bodies: list[bytes], start: OuterState | None = None, first: int = 0
) -> list[OuterState]:
    public, found = start or start_public(spec, some(0)), []
    for number, body in enumerate(bodies):
        public = apply(spec, LAYOUT, public, first + number, body)
        found.append(public)
    return found


# ---- the optimisers


def test_sgd_of_rate_one_takes_the_mean_distance_as_it_is():
    spec, step = a_run(Outer.SGD, lr_nano=10**9), a_distance(1)

    (after,) = run(spec, [aggregate_of(step)])

    assert same(after.theta_P, some(0) - step)
    assert after.buffers == ()


@pytest.mark.parametrize("momentum_micro", [0, 500_000, 900_000])
def test_nesterov_is_the_one_of_torch_on_pseudo_gradients(momentum_micro):
    spec = a_run(Outer.NESTEROV, momentum_micro=momentum_micro, lr_nano=700_000_000)
    steps = [a_distance(1 + n) for n in range(5)]
    parameter = torch.nn.Parameter(torch.from_numpy(some(0)))
    theirs = torch.optim.SGD(
        [parameter], lr=float(np.float32(0.7)), momentum=momentum_micro / PPM, nesterov=momentum_micro > 0
    )

    for after, step in zip(run(spec, [aggregate_of(step) for step in steps]), steps, strict=True):
        parameter.grad = torch.from_numpy(step.copy())
        theirs.step()
        np.testing.assert_allclose(after.theta_P, parameter.detach().numpy(), rtol=1e-5, atol=2e-6)


def test_nesterov_is_by_hand_what_the_protocol_says():
    """v = mu v + D; theta - lr (D + mu v), every operation rounded on its own."""
    spec = a_run(Outer.NESTEROV, momentum_micro=900_000, lr_nano=700_000_000)
    steps, theta, v = [a_distance(1 + n) for n in range(3)], some(0), np.zeros(SIZE, np.float32)
    mu, lr = np.float32(0.9), np.float32(0.7)

    for after, step in zip(run(spec, [aggregate_of(step) for step in steps]), steps, strict=True):
        v = v * mu + step
        theta = theta - lr * (step + v * mu)
        assert same(after.theta_P, theta)
        assert same(after.buffers[0], v)


@pytest.mark.parametrize("kind", [Outer.ADAM, Outer.YOGI])
def test_adaptive_steps_are_those_of_the_paper_in_double_precision(kind):
    """Reddi et al., algorithm 2; the pseudo-gradient is -Delta, and moments begin at zero."""
    spec = a_run(kind, lr_nano=10_000_000)
    steps = [a_distance(1 + n) for n in range(5)]
    theta, m, v = some(0).astype(float), np.zeros(SIZE), np.zeros(SIZE)

    for after, step in zip(run(spec, [aggregate_of(step) for step in steps]), steps, strict=True):
        delta = -step.astype(float)
        m = 0.9 * m + 0.1 * delta
        square = delta * delta
        v = 0.99 * v + 0.01 * square if kind is Outer.ADAM else v - 0.01 * square * np.sign(v - square)
        theta = theta + 0.01 * m / (np.sqrt(v) + 1e-3)
        pairs = ((after.theta_P, theta, 1e-5), (after.buffers[0], -m, 1e-4), (after.buffers[1], v, 1e-4))
        for mine, paper, rtol in pairs:
            is_close = np.isclose(mine, paper, rtol=rtol, atol=1e-6)
            assert is_close.all() if kind is Outer.ADAM else is_close.mean() > 0.9999  # v = square: a tie
    assert (after.buffers[1] >= 0).all()


def test_a_sign_step_moves_every_parameter_by_the_rate_whatever_the_size():
    spec = a_spec(rule=a_rule(curve=Curve.CONSTANT, transform=Transform.NONE, lr_nano=2_000_000))
    step = a_distance(1)

    (after,) = run(spec, [signs_of(step)])

    assert same(after.theta_P, some(0) - np.sign(step) * np.float32(0.002))


@pytest.mark.parametrize("kind", list(Outer))
def test_decay_shrinks_the_parameters_before_the_step_and_by_the_rate(kind):
    method = "demo" if kind is Outer.SIGN else "fedavg"
    plain = a_run(kind, method, lr_nano=10_000_000, transform=Transform.NONE)
    decays = replace(plain, rule=a_run(
        kind, method, lr_nano=10_000_000, transform=Transform.NONE, outer_decay_micro=2 * PPM
    ).rule)  # fmt: skip
    body = signs_of(a_distance(1)) if kind is Outer.SIGN else aggregate_of(a_distance(1))
    shrunk = some(0) * (np.float32(1) - np.float32(0.01) * np.float32(2))

    (expected,) = run(plain, [body], start_public(plain, shrunk))
    (after,) = run(decays, [body])

    assert same(after.theta_P, expected.theta_P)
    assert not same(after.theta_P, run(plain, [body])[0].theta_P)


@pytest.mark.parametrize("kind", list(Outer))
def test_a_round_is_stepped_at_its_own_rate(kind):
    method = "demo" if kind is Outer.SIGN else "fedavg"
    spec = a_run(kind, method, curve=Curve.COSINE, floor_ppm=0, warmup_rounds=2, transform=Transform.NONE)
    body = signs_of(a_distance(1)) if kind is Outer.SIGN else aggregate_of(a_distance(1))
    (first,) = run(spec, [body], first=0)
    (fourth,) = run(spec, [body], first=3)

    rates = [float(rate(spec.rule.outer.schedule, spec.rounds, r)) for r in (0, 3)]
    moved = [float(np.abs(after.theta_P - some(0)).mean()) for after in (first, fourth)]
    assert moved[0] / moved[1] == pytest.approx(rates[0] / rates[1], rel=1e-3)


# ---- rounds that move nothing, rounds that wait


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("kind", [Outer.SGD, Outer.NESTEROV, Outer.YOGI])
def test_an_aggregate_is_applied_exactly_its_lag_later_at_the_rate_of_its_own_round(kind, lag):
    bodies = [aggregate_of(a_distance(1 + n)) for n in range(5)]
    now = a_run(kind, curve=Curve.COSINE)
    later = replace(now, rule=replace(now.rule, apply_lag=lag))

    at_once, delayed = run(now, bodies), run(later, bodies + [b""] * lag)

    for number, public in enumerate(delayed):
        done = number - lag
        expected = at_once[done] if done >= 0 else start_public(now, some(0))
        assert same(public.theta_P, expected.theta_P), number
        assert all(same(a, b) for a, b in zip(public.buffers, expected.buffers, strict=True))
        whole = [*bodies, *[b""] * lag][: number + 1]
        assert public.pending == tuple(whole[max(number + 1 - lag, 0) :])


@pytest.mark.parametrize("kind", list(Outer))
def test_a_round_without_commits_moves_no_parameter_and_no_buffer(kind):
    method = "demo" if kind is Outer.SIGN else "fedavg"
    spec = a_run(kind, method, outer_decay_micro=500_000, transform=Transform.NONE)
    body = signs_of(a_distance(1)) if kind is Outer.SIGN else aggregate_of(a_distance(1))
    (start,) = run(spec, [body])

    (after,) = run(spec, [b""], start, first=1)

    assert public_digest(after) == public_digest(start)


def test_an_empty_round_takes_its_turn_among_those_that_wait():
    spec = a_run(Outer.SGD, apply_lag=2)
    first, second = aggregate_of(a_distance(1)), aggregate_of(a_distance(2))

    found = run(spec, [first, b"", second, b"", b""])

    assert [public.pending for public in found] == [
        (first,), (first, b""), (b"", second), (second, b""), (b"", b"")
    ]  # fmt: skip
    moves = [not same(a.theta_P, b.theta_P) for a, b in pairwise(found)]
    assert moves == [False, True, False, True]


def test_the_state_before_is_not_modified():
    spec = a_run(Outer.ADAM)
    start = run(spec, [aggregate_of(a_distance(1))])[0]
    before = public_digest(start)

    run(spec, [aggregate_of(a_distance(2))], start, first=1)

    assert public_digest(start) == before


def test_bytes_that_are_no_aggregate_are_refused():
    spec = a_run(Outer.SGD)
    for body in (b"x", signs_of(a_distance(1)), aggregate_of(a_distance(1)) + b"\0"):
        with pytest.raises(MalformedMessage):
            run(spec, [body])


# ---- what everybody's digest binds


def test_a_digest_binds_parameters_buffers_and_whatever_waits_in_its_order():
    theta, buffer, bodies = some(1), some(2), (b"first", b"second")
    publics = [
        OuterState(theta),
        OuterState(buffer),
        OuterState(theta, (buffer,)),
        OuterState(theta, (buffer, buffer)),
        OuterState(theta, (), bodies),
        OuterState(theta, (), bodies[::-1]),
        OuterState(theta, (), bodies[:1]),
        OuterState(theta, (), (b"firstsecond",)),
        OuterState(theta, (), (b"",)),
        OuterState(theta, (buffer,), bodies),
    ]
    flipped = theta.copy()
    flipped.view(np.uint32)[-1] ^= 1

    assert len({public_digest(one) for one in (*publics, OuterState(flipped))}) == len(publics) + 1


# ---- fragments


@pytest.mark.parametrize("kind", [Outer.SGD, Outer.NESTEROV, Outer.ADAM])
@pytest.mark.parametrize("lag", [0, 1])
def test_a_fragment_moves_its_own_parameters_and_buffers_and_no_others(kind, lag):
    spec = a_run(kind, "streaming-diloco", fragments=2, apply_lag=lag, outer_decay_micro=500_000)
    start = run(replace(spec, rule=replace(spec.rule, apply_lag=0)), [aggregate_of(a_distance(9))] * 2)[-1]

    for number in range(2):
        public, round_id = start, 4 + number
        for later in range(lag + 1):
            public = apply(
                spec, LAYOUT, public, round_id + later, aggregate_of(a_distance(1)) if not later else b""
            )
        is_in = fragment_positions(LAYOUT, 2, number)
        assert 0 < is_in.sum() < SIZE
        moved = public.theta_P != start.theta_P
        assert not moved[~is_in].any()
        assert moved[is_in].mean() > 0.99
        for new, old in zip(public.buffers, start.buffers, strict=True):
            assert np.array_equal(new[~is_in], old[~is_in])
            assert (new[is_in] != old[is_in]).mean() > 0.99
        assert applied_fragments(spec, [round_id + lag]) == [number]


@pytest.mark.parametrize("fragments", [1, 2, 3, 7])
def test_every_parameter_is_in_exactly_one_fragment_and_a_block_in_one(fragments):
    layout = layout_of(replace(a_spec().model, layers=5))
    parts = [fragment_positions(layout, fragments, number) for number in range(fragments)]

    assert np.array_equal(sum(part.astype(int) for part in parts), np.ones(layout.parameters, int))
    assert fragment_blocks(layout, fragments).shape == (layout.blocks,)
    assert set(fragment_blocks(layout, fragments)) <= set(range(fragments))
    assert all(part.any() for part in parts[: min(fragments, 5)])


def test_before_the_lag_is_over_no_fragment_is_applied():
    spec = a_run(Outer.SGD, "streaming-diloco", fragments=4, apply_lag=3)

    assert applied_fragments(spec, range(8)) == [0, 1, 2, 3, 0]
    assert applied_fragments(spec, range(2)) == []


# ---- from a node's distance through the transform and back


@pytest.mark.parametrize(("values", "error"), [(Values.INT16, 5e-4), (Values.INT8, 2e-2)])
def test_all_coefficients_of_the_transform_bring_a_distance_back_to_within_their_rounding(values, error):
    """What DCT, quantiser, aggregate and inverse lose together, relative to the distance."""
    spec = a_run(Outer.SGD, lr_nano=10**9, k=4096, transform=Transform.DCT, values=values, feedback_micro=0)
    distance = some(3, 0.01)
    x_NC = in_basis(spec.rule, to_blocks(LAYOUT, distance))
    sent = transition(spec.rule.compress, np.zeros_like(x_NC), x_NC).sent

    (after,) = run(spec, [as_aggregate(sent)], start_public(spec, np.zeros(SIZE, np.float32)))

    gap = np.linalg.norm(after.theta_P + distance) / np.linalg.norm(distance)
    assert gap < error
    largest = np.abs(after.theta_P + distance).max() / np.abs(distance).max()
    assert largest < 2 * error


def as_aggregate(sent) -> bytes:
    """One node's update as the mean of one: 14 bits and a sign for every block."""
    value_BK = np.ldexp(sent.value_BK.astype(np.float64), sent.exponent_B[:, None])
    largest_B = np.abs(value_BK).max(axis=1)
    unit_B = np.frexp(largest_B)[1] - 14
    whole_BK = np.rint(np.ldexp(value_BK, -unit_B[:, None])).astype(np.int32)
    exponent_N = np.zeros(BLOCKS, np.int64)
    exponent_N[sent.blocks_B] = unit_B
    row, column = np.nonzero(whole_BK)
    sparse = placed(BLOCKS, sent.blocks_B[row], sent.index_BK[row, column], whole_BK[row, column], exponent_N)
    return encode_aggregate(sparse, BLOCKS, has_scale=True)


# ---- for tests/training/test_exact.py: the same bits whatever the machine is told to do


def many_states() -> str:
    """Digests of every kind of outer step over a few rounds, from integers alone."""
    found = []
    for kind in Outer:
        method = "demo" if kind is Outer.SIGN else "fedavg"
        for transform in Transform:
            spec = a_run(kind, method, transform=transform, outer_decay_micro=500_000, curve=Curve.COSINE)
            bodies = [
                signs_of(a_distance(n)) if kind is Outer.SIGN else aggregate_of(a_distance(n))
                for n in range(3)
            ]
            found += [public_digest(public) for public in run(spec, bodies)]
    streaming = a_run(Outer.NESTEROV, "streaming-diloco", fragments=2, apply_lag=1)
    found += [
        public_digest(public) for public in run(streaming, [aggregate_of(a_distance(n)) for n in range(4)])
    ]
    return hashlib.sha256(b"".join(found)).hexdigest()
