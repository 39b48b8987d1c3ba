"""Rounded linear: products with a frozen matrix that is held in 8 or 4 bits.

Room: training (pure). The matrix is decoded for each product, forwards and backwards, and not kept: autograd
would else hold all of a base in float32 until its backward pass.

Shape suffixes: R = rows, G = groups of a row, K = bytes of a group's codes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from torch import Tensor

from assay.training.rounded import GROUP


def rounded_linear(x: Tensor, code_RGK: Tensor, scale_RG: Tensor, bias: Tensor | None) -> Tensor:
    """x times the transposed matrix, plus the bias if there is one. The gradient is along x alone."""
    found: Tensor = _RoundedLinear.apply(x, code_RGK, scale_RG, bias)  # type: ignore[no-untyped-call]
    return found


class _RoundedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, code_RGK: Tensor, scale_RG: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(code_RGK, scale_RG)
        ctx.columns, ctx.dtype = x.shape[-1], x.dtype
        return F.linear(x, _decoded(code_RGK, scale_RG, ctx.columns), bias)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        code_RGK, scale_RG = ctx.saved_tensors
        matrix = _decoded(code_RGK, scale_RG, ctx.columns).to(gradient[0].dtype)
        return gradient[0].matmul(matrix).to(ctx.dtype), None, None, None


def _decoded(code_RGK: Tensor, scale_RG: Tensor, columns: int) -> Tensor:
    """As `rounded.decoded`: the same values. Shape (R, columns), float32."""
    code_RGC = code_RGK.view(torch.int8)
    if code_RGK.shape[2] < GROUP:
        code_RGC = torch.cat([code_RGK & 15, code_RGK >> 4], dim=2).view(torch.int8) - 8
    value_RGC = code_RGC.float().mul_(scale_RG[:, :, None])
    return value_RGC.view(len(scale_RG), -1)[:, :columns].contiguous()
