"""Reference gradient: that of torch in float64, for every model that can be ordered, group by group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects

from assay.protocol.errors import Unavailable
from assay.protocol.params import AdapterSpec, ComputeSpec, Family, Precision, Target
from assay.testing.specs import FLOAT32_WHOLE, a_model
from assay.training.exact import initial_parameters
from assay.training.frozen import Frozen
from assay.training.layout import layout_of
from assay.training.model.gpt import gpt_logits
from assay.training.model.llama import llama_logits
from assay.training.model.loss import loss_and_gradient
from assay.training.model.presets import gpt_spec, llama_spec
from assay.training.reference.gradient import reference_loss_and_gradient
from assay.training.reference.operators import operators

GPT = gpt_spec(layers=2, width=42, heads=3, context=37, vocabulary=101, hidden=75)
LLAMA = llama_spec(layers=2, width=48, heads=6, kv_heads=2, hidden=77, context=19, vocabulary=77)
MODELS = {
    "gpt": GPT,
    "gpt, tied": replace(GPT, is_tied=True),
    "gpt, one of each": gpt_spec(layers=1, width=1, heads=1, context=1, vocabulary=2, hidden=1),
    "gpt, blocks of more than a tile": gpt_spec(layers=1, width=272, heads=2, context=70, vocabulary=530),
    "llama": LLAMA,
    "llama, tied": replace(LLAMA, is_tied=True, rope_theta=500_000, norm_epsilon_nano=1000),
    "llama, a key each": replace(LLAMA, kv_heads=6),
    "llama, one key": replace(LLAMA, kv_heads=1, heads=4, context=64),
    "llama, heads of their own width": replace(LLAMA, head_width=10),
    "qwen2": replace(LLAMA, family=Family.QWEN2),
    "qwen3": replace(LLAMA, family=Family.QWEN3, head_width=10, kv_heads=1),
    "gemma": replace(LLAMA, family=Family.GEMMA, head_width=10),
    "gemma, tied": replace(LLAMA, family=Family.GEMMA, is_tied=True),
    "llama, narrow heads": llama_spec(layers=3, width=6, heads=3, kv_heads=1, hidden=5, context=7),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
NAMES = ("llama", "llama, tied", "llama, heads of their own width", "qwen2", "qwen3", "gemma")
LLAMA_STYLE = {name: MODELS[name] for name in NAMES}
MICRO = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2)
HALF = ComputeSpec(dtype=Precision.BFLOAT16, micro_sequences=0)
TOLERANCE = 1e-5


def a_batch(model, sequences=3):
    layout = layout_of(model)
    theta = initial_parameters(4, layout.names, layout.shapes) * np.float32(2) + np.float32(0.003)
    tokens = np.random.default_rng(1).integers(0, model.vocabulary, (sequences, model.context + 1))
    return model, layout, theta, tokens


def in_float64(model, layout, theta, tokens, beside=None):
    """Loss and gradient by torch; norms and angles of a Llama stay float32 there."""
    flat = torch.from_numpy(theta.astype(np.float64)).requires_grad_(True)
    parts = {n: flat[at : at + int(np.prod(s))].view(s) for n, (at, s) in layout.offsets().items()}
    logits_of = gpt_logits if model.family is Family.GPT else llama_logits
    logits = logits_of(model, {**(beside or {}), **parts}, torch.from_numpy(tokens[:, :-1]))
    loss = F.cross_entropy(logits.reshape(-1, model.vocabulary), torch.from_numpy(tokens[:, 1:]).reshape(-1))
    loss.backward()
    return float(loss.detach()), flat.grad.numpy()


def distance(found, true) -> float:
    """Relative to the true one's length."""
    return float(np.linalg.norm(found - true) / max(np.linalg.norm(true), 1e-6))


@every_model
def test_loss_and_gradient_are_those_of_float64(model):
    batch = a_batch(model)
    loss, gradient = in_float64(*batch)
    before = batch[2].copy()

    found, found_P = reference_loss_and_gradient(*batch, compute=FLOAT32_WHOLE)

    assert found == pytest.approx(loss, rel=1e-6)
    assert found_P.dtype == np.float32 and distance(found_P, gradient) < TOLERANCE
    for name, (at, shape) in batch[1].offsets().items():
        part = slice(at, at + int(np.prod(shape)))
        scale = np.linalg.norm(gradient) * TOLERANCE
        assert np.linalg.norm(found_P[part] - gradient[part]) < scale, name
    assert np.array_equal(batch[2], before)


