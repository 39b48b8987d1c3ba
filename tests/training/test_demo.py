"""DeMo's step: what is sent, what stays, and that any part of it can be repeated alone."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training.demo import gradient_sketch, transformed_gradient, transition, update_of

from protocol import merkle
from protocol.messages import SKETCH_BYTES
from protocol.params import BLOCK_SIZE, PPM, DemoSpec
from protocol.types import Digest
from training.layout import layout_of
from training.momentum import momentum_leaves, seal, zero_momentum_root
from training.presets import gpt_spec
from training.wire import decode_update, encode_update

LR = np.float32(0.0017)
LAYOUT = layout_of(gpt_spec(layers=1, width=40, heads=2, context=16))


def a_rule(k: int = 32, beta: float = 0.95, clip: float = 0.0) -> DemoSpec:
    return DemoSpec(
        k=k,
        beta_micro=round(beta * PPM),
        clip_micro=round(clip * PPM),
        lr_nano=1,
        lr_floor_ppm=0,
        warmup_rounds=0,
        sequences=1,
    )


def some(seed: int, blocks: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((blocks, BLOCK_SIZE)) * np.exp(2 * rng.standard_normal((blocks, BLOCK_SIZE)))
    return (values * scale).astype(np.float32)


def sent_of(rule: DemoSpec, step, moved: np.ndarray) -> np.ndarray:
    """What the message says was sent, dense: sign times the mean size of what was chosen."""
    sent = np.zeros_like(moved)
    for block, index, sign in zip(step.live_B, step.index_BK, step.value_BK, strict=True):
        exact = sum(map(Fraction, np.abs(moved[block, index]).astype(float))) / rule.k
        sent[block, index] = sign.astype(np.float32) * np.float32(float(exact))
    return sent


cases = st.tuples(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([1, 2, 3, 31, 32, 33, 2048]))


@settings(deadline=None)
@given(cases)
def test_what_was_sent_and_what_stays_add_up_to_the_decayed_momentum_and_the_gradient(case):
    seed, blocks, k = case
    rule, before, spectrum = a_rule(k), some(seed, blocks), some(seed + 1, blocks, 50.0)

    step = transition(rule, LR, before, spectrum)

    moved = before * np.float32(0.95) + spectrum * LR
    sent = sent_of(rule, step, moved)
    # The mean is summed in float64 as a fixed tree: at most one last place from the exact mean.
    stays = step.after_BC
    assert np.array_equal(stays[sent == 0], moved[sent == 0])
    gap = np.abs(stays.astype(float) + sent.astype(float) - moved.astype(float))
    assert np.all(gap <= np.spacing(np.maximum(np.abs(moved), np.abs(sent))).astype(float))


def test_nothing_is_lost_over_many_steps():
    """The sum of all that was sent, and what stays, is the sum of all gradients (beta = 1 in the limit)."""
    rule = a_rule(k=16, beta=0.999999)
    momentum, total, sent = np.zeros((2, BLOCK_SIZE), np.float32), 0.0, 0.0
    for number in range(40):
        spectrum = some(number, 2)
        moved = momentum * np.float32(0.999999) + spectrum * LR
        step = transition(rule, LR, momentum, spectrum)
        sent = sent + sent_of(rule, step, moved).astype(float)
        total = total + (spectrum * LR).astype(float)
        momentum = step.after_BC

    assert np.abs(sent + momentum - total).max() < 1e-4 * np.abs(total).max()


@settings(deadline=None)
@given(cases)
def test_the_largest_are_sent_with_their_signs_ascending(case):
    seed, blocks, k = case
    before, spectrum = some(seed, blocks), some(seed + 1, blocks)

    step = transition(a_rule(k), LR, before, spectrum)

    moved = before * np.float32(0.95) + spectrum * LR
    assert step.live_B.tolist() == list(range(blocks))
    for block in range(blocks):
        order = sorted(range(BLOCK_SIZE), key=lambda i: (-abs(moved[block, i]), i))
        assert step.index_BK[block].tolist() == sorted(order[:k])
        assert step.value_BK[block].tolist() == np.sign(moved[block, step.index_BK[block]]).tolist()


@pytest.mark.parametrize("k", [1, 5, 32])
def test_ties_go_to_the_lower_index(k):
    level = np.full((1, BLOCK_SIZE), 0.5, np.float32)
    level[0, 1::2] *= -1
    zero = np.zeros_like(level)
    assert transition(a_rule(k, beta=0.0), np.float32(1), zero, level).index_BK.tolist() == [list(range(k))]

    level[0, 4000] = 2.0
    chosen = transition(a_rule(k, beta=0.0), np.float32(1), zero, level).index_BK[0].tolist()
    assert chosen == [*range(k - 1), 4000]


@pytest.mark.parametrize("k", [1, 4, 32])
def test_a_block_with_fewer_than_k_values_sends_nothing_and_keeps_everything(k):
    spectrum = np.zeros((3, BLOCK_SIZE), np.float32)
    spectrum[0, : k - 1] = 1.0
    spectrum[1, :k] = 1.0
    spectrum[2, : k + 1] = 1.0

    step = transition(a_rule(k), LR, np.zeros_like(spectrum), spectrum)

    assert step.live_B.tolist() == [1, 2]
    assert np.array_equal(step.after_BC[0], spectrum[0] * LR)
    assert not step.after_BC[1].any()  # all sent, all equal: nothing stays


def test_an_empty_momentum_and_no_gradient_send_nothing():
    zero = np.zeros((4, BLOCK_SIZE), np.float32)
    update = update_of(transition(a_rule(), LR, zero, zero))

    assert encode_update(update, 4, 32) == b"\0"


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.sets(st.integers(0, 7), min_size=1))
def test_any_subset_of_blocks_gives_the_same_bits_as_all_of_them(seed, subset):
    rule, before, spectrum = a_rule(), some(seed, 8), some(seed + 1, 8)
    before[3], spectrum[3] = 0, 0
    chosen = sorted(subset)

    whole, part = (
        transition(rule, LR, before, spectrum),
        transition(rule, LR, before[chosen], spectrum[chosen]),
    )

    assert np.array_equal(part.after_BC.view(np.uint32), whole.after_BC[chosen].view(np.uint32))
    live = np.isin(whole.live_B, chosen)
    assert [chosen[b] for b in part.live_B] == whole.live_B[live].tolist()
    assert np.array_equal(part.index_BK, whole.index_BK[live])
    assert np.array_equal(part.value_BK, whole.value_BK[live])


def test_inputs_are_not_modified():
    before, spectrum = some(1, 2), some(2, 2)
    kept = before.copy(), spectrum.copy()

    transition(a_rule(), LR, before, spectrum)

    assert np.array_equal(before, kept[0])
    assert np.array_equal(spectrum, kept[1])


def test_a_transition_goes_over_the_wire_and_back():
    step = transition(a_rule(), LR, some(1, 5), some(2, 5))

    back = decode_update(encode_update(update_of(step), 5, 32), 5, 32)

    assert np.array_equal(back.index_BK, step.index_BK)
    assert np.array_equal(back.value_BK, step.value_BK)


# ---- the gradient's transform ----


def test_the_transform_keeps_the_gradients_norm():
    gradient = np.random.default_rng(1).standard_normal(LAYOUT.parameters).astype(np.float32)

    spectrum = transformed_gradient(a_rule(), LAYOUT, gradient)

    assert spectrum.shape == (LAYOUT.blocks, BLOCK_SIZE)
    assert np.linalg.norm(spectrum) == pytest.approx(np.linalg.norm(gradient), rel=1e-3)


@pytest.mark.parametrize(("norm", "expected"), [(0.5, 0.5), (1.0, 1.0), (100.0, 1.0)])
def test_a_gradient_is_clipped_to_its_norm_and_a_small_one_is_left_alone(norm, expected):
    gradient = np.random.default_rng(1).standard_normal(LAYOUT.parameters).astype(np.float32)
    gradient *= np.float32(norm / np.linalg.norm(gradient))

    clipped = transformed_gradient(a_rule(clip=1.0), LAYOUT, gradient)

    assert np.linalg.norm(clipped) == pytest.approx(expected, rel=1e-3)


def test_a_constant_block_is_one_coefficient():
    gradient = np.zeros(LAYOUT.parameters, np.float32)
    at, (rows, width) = LAYOUT.offsets()["embed"]
    gradient[at : at + rows * width] = 1.0
    wide = transformed_gradient(a_rule(), LAYOUT, gradient)[0].reshape(64, 64)

    assert wide[0, 0] == pytest.approx(64 * width / 64, rel=1e-3)  # the block's mean times 64
    assert np.abs(wide[1:]).max() < 1e-3


# ---- what a commit binds ----

RUN, OTHER = Digest(b"r" * 32), Digest(b"s" * 32)


def test_momentum_leaves_bind_run_place_and_every_bit():
    momentum = some(1, 3)
    root = merkle.root(momentum_leaves(RUN, momentum))
    flipped = momentum.copy()
    flipped.view(np.uint32)[2, 4095] ^= 1

    others = [
        momentum_leaves(OTHER, momentum),
        momentum_leaves(RUN, momentum[::-1]),
        momentum_leaves(RUN, flipped),
        momentum_leaves(RUN, momentum[:2]),
    ]
    assert root not in [merkle.root(leaves) for leaves in others]


def test_the_first_momentum_is_zero_and_everybody_knows_its_root():
    zero = np.zeros((5, BLOCK_SIZE), np.float32)

    assert zero_momentum_root(RUN, 5) == merkle.root(momentum_leaves(RUN, zero))
    assert zero_momentum_root(RUN, 5) != zero_momentum_root(RUN, 6)


def test_a_sketch_depends_on_the_gradient_and_on_the_manifest_before():
    spectrum = some(1, 3)
    other = spectrum.copy()
    other[2, 77] += 1

    sketches = {
        gradient_sketch(RUN, spectrum),
        gradient_sketch(OTHER, spectrum),
        gradient_sketch(RUN, other),
    }

    assert len(sketches) == 3
    assert {len(sketch) for sketch in sketches} == {SKETCH_BYTES}
    assert gradient_sketch(RUN, spectrum) in sketches


def test_a_seal_hides_its_sketch_and_opens_only_with_its_salt():
    sketch = gradient_sketch(RUN, some(1, 1))

    assert len({seal(bytes(32), sketch), seal(b"\1" * 32, sketch), seal(bytes(32), bytes(512))}) == 3


def test_a_mean_of_equal_sizes_is_that_size():
    for k in (1, 2, 3, 7, 32, 2048):
        spectrum = np.zeros((1, BLOCK_SIZE), np.float32)
        spectrum[0, :k] = np.float32(math.pi)
        step = transition(a_rule(k, beta=0.0), np.float32(1), np.zeros_like(spectrum), spectrum)
        assert not step.after_BC.any(), k
