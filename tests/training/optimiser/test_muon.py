"""Muon: matrices move by what the field calls Muon, the rest by Adam, and a false momentum is soon gone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.protocol.update_rule import LocalSpec
from assay.testing.specs import a_model, a_rule
from assay.training.layout import Layout, layout_of
from assay.training.optimiser.inner import InnerState, fresh, inner_step
from assay.training.optimiser.matrices import matrices, rest_of
from assay.training.optimiser.muon import orthogonalised

MODEL = a_model(layers=2, width=64)
LAYOUT = layout_of(MODEL)
LR = np.float32(0.01)


def muon(**choices) -> LocalSpec:
    return a_rule("muloco", **choices).local


def some(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape or (LAYOUT.parameters,)).astype(np.float32)


def by_torch(matrix: np.ndarray) -> np.ndarray:
    """Newton-Schulz as its authors write it, in float64."""
    x = torch.from_numpy(matrix).double()
    is_tall = x.shape[0] > x.shape[1]
    x = x.mT if is_tall else x
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if is_tall else x).numpy()


@pytest.mark.parametrize("shape", [(64, 64), (192, 64), (64, 256), (37, 101), (1, 7)])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_a_matrix_is_made_orthogonal_as_its_authors_do_it_whatever_its_size(shape, size):
    matrix = some(1, *shape) * np.float32(size)

    np.testing.assert_allclose(orthogonalised(matrix), by_torch(matrix), atol=2e-5)


@pytest.mark.parametrize("shape", [(192, 64), (64, 256)])
def test_every_direction_of_a_matrix_comes_out_about_equally_long(shape):
    matrix = some(2, *shape)
    matrix[0] *= 50

    lengths = np.linalg.svd(orthogonalised(matrix), compute_uv=False)

    assert lengths.min() > 0.6 and lengths.max() < 1.3


def test_a_matrix_of_zeros_stays_zeros():
    assert not orthogonalised(np.zeros((64, 128), np.float32)).any()


def test_queries_keys_and_values_are_three_matrices_and_embeddings_head_and_vectors_are_none():
    layout = Layout(
        ("embed", "layer0.attention.qkv", "layer0.norm1.weight", "layer0.mlp.down", "head"),
        ((10, 4), (12, 4), (4,), (4, 8), (10, 4)),
    )

    assert [(one.start, one.rows, one.columns) for one in matrices(layout)] == [
        (40, 4, 4), (56, 4, 4), (72, 4, 4), (92, 4, 8),
    ]  # fmt: skip
    assert np.flatnonzero(rest_of(layout)).tolist() == [*range(40), *range(88, 92), *range(124, 164)]


def test_matrices_take_the_published_step_from_a_nesterov_momentum():
    local = muon(clip_micro=0, inner_decay_micro=100_000)
    theta, slopes = some(3), [some(4 + n) for n in range(3)]
    state, momentum, expected = fresh(local, theta), np.zeros_like(theta), theta.astype(np.float64)

    for slope in slopes:
        state = inner_step(local, LAYOUT, LR, state, theta, slope)
        momentum = 0.95 * momentum + slope
        expected = expected * (1 - 0.01 * 0.1)
        for one in matrices(LAYOUT):
            ahead = one.of(slope) + 0.95 * one.of(momentum)
            one.of(expected)[:] -= 0.01 * 0.2 * max(one.rows, one.columns) ** 0.5 * by_torch(ahead)

    for one in matrices(LAYOUT):
        np.testing.assert_allclose(one.of(state.theta_P), one.of(expected), atol=1e-5)
        np.testing.assert_allclose(one.of(state.moments[0]), one.of(momentum), rtol=1e-5, atol=1e-5)


def test_the_rest_takes_adams_step_and_matrices_keep_no_second_moment():
    local = muon(clip_micro=0)
    adam = replace(a_rule("diloco", clip_micro=0).local, beta1_micro=local.beta1_micro, beta2_micro=990_000)
    theta, rest = some(3), rest_of(LAYOUT)
    state, other = fresh(local, theta), fresh(adam, theta)

    for seed in (4, 5, 6):
        state = inner_step(local, LAYOUT, LR, state, theta, some(seed))
        other = inner_step(adam, LAYOUT, LR, other, theta, some(seed))

    assert np.array_equal(state.theta_P[rest], other.theta_P[rest])
    assert not np.array_equal(state.theta_P[~rest], other.theta_P[~rest])
    assert state.moments[1][rest].all() and not state.moments[1][~rest].any()


def test_moments_that_honest_steps_leave_are_used_as_they_are():
    """Also where the gradient falls to a third, as it does after the first steps of a training."""
    local, theta = muon(clip_micro=0), some(3)
    state = fresh(local, theta)
    for seed in range(4, 30):
        before, slope = state, some(seed) * np.float32(1 if seed < 20 else 0.33)
        state = inner_step(local, LAYOUT, LR, state, theta, slope)
        due = before.moments[0] * np.float32(0.95) + slope
        for one in matrices(LAYOUT):
            assert np.array_equal(one.of(state.moments[0]), one.of(due))


@pytest.mark.parametrize("size", [1e3, 1e15, 1e30])
def test_a_false_momentum_of_any_size_leaves_no_step_without_its_own_gradient(size):
    """Were it used as it is, two gradients would lead to the same bits, and none had to be computed."""
    local, theta = muon(), some(3)
    lie = InnerState(theta, (some(7) * np.float32(size), np.full_like(theta, size)), 50)

    one, other = (inner_step(local, LAYOUT, LR, lie, theta, some(seed)) for seed in (8, 9))

    for matrix in matrices(LAYOUT):
        assert (matrix.of(one.theta_P) != matrix.of(other.theta_P)).mean() > 0.9
    rest = rest_of(LAYOUT)
    assert (one.theta_P[rest] != other.theta_P[rest]).mean() > 0.9


@pytest.mark.slow
def test_a_false_momentum_is_forgotten_at_the_rate_of_an_honest_one():
    """After 100 steps of 1 - beta1 = 0.05 less than a hundredth of a step is the lie's."""
    local, theta = muon(), some(3)
    true = fresh(local, theta)
    false = InnerState(theta, (some(7) * np.float32(1e30), np.zeros_like(theta)), 0)
    for seed in range(100, 200):
        before = true.theta_P, false.theta_P
        slope = some(seed)
        true, false = (inner_step(local, LAYOUT, LR, one, theta, slope) for one in (true, false))

    for one in matrices(LAYOUT):
        steps = [
            one.of(now) - one.of(then)
            for now, then in zip((true.theta_P, false.theta_P), before, strict=True)
        ]
        apart = np.linalg.norm(steps[0] - steps[1]) / np.linalg.norm(steps[0])
        assert apart < 0.1


