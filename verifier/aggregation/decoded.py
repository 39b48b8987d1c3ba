"""Decoded: robust aggregation rules on decoded parameters instead of transform coefficients.

Room: verifier (pure). Most coefficients are sent by only one node in eight, so trimming per coefficient has
nothing to compare. After the inverse transform every node has a value at every position, and a trimmed mean
has its textbook bound there. The cost: one inverse transform per node, and a result that is no longer sparse.

The result is `Signs`, not an `Aggregate`: the step's sign at every position, as training/exact would compute
it for an aggregate; training/codec/signs.py encodes it.

Exactness: the transform is that of training/exact for coefficients of 2^14, whose one rounding divides by
2^14 and so has nothing to round: signs go through both products as they are. Amplitudes count at unit energy
per node and block, in units of 2^-16. Values stay below 2^45 and sums of 128 of them below 2^52: exact in
float64.

Shape suffixes: N = nodes, B = blocks of a slab, S = 64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIDE as S
from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.training.codec.wire import Update
from assay.training.exact import BASIS_SS
from assay.verifier.aggregation.gram import need_majority
from assay.verifier.aggregation.scales import has_amplitude, unit
from assay.verifier.aggregation.slabs import slabs

Signs = NDArray[np.int8]  # (blocks, 64, 64): -1, 0 or 1 per position
Values = NDArray[np.float64]  # (N, positions), whole numbers
_UNIT_DROP = 14  # bits, so that two exact products and a sum over nodes fit a float64
_SLAB_BLOCKS = 8  # of 16 nodes: 4 MB of float64, and a copy


def trimmed_mean_signs(updates: Mapping[PeerId, Update], block_count: int, *, f: int) -> Signs:
    """Sign of the mean, per position, of all values but the f largest and the f smallest.

    Every position has n values, so f Byzantine nodes move the result no further than honest values
    reach: where all honest nodes agree on a sign, they cannot change it. All messages have
    unit energy per block; a block that a node left out is zero.

    Args:
        updates: Decoded, checked updates by node.
        block_count: Blocks of the layout.
        f: Values trimmed on each side.

    Raises:
        ValueError: n <= 2f.

    Reference:
        Yin, Chen, Ramchandran & Bartlett, ICML 2018, arXiv:1803.01498.
    """
    need_majority(len(updates), f)
    return _position_signs(updates, block_count, lambda values: _trimmed_sum(values, f))


def median_signs(updates: Mapping[PeerId, Update], block_count: int, *, f: int) -> Signs:
    """Sign of the median per position (of the middle two's mean). As `trimmed_mean_signs`."""
    need_majority(len(updates), f)
    most = (len(updates) - 1) // 2
    return _position_signs(updates, block_count, lambda values: _trimmed_sum(values, most))


def vote_signs(updates: Mapping[PeerId, Update], block_count: int, *, f: int) -> Signs:
    """Majority of the nodes' own signs per position: one node, one vote. As `trimmed_mean_signs`.

    Reference:
        Bernstein, Zhao, Azizzadenesheli & Anandkumar, ICLR 2019, arXiv:1810.05291.
    """
    need_majority(len(updates), f)

    def votes(values: Values) -> Values:
        total: Values = np.sign(values).sum(axis=0)
        return total

    return _position_signs(updates, block_count, votes)


def _position_signs(
    updates: Mapping[PeerId, Update], block_count: int, reduce: Callable[[Values], Values]
) -> Signs:
    """The sign of what `reduce` makes of all nodes' values at each position."""
    signs = np.zeros((block_count, BLOCK_SIZE), np.int8)
    for blocks_B, values in decoded(updates, block_count):
        signs[blocks_B] = np.sign(reduce(values)).reshape(-1, BLOCK_SIZE)
    return signs.reshape(-1, S, S)


def decoded(updates: Mapping[PeerId, Update], block_count: int) -> Iterator[tuple[NDArray[np.int64], Values]]:
    """Block numbers, and every node's message as parameters, a few blocks at a time."""
    scaled = unit(updates, block_count) if has_amplitude(updates) else None
    for slab in slabs(updates, block_count, _SLAB_BLOCKS, scaled):
        blocks_B, row_T = np.unique(slab.at_T // BLOCK_SIZE, return_inverse=True)
        dense = np.zeros((len(updates), len(blocks_B), BLOCK_SIZE))
        value_BNU = slab.working(np.full(len(slab.value_BNU), _UNIT_DROP))
        dense[:, row_T, slab.at_T % BLOCK_SIZE] = value_BNU[slab.block_T, :, slab.rank_T].T
        first = np.matmul(dense.reshape(-1, S, S), BASIS_SS)
        yield blocks_B, np.matmul(BASIS_SS.T, first).reshape(len(updates), -1)


def _trimmed_sum(values: Values, trim: int) -> Values:
    """Sum of each column without its `trim` largest and `trim` smallest. `values` is used up.

    Bubbles whole rows: two comparisons per pair of rows and no sort per column.
    """
    low, high = 0, len(values)
    for _ in range(trim):
        for row in range(low, high - 1):
            _order(values, row)
        high -= 1
        for row in range(high - 2, low - 1, -1):
            _order(values, row)
        low += 1
    total: Values = values[low:high].sum(axis=0)  # whole numbers: exact in any order
    return total


def _order(values: Values, row: int) -> None:
    """Put the smaller of two neighbouring rows first, position by position."""
    smaller = np.minimum(values[row], values[row + 1])
    np.maximum(values[row], values[row + 1], out=values[row + 1])
    values[row] = smaller
