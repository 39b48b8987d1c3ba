"""Adapters: low-rank factors are all that is trained and sent, and they mean what they mean to `peft`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from assay.protocol.errors import ConfigError
from assay.protocol.params import (
    AdapterSpec,
    ComputeSpec,
    Family,
    Precision,
    Target,
    check_spec,
    model_faults,
)
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.specs import FLOAT32_WHOLE, a_spec
from assay.training.exact import initial_factors, initial_parameters
from assay.training.fragments import check_fragments, fragment_blocks
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import from_blocks, frozen_layout, layout_of, to_blocks
from assay.training.model.adapter import merged
from assay.training.model.flops import flop_per_token, weights_per_token
from assay.training.model.hugging_face import (
    export_adapter,
    export_adapter_config,
    export_config,
    export_tensors,
    read_sizes,
    read_theta,
)
from assay.training.model.initial import frozen_parameters, starting_parameters, state_digest
from assay.training.model.loss import loss_and_gradient, mean_loss
from assay.training.model.presets import PRESETS, llama_spec
from assay.training.optimiser.matrices import matrices, rest_of
from assay.training.rounded import encode
from assay.training.transform.blocked_dct import spectra, transformed_blocks
from assay.training.transform.equalise import equalised, equalising
from tests.training.model.logits import logits

WHOLE = llama_spec(vocabulary=70, layers=2, width=48, heads=6, kv_heads=2, hidden=80, context=16)
Q_AND_V = AdapterSpec(rank=4, alpha=6, targets=(Target.Q, Target.V))
MODEL = replace(WHOLE, adapter=Q_AND_V)
ALL_SEVEN = replace(WHOLE, adapter=replace(Q_AND_V, targets=tuple(Target)))
BASES = {
    "q, v": MODEL,
    "all seven": ALL_SEVEN,
    "qwen2": replace(ALL_SEVEN, family=Family.QWEN2),
    "qwen3": replace(ALL_SEVEN, family=Family.QWEN3, head_width=10),
    "gemma": replace(ALL_SEVEN, family=Family.GEMMA, head_width=10, is_tied=True),
}
TOKENS = np.random.default_rng(2).integers(0, 70, (4, 17))
HALF = ComputeSpec(dtype=Precision.BFLOAT16, micro_sequences=2)


def a_base(model=WHOLE) -> np.ndarray:
    layout = layout_of(model)
    return initial_parameters(9, layout.names, layout.shapes) * np.float32(3) + np.float32(0.01)


def frozen_of(model) -> Frozen:
    return Frozen(frozen_layout(model), a_base(model.whole))


def in_bits(model, bits: int) -> Frozen:
    layout = frozen_layout(model)
    return Frozen(layout, encode(layout, a_base(model.whole), bits), bits)


def factors_of(model, shift: float = 0.02) -> np.ndarray:
    """Factors of which none is zero."""
    layout = layout_of(model)
    return initial_factors(5, layout.names, layout.shapes) + np.float32(shift)


# ---- the spec ----


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank": 0}, "rank 0 and alpha 6, expected at least 1"),
        ({"alpha": 0}, "rank 4 and alpha 0, expected at least 1"),
        ({"rank": 16}, r"rank 16 for v, a matrix of 16 x 48: expected less than its shorter side"),
        ({"targets": ()}, "targets must ascend, each once, and be at least one"),
        ({"targets": (Target.V, Target.Q)}, "targets must ascend"),
        ({"targets": (Target.Q, Target.Q)}, "targets must ascend"),
        ({"base_bits": 16}, "a base in 16 bits, expected 8, 4 or 0 for float32"),
    ],
)
def test_an_adapter_that_cannot_be_is_named(changes, words):
    assert model_faults(replace(MODEL, adapter=replace(Q_AND_V, rank=15))) == ()

    (fault,) = model_faults(replace(MODEL, adapter=replace(Q_AND_V, **changes)))

    assert re.search(words, fault)


def test_an_adapter_is_for_a_llama_and_for_a_base():
    (fault,) = model_faults(replace(PRESETS["gpt-1m"], adapter=Q_AND_V))
    assert "needs a Llama" in fault
    spec = a_spec()
    on_base = replace(spec, model=replace(PRESETS["llama-130k"], adapter=Q_AND_V, base=Digest(b"b" * 32)))
    check_spec(on_base)
    with pytest.raises(ValueError, match="trained on imported parameters"):
        check_spec(replace(on_base, model=replace(on_base.model, base=NO_DIGEST)))


# ---- layout and start ----


def test_only_the_factors_are_laid_out_dense_and_every_a_before_every_b():
    layout = layout_of(MODEL)

    assert layout.names == tuple(
        f"layer{n}.attention.{part}.lora_{side}" for side in "ab" for n in (0, 1) for part in "qv"
    )
    assert dict(zip(layout.names, layout.shapes, strict=True))["layer1.attention.v.lora_b"] == (16, 4)
    assert layout.parameters == 2 * (4 * 48 + 48 * 4 + 4 * 48 + 16 * 4) == 1280
    assert frozen_layout(MODEL) == layout_of(WHOLE)
    assert frozen_layout(WHOLE).parameters == 0
    large = layout_of(replace(PRESETS["llama-15m"], adapter=replace(Q_AND_V, rank=8)))
    assert large.blocks == -(-large.parameters // 4096)  # not eight times as many
    flat = np.arange(1, large.parameters + 1, dtype=np.float32)
    assert np.array_equal(to_blocks(large, flat).reshape(-1)[: len(flat)], flat)
    assert np.array_equal(from_blocks(large, to_blocks(large, flat)), flat)


def test_dct_of_packed_blocks_is_that_of_the_blocks_cut_out_and_scaled_by_rows_and_columns():
    layout = layout_of(ALL_SEVEN)
    flat = np.random.default_rng(3).standard_normal(layout.parameters).astype(np.float32)

    for scales, expected in ((None, flat), (equalising(layout, flat), equalised(layout, flat))):
        found = transformed_blocks(layout, flat, 1.0, scales=scales)
        assert np.array_equal(found, spectra(to_blocks(layout, expected)))


def test_packed_blocks_are_fragments_in_rotation_and_every_factor_is_one_of_muons_matrices():
    layout = layout_of(replace(PRESETS["llama-15m"], adapter=Q_AND_V))

    assert fragment_blocks(layout, 3).tolist() == [n % 3 for n in range(layout.blocks)]
    with pytest.raises(ValueError, match="would be empty"):
        check_fragments(layout, layout.blocks + 1)
    assert len(matrices(layout)) == len(layout.names)
    assert not rest_of(layout).any()


def test_a_run_starts_from_factors_of_its_seed_that_change_nothing_and_from_the_base_it_names(tmp_path):
    np.save(tmp_path / "base.npy", a_base())
    spec = replace(a_spec(), model=replace(MODEL, base=state_digest(a_base())))

    theta, frozen = starting_parameters(spec, None), frozen_parameters(spec, tmp_path / "base.npy")

    for name, (at, shape) in layout_of(MODEL).offsets().items():
        part = theta[at : at + int(np.prod(shape))]
        if name.endswith("lora_a"):
            bound = 1 / np.sqrt(shape[1])
            assert 0.9 * bound < np.abs(part).max() <= bound and abs(part.mean()) < bound / 5
        else:
            assert not part.any()
    assert np.array_equal(merged(MODEL, frozen, theta), a_base())
    assert not np.array_equal(starting_parameters(replace(spec, seed=spec.seed + 1), None), theta)
    other = a_base()
    other[3] += 1
    np.save(tmp_path / "base.npy", other)
    with pytest.raises(ConfigError, match="not the parameters this run starts from"):
        frozen_parameters(spec, tmp_path / "base.npy")
    with pytest.raises(ConfigError, match="write their file as base = PATH"):
        frozen_parameters(spec, None)


# ---- compute ----


@pytest.mark.parametrize("model", [MODEL, ALL_SEVEN], ids=["q, v", "all seven"])
def test_unmerged_and_merged_are_one_model(model):
    theta, frozen = factors_of(model), frozen_of(model)

    found = logits(model, layout_of(model), theta, TOKENS[:, :-1], frozen=frozen)

    expected = logits(WHOLE, layout_of(WHOLE), merged(model, frozen, theta), TOKENS[:, :-1])
    plain = logits(WHOLE, layout_of(WHOLE), a_base(), TOKENS[:, :-1])
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    assert np.abs(plain - expected).max() > 0.01  # the factors do something
    assert np.array_equal(frozen.values(), a_base())


def test_the_gradient_is_along_the_factors_alone_and_is_the_slope_of_the_loss():
    layout, theta, frozen = layout_of(ALL_SEVEN), factors_of(ALL_SEVEN), frozen_of(ALL_SEVEN)

    loss, gradient = loss_and_gradient(ALL_SEVEN, layout, theta, TOKENS, compute=FLOAT32_WHOLE, frozen=frozen)

    assert gradient.shape == theta.shape
    direction = np.random.default_rng(1).standard_normal(len(theta)).astype(np.float32)
    up, down = (
        mean_loss(ALL_SEVEN, layout, theta + np.float32(step) * direction, TOKENS, frozen=frozen)
        for step in (1e-3, -1e-3)
    )
    assert (up - down) / 2e-3 == pytest.approx(float(gradient @ direction), rel=0.02)
    assert mean_loss(ALL_SEVEN, layout, theta, TOKENS, frozen=frozen) == pytest.approx(loss, rel=1e-6)
    assert not any(tensor.requires_grad for tensor in frozen.on("cpu").values())
    halved, _ = loss_and_gradient(ALL_SEVEN, layout, theta, TOKENS, compute=HALF, frozen=frozen)
    assert halved == pytest.approx(loss, rel=0.02)


@pytest.mark.parametrize("name", ["all seven", "qwen2", "qwen3", "gemma"])
@pytest.mark.parametrize("compute", [FLOAT32_WHOLE, HALF])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_base_in_few_bits_trains_as_the_same_values_in_float32_do(name, compute, bits):
    model = BASES[name]
    layout, theta, few = layout_of(model), factors_of(model), in_bits(model, bits)
    plain = Frozen(frozen_layout(model), few.values())
    found, expected = (
        loss_and_gradient(model, layout, theta, TOKENS, compute=compute, frozen=one) for one in (few, plain)
    )
    assert found[0] == expected[0] and np.array_equal(found[1], expected[1])
    away = loss_and_gradient(model, layout, theta, TOKENS, compute=compute, frozen=frozen_of(model))
    assert away[0] != found[0] and away[0] == pytest.approx(found[0], rel=0.05)
    assert not any(tensor.requires_grad for tensor in few.on("cpu").values())


def test_a_base_in_few_bits_is_read_from_its_file_and_no_other_is(tmp_path):
    few, path = in_bits(MODEL, 4), tmp_path / "base.npy"
    adapter = replace(Q_AND_V, base_bits=4)
    spec = replace(a_spec(), model=replace(MODEL, adapter=adapter, base=state_digest(few.values())))
    np.save(path, few.stored)

    read = frozen_parameters(spec, path)
    assert np.array_equal(read.stored, few.stored) and read.bits == 4
    assert np.array_equal(merged(spec.model, read, starting_parameters(spec, None)), few.values())
    assert few.stored.nbytes < 0.7 * a_base().nbytes  # most of so small a model is padding and embedding

    for wrong in (few.values(), in_bits(MODEL, 8).stored):
        np.save(path, wrong)
        with pytest.raises(ConfigError, match=rf"expected {len(few.stored)} uint8"):
            frozen_parameters(spec, path)
    other = few.stored.copy()
    other[-32] ^= 1  # of the last group, which has sixteen columns
    np.save(path, other)
    with pytest.raises(ConfigError, match="not the parameters this run starts from"):
        frozen_parameters(spec, path)


def test_another_base_or_none_is_refused():
    layout, theta = layout_of(MODEL), factors_of(MODEL)
    with pytest.raises(ValueError, match=r"0 frozen parameters, expected \d+"):
        loss_and_gradient(MODEL, layout, theta, TOKENS, compute=FLOAT32_WHOLE)
    with pytest.raises(ValueError, match="frozen parameters, expected 0"):
        logits(WHOLE, layout_of(WHOLE), a_base(), TOKENS[:, :-1], frozen=frozen_of(MODEL))
    with pytest.raises(ValueError, match=r"of shape \(\d+,\), expected"):
        Frozen(frozen_layout(MODEL), a_base()[:-1])
    assert ALL_TRAINED.on("cpu") == {}


@pytest.mark.slow
def test_flop_are_those_that_torch_counts_but_for_the_first_layers_input():
    """Nothing is trained below the first layer's matrices: torch computes no slope along their input."""
    tokens = TOKENS[:3]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss_and_gradient(
            ALL_SEVEN, layout_of(ALL_SEVEN), factors_of(ALL_SEVEN), tokens,
            compute=FLOAT32_WHOLE, frozen=frozen_of(ALL_SEVEN),
        )  # fmt: skip

    left_out = 2 * 48 * (48 + 16 + 16 + 3 * 4)  # q, k and v, and their three A
    expected = flop_per_token(ALL_SEVEN) - left_out
    assert counter.get_total_flops() == pytest.approx(3 * 16 * expected, rel=0.001)
    trained = layout_of(MODEL).parameters
    assert flop_per_token(MODEL) == flop_per_token(WHOLE) - 2 * weights_per_token(WHOLE) + 6 * trained
    assert weights_per_token(MODEL) == weights_per_token(WHOLE) + trained


