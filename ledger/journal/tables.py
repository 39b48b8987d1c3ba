"""Tables: the journal's database schema, the same on SQLite and PostgreSQL.

Room: ledger (pure: declarations). SQLModel does not validate table models and
SQLite takes text in an integer column, so every table is STRICT and amounts are
64 bits. The rules that the database itself enforces are in ledger/journal/triggers.py.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

SCHEMA_VERSION = 13  # the baseline; 1 to 12 were schemas of development and are refused
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # STRICT knows INTEGER only; it has 64 bits
# Without a rowid: it is a second name of a row, by which UPDATE OR REPLACE removes others past the triggers.
STRICT: dict[str, Any] = {"sqlite_strict": True, "sqlite_with_rowid": False}


class Table(SQLModel):
    """Base of the tables below; they share one MetaData of their own."""

    metadata = sa.MetaData()
    __table_args__: Any = STRICT


def _key(kind: Any = BIG, **more: Any) -> Any:
    return Field(primary_key=True, sa_type=kind, sa_column_kwargs={"autoincrement": False}, **more)


def _number(**more: Any) -> Any:
    return Field(sa_type=BIG, **more)


def _text(**more: Any) -> Any:
    return Field(sa_type=sa.Text, **more)


def _bytes(**more: Any) -> Any:
    return Field(sa_type=sa.LargeBinary, **more)


class AccountRow(Table, table=True):
    """See ledger/accounts.py."""

    __tablename__ = "account"
    id: int = _key()
    code: str = _text(unique=True)
    kind: str = _text()
    role: str = _text()
    owner: str = _text(index=True)
    epoch: int = _number()
    asset: str = _text()


class EntryRow(Table, table=True):
    """See ledger/books.py. `lines` announces how many postings belong to it; none where no money moved.

    `source` is the hash of the rows of other tables that it was made from (ledger/journal/rows.py), so
    the log has these too.
    """

    __tablename__ = "journal_entry"
    id: int = _key()
    key: str = _text(unique=True)
    request_hash: bytes = _bytes()
    kind: str = _text(index=True)
    epoch: int = _number()
    block_number: int = _number()
    block_hash: bytes = _bytes()
    block_time: int = _number()
    reverses: int | None = Field(
        default=None, sa_column=sa.Column(BIG, sa.ForeignKey("journal_entry.id"), unique=True, nullable=True)
    )
    source: bytes = _bytes()
    lines: int = _number()
    recorded_ms: int = _number()


class PostingRow(Table, table=True):
    """One signed amount."""

    __tablename__ = "posting"
    __table_args__ = (sa.CheckConstraint("amount <> 0"), STRICT)
    entry: int = Field(sa_column=sa.Column(BIG, sa.ForeignKey("journal_entry.id"), primary_key=True))
    line: int = _key()
    account: int = Field(sa_column=sa.Column(BIG, sa.ForeignKey("account.id"), nullable=False, index=True))
    amount: int = _number()


class BalanceRow(Table, table=True):
    """An account's sum, kept by triggers; no account is overdrawn."""

    __tablename__ = "balance"
    __table_args__ = (
        sa.CheckConstraint("side IN (-1, 1)"),
        sa.CheckConstraint("CASE side WHEN 1 THEN posted >= 0 ELSE posted <= 0 END", name="no_overdraft"),
        STRICT,
    )
    account: int = Field(sa_column=sa.Column(BIG, sa.ForeignKey("account.id"), primary_key=True))
    side: int = _number()  # 1: debits make it larger; -1: credits do
    posted: int = _number()  # debits less credits


class LeafRow(Table, table=True):
    """The Merkle log: leaf `seq`, counted from 0, is made of entry `seq + 1`; see ledger/journal/leaf.py."""

    __tablename__ = "log_leaf"
    seq: int = _key()
    entry: int = Field(
        sa_column=sa.Column(BIG, sa.ForeignKey("journal_entry.id"), nullable=False, unique=True)
    )
    leaf_hash: bytes = _bytes()


class NodeRow(Table, table=True):
    """The root of a perfect subtree of the log, for proofs; only the larger ones (log_store.py)."""

    __tablename__ = "log_node"
    place: int = _key()  # first leaf * 2 + leaf count: unique per subtree
    node_hash: bytes = _bytes()


class EdgeRow(Table, table=True):
    """The log's right edge, one row: its leaf count, and the roots of its subtrees, joined."""

    __tablename__ = "log_edge"
    __table_args__ = (sa.CheckConstraint("id = 0"), STRICT)
    id: int = _key()
    size: int = _number()
    roots: bytes = _bytes()


class CheckpointRow(Table, table=True):
    """A signed checkpoint: the log's root at a size; see ledger/log/note.py."""

    __tablename__ = "checkpoint"
    size: int = _key()
    signer: bytes = _bytes()  # Ed25519 public key
    note: str = _text()


class CosignatureRow(Table, table=True):
    """A verifier's cosignature of a checkpoint; see ledger/log/cosignature.py."""

    __tablename__ = "cosignature"
    size: int = Field(sa_column=sa.Column(BIG, sa.ForeignKey("checkpoint.size"), primary_key=True))
    verifier: bytes = _key(sa.LargeBinary)
    line: str = _text()


