"""Segment: do the inner steps of a round follow from one another?

Room: verifier (pure). A node that takes several optimiser steps between two syncs commits
to its inner state after each segment of them. An audit repeats one drawn segment from the
state before it, and checks in the drawn blocks that the message speaks of the last state:

    before the round ... inner[s-1] --repeated here--> inner[s] ... inner[-1] --drawn blocks--> message

Shape suffixes: P = parameters, B = opened blocks, C = 4096.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol import merkle
from protocol.errors import MalformedMessage
from protocol.messages import Commit, InnerOpening
from protocol.rule import Optimiser, RuleSpec
from protocol.types import NO_DIGEST
from training.inner import Floats, InnerRoots, InnerState, moments_digest, roots_of, theta_domain
from training.layout import Layout
from training.momentum import carried_leaf
from verifier.audit import checked_blocks

BLOCK_OPENING_BYTES_MAX = 9 << 20  # 256 blocks of two roots, with their paths


@dataclass(frozen=True, slots=True)
class OpenedSegment:
    """A checked opening of one segment.

    start: the committed state it begins from; None where nothing is carried into the round.
    Its parameters are empty where the network's are the start. end_BC: the last parameters.
    """

    start: InnerState | None
    end_BC: NDArray[np.float32]


def check_inner_opening(
    opened: InnerOpening, commit: Commit, rule: RuleSpec, layout: Layout, blocks: Sequence[int], segment: int
) -> OpenedSegment:
    """What is opened of the inner steps, if it is what the commit binds.

    Raises:
        MalformedMessage: another segment than drawn, wrong sizes, a digest or path that does
            not lead to the commit, or a value that is not finite.
    """
    if opened.segment != segment:
        raise MalformedMessage(f"opening: segment {opened.segment}, expected the drawn {segment}")
    start = _checked_start(opened, commit, rule, layout, segment)
    end = InnerRoots(opened.end_count, opened.end_theta_root, opened.end_moments)
    if end.digest != commit.inner[-1]:
        raise MalformedMessage("opening: the last inner state is not the committed one")
    if rule.carries_inner:
        leaf = carried_leaf(commit.run_id, layout.blocks, end.digest)
        merkle.check(leaf, layout.blocks, layout.blocks + 1, opened.end_path.hashes, commit.momentum_after)
    elif opened.end_path.hashes:
        raise MalformedMessage("opening: a path of a carried state where the rule carries none")
    end_BC = checked_blocks(
        opened.end_blocks,
        opened.end_paths,
        blocks,
        root=opened.end_theta_root,
        domain=theta_domain(commit.run_id),
        leaf_count=layout.blocks,
    )
    return OpenedSegment(start, end_BC)


def opening_bytes_max(rule: RuleSpec, layout: Layout) -> int:
    """No opening of a step of this rule is longer."""
    if rule.is_gradient:
        return BLOCK_OPENING_BYTES_MAX
    return (1 + _moment_count(rule)) * 4 * layout.parameters + 2 * BLOCK_OPENING_BYTES_MAX


def _checked_start(
    opened: InnerOpening, commit: Commit, rule: RuleSpec, layout: Layout, segment: int
) -> InnerState | None:
    # What nothing binds must be empty: a step has one opening, and the verdict names it.
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
    moments = _floats(opened.start_moments, _moment_count(rule) * layout.parameters, "moments")
    parts = tuple(moments.reshape(_moment_count(rule), layout.parameters)) if len(moments) else ()
    start = InnerState(theta_P, parts, opened.start_count)
    roots = (
        roots_of(commit.run_id, layout, start)
        if shows_theta
        else InnerRoots(opened.start_count, opened.start_theta_root, moments_digest(parts))
    )
    if segment > 0:
        if roots.digest != commit.inner[segment - 1]:
            raise MalformedMessage(f"opening: the start of segment {segment} is not the committed state")
        return start
    leaf = carried_leaf(commit.run_id, layout.blocks, roots.digest)
    merkle.check(leaf, layout.blocks, layout.blocks + 1, opened.start_path.hashes, commit.momentum_before)
    return start


def _moment_count(rule: RuleSpec) -> int:
    return 2 if rule.local.optimiser is Optimiser.ADAMW else 0


def _floats(data: bytes, count: int, what: str) -> Floats:
    if len(data) != 4 * count:
        raise MalformedMessage(f"opening: {len(data)} bytes of {what}, expected {4 * count}")
    values = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise MalformedMessage(f"opening: {what} that are not finite")
    return values
