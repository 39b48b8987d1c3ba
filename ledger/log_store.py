"""Log store: the Merkle log and its checkpoints inside the books' database.

Room: ledger (edge: inside a transaction that the caller opened). Leaves come in the
transaction of their entries; the edge is read and written once per batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ledger.journal_tables import TABLES
from ledger.merkle_log import HASH_BYTES, Edge, append

_LEAF, _EDGE, _CHECKPOINT = TABLES["log_leaf"], TABLES["log_edge"], TABLES["checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A checkpoint as it was signed, and the key that is said to have signed it."""

    size: int
    signer: bytes
    text: str


def append_leaves(db: Connection, leaves: Sequence[tuple[int, bytes]]) -> Edge:
    """Append leaf hashes, each with its entry's number, and return the log's new edge.

    Raises:
        ValueError: the edge on record is damaged.
    """
    before = read_edge(db)
    after = append(before, [leaf for _, leaf in leaves])
    rows = [
        {"seq": seq, "entry": entry, "leaf_hash": leaf}
        for seq, (entry, leaf) in enumerate(leaves, before.size)
    ]
    if rows:
        db.execute(sa.insert(_LEAF), rows)
        kept = {"size": after.size, "roots": b"".join(after.roots)}
        if before.size:
            db.execute(sa.update(_EDGE).values(kept))
        else:
            db.execute(sa.insert(_EDGE), [{"id": 0, **kept}])
    return after


def read_edge(db: Connection) -> Edge:
    """The log as it stands.

    Raises:
        ValueError: what is on record is no edge of a log.
    """
    row = db.execute(sa.select(_EDGE.c.size, _EDGE.c.roots)).first()
    if row is None:
        return Edge()
    if len(row.roots) % HASH_BYTES:
        raise ValueError(f"the log's edge has {len(row.roots)} bytes")
    roots = (row.roots[at : at + HASH_BYTES] for at in range(0, len(row.roots), HASH_BYTES))
    return Edge(row.size, tuple(roots))


def read_leaves(db: Connection, count: int | None = None) -> list[bytes]:
    """The first `count` leaf hashes, or all of them, in order."""
    asked = sa.select(_LEAF.c.leaf_hash).order_by(_LEAF.c.seq)
    return list(db.execute(asked if count is None else asked.limit(count)).scalars())


def add_note(db: Connection, note: Note) -> None:
    """Keep a signed checkpoint; there is one for each size."""
    db.execute(sa.insert(_CHECKPOINT), [{"size": note.size, "signer": note.signer, "note": note.text}])


def read_notes(db: Connection) -> list[Note]:
    """All signed checkpoints, smallest first."""
    rows = db.execute(sa.select(_CHECKPOINT).order_by(_CHECKPOINT.c.size))
    return [Note(size=row.size, signer=row.signer, text=row.note) for row in rows]
