"""Node state: what a node carries from round to round, and the root by which commits bind it.

Room: training (pure, without torch: the network's process opens these).

Shape suffixes: N = blocks, C = 4096.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.protocol.encoding import merkle
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import BLOCK_SIZE, RuleSpec
from assay.training.layout import Layout
from assay.training.optimiser.inner import Floats, InnerState, roots_of
from assay.training.optimiser.momentum_root import private_leaves


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node's private state after a round.

    error_NC: momentum, or what was not sent yet; float32. inner: state of its optimiser, for
    rules that carry it. base: 1 + the round of the step that led to it, as a commit that continues it says;
    0 before the first.
    """

    error_NC: Floats
    inner: InnerState | None = None
    base: int = 0


def start_private(layout: Layout) -> NodeState:
    """The private state before a node's first contribution, and after a reset."""
    return NodeState(np.zeros((layout.blocks, BLOCK_SIZE), np.float32))


def carried_digest(run_id: Digest, rule: RuleSpec, layout: Layout, private: NodeState) -> Digest | None:
    """Digest of the inner state in a private state; None for rules that carry none."""
    if not rule.carries_inner:
        return None
    return roots_of(run_id, layout, private.inner).digest if private.inner else NO_DIGEST


def commit(run_id: Digest, rule: RuleSpec, layout: Layout, private: NodeState) -> Digest:
    """The root that binds a private state: its error block by block, and its inner state."""
    carried = carried_digest(run_id, rule, layout, private)
    return merkle.root(private_leaves(run_id, private.error_NC, carried))
