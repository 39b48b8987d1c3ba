"""Faults: the proven faults of verifiers and nodes in the books, and the slashes that followed.

Room: ledger (edge: reads the store). The rows were written with the round whose manifest
proved them; the slash, if there was one, is a chain event with the offence id.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.chain.events import Slashed
from assay.ledger.journal.reader import read_events
from assay.ledger.journal.tables import TABLES
from assay.protocol.types import Digest, PeerId

_FAULT, _CONTRADICTION = TABLES["fault"], TABLES["contradiction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierFault:
    """A verifier's verdict on a step, proved wrong by the manifest of round `in_round`."""

    verifier: PeerId
    round: int
    node: PeerId
    failing: str  # passed, accused, not_recomputed
    offence_id: Digest
    verdict: Digest
    in_round: int
    slashed: int | None  # token units; None while no slash of this offence is in the books


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContradiction:
    """Two commits of a node for one round."""

    node: PeerId
    round: int
    first: Digest
    second: Digest
    in_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """All faults, in the order in which they were proved."""

    verifiers: tuple[VerifierFault, ...]
    nodes: tuple[NodeContradiction, ...]


def read_faults(db: Connection, verifier: str = "") -> Faults:
    """All stored faults, or those of verifiers whose peer id begins with `verifier`, without nodes.

    Args:
        db: A reading transaction.
        verifier: The beginning of a peer id in hexadecimal.
    """
    slashes: dict[bytes, int] = {}
    for event in read_events(db, Slashed):
        slashes[event.offence_id] = slashes.get(event.offence_id, 0) + event.amount
    faults = db.execute(sa.select(_FAULT).order_by(_FAULT.c.in_round, _FAULT.c.round, _FAULT.c.node))
    pairs = db.execute(sa.select(_CONTRADICTION).order_by(_CONTRADICTION.c.in_round, _CONTRADICTION.c.node))
    return Faults(
        verifiers=tuple(
            VerifierFault(
                verifier=PeerId(row.verifier),
                round=row.round,
                node=PeerId(row.node),
                failing=row.failing,
                offence_id=Digest(row.offence_id),
                verdict=Digest(row.verdict_digest),
                in_round=row.in_round,
                slashed=slashes.get(row.offence_id),
            )
            for row in faults
            if row.verifier.hex().startswith(verifier.lower())
        ),
        nodes=tuple(
            NodeContradiction(
                node=PeerId(row.node),
                round=row.round,
                first=Digest(row.first_digest),
                second=Digest(row.second_digest),
                in_round=row.in_round,
            )
            for row in pairs
            if not verifier
        ),
    )
