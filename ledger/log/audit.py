"""Audit: checks a run's whole books against the Merkle log and every signed checkpoint.

Room: ledger (edge: reads the store). Every leaf is recomputed from the rows, in
order, so the first difference names its entry; then the root, the sums, the balances,
every checkpoint, and every event, round, payout table and document by the hash that its entry
has of it; with the run's id also what each event leads to (postings.py). A checkpoint cannot show
that something was never written, nor that another reader was shown another log (split view).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.ledger.accounts import Kind
from assay.ledger.books import DOCUMENT, NO_SOURCE, ROUND, SETTLEMENT, Entry, place_key
from assay.ledger.journal.log_store import Nodes, read_edge, read_nodes, read_notes
from assay.ledger.journal.reader import LedgerIntegrityError, read_journal, short
from assay.ledger.journal.rows import BROUGHT_IN, SETTLED_IN, Source
from assay.ledger.journal.store import NEXT_ROUND, read_cursor
from assay.ledger.journal.tables import TABLES, written_once
from assay.ledger.log.cosignature import cosigners
from assay.ledger.log.note import BadNoteError, Checkpoint, read_checkpoint
from assay.ledger.log.postings import Replay
from assay.ledger.merkle_log import Edge, append
from assay.protocol.types import Digest, PeerId

_ACCOUNT, _ENTRY, _POSTING = TABLES["account"], TABLES["journal_entry"], TABLES["posting"]
_BALANCE, _EVENT, _INVOICE = TABLES["balance"], TABLES["chain_event"], TABLES["invoice"]
Record = tuple[bytes, bool]  # the hash of the rows, and whether a reorganisation took it back


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The result of a passed audit."""

    entries: int
    postings: int
    records: int  # events, rounds, payout tables and documents
    root: bytes
    assets: tuple[str, ...]
    checkpoints: tuple[Checkpoint, ...]  # smallest first
    cosigners: Mapping[PeerId, int]  # of the newest checkpoint: verifier to Unix seconds


def audit(
    db: Connection,
    origin: str,
    key: bytes | None,
    published: Iterable[tuple[str, str]],
    witnesses: Collection[PeerId] = (),
    run_id: Digest | None = None,
) -> Audited:
    """Check the whole of the books.

    Args:
        db: A reading transaction.
        origin: The log's name.
        key: The log's public key; None takes the key that the newest checkpoint in the books names.
        published: Checkpoints stored outside the books: a name and the note.
        witnesses: The run's verifiers, as far as they are known.
        run_id: The run, if it is known: then every event is booked again, and its entry compared.

    Raises:
        LedgerIntegrityError: the first thing that differs.
    """
    edge, lines, roots, nodes = Edge(), 0, [Edge().root], Nodes()
    records: dict[str, Record] = {}
    replay = None if run_id is None else Replay(db, run_id)
    for one in read_journal(db):
        _note_record(records, one.entry)
        if replay is not None:
            replay.check(one.entry)
        edge = append(edge, [one.leaf], nodes.take)
        roots.append(edge.root)
        lines += len(one.entry.postings)
    _check_log(db, edge, nodes)
    sums = _sums(db)
    wrong = {asset: total for asset, total in sums.items() if total}
    if wrong:
        raise LedgerIntegrityError(f"trial balance: the accounts sum to {wrong}, zero expected")
    _check_balances(db)
    notes = read_notes(db)
    key = key or (notes[-1].signer if notes else None)
    all_notes = [(f"checkpoint of {note.size} entries", note.published()) for note in notes] + list(published)
    checkpoints = _check_notes(all_notes, origin, key, roots)
    _check_records(db, records)
    return Audited(
        entries=edge.size,
        postings=lines,
        records=len(records),
        root=edge.root,
        assets=tuple(sorted(sums)),
        checkpoints=checkpoints,
        cosigners=_check_cosignatures(all_notes, checkpoints, witnesses),
    )


def _check_log(db: Connection, edge: Edge, nodes: Nodes) -> None:
    try:
        kept = read_edge(db)
    except ValueError as error:
        raise LedgerIntegrityError(f"log: {error}") from None
    if kept != edge:
        raise LedgerIntegrityError(
            f"log: {kept.size} leaves with root {short(kept.root)} on record, "
            f"the entries make {edge.size} with root {short(edge.root)}"
        )
    if read_nodes(db) != nodes:
        raise LedgerIntegrityError("log: the roots stored for proofs differ from those of the entries")


def _note_record(records: dict[str, Record], entry: Entry) -> None:
    if entry.reverses in records:
        records[entry.reverses] = (entry.source, True)
    elif entry.source != NO_SOURCE and not entry.reverses:
        records[entry.key] = (entry.source, False)


def _check_records(db: Connection, logged: Mapping[str, Record]) -> None:
    """Compare events, rounds, payout tables and documents with the entries made when they were written."""
    kept = {**_kept_events(db, len(logged)), **_kept_documents(db)}
    for kind, places in ((ROUND, BROUGHT_IN), (SETTLEMENT, SETTLED_IN)):
        kept |= _kept_by_number(db, kind, places)
    for key in sorted(logged.keys() | kept.keys()):
        if logged.get(key) != kept.get(key):
            name = " ".join(key.removeprefix(f"{DOCUMENT}/").split("/")[:3])
            what = "is not on record as it was logged" if key in kept else "is in the log and not on record"
            raise LedgerIntegrityError(f"{name} {what if key in logged else 'is not in the log'}")
    rounds, at = sum(key.startswith(f"{ROUND}/") for key in kept), read_cursor(db, NEXT_ROUND, 0)
    if rounds != at:
        raise LedgerIntegrityError(f"the books say that they hold {at} rounds, there are {rounds}")


