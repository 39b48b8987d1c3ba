"""Turn: of the keepers that are started on one database, one keeps the books and the others wait.

Room: ledger (edge). The lock is the operating system's or the server's, so it is free the moment its
holder dies, however it dies. A holder that only lost its connection, or was stopped for a while, may
wake up to find another one at work; so each turn has a number, kept with the books, and every
transaction of a keeper begins with a look at it.

    SQLite        flock on a file beside the books
    PostgreSQL    an advisory lock of a session of its own
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from assay.ledger.journal.database import Place, engine_of, told, writing
from assay.ledger.journal.postgres import LOCK_SPACE
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.tables import TABLES
from assay.protocol.errors import ConfigError, Unavailable

SUFFIX = ".turn"
TERM = "keeper_term"
_CURSOR = TABLES["cursor"]
# Not the writers' own lock, which everybody takes for a moment: its second half names another thing.
_TRY = sa.text("SELECT pg_try_advisory_lock(:space, hashtext(current_schema() || '/keeper'))").bindparams(
    space=LOCK_SPACE
)

_GIVE_UP = sa.text("SELECT pg_advisory_unlock_all()")  # it has no other


class LeaseLost(ConfigError):
    """Another keeper has taken the books over: stop, it goes on."""


class Lease:
    """One keeper's place in the line. One thread at a time."""

    def __init__(self, place: Place) -> None:
        """Nobody is kept out yet.

        Args:
            place: Of the books; they need not be there.
        """
        self._place = place
        self._file: int | None = None
        self._session: Connection | None = None

    def try_take(self) -> bool:
        """Whether it is our turn now; it stays ours until `give_up` or our end.

        Raises:
            ConfigError: the place is none.
            Unavailable: disk or server refused.
        """
        if isinstance(self._place, Path):
            return self._try_file(self._place)
        return self._try_session(self._place)

    def give_up(self) -> None:
        """Let the next one in."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._session is not None:
            with suppress(SQLAlchemyError):  # a session that is lost has no lock left
                self._session.execute(_GIVE_UP)  # the server notices a closed session only a moment later
            self._session.close()
            self._session.engine.dispose()
            self._session = None

    def _try_file(self, place: Path) -> bool:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(place.with_name(place.name + SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(f"{place}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def _try_session(self, place: str) -> bool:
        try:
            if self._session is None:
                engine = engine_of(place)
                self._session = engine.connect().execution_options(
                    isolation_level="AUTOCOMMIT", reads_only=True
                )
            is_ours = bool(self._session.execute(_TRY).scalar_one())
        except SQLAlchemyError as error:
            self.give_up()
            raise Unavailable(f"{told(place)}: {str(getattr(error, 'orig', error)).strip()}") from error
        return is_ours


def begin_term(books: BookStore) -> int:
    """Number a turn that was taken, and from now on refuse these books' writes once another has one.

    Args:
        books: Of the keeper whose turn it is.

    Raises:
        Unavailable: disk or server refused.
    """
    with writing(books.engine) as db:
        term = _term(db) + 1
        moved = db.execute(sa.update(_CURSOR).where(_CURSOR.c.name == TERM).values(value=term))
        if not moved.rowcount:
            db.execute(sa.insert(_CURSOR), [{"name": TERM, "value": term}])

    def check(db: Connection) -> None:
        if not db.get_execution_options().get("reads_only", False) and (now := _term(db)) != term:
            raise LeaseLost(
                f"another keeper has the books (turn {now}, ours was {term}); it goes on, we stop"
            )

    hook: Any = check  # after the one that takes the writers' lock: what we read is what we write to
    sa.event.listen(books.engine, "begin", hook)
    return term


def _term(db: Connection) -> int:
    return int(db.execute(sa.select(_CURSOR.c.value).where(_CURSOR.c.name == TERM)).scalar() or 0)
