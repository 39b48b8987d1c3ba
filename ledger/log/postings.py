"""Postings: books every stored event again, and compares each entry with what its event leads to.

Room: ledger (edge: reads the store). The log binds what was written, true or not: here the amounts follow
from the events and payout tables of the same books, by the function that booked them. Whether these happened
is for the chain and the manifests to say.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.chain.events import ChainEvent
from assay.ledger.books import Books, BooksError, Entry, book, place_key, post, reversal_of
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.journal.rows import event_of_row
from assay.ledger.journal.tables import TABLES
from assay.ledger.settlement.payouts import Row, Settlement
from assay.protocol.types import Digest, PeerId

_EVENT, _SETTLEMENT, _PAYOUT = TABLES["chain_event"], TABLES["settlement"], TABLES["payout"]


class Replay:
    """The books of a run made again, one entry of the journal after another."""

    def __init__(self, db: Connection, run_id: Digest) -> None:
        """Read the events and payout tables.

        Raises:
            LedgerIntegrityError: one cannot be read.
        """
        self._books = Books(run_id=run_id, tables=_read_tables(db, run_id))
        self._events = _read_events(db)
        self._made: dict[str, Entry] = {}  # by key: those that a reversal may name

    def check(self, entry: Entry) -> None:
        """Do nothing if this entry follows those before it.

        Raises:
            LedgerIntegrityError: its event leads to another entry, or it moves money without an event.
        """
        place, _, turn = entry.key.rpartition("/")
        event = self._events.get(place)
        try:
            if entry.reverses in self._made:
                made = reversal_of(self._made.pop(entry.reverses))
                self._books = post(self._books, made)
            elif event is not None and turn.isdecimal():
                self._books, made = book(self._books, event, int(turn), entry.source)
                self._made[entry.key] = made
            elif entry.postings:
                raise LedgerIntegrityError(
                    f"entry {entry.key}: moves money, and no event is on record for it"
                )
            else:
                return  # the record of a row of another table
        except BooksError as error:
            raise LedgerIntegrityError(f"entry {entry.key}: {error}") from None
        if made != entry:
            raise LedgerIntegrityError(f"entry {entry.key}: says other than what its {made.kind} leads to")


def _read_events(db: Connection) -> dict[str, ChainEvent]:
    """Every event, orphaned or not, by the key of its entries without its turn."""
    found = {}
    for row in db.execute(sa.select(_EVENT)):
        try:
            found[place_key(row.block_hash, row.log_index).rpartition("/")[0]] = event_of_row(row)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerIntegrityError(
                f"a {row.kind} of block {row.block_number} cannot be read ({error})"
            ) from None
    return found


def _read_tables(db: Connection, run_id: Digest) -> dict[int, Settlement]:
    """The payout tables on record, by epoch, without their unpaid steps."""
    rows: dict[int, list[Row]] = {}
    try:
        for row in db.execute(sa.select(_PAYOUT).order_by(_PAYOUT.c.epoch, _PAYOUT.c.row_index)):
            account = bytes.fromhex(row.account.removeprefix("0x"))
            line = Row(role=row.role, peer=PeerId(row.peer), account=account, amount=row.amount)
            rows.setdefault(row.epoch, []).append(line)
    except ValueError as error:
        raise LedgerIntegrityError(f"a payout row cannot be read ({error})") from None
    return {
        row.epoch: Settlement(
            run_id=run_id,
            epoch=row.epoch,
            rows=tuple(rows.get(row.epoch, ())),
            unpaid=(),
            tokens_paid=row.tokens_paid,
            table_hash=Digest(row.table_hash),
        )
        for row in db.execute(sa.select(_SETTLEMENT))
    }
