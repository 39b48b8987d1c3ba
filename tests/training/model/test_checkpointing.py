"""Layers that are computed again in the backward pass lead to the bits of layers that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects

from assay.protocol.errors import ConfigError
from assay.protocol.params import AdapterSpec, ComputeSpec, Family, ModelSpec, Precision, Target
from assay.testing.specs import a_model
from assay.training.execution.threads import prepare
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import frozen_layout, layout_of
from assay.training.model.checkpointing import use_checkpointing
from assay.training.model.loss import loss_and_gradient, use_one_thread
from assay.training.model.presets import PRESETS
from assay.training.model.replicas import use_replicas

LLAMA = replace(PRESETS["llama-1m"], layers=2, context=16)
ADAPTED = replace(LLAMA, adapter=AdapterSpec(rank=2, alpha=4, targets=(Target.Q, Target.DOWN)))
MODELS = {
    "gpt": a_model(), "llama": LLAMA, "adapted": ADAPTED,
    "gemma": replace(LLAMA, family=Family.GEMMA), "qwen3": replace(LLAMA, family=Family.QWEN3),
}  # fmt: skip
PLAIN = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2)
KINDS = {
    "float32": PLAIN,
    "bfloat16": replace(PLAIN, dtype=Precision.BFLOAT16),
    "pairs": replace(PLAIN, beta_micro=300_000),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    use_checkpointing(False)
    use_replicas(1, "cpu")
    use_one_thread()


def found(model: ModelSpec, compute: ComputeSpec) -> tuple[float, bytes]:
    """Loss and gradient of one batch of three groups."""
    layout, rng = layout_of(model), np.random.default_rng(1)
    theta_P = rng.standard_normal(layout.parameters).astype(np.float32) * 0.02
    tokens = rng.integers(0, model.vocabulary, (6, model.context + 1))
    kept = frozen_layout(model)
    values_F = rng.standard_normal(kept.parameters).astype(np.float32) * 0.02
    frozen = Frozen(kept, values_F) if kept.parameters else ALL_TRAINED
    loss, gradient_P = loss_and_gradient(model, layout, theta_P, tokens, compute=compute, frozen=frozen)
    assert np.count_nonzero(gradient_P)
    return loss, gradient_P.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_computed_again_has_the_same_bits(name: str, kind: str, monkeypatch: pytest.MonkeyPatch):
    kept = found(MODELS[name], KINDS[kind])
    calls, attend = [0], F.scaled_dot_product_attention

    def counted(*args, **named):
        calls[0] += 1
        return attend(*args, **named)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    use_checkpointing(True)
    assert found(MODELS[name], KINDS[kind]) == kept
    assert calls == [2 * 3 * MODELS[name].layers]  # each layer twice, in three groups
    use_replicas(3, "cpu")
    assert found(MODELS[name], KINDS[kind]) == kept


def test_it_is_refused_beside_a_model_that_is_divided_among_processes(tmp_path):
    with pytest.raises(ConfigError, match="gradient_checkpointing with processes = 2: expected one process"):
        prepare(tmp_path, device="cpu", threads=1, processes=2, is_checkpointing=True)
