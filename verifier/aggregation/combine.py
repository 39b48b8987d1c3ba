"""Combine: all updates of a round in, the bytes of its aggregate out, as the run's spec says.

Room: verifier (pure). The one place that knows how the rule, the standing of nodes and
the wire fit together; a verifier, a leader and an offline check call it alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.protocol.params import RunSpec
from assay.protocol.state_transition import RunState
from assay.protocol.types import Digest, PeerId
from assay.training.codec.contribution import encode_round
from assay.training.codec.signs import encode_signs
from assay.training.codec.wire import Update
from assay.training.layout import Layout
from assay.verifier.aggregation.registry import DECODED, decoded_rule_of, rule_of, uses_reputation
from assay.verifier.aggregation.reputation import PAST, WINDOW, Reputation, heard, observe


@dataclass(frozen=True, slots=True)
class Combined:
    """What becomes of a round's updates.

    body: the aggregate, empty where nothing moves. standing: of the nodes after the round.
    refusal: why nothing moves, in the rule's words; empty if something does.
    """

    body: bytes
    reputation: Reputation
    refusal: str = ""


def combine(
    spec: RunSpec,
    layout: Layout,
    parent: Digest,
    f: int,
    before: Reputation,
    updates: Mapping[PeerId, Update],
) -> Combined:
    """The round's aggregate, and the standing that the next round begins with.

    Args:
        spec: The run.
        layout: Order and shapes of the parameters.
        parent: Digest of the manifest before: public, and new in each round.
        f: Liars that may be among the nodes still in the run: see `tolerated`.
        before: Standing after the round before; rounds without commits leave it as it is.
        updates: Of every commit that the manifest carries, decoded.
    """
    if not updates:
        return Combined(b"", before)
    named, reputation = spec.rule.aggregation, before
    try:
        if uses_reputation(named.name):
            reputation = observe(before, updates, layout.blocks, past=rounds_remembered(spec))
            updates = {peer: updates[peer] for peer in heard(reputation, f=f)}
        if named.name in DECODED:
            return Combined(encode_signs(decoded_rule_of(named.name, f)(updates, layout.blocks)), reputation)
        aggregate = rule_of(named.name, f, parent)(updates, layout.blocks)
    except ValueError as refusal:  # too few for f liars: everybody stays where they are
        return Combined(b"", reputation, str(refusal))
    return Combined(encode_round(spec.rule, aggregate, layout.blocks), reputation)


def tolerated(run_state: RunState) -> int:
    """Liars to reckon with in the next round: each node barred for a proven fault is one less."""
    banned = sum(record.banned for record in run_state.nodes.values())
    return max(run_state.spec.rule.aggregation.f - banned, 0)


def rounds_remembered(spec: RunSpec) -> int:
    """Rounds whose updates the next one is compared with: where fragments take turns, so many of each."""
    return (1 if spec.rule.is_dense else PAST) * spec.rule.fragments


def rounds_behind(spec: RunSpec) -> int:
    """Rounds with commits from whose updates the present standing can be rebuilt; 0 if there is none."""
    return rounds_remembered(spec) + WINDOW if uses_reputation(spec.rule.aggregation.name) else 0
