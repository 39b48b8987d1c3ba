"""Llama: logits of a Llama-style decoder: rotary positions, RMSNorm, a gated MLP and grouped queries.

Room: training (pure). Touvron et al., arXiv:2302.13971; RoPE: Su et al.,
arXiv:2104.09864; grouped queries: Ainslie et al., arXiv:2305.13245; adapters:
Hu et al., arXiv:2106.09685. Weights mean what
they mean to Hugging Face's class of the family (hugging_face.py): rotation pairs
coordinate i of a head with i + head / 2, not with its neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from torch import Tensor

from assay.protocol.params import Family, ModelSpec
from assay.training.layout import BIAS, LORA_A, LORA_B


def llama_logits(model: ModelSpec, p: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Logits of the next token at every position.

    Args:
        model: Sizes; the family must not be GPT.
        p: Parameters by their names in the layouts, of an adapter too if there is one.
        inputs: Tokens. Shape (batch, length), int64.

    Returns:
        Shape (batch, length, vocabulary).
    """
    batch, length = inputs.shape
    head = model.head
    epsilon = model.norm_epsilon_nano / 1e9
    linear = partial(_linear, model, p)
    cos, sin = _angles(length, head, model.rope_theta, inputs.device)
    x = F.embedding(inputs, p["embed"])
    for layer in range(model.layers):
        at = f"layer{layer}."
        h = _rms_norm(x, p[at + "norm1.weight"], epsilon)
        q, k, v = (
            linear(h, at + f"attention.{part}").view(batch, length, -1, head).transpose(1, 2)
            for part in "qkv"
        )
        if model.family is Family.QWEN3:
            q = _rms_norm(q, p[at + "attention.q_norm.weight"], epsilon)
            k = _rms_norm(k, p[at + "attention.k_norm.weight"], epsilon)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        shared = model.heads // model.kv_heads
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(mixed.transpose(1, 2).reshape(batch, length, model.mixed_width), at + "attention.out")
        h = _rms_norm(x, p[at + "norm2.weight"], epsilon)
        gated = F.silu(linear(h, at + "mlp.gate")) * linear(h, at + "mlp.up")
        x = x + linear(gated, at + "mlp.down")
    return F.linear(_rms_norm(x, p["norm.weight"], epsilon), p["embed"] if model.is_tied else p["head"])


def _linear(model: ModelSpec, p: Mapping[str, Tensor], x: Tensor, name: str) -> Tensor:
    """x times the transposed matrix of this name, plus its bias if it has one, and what an adapter adds.

    That is alpha / rank * B (A x).
    """
    y = F.linear(x, p[name], p.get(name + BIAS))
    if name + LORA_A not in p:
        return y
    low = F.linear(F.linear(x, p[name + LORA_A]), p[name + LORA_B])
    return y + low * (model.adapter.alpha / model.adapter.rank)


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Zhang & Sennrich, arXiv:1910.07467; in float32 whatever x is, since squares leave bfloat16."""
    wide = x.float()
    return (weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon))).to(x.dtype)


def _angles(length: int, head: int, theta: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * theta^(-2i / head). Shapes (length, head), the two halves equal."""
    frequency = 1.0 / theta ** (torch.arange(0, head, 2, dtype=torch.float32, device=device) / head)
    angle = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequency)
    both = torch.cat((angle, angle), dim=-1)
    return both.cos(), both.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)
