"""Segment: the opening of one segment of inner steps, checked against the commit that binds it.

Room: verifier (pure). A node that takes several optimiser steps between two syncs commits to its inner state
after each segment of them. An audit repeats one drawn segment from the state before it, and checks in the
drawn blocks that the message follows from the last state:

    before the round ... inner[s-1] --repeated here--> inner[s] ... inner[-1] --drawn blocks--> message

Of inner[s] the drawn blocks are opened too, with moments: within an execution class its digest suffices;
between classes our own steps are compared with them (displacement.py).

Shape suffixes: P = parameters, B = opened blocks, C = 4096.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.protocol.encoding import merkle
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Commit
from assay.protocol.openings import InnerBlocks, InnerOpening
from assay.protocol.types import NO_DIGEST
from assay.protocol.update_rule import BLOCK_SIZE, PPM, Optimiser, RuleSpec
from assay.training.layout import Layout
from assay.training.optimiser.inner import (
    Floats,
    InnerRoots,
    InnerState,
    moments_domain,
    moments_root,
    moved_most,
    roots_of,
    theta_domain,
)
from assay.training.optimiser.matrices import moment_counts, moments_of
from assay.training.optimiser.momentum_root import carried_leaf
from assay.training.transform.blocked_dct import length
from assay.verifier.audit.exact import checked_blocks

# Times the bounds, which hold for all gradients: for rounding, and for the tensors that Muon steps by AdamW,
# whose two moments it cuts apart.
_LENIENCE = 4.0
_UNDERFLOW = 1e-15  # of a first moment whose squares are zero


@dataclass(frozen=True, slots=True)
class OpenedSegment:
    """A checked opening of one segment.

    start: the committed state it begins from; None if nothing is carried into the round.
    Its parameters are empty if the network's are the start. count: of the end state, as
    committed. end: its opened blocks, parameters and then each moment, all of shape (B, C).
    last_BC: the last parameters of the round.
    """

    start: InnerState | None
    count: int
    end: tuple[Floats, ...]
    last_BC: Floats


def check_inner_opening(
    opened: InnerOpening, commit: Commit, rule: RuleSpec, layout: Layout, blocks: Sequence[int], segment: int
) -> OpenedSegment:
    """The opened inner states, if the commit binds them.

    Raises:
        MalformedMessage: another segment than drawn, wrong sizes, a digest or path that does
            not lead to the commit, or a value that is not finite.
    """
    if opened.segment != segment:
        raise MalformedMessage(f"opening: segment {opened.segment}, expected the drawn {segment}")
    start = _checked_start(opened, commit, rule, layout, segment)
    is_last = segment == len(commit.inner) - 1
    if len(opened.last) != (not is_last):
        raise MalformedMessage(
            f"opening: {len(opened.last)} last states beside that of segment {segment} of {len(commit.inner)}"
        )
    moments = rule.local.moments
    end = _checked_state(opened.end, commit, segment, layout.blocks, blocks, moments, is_shown=True)
    last = end
    for shown in opened.last:
        last = _checked_state(shown, commit, -1, layout.blocks, blocks, moments, is_shown=False)
    if rule.carries_inner:
        leaf = carried_leaf(commit.run_id, layout.blocks, commit.inner[-1])
        merkle.check(leaf, layout.blocks, layout.blocks + 1, opened.last_path.hashes, commit.momentum_after)
    elif opened.last_path.hashes:
        raise MalformedMessage("opening: a path of a carried state where the rule carries none")
    return OpenedSegment(start, opened.end.count, end, last[0])


def check_reached(rule: RuleSpec, commit: Commit, theta_P: Floats, start: InnerState, steps: int) -> None:
    """Do nothing if a node's own steps can lead to the state that it shows, whatever its gradients were.

    Else it could choose one from which its next steps need no work, or can be judged by nobody: parameters so
    large that gradients vanish, or that a rounding changes everything.

    Args:
        rule: The run's.
        commit: The step.
        theta_P: The round's public parameters.
        start: The state; finite.
        steps: Inner steps from the round's beginning to it.

    Raises:
        MalformedMessage: which part of it no steps lead to.
    """
    local = rule.local
    most = int(commit.round) * local.steps + steps
    if start.count > most:
        raise MalformedMessage(f"opening: a start after {start.count} steps, expected at most {most}")
    share = _LENIENCE * moved_most(local)
    if local.optimiser is Optimiser.ADAMW and np.isfinite(share):
        first_P, second_P = start.moments
        if not (np.abs(first_P) <= share * np.sqrt(np.maximum(second_P, 0)) + _UNDERFLOW).all():
            raise MalformedMessage("opening: a start with moments that no gradients have")
    if len(start.moments) > 1 and not (start.moments[1] >= 0).all():
        raise MalformedMessage("opening: a start with a negative mean of squares")
    if steps and not rule.is_local_kept:
        lr, decay = local.schedule.peak_nano / 1e9, local.decay_micro / PPM
        far = length(start.theta_P - theta_P)
        size = share if local.optimiser is Optimiser.SGD else share * math.sqrt(len(theta_P))
        reach = steps * lr * (size + _LENIENCE * decay * length(theta_P))
        if not far <= reach:
            raise MalformedMessage(
                f"opening: a start {far:.3g} from where the round began, {steps} steps reach {reach:.3g}"
            )


def _checked_state(
    shown: InnerBlocks,
    commit: Commit,
    entry: int,
    leaf_count: int,
    blocks: Sequence[int],
    moments: int,
    *,
    is_shown: bool,
) -> tuple[Floats, ...]:
    """The opened blocks of an inner state, if they lead to its entry: parameters, then the opened moments."""
    if InnerRoots(shown.count, shown.theta_root, shown.moments_root).digest != commit.inner[entry]:
        which = "last inner state" if entry < 0 else f"inner state after segment {entry}"
        raise MalformedMessage(f"opening: the {which} is not the committed one")
    theta_BC = checked_blocks(
        shown.theta,
        shown.theta_paths,
        blocks,
        root=shown.theta_root,
        domain=theta_domain(commit.run_id),
        leaf_count=leaf_count,
    )
    if not moments and shown.moments_root != NO_DIGEST:
        raise MalformedMessage("opening: a root of moments where the rule's optimiser has none")
    if not moments or not is_shown:
        if shown.moments or shown.moments_paths:
            raise MalformedMessage("opening: moments where none are asked for")
        return (theta_BC,)
    rows_BC = checked_blocks(
        shown.moments,
        shown.moments_paths,
        blocks,
        root=shown.moments_root,
        domain=moments_domain(commit.run_id),
        leaf_count=leaf_count,
        width=moments * BLOCK_SIZE,
    )
    return (theta_BC, *(part_BC.copy() for part_BC in np.split(rows_BC, moments, axis=1)))


def _checked_start(
    opened: InnerOpening, commit: Commit, rule: RuleSpec, layout: Layout, segment: int
) -> InnerState | None:
    # Fields that nothing binds must be empty: a step has one opening, and the verdict names it.
    if segment == 0 and not (rule.carries_inner and commit.base > 0):
        shown = (opened.start_theta, opened.start_moments, opened.start_count, opened.start_path.hashes)
        if any(shown) or opened.start_theta_root != NO_DIGEST:
            raise MalformedMessage("opening: a start state where none is carried into the round")
        return None
    shows_theta = segment > 0 or rule.is_local_kept
    if shows_theta and opened.start_theta_root != NO_DIGEST:
        raise MalformedMessage("opening: a root beside the parameters it would stand for")
    if segment > 0 and opened.start_path.hashes:
        raise MalformedMessage("opening: a path of a carried state where the segment does not begin with it")
    theta_P = _floats(opened.start_theta, layout.parameters if shows_theta else 0, "parameters")
    moments = _floats(opened.start_moments, sum(moment_counts(rule.local, layout)), "moments")
    parts = moments_of(rule.local, layout, moments)
    start = InnerState(theta_P, parts, opened.start_count)
    roots = (
        roots_of(commit.run_id, layout, start)
        if shows_theta
        else InnerRoots(
            opened.start_count, opened.start_theta_root, moments_root(commit.run_id, layout, parts)
        )
    )
    if segment > 0:
        if roots.digest != commit.inner[segment - 1]:
            raise MalformedMessage(f"opening: the start of segment {segment} is not the committed state")
        return start
    leaf = carried_leaf(commit.run_id, layout.blocks, roots.digest)
    merkle.check(leaf, layout.blocks, layout.blocks + 1, opened.start_path.hashes, commit.momentum_before)
    return start


def _floats(data: bytes, count: int, what: str) -> Floats:
    if len(data) != 4 * count:
        raise MalformedMessage(f"opening: {len(data)} bytes of {what}, expected {4 * count}")
    values = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise MalformedMessage(f"opening: {what} that are not finite")
    return values
