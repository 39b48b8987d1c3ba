"""Log store: reads and writes the Merkle log and its checkpoints inside the books' database.

Room: ledger (edge: inside a transaction that the caller opened). Leaves come in the
transaction of their entries; the edge is read and written once per batch. Roots of perfect
subtrees of `KEPT_LEAVES` and more are kept, a row for every 32nd entry, so a proof costs the
leaves of two or three small subtrees and O(log n) of these rows, however long the log is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.ledger.journal.database import insert_rows
from assay.ledger.journal.tables import TABLES
from assay.ledger.merkle_log import (
    EMPTY_ROOT,
    HASH_BYTES,
    Edge,
    Span,
    append,
    consistency_spans,
    inclusion_spans,
    left_size,
    node_hash,
    root_of,
)
from assay.protocol.types import PeerId

KEPT_LEAVES = 64
_LEAF, _EDGE, _CHECKPOINT = TABLES["log_leaf"], TABLES["log_edge"], TABLES["checkpoint"]
_NODE, _COSIGNATURE = TABLES["log_node"], TABLES["cosignature"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A checkpoint note as signed, and the key recorded as its signer."""

    size: int
    signer: bytes
    text: str
    cosignatures: tuple[tuple[PeerId, str], ...] = ()  # verifiers and their signature lines, ascending

    def published(self) -> str:
        """The note as published: with every stored cosignature."""
        return self.text + "".join(f"{line}\n" for _, line in self.cosignatures)


def append_leaves(db: Connection, leaves: Sequence[tuple[int, bytes]]) -> Edge:
    """Append leaf hashes, each with its entry's number, and return the log's new edge.

    Raises:
        ValueError: the stored edge is damaged.
    """
    before, nodes = read_edge(db), Nodes()
    after = append(before, [leaf for _, leaf in leaves], nodes.take)
    rows = [
        {"seq": seq, "entry": entry, "leaf_hash": leaf}
        for seq, (entry, leaf) in enumerate(leaves, before.size)
    ]
    if rows:
        insert_rows(db, _LEAF, rows)
        insert_rows(db, _NODE, [{"place": place, "node_hash": root} for place, root in nodes.items()])
        kept = {"size": after.size, "roots": b"".join(after.roots)}
        if before.size:
            db.execute(sa.update(_EDGE).values(kept))
        else:
            db.execute(sa.insert(_EDGE), [{"id": 0, **kept}])
    return after


class Nodes(dict[int, bytes]):
    """Stored subtree roots, by place."""

    def take(self, span: Span, root: bytes) -> None:
        """Keep a perfect subtree's root if it is large enough."""
        if span[1] >= KEPT_LEAVES:
            self[place_of(span)] = root


def place_of(span: Span) -> int:
    """A perfect subtree's unique number: its first leaf is a multiple of its size."""
    return span[0] * 2 + span[1]


def read_nodes(db: Connection) -> dict[int, bytes]:
    """All stored roots, by place."""
    return {row.place: row.node_hash for row in db.execute(sa.select(_NODE))}


def prove_inclusion(db: Connection, size: int, index: int) -> tuple[bytes, ...]:
    """The proof that leaf `index` is in the log of this size, from stored roots; O(log n) work.

    Args:
        db: A reading transaction.
        size: A checkpoint's, or the log's.
        index: From 0.

    Raises:
        IndexError: there is no such leaf.
        ValueError: a leaf or a root is missing.
    """
    return _roots(db, inclusion_spans(size, index))


def prove_consistency(db: Connection, size: int, old_size: int) -> tuple[bytes, ...]:
    """The proof that the log of this size begins with that of `old_size`; O(log n) work.

    Raises:
        IndexError: the older log is the longer one.
        ValueError: a leaf or a root is missing.
    """
    return _roots(db, consistency_spans(size, old_size))


def read_root(db: Connection, size: int) -> bytes:
    """The root that the log had at this size; O(log n) work.

    Raises:
        IndexError: the log was never that long.
        ValueError: a leaf or a root is missing.
    """
    if not 0 <= size <= read_edge(db).size:
        raise IndexError(f"the log has {read_edge(db).size} leaves, {size} requested")
    return _roots(db, [(0, size)])[0] if size else EMPTY_ROOT


