"""Store: a participant's durable state in one SQLite file, safe against kill -9.

Room: participant (edge: one SQLite file). Certified manifests, a journal that is written
before any signature is sent, and a small key-value table. Every write
is durable when the call returns (`synchronous=FULL`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import Unavailable
from assay.protocol.messages import CertifiedManifest

_SCHEMA = """
CREATE TABLE IF NOT EXISTS link (round INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS journal
    (seq INTEGER PRIMARY KEY, iteration INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
"""


def read_link_bodies(path: Path, first: int = 0, count: int = 1 << 30) -> list[bytes]:
    """Encodings of certified manifests from round `first` on, from a store that another process may write to.

    The file is opened to read only, for one short transaction: under WAL it neither waits for the writer nor
    makes it wait. A gap ends the list.

    Raises:
        Unavailable: the file cannot be read now or is not a store.
    """
    asked = "SELECT round, body FROM link WHERE round >= ? ORDER BY round LIMIT ?"
    rows = _read(path, asked, (first, count))
    return [bytes(body) for at, (number, body) in enumerate(rows, first) if number == at]


def read_value(path: Path, name: str) -> bytes | None:
    """The value of a key in a store that another process may write to, as `read_link_bodies` reads it.

    Raises:
        Unavailable: likewise.
    """
    found = _read(path, "SELECT body FROM fact WHERE name = ?", (name,))
    return bytes(found[0][0]) if found else None


def _read(path: Path, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1)) as db:
            return db.execute(statement, values).fetchall()
    except sqlite3.Error as cause:
        raise Unavailable(f"{path}: not a participant's store, or not to be read now ({cause})") from None


class Store:
    """One participant's durable state. One process opens it at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create the store.

        Raises:
            Unavailable: the file cannot be opened or is not a store.
        """
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as cause:
            raise Unavailable(f"{path}: {cause}") from None

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    def add_link(self, certified: CertifiedManifest) -> None:
        """Store a certified manifest; one that is already there stays unchanged."""
        self.add_links([certified])

    def add_links(self, links: Sequence[CertifiedManifest]) -> None:
        """Likewise of one or more: all are stored, or none. A disk is waited for once, not once for each."""
        rows = ", ".join("(?, ?)" for _ in links)
        values = [value for one in links for value in (int(one.manifest.round), encode(one))]
        self._write(f"INSERT OR IGNORE INTO link VALUES {rows}", values)

    def links(self, first: int = 0, count: int = 1 << 30) -> Iterator[CertifiedManifest]:
        """Certified manifests from round `first` on, ascending."""
        return (decode(CertifiedManifest, body) for body in list(self.link_bodies(first, count)))

    def link_bodies(self, first: int = 0, count: int = 1 << 30) -> Iterator[bytes]:
        """The encodings of `links`, read one after another."""
        rows = self._db.execute(
            "SELECT body FROM link WHERE round >= ? ORDER BY round LIMIT ?", (first, count)
        )
        return (body for (body,) in rows)

    def add_record(self, iteration: int, body: bytes) -> None:
        """Append to the journal."""
        self._write("INSERT INTO journal (iteration, body) VALUES (?, ?)", (iteration, body))

    def records(self) -> list[bytes]:
        """The journal, oldest first."""
        return [body for (body,) in self._db.execute("SELECT body FROM journal ORDER BY seq")]

    def drop_records(self, up_to_iteration: int) -> None:
        """Delete journal records that a stored manifest has made obsolete."""
        self._write("DELETE FROM journal WHERE iteration <= ?", (up_to_iteration,))

    def set_value(self, name: str, body: bytes) -> None:
        """Set the value of a key."""
        self._write(
            "INSERT INTO fact VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body",
            (name, body),
        )

    def value(self, name: str) -> bytes | None:
        """The value of a key, or None."""
        row = self._db.execute("SELECT body FROM fact WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def values(self, prefix: str) -> dict[str, bytes]:
        """The values whose key starts with `prefix`."""
        rows = self._db.execute("SELECT name, body FROM fact WHERE name GLOB ?", (prefix + "*",))
        return {name: bytes(body) for name, body in rows}

    def drop_values(self, prefix: str, keep: set[str]) -> None:
        """Delete the values whose key starts with `prefix`, except those in `keep`."""
        names = [n for (n,) in self._db.execute("SELECT name FROM fact WHERE name GLOB ?", (prefix + "*",))]
        for name in names:
            if name not in keep:
                self._write("DELETE FROM fact WHERE name = ?", (name,))

    def _write(self, statement: str, values: Sequence[object]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as cause:
            raise Unavailable(f"cannot write to the store: {cause}") from None
