"""Exact audit: checks bit for bit whether the opened blocks of a step follow from parameters and batch.

Room: verifier (pure). For a node of the auditor's own execution class. The node opened blocks of both roots
of its commit. With the result of its local work, recomputed here (`x`), each block before the step determines
the block after it and the message. Inner steps, where a rule has them, are in segment.py.

    before --beta--> + x --top-k, feedback--> after, (index, value)

Shape suffixes: B = opened blocks, C = 4096, N = all blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding import merkle
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Commit, Outcome
from assay.protocol.openings import Opening, Path
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import BLOCK_SIZE, CompressSpec, RuleSpec
from assay.training.codec.wire import Update
from assay.training.optimiser.momentum_root import momentum_domain
from assay.training.transform.compress import transition
from assay.verifier.audit.messages import Finding

DISTANCE_PPB_MAX = 10**12
_GROUP_BLOCKS = 512  # compared at once


def check_opening(
    opening: Opening, commit: Commit, blocks: Sequence[int], rule: RuleSpec, block_count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The opened error (or momentum) before and after the step, if the commit binds them.

    Returns:
        Two arrays of shape (B, C), float32, in the order of `blocks`.

    Raises:
        MalformedMessage: another step, other blocks than drawn, a path that does not lead
            to the committed root, or a value that is not finite.
    """
    if (opening.run_id, opening.round, opening.node) != (commit.run_id, commit.round, commit.node):
        raise MalformedMessage("opening: of another step")
    if opening.blocks != tuple(blocks):
        raise MalformedMessage(
            f"opening: blocks {opening.blocks[:4]}..., expected the drawn {tuple(blocks)[:4]}..."
        )
    domain, leaves = momentum_domain(commit.run_id), block_count + rule.carries_inner
    before_BC, after_BC = (
        checked_blocks(data, paths, blocks, root=root, domain=domain, leaf_count=leaves)
        for data, paths, root in (
            (opening.before, opening.paths_before, commit.momentum_before),
            (opening.after, opening.paths_after, commit.momentum_after),
        )
    )
    return before_BC, after_BC


def compare(
    compress: CompressSpec,
    blocks: Sequence[int],
    is_synced_B: NDArray[np.bool_],
    before_BC: NDArray[np.float32],
    after_BC: NDArray[np.float32],
    update: Update,
    x_BC: NDArray[np.float32],
    *,
    recomputed: Digest,
    is_work_equal: bool,
    witness: Digest = NO_DIGEST,
) -> Finding:
    """Judge checked blocks of the same execution class: every bit must equal the auditor's recompute.

    Args:
        compress: The compression rule: what is sent and how.
        blocks: The opened blocks, ascending.
        is_synced_B: Which of them are sent in this round; the others must not change.
        before_BC: Error or momentum before the step, opened blocks.
        after_BC: What the node claims after it.
        update: The node's whole message.
        x_BC: What the step adds to the opened blocks, recomputed.
        recomputed, witness: Sketch digests of the recompute, copied into the verdict.
        is_work_equal: Whether the rest of the recompute agrees: a committed sketch, the inner state.

    Returns:
        MATCH if every bit agrees, else MISMATCH with the block that differs most.
    """
    opened_B = np.array(blocks, np.int64)
    distance_B = np.zeros(len(opened_B))
    is_equal = is_work_equal
    for first in range(0, len(opened_B), _GROUP_BLOCKS):  # a wide audit's float64 would not fit the memory
        group = slice(first, first + _GROUP_BLOCKS)
        synced = np.flatnonzero(is_synced_B[group])
        moved = transition(compress, before_BC[group][synced], x_BC[group][synced])
        expected_BC = before_BC[group].copy()
        expected_BC[synced] = moved.after_BC
        gap_B = np.linalg.norm(after_BC[group].astype(np.float64) - expected_BC, axis=1)
        scale_B = np.linalg.norm(x_BC[group].astype(np.float64), axis=1)
        distance_B[group] = np.nan_to_num(gap_B / np.maximum(scale_B, 1e-30), nan=np.inf)
        is_equal &= np.array_equal(after_BC[group].view(np.uint32), expected_BC.view(np.uint32))
        is_equal &= _sends_what(update, opened_B[group], opened_B[group][synced], moved.sent)
    worst = int(np.argmax(distance_B)) if len(opened_B) else 0
    distance = int(min(float(distance_B[worst]) * 1e9, float(DISTANCE_PPB_MAX))) if len(opened_B) else 0
    return Finding(
        Outcome.MATCH if is_equal else Outcome.MISMATCH,
        recomputed,
        distance,
        int(opened_B[worst]) if len(opened_B) else 0,
        witness,
    )


def checked_blocks(
    data: bytes,
    paths: Sequence[Path],
    blocks: Sequence[int],
    *,
    root: Digest,
    domain: bytes,
    leaf_count: int,
    width: int = BLOCK_SIZE,
) -> NDArray[np.float32]:
    """Opened 64 x 64 blocks, if they are leaves under this root. Shape (B, width), float32.

    Raises:
        MalformedMessage: they are not, or hold a value that is not finite.
    """
    size = 4 * width
    if len(data) != len(blocks) * size or len(paths) != len(blocks):
        raise MalformedMessage(f"opening: {len(data)} bytes, {len(paths)} paths for {len(blocks)} blocks")
    for position, (block, path) in enumerate(zip(blocks, paths, strict=True)):
        leaf = merkle.leaf_hash(domain, block, data[position * size : (position + 1) * size])
        merkle.check(leaf, block, leaf_count, path.hashes, root)
    values = np.frombuffer(data, "<f4").astype(np.float32).reshape(len(blocks), width)
    if not np.isfinite(values).all():
        raise MalformedMessage("opening: a value that is not finite")
    return values


def _sends_what(
    update: Update, opened_B: NDArray[np.int64], synced_B: NDArray[np.int64], expected: Update
) -> bool:
    """Whether the message holds, for the opened blocks, exactly what the recompute yields."""
    is_opened_B = np.isin(update.blocks_B, opened_B)
    pairs = [
        (update.blocks_B[is_opened_B], synced_B[expected.blocks_B]),
        (update.index_BK[is_opened_B], expected.index_BK),
        (update.value_BK[is_opened_B], expected.value_BK),
    ]
    if update.exponent_B is not None and expected.exponent_B is not None:
        pairs.append((update.exponent_B[is_opened_B], expected.exponent_B))
    return all(np.array_equal(here, there) for here, there in pairs)
