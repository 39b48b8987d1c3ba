"""Tables: the journal's database schema, the same on SQLite and PostgreSQL.

Room: ledger (pure: declarations). SQLite takes text in an integer column, so every table is STRICT and
amounts are 64 bits. The rules that the database itself enforces are in ledger/journal/triggers.py.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

# 2: the Merkle log; 3: balances, and entries that are pending; 4: subtrees of the log; 5: invoices
SCHEMA_VERSION = 11  # the baseline; 1 to 10 were schemas of development and are refused
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # STRICT knows INTEGER only; it has 64 bits
_PENDING = sa.text("state = 'pending'")
# Without a rowid: it is a second name of a row, by which UPDATE OR REPLACE removes others past the triggers.
STRICT: dict[str, Any] = {"sqlite_strict": True, "sqlite_with_rowid": False}
BYTES = sa.LargeBinary
METADATA = sa.MetaData()


def _table(name: str, *parts: Any) -> None:
    sa.Table(name, METADATA, *parts, **STRICT)


def _key(name: str, kind: Any = BIG) -> Any:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _number(name: str, **more: Any) -> Any:
    return sa.Column(name, BIG, **{"nullable": False, **more})


def _text(name: str, **more: Any) -> Any:
    return sa.Column(name, sa.Text, nullable=False, **more)


def _bytes(name: str, **more: Any) -> Any:
    return sa.Column(name, BYTES, nullable=False, **more)


def _link(name: str, column: str, **more: Any) -> Any:
    return sa.Column(name, BIG, sa.ForeignKey(column), **{"nullable": False, **more})


# See ledger/accounts.py.
_table(
    "account",
    _key("id"),
    _text("code", unique=True),
    _text("kind"),
    _text("role"),
    _text("owner", index=True),
    _number("epoch"),
    _text("asset"),
)

# See ledger/books.py. `lines` announces how many postings belong to it.
_table(
    "journal_entry",
    _key("id"),
    _text("key", unique=True),
    _bytes("request_hash"),
    _text("kind", index=True),
    _number("epoch"),
    _number("block_number"),
    _bytes("block_hash"),
    _number("block_time"),
    _link("reverses", "journal_entry.id", unique=True, nullable=True),
    _number("lines"),
    _number("recorded_ms"),
)

# One signed amount.
_table(
    "posting",
    _link("entry", "journal_entry.id", primary_key=True),
    _key("line"),
    _link("account", "account.id", index=True),
    _number("amount"),
    sa.CheckConstraint("amount <> 0"),
)

# An account's posted and pending sums, kept by triggers; no account is overdrawn.
_table(
    "balance",
    _link("account", "account.id", primary_key=True),
    _number("side"),  # 1: debits make it larger; -1: credits do
    _number("posted"),  # debits less credits
    _number("debits_pending"),
    _number("credits_pending"),
    sa.CheckConstraint("side IN (-1, 1)"),
    sa.CheckConstraint("debits_pending >= 0 AND credits_pending >= 0"),
    sa.CheckConstraint(
        "CASE side WHEN 1 THEN posted >= credits_pending ELSE -posted >= debits_pending END",
        name="no_overdraft",
    ),
)

# A pending entry; see ledger/journal/pending.py. `state` changes once.
_table(
    "pending_entry",
    _key("id"),
    _text("key", unique=True),
    _bytes("request_hash"),
    _text("kind"),
    _number("epoch"),
    _number("block_number"),
    _bytes("block_hash"),
    _number("block_time"),
    _number("lines"),
    _number("recorded_ms"),
    _number("expires_ms"),
    _text("state"),
    _number("resolved_ms", nullable=True),
    sa.CheckConstraint("state IN ('pending', 'posted', 'voided', 'expired')"),
    sa.CheckConstraint("(state = 'pending') = (resolved_ms IS NULL)"),
    sa.Index("ix_pending_entry_due", "expires_ms", sqlite_where=_PENDING, postgresql_where=_PENDING),
)

# One signed amount of a pending entry.
_table(
    "pending_posting",
    _link("pending", "pending_entry.id", primary_key=True),
    _key("line"),
    _link("account", "account.id", index=True),
    _number("amount"),
    sa.CheckConstraint("amount <> 0"),
)

# The Merkle log: leaf `seq`, counted from 0, is made of entry `seq + 1`; see ledger/journal/leaf.py.
_table("log_leaf", _key("seq"), _link("entry", "journal_entry.id", unique=True), _bytes("leaf_hash"))

# The root of a perfect subtree of the log, for proofs; only the larger ones (log_store.py).
_table(
    "log_node",
    _key("place"),  # first leaf * 2 + leaf count: unique per subtree
    _bytes("node_hash"),
)

# The log's right edge, one row: its leaf count, and the roots of its subtrees, joined.
_table("log_edge", _key("id"), _number("size"), _bytes("roots"), sa.CheckConstraint("id = 0"))

# A signed checkpoint: the log's root at a size; see ledger/log/note.py.
_table(
    "checkpoint",
    _key("size"),
    _bytes("signer"),  # Ed25519 public key
    _text("note"),
)

# A verifier's cosignature of a checkpoint; see ledger/log/cosignature.py.
_table(
    "cosignature",
    _link("size", "checkpoint.size", primary_key=True),
    _key("verifier", BYTES),
    _text("line"),
)

# A contract event; `state` moves between seen and orphaned, `turns` counts how often it was orphaned.
_table(
    "chain_event",
    _key("block_hash", BYTES),
    _key("log_index"),
    _number("block_number", index=True),
    _text("kind", index=True),
    _text("body"),  # JSON of the event's own fields, bytes in hexadecimal
    _text("state"),
    _number("turns"),
    sa.CheckConstraint("state IN ('seen', 'orphaned')"),
)

# One final manifest.
_table(
    "round",
    _key("round"),
    _bytes("manifest"),
    _bytes("aggregate"),
    _number("signatures"),
    _number("active"),
)

# A commit that a manifest took.
_table(
    "contribution",
    _key("round"),
    _key("node", BYTES),
    _number("epoch", index=True),
    _number("tokens"),
    _bytes("commit_digest"),
    _bytes("update_digest"),
    _number("update_bytes"),
    _number("loss_micro"),
)

# A verifier's share of one round's beacon.
_table("reveal", _key("round"), _key("verifier", BYTES))

# An audit: a drawn step, and the manifest whose beacon shares drew it.
_table("audit", _key("round"), _key("node", BYTES), _number("drawn_round"), _bytes("offence_id"))

# A verdict, and the manifest that carries it: a verifier may judge again once a dispute is open.
_table(
    "verdict",
    _key("round"),
    _key("node", BYTES),
    _key("verifier", BYTES),
    _key("in_round"),
    _text("outcome"),
)

# Final status of an audit.
_table("ruling", _key("round"), _key("node", BYTES), _text("ruling"), _number("closed_round"))

# A verifier's proven fault, and the verdict that shows it.
_table(
    "fault",
    _key("offence_id", BYTES),
    _bytes("verifier", index=True),
    _number("round"),
    _bytes("node"),
    _text("failing"),
    _bytes("verdict_digest"),
    _number("in_round"),
)

# Two commits of one node for one round, and the manifest that carries them.
_table(
    "contradiction",
    _key("round"),
    _key("node", BYTES),
    _bytes("first_digest"),
    _bytes("second_digest"),
    _number("in_round"),
)

# An epoch that is final for settlement.
_table(
    "settlement",
    _key("epoch"),
    _bytes("table_hash"),
    _bytes("root"),
    _number("tokens_paid"),
    _number("total"),
)

# One line of a payout table.
_table(
    "payout",
    _key("epoch"),
    _key("row_index"),
    _text("role"),
    _bytes("peer"),
    _text("account"),
    _number("amount"),
    sa.CheckConstraint("amount > 0"),
)

# An accepted step that earned nothing.
_table("unpaid", _key("round"), _key("node", BYTES), _number("epoch"), _text("reason"))

# An invoice or a credit note as issued; see ledger/invoices/store.py. Numbers have no gaps. `series` of a
# self-billed document ends in the operator's account: each supplier has its own count.
_table(
    "invoice",
    _key("series", sa.Text),
    _key("number"),
    _number("first_epoch"),
    _number("last_epoch"),
    _number("corrects", nullable=True),
    _number("total"),  # minor units; a credit note's is below zero
    _number("issued_ms"),
    _text("body"),
    _bytes("body_hash"),
    sa.CheckConstraint(
        "series IN ('invoice', 'credit')"
        " OR (length(series) = 50 AND substr(series, 1, 10) = 'invoice:0x')"
        " OR (length(series) = 49 AND substr(series, 1, 9) = 'credit:0x')"
    ),
    sa.CheckConstraint("(substr(series, 1, 6) = 'credit') = (corrects IS NOT NULL)"),
    sa.CheckConstraint("0 <= first_epoch AND first_epoch <= last_epoch"),
)

# Position up to which a source was read; written in the transaction of the rows read.
_table("cursor", _key("name", sa.Text), _number("value"))

TABLES = METADATA.tables
CHANGES: dict[str, tuple[str, ...]] = {  # columns that may change; all others are write-once
    "balance": ("posted", "debits_pending", "credits_pending"),
    "chain_event": ("state", "turns"),
    "cursor": ("value",),
    "log_edge": ("size", "roots"),
    "pending_entry": ("state", "resolved_ms"),
}
