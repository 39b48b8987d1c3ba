"""Contribution: decodes a node's message of one round, for any method.

Room: training (pure, without torch: the network's processes read these). One entry point to the codecs of
`wire` and `factors`; the result is an `Update`. A round's aggregate: training/optimiser/aggregate.py.
"""

from __future__ import annotations

import numpy as np

from assay.protocol.errors import MalformedMessage
from assay.protocol.params import BLOCK_SIZE, RunSpec
from assay.protocol.update_rule import RuleSpec
from assay.training.codec.factors import decode_factors, factor_bytes_max, factors_to_update
from assay.training.codec.wire import Update, decode_update, update_bytes_max
from assay.training.fragments import fragment_blocks
from assay.training.layout import Layout

_HEAD_BYTES = 64  # of a block, and of the whole, at most
_COEFFICIENT_BYTES = 8  # place, value and its share of a table of values, at most


def contribution_bytes_max(rule: RuleSpec, block_count: int) -> int:
    """Upper bound in bytes of any legal message. It bounds what a receiver stores for a peer."""
    if rule.compress.rank:
        return factor_bytes_max(block_count, rule.compress.rank)
    return update_bytes_max(block_count, rule.compress.k, rule.compress.values)


def aggregate_bytes_max(spec: RunSpec, block_count: int) -> int:
    """Upper bound in bytes of any legal aggregate of a round in which all seats are taken."""
    compress = spec.rule.compress
    per_node = BLOCK_SIZE if compress.rank else compress.k
    coefficients = min(spec.seats * per_node, BLOCK_SIZE) * block_count
    return _HEAD_BYTES * (block_count + 1) + _COEFFICIENT_BYTES * coefficients


def decode_contribution(spec: RunSpec, layout: Layout, round_id: int, data: bytes) -> Update:
    """The update that a node's message of this round encodes.

    Raises:
        MalformedMessage: not canonical, or it has blocks that are not synced in this round.
    """
    rule = spec.rule
    if rule.compress.rank:
        update = factors_to_update(decode_factors(data, layout.blocks, rule.compress.rank))
    else:
        update = decode_update(data, layout.blocks, rule.compress.k, rule.compress.values)
    if rule.fragments > 1:
        fragment = round_id % rule.fragments
        beside = fragment_blocks(layout, rule.fragments)[update.blocks_B] != fragment
        if beside.any():
            block = int(update.blocks_B[np.argmax(beside)])
            raise MalformedMessage(
                f"update: block {block} is not of fragment {fragment}, which is synced now"
            )
    return update
