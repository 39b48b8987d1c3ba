"""The compressor as DeMo uses it: what is sent, what stays, and that any part can be repeated alone."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.encoding import merkle
from assay.protocol.messages import SKETCH_BYTES
from assay.protocol.params import BLOCK_SIZE, PPM
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import RuleSpec
from assay.testing import specs
from assay.training.codec.wire import decode_update, encode_update
from assay.training.layout import layout_of
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.presets import gpt_spec
from assay.training.optimiser.momentum_root import momentum_leaves, private_leaves, zero_root
from assay.training.transform.compress import gradient_blocks, transition, work_sketch

LR, ONE = np.float32(0.0017), np.float32(1)
LAYOUT = layout_of(gpt_spec(layers=1, width=40, heads=2, context=16))


def a_rule(k: int = 32, beta: float = 0.95, clip: float = 0.0) -> RuleSpec:
    return specs.a_rule(k=k, feedback_micro=round(beta * PPM), clip_micro=round(clip * PPM), equalises=False)


def step_of(rule: RuleSpec, before: np.ndarray, spectrum: np.ndarray, lr: np.float32 = LR):
    """One step of DeMo: the learning rate goes into the momentum with the gradient."""
    return transition(rule.compress, before, spectrum * lr)


def some(seed: int, blocks: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((blocks, BLOCK_SIZE)) * np.exp(2 * rng.standard_normal((blocks, BLOCK_SIZE)))
    return (values * scale).astype(np.float32)


def sent_of(rule: RuleSpec, step, moved: np.ndarray) -> np.ndarray:
    """What the message says was sent, dense: sign times the mean size of what was chosen."""
    sent = np.zeros_like(moved)
    for block, index, sign in zip(step.sent.blocks_B, step.sent.index_BK, step.sent.value_BK, strict=True):
        exact = sum(map(Fraction, np.abs(moved[block, index]).astype(float))) / rule.compress.k
        sent[block, index] = sign.astype(np.float32) * np.float32(float(exact))
    return sent


cases = st.tuples(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([1, 2, 3, 31, 32, 33, 2048]))


@settings(deadline=None)
@given(cases)
def test_what_was_sent_and_what_stays_add_up_to_the_decayed_momentum_and_the_gradient(case):
    seed, blocks, k = case
    rule, before, spectrum = a_rule(k), some(seed, blocks), some(seed + 1, blocks, 50.0)

    step = step_of(rule, before, spectrum)

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
        step = step_of(rule, momentum, spectrum)
        sent = sent + sent_of(rule, step, moved).astype(float)
        total = total + (spectrum * LR).astype(float)
        momentum = step.after_BC

    assert np.abs(sent + momentum - total).max() < 1e-4 * np.abs(total).max()


@settings(deadline=None)
@given(cases)
def test_the_largest_are_sent_with_their_signs_ascending(case):
    seed, blocks, k = case
    before, spectrum = some(seed, blocks), some(seed + 1, blocks)

    step = step_of(a_rule(k), before, spectrum)

    moved = before * np.float32(0.95) + spectrum * LR
    assert step.sent.blocks_B.tolist() == list(range(blocks))
    for block in range(blocks):
        order = sorted(range(BLOCK_SIZE), key=lambda i: (-abs(moved[block, i]), i))
        assert step.sent.index_BK[block].tolist() == sorted(order[:k])
        assert step.sent.value_BK[block].tolist() == np.sign(moved[block, step.sent.index_BK[block]]).tolist()


@pytest.mark.parametrize("k", [1, 5, 32])
def test_ties_go_to_the_lower_index(k):
    level = np.full((1, BLOCK_SIZE), 0.5, np.float32)
    level[0, 1::2] *= -1
    zero = np.zeros_like(level)
    assert step_of(a_rule(k, beta=0.0), zero, level, ONE).sent.index_BK.tolist() == [list(range(k))]

    level[0, 4000] = 2.0
    chosen = step_of(a_rule(k, beta=0.0), zero, level, ONE).sent.index_BK[0].tolist()
    assert chosen == [*range(k - 1), 4000]


@pytest.mark.parametrize("k", [1, 4, 32])
def test_a_block_with_fewer_than_k_values_sends_nothing_and_keeps_everything(k):
    spectrum = np.zeros((3, BLOCK_SIZE), np.float32)
    spectrum[0, : k - 1] = 1.0
    spectrum[1, :k] = 1.0
    spectrum[2, : k + 1] = 1.0

    step = step_of(a_rule(k), np.zeros_like(spectrum), spectrum)

    assert step.sent.blocks_B.tolist() == [1, 2]
    assert np.array_equal(step.after_BC[0], spectrum[0] * LR)
    assert not step.after_BC[1].any()  # all sent, all equal: nothing stays


def test_an_empty_momentum_and_no_gradient_send_nothing():
    zero = np.zeros((4, BLOCK_SIZE), np.float32)
    update = step_of(a_rule(), zero, zero).sent

    assert encode_update(update, 4, 32) == b"\0"


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.sets(st.integers(0, 7), min_size=1))
def test_any_subset_of_blocks_gives_the_same_bits_as_all_of_them(seed, subset):
    rule, before, spectrum = a_rule(), some(seed, 8), some(seed + 1, 8)
    before[3], spectrum[3] = 0, 0
    chosen = sorted(subset)

    whole, part = (
        step_of(rule, before, spectrum),
        step_of(rule, before[chosen], spectrum[chosen]),
    )

    assert np.array_equal(part.after_BC.view(np.uint32), whole.after_BC[chosen].view(np.uint32))
    live = np.isin(whole.sent.blocks_B, chosen)
    assert [chosen[b] for b in part.sent.blocks_B] == whole.sent.blocks_B[live].tolist()
    assert np.array_equal(part.sent.index_BK, whole.sent.index_BK[live])
    assert np.array_equal(part.sent.value_BK, whole.sent.value_BK[live])


def test_inputs_are_not_modified():
    before, spectrum = some(1, 2), some(2, 2)
    kept = before.copy(), spectrum.copy()

    step_of(a_rule(), before, spectrum)

    assert np.array_equal(before, kept[0])
    assert np.array_equal(spectrum, kept[1])


def test_a_transition_goes_over_the_wire_and_back():
    step = step_of(a_rule(), some(1, 5), some(2, 5))

    back = decode_update(encode_update(step.sent, 5, 32), 5, 32)

    assert np.array_equal(back.index_BK, step.sent.index_BK)
    assert np.array_equal(back.value_BK, step.sent.value_BK)


# ---- the gradient's transform ----


def test_the_transform_keeps_the_gradients_norm():
    gradient = np.random.default_rng(1).standard_normal(LAYOUT.parameters).astype(np.float32)

    spectrum = gradient_blocks(a_rule(), LAYOUT, gradient, ONE)

    assert spectrum.shape == (LAYOUT.blocks, BLOCK_SIZE)
    assert np.linalg.norm(spectrum) == pytest.approx(np.linalg.norm(gradient), rel=1e-3)


@pytest.mark.parametrize(("norm", "expected"), [(0.5, 0.5), (1.0, 1.0), (100.0, 1.0)])
def test_a_gradient_is_clipped_to_its_norm_and_a_small_one_is_left_alone(norm, expected):
    gradient = np.random.default_rng(1).standard_normal(LAYOUT.parameters).astype(np.float32)
    gradient *= np.float32(norm / np.linalg.norm(gradient))

    clipped = gradient_blocks(a_rule(clip=1.0), LAYOUT, gradient, ONE)

    assert np.linalg.norm(clipped) == pytest.approx(expected, rel=1e-3)


def test_a_constant_block_is_one_coefficient():
    gradient = np.zeros(LAYOUT.parameters, np.float32)
    at, (rows, width) = LAYOUT.offsets()["embed"]
    gradient[at : at + rows * width] = 1.0
    wide = gradient_blocks(a_rule(), LAYOUT, gradient, ONE)[0].reshape(64, 64)

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


def test_the_first_private_state_is_zero_and_everybody_knows_its_root():
    zero = np.zeros((5, BLOCK_SIZE), np.float32)
    demo, streaming = specs.a_rule(), specs.a_rule("streaming-diloco")

    assert zero_root(RUN, demo, 5) == merkle.root(momentum_leaves(RUN, zero))
    assert zero_root(RUN, streaming, 5) == merkle.root(private_leaves(RUN, zero, NO_DIGEST))
    assert len({zero_root(RUN, demo, 5), zero_root(RUN, demo, 6), zero_root(RUN, streaming, 5)}) == 3


def test_a_sketch_depends_on_the_gradient_and_on_the_manifest_before():
    spectrum = some(1, 3)
    other = spectrum.copy()
    other[2, 77] += 1

    sketches = {
        work_sketch(RUN, spectrum),
        work_sketch(OTHER, spectrum),
        work_sketch(RUN, other),
    }

    assert len(sketches) == 3
    assert {len(sketch) for sketch in sketches} == {SKETCH_BYTES}
    assert work_sketch(RUN, spectrum) in sketches


def test_a_mean_of_equal_sizes_is_that_size():
    for k in (1, 2, 3, 7, 32, 2048):
        spectrum = np.zeros((1, BLOCK_SIZE), np.float32)
        spectrum[0, :k] = np.float32(math.pi)
        step = step_of(a_rule(k, beta=0.0), np.zeros_like(spectrum, ONE), spectrum)
        assert not step.after_BC.any(), k


@pytest.mark.parametrize("method", ["demo", "sparseloco", "diloco", "fedavg"])
def test_the_error_may_be_changed_where_it_lies(method):
    compress = method_rule(method, Choices()).compress
    before, x = some(1, 5), some(2, 5)
    fresh = transition(compress, before.copy(), x)

    moved = transition(compress, before, x, before)

    assert moved.after_BC is before and np.array_equal(before, fresh.after_BC)
    assert np.array_equal(moved.sent.value_BK, fresh.sent.value_BK)
    assert np.array_equal(moved.sent.index_BK, fresh.sent.index_BK)


@pytest.mark.parametrize("blocks", [0, 1, 31, 32, 33, 100])
def test_a_sketch_adds_up_32_blocks_at_a_time_in_their_order(blocks):
    decades = np.linspace(-15, 15, blocks, dtype=np.float32)[:, None]
    x = some(blocks, blocks) * np.float32(10) ** decades  # so that sums in another order have other bits
    total = np.zeros(BLOCK_SIZE)
    for top in range(0, blocks, 32):
        part = x[top].astype(np.float64)
        for row in x[top + 1 : top + 32]:
            part = part + row
        total = total + part
    pattern = hashlib.shake_256(b"assay/sketch/1" + bytes(32)).digest(BLOCK_SIZE * 8)
    signs = np.unpackbits(np.frombuffer(pattern, np.uint8)).reshape(64, BLOCK_SIZE) * 2.0 - 1

    assert work_sketch(Digest(bytes(32)), x) == (signs * total).sum(axis=1).astype("<f8").tobytes()
