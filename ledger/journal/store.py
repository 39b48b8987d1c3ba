"""Store: one run's books in a database; one transaction per batch, nothing booked twice or lost.

Room: ledger (edge: a SQLite file or a PostgreSQL database). Blocking; async callers run it in a thread.
The cursors move in the same transaction as the rows they count, so a process killed between
any two statements continues as if the batch had never begun.

    manifests --add_rounds--> rounds, contributions, audits, payout tables, records (insert only)
    events    --take_blocks-> events seen or orphaned, entries, reversals (insert only but for `state`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.chain.events import ChainEvent, ResultProposed
from assay.ledger.accounts import Account
from assay.ledger.books import (
    ROUND,
    SETTLEMENT,
    Books,
    Entry,
    book,
    bookable,
    place_key,
    post,
    record,
    reversal_of,
)
from assay.ledger.journal.database import Place as Database
from assay.ledger.journal.database import open_engine, reading, writing
from assay.ledger.journal.reader import E, read_events
from assay.ledger.journal.round_facts import RoundFacts
from assay.ledger.journal.rows import (
    Place,
    Row,
    event_row,
    place_of,
    rows_of_round,
    rows_of_settlement,
    source_of,
)
from assay.ledger.journal.tables import TABLES
from assay.ledger.journal.writer import (
    read_balances,
    read_entry,
    read_posted,
    write_entries,
)
from assay.ledger.settlement.payouts import Settlement

NEXT_ROUND, NEXT_BLOCK = "next_round", "next_block"
_EVENT, _CURSOR = TABLES["chain_event"], TABLES["cursor"]


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The entries and reversals that taking some blocks wrote."""

    seen: tuple[ChainEvent, ...] = ()
    orphaned: int = 0


