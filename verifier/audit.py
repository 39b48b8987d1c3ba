"""Audit: does the opened part of a step follow from the parameters and the batch?

Room: verifier (pure). The node opened momentum blocks of both roots of its
commit. With the gradient recomputed here, each block before the step determines
the block after it and what was sent, bit for bit, within one execution class.

    before --beta--> + lr * DCT(own gradient) --top-k, feedback--> after, (index, sign)

Shape suffixes: B = opened blocks, C = 4096, N = all blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol import merkle
from protocol.errors import MalformedMessage
from protocol.messages import SKETCH_BYTES, Commit, Opening, Outcome, Path
from protocol.params import BLOCK_SIZE, DemoSpec
from protocol.types import NO_DIGEST, Digest
from training.demo import transition
from training.momentum import momentum_domain, seal
from training.wire import Update

DISTANCE_PPB_MAX = 10**12
_LEAF_BYTES = 4 * BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Finding:
    """What a recompute showed. `distance_ppb` is relative to the gradient's own block norm."""

    outcome: Outcome
    recomputed: Digest
    distance_ppb: int
    block: int


def check_opening(
    opening: Opening, commit: Commit, blocks: Sequence[int], block_count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The opened momentum before and after the step, if it is what the commit binds.

    Returns:
        Two arrays of shape (B, C), float32, in the order of `blocks`.

    Raises:
        MalformedMessage: another step, other blocks than drawn, a path that does not lead
            to the committed root, a seal that does not open, or a value that is not finite.
    """
    if (opening.run_id, opening.round, opening.node) != (commit.run_id, commit.round, commit.node):
        raise MalformedMessage("opening: of another step")
    if opening.blocks != tuple(blocks):
        raise MalformedMessage(
            f"opening: blocks {opening.blocks[:4]}..., expected the drawn {tuple(blocks)[:4]}..."
        )
    if len(opening.salt) != 32 or len(opening.sketch) != SKETCH_BYTES:
        raise MalformedMessage("opening: salt and sketch must be 32 and 512 bytes")
    if seal(opening.salt, opening.sketch) != commit.seal:
        raise MalformedMessage("opening: salt and sketch do not open the seal")
    before = _checked_blocks(
        opening.before, opening.paths_before, commit.momentum_before, commit, blocks, block_count
    )
    after = _checked_blocks(
        opening.after, opening.paths_after, commit.momentum_after, commit, blocks, block_count
    )
    return before, after


def compare(
    rule: DemoSpec,
    lr: np.float32,
    opening: Opening,
    before_BC: NDArray[np.float32],
    after_BC: NDArray[np.float32],
    update: Update,
    spectrum_NC: NDArray[np.float32],
    sketch: bytes,
) -> Finding:
    """Judge a checked opening against the auditor's own gradient, in the exact class.

    Args:
        rule: The update rule.
        lr: Learning rate of the round.
        opening: Passed `check_opening`.
        before_BC: Momentum before the step, opened blocks.
        after_BC: Momentum the node claims after it.
        update: The node's whole message.
        spectrum_NC: The auditor's transformed gradient, all blocks.
        sketch: The auditor's gradient sketch.

    Returns:
        MATCH if every bit agrees, else MISMATCH with the block that differs most; INCONCLUSIVE
        where our own gradient is not finite, because nothing follows from that.
    """
    if not np.isfinite(spectrum_NC).all():
        return Finding(Outcome.INCONCLUSIVE, NO_DIGEST, 0, 0)
    blocks = np.array(opening.blocks, np.int64)
    expected = transition(rule, lr, before_BC, spectrum_NC[blocks])
    gap_B = np.linalg.norm(after_BC.astype(np.float64) - expected.after_BC, axis=1)
    scale_B = np.linalg.norm((spectrum_NC[blocks] * lr).astype(np.float64), axis=1)
    distance_B = np.nan_to_num(gap_B / np.maximum(scale_B, 1e-30), nan=np.inf)
    worst = int(np.argmax(distance_B)) if len(blocks) else 0
    is_equal = (
        sketch == opening.sketch
        and np.array_equal(after_BC.view(np.uint32), expected.after_BC.view(np.uint32))
        and _sends_what(update, blocks, expected.live_B, expected.index_BK, expected.value_BK)
    )
    distance = int(min(float(distance_B[worst]) * 1e9, float(DISTANCE_PPB_MAX))) if len(blocks) else 0
    return Finding(
        Outcome.MATCH if is_equal else Outcome.MISMATCH,
        Digest(hashlib.sha256(sketch).digest()),
        distance,
        int(blocks[worst]) if len(blocks) else 0,
    )


def _sends_what(
    update: Update,
    blocks_B: NDArray[np.int64],
    live_B: NDArray[np.int64],
    index_BK: NDArray[np.int64],
    value_BK: NDArray[np.int8],
) -> bool:
    """Whether the message says, for the opened blocks, exactly what the recompute says."""
    sent = np.isin(update.blocks_B, blocks_B)
    return (
        np.array_equal(update.blocks_B[sent], blocks_B[live_B])
        and np.array_equal(update.index_BK[sent], index_BK)
        and np.array_equal(update.value_BK[sent], value_BK)
    )


def _checked_blocks(
    data: bytes,
    paths: Sequence[Path],
    root: Digest,
    commit: Commit,
    blocks: Sequence[int],
    block_count: int,
) -> NDArray[np.float32]:
    if len(data) != len(blocks) * _LEAF_BYTES or len(paths) != len(blocks):
        raise MalformedMessage(f"opening: {len(data)} bytes, {len(paths)} paths for {len(blocks)} blocks")
    domain = momentum_domain(commit.run_id)
    for position, (block, path) in enumerate(zip(blocks, paths, strict=True)):
        leaf = merkle.leaf_hash(domain, block, data[position * _LEAF_BYTES : (position + 1) * _LEAF_BYTES])
        merkle.check(leaf, block, block_count, path.hashes, root)
    values = np.frombuffer(data, "<f4").astype(np.float32).reshape(len(blocks), BLOCK_SIZE)
    if not np.isfinite(values).all():
        raise MalformedMessage("opening: momentum that is not finite")
    return values
