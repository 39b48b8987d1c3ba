"""Compress: splits a node's local result into what is sent and what is retained, block by block.

Room: training (pure). DeMo's decoupled momentum (Peng, Quesnelle & Kingma,
arXiv:2411.19870) and the error feedback of SparseLoCo are one operator:

    U  = beta * E + x              x = lr * DCT(clip(g)), g equalised, or the displacement of local steps
    q  = values of the k largest |U| of every block (or all of them, or two factors)
    E' = U - q                     exactly what the receiver will see, so the error stays

The transform is linear and orthonormal, so momentum never leaves the coefficient
domain and error feedback has no round-off. All steps after the gradient's
transform are by element or by row, so any subset of blocks gives the same bits as all.

Shape suffixes: P = parameters, N = blocks, S = 64, C = 4096, B = blocks given, K = sent per block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.messages import SKETCH_BYTES
from assay.protocol.types import Digest
from assay.protocol.update_rule import BLOCK_SIZE, PPM, CompressSpec, RuleSpec, Transform
from assay.training import parallel
from assay.training.codec.factors import Factors, factors_to_update
from assay.training.codec.values import Quantised, quantise
from assay.training.codec.wire import Update
from assay.training.compiled import FILL_DOUBLE_1, INT, READ_2, compiled, floats
from assay.training.layout import Layout, to_blocks
from assay.training.transform.blocked_dct import length, spectra, transformed_blocks
from assay.training.transform.equalise import equalised, equalising
from assay.training.transform.low_rank import compress_lowrank
from assay.training.transform.top_k import add_and_choose, largest

GROUP_BLOCKS = 32  # so much of the error, of x and of their sizes fits in a core's own cache
_COLUMNS = 512  # of a sketch, that one thread adds up at least: two pages of memory
_ALL = np.arange(BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Transition:
    """Result of one step for some blocks: what is sent and what is retained.

    sent: `blocks_B` are positions within the blocks given. after_BC: the error (DeMo: the
    momentum) after the step, all blocks given, float32. factors: only with a rank.
    """

    sent: Update
    after_BC: NDArray[np.float32]
    factors: Factors | None = None


def gradient_blocks(
    rule: RuleSpec,
    layout: Layout,
    gradient_P: NDArray[np.float32],
    lr: np.float32,
    into_NC: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """lr * DCT of the clipped, equalised gradient, always of all blocks at once. Shape (N, C), float32.

    `into_NC` may be filled with it, and is then what is returned.
    """
    factor = clipped(rule, lr, length(gradient_P)) if rule.local.clip_micro else float(lr)
    if rule.compress.transform is Transform.DCT:
        scales = equalising(layout, gradient_P) if rule.local.equalises else None
        return transformed_blocks(layout, gradient_P, factor, into_NC, scales)
    if rule.local.equalises:
        gradient_P = equalised(layout, gradient_P)
    return to_blocks(layout, gradient_P * np.float32(factor)).reshape(-1, BLOCK_SIZE)


def clipped(rule: RuleSpec, lr: np.float32, length: float) -> float:
    """The factor on a gradient of this length, which it brings down to the rule's if it is longer."""
    return float(lr) * min(rule.local.clip_micro / PPM / max(length, 1e-12), 1.0)


