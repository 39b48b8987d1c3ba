"""Rounding: the jittered gradient tells how far classes differ, whatever data or parameters are chosen."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from assay.protocol.params import ComputeSpec, Family, Precision
from assay.testing.learned import learned_by_heart
from assay.testing.specs import FLOAT32_WHOLE, a_model
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of, to_blocks
from assay.training.model.loss import loss_and_gradient, use_one_thread
from assay.training.model.presets import llama_spec
from assay.training.reference.attention import Attention
from assay.training.reference.gradient import reference_loss_and_gradient
from assay.training.reference.operators import Operator, operators
from assay.training.reference.rounding import JITTERED, _signs, jittered_gradient, jittered_operators
from assay.verifier.audit.limits import POLICIES
from assay.verifier.audit.tolerance import DOUBTED, WIDEST, widening

GPT = a_model()
LLAMA = llama_spec(layers=2, width=64, heads=4, kv_heads=2, hidden=96, context=16)
BFLOAT16 = ComputeSpec(dtype=Precision.BFLOAT16, micro_sequences=0)
EACH_PRECISION = pytest.mark.parametrize("compute", [FLOAT32_WHOLE, BFLOAT16], ids=["float32", "bfloat16"])
MODELS = {
    "gpt": GPT,
    "llama": LLAMA,
    "qwen2": replace(LLAMA, family=Family.QWEN2),
    "qwen3": replace(LLAMA, family=Family.QWEN3, head_width=24),
    "gemma": replace(LLAMA, family=Family.GEMMA, head_width=24, is_tied=True),
}
EACH_MODEL = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


def a_batch(model, sequences: int = 2) -> np.ndarray:
    return np.random.default_rng(3).integers(0, model.vocabulary, (sequences, model.context + 1))


def parameters(model) -> np.ndarray:
    layout = layout_of(model)
    return initial_parameters(4, layout.names, layout.shapes)


def saturated(model, times: float) -> np.ndarray:
    """Parameters whose attention has its mind made up: queries and keys so many times as large."""
    theta, layout = parameters(model), layout_of(model)
    for name, (at, shape) in layout.offsets().items():
        part = theta[at : at + int(np.prod(shape))].reshape(shape)
        if name.endswith(("attention.q", "attention.k", "q_norm.weight", "k_norm.weight")):
            part *= np.float32(times)
        elif name.endswith("attention.qkv"):
            part[: 2 * shape[0] // 3] *= np.float32(times)
    return theta


def compared(model, theta, tokens, compute, seed=b"seed") -> tuple[np.ndarray, np.ndarray]:
    """By block, in units of the first limit: how far this class is from the reference class, and how much
    wider limits are to be."""
    layout = layout_of(model)
    _, native = loss_and_gradient(model, layout, theta, tokens, compute=compute)
    _, there = reference_loss_and_gradient(model, layout, theta, tokens, compute=compute)
    moved = jittered_gradient(model, layout, theta, tokens, compute=compute, seed=seed)
    native, there, moved = (blocks(layout, one) for one in (native, there, moved))
    apart, size = (np.linalg.norm(one.astype(np.float64), axis=1) for one in (native - there, there))
    limit = POLICIES[compute.dtype].t1 * 1e-9
    return apart / np.maximum(size, size.mean() / 1000) / limit, widening(there, moved, compute.dtype)


def blocks(layout, flat: np.ndarray) -> np.ndarray:
    return to_blocks(layout, flat).reshape(layout.blocks, -1)


@EACH_MODEL
@EACH_PRECISION
def test_on_data_that_are_news_limits_stay_about_what_they_are(model, compute):
    distance, wider = compared(model, parameters(model), a_batch(model), compute)

    assert (distance < 1).all()
    in_half = 4 if model.family is Family.QWEN3 else 3  # where heads' norms round once more
    assert wider.max() < (0.2 if compute is FLOAT32_WHOLE else in_half)


@pytest.mark.slow
@EACH_MODEL
@EACH_PRECISION
@pytest.mark.parametrize("loss", [0.1, 1e-2, 1e-3])
def test_of_a_batch_known_by_heart_no_class_is_further_than_limits_widen(model, compute, loss):
    tokens = a_batch(model)
    theta = learned_by_heart(model, parameters(model), tokens, loss_at_most=loss)

    distance, wider = compared(model, theta, tokens, compute)

    assert (distance <= 3 * np.maximum(wider, 1)).all()  # conviction begins at five times the limit
    if loss <= 1e-2:
        assert np.median(distance) > 1  # beyond the limit itself


@EACH_MODEL
@EACH_PRECISION
@pytest.mark.parametrize("times", [3, 10])
def test_of_parameters_that_multiply_what_was_rounded_no_class_is_much_further(model, compute, times):
    theta = (parameters(model) * np.float32(times)).astype(np.float32)

    distance, wider = compared(model, theta, a_batch(model), compute)

    assert (distance <= 3 * np.maximum(wider, 1)).all()
    if times == 10:
        assert distance.max() > 5  # honest machines would be convicted by the limit itself


@EACH_PRECISION
@pytest.mark.parametrize("times", [1, 10])
def test_of_biases_that_outweigh_what_they_are_added_to_no_class_is_much_further(compute, times):
    model = MODELS["qwen2"]
    theta = parameters(model)
    for name, part in layout_of(model).views(theta).items():
        if name.endswith(".bias"):
            part[:] = times * np.random.default_rng(6).standard_normal(part.shape)

    distance, wider = compared(model, theta, a_batch(model), compute)

    assert (distance <= 3 * np.maximum(wider, 1)).all()


@EACH_PRECISION
@pytest.mark.parametrize("gate", [-3, -4])
def test_where_all_gates_are_far_below_zero_no_class_is_much_further(compute, gate):
    """There 1 + tanh, which is nearly all rounding, is the activation."""
    model, theta = MODELS["gemma"], parameters(MODELS["gemma"])
    parts = layout_of(model).views(theta)
    parts["embed"] += np.float32(1)  # so that norms put out about 1, times a gain of 2
    for layer in range(model.layers):
        parts[f"layer{layer}.mlp.gate"] += np.float32(gate / 2 / model.width)

    distance, wider = compared(model, theta, a_batch(model), compute)

    assert (distance <= 3 * np.maximum(wider, 1)).all()


@EACH_MODEL
def test_where_probabilities_are_one_the_rounding_inside_attention_counts(model):
    distance, wider = compared(model, saturated(model, 1000), a_batch(model), FLOAT32_WHOLE)

    assert distance.max() > 20
    assert (distance <= 5 * np.maximum(wider, 1)).all()


@EACH_PRECISION
def test_of_two_sequences_that_contradict_each_other_limits_widen(compute):
    layout, tokens = layout_of(GPT), a_batch(GPT, 1)
    other = tokens.copy()
    other[0, -1] = (tokens[0, -1] + 1) % GPT.vocabulary
    pair = np.concatenate([tokens, other])
    _, slope = reference_loss_and_gradient(GPT, layout, parameters(GPT), pair, compute=compute)
    moved = jittered_gradient(GPT, layout, parameters(GPT), pair, compute=compute, seed=b"seed")

    slope, moved = blocks(layout, slope), blocks(layout, moved)

    plain = widening(slope, moved, compute.dtype)
    less = slope / np.float32(20)  # as if so much had cancelled
    assert np.allclose(widening(less, less + (moved - slope), compute.dtype), 20 * plain, rtol=1e-2)


def test_where_a_rounding_moves_half_of_a_block_nothing_is_told_from_any():
    x = np.ones((4, 16), np.float32)

    for share, found in ((0.49, 0.49 * DOUBTED / 2e-5), (0.51, WIDEST)):
        moved = x.copy()
        moved[1] *= np.float32(1 + share)
        assert widening(x, moved, Precision.FLOAT32).max() == pytest.approx(found, rel=1e-3)
    moved[0, 0] = np.inf
    assert (widening(x, moved, Precision.FLOAT32) == WIDEST).all()


def test_what_goes_up_are_the_bits_of_splitmix64():
    """Of the generator's paper: from a state of 0, which here gives the word before them."""
    words = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
    bits = [
        byte >> bit & 1 for word in words for byte in word.to_bytes(8, "little") for bit in range(7, -1, -1)
    ]
    assert _signs(0, 256)[64:].tolist() == [1 - 2 * bit for bit in bits]


