"""Every test of the store runs on SQLite and, over a real connection, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.ledger.journal.database import Place
from tests.ledger.a_database import Databases, PostgresDatabases, SqliteDatabases
from tests.ledger.a_postgres import Server, a_server, binaries


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    found = binaries()
    if found is None:
        pytest.skip("PostgreSQL is not installed here: apt-get install postgresql")
    with a_server(found, is_durable=False) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Databases]:
    """A maker of empty places for books, on each database in turn."""
    if request.param == "sqlite":
        yield SqliteDatabases(tmp_path)
    else:
        made = PostgresDatabases(request.getfixturevalue("postgres"))
        yield made
        made.drop_all()


@pytest.fixture
def place(databases: Databases) -> Place:
    return databases.new()
