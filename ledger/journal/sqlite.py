"""Journal on SQLite: how the books' file is opened.

Room: ledger (edge). WAL and `synchronous=FULL` (a commit is on disk when it
returns), foreign keys, `recursive_triggers` (else INSERT OR REPLACE deletes
unseen), and transactions that take the writer's lock at once.
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
    """The file at `path`, made if missing; a writer waits `busy_s` for another."""
    url = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(url, connect_args={"timeout": busy_s})
    sa.event.listen(engine, "connect", _set_up)
    sa.event.listen(engine, "begin", _begin)
    return engine


def engine_to_read(path: Path) -> Engine:
    """The file at `path` for queries alone: nothing is written, and no file appears beside it.

    Raises:
        ConfigError: there is no such file.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: there are no books here")
    # Books that nobody has open are read as plain bytes. Where a write-ahead log lies beside them, the
    # newest entries are in it, and only a connection that takes part in its locks may read it.
    mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "mode=ro&immutable=1"
    location = f"file:{quote(str(path.resolve()))}?{mode}"

    def connect() -> sqlite3.Connection:
        db = sqlite3.connect(location, uri=True, timeout=_READ_WAIT_S, isolation_level=None)
        db.text_factory = lambda text: text.decode(errors="replace")  # damaged text is for the audit to name
        return db

    engine = sa.create_engine(
        "sqlite://",
        creator=connect,
        poolclass=sa.NullPool,
        execution_options={"reads_only": True},
    )
    sa.event.listen(engine, "begin", _begin)
    return engine


def is_busy(error: object) -> bool:
    """Whether SQLite gave up waiting for another writer."""
    # Python 3.10 has no sqlite_errorcode.
    return isinstance(error, sqlite3.OperationalError) and "database is locked" in str(error)


def _set_up(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # sqlite3 would begin late and commit before some statements
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A deferred transaction that reads first can fail when it comes to write; IMMEDIATE waits instead.
    is_reader = connection.get_execution_options().get("reads_only", False)
    connection.exec_driver_sql("BEGIN" if is_reader else "BEGIN IMMEDIATE")
