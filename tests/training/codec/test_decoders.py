"""Decoders: what they compute is what the papers say, and a gradient has the bits its class promises."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.protocol.errors import ConfigError
from assay.protocol.params import ComputeSpec, Family, ModelSpec, Precision, model_faults
from assay.training.exact import initial_parameters
from assay.training.execution.execution_class import execution_class
from assay.training.layout import Layout, layout_of
from assay.training.model.loss import (
    FLOAT32_WHOLE,
    check_device,
    loss_and_gradient,
    mean_loss,
    use_threads,
)
from assay.training.model.presets import PRESETS, gpt_spec, llama_spec
from tests.training.model.logits import logits

LLAMA = llama_spec(vocabulary=61, layers=2, width=48, heads=6, kv_heads=2, hidden=80, context=12)
GPT = gpt_spec(vocabulary=61, layers=2, width=48, heads=4, context=12)
FAMILIES = {
    "gpt": GPT,
    "gpt, tied": replace(GPT, is_tied=True, hidden=72),
    "llama": LLAMA,
    "llama, tied": replace(LLAMA, is_tied=True, rope_theta=500_000, norm_epsilon_nano=1000),
    "llama, a key for every head": replace(LLAMA, kv_heads=6),
    "llama, heads of their own width": replace(LLAMA, head_width=6),
    "qwen2": replace(LLAMA, family=Family.QWEN2),
    "qwen3": replace(LLAMA, family=Family.QWEN3, head_width=10),
    "gemma": replace(LLAMA, family=Family.GEMMA, head_width=10, is_tied=True),
    "llama, one key for all": replace(LLAMA, kv_heads=1),
}
every_family = pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES.keys())
TOKENS = np.random.default_rng(5).integers(0, 61, (6, 13))


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_threads(1)


def theta_of(model: ModelSpec) -> tuple[Layout, np.ndarray]:
    """Parameters large enough that every part of the model matters."""
    layout = layout_of(model)
    theta = initial_parameters(3, layout.names, layout.shapes) * np.float32(4) + np.float32(0.01)
    for name, part in layout.views(theta).items():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            part /= (
                4  # or attention is a step from one place to another, and no gradient says how far it holds
            )
    return layout, theta


def parts_of(layout: Layout, theta: np.ndarray) -> dict[str, np.ndarray]:
    return {
        name: theta[at : at + math.prod(shape)].reshape(shape).astype(np.float64)
        for name, (at, shape) in layout.offsets().items()
    }


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def plain_logits(model: ModelSpec, layout: Layout, theta: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """One sequence, head by head and position by position in float64: slow, and nothing shared with ours."""
    p, size = parts_of(layout, theta), model.head_width or model.width // model.heads
    epsilon, family = model.norm_epsilon_nano / 1e9, model.family.name
    is_llama = family != "GPT"

    def norm(x, name):
        if is_llama:
            gain = p[name + ".weight"] + (family == "GEMMA")
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
        return centred / scale * p[name + ".weight"] + p[name + ".bias"]

    def rotate(vector, position):
        turned = np.empty_like(vector)
        for i in range(size // 2):
            angle = position * model.rope_theta ** (-2 * i / size)
            pair = complex(vector[i], vector[i + size // 2]) * complex(math.cos(angle), math.sin(angle))
            turned[i], turned[i + size // 2] = pair.real, pair.imag
        return turned

    x = p["embed"][tokens] * (math.sqrt(model.width) if family == "GEMMA" else 1)
    x = x + (0 if is_llama else p["position"][: len(tokens)])
    for layer in range(model.layers):
        at = f"layer{layer}."
        h = norm(x, at + "norm1")
        if is_llama:
            q, k, v = (
                h @ p[at + f"attention.{part}"].T + p.get(at + f"attention.{part}.bias", 0) for part in "qkv"
            )
        else:
            q, k, v = np.split(h @ p[at + "attention.qkv"].T, 3, axis=1)
        mixed = np.zeros((len(tokens), model.heads * size))
        for head in range(model.heads):
            shared = head // (model.heads // model.kv_heads)
            own, others = slice(head * size, (head + 1) * size), slice(shared * size, (shared + 1) * size)
            qs, ks = q[:, own], k[:, others]
            if family == "QWEN3":
                qs, ks = norm(qs, at + "attention.q_norm"), norm(ks, at + "attention.k_norm")
            if is_llama:
                qs = np.stack([rotate(one, at_) for at_, one in enumerate(qs)])
                ks = np.stack([rotate(one, at_) for at_, one in enumerate(ks)])
            for at_ in range(len(tokens)):
                weights = softmax(qs[at_] @ ks[: at_ + 1].T / math.sqrt(size))
                mixed[at_, own] = weights @ v[: at_ + 1, others]
        x = x + mixed @ p[at + "attention.out"].T
        h = norm(x, at + "norm2")
        up = h @ p[at + "mlp.up"].T
        if is_llama:
            gate = h @ p[at + "mlp.gate"].T
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            gelu, silu = gate / 2 * (1 + np.tanh(inner)), gate / (1 + np.exp(-gate))
            x = x + ((gelu if family == "GEMMA" else silu) * up) @ p[at + "mlp.down"].T
        else:
            erf = np.vectorize(math.erf)
            x = x + (up * (1 + erf(up / math.sqrt(2))) / 2) @ p[at + "mlp.down"].T
    return norm(x, "norm") @ (p["embed"] if model.is_tied else p["head"]).T


@every_family
def test_logits_are_those_of_a_plain_implementation(model):
    layout, theta = theta_of(model)

    found = logits(model, layout, theta, TOKENS[:2, :-1])

    for row in range(2):
        expected = plain_logits(model, layout, theta, TOKENS[row, :-1])
        assert np.abs(found[row] - expected).max() < 1e-4 * np.abs(expected).max()


@every_family
def test_no_token_sees_what_follows_it(model):
    layout, theta = theta_of(model)
    changed = TOKENS[:, :-1].copy()
    changed[:, 7:] = (changed[:, 7:] + 1) % model.vocabulary

    before, after = (logits(model, layout, theta, tokens) for tokens in (TOKENS[:, :-1], changed))

    assert np.allclose(before[:, :7], after[:, :7], atol=1e-5)
    assert not np.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


@every_family
def test_the_gradient_points_where_the_loss_falls_as_fast_as_it_says(model):
    layout, theta = theta_of(model)
    loss, gradient = loss_and_gradient(model, layout, theta, TOKENS, compute=FLOAT32_WHOLE)
    slope = float(np.linalg.norm(gradient.astype(np.float64)))
    direction, step = gradient / np.float32(slope), np.float32(5e-4)

    up, down = (mean_loss(model, layout, theta + sign * step * direction, TOKENS) for sign in (1, -1))

    assert (up - down) / (2 * float(step)) == pytest.approx(slope, rel=0.01)
    assert mean_loss(model, layout, theta, TOKENS) == pytest.approx(loss, rel=1e-6)


def gradient_of(model, *, micro=0, dtype=Precision.FLOAT32):
    layout, theta = theta_of(model)
    compute = ComputeSpec(dtype=dtype, micro_sequences=micro)
    return loss_and_gradient(model, layout, theta, TOKENS, compute=compute)


@every_family
@pytest.mark.parametrize("micro", [1, 2, 4, 6, 9])  # 4 leaves a smaller last group, 9 is more than there are
def test_accumulated_gradients_are_those_of_the_whole_batch_and_repeat_to_the_bit(model, micro):
    whole_loss, whole = gradient_of(model)

    loss, found = gradient_of(model, micro=micro)
    again_loss, again = gradient_of(model, micro=micro)

    assert loss == pytest.approx(whole_loss, rel=1e-6)
    assert np.abs(found - whole).max() < 1e-5 * np.abs(whole).max()
    assert (loss, found.tobytes()) == (again_loss, again.tobytes())


@every_family
def test_bfloat16_comes_close_and_leaves_the_gradient_in_float32(model):
    loss, gradient = gradient_of(model)
    half_loss, half = gradient_of(model, dtype=Precision.BFLOAT16, micro=3)

    cosine = float(gradient @ half / np.linalg.norm(gradient) / np.linalg.norm(half))
    assert half_loss == pytest.approx(loss, rel=0.02)
    assert half_loss != loss  # it really was computed in another precision
    assert half.dtype == np.float32
    assert cosine > 0.99
    assert half.tobytes() == gradient_of(model, dtype=Precision.BFLOAT16, micro=3)[1].tobytes()


def test_parameters_that_are_read_only_stay_as_they_are():
    layout, theta = theta_of(LLAMA)
    before = theta.copy()

    loss_and_gradient(LLAMA, layout, theta, TOKENS, compute=FLOAT32_WHOLE)

    assert np.array_equal(theta, before)


@pytest.mark.slow
def test_everything_that_decides_bits_has_a_class_of_its_own():
    computes = [ComputeSpec(dtype=dtype, micro_sequences=micro) for dtype in Precision for micro in (0, 1, 2)]
    classes = {execution_class(compute) for compute in computes}
    assert len(classes) == len(computes)
    assert execution_class(FLOAT32_WHOLE) in classes
    try:
        use_threads(2)
        assert execution_class(FLOAT32_WHOLE) not in classes
    finally:
        use_threads(1)


def test_a_device_that_is_not_there_is_named():
    check_device("cpu")
    with pytest.raises(ConfigError, match='device "tpu": expected one of cpu, cuda'):
        check_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match='device "cuda": torch finds none here'):
            check_device("cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_family
@pytest.mark.parametrize("dtype", Precision)
def test_a_gradient_on_a_gpu_repeats_to_the_bit_and_comes_close_to_the_cpus(model, dtype):
    layout, theta = theta_of(model)
    compute = ComputeSpec(dtype=dtype, micro_sequences=4)
    loss, gradient = loss_and_gradient(model, layout, theta, TOKENS, compute=compute)

    first, second = (
        loss_and_gradient(model, layout, theta, TOKENS, compute=compute, device="cuda") for _ in range(2)
    )

    assert first[0] == second[0]
    assert first[1].tobytes() == second[1].tobytes()
    assert first[0] == pytest.approx(loss, rel=0.02)
    assert float(first[1] @ gradient / np.linalg.norm(first[1]) / np.linalg.norm(gradient)) > 0.98
    assert execution_class(compute, "cuda") != execution_class(compute, "cpu")


# ---- presets and sizes ----


def test_presets_have_the_sizes_their_names_say():
    counts = {name: layout_of(model).parameters for name, model in PRESETS.items()}

    assert counts == {
        "gpt-1m": 870_656,
        "gpt-15m": 14_463_744,
        "gpt-125m": 110_335_488,
        "gpt-350m": 335_906_816,
        "llama-130k": 131_392,
        "llama-1m": 853_120,
        "llama-15m": 15_145_344,
        "llama-125m": 124_668_672,
        "llama-350m": 348_701_696,
        "llama-1b": 1_100_048_384,
    }
    assert all(model_faults(model) == () for model in PRESETS.values())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (replace(LLAMA, kv_heads=4), "heads 6 must be a multiple of kv_heads"),
        (replace(LLAMA, heads=5), "width 48 must be a multiple of heads"),
        (replace(LLAMA, heads=16, kv_heads=16), "rotation needs an even number"),
        (replace(LLAMA, rope_theta=0), "rope_theta is 0"),
        (replace(LLAMA, norm_epsilon_nano=0), "epsilon"),
        (replace(LLAMA, layers=0), "layers is 0"),
        (replace(GPT, kv_heads=2), "as many kv_heads as heads"),
        (replace(GPT, rope_theta=10_000), "learned positions"),
    ],
)
def test_sizes_that_make_no_model_are_refused_in_words(model, words):
    assert any(words in fault for fault in model_faults(model))