class BookStore:
    """The books of one run. Concurrent readers; writers are serialised by the database's lock."""

    def __init__(
        self, place: Database, run_id: bytes, *, first_block: int = 0, now_ms: Callable[[], int] = _unix_ms
    ) -> None:
        """Open or create the books.

        Args:
            place: A file, or the URL of a PostgreSQL database that holds nothing else.
            run_id: The run whose payout tables are booked.
            first_block: Where reading the chain starts in new books.
            now_ms: Unix time in milliseconds, for `recorded_ms`.

        Raises:
            ConfigError: books of another schema.
            Unavailable: the database cannot be opened.
        """
        self.run_id, self.first_block = run_id, first_block
        self._now_ms = now_ms
        self.engine = open_engine(place)

    def close(self) -> None:
        """Release the database."""
        self.engine.dispose()

    def reading(self) -> AbstractContextManager[Connection]:
        """One consistent snapshot, for queries; see ledger/queries/report.py."""
        return reading(self.engine)

    @property
    def next_round(self) -> int:
        """The first round not yet stored."""
        with self.reading() as db:
            return read_cursor(db, NEXT_ROUND, 0)

    @property
    def next_block(self) -> int:
        """The first block not yet read."""
        with self.reading() as db:
            return read_cursor(db, NEXT_BLOCK, self.first_block)

    def balances(self) -> dict[Account, int]:
        """Every account that is not at zero: debits positive, credits negative."""
        with self.reading() as db:
            return read_balances(db)

    def events(self, *kinds: type[E]) -> list[E]:
        """Events of these kinds that are not orphaned, in chain order."""
        with self.reading() as db:
            return read_events(db, *kinds)

    # ---- writes

    def add_entries(self, entries: Sequence[Entry]) -> list[int]:
        """Append entries in one transaction; see `write_entries`."""
        with writing(self.engine) as db:
            return write_entries(db, entries, self._now_ms())

    def add_rounds(self, facts: Sequence[RoundFacts]) -> None:
        """Store final rounds, each with its record in the journal; rounds already stored are left alone.

        Raises:
            ValueError: a round in between is missing (our own mistake).
        """
        with writing(self.engine) as db:
            at = read_cursor(db, NEXT_ROUND, 0)
            rows: dict[str, list[Row]] = {}
            records: list[Entry] = []
            for one in facts:
                if one.round < at:
                    continue
                if one.round > at:
                    raise ValueError(f"round {one.round} arrived, {at} expected")
                at += 1
                brought = [(ROUND, one.round, rows_of_round(one))]
                if one.settlement is not None:
                    brought += [(SETTLEMENT, one.settlement.epoch, rows_of_settlement(one.settlement))]
                for kind, number, tables in brought:
                    records.append(record(kind, str(number), source_of(tables)))
                    for name, found in tables.items():
                        rows.setdefault(name, []).extend(found)
            for name, found in rows.items():
                if found:
                    db.execute(sa.insert(TABLES[name]), found)
            write_entries(db, records, self._now_ms())
            set_cursor(db, NEXT_ROUND, at)

    def take_blocks(
        self,
        events: Sequence[ChainEvent],
        from_block: int,
        to_block: int,
        tables: Mapping[int, Settlement],
    ) -> Taken:
        """Book the chain's events from `from_block` to its end.

        Entries of events that a reorganisation removed are reversed, newest first. Blocks
        from the first that needs an unknown payout table on are left for later.

        Args:
            events: All events from `from_block` to `to_block`, in chain order.
            from_block: At most `next_block`; reading further back finds orphaned events.
            to_block: The newest block.
            tables: Settlements of final epochs, by epoch.

        Raises:
            BooksError: the events cannot be complete; nothing was written.
        """
        count = bookable(self.run_id, tables, events)
        if count < len(events):
            to_block = events[count].block_number - 1
        arrived = {place_of(event): event for event in events[:count]}
        with writing(self.engine) as db:
            if from_block > read_cursor(db, NEXT_BLOCK, self.first_block):
                raise ValueError(f"blocks before {from_block} were never read")
            known = _known_places(db, from_block)
            gone = [place for place, (is_seen, _) in known.items() if is_seen and place not in arrived]
            fresh = [event for place, event in arrived.items() if not known.get(place, (False, 0))[0]]
            for place in gone:
                _mark(db, place, "orphaned", known[place][1] + 1)
            proposed = {event.digest: event.table_hash for event in read_events(db, ResultProposed)}
            books = Books(run_id=self.run_id, tables=tables, results=proposed, balances=read_posted(db))
            entries: list[Entry] = []
            for block_hash, log_index in reversed(gone):
                orphaned_count = known[(block_hash, log_index)][1]
                undone = read_entry(db, place_key(block_hash, log_index, orphaned_count))
                if undone is not None:
                    entries.append(reversal_of(undone))
                    books = post(books, entries[-1])
            for event in fresh:
                orphaned_count = known.get(place_of(event), (False, 0))[1]
                source = source_of({"chain_event": [event_row(event)]})
                books, made = book(books, event, orphaned_count, source)
                entries.append(made)
                if place_of(event) in known:
                    _mark(db, place_of(event), "seen", orphaned_count)
            new = [event_row(event) for event in fresh if place_of(event) not in known]
            if new:
                db.execute(sa.insert(_EVENT), new)
            write_entries(db, entries, self._now_ms())
            set_cursor(db, NEXT_BLOCK, to_block + 1)
        return Taken(seen=tuple(fresh), orphaned=len(gone))


def read_cursor(db: Connection, name: str, start: int) -> int:
    """Where a cursor is; `start` before it has moved."""
    found = db.execute(sa.select(_CURSOR.c.value).where(_CURSOR.c.name == name)).scalar()
    return start if found is None else int(found)


def set_cursor(db: Connection, name: str, value: int) -> None:
    """Move a cursor, or make it."""
    moved = db.execute(sa.update(_CURSOR).where(_CURSOR.c.name == name).values(value=value))
    if not moved.rowcount:
        db.execute(sa.insert(_CURSOR), [{"name": name, "value": value}])


def _known_places(db: Connection, from_block: int) -> dict[Place, tuple[bool, int]]:
    """For each event from a block on: whether it is not orphaned, and how often it was; in chain order."""
    rows = db.execute(
        sa.select(_EVENT.c.block_hash, _EVENT.c.log_index, _EVENT.c.state, _EVENT.c.turns)
        .where(_EVENT.c.block_number >= from_block)
        .order_by(_EVENT.c.block_number, _EVENT.c.log_index)
    )
    return {(row.block_hash, row.log_index): (row.state == "seen", row.turns) for row in rows}


def _mark(db: Connection, place: Place, state: str, turns: int) -> None:
    same = sa.and_(_EVENT.c.block_hash == place[0], _EVENT.c.log_index == place[1])
    db.execute(sa.update(_EVENT).where(same).values(state=state, turns=turns))
