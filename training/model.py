"""Model: a GPT as a pure function of the flat parameter vector.

Room: training (pure). Pre-norm decoder with learned positions, GELU and an
untied head (Radford et al. 2019). Everything that decides bits (dtype, attention
kernel, micro-batching, threads) is fixed here and named in `execution_class`.
"""

from __future__ import annotations

import hashlib
import platform

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from numpy.typing import NDArray
from torch import Tensor

from protocol.params import ModelSpec
from protocol.types import Digest
from training.layout import Layout

NORM_EPSILON = 1e-5


def execution_class() -> Digest:
    """Digest of what decides the bits of a gradient on this machine; equal means comparable bit for bit."""
    parts = (
        "assay/class/1",
        torch.__version__,
        np.__version__,
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        f"mkldnn={torch.backends.mkldnn.is_available()}",  # type: ignore[no-untyped-call]
        f"threads={torch.get_num_threads()}",
        "float32",
        "sdpa",
        "whole-batch",
    )
    return Digest(hashlib.sha256("|".join(parts).encode()).digest())


def use_one_thread() -> None:
    """Set the flags that `execution_class` describes. Call once per process, before any work."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def loss_and_gradient(
    model: ModelSpec, layout: Layout, theta_P: NDArray[np.float32], tokens: NDArray[np.int64]
) -> tuple[float, NDArray[np.float32]]:
    """Mean next-token loss in nats, and its gradient.

    Args:
        model: Sizes.
        layout: Order and shapes of the parameters.
        theta_P: Parameters. Shape (P,), float32; not modified.
        tokens: Inputs and targets. Shape (sequences, context + 1), int64.

    Returns:
        The loss and the gradient, shape (P,), float32. Same bits within an execution class.
    """
    flat = torch.from_numpy(theta_P.copy()).requires_grad_(True)
    loss = _loss(model, _views(layout, flat), torch.from_numpy(tokens))
    (gradient,) = torch.autograd.grad(loss, flat)
    return float(loss.detach()), gradient.numpy()


def mean_loss(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    rows: int = 8,
) -> float:
    """Mean next-token loss in nats, `rows` sequences at a time."""
    with torch.no_grad():
        views = _views(layout, torch.from_numpy(theta_P))
        parts = [
            float(_loss(model, views, torch.from_numpy(tokens[i : i + rows]))) * len(tokens[i : i + rows])
            for i in range(0, len(tokens), rows)
        ]
    return sum(parts) / len(tokens)


def _views(layout: Layout, flat: Tensor) -> dict[str, Tensor]:
    parts = torch.split(flat, [int(np.prod(shape)) for shape in layout.shapes])
    return {n: p.view(s) for n, s, p in zip(layout.names, layout.shapes, parts, strict=True)}


def _loss(model: ModelSpec, p: dict[str, Tensor], tokens: Tensor) -> Tensor:
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    batch, length = inputs.shape
    x = F.embedding(inputs, p["embed"]) + p["position"][:length]
    for layer in range(model.layers):
        at = f"layer{layer}."
        h = F.layer_norm(x, (model.width,), p[at + "norm1.weight"], p[at + "norm1.bias"], NORM_EPSILON)
        qkv = (
            F.linear(h, p[at + "attention.qkv"])
            .view(batch, length, 3, model.heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, model.width), p[at + "attention.out"])
        h = F.layer_norm(x, (model.width,), p[at + "norm2.weight"], p[at + "norm2.bias"], NORM_EPSILON)
        x = x + F.linear(F.gelu(F.linear(h, p[at + "mlp.up"])), p[at + "mlp.down"])
    x = F.layer_norm(x, (model.width,), p["norm.weight"], p["norm.bias"], NORM_EPSILON)
    logits = F.linear(x, p["head"])
    return F.cross_entropy(logits.reshape(-1, model.vocabulary), targets.reshape(-1))