def _roots(db: Connection, spans: Sequence[Span]) -> tuple[bytes, ...]:
    """The root of each subtree, by two queries in all."""
    whole: set[int] = set()
    small: list[Span] = []
    for span in spans:
        for part in _kept(span):
            if part[1] >= KEPT_LEAVES:
                whole.add(place_of(part))
            else:
                small.append(part)
    nodes = {row.place: row.node_hash for row in db.execute(sa.select(_NODE).where(_NODE.c.place.in_(whole)))}
    ranges = [_LEAF.c.seq.between(first, first + count - 1) for first, count in small]
    query = sa.select(_LEAF.c.seq, _LEAF.c.leaf_hash).where(sa.or_(sa.false(), *ranges))
    leaves = {row.seq: row.leaf_hash for row in db.execute(query)}
    try:
        return tuple(_root(span, nodes, leaves) for span in spans)
    except KeyError as missing:
        raise ValueError(f"the log lacks leaf or root {missing}") from None


def _kept(span: Span) -> Iterable[Span]:
    """Splits a subtree into those whose roots are stored, and a rest at the end."""
    first, count = span
    while count >= KEPT_LEAVES and count & (count - 1):
        left = left_size(count)
        yield first, left
        first, count = first + left, count - left
    yield first, count


def _root(span: Span, nodes: dict[int, bytes], leaves: dict[int, bytes]) -> bytes:
    first, count = span
    if count < KEPT_LEAVES:
        return root_of(leaves[at] for at in range(first, first + count))
    if count & (count - 1) == 0:
        return nodes[place_of(span)]
    left = left_size(count)
    rest = _root((first + left, count - left), nodes, leaves)
    return node_hash(_root((first, left), nodes, leaves), rest)


def read_edge(db: Connection) -> Edge:
    """The log's present edge.

    Raises:
        ValueError: the stored edge is invalid.
    """
    row = db.execute(sa.select(_EDGE.c.size, _EDGE.c.roots)).first()
    if row is None:
        return Edge()
    if len(row.roots) % HASH_BYTES:
        raise ValueError(f"the log's edge has {len(row.roots)} bytes")
    roots = (row.roots[at : at + HASH_BYTES] for at in range(0, len(row.roots), HASH_BYTES))
    return Edge(row.size, tuple(roots))


def read_leaves(db: Connection) -> list[bytes]:
    """All leaf hashes in order."""
    return list(db.execute(sa.select(_LEAF.c.leaf_hash).order_by(_LEAF.c.seq)).scalars())


def add_note(db: Connection, note: Note) -> None:
    """Store a signed checkpoint; there is one for each size."""
    db.execute(sa.insert(_CHECKPOINT), [{"size": note.size, "signer": note.signer, "note": note.text}])


def read_notes(db: Connection, newest: int | None = None) -> list[Note]:
    """All signed checkpoints, or only the `newest` last ones, smallest first."""
    rows = db.execute(sa.select(_CHECKPOINT).order_by(_CHECKPOINT.c.size.desc()).limit(newest)).all()
    lines: dict[int, list[tuple[PeerId, str]]] = {}
    if rows:
        query = sa.select(_COSIGNATURE).where(_COSIGNATURE.c.size >= rows[-1].size)
        for row in db.execute(query.order_by(_COSIGNATURE.c.size, _COSIGNATURE.c.verifier)):
            lines.setdefault(row.size, []).append((PeerId(row.verifier), row.line))
    return [
        Note(size=row.size, signer=row.signer, text=row.note, cosignatures=tuple(lines.get(row.size, ())))
        for row in rows
    ][::-1]


def add_cosignature(db: Connection, size: int, verifier: PeerId, line: str) -> None:
    """Store a verifier's cosignature of a checkpoint; the first one stays."""
    same = sa.and_(_COSIGNATURE.c.size == size, _COSIGNATURE.c.verifier == verifier)
    if db.execute(sa.select(_COSIGNATURE.c.size).where(same)).first() is None:
        db.execute(sa.insert(_COSIGNATURE), [{"size": size, "verifier": verifier, "line": line}])
