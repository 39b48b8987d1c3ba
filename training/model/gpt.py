"""GPT: logits of a pre-norm decoder with learned positions and GELU.

Room: training (pure). Radford et al., "Language Models are Unsupervised Multitask
Learners", 2019, without biases in linear layers. With zeros for these biases it is
a Hugging Face GPT2LMHeadModel with the activation "gelu".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from torch import Tensor

from assay.protocol.params import ModelSpec
from assay.training.model.checkpointing import layer


def gpt_logits(model: ModelSpec, p: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Logits of the next token at every position.

    Args:
        model: Sizes; the family must be GPT.
        p: Parameters by their names in the layout.
        inputs: Tokens. Shape (batch, length), int64, length <= context.

    Returns:
        Shape (batch, length, vocabulary).
    """
    batch, length = inputs.shape
    epsilon = model.norm_epsilon_nano / 1e9
    x = F.embedding(inputs, p["embed"]) + p["position"][:length]

    def one_layer(at: str, x: Tensor) -> Tensor:
        h = F.layer_norm(x, (model.width,), p[at + "norm1.weight"], p[at + "norm1.bias"], epsilon)
        qkv = (
            F.linear(h, p[at + "attention.qkv"])
            .view(batch, length, 3, model.heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, model.width), p[at + "attention.out"])
        h = F.layer_norm(x, (model.width,), p[at + "norm2.weight"], p[at + "norm2.bias"], epsilon)
        return x + F.linear(F.gelu(F.linear(h, p[at + "mlp.up"])), p[at + "mlp.down"])

    for number in range(model.layers):
        x = layer(partial(one_layer, f"layer{number}."), x)
    x = F.layer_norm(x, (model.width,), p["norm.weight"], p["norm.bias"], epsilon)
    return F.linear(x, p["embed"] if model.is_tied else p["head"])
