"""Aggregation: many updates in, one integer aggregate out, each node's share bounded.

Room: verifier (pure). Default rule: every node has unit energy in every block,
then the mean over the nodes that sent a coefficient. With k signs per block all
messages already have the same energy, so the mean of signs is the rule and the
common factor is dropped: only the sign of the inverse transform is used.

Measured (notes in docs/decisions/0004-aggregation.md): it held at f = 3 of 8
under inner-product manipulation where trimmed mean with implied zeros destroys
DeMo. It has no (f, kappa) bound, which is why it never comes without audits.

Shape suffixes: T = coefficients sent by anybody.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from protocol.params import BLOCK_SIZE
from protocol.types import PeerId
from training.exact import VALUE_MAX
from training.wire import Aggregate, Update


def mean_over_senders(updates: Mapping[PeerId, Update], block_count: int) -> Aggregate:
    """Mean sign of each coefficient over the nodes that sent it, in units of 2^-14.

    A node moves a block by at most its own unit vector; colluders on one index
    count once. Order of nodes does not matter: sums of small integers.

    Args:
        updates: Decoded, checked updates by node. At least one.
        block_count: Blocks of the layout.

    Returns:
        The aggregate; coefficients whose mean is exactly 0 are left out.

    Raises:
        ValueError: no updates. An empty mean is never silently zero.
    """
    if not updates:
        raise ValueError("no updates to aggregate")
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
