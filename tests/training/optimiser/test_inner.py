"""Inner steps: the optimisers are the field's, segments cut nothing, and a digest binds every bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from assay.protocol.types import Digest
from assay.protocol.update_rule import PPM, LocalSpec
from assay.testing.members import RUN_ID
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule
from assay.training.layout import layout_of
from assay.training.optimiser.inner import (
    InnerState,
    _power,
    fresh,
    inner_step,
    roots_of,
    run_steps,
    segments,
)
from assay.training.optimiser.schedule import rate

LAYOUT = layout_of(a_spec().model)
SIZE = LAYOUT.parameters


def some(seed: int, size: int = SIZE, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def adamw(**choices) -> LocalSpec:
    return a_rule("diloco", **choices).local


def sgd(**choices) -> LocalSpec:
    return a_rule("fedavg", **choices).local


def by_torch(optimiser, theta: np.ndarray, gradients, clip: float, rates) -> list[np.ndarray]:
    """Parameters after each step of an optimiser of torch's own, in float32."""
    parameter = torch.nn.Parameter(torch.from_numpy(theta.copy()))
    made, found = optimiser([parameter]), []
    for gradient, lr in zip(gradients, rates, strict=True):
        made.param_groups[0]["lr"] = float(lr)
        parameter.grad = torch.from_numpy(gradient.copy())
        if clip:
            torch.nn.utils.clip_grad_norm_([parameter], clip)
        made.step()
        found.append(parameter.detach().numpy().copy())
    return found


def ours(local: LocalSpec, theta: np.ndarray, gradients, rates) -> list[np.ndarray]:
    state, found = fresh(local, theta), []
    for gradient, lr in zip(gradients, rates, strict=True):
        state = inner_step(local, LAYOUT, np.float32(lr), state, theta, gradient)
        found.append(state.theta_P)
    return found


RATES = np.array([0.002, 0.004, 0.003, 0.001, 0.002], np.float32)


