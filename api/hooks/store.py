"""Store: the webhooks of a server, with the position of each in its run's log.

Room: api (edge: a table of the access store). A webhook's secret is not stored: it is derived from the
server's own key and the webhook's id. Whoever sends takes a lease on the webhook first, so several processes
on one store keep each other's order; after a crash the lease ends and the entry is sent again.

    active --posted--> active, at the next number
    active --refused--> active, later --refused too often--> failed, kept for its owner to see
"""

from __future__ import annotations

import secrets
import sqlite3
from dataclasses import dataclass

from assay.api.access import AccessStore, NoRoom

HOOKS_MAX, OWNER_HOOKS_MAX = 1_000, 5
LEASE_S = 60
RETRY_S = (5, 30, 120, 600, 3600, 4 * 3600, 12 * 3600, 24 * 3600)  # between attempts; then the webhook fails
KEPT_FAILED_S = 30 * 24 * 3600


class HookExists(Exception):
    """The owner has a webhook of this run at this address already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A stored webhook."""

    id: str
    owner: str  # "account:0x..." or "token:7"
    token: int | None  # the token that registered it; None for an account's session
    run: str
    url: str
    position: int  # number of the last entry that was delivered
    attempts: int  # at the next entry
    next_s: int  # when it may be sent to again; of a failed one, since when it is
    error: str  # of the last attempt
    is_failed: bool
    created_s: int


class HookStore:
    """The webhooks in one server's access store. Thread-safe."""

    def __init__(self, access: AccessStore) -> None:
        self._access = access

    def secret(self, hook: str) -> bytes:
        """The 32 bytes with which a webhook's messages are signed."""
        return self._access.derive(b"assay/hook/1" + hook.encode())

    def add(self, *, owner: str, token: int | None, run: str, url: str, position: int, now_s: int) -> Hook:
        """A new webhook, which gets the entries after `position`.

        Raises:
            HookExists: the owner has this one.
            NoRoom: the owner, or the server, has as many as it may.
        """
        hook = secrets.token_hex(16)
        with self._access.writing() as db:
            db.execute("DELETE FROM hook WHERE is_failed AND next_s <= ?", (now_s - KEPT_FAILED_S,))
            own = "SELECT count(*) FROM hook WHERE owner = ?"
            if db.execute(own, (owner,)).fetchone()[0] >= OWNER_HOOKS_MAX:
                raise NoRoom(f"there are {OWNER_HOOKS_MAX} webhooks of this caller, which is the most")
            if db.execute("SELECT count(*) FROM hook").fetchone()[0] >= HOOKS_MAX:
                raise NoRoom(f"there are {HOOKS_MAX} webhooks on this server, which is the most")
            done = db.execute(
                "INSERT OR IGNORE INTO hook (id, owner, token, run, url, position, next_s, created_s) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (hook, owner, token, run, url, position, now_s, now_s),
            )
            if done.rowcount != 1:
                raise HookExists
            return _hook(db.execute("SELECT * FROM hook WHERE id = ?", (hook,)).fetchone())

    def of(self, owner: str) -> list[Hook]:
        """An owner's webhooks, oldest first."""
        with self._access.reading() as db:
            query = "SELECT * FROM hook WHERE owner = ? ORDER BY created_s, id"
            return [_hook(row) for row in db.execute(query, (owner,))]

    def remove(self, hook: str, owner: str) -> bool:
        """Delete an owner's webhook; returns whether there was one."""
        with self._access.writing() as db:
            return db.execute("DELETE FROM hook WHERE id = ? AND owner = ?", (hook, owner)).rowcount == 1

    def waiting(self, now_s: int) -> list[tuple[str, int]]:
        """The runs of webhooks that may be sent to now, longest waiting first, and their least positions."""
        query = (
            "SELECT run, min(position) FROM hook WHERE NOT is_failed AND next_s <= ? "
            "GROUP BY run ORDER BY min(next_s), run"
        )
        with self._access.reading() as db:
            return [(row[0], row[1]) for row in db.execute(query, (now_s,))]

    def claim(self, run: str, size: int, now_s: int) -> Hook | None:
        """Take a lease on the webhook that waits longest for entries of a log of this size, if any does."""
        with self._access.writing() as db:
            query = (
                "SELECT * FROM hook WHERE run = ? AND NOT is_failed AND next_s <= ? AND position < ? "
                "ORDER BY next_s, id LIMIT 1"
            )
            row = db.execute(query, (run, now_s, size)).fetchone()
            if row is None:
                return None
            db.execute("UPDATE hook SET next_s = ? WHERE id = ?", (now_s + LEASE_S, row["id"]))
            return _hook(row)

    def delivered(self, hook: str, number: int) -> bool:
        """Advance a webhook by the entry that it accepted; False if it was removed, or is elsewhere."""
        with self._access.writing() as db:
            done = db.execute(
                "UPDATE hook SET position = ?, attempts = 0, error = '' WHERE id = ? AND position = ? - 1",
                (number, hook, number),
            )
            return done.rowcount == 1

    def release(self, hook: str, next_s: int) -> None:
        """End the lease: the webhook may be sent to from `next_s` on."""
        with self._access.writing() as db:
            db.execute("UPDATE hook SET next_s = ? WHERE id = ? AND NOT is_failed", (next_s, hook))

    def refused(self, hook: str, error: str, now_s: int, *, is_final: bool = False) -> bool:
        """Count a failed attempt and end the lease; returns whether it was the last."""
        with self._access.writing() as db:
            row = db.execute("SELECT attempts FROM hook WHERE id = ?", (hook,)).fetchone()
            if row is None:
                return False
            attempts = row["attempts"] + 1
            is_failed = is_final or attempts > len(RETRY_S)
            next_s = now_s if is_failed else now_s + RETRY_S[attempts - 1]
            db.execute(
                "UPDATE hook SET attempts = ?, error = ?, next_s = ?, is_failed = ? WHERE id = ?",
                (attempts, error, next_s, is_failed, hook),
            )
            return is_failed


def _hook(row: sqlite3.Row) -> Hook:
    return Hook(**{**dict(row), "is_failed": bool(row["is_failed"])})
