"""Combine: the updates of a round in, the bytes of its aggregate out, by the rule in the run's spec.

Room: verifier (pure). The one place that joins the rule, the nodes' reputation and the wire format; a
verifier, a leader and an offline check call it alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState
from assay.protocol.types import Digest, PeerId
from assay.training.codec.signs import encode_signs
from assay.training.codec.wire import Update
from assay.training.layout import Layout
from assay.training.optimiser.aggregate import encode_round
from assay.verifier.aggregation.registry import DECODED, decoded_rule_of, rule_of, uses_reputation
from assay.verifier.aggregation.reputation import PAST, WINDOW, Reputation, admitted, observe


@dataclass(frozen=True, slots=True)
class Combined:
    """Result of aggregating one round's updates.

    body: the encoded aggregate, empty if no parameter moves. reputation: of the nodes after the round.
    refusal: why no parameter moves, in the rule's text; empty if the round has an aggregate.
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
    """The round's aggregate, and the reputation that the next round begins with.

    Args:
        spec: The run.
        layout: Order and shapes of the parameters.
        parent: Digest of the manifest before: public, and new in each round.
        f: Byzantine nodes to tolerate among those still in the run: see `tolerated`.
        before: Reputation after the round before; rounds without commits leave it as it is.
        updates: Of every commit that the manifest carries, decoded.
    """
    if not updates:
        return Combined(b"", before)
    named, reputation = spec.rule.aggregation, observed(spec, layout, before, updates)
    try:
        if uses_reputation(named.name):
            updates = {peer: updates[peer] for peer in admitted(reputation, f=f, stratum_of=spec.stratum_of)}
        if named.name in DECODED:
            return Combined(encode_signs(decoded_rule_of(named.name, f)(updates, layout.blocks)), reputation)
        aggregate = rule_of(named.name, f, parent)(updates, layout.blocks)
    except ValueError as refusal:  # too few nodes for f Byzantine ones: the parameters stay as they are
        return Combined(b"", reputation, str(refusal))
    return Combined(encode_round(spec.rule, aggregate, layout.blocks), reputation)


def observed(
    spec: RunSpec, layout: Layout, before: Reputation, updates: Mapping[PeerId, Update]
) -> Reputation:
    """The reputation after a round, as `combine` finds it, where nobody needs the aggregate."""
    if not updates or not uses_reputation(spec.rule.aggregation.name):
        return before
    return observe(before, updates, layout.blocks, past=rounds_remembered(spec))


def tolerated(run_state: RunState) -> int:
    """Byzantine nodes to tolerate in the next round: each node banned for a proven fault is one less.

    Where others may take a banned node's seat it is not: whoever sends in nodes to be banned would buy, for a
    lot each, rounds in which nothing is trimmed.
    """
    spec = run_state.spec
    if spec.seats > len(spec.nodes):
        return spec.rule.aggregation.f
    banned = sum(record.banned for record in run_state.nodes.values())
    return max(spec.rule.aggregation.f - banned, 0)


def rounds_remembered(spec: RunSpec) -> int:
    """Rounds whose updates the next one is compared with; times the fragments, as they rotate."""
    return (1 if spec.rule.is_dense else PAST) * spec.rule.fragments


def rounds_behind(spec: RunSpec) -> int:
    """Rounds with commits from whose updates the present reputation can be rebuilt; 0 if it is unused."""
    return rounds_remembered(spec) + WINDOW if uses_reputation(spec.rule.aggregation.name) else 0
