"""Reader: reads journal entries and verifies each against its leaf in the Merkle log.

Room: ledger (edge: reads the store). Every leaf is recomputed from the rows and compared
with the log's, so an altered entry raises an error and is never returned. Reading the whole
journal also finds missing entries; reading a few costs only their own rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.chain.events import ChainEvent
from assay.ledger.accounts import Account, Kind
from assay.ledger.books import Entry, Posting, request_hash
from assay.ledger.journal.leaf import Written, leaf_of
from assay.ledger.journal.rows import event_of_row
from assay.ledger.journal.tables import TABLES
from assay.protocol.errors import AssayError

E = TypeVar("E", bound=ChainEvent)
PORTION = 500  # entries per query; SQLite bounds the variables of a statement
_ACCOUNT, _ENTRY, _POSTING = TABLES["account"], TABLES["journal_entry"], TABLES["posting"]
_LEAF, _EVENT = TABLES["log_leaf"], TABLES["chain_event"]
_LINES = sa.select(_POSTING.c.entry, _POSTING.c.line, _POSTING.c.amount, _ACCOUNT).join_from(
    _POSTING, _ACCOUNT, _POSTING.c.account == _ACCOUNT.c.id, isouter=True
)


class LedgerIntegrityError(AssayError):
    """The books differ from the log. The message names the first difference."""


def read_journal(db: Connection) -> Iterator[Written]:
    """Every entry with the leaf recomputed from its rows, oldest first, compared with the log.

    Raises:
        LedgerIntegrityError: an entry is missing, incomplete, or its leaf differs from the log's.
    """
    keys: dict[int, str] = {}
    logged = db.execute(sa.select(_LEAF).order_by(_LEAF.c.seq)).all()
    heads = db.execute(sa.select(_ENTRY).order_by(_ENTRY.c.id)).all()
    lines = iter(_grouped(db.execute(_LINES.order_by(_POSTING.c.entry, _POSTING.c.line))))
    number, postings = next(lines, (None, []))
    for at, head in enumerate(heads):
        if head.id != at + 1:
            raise LedgerIntegrityError(f"entry {at + 1} is missing")
        if number is not None and number < head.id:
            raise LedgerIntegrityError(f"entry {number}: postings without an entry")
        own: Sequence[Any] = ()
        if number == head.id:
            own = postings
            number, postings = next(lines, (None, []))
        keys[head.id] = head.key
        yield _as_logged(head, own, keys, logged[at] if at < len(logged) else None)
    if number is not None:
        raise LedgerIntegrityError(f"entry {number}: postings without an entry")
    if len(logged) > len(heads):
        raise LedgerIntegrityError(f"entry {len(heads) + 1} is missing, its leaf is in the log")


def read_entries(db: Connection, numbers: Iterable[int]) -> Iterator[Written]:
    """The entries with these numbers, ascending, each compared with the log; others are not read.

    Raises:
        LedgerIntegrityError: one of them is missing, incomplete, or its leaf differs from the log's.
    """
    ordered = sorted(set(numbers))
    for start in range(0, len(ordered), PORTION):
        yield from _portion(db, ordered[start : start + PORTION])


def _portion(db: Connection, numbers: Sequence[int]) -> Iterator[Written]:
    heads = {row.id: row for row in db.execute(sa.select(_ENTRY).where(_ENTRY.c.id.in_(numbers)))}
    query = _LINES.where(_POSTING.c.entry.in_(numbers)).order_by(_POSTING.c.entry, _POSTING.c.line)
    lines = dict(_grouped(db.execute(query)))
    logged = {row.entry: row for row in db.execute(sa.select(_LEAF).where(_LEAF.c.entry.in_(numbers)))}
    undone = [head.reverses for head in heads.values() if head.reverses is not None]
    keys = {
        row.id: row.key
        for row in db.execute(sa.select(_ENTRY.c.id, _ENTRY.c.key).where(_ENTRY.c.id.in_(undone)))
    }
    for number in numbers:
        if number not in heads:
            raise LedgerIntegrityError(f"entry {number} is missing")
        yield _as_logged(heads[number], lines.get(number, ()), keys, logged.get(number))


def _grouped(rows: Iterable[Any]) -> Iterator[tuple[int, list[Any]]]:
    return ((entry, list(found)) for entry, found in groupby(rows, key=lambda row: int(row.entry)))


def _as_logged(head: Any, lines: Sequence[Any], keys: dict[int, str], logged: Any) -> Written:
    """The entry of these rows, if its leaf is the log's.

    Raises:
        LedgerIntegrityError: it is not.
    """
    entry, body = _entry(head, lines, keys)
    leaf = leaf_of(body, head.recorded_ms)
    if logged is None or (logged.seq, logged.entry) != (head.id - 1, head.id):
        raise LedgerIntegrityError(f"{_name(head)}: the log has no leaf for it")
    if logged.leaf_hash != leaf:
        raise LedgerIntegrityError(
            f"{_name(head)}: its rows make leaf {short(leaf)}, logged as {short(logged.leaf_hash)}"
        )
    return Written(number=head.id, entry=entry, recorded_ms=head.recorded_ms, leaf=leaf)


def _entry(head: Any, lines: Sequence[Any], keys: dict[int, str]) -> tuple[Entry, bytes]:
    """The entry of these rows, and its bytes.

    Raises:
        LedgerIntegrityError: the rows are no valid entry.
    """
    try:
        if [line.line for line in lines] != list(range(head.lines)):
            raise ValueError(f"{len(lines)} postings, {head.lines} announced")
        entry = entry_of(head, lines, "" if head.reverses is None else keys[head.reverses])
        for line, posting in zip(lines, entry.postings, strict=True):
            if posting.account.code != line.code:
                raise ValueError(f"account {line.code!r} says it is {posting.account.code!r}")
        body = entry.to_bytes()
        if request_hash(body) != head.request_hash:
            raise ValueError("its request hash differs")
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerIntegrityError(f"{_name(head)}: {error}") from None
    return entry, body


def entry_of(head: Any, lines: Iterable[Any], reverses: str = "") -> Entry:
    """The entry of its row, the rows of its postings with their accounts, and the key that it reverses."""
    return Entry(
        key=head.key,
        kind=head.kind,
        epoch=head.epoch,
        block_number=head.block_number,
        block_hash=head.block_hash,
        block_time=head.block_time,
        reverses=reverses,
        source=head.source,
        postings=tuple(Posting(account=account_of(line), amount=line.amount) for line in lines),
    )


def account_of(row: Any) -> Account:
    """The account of a row of its table."""
    return Account(kind=Kind(row.kind), owner=row.owner, role=row.role, epoch=row.epoch, asset=row.asset)


def read_events(db: Connection, *kinds: type[E]) -> list[E]:
    """Events of these kinds that are not orphaned, in chain order.

    Raises:
        LedgerIntegrityError: one cannot be read.
    """
    query = sa.select(_EVENT).where(
        _EVENT.c.state == "seen", _EVENT.c.kind.in_([kind.__name__ for kind in kinds])
    )
    found: list[Any] = []
    for row in db.execute(query.order_by(_EVENT.c.block_number, _EVENT.c.log_index)):
        try:
            found.append(event_of_row(row))
        except (ValueError, KeyError, TypeError) as error:
            message = f"ledger: a {row.kind} of block {row.block_number} cannot be read ({error})"
            raise LedgerIntegrityError(message) from None
    return found


def _name(head: Any) -> str:
    return f"entry {head.id} ({head.key})"


def short(value: bytes) -> str:
    """The beginning of a hash, for messages."""
    return bytes(value).hex()[:16]