def test_the_seed_decides_what_goes_up_and_little_else():
    layout, tokens, theta = layout_of(GPT), a_batch(GPT), parameters(GPT)
    _, slope = reference_loss_and_gradient(GPT, layout, theta, tokens, compute=FLOAT32_WHOLE)

    def noise(seed: bytes) -> np.ndarray:
        return jittered_gradient(GPT, layout, theta, tokens, compute=FLOAT32_WHOLE, seed=seed) - slope

    one, again, other = noise(b"one"), noise(b"one"), noise(b"two")
    assert (one == again).all()
    alike = one @ other / (np.linalg.norm(one) * np.linalg.norm(other))
    assert abs(alike) < 0.3
    assert 0.5 < np.linalg.norm(one) / np.linalg.norm(other) < 2


def test_every_operator_stands_beside_one_that_reads_jittered_inputs_alone():
    program = operators(replace(GPT, layers=1), 2, FLOAT32_WHOLE)
    made = {one.name for one in program}

    for own, moved in zip(program, jittered_operators(program, Precision.FLOAT32, b"seed"), strict=True):
        assert moved.name == JITTERED + own.name
        assert moved.inputs == tuple(JITTERED + name if name in made else name for name in own.inputs)


def test_which_input_goes_up_follows_from_seed_operator_and_place():
    x = np.random.default_rng(1).standard_normal((3, 50)).astype(np.float32)
    operator = Operator("group0/sum", ("a", "b"), lambda *given: np.stack(given))
    (moved,) = jittered_operators([operator], Precision.BFLOAT16, b"seed")

    for place, found in enumerate(moved.function(x, x)):
        head = hashlib.sha256(f"assay/jitter/1seedgroup0/sum/{place}".encode()).digest()[:8]
        signs = _signs(int.from_bytes(head, "big"), x.size).reshape(x.shape)
        assert np.array_equal(found, x + x * (np.float32(2.0**-9) * signs))


