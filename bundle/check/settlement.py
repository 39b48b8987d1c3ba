"""Check settlement: compares one epoch's payout table, recomputed from the chain, with the run's books.

Room: bundle (edge: reads a folder). `bundle/read.py` has recomputed the table and compared it with the
bundle; here it is compared with the ledger's copy, the contract's events and the journal. That the
parameters are right is checked by `bundle/verify.py`, which replays them.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.bundle.books import find_books, opened
from assay.bundle.read import Delivered
from assay.bundle.settlement_file import SETTLEMENTS, epoch_name
from assay.chain.commit_statement import evm_address
from assay.chain.events import ResultFinalized, ResultProposed
from assay.chain.statements import EpochResult
from assay.ledger.accounts import Account, payable
from assay.ledger.journal.reader import LedgerIntegrityError, read_journal
from assay.ledger.journal.rows import event_of_row
from assay.ledger.journal.tables import TABLES
from assay.ledger.settlement.payouts import Settlement
from assay.orders.amounts import UNIT, money_text
from assay.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedEpoch:
    """An epoch of which chain, bundle, contracts and books say the same."""

    epoch: int
    settled_at: int  # the manifest from which it follows
    rows: int
    total: int  # token units
    table_hash: bytes
    root: bytes
    result: bytes  # digest, signed by a quorum of verifiers
    is_booked: bool  # the journal has the entry that made it payable

    @property
    def lines(self) -> list[str]:
        """One line for each check passed."""
        return [
            f"chain: manifests 0 to {self.settled_at} certified, epoch {self.epoch} follows from them",
            f"table: {self.rows} rows, {money_text(self.total)} {UNIT}, hash {self.table_hash.hex()}",
            f"root: {self.root.hex()}",
            f"result: {self.result.hex()}, signed by a quorum of verifiers",
            f"bundle: {epoch_name(SETTLEMENTS, self.epoch)} says the same",
            "ledger: payout table and contract events say the same",
            *(["ledger: the entry that made it payable has the same rows"] if self.is_booked else []),
        ]


def check_epoch(delivered: Delivered, epoch: int) -> CheckedEpoch:
    """Check that the books say of an epoch what the chain says.

    Raises:
        ConfigError: there is no such epoch.
        LedgerIntegrityError: the ledger differs.
    """
    calendar = delivered.calendar
    if epoch not in delivered.settled:
        raise ConfigError(f"the run has {calendar.epochs} epochs, counted from 0; there is no epoch {epoch}")
    settled = delivered.settled[epoch]
    table, result = settled.settlement, settled.result
    with opened(find_books(delivered.root)) as db:
        _compare_tables(db, table)
        _compare_events(db, result, settled.digest)
        is_booked = _compare_entry(db, table)
    return CheckedEpoch(
        epoch=epoch,
        settled_at=calendar.settled_at(epoch),
        rows=len(table.rows),
        total=table.total,
        table_hash=table.table_hash,
        root=result.root,
        result=settled.digest,
        is_booked=is_booked,
    )


def _compare_tables(db: Connection, table: Settlement) -> None:
    """Compare with the ledger's own copy of the table."""
    settlement, payout = TABLES["settlement"], TABLES["payout"]
    settled = db.execute(sa.select(settlement).where(settlement.c.epoch == table.epoch))
    heads = [[one.table_hash, one.root, one.tokens_paid, one.total] for one in settled]
    if heads != [[table.table_hash, table.tree().root, table.tokens_paid, table.total]]:
        raise LedgerIntegrityError(f"ledger: table settlement differs in epoch {table.epoch}")
    paid = db.execute(
        sa.select(payout).where(payout.c.epoch == table.epoch).order_by(payout.c.row_index)
    ).all()
    for index, one in enumerate(paid):
        here = _rows(table)[index : index + 1]
        if one.row_index != index or here != [[one.role, one.peer.hex(), one.account, one.amount]]:
            raise LedgerIntegrityError(
                f"ledger: table payout differs in epoch {table.epoch}, row {one.row_index}"
            )
    if len(paid) != len(table.rows):
        raise LedgerIntegrityError(f"ledger: table payout has {len(paid)} rows, {len(table.rows)} expected")
    unpaid = db.execute(
        sa.select(TABLES["unpaid"].c.round, TABLES["unpaid"].c.node, TABLES["unpaid"].c.reason)
        .where(TABLES["unpaid"].c.epoch == table.epoch)
        .order_by(TABLES["unpaid"].c.round, TABLES["unpaid"].c.node)
    )
    if [tuple(row) for row in unpaid] != sorted((one.round, one.node, one.reason) for one in table.unpaid):
        raise LedgerIntegrityError(f"ledger: table unpaid differs in epoch {table.epoch}")


def _compare_events(db: Connection, result: EpochResult, digest: bytes) -> None:
    """Compare with the contract's events for this epoch."""
    events = TABLES["chain_event"]
    kinds = (ResultProposed.__name__, ResultFinalized.__name__)
    rows = db.execute(
        sa.select(events)
        .where(events.c.kind.in_(kinds), events.c.state == "seen")
        .order_by(events.c.block_number, events.c.log_index)
    )
    final: ResultFinalized | None = None
    proposed: dict[bytes, ResultProposed] = {}
    for row in rows:
        try:
            event = event_of_row(row)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerIntegrityError(
                f"ledger: an event of block {row.block_number} cannot be read ({error})"
            ) from None
        if isinstance(event, ResultProposed) and event.run_id == result.run_id:
            proposed[event.digest] = event
        elif isinstance(event, ResultFinalized) and (event.run_id, event.epoch) == (
            result.run_id,
            result.epoch,
        ):
            final = event
    if final is None or final.digest not in proposed:
        raise LedgerIntegrityError(f"ledger: the contract never made epoch {result.epoch} final")
    claim = proposed[final.digest]
    final_result = (final.digest, claim.root, claim.table_hash, claim.model_hash, claim.total)
    if final_result != (digest, result.root, result.table_hash, result.model_hash, result.total):
        raise LedgerIntegrityError(f"ledger: the contract's final result of epoch {result.epoch} is another")


def _compare_entry(db: Connection, table: Settlement) -> bool:
    """Compare with the journal entry that credits the payees; returns whether one was due."""
    expected: dict[Account, int] = {}
    for row in table.rows:
        account = payable(row.role, evm_address(row.account), table.epoch)
        expected[account] = expected.get(account, 0) - row.amount
    booked: dict[Account, int] = {}
    for one in read_journal(db):
        if one.entry.kind == ResultFinalized.__name__ and one.entry.epoch == table.epoch:
            for posting in one.entry.postings:
                if posting.account.kind.value == "payable":
                    booked[posting.account] = booked.get(posting.account, 0) + posting.amount
    if {account: amount for account, amount in booked.items() if amount} != expected:
        raise LedgerIntegrityError(f"ledger: the entry that made epoch {table.epoch} payable has other rows")
    return bool(expected)


def _rows(table: Settlement) -> list[list[str | int]]:
    return [[row.role, row.peer.hex(), evm_address(row.account), row.amount] for row in table.rows]
