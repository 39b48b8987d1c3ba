"""Carried: what an opened error still counts in the step after it.

Room: verifier (pure). Shape suffixes: B = opened blocks, C = 4096, N = all blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay.protocol.messages import Commit
from assay.protocol.params import RunSpec
from assay.training.codec.wire import Update
from assay.training.fragments import fragment_blocks
from assay.training.layout import Layout
from assay.training.optimiser.carry import carried_shares, is_renewed, leave
from assay.training.transform.blocked_dct import row_lengths
from assay.verifier.audit.tolerance import measure

_SLACK = 1.25  # of the error's limit, between classes: their blocks differ in length by less


def carried(
    spec: RunSpec,
    layout: Layout,
    commit: Commit,
    blocks: Sequence[int],
    before_BC: NDArray[np.float32],
    x_BC: NDArray[np.float32],
    mean: float,
    slack: float = 1.0,
) -> NDArray[np.float32]:
    """The opened error as far as the step carries it; blocks of other fragments as they are left."""
    rule, round_id, opened = spec.rule, int(commit.round), np.array(blocks, np.int64)
    fragment_B = fragment_blocks(layout, rule.fragments)[opened]
    own = np.flatnonzero(fragment_B == round_id % rule.fragments)
    share_B = np.ones(len(opened), np.float32)
    share_B[is_renewed(rule, commit.base, round_id, opened, fragment_B)] = 0
    share_B[own] = carried_shares(
        rule,
        spec.rounds,
        commit.base,
        round_id,
        opened[own],
        before_BC[own],
        row_lengths(x_BC[own]),
        mean,
        slack=slack,
        rounds_before=spec.predecessor.rounds,
    )
    carried_BC = before_BC.copy()
    leave(carried_BC, share_B)
    return carried_BC


def carried_as_shown(
    spec: RunSpec,
    layout: Layout,
    commit: Commit,
    blocks: Sequence[int],
    opened: tuple[NDArray[np.float32], NDArray[np.float32]],
    sent: Update,
    x_BC: NDArray[np.float32],
    *,
    mean: float,
    floor: float,
) -> NDArray[np.float32]:
    """The carried error as another class may have it, whose x is a little longer than ours, or shorter.

    Block by block the one that the opening is nearer to: blocks near their limits may lie on either side.

    Args:
        spec, layout, commit: The step.
        blocks: Opened, ascending.
        opened: The error before and after the step.
        sent: The node's message.
        x_BC: What local work adds, recomputed.
        mean: `mean_block` of all blocks of x.
        floor: `floor_of` all blocks of x.
    """
    before_BC, after_BC = opened
    longer_BC, shorter_BC = (
        carried(spec, layout, commit, blocks, before_BC, x_BC, mean, slack) for slack in (_SLACK, 1 / _SLACK)
    )
    if np.array_equal(longer_BC, shorter_BC) or not np.isfinite(x_BC).all():
        return longer_BC
    longer_B, shorter_B = (
        measure(spec.rule.compress, blocks, carried_BC, after_BC, sent, x_BC, floor=floor).rho_B
        for carried_BC in (longer_BC, shorter_BC)
    )
    return np.where((longer_B <= shorter_B)[:, None], longer_BC, shorter_BC)


def is_synced(spec: RunSpec, layout: Layout, round_id: int) -> NDArray[np.bool_]:
    """Which blocks nodes send in a round. Shape (N,)."""
    fragments = spec.rule.fragments
    found: NDArray[np.bool_] = fragment_blocks(layout, fragments) == round_id % fragments
    return found
