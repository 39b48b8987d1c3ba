"""Lease: at most one ledger service writes to a database; standbys wait. `term` is the fencing token.

Room: ledger (edge). The lock belongs to the operating system or the database server, so it is released as
soon as its holder dies. A holder that lost only its connection, or was suspended, may resume after another
service has taken over; so each lease has a term number, stored with the books, and every write transaction
of a ledger service checks it first.

    SQLite        flock on a file beside the books
    PostgreSQL    an advisory lock of a dedicated session
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

from assay.ledger.journal.database import Place, engine_of, place_text, writing
from assay.ledger.journal.postgres import LOCK_SPACE
from assay.ledger.journal.store import BookStore, read_cursor, set_cursor
from assay.protocol.errors import ConfigError, Unavailable

SUFFIX = ".turn"
TERM = "keeper_term"
# Not the writers' lock, which is held for one transaction only: the second half of the key differs.
_TRY = sa.text("SELECT pg_try_advisory_lock(:space, hashtext(current_schema() || '/keeper'))").bindparams(
    space=LOCK_SPACE
)

_GIVE_UP = sa.text("SELECT pg_advisory_unlock_all()")  # this session holds no other


class LeaseLost(ConfigError):
    """Another ledger service has taken the lease: this one must stop."""


class Lease:
    """One ledger service's lease on a database. Not thread-safe."""

    def __init__(self, place: Place) -> None:
        """Takes no lock yet.

        Args:
            place: Of the books; they need not exist.
        """
        self._place = place
        self._file: int | None = None
        self._session: Connection | None = None

    def try_take(self) -> bool:
        """Tries to take the lease; if True, it is held until `give_up` or the end of the process.

        Raises:
            ConfigError: the place is invalid.
            Unavailable: disk or server failed.
        """
        if isinstance(self._place, Path):
            return self._try_file(self._place)
        return self._try_session(self._place)

    def give_up(self) -> None:
        """Release the lease, so that a standby can take it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._session is not None:
            with suppress(SQLAlchemyError):  # a lost session holds no lock
                self._session.execute(_GIVE_UP)  # the server notices a closed session only later
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
            raise Unavailable(f"{place_text(place)}: {str(getattr(error, 'orig', error)).strip()}") from error
        return is_ours


def begin_term(books: BookStore) -> int:
    """Start a new term for the lease just taken; after a later one starts, writes raise `LeaseLost`.

    Args:
        books: Of the ledger service that holds the lease.

    Raises:
        Unavailable: disk or server failed.
    """
    with writing(books.engine) as db:
        term = read_cursor(db, TERM, 0) + 1
        set_cursor(db, TERM, term)

    def check(db: Connection) -> None:
        if (
            not db.get_execution_options().get("reads_only", False)
            and (now := read_cursor(db, TERM, 0)) != term
        ):
            raise LeaseLost(
                f"another ledger service took the lease (term {now}, ours was {term}): this one stops"
            )

    hook: Any = check  # after the hook that takes the writers' lock, so that the term read is current
    sa.event.listen(books.engine, "begin", hook)
    return term