@pytest.mark.parametrize(
    ("rank", "targets"),
    [(1, (Target.DOWN,)), (4, (Target.Q, Target.V)), (3, tuple(Target))],
    ids=["down", "q, v", "all seven"],
)
@pytest.mark.parametrize("base", LLAMA_STYLE.values(), ids=LLAMA_STYLE.keys())
def test_an_adapters_gradient_is_that_of_float64_along_its_factors_alone(base, rank, targets):
    model = replace(base, adapter=AdapterSpec(rank=rank, alpha=5, targets=targets))
    _, whole, frozen_F, tokens = a_batch(base)
    layout, frozen = layout_of(model), Frozen(whole, frozen_F)
    theta = initial_parameters(6, layout.names, layout.shapes) * np.float32(2)
    beside = {name: torch.from_numpy(one.astype(np.float64)) for name, one in frozen.arrays().items()}
    loss, gradient = in_float64(model, layout, theta, tokens, beside)

    for compute in (FLOAT32_WHOLE, MICRO):
        found, found_P = reference_loss_and_gradient(
            model, layout, theta, tokens, compute=compute, frozen=frozen
        )
        assert found == pytest.approx(loss, rel=1e-6)
        assert found_P.shape == theta.shape and distance(found_P, gradient) < TOLERANCE
    names = [one.name for one in operators(model, 3, FLOAT32_WHOLE)]
    assert not [
        name for name in names if name.endswith(("norm.weight", "/head", "/embed")) and "slope" in name
    ]
    with pytest.raises(ValueError, match="frozen parameters, expected"):
        reference_loss_and_gradient(model, layout, theta, tokens, compute=MICRO)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("sequences", [1, 2, 5])
def test_groups_give_the_gradient_of_the_whole_batch(model, sequences):
    batch = a_batch(model, sequences)
    loss, gradient = loss_and_gradient(*batch, compute=MICRO)

    found, found_P = reference_loss_and_gradient(*batch, compute=MICRO)

    assert found == pytest.approx(loss, rel=1e-6)
    assert distance(found_P, gradient) < TOLERANCE


def test_every_group_is_a_sum_of_its_own_added_in_order():
    """Two groups of equal sequences: twice the one gradient, exactly, for its share is a power of two."""
    model, layout, theta, tokens = a_batch(LLAMA, 2)
    _, alone = reference_loss_and_gradient(model, layout, theta, tokens, compute=FLOAT32_WHOLE)
    twice = np.concatenate([tokens, tokens])

    _, both = reference_loss_and_gradient(model, layout, theta, twice, compute=MICRO)

    assert np.array_equal(both, alone)


def test_the_precision_of_a_run_changes_nothing():
    batch = a_batch(GPT)

    loss, gradient = reference_loss_and_gradient(*batch, compute=HALF)
    again, gradient_again = reference_loss_and_gradient(*batch, compute=FLOAT32_WHOLE)

    assert loss == again and np.array_equal(gradient, gradient_again)


def test_sizes_and_tokens_that_do_not_fit_are_refused():
    model, layout, theta, tokens = a_batch(a_model())
    one_more = tokens.copy()
    one_more[1, 3] = 256
    for arguments, words in (
        ((model, layout, theta[:-1], tokens), r"float32 parameters of shape \(\d+,\), expected \d+ float32"),
        ((model, layout, theta.astype(np.float64), tokens), "float64 parameters"),
        ((model, layout_of(GPT), theta, tokens), "parameters of shape"),
        ((model, layout, theta, tokens[:, 1:]), r"shape \(3, 16\), expected int64 \(sequences, 17\)"),
        ((model, layout, theta, tokens.astype(np.int32)), "int32 tokens"),
        ((model, layout, theta, tokens[:0]), "a batch of 0 sequences"),
        ((model, layout, theta, one_more), "tokens .* to 256, expected 0 to 255"),
        ((model, layout, theta, ~one_more), "tokens .* to 256, expected 0 to 255"),  # masked
        ((replace(model, heads=3), layout, theta, tokens), "width 64 must be a multiple of heads"),
    ):
        with pytest.raises(ValueError, match=words):
            reference_loss_and_gradient(*arguments, compute=FLOAT32_WHOLE)


@pytest.mark.parametrize(
    ("sequences", "micro", "words"), [(3, 0, "3 out of 3"), (4, 3, "3 out of 4"), (3, 2, "2 out of 3")]
)
def test_half_a_preference_pair_is_refused(sequences, micro, words):
    compute = replace(FLOAT32_WHOLE, beta_micro=100_000, micro_sequences=micro)
    with pytest.raises(ValueError, match=f"groups of {words} sequences, expected whole preference pairs"):
        operators(a_model(), sequences, compute)


def test_a_result_that_is_not_finite_is_named():
    model, layout, theta, tokens = a_batch(a_model())

    with pytest.raises(FloatingPointError, match=r"0/forward/.*not finite"), np.errstate(all="ignore"):
        reference_loss_and_gradient(model, layout, theta * np.float32(1e30), tokens, compute=FLOAT32_WHOLE)


def test_a_thread_that_flushes_subnormal_numbers_is_refused():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush them")
    try:
        with pytest.raises(Unavailable, match="subnormal"):  # not an accusation: the fault is this machine's
            reference_loss_and_gradient(*a_batch(a_model()), compute=FLOAT32_WHOLE)
    finally:
        torch.set_flush_denormal(False)