@pytest.mark.parametrize("second", [-1.0, -1e-30, 1e38])
def test_a_second_moment_that_no_gradient_leaves_gives_finite_steps(second):
    local, theta = muon(), some(3)
    state = InnerState(theta, (some(4), np.full_like(theta, second)), 3)

    after = inner_step(local, LAYOUT, LR, state, theta, some(5))

    assert np.isfinite(after.theta_P).all() and (after.moments[1] >= 0).all()


def test_a_step_moves_a_matrix_by_the_same_length_however_large_its_gradient_is():
    local, theta = muon(clip_micro=0, inner_decay_micro=0), some(3)
    small, large = (
        inner_step(local, LAYOUT, LR, fresh(local, theta), theta, some(4) * np.float32(size))
        for size in (1e-3, 1e3)
    )

    for one in matrices(LAYOUT):
        np.testing.assert_allclose(one.of(small.theta_P), one.of(large.theta_P), atol=1e-5)
        moved = np.sqrt(np.mean(np.square(one.of(small.theta_P) - one.of(theta))))
        assert moved == pytest.approx(0.2 * float(LR), rel=0.25)  # 0.2: AdamW's usual root mean square


def test_what_one_false_step_spares_its_node_is_that_step_alone():
    assert a_rule("muloco").idle_steps == 1
    assert a_rule("diloco").idle_steps == a_rule("diloco").compress.reset_rounds
    assert a_rule("muloco", fragments=2).idle_steps == a_rule("muloco").compress.reset_rounds
