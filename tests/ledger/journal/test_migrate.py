"""Migrations: a database that was brought here is one that was made here, and the way back is open."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import assay.ledger.journal.migrations
from assay.ledger.journal.database import Place, engine_of, make_schema, open_engine, version_of, writing
from assay.ledger.journal.log_store import KEPT_LEAVES
from assay.ledger.journal.migrate import OLDEST, migrate, move
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.tables import SCHEMA_VERSION
from assay.ledger.log.audit import audit
from assay.ledger.log.note import origin_of
from assay.protocol.errors import ConfigError
from tests.ledger.a_database import Databases, content, is_sqlite, stranger
from tests.ledger.a_run import RUN
from tests.ledger.journal.test_store import TABLES, a_life
from tests.ledger.test_books import an_entry

VERSIONS = range(OLDEST, SCHEMA_VERSION + 1)
_POSTGRES_SHAPE = """
SELECT 'column', table_name, column_name, data_type, is_nullable, coalesce(column_default, '')
    FROM information_schema.columns WHERE table_schema = current_schema()
UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', ''
    FROM pg_constraint WHERE connamespace = current_schema()::regnamespace
UNION ALL SELECT 'index', tablename, indexname, indexdef, '', ''
    FROM pg_indexes WHERE schemaname = current_schema()
UNION ALL SELECT 'trigger', relname, tgname, pg_get_triggerdef(pg_trigger.oid), tgenabled::text, ''
    FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    WHERE NOT tgisinternal AND relnamespace = current_schema()::regnamespace
UNION ALL SELECT 'function', proname, proname, pg_get_functiondef(oid), '', ''
    FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
"""


def shape(place: Place) -> list[Any]:
    """Everything a database says about its tables, indexes, constraints, triggers and functions."""
    with stranger(place) as db:
        if not is_sqlite(place):
            rows: Any = db.exec_driver_sql(_POSTGRES_SHAPE)
        else:
            rows = db.exec_driver_sql("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master")
        return sorted(tuple(_plain(part) for part in row) for row in rows)


def _plain(text: str) -> str:
    """Without what formatting adds."""
    return (
        re.sub(r"\bbooks_\d+\.|\s+", lambda found: "" if found[0].strip() else " ", text)
        .replace("( ", "(")
        .replace(" )", ")")
        .strip()
    )


@contextmanager
def opened(place: Place) -> Iterator[BookStore]:
    store = BookStore(place, RUN, now_ms=lambda: 0)
    yield store
    store.close()


def built(place: Place, *steps: int) -> Place:
    """An empty database taken through these schemas."""
    engine = engine_of(place)
    for to in steps:
        with writing(engine) as db:
            move(db, version_of(db), to)
            assert version_of(db) == to
    engine.dispose()
    return place


def test_a_migrated_database_is_a_fresh_one(databases: Databases):
    fresh = databases.new()
    open_engine(fresh).dispose()

    assert shape(built(databases.new(), SCHEMA_VERSION)) == shape(fresh)
    assert shape(built(databases.new(), *VERSIONS)) == shape(fresh)


def test_the_way_down_leads_through_every_schema_to_nothing_and_up_again(databases: Databases):
    for version in VERSIONS:
        going_up = shape(built(databases.new(), *range(OLDEST, version + 1)))
        coming_down = shape(built(databases.new(), *VERSIONS, *reversed(range(version, SCHEMA_VERSION))))
        assert coming_down == going_up, version
    emptied = built(databases.new(), *VERSIONS, *reversed(range(OLDEST, SCHEMA_VERSION)), 0)
    assert {name for _, _, name, *_ in shape(emptied)} <= {
        "alembic_version",
        "alembic_version_pkc",
        "version_num",
    }
    assert shape(built(emptied, SCHEMA_VERSION)) == shape(built(databases.new(), SCHEMA_VERSION))


def test_books_with_entries_survive_the_way_down_and_up_and_go_on(place: Place):
    store = BookStore(place, RUN, now_ms=lambda: 0)
    events = a_life().events
    store.take_blocks(events[:9], 0, 9, TABLES)
    store.add_entries([an_entry(1, -1, key=str(number)) for number in range(KEPT_LEAVES)])
    store.close()
    before = content(place)

    migrate(place, OLDEST)
    with pytest.raises(ConfigError, match=f"schema {OLDEST}, {SCHEMA_VERSION} expected"):
        BookStore(place, RUN)
    assert migrate(place) == (OLDEST, SCHEMA_VERSION)

    assert content(place) == before
    store = BookStore(place, RUN, now_ms=lambda: 0)
    store.take_blocks(events, 0, events[-1].block_number, TABLES)
    store.close()


def test_books_come_to_one_content_from_every_schema_and_every_schema_has_its_way_back(
    databases: Databases, place: Place
):
    """Also one step at a time: no revision leans on what a later one, or today's code, would make."""
    store = BookStore(place, RUN, now_ms=lambda: 0)
    store.add_entries([an_entry(1, -1, key=str(number)) for number in range(3 * KEPT_LEAVES + 5)])
    store.close()
    whole = content(place)

    for version in VERSIONS:
        copy = databases.copy(place)
        migrate(copy, version)
        assert migrate(copy) == (version, SCHEMA_VERSION)
        assert content(copy) == whole, version
        for to in [*reversed(range(OLDEST, SCHEMA_VERSION)), *range(OLDEST + 1, SCHEMA_VERSION + 1)]:
            migrate(copy, to)
        assert content(copy) == whole, version
        with opened(copy) as again, again.reading() as db:
            audit(db, origin_of(RUN), None, ())


