"""FLOP: the formula is a count by hand, and what torch counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from assay.protocol.params import Family, ModelSpec
from assay.testing.specs import FLOAT32_WHOLE, a_model
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.flops import flop_per_token, weights_per_token
from assay.training.model.loss import loss_and_gradient
from assay.training.model.presets import llama_spec

LLAMA = llama_spec(layers=2, width=64, heads=4, kv_heads=2, hidden=96, context=32)
TIED = replace(a_model(), is_tied=True)
LLAMA_STYLE = [
    replace(LLAMA, family=Family.QWEN2),
    replace(LLAMA, family=Family.QWEN3, head_width=20),
    replace(LLAMA, family=Family.GEMMA, head_width=20, is_tied=True),
]
TOLERANCE = 0.001  # torch counts the same products, and nothing is rounded


def test_a_tiny_gpt_is_counted_as_by_hand():
    model = a_model()  # 1 layer, 64 wide, context 16, 256 tokens, MLP of 4 * 64
    attention, mlp, head = 3 * 64 * 64 + 64 * 64, 2 * 64 * 256, 256 * 64

    assert weights_per_token(model) == attention + mlp + head == 65_536
    assert flop_per_token(model) == 6 * 65_536 + 12 * 1 * 16 * 64 == 405_504


def test_a_head_of_its_own_costs_no_more_than_a_tied_one_and_grouped_keys_cost_less():
    model = a_model()
    grouped = 64 * 64 * 2 + 2 * 32 * 64

    tied, untied = (replace(model, is_tied=is_tied) for is_tied in (True, False))
    assert weights_per_token(tied) == weights_per_token(untied)
    assert weights_per_token(LLAMA) == 2 * (grouped + 3 * 64 * 96) + 256 * 64


@pytest.mark.parametrize("model", [a_model(), TIED, a_model(layers=3, context=64), LLAMA, *LLAMA_STYLE])
def test_torch_counts_as_much_in_a_forward_and_backward_pass(model: ModelSpec):
    layout = layout_of(model)
    theta = initial_parameters(7, layout.names, layout.shapes)
    tokens = np.random.default_rng(1).integers(0, 256, (3, model.context + 1), dtype=np.int64)

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss_and_gradient(model, layout, theta, tokens, compute=FLOAT32_WHOLE)

    assert counter.get_total_flops() == pytest.approx(
        3 * model.context * flop_per_token(model), rel=TOLERANCE
    )
