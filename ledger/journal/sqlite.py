"""SQLite: opens the SQLite file that holds one run's books.

Room: ledger (edge). WAL and `synchronous=FULL` (a commit is durable when it
returns), foreign keys, `recursive_triggers` (else INSERT OR REPLACE bypasses the DELETE
trigger), and transactions that take the writer's lock at their start.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from assay.protocol.errors import ConfigError

_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "recursive_triggers = ON")
_READ_WAIT_S = 20


def engine_of(path: Path, busy_s: float) -> Engine:
    """An engine on the file at `path`, created if missing; a writer waits `busy_s` seconds for another."""
    url = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(url, connect_args={"timeout": busy_s})
    sa.event.listen(engine, "connect", _set_up)
    sa.event.listen(engine, "begin", _begin)
    return engine


def engine_to_read(path: Path) -> Engine:
    """A read-only engine on the file at `path`: creates no file.

    Raises:
        ConfigError: there is no such file.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: there are no books here")

    def connect() -> sqlite3.Connection:
        # A database without a write-ahead log is opened as immutable. If there is one, it holds the newest
        # entries, and only a connection that takes part in its locks may read it.
        is_final = not _log_of(path).exists()
        location = f"file:{quote(str(path.resolve()))}?mode=ro" + "&immutable=1" * is_final
        db = sqlite3.connect(location, uri=True, timeout=_READ_WAIT_S, isolation_level=None)
        db.text_factory = lambda text: text.decode(errors="replace")  # the audit reports damaged text
        return db

    engine = sa.create_engine(
        "sqlite://",
        creator=connect,
        poolclass=sa.NullPool,
        execution_options={"reads_only": True},
    )
    sa.event.listen(engine, "begin", _begin)
    return engine


def closed_state(path: Path) -> tuple[int, ...] | None:
    """Differs for different bytes of a file that nobody has open to write; None of any other.

    What a writer has committed is in the write-ahead log, or in the file once the log is gone.
    """
    if _log_of(path).exists():
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def is_busy(error: object) -> bool:
    """Whether this error is SQLite's timeout while waiting for another writer."""
    # Python 3.10 has no sqlite_errorcode.
    return isinstance(error, sqlite3.OperationalError) and "database is locked" in str(error)


def _log_of(path: Path) -> Path:
    """The write-ahead log of a database; SQLite has it beside the file to which a link leads."""
    real = path.resolve()
    return real.with_name(real.name + "-wal")


def _set_up(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # sqlite3 would begin late and commit before some statements
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A deferred transaction that reads first can fail when it comes to write; IMMEDIATE waits instead.
    is_reader = connection.get_execution_options().get("reads_only", False)
    connection.exec_driver_sql("BEGIN" if is_reader else "BEGIN IMMEDIATE")