def test_no_revision_runs_code_that_may_change():
    """Statements and what is computed for them are literals: only Alembic, errors and the reader of SQL."""
    allowed = {
        "__future__",
        "alembic",
        "hashlib",
        "assay.ledger.journal.migrations.statements",
        "assay.protocol.errors",
    }
    for path in (Path(assay.ledger.journal.migrations.__file__).parent / "versions").glob("v*.py"):
        tree = ast.parse(path.read_text())
        found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        found |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert found <= allowed, (path.name, found - allowed)


def test_books_with_entries_are_not_taken_away(place: Place):
    store = BookStore(place, RUN, now_ms=lambda: 0)
    store.add_entries([an_entry(5, -5)])
    before = content(place)

    with pytest.raises(ConfigError, match="not taken away"), writing(store.engine) as db:
        move(db, SCHEMA_VERSION, 0)

    assert content(place) == before
    store.close()


def test_books_with_a_pending_entry_keep_the_schema_that_has_a_place_for_it(place: Place):
    store = BookStore(place, RUN, now_ms=lambda: 0)
    store.hold(an_entry(5, -5), expires_ms=1)
    store.close()

    with pytest.raises(ConfigError, match="no place for pending entries"):
        migrate(place, 2)

    assert migrate(place) == (SCHEMA_VERSION, SCHEMA_VERSION)


def test_the_command_says_what_it_did_and_what_is_wrong(tmp_path: Path):
    place = tmp_path / "ledger.db"

    def called(*words: object) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "assay.ledger.journal.migrate", *map(str, words)],
            cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    assert called(place) == (2, f"migrate: {place}: there are no books here\n")
    open_engine(place).dispose()
    assert called(place) == (0, f"{place}: is of schema {SCHEMA_VERSION}\n")
    with stranger(place) as db:
        db.exec_driver_sql("PRAGMA user_version = 1")
    assert called(place) == (2, f"migrate: {place}: no way leads from schema 1\n")
    assert called(place, "--to", 99)[0] == 2


def test_two_openers_of_an_empty_database_make_one_schema(place: Place):
    """The second waits for the first, and finds what it made."""
    first = engine_of(place)
    with writing(first) as db:
        make_schema(db)
    second = open_engine(place)

    with writing(second) as db:
        assert db.execute(sa.text("SELECT count(*) FROM alembic_version")).scalar_one() == 1
    first.dispose()
    second.dispose()