class EventRow(Table, table=True):
    """A contract event; `state` moves between seen and orphaned, `turns` counts how often it was orphaned."""

    __tablename__ = "chain_event"
    __table_args__ = (sa.CheckConstraint("state IN ('seen', 'orphaned')"), STRICT)
    block_hash: bytes = _key(sa.LargeBinary)
    log_index: int = _key()
    block_number: int = _number(index=True)
    kind: str = _text(index=True)
    body: str = _text()  # JSON of the event's own fields, bytes in hexadecimal
    state: str = _text()
    turns: int = _number()


class RoundRow(Table, table=True):
    """One final manifest."""

    __tablename__ = "round"
    round: int = _key()
    manifest: bytes = _bytes()
    aggregate: bytes = _bytes()
    signatures: int = _number()
    active: int = _number()


class ContributionRow(Table, table=True):
    """A commit that a manifest took."""

    __tablename__ = "contribution"
    round: int = _key()
    node: bytes = _key(sa.LargeBinary)
    epoch: int = _number(index=True)
    tokens: int = _number()
    commit_digest: bytes = _bytes()
    update_digest: bytes = _bytes()
    update_bytes: int = _number()
    loss_micro: int = _number()


class BeaconShareRow(Table, table=True):
    """A verifier's share of one round's beacon."""

    __tablename__ = "reveal"
    round: int = _key()
    verifier: bytes = _key(sa.LargeBinary)


class AuditRow(Table, table=True):
    """An audit: a drawn step, and the manifest whose beacon shares drew it."""

    __tablename__ = "audit"
    round: int = _key()
    node: bytes = _key(sa.LargeBinary)
    drawn_round: int = _number()
    offence_id: bytes = _bytes()


class VerdictRow(Table, table=True):
    """A verdict, and the manifest that carries it: a verifier may judge again once a dispute is open."""

    __tablename__ = "verdict"
    round: int = _key()
    node: bytes = _key(sa.LargeBinary)
    verifier: bytes = _key(sa.LargeBinary)
    in_round: int = _key()
    outcome: str = _text()


class RulingRow(Table, table=True):
    """Final status of an audit."""

    __tablename__ = "ruling"
    round: int = _key()
    node: bytes = _key(sa.LargeBinary)
    ruling: str = _text()
    closed_round: int = _number()


class FaultRow(Table, table=True):
    """A verifier's proven fault, and the verdict that shows it."""

    __tablename__ = "fault"
    offence_id: bytes = _key(sa.LargeBinary)
    verifier: bytes = _bytes(index=True)
    round: int = _number()
    node: bytes = _bytes()
    failing: str = _text()
    verdict_digest: bytes = _bytes()
    in_round: int = _number()


class ContradictionRow(Table, table=True):
    """Two commits of one node for one round, and the manifest that carries them."""

    __tablename__ = "contradiction"
    round: int = _key()
    node: bytes = _key(sa.LargeBinary)
    first_digest: bytes = _bytes()
    second_digest: bytes = _bytes()
    in_round: int = _number()


class SettlementRow(Table, table=True):
    """An epoch that is final for settlement."""

    __tablename__ = "settlement"
    epoch: int = _key()
    table_hash: bytes = _bytes()
    root: bytes = _bytes()
    tokens_paid: int = _number()
    total: int = _number()


class PayoutRow(Table, table=True):
    """One line of a payout table."""

    __tablename__ = "payout"
    __table_args__ = (sa.CheckConstraint("amount > 0"), STRICT)
    epoch: int = _key()
    row_index: int = _key()
    role: str = _text()
    peer: bytes = _bytes()
    account: str = _text()
    amount: int = _number()


class UnpaidRow(Table, table=True):
    """An accepted step that earned nothing."""

    __tablename__ = "unpaid"
    round: int = _key()
    node: bytes = _key(sa.LargeBinary)
    epoch: int = _number()
    reason: str = _text()


class InvoiceRow(Table, table=True):
    """An invoice or a credit note as issued; see ledger/invoices/store.py. Numbers have no gaps.

    `series` of a self-billed document ends in the operator's account: each supplier has its own count.
    """

    __tablename__ = "invoice"
    __table_args__ = (
        sa.CheckConstraint(
            "series IN ('invoice', 'credit')"
            " OR (length(series) = 50 AND substr(series, 1, 10) = 'invoice:0x')"
            " OR (length(series) = 49 AND substr(series, 1, 9) = 'credit:0x')"
        ),
        sa.CheckConstraint("(substr(series, 1, 6) = 'credit') = (corrects IS NOT NULL)"),
        sa.CheckConstraint("0 <= first_epoch AND first_epoch <= last_epoch"),
        STRICT,
    )
    series: str = _key(sa.Text)
    number: int = _key()
    first_epoch: int = _number()
    last_epoch: int = _number()
    corrects: int | None = Field(default=None, sa_column=sa.Column(BIG, nullable=True))
    total: int = _number()  # minor units; a credit note's is below zero
    issued_ms: int = _number()
    body: str = _text()
    body_hash: bytes = _bytes()


class CursorRow(Table, table=True):
    """Position up to which a source was read; written in the transaction of the rows read."""

    __tablename__ = "cursor"
    name: str = _key(sa.Text)
    value: int = _number()


TABLES = Table.metadata.tables
CHANGES: dict[str, tuple[str, ...]] = {  # columns that may change; all others are write-once
    "balance": ("posted",),
    "chain_event": ("state", "turns"),
    "cursor": ("value",),
    "log_edge": ("size", "roots"),
}


def written_once(table: sa.Table) -> list[sa.Column[Any]]:
    """The columns of a table that never change."""
    changes = CHANGES.get(table.name, ())
    return [column for column in table.columns if column.name not in changes]
