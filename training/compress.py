"""Compress: what a node sends of its local result, and what it keeps back, block by block.

Room: training (pure). DeMo's decoupled momentum (Peng, Quesnelle & Kingma,
arXiv:2411.19870) and the error feedback of SparseLoCo are one operator:

    U  = beta * E + x              x = lr * DCT(clip(g)), or the distance local steps went
    q  = values of the k largest |U| of every block (or all of them, or two factors)
    E' = U - q                     exactly what the receiver will see, so the error stays

The transform is linear and orthonormal, so momentum never leaves the coefficient
domain and error feedback has no round-off. All steps after the gradient's
transform are by element or by row, so any subset of blocks gives the same bits as all.

Shape suffixes: P = parameters, N = blocks, S = 64, C = 4096, B = blocks given, K = sent per block.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.messages import SKETCH_BYTES
from protocol.rule import BLOCK_SIDE as S
from protocol.rule import BLOCK_SIZE, PPM, CompressSpec, RuleSpec, Transform
from protocol.types import Digest
from training.exact import BASIS_BITS, BASIS_SS
from training.factors import Factors, factors_to_update
from training.layout import Layout, to_blocks
from training.lowrank import compress_lowrank
from training.values import quantise
from training.wire import Update

# Float twin of the integer basis: the forward transform need not be exact, only the same in a class.
_FORWARD = torch.from_numpy((BASIS_SS / (1 << BASIS_BITS)).astype(np.float32))
_ALL = np.arange(BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Transition:
    """What one step does to some blocks: what is sent and what is kept back.

    sent: `blocks_B` are positions within the blocks given. after_BC: the error (DeMo: the
    momentum) after the step, all blocks given, float32. factors: only with a rank.
    """

    sent: Update
    after_BC: NDArray[np.float32]
    factors: Factors | None = None


def gradient_blocks(
    rule: RuleSpec, layout: Layout, gradient_P: NDArray[np.float32], lr: np.float32
) -> NDArray[np.float32]:
    """lr * DCT of the clipped gradient, always of all blocks at once. Shape (N, C), float32."""
    clipped = torch.from_numpy(gradient_P)
    if rule.local.clip_micro:
        norm = clipped.norm().clamp_min(1e-12)
        clipped = clipped * (rule.local.clip_micro / PPM / norm).clamp_max(1.0)
    blocks = torch.from_numpy(to_blocks(layout, clipped.numpy()))
    if rule.compress.transform is Transform.DCT:
        right = torch.matmul(blocks.reshape(-1, S), _FORWARD.T).view(-1, S, S)
        blocks = torch.matmul(_FORWARD, right)
    scaled: NDArray[np.float32] = blocks.reshape(-1, BLOCK_SIZE).numpy() * lr
    return scaled


def distance_blocks(
    rule: RuleSpec, layout: Layout, start_P: NDArray[np.float32], end_P: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The pseudo-gradient start - end in blocks, in the rule's basis. Shape (N, C), float32."""
    return in_basis(rule, to_blocks(layout, start_P - end_P))


def in_basis(rule: RuleSpec, blocks_BSS: NDArray[np.float32]) -> NDArray[np.float32]:
    """Blocks in the rule's basis, one by one: any subset has the bits of the whole. Shape (B, C), float32."""
    if rule.compress.transform is Transform.NONE:
        return blocks_BSS.reshape(-1, BLOCK_SIZE)
    parts = [torch.mm(_FORWARD, torch.mm(torch.from_numpy(one), _FORWARD.T)) for one in blocks_BSS]
    both: NDArray[np.float32] = torch.stack(parts).reshape(-1, BLOCK_SIZE).numpy()
    return both


def transition(
    compress: CompressSpec, before_BC: NDArray[np.float32], x_BC: NDArray[np.float32]
) -> Transition:
    """Error update, selection and exact error feedback for the blocks given.

    Args:
        compress: What is sent and how.
        before_BC: The error before the step. Shape (B, C), float32; not modified.
        x_BC: What the step adds, for the same blocks; not modified.

    Returns:
        What is sent and the error after. Ties in size go to the lower index. A block with
        fewer than k non-zero coefficients sends nothing.
    """
    if compress.keeps_error:
        beta = np.float32(compress.feedback_micro / PPM)
        decayed = before_BC * beta
        after_BC = decayed + x_BC
    else:
        after_BC = x_BC.copy()
    if compress.rank:
        factors, sent_BC = compress_lowrank(after_BC, compress.rank)
        moved = Transition(factors_to_update(factors), after_BC - sent_BC, factors)
    else:
        moved = Transition(_send(compress, after_BC), after_BC)
    if not compress.keeps_error:
        moved.after_BC.fill(0)
    return moved


def _send(compress: CompressSpec, after_BC: NDArray[np.float32]) -> Update:
    """Choose and write what is sent, and take it out of `after_BC`."""
    size_BC = np.abs(after_BC)
    if compress.k == BLOCK_SIZE:
        live_B = np.flatnonzero(size_BC.any(axis=1))
        index_BK = np.broadcast_to(_ALL, (len(live_B), BLOCK_SIZE))
    else:
        live_B = np.flatnonzero(np.count_nonzero(size_BC, axis=1) >= compress.k)
        index_BK = _largest(size_BC[live_B], compress.k)
    moved_BK = np.take_along_axis(after_BC[live_B], index_BK, axis=1)
    written = quantise(compress.values, moved_BK)
    after_BC[live_B[:, None], index_BK] = moved_BK - written.sent_BK
    kept = written.is_live_B
    if kept.all():
        return Update(live_B, index_BK, written.value_BK, written.exponent_B, written.mantissa_B)
    exponent_B = None if written.exponent_B is None else written.exponent_B[kept]
    mantissa_B = None if written.mantissa_B is None else written.mantissa_B[kept]
    return Update(live_B[kept], index_BK[kept], written.value_BK[kept], exponent_B, mantissa_B)


def gradient_sketch(parent: Digest, x_NC: NDArray[np.float32]) -> bytes:
    """64 signed sums of a step's gradient blocks, which only a recompute can yield. 512 bytes.

    The sign patterns come from the parent's digest, so no sketch can be prepared before.
    """
    patterns = np.frombuffer(
        hashlib.shake_256(b"assay/sketch/1" + parent).digest(BLOCK_SIZE // 8 * 64), np.uint8
    )
    signs = np.unpackbits(patterns).reshape(64, BLOCK_SIZE).astype(np.float64) * 2 - 1
    column_sums = x_NC.astype(np.float64).sum(axis=0)
    sketch: bytes = (signs * column_sums).sum(axis=1).astype("<f8").tobytes()
    assert len(sketch) == SKETCH_BYTES
    return sketch


def _largest(size_BC: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Positions of the k largest of each row, ascending; ties go to the lower index. Shape (B, k).

    `topk` leaves the order of equal values open, so rows with a tie at the edge are chosen again.
    """
    found, place = torch.from_numpy(size_BC).topk(k + 1, dim=1)
    index_BK: NDArray[np.int64] = np.sort(place[:, :k].numpy(), axis=1)
    edge = found[:, k - 1 :].numpy()
    tied = np.flatnonzero(edge[:, 0] == edge[:, 1])
    if len(tied):
        index_BK[tied] = np.sort(np.argsort(-size_BC[tied], axis=1, kind="stable")[:, :k], axis=1)
    return index_BK
