"""Journal write: the one function that writes entries, and the reads it stands on.

Room: ledger (edge: inside a transaction that the caller opened). SQLAlchemy Core,
a few statements per batch however many entries it holds: commits are what costs.
Entries and their leaves of the Merkle log are one transaction, so neither is ever without the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ledger.accounts import Account, Kind
from ledger.books import BooksError, Entry, Posting
from ledger.journal_tables import TABLES
from ledger.log_leaf import leaf_of
from ledger.log_store import append_leaves

NAMES_PER_QUESTION = 500  # SQLite bounds the variables of a statement
_ACCOUNT, _ENTRY, _POSTING = TABLES["account"], TABLES["journal_entry"], TABLES["posting"]


def write_entries(db: Connection, entries: Sequence[Entry], recorded_ms: int) -> list[int]:
    """Append entries and return their numbers, in order.

    An entry whose key is on record, and which says the same, gives the number it had.

    Args:
        db: A writing transaction.
        entries: Balanced by construction; a reversal comes after what it reverses.
        recorded_ms: Unix time in milliseconds.

    Raises:
        BooksError: a key is on record with other content, or an entry is reversed that is not there
            or was reversed before.
    """
    keys = {entry.key for entry in entries} | {entry.reverses for entry in entries if entry.reverses}
    known = {
        row.key: (row.id, row.request_hash)
        for row in _where_in(db, (_ENTRY.c.id, _ENTRY.c.key, _ENTRY.c.request_hash), _ENTRY.c.key, keys)
    }
    fresh: list[Entry] = []
    next_id = _next_id(db, _ENTRY)
    for entry in entries:
        number, said = known.setdefault(entry.key, (next_id + len(fresh), entry.request_hash))
        if said != entry.request_hash:
            raise BooksError(f"entry {entry.key} is on record with other content")
        if number == next_id + len(fresh):
            fresh.append(entry)
    _check_reversals(db, fresh, {key: number for key, (number, _) in known.items()})
    accounts = _account_ids(db, {posting.account for entry in fresh for posting in entry.postings})
    if fresh:
        db.execute(
            sa.insert(_ENTRY),
            [
                {
                    "id": known[entry.key][0],
                    "key": entry.key,
                    "request_hash": entry.request_hash,
                    "kind": entry.kind,
                    "epoch": entry.epoch,
                    "block_number": entry.block_number,
                    "block_hash": entry.block_hash,
                    "reverses": known[entry.reverses][0] if entry.reverses else None,
                    "lines": len(entry.postings),
                    "recorded_ms": recorded_ms,
                }
                for entry in fresh
            ],
        )
        db.execute(
            sa.insert(_POSTING),
            [
                {
                    "entry": known[entry.key][0],
                    "line": line,
                    "account": accounts[posting.account],
                    "amount": posting.amount,
                }
                for entry in fresh
                for line, posting in enumerate(entry.postings)
            ],
        )
        append_leaves(db, [(known[entry.key][0], leaf_of(entry, recorded_ms)) for entry in fresh])
    return [known[entry.key][0] for entry in entries]


def read_entry(db: Connection, key: str) -> Entry | None:
    """The entry with this key, as it was posted; None if there is none."""
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
    return Entry(
        key=head.key,
        kind=head.kind,
        epoch=head.epoch,
        block_number=head.block_number,
        block_hash=head.block_hash,
        reverses=db.execute(undone).scalar() or "",
        postings=tuple(Posting(account=_account(row), amount=row.amount) for row in lines),
    )


def read_balances(db: Connection) -> dict[Account, int]:
    """Every account that is not at zero: debits positive, credits negative."""
    total = sa.func.sum(_POSTING.c.amount)
    rows = db.execute(
        sa.select(_ACCOUNT, total.label("total"))
        .join_from(_POSTING, _ACCOUNT, _POSTING.c.account == _ACCOUNT.c.id)
        .group_by(_ACCOUNT.c.id)
        .having(total != 0)
        .order_by(_ACCOUNT.c.code)
    )
    return {_account(row): int(row.total) for row in rows}


def _check_reversals(db: Connection, fresh: Sequence[Entry], numbers: Mapping[str, int]) -> None:
    """Raise unless each reversal undoes an entry that stands; the database says so too, in fewer words."""
    undone = [entry.reverses for entry in fresh if entry.reverses]
    missing = [key for key in undone if key not in numbers]
    if missing:
        raise BooksError(f"entry {missing[0]} is reversed and not on record")
    gone = {
        row.reverses
        for row in _where_in(db, (_ENTRY.c.reverses,), _ENTRY.c.reverses, [numbers[key] for key in undone])
    }
    again = [key for at, key in enumerate(undone) if numbers[key] in gone or key in undone[:at]]
    if again:
        raise BooksError(
            f"entry {again[0]} was reversed before; what is wrong in a reversal is reversed itself"
        )


def _account(row: Any) -> Account:
    return Account(kind=Kind(row.kind), owner=row.owner, role=row.role, epoch=row.epoch, asset=row.asset)


def _account_ids(db: Connection, wanted: Collection[Account]) -> dict[Account, int]:
    """Numbers of accounts, opening those that are new."""
    codes = {account.code for account in wanted}
    found = {
        row.code: row.id for row in _where_in(db, (_ACCOUNT.c.id, _ACCOUNT.c.code), _ACCOUNT.c.code, codes)
    }
    new = sorted((account for account in wanted if account.code not in found), key=lambda one: one.code)
    rows = [
        {
            "id": number,
            "code": one.code,
            "kind": one.kind.value,
            "role": one.role,
            "owner": one.owner,
            "epoch": one.epoch,
            "asset": one.asset,
        }
        for number, one in enumerate(new, _next_id(db, _ACCOUNT))
    ]
    if rows:
        db.execute(sa.insert(_ACCOUNT), rows)
    found.update((row["code"], row["id"]) for row in rows)
    return {account: found[account.code] for account in wanted}


def _next_id(db: Connection, table: sa.Table) -> int:
    return int(db.execute(sa.select(sa.func.coalesce(sa.func.max(table.c.id), 0))).scalar_one()) + 1


def _where_in(
    db: Connection, columns: tuple[sa.Column[Any], ...], column: sa.Column[Any], names: Iterable[Any]
) -> list[Any]:
    """Rows whose `column` is one of `names`, asked for in portions."""
    ordered = sorted(names)
    rows: list[Any] = []
    for start in range(0, len(ordered), NAMES_PER_QUESTION):
        portion = ordered[start : start + NAMES_PER_QUESTION]
        rows += db.execute(sa.select(*columns).where(column.in_(portion))).all()
    return rows