@pytest.mark.parametrize("clip_micro", [0, PPM, 1000 * PPM])
@pytest.mark.parametrize("decay_micro", [0, 100_000, 10 * PPM])
def test_adamw_is_the_one_of_torch(clip_micro, decay_micro):
    local = adamw(clip_micro=clip_micro, inner_decay_micro=decay_micro)
    theta, gradients = some(1, 5000, 0.02), [some(2 + n, 5000, 10.0**-n) for n in range(5)]

    theirs = by_torch(
        lambda p: torch.optim.AdamW(
            p, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay_micro / PPM, foreach=False
        ),
        theta, gradients, clip_micro / PPM, RATES,
    )  # fmt: skip

    for mine, other in zip(ours(local, theta, gradients, RATES), theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(mine - theta, other - theta, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("clip_micro", [0, PPM])
@pytest.mark.parametrize("decay_micro", [0, 100_000])
def test_sgd_is_the_one_of_torch_with_decoupled_decay(clip_micro, decay_micro):
    local = sgd(clip_micro=clip_micro, inner_decay_micro=decay_micro)
    theta, gradients = some(1, 5000), [some(2 + n, 5000) for n in range(5)]

    class Decoupled(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.mul_(1 - group["lr"] * decay_micro / PPM)
            return super().step(closure)

    theirs = by_torch(lambda p: Decoupled(p, lr=1), theta, gradients, clip_micro / PPM, RATES)

    for mine, other in zip(ours(local, theta, gradients, RATES), theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("norm", "after"), [(0.5, 0.5), (1.0, 1.0), (100.0, 1.0)])
def test_a_gradient_is_clipped_to_its_norm_and_a_small_one_is_left_alone(norm, after):
    theta, slope = np.zeros(1000, np.float32), some(1, 1000)
    slope *= np.float32(norm / np.linalg.norm(slope.astype(float)))

    moved = inner_step(sgd(clip_micro=PPM), LAYOUT, np.float32(1), fresh(sgd(), theta), theta, slope).theta_P

    assert np.linalg.norm(moved.astype(float)) == pytest.approx(after, rel=1e-5)


def test_a_proximal_term_pulls_to_the_anchor_by_its_weight_and_by_the_distance():
    anchor, theta = some(1, 1000), some(2, 1000)
    nothing, lr = np.zeros(1000, np.float32), np.float32(0.25)

    pulled = [
        inner_step(
            sgd(proximal_micro=mu, clip_micro=0), LAYOUT, lr, fresh(sgd(), theta), anchor, nothing
        ).theta_P
        for mu in (0, PPM, 4 * PPM)
    ]

    assert np.array_equal(pulled[0], theta)
    np.testing.assert_allclose(pulled[1], theta + 0.25 * (anchor - theta), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pulled[2], anchor, rtol=1e-5, atol=1e-6)  # a quarter of four times the way


@pytest.mark.parametrize("local", [adamw(proximal_micro=PPM), sgd(proximal_micro=PPM)])
def test_a_step_modifies_nothing_it_was_given(local):
    theta, anchor, slope = some(1), some(2), some(3)
    state = fresh(local, theta)
    given = [theta, anchor, slope, *state.moments]
    kept = [one.copy() for one in given]

    after = inner_step(local, LAYOUT, np.float32(0.1), state, anchor, slope)

    assert all(np.array_equal(one, before) for one, before in zip(given, kept, strict=True))
    assert (state.count, after.count) == (0, 1)


# ---- segments


def a_gradient(theta: np.ndarray, tokens: np.ndarray) -> tuple[float, np.ndarray]:
    """Pulls to a point that depends on the tokens, so that every step matters."""
    aim = some(int(tokens.sum()), len(theta))
    return float(np.mean((theta - aim) ** 2)), theta - aim


@pytest.mark.parametrize("method", ["sparseloco", "fedavg"])
@pytest.mark.parametrize(("steps", "segment"), [(5, 1), (5, 2), (5, 5), (6, 2), (7, 3)])
def test_segment_by_segment_is_the_same_bits_as_all_at_once(method, steps, segment):
    rule = a_rule(method, steps=steps, segment=segment, proximal_micro=1000)
    spec = a_spec(rule=rule, rounds=9)
    tokens = np.arange(steps * 2 * 17).reshape(steps * 2, 17)
    theta = some(1)
    whole, loss = run_steps(spec, 3, 0, steps, fresh(rule.local, theta), theta, tokens, a_gradient)

    ends = list(segments(spec, 3, fresh(rule.local, theta), theta, tokens, a_gradient))

    assert len(ends) == rule.segments == -(-steps // segment)
    assert [end.count for end, _ in ends] == [min((n + 1) * segment, steps) for n in range(len(ends))]
    last = ends[-1][0]
    for mine, other in zip((last.theta_P, *last.moments), (whole.theta_P, *whole.moments), strict=True):
        assert np.array_equal(mine.view(np.uint32), other.view(np.uint32))
    # A segment begins from nothing but the state before it: what an audit relies on.
    again, _ = run_steps(
        spec, 3, (len(ends) - 1) * segment, steps, ends[-2][0] if len(ends) > 1 else fresh(rule.local, theta),
        theta, tokens, a_gradient,
    )  # fmt: skip
    assert roots_of(RUN_ID, LAYOUT, again) == roots_of(RUN_ID, LAYOUT, whole)
    lengths = [min(segment, steps - n * segment) for n in range(len(ends))]
    assert sum(one * n for (_, one), n in zip(ends, lengths, strict=True)) / steps == pytest.approx(loss)


def test_every_step_takes_its_own_sequences_and_its_own_rate():
    rule = a_rule("fedavg", steps=3, segment=3)
    spec, theta = a_spec(rule=rule), some(1)
    tokens = np.arange(6 * 17).reshape(6, 17)
    asked = []

    def gradient(at, batch):
        asked.append(batch.copy())
        return 1.0, np.ones_like(at)

    local = replace(rule.local, clip_micro=0)
    spec = replace(spec, rule=replace(rule, local=local))
    end, _ = run_steps(spec, 1, 0, 3, fresh(local, theta), theta, tokens, gradient)

    assert [batch.tolist() for batch in asked] == [tokens[2 * n : 2 * n + 2].tolist() for n in range(3)]
    rates = [rate(local.schedule, spec.rounds, 1, steps=3, step=n) for n in range(3)]
    assert len(set(rates)) == 3
    by_hand = theta
    for one in rates:
        by_hand = by_hand - one
    assert np.array_equal(end.theta_P, by_hand)


# ---- what a commit binds


def a_state() -> InnerState:
    return InnerState(some(1), (some(2), np.abs(some(3))), 7)


@pytest.mark.parametrize("part", ["theta", "first moment", "second moment"])
@pytest.mark.parametrize("at", [0, SIZE // 2, SIZE - 1])
def test_one_bit_of_any_part_of_an_inner_state_changes_its_digest(part, at):
    state = a_state()
    flipped = a_state()
    array = {
        "theta": flipped.theta_P,
        "first moment": flipped.moments[0],
        "second moment": flipped.moments[1],
    }
    array[part].view(np.uint32)[at] ^= 1

    assert roots_of(RUN_ID, LAYOUT, state).digest != roots_of(RUN_ID, LAYOUT, flipped).digest


def test_a_digest_binds_the_count_the_order_and_the_number_of_moments_and_the_run():
    state = a_state()
    others = [
        replace(state, count=8),
        replace(state, moments=state.moments[::-1]),
        replace(state, moments=state.moments[:1]),
        replace(state, moments=()),
    ]

    digests = [roots_of(RUN_ID, LAYOUT, one).digest for one in (state, *others)]
    digests.append(roots_of(Digest(b"another run".ljust(32)), LAYOUT, state).digest)
    assert len(set(digests)) == 6
    assert roots_of(RUN_ID, LAYOUT, a_state()).digest == digests[0]


def test_a_power_is_made_of_products_alone():
    for base in (0.9, 0.999, 0.95):
        assert [_power(base, n) for n in (0, 1, 2, 3)] == [1.0, base, base * base, base * (base * base)]
        assert _power(base, 1000) == pytest.approx(base**1000, rel=1e-12)
