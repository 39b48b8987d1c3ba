"""Access: the API server's store of sessions, tokens, used nonces, idempotent responses, moves and webhooks.

Room: api (edge: one SQLite file of the server's own, never the books). Secrets are stored as
SHA-256 of 256 random bits, so the file grants no access and a look-up leaks nothing by its timing.
Everything here expires, is bounded, and is swept.

    nonce     created without storage (HMAC); stored only once used, so no client can fill a table
    token     assay_<43 characters>; scopes, spend limit, expiry, revocation
    answer    the response to an Idempotency-Key, unless it is a refusal
    move      prepared -> sent; see api/moves.py
    hook      a webhook, whose secret is derived and not stored; see api/hooks/store.py
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.protocol.errors import ConfigError, Unavailable

SCOPES = ("read", "invoice", "quote", "move", "hook")
TOKEN_PREFIX, SESSION_PREFIX = "assay_", "session_"
NONCE_S, SESSION_S, ANSWER_S = 300, 12 * 3600, 24 * 3600
NONCES_MAX, SESSIONS_MAX, ANSWERS_MAX = 100_000, 100_000, 100_000
TOKENS_MAX, ACCOUNT_SESSIONS_MAX, PRINCIPAL_ANSWERS_MAX = 10_000, 20, 1_000
PREPARED_MAX, MOVES_MAX = 20, 100_000  # unsigned moves, of an account and in all
AMOUNT_MAX = 2**63 - 1
KEPT_MOVE_S = 30 * 24 * 3600
TOLD_S = 3600  # seconds for which an expired move is still reported as expired
_SCHEMA = """
CREATE TABLE IF NOT EXISTS secret (id INTEGER PRIMARY KEY CHECK (id = 0), value BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS used_nonce (nonce TEXT PRIMARY KEY, expires_s INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS session (
    hash BLOB PRIMARY KEY, account TEXT NOT NULL, created_s INTEGER NOT NULL,
    expires_s INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS token (
    id INTEGER PRIMARY KEY AUTOINCREMENT, hash BLOB NOT NULL UNIQUE, name TEXT NOT NULL, account TEXT,
    scopes TEXT NOT NULL, spend_limit INTEGER NOT NULL CHECK (spend_limit >= 0),
    spent INTEGER NOT NULL DEFAULT 0 CHECK (0 <= spent AND spent <= spend_limit),
    created_s INTEGER NOT NULL, expires_s INTEGER NOT NULL, revoked_s INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS answer (
    principal TEXT NOT NULL, key TEXT NOT NULL, request_hash BLOB NOT NULL, status INTEGER, body BLOB,
    created_s INTEGER NOT NULL, PRIMARY KEY (principal, key)) STRICT;
CREATE TABLE IF NOT EXISTS move (
    id TEXT PRIMARY KEY, principal TEXT NOT NULL, account TEXT NOT NULL, body TEXT NOT NULL,
    amount INTEGER NOT NULL, created_s INTEGER NOT NULL, expires_s INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('prepared', 'sent')), raw TEXT) STRICT;
CREATE INDEX IF NOT EXISTS move_account ON move (account, state);
CREATE TABLE IF NOT EXISTS hook (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, token INTEGER, run TEXT NOT NULL, url TEXT NOT NULL,
    position INTEGER NOT NULL CHECK (position >= 0), attempts INTEGER NOT NULL DEFAULT 0,
    next_s INTEGER NOT NULL, error TEXT NOT NULL DEFAULT '', is_failed INTEGER NOT NULL DEFAULT 0,
    created_s INTEGER NOT NULL, UNIQUE (owner, run, url)) STRICT;
"""


class NoRoom(Unavailable):
    """A bounded table is full of unexpired rows."""


class KeyReused(Exception):
    """An Idempotency-Key was used for another request before."""


class InProgress(Exception):
    """The request with this Idempotency-Key is still being processed."""


class OverLimit(Exception):
    """A token's moves would exceed its spend limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The authenticated caller of a request."""

    name: str  # "session:..." or "token:7"; key of rate limits and stored responses
    account: str | None  # None for a token without an account
    scopes: frozenset[str]
    token: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A stored API token, without its secret."""

    id: int
    name: str
    account: str | None
    scopes: frozenset[str]
    spend_limit: int
    spent: int
    created_s: int
    expires_s: int
    revoked_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A stored move."""

    id: str
    principal: str
    account: str
    body: dict[str, Any]
    amount: int
    expires_s: int
    state: str
    raw: tuple[str, ...]  # signed transactions, in hexadecimal, once they are sent


class AccessStore:
    """One server's store. Thread-safe: each call has its own connection."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, readable by this user alone.

        Raises:
            ConfigError: it cannot be opened.
        """
        self._path = path
        try:
            path.touch(mode=0o600)
            with closing(self._connect()) as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.executescript(_SCHEMA)
            with self.writing() as db:
                db.execute("INSERT OR IGNORE INTO secret VALUES (0, ?)", (secrets.token_bytes(32),))
                self._secret: bytes = db.execute("SELECT value FROM secret").fetchone()[0]
        except (OSError, sqlite3.Error, Unavailable) as error:
            raise ConfigError(f"{path}: cannot be opened ({error})") from None

    # ---- nonces of sign-ins

    def new_nonce(self, now_s: int) -> str:
        """A nonce for one sign-in, valid for `NONCE_S` seconds."""
        head = f"{now_s + NONCE_S:010x}{secrets.token_hex(8)}"
        return head + self._mac(head)

    def use_nonce(self, nonce: str, now_s: int) -> bool:
        """Use up a nonce; returns whether it was ours, unexpired and unused.

        A full table forgets its oldest nonce and takes none as old any more: anybody can use nonces up, and
        none may keep others out.
        """
        head, mac = nonce[:26], nonce[26:]
        if len(nonce) != 58 or not nonce.isascii() or not hmac.compare_digest(mac, self._mac(head)):
            return False
        expires_s = int(head[:10], 16)
        if expires_s <= now_s:
            return False
        with self.writing() as db:
            count, oldest = db.execute("SELECT count(*), min(nonce) FROM used_nonce").fetchone()
            is_full = count >= NONCES_MAX
            if is_full and nonce <= oldest:  # a nonce begins with its expiry
                return False
            done = db.execute("INSERT OR IGNORE INTO used_nonce VALUES (?, ?)", (nonce, expires_s))
            if is_full and done.rowcount == 1:
                db.execute("DELETE FROM used_nonce WHERE nonce = ?", (oldest,))
            return done.rowcount == 1

    def _mac(self, head: str) -> str:
        return self.derive(b"assay/nonce/1" + head.encode()).hex()[:32]

    def derive(self, label: bytes) -> bytes:
        """32 bytes that follow from the server's own key and a label, which begins with its purpose."""
        return hmac.new(self._secret, label, hashlib.sha256).digest()

    # ---- sessions and tokens

    def open_session(self, account: str, now_s: int) -> tuple[str, int]:
        """A new session's secret, which is not stored, and its expiry; ends the account's oldest ones.

        A full table ends the oldest of all: anybody can make accounts, and none may keep others out.
        """
        secret = SESSION_PREFIX + secrets.token_urlsafe(32)
        with self.writing() as db:
            db.execute(
                "DELETE FROM session WHERE account = ? AND hash NOT IN "
                "(SELECT hash FROM session WHERE account = ? ORDER BY created_s DESC LIMIT ?)",
                (account, account, ACCOUNT_SESSIONS_MAX - 1),
            )
            over = db.execute("SELECT count(*) FROM session").fetchone()[0] - SESSIONS_MAX + 1
            if over > 0:
                oldest = "SELECT rowid FROM session ORDER BY created_s, rowid LIMIT ?"
                db.execute(f"DELETE FROM session WHERE rowid IN ({oldest})", (over,))
            db.execute(
                "INSERT INTO session VALUES (?, ?, ?, ?)", (_hash(secret), account, now_s, now_s + SESSION_S)
            )
        return secret, now_s + SESSION_S

    def close_session(self, secret: str) -> None:
        """End a session now."""
        with self.writing() as db:
            db.execute("DELETE FROM session WHERE hash = ?", (_hash(secret),))

    def create_token(
        self,
        name: str,
        *,
        account: str | None,
        scopes: frozenset[str],
        spend_limit: int,
        now_s: int,
        days: int,
    ) -> tuple[str, Token]:
        """A new token's secret, which is not stored, and its record.

        Raises:
            ConfigError: scopes that do not exist or need an account, or a limit out of range.
        """
        unknown = sorted(scopes - set(SCOPES))
        if unknown or not scopes:
            raise ConfigError(f"scope {(unknown or ['(none)'])[0]!r}: expected some of {', '.join(SCOPES)}")
        if "move" in scopes and account is None:
            raise ConfigError("a token with scope move needs an account: --account 0x...")
        if not 0 <= spend_limit <= AMOUNT_MAX or not 1 <= days <= 366:
            raise ConfigError("expected a spend limit of at least 0, and 1 to 366 days")
        secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
        with self.writing() as db:
            if db.execute("SELECT count(*) FROM token").fetchone()[0] >= TOKENS_MAX:
                raise ConfigError(f"there are {TOKENS_MAX} tokens already")
            done = db.execute(
                "INSERT INTO token (hash, name, account, scopes, spend_limit, created_s, expires_s) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (_hash(secret), name[:80], account, " ".join(sorted(scopes)), spend_limit, now_s,
                 now_s + days * 86_400),
            )  # fmt: skip
            row = db.execute("SELECT * FROM token WHERE id = ?", (done.lastrowid,)).fetchone()
        return secret, _token(row)

    def tokens(self) -> list[Token]:
        """All stored tokens."""
        with self.reading() as db:
            return [_token(row) for row in db.execute("SELECT * FROM token ORDER BY id")]

    def revoke(self, token: int, now_s: int) -> bool:
        """Revoke a token; returns whether it existed."""
        with self.writing() as db:
            done = db.execute(
                "UPDATE token SET revoked_s = coalesce(revoked_s, ?) WHERE id = ?", (now_s, token)
            )
            return done.rowcount == 1

    def authenticate(self, secret: str, now_s: int) -> Principal | None:
        """The caller that a valid session or token authenticates; None if unknown or expired."""
        if not secret.isascii() or len(secret) > 80:
            return None
        with self.reading() as db:
            if secret.startswith(SESSION_PREFIX):
                row = db.execute(
                    "SELECT * FROM session WHERE hash = ? AND expires_s > ?", (_hash(secret), now_s)
                ).fetchone()
                if row is None:
                    return None
                # One name for all sessions of an account: an Idempotency-Key outlives a session.
                return Principal(
                    name=f"account:{row['account']}", account=row["account"], scopes=frozenset(SCOPES)
                )
            row = db.execute(
                "SELECT * FROM token WHERE hash = ? AND expires_s > ? AND revoked_s IS NULL",
                (_hash(secret), now_s),
            ).fetchone()
        if row is None:
            return None
        found = _token(row)
        return Principal(name=f"token:{found.id}", account=found.account, scopes=found.scopes, token=found.id)

    def is_valid(self, token: int, scope: str, now_s: int) -> bool:
        """Whether a token has not ended, and has this scope."""
        with self.reading() as db:
            row = db.execute(
                "SELECT * FROM token WHERE id = ? AND expires_s > ? AND revoked_s IS NULL", (token, now_s)
            ).fetchone()
        return row is not None and scope in _token(row).scopes

    # ---- stored responses

    def begin(
        self, principal: str, key: str, request_hash: bytes, now_s: int, stale_s: int
    ) -> tuple[int, bytes] | None:
        """The stored response of this key; None if the request is to be executed now.

        A full table ends the oldest response of the principal that has the most: anybody can make accounts,
        and none may keep others out. Without its response a move still goes out once (`send_move`).

        Args:
            principal: The caller that owns the key.
            key: The Idempotency-Key.
            request_hash: Of method, path and body.
            now_s: Unix time.
            stale_s: Age at which a request without response counts as aborted and may be executed again.

        Raises:
            KeyReused: the key was used for another request.
            InProgress: it has no response yet.
            NoRoom: the principal has as many responses of the last `ANSWER_S` as it may.
        """
        with self.writing() as db:
            row = db.execute(
                "SELECT * FROM answer WHERE principal = ? AND key = ?", (principal, key)
            ).fetchone()
            if row is not None and row["created_s"] > now_s - ANSWER_S:
                if row["request_hash"] != request_hash:
                    raise KeyReused
                if row["status"] is not None:
                    return row["status"], row["body"]
                if row["created_s"] > now_s - stale_s:
                    raise InProgress
            elif row is None:
                own_count = "SELECT count(*) FROM answer WHERE principal = ? AND created_s > ?"
                own = db.execute(own_count, (principal, now_s - ANSWER_S)).fetchone()[0]
                if own >= PRINCIPAL_ANSWERS_MAX:
                    raise NoRoom("too many requests with an Idempotency-Key in one day")
                if db.execute("SELECT count(*) FROM answer").fetchone()[0] >= ANSWERS_MAX:
                    largest = (
                        "SELECT principal FROM answer GROUP BY principal "
                        "ORDER BY count(*) DESC, min(rowid) LIMIT 1"  # read from the key's index alone
                    )
                    oldest = (
                        f"SELECT min(rowid) FROM answer WHERE principal = ({largest}) "
                        "AND (status IS NOT NULL OR created_s <= ?)"
                    )
                    db.execute(f"DELETE FROM answer WHERE rowid = ({oldest})", (now_s - stale_s,))
            db.execute(
                "INSERT OR REPLACE INTO answer VALUES (?, ?, ?, NULL, NULL, ?)",
                (principal, key, request_hash, now_s),
            )
            return None

    def finish(self, principal: str, key: str, status: int, body: bytes) -> None:
        """Store the response of a request that was carried out; one that was not may be sent again."""
        with self.writing() as db:
            if status >= 400:
                db.execute("DELETE FROM answer WHERE principal = ? AND key = ?", (principal, key))
            else:
                db.execute(
                    "UPDATE answer SET status = ?, body = ? WHERE principal = ? AND key = ?",
                    (status, body, principal, key),
                )

    # ---- moves

    def keep_move(self, move: Kept, now_s: int) -> None:
        """Store a prepared move; where there are too many of all accounts, the oldest of them ends.

        Raises:
            NoRoom: the account has too many unsigned ones.
        """
        with self.writing() as db:
            waiting = "SELECT count(*) FROM move WHERE account = ? AND state = 'prepared' AND expires_s > ?"
            if db.execute(waiting, (move.account, now_s)).fetchone()[0] >= PREPARED_MAX:
                raise NoRoom(f"{PREPARED_MAX} prepared moves of this account are not sent yet")
            prepared = "FROM move WHERE state = 'prepared'"
            if db.execute(f"SELECT count(*) {prepared}").fetchone()[0] >= MOVES_MAX:
                db.execute(f"DELETE FROM move WHERE rowid = (SELECT min(rowid) {prepared})")
            db.execute(
                "INSERT INTO move VALUES (?, ?, ?, ?, ?, ?, ?, 'prepared', NULL)",
                (
                    move.id,
                    move.principal,
                    move.account,
                    json.dumps(move.body),
                    move.amount,
                    now_s,
                    move.expires_s,
                ),
            )

    def move(self, move_id: str) -> Kept | None:
        """A stored move, or None."""
        with self.reading() as db:
            row = db.execute("SELECT * FROM move WHERE id = ?", (move_id,)).fetchone()
        return None if row is None else _kept(row)

    def send_move(self, move_id: str, raw: tuple[str, ...], token: int | None, now_s: int) -> bool:
        """Use a move's nonce, once: store its signed transactions and charge the token's spend limit.

        Returns:
            False if it was sent before or has expired.

        Raises:
            OverLimit: the token's limit does not cover it; nothing is stored.
        """
        with self.writing() as db:
            done = db.execute(
                "UPDATE move SET state = 'sent', raw = ? "
                "WHERE id = ? AND state = 'prepared' AND expires_s > ?",
                (json.dumps(raw), move_id, now_s),
            )
            if done.rowcount != 1:
                return False
            if token is not None:
                spent = db.execute(
                    "UPDATE token SET spent = spent + (SELECT amount FROM move WHERE id = ?) WHERE id = ? "
                    "AND spent + (SELECT amount FROM move WHERE id = ?) <= spend_limit AND revoked_s IS NULL",
                    (move_id, token, move_id),
                )
                if spent.rowcount != 1:
                    raise OverLimit
            return True

    # ---- inside

    def sweep(self, now_s: int) -> None:
        """Delete everything expired."""
        with self.writing() as db:
            for table in ("used_nonce", "session"):
                db.execute(f"DELETE FROM {table} WHERE expires_s <= ?", (now_s,))
            db.execute("DELETE FROM answer WHERE created_s <= ?", (now_s - ANSWER_S,))
            db.execute("DELETE FROM move WHERE state = 'prepared' AND expires_s <= ?", (now_s - TOLD_S,))
            db.execute("DELETE FROM move WHERE created_s <= ?", (now_s - KEPT_MOVE_S,))

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=10, isolation_level=None)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA synchronous = FULL")
        return db

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for queries.

        Raises:
            Unavailable: the file cannot be read, or written.
        """
        try:
            with closing(self._connect()) as db:
                yield db
        except sqlite3.Error as error:
            raise Unavailable(f"access store: {error}") from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which holds the writer's lock; raises as `reading`."""
        with self.reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")


def _hash(secret: str) -> bytes:
    return hashlib.sha256(b"assay/access/1" + secret.encode()).digest()


def _token(row: sqlite3.Row) -> Token:
    columns = {name: row[name] for name in row.keys() if name != "hash"}  # noqa: SIM118 - a Row iterates values
    return Token(**{**columns, "scopes": frozenset(columns["scopes"].split())})


def _kept(row: sqlite3.Row) -> Kept:
    columns = {name: row[name] for name in row.keys() if name != "created_s"}  # noqa: SIM118 - as above
    raw = tuple(json.loads(row["raw"] or "[]"))
    return Kept(**{**columns, "body": json.loads(row["body"]), "raw": raw})