def distance_blocks(
    rule: RuleSpec, layout: Layout, start_P: NDArray[np.float32], end_P: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The pseudo-gradient start - end in blocks, in the rule's basis. Shape (N, C), float32."""
    return in_basis(rule, to_blocks(layout, start_P - end_P))


def in_basis(rule: RuleSpec, blocks_BSS: NDArray[np.float32]) -> NDArray[np.float32]:
    """Blocks in the rule's basis, one by one: any subset has the bits of the whole. Shape (B, C), float32."""
    if rule.compress.transform is Transform.NONE:
        return blocks_BSS.reshape(-1, BLOCK_SIZE)
    return spectra(blocks_BSS)


def transition(
    compress: CompressSpec,
    before_BC: NDArray[np.float32],
    x_BC: NDArray[np.float32],
    into_BC: NDArray[np.float32] | None = None,
) -> Transition:
    """Error update, selection and exact error feedback for the blocks given.

    Args:
        compress: The compression rule: what is sent and how.
        before_BC: The error before the step. Shape (B, C), float32; not modified.
        x_BC: What the step adds, for the same blocks; not modified.
        into_BC: Filled with the error after the step. May be `before_BC`, which is then overwritten.

    Returns:
        The sent part and the error after. Ties in size go to the lower index. A block with
        fewer than k non-zero coefficients sends nothing.
    """
    after_BC = np.empty(x_BC.shape, np.float32) if into_BC is None else into_BC
    if compress.rank or compress.k == BLOCK_SIZE:
        for rows in _groups(len(x_BC)):
            _add(compress, before_BC[rows], x_BC[rows], after_BC[rows])
        moved = _send_all(compress, after_BC)
    else:
        moved = _send_largest(compress, before_BC, x_BC, after_BC)
    if not compress.keeps_error:
        after_BC.fill(0)
    return moved


def _send_largest(
    compress: CompressSpec,
    before_BC: NDArray[np.float32],
    x_BC: NDArray[np.float32],
    after_BC: NDArray[np.float32],
) -> Transition:
    """Fill `after_BC`, choose and write the sent coefficients, and subtract them."""
    if compress.keeps_error:
        beta = np.float32(compress.feedback_micro / PPM)
        live_B, index_BK = add_and_choose(before_BC, x_BC, beta, compress.k, after_BC)
    else:
        after_BC[:] = x_BC
        live_B, index_BK = largest(after_BC, compress.k)
    at_BK = live_B[:, None] * BLOCK_SIZE + index_BK
    flat = after_BC.reshape(-1)
    moved_BK = flat[at_BK]
    written = quantise(compress.values, moved_BK)
    flat[at_BK] = moved_BK - written.sent_BK
    return Transition(update_of(live_B, index_BK, written), after_BC)


def _send_all(compress: CompressSpec, after_BC: NDArray[np.float32]) -> Transition:
    """Write all coefficients, as values or as factors, and subtract what a receiver will see."""
    if compress.rank:
        factors, sent_BC = compress_lowrank(after_BC, compress.rank)
        after_BC -= sent_BC
        return Transition(factors_to_update(factors), after_BC, factors)

    parts = _groups(len(after_BC)) or [slice(0, 0)]  # a fragment may have no block

    def written(rows: slice) -> Quantised:
        part = quantise(compress.values, after_BC[rows])
        after_BC[rows] -= part.sent_BK
        return part

    return Transition(dense_update((rows, written(rows)) for rows in parts), after_BC)


def _groups(count: int) -> list[slice]:
    return [slice(start, min(start + GROUP_BLOCKS, count)) for start in range(0, count, GROUP_BLOCKS)]


def _add(
    compress: CompressSpec,
    before_BC: NDArray[np.float32],
    x_BC: NDArray[np.float32],
    into_BC: NDArray[np.float32],
) -> None:
    """beta * before + x, each operation rounded."""
    if not compress.keeps_error:
        into_BC[:] = x_BC
        return
    np.multiply(before_BC, np.float32(compress.feedback_micro / PPM), out=into_BC)
    into_BC += x_BC


def update_of(blocks_B: NDArray[np.int64], index_BK: NDArray[np.int64], written: Quantised) -> Update:
    """The message, without the dead blocks."""
    kept, scales = written.is_live_B, (written.exponent_B, written.mantissa_B)
    if kept.all():
        return Update(blocks_B, index_BK, written.value_BK, *scales)
    live = (scale if scale is None else scale[kept] for scale in scales)
    return Update(blocks_B[kept], index_BK[kept], written.value_BK[kept], *live)


def dense_update(parts: Iterable[tuple[slice, Quantised]]) -> Update:
    """The message of all coefficients, from those of a few blocks at a time."""
    found = [
        update_of(np.arange(rows.start, rows.stop), np.broadcast_to(_ALL, written.value_BK.shape), written)
        for rows, written in parts
    ]

    def whole(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(one, name) for one in found])

    value_BK = whole("value_BK")
    scales = () if found[0].exponent_B is None else (whole("exponent_B"), whole("mantissa_B"))
    return Update(whole("blocks_B"), np.broadcast_to(_ALL, value_BK.shape), value_BK, *scales)


def work_sketch(pattern: Digest, x_NC: NDArray[np.float32]) -> bytes:
    """64 signed sums of a step's work by block, which only a recompute can yield. 512 bytes.

    Args:
        pattern: Seed of the signs: the digest of the manifest before the step, so that no sketch can be
            prepared; or one drawn when a dispute opened, so that none can be copied.
        x_NC: The gradient as the step adds it, or the displacement of one segment of inner steps.
    """
    column_sums = np.zeros(BLOCK_SIZE)
    if x_NC.shape[1] != BLOCK_SIZE:
        raise ValueError(f"blocks of {x_NC.shape[1]} coefficients, expected {BLOCK_SIZE}")
    x_NC = floats(x_NC)
    parallel.each(
        lambda columns: _add_columns(x_NC, columns.start, column_sums[columns]),
        parallel.parts(BLOCK_SIZE, _COLUMNS),
    )
    return signed_sums(pattern, column_sums)


def signed_sums(pattern: Digest, column_sums: NDArray[np.float64]) -> bytes:
    """The sketch of a step's work by the sums of its coefficients over all blocks."""
    patterns = np.frombuffer(
        hashlib.shake_256(b"assay/sketch/1" + pattern).digest(BLOCK_SIZE // 8 * 64), np.uint8
    )
    signs = np.unpackbits(patterns).reshape(64, BLOCK_SIZE).astype(np.float64) * 2 - 1
    sketch: bytes = (signs * column_sums).sum(axis=1).astype("<f8").tobytes()
    assert len(sketch) == SKETCH_BYTES
    return sketch


@compiled(None, READ_2, INT, FILL_DOUBLE_1)
def _add_columns(x_NC: NDArray[np.float32], left: int, sum_C: NDArray[np.float64]) -> None:
    """Add the columns from `left` on to `sum_C`, group by group of rows, each added up in order first."""
    part_C = np.empty(len(sum_C))
    for top in range(0, len(x_NC), GROUP_BLOCKS):
        part_C[:] = x_NC[top, left : left + len(sum_C)]
        for row in range(top + 1, min(top + GROUP_BLOCKS, len(x_NC))):
            x_C = x_NC[row, left : left + len(sum_C)]
            for i in range(len(part_C)):
                part_C[i] += x_C[i]
        for i in range(len(part_C)):
            sum_C[i] += part_C[i]
