"""Forward: the blocks of a flat vector, in the DCT basis or as they are, without cutting them out first.

Room: training (pure). In a matrix whose width is a multiple of 64, the flat vector read in rows of
64 is what the transform's right factor takes, and its left factor reads each block with a stride.
So blocks are written once, in their place. A factor on all of them goes into the basis.

Shape suffixes: P = parameters, N = blocks, S = 64, C = 4096.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.params import BLOCK_SIDE as S
from protocol.params import BLOCK_SIZE
from training.exact import BASIS_BITS, BASIS_SS
from training.layout import Layout, to_blocks

# Float twin of the integer basis: the forward transform need not be exact, only the same in a class.
FORWARD_SS = torch.from_numpy((BASIS_SS / (1 << BASIS_BITS)).astype(np.float32))
_GROUP_BLOCKS = 64  # whose coefficients fit in a core's own cache


def transformed_blocks(layout: Layout, flat_P: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    """DCT of the flat vector's blocks, times a factor. Shape (N, C), float32.

    Args:
        layout: Order and shapes of the parameters.
        flat_P: Shape (P,), float32; not modified.
        factor: On every coefficient.
    """
    out_NC = np.empty((layout.blocks, BLOCK_SIZE), np.float32)  # numpy's fresh memory is cheaper than torch's
    out_NSS = torch.from_numpy(out_NC).view(-1, S, S)
    right_SS = (FORWARD_SS.T * factor).contiguous()
    flat, at, block = torch.from_numpy(flat_P), 0, 0
    vectors, shapes = [], []
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        size = math.prod(shape)
        part = flat[at : at + size]
        at += size
        if len(shape) == 1:
            vectors.append(part)
            shapes.append((name, shape))
            continue
        if shape[0] % S or shape[1] % S:
            one = Layout((name,), (shape,))
            matrix = torch.from_numpy(to_blocks(one, part.numpy())).view(-1, S)
            wide, count = 1, one.blocks
        else:
            matrix, wide, count = part.view(-1, S), shape[1] // S, size // BLOCK_SIZE
        _transform(matrix, wide, right_SS, out_NSS[block : block + count])
        block += count
    if vectors:
        rest = Layout(tuple(n for n, _ in shapes), tuple(s for _, s in shapes))
        rows = torch.from_numpy(to_blocks(rest, torch.cat(vectors).numpy())).view(-1, S)
        _transform(rows, 1, right_SS, out_NSS[block:])
    return out_NC


def _transform(rows: Tensor, wide: int, right_SS: Tensor, out_BSS: Tensor) -> None:
    """A matrix of `wide` blocks a row, read in rows of 64, into its blocks' coefficients."""
    high = len(out_BSS) // wide
    group = max(1, _GROUP_BLOCKS // wide)
    done = torch.empty(min(group, high) * wide * S, S)
    for top in range(0, high, group):
        count = min(group, high - top)
        part = done[: count * wide * S]
        torch.mm(rows[top * wide * S : (top + count) * wide * S], right_SS, out=part)
        if wide == 1:
            blocks_BSS = part.view(count, S, S)
            torch.bmm(FORWARD_SS.expand(count, S, S), blocks_BSS, out=out_BSS[top : top + count])
            continue
        for i, one in enumerate(part.view(count, S, wide, S)):
            into = out_BSS[(top + i) * wide : (top + i + 1) * wide]
            torch.bmm(FORWARD_SS.expand(wide, S, S), one.transpose(0, 1), out=into)
