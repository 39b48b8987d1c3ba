"""Mean: the default aggregation rule, an exact integer mean with a bounded share for each node.

Room: verifier (pure). Every node has unit energy in every block, then each coefficient is averaged over the
nodes that sent it. On a sign wire all messages have k signs per block and so equal energy already: the rule
is the mean of signs, without the common factor, because only the sign of the inverse transform is used. With
amplitudes, `scale` first decides how much of each block counts (verifier/aggregation/scales.py).

Measured (docs/results/robustness.md): alone it bounds influence, not harm, and one quarter of Byzantine nodes
cost it a fifth of a nat and more. It is therefore combined with reputation.py, which leaves such nodes out,
and with audits, which punish them.
"""

from __future__ import annotations

from collections.abc import Mapping

from assay.protocol.types import PeerId
from assay.training.codec.wire import Aggregate, Update
from assay.verifier.aggregation.gram import need_majority
from assay.verifier.aggregation.robust import trimmed_mean
from assay.verifier.aggregation.scales import Scale, raw


def mean_over_senders(
    updates: Mapping[PeerId, Update], block_count: int, *, f: int = 0, scale: Scale = raw
) -> Aggregate:
    """Mean of each coefficient over the nodes that sent it.

    A node moves a block by at most what the scale leaves it; nodes that collude on one index
    count once. The order of nodes does not matter: sums of integers.

    Args:
        updates: Decoded, checked updates by node. At least one.
        block_count: Blocks of the layout.
        f: Byzantine nodes among the senders; the mean trims nobody for them.
        scale: How much of each block counts, where updates have amplitudes.

    Returns:
        The aggregate, in units of 2^-14 of a sign or with an exponent per block; means round
        toward zero, and coefficients whose mean is 0 are left out.

    Raises:
        ValueError: no updates, for an empty mean is never silently zero; or n <= 2f.
    """
    if not updates:
        raise ValueError("no updates to aggregate")
    need_majority(len(updates), f)
    return trimmed_mean(updates, block_count, f=0, scale=scale)
