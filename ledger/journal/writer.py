"""Writer: appends entries and their Merkle leaves to the journal, and reads the balances this needs.

Room: ledger (edge: inside a transaction that the caller opened). SQLAlchemy Core,
a few statements per batch however many entries it holds: commits dominate the cost.
Entries and their leaves of the Merkle log are written in one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.ledger.accounts import Account
from assay.ledger.books import BooksError, Entry, request_hash
from assay.ledger.journal.database import insert_rows
from assay.ledger.journal.leaf import leaf_of
from assay.ledger.journal.log_store import append_leaves
from assay.ledger.journal.postgres import is_one_of
from assay.ledger.journal.reader import account_of, entry_of
from assay.ledger.journal.tables import TABLES

NAMES_PER_QUESTION = 500  # SQLite bounds the variables of a statement
_ACCOUNT, _ENTRY, _POSTING = TABLES["account"], TABLES["journal_entry"], TABLES["posting"]
_BALANCE = TABLES["balance"]


def write_entries(db: Connection, entries: Sequence[Entry], recorded_ms: int) -> list[int]:
    """Append entries and return their numbers, in order.

    Idempotent by key: an equal entry that is stored already gives its existing number.

    Args:
        db: A writing transaction.
        entries: Balanced by construction; a reversal comes after what it reverses.
        recorded_ms: Unix time in milliseconds.

    Raises:
        BooksError: a key is stored with other content, a reversed entry does not exist or was reversed
            before, or an account would be overdrawn.
    """
    keys = {entry.key for entry in entries} | {entry.reverses for entry in entries if entry.reverses}
    known = {
        row.key: (row.id, row.request_hash)
        for row in _where_in(db, (_ENTRY.c.id, _ENTRY.c.key, _ENTRY.c.request_hash), _ENTRY.c.key, keys)
    }
    fresh: dict[int, Entry] = {}  # by number
    leaves: list[tuple[int, bytes]] = []
    first_id = _next_id(db, _ENTRY)
    for entry in entries:
        body = entry.to_bytes()
        request = request_hash(body)
        number, recorded = known.setdefault(entry.key, (first_id + len(fresh), request))
        if recorded != request:
            raise BooksError(f"entry {entry.key} is on record with other content")
        if number == first_id + len(fresh):
            fresh[number] = entry
            leaves.append((number, leaf_of(body, recorded_ms)))
    _check_reversals(db, list(fresh.values()), {key: number for key, (number, _) in known.items()})
    accounts = _open_accounts(db, list(fresh.values()))
    insert_rows(
        db,
        _ENTRY,
        [
            {
                "id": number,
                "key": entry.key,
                "request_hash": known[entry.key][1],
                "kind": entry.kind,
                "epoch": entry.epoch,
                "block_number": entry.block_number,
                "block_hash": entry.block_hash,
                "block_time": entry.block_time,
                "reverses": known[entry.reverses][0] if entry.reverses else None,
                "source": entry.source,
                "lines": len(entry.postings),
                "recorded_ms": recorded_ms,
            }
            for number, entry in fresh.items()
        ],
    )
    insert_rows(
        db,
        _POSTING,
        [
            {"entry": number, "line": line, "account": accounts[posting.account], "amount": posting.amount}
            for number, entry in fresh.items()
            for line, posting in enumerate(entry.postings)
        ],
    )
    append_leaves(db, leaves)
    return [known[entry.key][0] for entry in entries]


def read_entry(db: Connection, key: str) -> Entry | None:
    """The posted entry with this key; None if there is none."""
    head = db.execute(sa.select(_ENTRY).where(_ENTRY.c.key == key)).first()
    if head is None:
        return None
    undone = sa.select(_ENTRY.c.key).where(_ENTRY.c.id == head.reverses)
    lines = db.execute(
        sa.select(_ACCOUNT, _POSTING.c.amount)
        .join_from(_POSTING, _ACCOUNT, _POSTING.c.account == _ACCOUNT.c.id)
        .where(_POSTING.c.entry == head.id)
        .order_by(_POSTING.c.line)
    )
    return entry_of(head, lines, db.execute(undone).scalar() or "")


def _open_accounts(db: Connection, entries: Sequence[Entry]) -> dict[Account, int]:
    """The ids of the accounts that these entries touch; opens new ones.

    Raises:
        BooksError: one of them, in this order, would overdraw an account.
    """
    touched = {posting.account for entry in entries for posting in entry.postings}
    numbers, balances = _known_accounts(db, touched)
    left = {account: posted * account.kind.side for account, posted in balances.items()}
    for entry in entries:
        for posting in entry.postings:
            account = posting.account
            left[account] = left.get(account, 0) + posting.amount * account.kind.side
            if left[account] < 0:
                raise BooksError(f"{entry.kind} {entry.key}: {account.code} would fall to {left[account]}")
    return {**numbers, **_new_accounts(db, touched - set(numbers))}


def read_posted(db: Connection) -> dict[Account, int]:
    """`read_balances` from the sums that the triggers keep, without adding up the journal."""
    rows = db.execute(
        sa.select(_ACCOUNT, _BALANCE.c.posted)
        .join_from(_BALANCE, _ACCOUNT, _BALANCE.c.account == _ACCOUNT.c.id)
        .where(_BALANCE.c.posted != 0)
        .order_by(_ACCOUNT.c.code)
    )
    return {account_of(row): int(row.posted) for row in rows}


def read_balances(db: Connection) -> dict[Account, int]:
    """Every account that is not at zero, from its postings: debits positive, credits negative."""
    total = sa.func.sum(_POSTING.c.amount)
    rows = db.execute(
        sa.select(_ACCOUNT, total.label("total"))
        .join_from(_POSTING, _ACCOUNT, _POSTING.c.account == _ACCOUNT.c.id)
        .group_by(_ACCOUNT.c.id)
        .having(total != 0)
        .order_by(_ACCOUNT.c.code)
    )
    return {account_of(row): int(row.total) for row in rows}


def _check_reversals(db: Connection, fresh: Sequence[Entry], numbers: Mapping[str, int]) -> None:
    """Raise unless each reversal refers to an entry not reversed yet; the triggers check the same."""
    undone = [entry.reverses for entry in fresh if entry.reverses]
    missing = [key for key in undone if key not in numbers]
    if missing:
        raise BooksError(f"entry {missing[0]} is to be reversed and is not in the journal")
    gone = {
        row.reverses
        for row in _where_in(db, (_ENTRY.c.reverses,), _ENTRY.c.reverses, [numbers[key] for key in undone])
    }
    again = [key for at, key in enumerate(undone) if numbers[key] in gone or key in undone[:at]]
    if again:
        raise BooksError(f"entry {again[0]} was reversed before; to correct a reversal, reverse the reversal")


def _known_accounts(
    db: Connection, accounts: Collection[Account]
) -> tuple[dict[Account, int], dict[Account, int]]:
    """Id and posted sum of each of these accounts that exists."""
    by_code = {account.code: account for account in accounts}
    columns = (_ACCOUNT.c.id, _ACCOUNT.c.code, _BALANCE.c.posted)
    rows = _where_in(db, columns, _ACCOUNT.c.code, by_code, _ACCOUNT.join(_BALANCE))
    return {by_code[row.code]: row.id for row in rows}, {by_code[row.code]: row.posted for row in rows}


def _new_accounts(db: Connection, new: Collection[Account]) -> dict[Account, int]:
    """Open accounts; a trigger creates each one's balance of zero."""
    if not new:
        return {}
    numbers = dict(zip(sorted(new, key=lambda one: one.code), count(_next_id(db, _ACCOUNT)), strict=False))
    insert_rows(
        db,
        _ACCOUNT,
        [
            {
                "id": number,
                "code": one.code,
                "kind": one.kind.value,
                "role": one.role,
                "owner": one.owner,
                "epoch": one.epoch,
                "asset": one.asset,
            }
            for one, number in numbers.items()
        ],
    )
    return numbers


def _next_id(db: Connection, table: sa.Table) -> int:
    """The id of a table's next row; safe because the caller holds the writer's lock."""
    return int(db.execute(sa.select(sa.func.coalesce(sa.func.max(table.c.id), 0))).scalar_one()) + 1


def _where_in(
    db: Connection,
    columns: tuple[sa.Column[Any], ...],
    column: sa.Column[Any],
    names: Iterable[Any],
    source: sa.FromClause | None = None,
) -> list[Any]:
    """Rows whose `column` is one of `names`; on SQLite queried in batches."""
    query = sa.select(*columns) if source is None else sa.select(*columns).select_from(source)
    ordered = sorted(names)
    if db.dialect.name != "sqlite":
        return list(db.execute(query.where(is_one_of(column, ordered)))) if ordered else []
    rows: list[Any] = []
    for start in range(0, len(ordered), NAMES_PER_QUESTION):
        rows += db.execute(query.where(column.in_(ordered[start : start + NAMES_PER_QUESTION])))
    return rows
