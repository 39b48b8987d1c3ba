"""Places for books on either database, and what a test does to them behind the store's back."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.ledger.journal.database import Place, open_engine
from tests.ledger.a_postgres import Server


class Databases(Protocol):
    """Makes empty places and copies of used ones."""

    def new(self) -> Place: ...

    def copy(self, place: Place) -> Place: ...


class SqliteDatabases:
    """Files in a folder; the first is ledger.db."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, count()

    def new(self) -> Place:
        number = next(self._numbers)
        return self._folder / (f"ledger-{number}.db" if number else "ledger.db")

    def copy(self, place: Place) -> Place:
        fresh = self.new()
        shutil.copy(Path(place), Path(fresh))
        return fresh


class PostgresDatabases:
    """Schemas of one server's database."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def new(self) -> Place:
        return self._server.new_schema()

    def copy(self, place: Place) -> Place:
        fresh = self.new()
        copy_rows(place, fresh)
        return fresh

    def drop_all(self) -> None:
        self._server.drop_schemas()


def copy_rows(place: Place, fresh: Place) -> None:
    """Fill an empty schema with what another schema of the same server holds."""
    open_engine(fresh).dispose()
    with stranger(fresh) as db:
        db.exec_driver_sql("SET session_replication_role = replica")
        for name in sa.inspect(db).get_table_names():
            db.exec_driver_sql(f"DELETE FROM {name}")
            db.exec_driver_sql(f"INSERT INTO {name} SELECT * FROM {_schema(place)}.{name}")


def beside(place: Place, schema: str) -> Place:
    """An empty schema of this name on the server of another; it stays until the server ends."""
    with stranger(place) as db:
        db.exec_driver_sql(f"CREATE SCHEMA {schema}")
    url = sa.make_url(str(place)).update_query_dict({"options": f"-csearch_path={schema}"})
    return url.render_as_string()


def _schema(place: Place) -> str:
    return str(sa.make_url(str(place)).query["options"]).removeprefix("-csearch_path=")


def is_sqlite(place: Place) -> bool:
    return isinstance(place, Path)


def said(place: Place, statement: str) -> str:
    """A statement that is written for SQLite, in the place's own language."""
    return statement if is_sqlite(place) else re.sub(r"x'([0-9a-f]*)'", r"'\\x\1'::bytea", statement)


@contextmanager
def stranger(place: Place, *pragmas: str) -> Iterator[Connection]:
    """Anybody's transaction, not our engine's: without our pragmas and our locks."""
    url = (
        f"sqlite:///{place}" if is_sqlite(place) else str(place).replace("postgresql:", "postgresql+psycopg:")
    )
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as db:
        for pragma in pragmas if is_sqlite(place) else ():
            db.exec_driver_sql(f"PRAGMA {pragma}")
        yield db
        db.commit()
    engine.dispose()


def attempt(place: Place, *statements: str) -> None:
    """Statements of anybody's, in one transaction; what the database refuses is raised."""
    with stranger(place) as db:
        for statement in statements:
            db.exec_driver_sql(said(place, statement))


def edit(place: Place, *statements: str) -> None:
    """Change the books as their database's owner can: without our triggers and foreign keys."""
    with stranger(place, "foreign_keys = OFF") as db:
        if is_sqlite(place):
            for name in (
                db.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").scalars().all()
            ):
                db.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            db.exec_driver_sql("SET session_replication_role = replica")
        for statement in statements:
            db.exec_driver_sql(said(place, statement))
    if is_sqlite(place):
        with stranger(place) as db:
            db.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def content(place: Place) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    with stranger(place) as db:
        return {
            name: sorted((tuple(row) for row in db.exec_driver_sql(f'SELECT * FROM "{name}"')), key=repr)
            for name in sa.inspect(db).get_table_names()
        }