# ---- delivery: nothing is downloaded ----


def a_delivery(folder: Path, model, theta: np.ndarray) -> None:
    """The base, the adapter and the merged model, as bundle/write.py writes the last two."""
    for name, flat in (("base", a_base(model.whole)), ("model", merged(model, frozen_of(model), theta))):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(export_config(model.whole, None)))
        tensors = export_tensors(model.whole, flat)
        save_file(tensors, folder / name / "model.safetensors", metadata={"format": "pt"})
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(export_adapter_config(model)))
    save_file(export_adapter(model, theta), folder / "adapter" / "adapter_model.safetensors")


def test_factors_have_pefts_names_and_the_merged_folder_is_a_base_for_the_next_run(tmp_path):
    theta = factors_of(MODEL)
    a_delivery(tmp_path, MODEL, theta)

    tensors = export_adapter(MODEL, theta)

    assert tensors["base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"].shape == (16, 4)
    assert tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape == (4, 48)
    assert len(tensors) == 8
    assert read_sizes(tmp_path / "model") == WHOLE
    assert np.array_equal(read_theta(tmp_path / "model", WHOLE), merged(MODEL, frozen_of(MODEL), theta))


@pytest.mark.parametrize("model", BASES.values(), ids=BASES.keys())
def test_peft_loads_the_adapter_beside_its_base_and_computes_what_we_do(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="needs transformers (pip install 'assay[hf]')")
    peft = pytest.importorskip("peft", reason="needs peft (pip install 'assay[hf]')")
    layout, frozen, theta = layout_of(model), frozen_of(model), factors_of(model, 0.0)
    for _ in range(5):
        _, slope = loss_and_gradient(model, layout, theta, TOKENS, compute=FLOAT32_WHOLE, frozen=frozen)
        theta = theta - np.float32(0.5) * slope
    a_delivery(tmp_path, model, theta)
    inputs = torch.from_numpy(TOKENS[:, :-1])

    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        plain, in_one = base(inputs).logits.numpy(), whole(inputs).logits.numpy()
        beside = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()(inputs).logits.numpy()

    found = logits(model, layout, theta, TOKENS[:, :-1], frozen=frozen)
    scale = max(1.0, np.abs(found).max())
    assert np.abs(found - beside).max() < 1e-5 * scale
    assert np.abs(found - in_one).max() < 1e-5 * scale
    assert np.abs(found - plain).max() > 1e-3 * scale
