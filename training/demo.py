"""DeMo: one local step as a pure function, and the part of it an auditor repeats per block.

Room: training (pure). Decoupled momentum (Peng, Quesnelle & Kingma,
arXiv:2411.19870) kept in the DCT domain, float32 always, with a sign wire:

    U = beta * M + lr * DCT(clip(g))          per 64 x 64 block
    send the k largest |U| of the block as (index, sign)
    M' = U - sign * mean |U sent|             exactly what was sent, so the error stays

The transform is linear and orthonormal, so momentum never leaves the coefficient
domain and error feedback has no round-off. All steps after the gradient's
transform are elementwise, so any subset of blocks gives the same bits as all.

Shape suffixes: P = parameters, N = blocks, S = 64, C = 4096, K = sent per block.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.messages import SKETCH_BYTES
from protocol.params import BLOCK_SIDE as S
from protocol.params import BLOCK_SIZE, PPM, DemoSpec
from protocol.types import Digest
from training.exact import BASIS_BITS, BASIS_SS
from training.layout import Layout, to_blocks
from training.wire import Update

# Float twin of the integer basis: the forward transform need not be exact, only the same in a class.
_FORWARD = torch.from_numpy((BASIS_SS / (1 << BASIS_BITS)).astype(np.float32))


@dataclass(frozen=True, slots=True)
class Transition:
    """What one step does to some blocks: what is sent and the momentum after.

    live_B: positions (within the blocks given) that send. index_BK, value_BK: what they send, -1 or 1.
    after_BC: momentum after the step, all blocks given, float32.
    """

    live_B: NDArray[np.int64]
    index_BK: NDArray[np.int64]
    value_BK: NDArray[np.int8]
    after_BC: NDArray[np.float32]


def transformed_gradient(
    rule: DemoSpec, layout: Layout, gradient_P: NDArray[np.float32]
) -> NDArray[np.float32]:
    """DCT of the clipped gradient, always of all blocks at once. Shape (N, C), float32."""
    clipped = torch.from_numpy(gradient_P)
    if rule.clip_micro:
        norm = clipped.norm().clamp_min(1e-12)
        clipped = clipped * (rule.clip_micro / PPM / norm).clamp_max(1.0)
    blocks = torch.from_numpy(to_blocks(layout, clipped.numpy()))
    right = torch.matmul(blocks.view(-1, S), _FORWARD.T).view(-1, S, S)
    both: NDArray[np.float32] = torch.matmul(_FORWARD, right).reshape(-1, BLOCK_SIZE).numpy()
    return both


def transition(
    rule: DemoSpec, lr: np.float32, before_BC: NDArray[np.float32], spectrum_BC: NDArray[np.float32]
) -> Transition:
    """Momentum update, selection and exact error feedback for the blocks given.

    Args:
        rule: k and beta.
        lr: Learning rate of the round.
        before_BC: Momentum before the step. Shape (B, C), float32; not modified.
        spectrum_BC: DCT of the clipped gradient for the same blocks.

    Returns:
        What is sent and the momentum after. Ties in size go to the lower index. A block with
        fewer than k non-zero coefficients sends nothing.
    """
    beta = np.float32(rule.beta_micro / PPM)
    decayed = before_BC * beta
    scaled = spectrum_BC * lr
    after_BC = decayed + scaled
    size_BC = np.abs(after_BC)
    live_B = np.flatnonzero(np.count_nonzero(size_BC, axis=1) >= rule.k)
    index_BK = _largest(size_BC[live_B], rule.k)
    moved_BK = np.take_along_axis(after_BC[live_B], index_BK, axis=1)
    value_BK = np.sign(moved_BK).astype(np.int8)
    sent_BK = value_BK.astype(np.float32) * _mean_size(moved_BK)[:, None]
    after_BC[live_B[:, None], index_BK] = moved_BK - sent_BK
    return Transition(live_B, index_BK, value_BK, after_BC)


def update_of(step: Transition) -> Update:
    """The message of a transition over all blocks."""
    return Update(step.live_B, step.index_BK, step.value_BK)


def gradient_sketch(parent: Digest, spectrum_NC: NDArray[np.float32]) -> bytes:
    """64 signed sums of the transformed gradient, which only a recompute can yield. 512 bytes.

    The sign patterns come from the parent's digest, so no sketch can be prepared before.
    """
    patterns = np.frombuffer(
        hashlib.shake_256(b"assay/sketch/1" + parent).digest(BLOCK_SIZE // 8 * 64), np.uint8
    )
    signs = np.unpackbits(patterns).reshape(64, BLOCK_SIZE).astype(np.float64) * 2 - 1
    column_sums = spectrum_NC.astype(np.float64).sum(axis=0)
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


def _mean_size(value_BK: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean magnitude per row, summed as a fixed tree in float64: the same bits on every machine."""
    part = np.abs(value_BK).astype(np.float64)
    width = part.shape[1]
    while width > 1:
        half = width // 2
        head = part[:, :half] + part[:, half : 2 * half]
        part = np.concatenate([head, part[:, 2 * half :]], axis=1) if width % 2 else head
        width = part.shape[1]
    mean_B: NDArray[np.float32] = (part[:, 0] / value_BK.shape[1]).astype(np.float32)
    return mean_B