def _kept_events(db: Connection, turns_max: int) -> dict[str, Record]:
    kept: dict[str, Record] = {}
    for row in db.execute(sa.select(_EVENT)):
        if not 0 <= row.turns <= turns_max:
            raise LedgerIntegrityError(
                f"event {row.block_hash.hex()} {row.log_index}: orphaned {row.turns} times"
            )
        source = _source(_EVENT, row)
        for turn in range(row.turns + (row.state == "seen")):
            kept[place_key(row.block_hash, row.log_index, turn)] = (source, turn < row.turns)
    return kept


def _kept_documents(db: Connection) -> dict[str, Record]:
    rows = db.execute(sa.select(_INVOICE))
    return {f"{DOCUMENT}/{row.series}/{row.number}": (_source(_INVOICE, row), False) for row in rows}


def _kept_by_number(
    db: Connection, kind: str, places: Mapping[str, sa.ColumnElement[int]]
) -> dict[str, Record]:
    """The records of what several tables say of one round or epoch."""
    found: dict[int, Source] = {}
    for name, place in sorted(places.items()):
        table = TABLES[name]
        columns = written_once(table)
        for number, *row in db.execute(sa.select(place, *columns).order_by(*table.primary_key)):
            found.setdefault(number, Source()).take(name, row)
    return {f"{kind}/{number}": (source.digest, False) for number, source in found.items()}


def _source(table: sa.Table, row: sa.Row[tuple[object, ...]]) -> bytes:
    made = Source()
    made.take(table.name, [row._mapping[column.name] for column in written_once(table)])
    return made.digest


def _sums(db: Connection) -> dict[str, int]:
    total = sa.func.sum(_POSTING.c.amount)
    query = sa.select(_ACCOUNT.c.asset, total).join_from(
        _POSTING, _ACCOUNT, _POSTING.c.account == _ACCOUNT.c.id
    )
    return {asset: int(amount) for asset, amount in db.execute(query.group_by(_ACCOUNT.c.asset))}


def _check_balances(db: Connection) -> None:
    """Compare the sums kept by triggers with the journal."""
    total = sa.select(_POSTING.c.account, sa.func.sum(_POSTING.c.amount)).group_by(_POSTING.c.account)
    posted = {account: int(amount) for account, amount in db.execute(total)}
    columns = (_ACCOUNT, _BALANCE.c.side, _BALANCE.c.posted)
    for row in db.execute(sa.select(*columns).join(_BALANCE, isouter=True).order_by(_ACCOUNT.c.id)):
        made = posted.get(row.id, 0)
        if (row.side, row.posted) != (Kind(row.kind).side, made):
            raise LedgerIntegrityError(f"balance of {row.code}: {row.posted} kept, the entries make {made}")


def _check_notes(
    named_notes: Sequence[tuple[str, str]], origin: str, key: bytes | None, roots: Sequence[bytes]
) -> tuple[Checkpoint, ...]:
    """Compare each note with the roots by size, smallest first, to find the narrowest difference."""
    found: dict[Checkpoint, str] = {}
    for name, text in named_notes:
        if key is None:
            raise LedgerIntegrityError(
                f"{name}: the books hold no checkpoint, so they are older or of another run"
            )
        try:
            found.setdefault(read_checkpoint(text, origin, key), name)
        except BadNoteError as error:
            raise LedgerIntegrityError(f"{name}: {error}") from None
    good = 0
    ordered = sorted(found, key=lambda one: one.size)
    for checkpoint in ordered:
        if checkpoint.size >= len(roots):
            raise LedgerIntegrityError(
                f"{found[checkpoint]}: the books were rolled back: "
                f"{checkpoint.size} entries were signed, {len(roots) - 1} are here"
            )
        if checkpoint.root != roots[checkpoint.size]:
            raise LedgerIntegrityError(
                f"{found[checkpoint]}: signed root {short(checkpoint.root)}, the entries make "
                f"{short(roots[checkpoint.size])}: entries {good + 1} to {checkpoint.size} were altered"
            )
        good = checkpoint.size
    return tuple(ordered)


def _check_cosignatures(
    named_notes: Sequence[tuple[str, str]], checkpoints: Sequence[Checkpoint], witnesses: Collection[PeerId]
) -> dict[PeerId, int]:
    """Check every cosignature line of a verifier; return those that cosigned the newest checkpoint.

    `named_notes` has passed `_check_notes`: each note is one of `checkpoints`.
    """
    newest: dict[PeerId, int] = {}
    by_text = {one.text(): one for one in checkpoints}
    for name, note in named_notes:
        checkpoint = by_text[note.partition("\n\n")[0] + "\n"]
        try:
            found = cosigners(note, checkpoint, witnesses)
        except BadNoteError as error:
            raise LedgerIntegrityError(f"{name}: {error}") from None
        if checkpoint == checkpoints[-1]:
            newest |= found
    return newest
