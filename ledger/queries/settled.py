"""Settled: the payout tables and challenge windows that the books hold.

Room: ledger (edge: reads the store). A table here is only as good as the books; the
settled root is on chain, so compare a table with it before acting on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.chain.events import Challenged, Resolved, ResultFinalized, ResultProposed, ResultRejected
from assay.chain.proofs.payout_tree import Payout, PayoutTree, payout_tree
from assay.chain.statements import Address
from assay.chain.text.times import when_text
from assay.ledger.journal.reader import LedgerIntegrityError, read_events
from assay.ledger.journal.tables import TABLES

_SETTLEMENT, _PAYOUT = TABLES["settlement"], TABLES["payout"]
_KINDS = (ResultProposed, Challenged, Resolved, ResultRejected, ResultFinalized)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedTable:
    """One epoch's payout table, with each row's role."""

    epoch: int
    tree: PayoutTree
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appeal:
    """Challenge window of one proposed result, from the contract's events."""

    ends_at: int  # end of the challenge window, Unix seconds of chain time
    is_challenged: bool = False
    is_final: bool = False


def read_tables(db: Connection, run_id: bytes) -> Iterator[BookedTable]:
    """Every payout table in the books, by epoch.

    Args:
        db: A reading transaction.
        run_id: Of the run; it is part of every root.

    Raises:
        LedgerIntegrityError: rows are missing or invalid.
    """
    for epoch in db.execute(sa.select(_SETTLEMENT.c.epoch).order_by(_SETTLEMENT.c.epoch)).scalars():
        rows = db.execute(
            sa.select(_PAYOUT).where(_PAYOUT.c.epoch == epoch).order_by(_PAYOUT.c.row_index)
        ).all()
        if [row.row_index for row in rows] != list(range(len(rows))):
            raise LedgerIntegrityError(f"ledger: table payout lacks rows in epoch {epoch}")
        try:
            payouts = [Payout(account=Address(row.account), amount=row.amount) for row in rows]
            tree = payout_tree(run_id, epoch, payouts)
        except (ValueError, TypeError, AttributeError) as error:
            raise LedgerIntegrityError(
                f"ledger: table payout of epoch {epoch} cannot be read ({error})"
            ) from None
        yield BookedTable(epoch=epoch, tree=tree, roles=tuple(row.role for row in rows))


def read_appeal(db: Connection, run_id: bytes, epoch: int) -> Appeal | None:
    """Challenge window of an epoch's result, from its last event; None if none is proposed.

    Args:
        db: A reading transaction.
        run_id: Of the run.
        epoch: From 0.

    Raises:
        LedgerIntegrityError: an event in the books cannot be read.
    """
    found: Appeal | None = None
    for event in read_events(db, *_KINDS):
        if not isinstance(event, _KINDS) or (event.run_id, event.epoch) != (run_id, epoch):
            continue
        match event:
            case ResultProposed():
                found = Appeal(ends_at=event.window_ends_at)
            case ResultRejected():
                found = None
            case Challenged() if found is not None:
                found = replace(found, is_challenged=True)
            case Resolved() if found is not None:
                found = replace(found, ends_at=event.window_ends_at, is_challenged=False)
            case ResultFinalized() if found is not None:
                found = replace(found, is_final=True)
    return found


def appeal_by_books(found: Appeal | None, now: int) -> str:
    """Text that says until when a result can be challenged, by the books alone.

    Args:
        found: From `read_appeal`.
        now: Unix seconds by the reader's own clock; the chain's may differ.
    """
    if found is None:
        return "no result of this epoch is in the books; it can be challenged once it is proposed"
    if found.is_final:
        return f"over since {when_text(found.ends_at, now)}: the result is final"
    if found.is_challenged:
        return "challenged, and not answered yet"
    if now < found.ends_at:
        return f"can be challenged until {when_text(found.ends_at, now)}, by this machine's clock"
    return f"over since {when_text(found.ends_at, now)}, by this machine's clock"
