"""Settled: payout tables and the windows of results, as the books have them.

Room: ledger (edge: reads the store). A table here is the books' own word; what was
settled is the root on chain, so whoever acts on a table compares it first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ledger.events import ResultProposed
from ledger.journal_read import BooksAltered
from ledger.journal_rows import event_of_row
from ledger.journal_tables import TABLES
from ledger.payout_tree import Payout, PayoutTree, payout_tree
from ledger.statements import Address

_SETTLEMENT, _PAYOUT, _EVENT = TABLES["settlement"], TABLES["payout"], TABLES["chain_event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedTable:
    """One epoch's payout table, and for each row in what role it pays."""

    epoch: int
    tree: PayoutTree
    roles: tuple[str, ...]


def read_tables(db: Connection, run_id: bytes) -> Iterator[BookedTable]:
    """Every payout table in the books, by epoch.

    Args:
        db: A reading transaction.
        run_id: Of the run; it is part of every root.

    Raises:
        BooksAltered: rows are missing, or one is none.
    """
    for epoch in db.execute(sa.select(_SETTLEMENT.c.epoch).order_by(_SETTLEMENT.c.epoch)).scalars():
        rows = db.execute(
            sa.select(_PAYOUT).where(_PAYOUT.c.epoch == epoch).order_by(_PAYOUT.c.row_index)
        ).all()
        if [row.row_index for row in rows] != list(range(len(rows))):
            raise BooksAltered(f"ledger: table payout lacks rows in epoch {epoch}")
        try:
            payouts = [Payout(account=Address(row.account), amount=row.amount) for row in rows]
            tree = payout_tree(run_id, epoch, payouts)
        except (ValueError, TypeError, AttributeError) as error:
            raise BooksAltered(f"ledger: table payout of epoch {epoch} cannot be read ({error})") from None
        yield BookedTable(epoch=epoch, tree=tree, roles=tuple(row.role for row in rows))


def read_window(db: Connection, run_id: bytes, epoch: int) -> int | None:
    """When the time to challenge an epoch's newest result ends or ended; None if none was proposed.

    Args:
        db: A reading transaction.
        run_id: Of the run.
        epoch: From 0.

    Raises:
        BooksAltered: an event in the books cannot be read.
    """
    rows = db.execute(
        sa.select(_EVENT)
        .where(_EVENT.c.kind == ResultProposed.__name__, _EVENT.c.state == "seen")
        .order_by(_EVENT.c.block_number.desc(), _EVENT.c.log_index.desc())
    )
    for row in rows:
        try:
            event = event_of_row(row)
        except (ValueError, KeyError, TypeError) as error:
            words = f"ledger: an event of block {row.block_number} cannot be read ({error})"
            raise BooksAltered(words) from None
        if isinstance(event, ResultProposed) and (event.run_id, event.epoch) == (run_id, epoch):
            return event.window_ends_at
    return None