def test_kernels_that_take_probabilities_again_from_the_log_of_a_sum_are_within_what_scores_round():
    """Flash attention does so, and its products differ forwards and backwards: what is 1 becomes 1.001."""
    attention = Attention(heads=1, kv_heads=1, head=16, length=32, theta=0)
    rng = np.random.default_rng(5)
    q, k = (40 * rng.standard_normal((32, 16)).astype(np.float32) for _ in range(2))
    v, slope = (rng.standard_normal((32, 16)).astype(np.float32) for _ in range(2))
    exact = attention.back(slope, q, k, v)[:, 32:]
    score = np.where(np.tri(32, dtype=bool), q @ k.T / np.float32(4), -np.inf)
    high = score.max(axis=1, keepdims=True)
    total = (high + np.log(np.exp(score - high).sum(axis=1, keepdims=True))).astype(np.float32)
    again = score * (1 + rng.choice([-1, 1], score.shape) * np.float32(2.0**-24))
    native = np.exp((again - total).astype(np.float32)).T @ slope
    jitters = (lambda found: found * (np.sign(rng.standard_normal(found.shape)) * 2.0**-24 + 1)), np.copy

    moved = attention.back(slope, q, k, v, jitters=jitters)[:, 32:]

    apart, wider = (np.linalg.norm(one - exact) / np.linalg.norm(exact) for one in (native, moved))
    assert np.abs(score[np.isfinite(score)]).max() > 1_000
    assert apart > 1e-5, "nothing is tested"
    assert apart < 3 * wider
