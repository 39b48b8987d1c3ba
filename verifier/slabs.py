"""Slabs: the updates of a round as small dense matrices over the coefficients anybody sent.

Room: verifier (pure). The transform is orthonormal, so norms, distances and Gram
matrices of the messages are those of the parameters, and a coefficient that nobody
sent is zero under every rule. A slab holds a few blocks, so no rule ever builds the
dense n x P matrix: memory is one slab's, whatever the model's size.

Shape suffixes: N = nodes, T = coefficients sent by anybody in the slab, B = blocks
of the slab, U = the most such coefficients in one of its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.params import BLOCK_SIZE
from protocol.types import PeerId
from training.wire import Aggregate, Update

SLAB_BLOCKS = 64  # 64 blocks of 16 nodes at k = 32 take 2 MB; larger slabs leave the cache


@dataclass(frozen=True, slots=True)
class Slab:
    """Some blocks of all updates.

    at_T: block * 4096 + index over the whole layout, ascending.
    block_T, rank_T: block within the slab, and place among that block's coefficients.
    value_BNU: -1, 0 or 1, float32, nodes by ascending peer id. Zero also where a block has fewer than U.
    """

    at_T: NDArray[np.int64]
    block_T: NDArray[np.int64]
    rank_T: NDArray[np.int64]
    value_BNU: NDArray[np.float32]

    @property
    def signs(self) -> NDArray[np.float32]:
        """What each node sent of each coefficient. Shape (N, T)."""
        picked: NDArray[np.float32] = self.value_BNU[self.block_T, :, self.rank_T].T
        return picked

    def gram(self) -> NDArray[np.int64]:
        """Inner products of all pairs of nodes, block by block.

        A product of signs summed over at most 4096 positions stays below 2^24, so float32
        holds every partial sum exactly and the order in which BLAS adds does not matter.
        """
        product = np.matmul(self.value_BNU, self.value_BNU.transpose(0, 2, 1))
        gram: NDArray[np.int64] = product.astype(np.int64)
        return gram


def slabs(
    updates: Mapping[PeerId, Update], block_count: int, slab_blocks: int = SLAB_BLOCKS
) -> Iterator[Slab]:
    """All slabs that hold a coefficient, in the order of their blocks.

    Args:
        updates: Decoded, checked updates by node, in any order.
        block_count: Blocks of the layout.
        slab_blocks: Blocks at a time; changes the memory and no result.
    """
    ordered = [update for _, update in sorted(updates.items())]
    for first in range(0, block_count, slab_blocks):
        count = min(slab_blocks, block_count - first)
        places = [_within(update, first, count) for update in ordered]
        is_sent = np.zeros(count * BLOCK_SIZE, bool)
        for where, _ in places:
            is_sent[where] = True
        at_T = np.flatnonzero(is_sent)
        if not len(at_T):
            continue
        block_T = at_T // BLOCK_SIZE
        sizes = np.bincount(block_T, minlength=count)
        rank_T = np.arange(len(at_T)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rank_of = np.zeros(count * BLOCK_SIZE, np.int64)
        rank_of[at_T] = rank_T
        value_BNU = np.zeros((count, len(ordered), int(sizes.max())), np.float32)
        for node, (where, signs) in enumerate(places):
            value_BNU[where // BLOCK_SIZE, node, rank_of[where]] = signs
        yield Slab(at_T + first * BLOCK_SIZE, block_T, rank_T, value_BNU)


def aggregate_of(parts: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Aggregate:
    """One aggregate from (position, value) of successive slabs; zeros are left out."""
    kept = [(at_T[value_T != 0], value_T[value_T != 0]) for at_T, value_T in parts]
    at_T = np.concatenate([at for at, _ in kept]) if kept else np.zeros(0, np.int64)
    value_T = np.concatenate([value for _, value in kept]) if kept else np.zeros(0, np.int64)
    return Aggregate(at_T // BLOCK_SIZE, at_T % BLOCK_SIZE, value_T.astype(np.int32))


def _within(update: Update, first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Position within the slab and sign of all an update says about these blocks."""
    low, high = np.searchsorted(update.blocks_B, (first, first + count))
    where = (update.blocks_B[low:high, None] - first) * BLOCK_SIZE + update.index_BK[low:high]
    return where.reshape(-1), update.value_BK[low:high].reshape(-1)
