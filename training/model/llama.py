"""Llama: logits of a Llama-style decoder: rotary positions, RMSNorm, a gated MLP and grouped queries.

Room: training (pure). Touvron et al., arXiv:2302.13971; RoPE: Su et al.,
arXiv:2104.09864; grouped queries: Ainslie et al., arXiv:2305.13245; adapters:
Hu et al., arXiv:2106.09685. Weights mean what
they mean to Hugging Face's class of the family (hugging_face.py): rotation pairs
coordinate i of a head with i + head / 2, not with its neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from torch import Tensor

from assay.protocol.params import Family, ModelSpec
from assay.training.layout import BIAS, LORA_A, LORA_B
from assay.training.model.checkpointing import layer
from assay.training.model.rounded_linear import rounded_linear
from assay.training.rounded import CODES, SCALES


def llama_logits(model: ModelSpec, p: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Logits of the next token at every position.

    Args:
        model: Sizes; the family must not be GPT.
        p: Parameters by their names in the layouts, of an adapter too if there is one; a frozen matrix in few
            bits as its codes and scales.
        inputs: Tokens. Shape (batch, length), int64.

    Returns:
        Shape (batch, length, vocabulary).
    """
    batch, length = inputs.shape
    head = model.head
    linear, norm = partial(_linear, model, p), partial(_norm, model, p)
    cos, sin = _angles(length, head, model.rope_theta, inputs.device)
    x = F.embedding(inputs, p["embed"])
    if model.family is Family.GEMMA:
        x = x * math.sqrt(model.width)

    def one_layer(at: str, x: Tensor) -> Tensor:
        h = norm(x, at + "norm1")
        q, k, v = (
            linear(h, at + f"attention.{part}").view(batch, length, -1, head).transpose(1, 2)
            for part in "qkv"
        )
        if model.family is Family.QWEN3:
            q, k = norm(q, at + "attention.q_norm"), norm(k, at + "attention.k_norm")
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        shared = model.heads // model.kv_heads
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(mixed.transpose(1, 2).reshape(batch, length, model.mixed_width), at + "attention.out")
        h = norm(x, at + "norm2")
        gate = linear(h, at + "mlp.gate")
        is_gelu = model.family is Family.GEMMA
        gated = (F.gelu(gate, approximate="tanh") if is_gelu else F.silu(gate)) * linear(h, at + "mlp.up")
        return x + linear(gated, at + "mlp.down")

    for number in range(model.layers):
        x = layer(partial(one_layer, f"layer{number}."), x)
    return F.linear(norm(x, "norm"), p["embed"] if model.is_tied else p["head"])


def _linear(model: ModelSpec, p: Mapping[str, Tensor], x: Tensor, name: str) -> Tensor:
    """x times the transposed matrix of this name, plus its bias if it has one, and what an adapter adds.

    That is alpha / rank * B (A x).
    """
    bias = p.get(name + BIAS)
    if name + CODES in p:
        y = rounded_linear(x, p[name + CODES], p[name + SCALES], bias)
    else:
        y = F.linear(x, p[name], bias)
    if name + LORA_A not in p:
        return y
    low = F.linear(F.linear(x, p[name + LORA_A]), p[name + LORA_B])
    return y + low * (model.adapter.alpha / model.adapter.rank)


def _norm(model: ModelSpec, p: Mapping[str, Tensor], x: Tensor, name: str) -> Tensor:
    """RMSNorm: Zhang & Sennrich, arXiv:1910.07467; in float32 whatever x is, since squares leave bfloat16."""
    weight, wide = p[name + ".weight"], x.float()
    if model.family is Family.GEMMA:
        weight = 1 + weight
    square = wide.square().mean(-1, keepdim=True)
    return (weight * (wide * torch.rsqrt(square + model.norm_epsilon_nano / 1e9))).to(x.dtype)


def _angles(length: int, head: int, theta: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * theta^(-2i / head). Shapes (length, head), the two halves equal."""
    frequency = 1.0 / theta ** (torch.arange(0, head, 2, dtype=torch.float32, device=device) / head)
    angle = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequency)
    both = torch.cat((angle, angle), dim=-1)
    return both.cos(), both.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)
