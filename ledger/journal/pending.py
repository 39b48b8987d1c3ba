"""Pending: two-phase journal entries, which reserve amounts until they are posted, voided or expire.

Room: ledger (edge: inside a transaction that the caller opened). A pending entry is
a whole entry with an expiry time. Until it is resolved, the balances of its accounts count
it as pending; posting it writes that entry, with that key, into the journal, and only then
is it in the log. Each is resolved at most once.

    pending --post--> posted     --void--> voided     --time--> expired
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.ledger.books import BooksError, Entry
from assay.ledger.journal.database import insert_rows
from assay.ledger.journal.reader import entry_of
from assay.ledger.journal.tables import TABLES
from assay.ledger.journal.writer import entry_row, next_id, open_accounts, read_entry, write_entries

TIME_MS_MAX = 2**63 - 1
_ACCOUNT, _PENDING, _POSTING = TABLES["account"], TABLES["pending_entry"], TABLES["pending_posting"]


class PendingState(enum.Enum):
    """State of a pending entry; it leaves `PENDING` at most once."""

    PENDING = "pending"
    POSTED = "posted"
    VOIDED = "voided"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A pending or resolved entry."""

    entry: Entry
    expires_ms: int  # Unix time; from then on it cannot be posted
    state: PendingState


def hold(db: Connection, entry: Entry, expires_ms: int, now_ms: int) -> PendingState:
    """Reserve the amounts of an entry and return its state; idempotent.

    Args:
        db: A writing transaction.
        entry: The entry to post later; not a reversal.
        expires_ms: Unix time in milliseconds.
        now_ms: The same clock.

    Raises:
        BooksError: the key belongs to another request or is in the journal, an account's available
            balance is too small, or it has expired already.
        ValueError: it is a reversal.
    """
    if entry.reverses:
        raise ValueError(f"entry {entry.key}: a reversal cannot be pending")
    known = _head(db, entry.key)
    if known is not None:
        if known.request_hash != _request_hash(entry, expires_ms):
            raise BooksError(f"pending entry {entry.key} is on record with another request")
        return PendingState(known.state)
    if read_entry(db, entry.key) is not None:
        raise BooksError(f"entry {entry.key} is in the journal, so it cannot be pending")
    if not now_ms < expires_ms <= TIME_MS_MAX:
        raise BooksError(f"pending entry {entry.key} would expire at {expires_ms} ms, it is {now_ms} ms")
    accounts = open_accounts(db, [entry])
    number = next_id(db, _PENDING)
    db.execute(
        sa.insert(_PENDING),
        [
            {
                **entry_row(number, entry, _request_hash(entry, expires_ms), now_ms),
                "expires_ms": expires_ms,
                "state": PendingState.PENDING.value,
                "resolved_ms": None,
            }
        ],
    )
    insert_rows(
        db,
        _POSTING,
        [
            {"pending": number, "line": line, "account": accounts[posting.account], "amount": posting.amount}
            for line, posting in enumerate(entry.postings)
        ],
    )
    return PendingState.PENDING


def post_pending(db: Connection, key: str, now_ms: int) -> int:
    """Post a pending entry and return its number in the journal; idempotent.

    Raises:
        BooksError: there is none, it has expired, or it was resolved in another way.
    """
    found = _demand(db, key)
    if found.state is PendingState.PENDING:
        if now_ms >= found.expires_ms:
            raise BooksError(f"pending entry {key} expired at {found.expires_ms} ms, it is {now_ms} ms")
        _resolve(db, key, PendingState.POSTED, now_ms)
    elif found.state is not PendingState.POSTED:
        raise BooksError(f"pending entry {key} is {found.state.value}, so it cannot be posted")
    return write_entries(db, [found.entry], now_ms)[0]


def void(db: Connection, key: str, now_ms: int) -> None:
    """Void a pending entry and release what it reserves; idempotent.

    Raises:
        BooksError: there is none, or it was resolved in another way.
    """
    found = _demand(db, key)
    if found.state is PendingState.PENDING:
        _resolve(db, key, PendingState.VOIDED, now_ms)
    elif found.state is not PendingState.VOIDED:
        raise BooksError(f"pending entry {key} is {found.state.value}, so it cannot be voided")


def expire_due(db: Connection, now_ms: int) -> int:
    """Expire overdue entries and release what they reserve; returns their number."""
    due = sa.and_(_PENDING.c.state == PendingState.PENDING.value, _PENDING.c.expires_ms <= now_ms)
    gone = sa.update(_PENDING).where(due).values(state=PendingState.EXPIRED.value, resolved_ms=now_ms)
    return int(db.execute(gone).rowcount)


def read_pending(db: Connection, key: str) -> Pending | None:
    """The pending or resolved entry with this key; None if there is none."""
    head = _head(db, key)
    if head is None:
        return None
    lines = db.execute(
        sa.select(_ACCOUNT, _POSTING.c.amount)
        .join_from(_POSTING, _ACCOUNT, _POSTING.c.account == _ACCOUNT.c.id)
        .where(_POSTING.c.pending == head.id)
        .order_by(_POSTING.c.line)
    )
    return Pending(entry=entry_of(head, lines), expires_ms=head.expires_ms, state=PendingState(head.state))


def _demand(db: Connection, key: str) -> Pending:
    found = read_pending(db, key)
    if found is None:
        raise BooksError(f"no pending entry {key}")
    return found


def _head(db: Connection, key: str) -> Any:
    return db.execute(sa.select(_PENDING).where(_PENDING.c.key == key)).first()


def _resolve(db: Connection, key: str, state: PendingState, now_ms: int) -> None:
    moved = sa.update(_PENDING).where(_PENDING.c.key == key, _PENDING.c.state == PendingState.PENDING.value)
    count = db.execute(moved.values(state=state.value, resolved_ms=now_ms)).rowcount
    assert count == 1, f"pending entry {key} was resolved by another writer while this one held the lock"


def _request_hash(entry: Entry, expires_ms: int) -> bytes:
    """SHA-256 of the request without its key."""
    return hashlib.sha256(b"assay/pending/1" + entry.request_hash + expires_ms.to_bytes(8, "big")).digest()
