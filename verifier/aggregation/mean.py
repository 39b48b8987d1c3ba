"""Mean: the default aggregation rule, an exact integer mean with a bounded share for each node.

Room: verifier (pure). Every node has unit energy in every block, then each coefficient is averaged over the
nodes that sent it. On a sign wire all messages have k signs per block and so equal energy already: the rule
is the mean of signs, without the common factor, because only the sign of the inverse transform is used. With
amplitudes, `scale` first decides how much of each block counts (verifier/aggregation/scales.py).

Measured (docs/results/robustness.md): alone it bounds influence, not harm, and one quarter of Byzantine nodes
cost it a fifth of a nat and more. It is therefore combined with reputation.py, which leaves such nodes out,
and with audits, which punish them.

Shape suffixes: T = coefficients sent by anybody, C = coefficients of a slab.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.training.codec.wire import Aggregate, Update
from assay.training.exact import VALUE_MAX
from assay.verifier.aggregation.scales import Scale, has_amplitude, raw
from assay.verifier.aggregation.slabs import Ints, Part, aggregate_of, places_of

_SLAB_BLOCKS = 64


def mean_over_senders(updates: Mapping[PeerId, Update], block_count: int, *, scale: Scale = raw) -> Aggregate:
    """Mean of each coefficient over the nodes that sent it.

    A node moves a block by at most what the scale leaves it; nodes that collude on one index
    count once. The order of nodes does not matter: sums of integers.

    Args:
        updates: Decoded, checked updates by node. At least one.
        block_count: Blocks of the layout.
        scale: How much of each block counts, where updates have amplitudes.

    Returns:
        The aggregate, in units of 2^-14 of a sign or with an exponent per block; means round
        toward zero, and coefficients whose mean is 0 are left out.

    Raises:
        ValueError: no updates. An empty mean is never silently zero.
    """
    if not updates:
        raise ValueError("no updates to aggregate")
    if has_amplitude(updates):
        return aggregate_of(_scaled_means(updates, block_count, scale), block_count)
    total = np.zeros(block_count * BLOCK_SIZE, np.int32)
    count = np.zeros(block_count * BLOCK_SIZE, np.int32)
    for _, update in sorted(updates.items()):
        where = (update.blocks_B[:, None] * BLOCK_SIZE + update.index_BK).reshape(-1)
        total[where] += update.value_BK.reshape(-1)  # indices of one update are distinct
        count[where] += 1
    at_T = np.flatnonzero(total)
    size_T = np.abs(total[at_T]).astype(np.int64) * VALUE_MAX // count[at_T]
    value_T = (np.sign(total[at_T]) * size_T).astype(np.int32)
    return Aggregate(at_T // BLOCK_SIZE, at_T % BLOCK_SIZE, value_T)


def _scaled_means(updates: Mapping[PeerId, Update], block_count: int, scale: Scale) -> Iterator[Part]:
    """Means on the scale's grid, a few blocks at a time. At most 128 values below 2^55: below 2^62."""
    scaled = scale(updates, block_count)
    ordered = sorted(updates.items())
    grid = scaled[ordered[0][0]].grid
    for first in range(0, block_count, _SLAB_BLOCKS):
        width = min(_SLAB_BLOCKS, block_count - first)
        total_C = np.zeros(width * BLOCK_SIZE, np.int64)
        count_C = np.zeros(width * BLOCK_SIZE, np.int64)
        for peer, update in ordered:
            where, values = places_of(update, scaled[peer], first, width)
            total_C[where] += values
            count_C[where] += 1
        at_T = np.flatnonzero(total_C)
        value_T: Ints = np.sign(total_C[at_T]) * (np.abs(total_C[at_T]) // count_C[at_T])
        yield at_T + first * BLOCK_SIZE, value_T, np.full(len(at_T), grid, np.int64)
