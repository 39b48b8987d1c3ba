"""Records in the log: no row of an event, a round, a payout table or a document changes unseen."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from assay.ledger.invoices.store import issue
from assay.ledger.journal.database import Place, open_engine_to_read, reading
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.journal.round_facts import RoundFacts
from assay.ledger.journal.rows import BROUGHT_IN, SETTLED_IN
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.tables import TABLES, written_once
from assay.ledger.log.audit import audit
from assay.ledger.log.note import origin_of
from assay.ledger.log.signer import CheckpointSigner
from tests.ledger.a_database import attempt, edit, stranger
from tests.ledger.an_invoiced_run import KEY, NOW_MS, RUN, SELLER, SPEC, a_stream, facts_of
from tests.ledger.an_invoiced_run import TABLES as PAYOUTS
from tests.ledger.queries.test_faults import FACTS

pytestmark = pytest.mark.slow

WITH_RECORDS = ("chain_event", "invoice", *BROUGHT_IN, *SETTLED_IN)
COLUMNS = [(name, column.name) for name in WITH_RECORDS for column in written_once(TABLES[name])]


def write(place: Place, folder: Path) -> None:
    """Books in which each of these tables has rows; all events but the first were orphaned, and came back."""
    store = BookStore(place, RUN, now_ms=lambda: 1_700_000_000_000)
    stream = a_stream()
    rounds = [replace(facts_of(one.round), **audited_in(one)) for one in FACTS]
    store.add_rounds([*rounds, facts_of(len(FACTS))])
    for events in stream.events, stream.events[:1], stream.events:
        store.take_blocks(events, 0, stream.height, PAYOUTS)
    CheckpointSigner(store, KEY, folder / "checkpoints").sign_last()
    issue(store.engine, SPEC, RUN, 0, 0, SELLER, NOW_MS)
    store.close()


def audited_in(one: RoundFacts) -> dict[str, Any]:
    """What a round says of audits."""
    names = ("beacon_shares", "drawn", "verdicts", "ruled", "faults", "contradictions", "configuration")
    return {name: getattr(one, name) for name in names}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("books") / "ledger.db"
    write(place, place.parent)
    with stranger(place) as db:
        db.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return place


@pytest.fixture
def books(written: Path, tmp_path: Path) -> Path:
    """A copy with triggers."""
    return Path(shutil.copy(written, tmp_path / "ledger.db"))


def audited(place: Place) -> int:
    with reading(open_engine_to_read(place)) as db:
        return audit(db, origin_of(RUN), None, ()).entries


def first_row(table: str) -> str:
    """SQL that names the first row by its primary key."""
    key = ", ".join(column.name for column in TABLES[table].primary_key)
    return f"({key}) = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1)"


def test_every_table_has_rows_and_nothing_is_wrong(place: Place, tmp_path: Path):
    write(place, tmp_path)

    assert audited(place) > len(FACTS)
    with reading(open_engine_to_read(place)) as db:
        counts = {name: db.execute(sa.select(sa.func.count()).select_from(TABLES[name])).scalar_one()
                  for name in TABLES}  # fmt: skip
    assert all(counts[name] for name in WITH_RECORDS)
    # Whoever adds a table says how the log has it: these are the journal, its log, and what may change.
    journal = {"account", "balance", "posting", "journal_entry", "log_leaf", "log_node", "log_edge"}
    assert {*TABLES} == {*WITH_RECORDS, *journal, "checkpoint", "cosignature", "cursor"}


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=map(".".join, COLUMNS))
def test_a_changed_value_is_found(books: Path, table: str, column: str):
    kind = type(TABLES[table].c[column].type)
    other = {sa.Text: f"{column} || 'x'", sa.LargeBinary: "x'00'"}.get(kind, f"coalesce({column}, 0) + 100")
    edit(
        books,
        "PRAGMA ignore_check_constraints = ON",
        f"UPDATE {table} SET {column} = {other} WHERE {first_row(table)}",
    )

    with pytest.raises(LedgerIntegrityError):
        audited(books)


@pytest.mark.parametrize("table", WITH_RECORDS)
def test_a_row_that_is_gone_or_new_is_found(written: Path, tmp_path: Path, table: str):
    key = next(iter(TABLES[table].primary_key)).name
    columns = ", ".join(
        (
            f"{name} || 'x'"
            if name == "series"
            else "x'00'"
            if name in ("block_hash", "offence_id")
            else f"{name} + 100"
        )
        if name == key
        else name
        for name in [column.name for column in TABLES[table].columns]
    )
    for number, statement in enumerate(
        (f"DELETE FROM {table} WHERE {first_row(table)}",
         f"INSERT INTO {table} SELECT {columns} FROM {table} WHERE {first_row(table)}")
    ):  # fmt: skip
        copy = Path(shutil.copy(written, tmp_path / f"{number}.db"))
        edit(copy, "PRAGMA ignore_check_constraints = ON", statement)
        with pytest.raises(LedgerIntegrityError):
            audited(copy)


@pytest.mark.parametrize(
    "change",
    [
        "state = 'orphaned'",
        "turns = 0",
        "turns = 2",
        "state = 'orphaned', turns = 2",
        "turns = 1 << 60",
        "turns = -1",
    ],
)
def test_what_the_chain_took_back_is_what_the_log_says(books: Path, change: str):
    attempt(
        books, f"UPDATE chain_event SET {change} WHERE turns = 1"
    )  # the triggers let these columns change

    with pytest.raises(LedgerIntegrityError, match=r"^event "):
        audited(books)


@pytest.mark.parametrize("statement", ["UPDATE cursor SET value = value - 1", "DELETE FROM cursor"])
def test_the_number_of_rounds_is_that_of_the_log(books: Path, statement: str):
    edit(books, f"{statement} WHERE name = 'next_round'")

    with pytest.raises(LedgerIntegrityError, match="rounds"):
        audited(books)


# ---- ways around the triggers, on SQLite


@pytest.mark.parametrize("table", WITH_RECORDS)
def test_who_drops_the_triggers_from_the_schema_is_found_out(books: Path, table: str):
    with stranger(books) as db:
        db.exec_driver_sql("PRAGMA writable_schema = ON")
        db.exec_driver_sql("DELETE FROM sqlite_master WHERE type = 'trigger'")
    attempt(books, f"DELETE FROM {table}")  # nothing refuses it any more

    with pytest.raises(LedgerIntegrityError, match="on record"):
        audited(books)


@pytest.mark.parametrize("table", WITH_RECORDS)
def test_a_copy_of_a_table_that_has_no_triggers_is_found_out(books: Path, table: str):
    attempt(
        books,
        "PRAGMA legacy_alter_table = ON",
        f"CREATE TABLE other AS SELECT * FROM {table} WHERE NOT ({first_row(table)})",
        f"DROP TABLE {table}",
        f"ALTER TABLE other RENAME TO {table}",
    )

    with pytest.raises(LedgerIntegrityError):
        audited(books)


@pytest.mark.parametrize("table", [*WITH_RECORDS, "posting", "journal_entry", "log_leaf"])
def test_triggers_hold_for_a_database_that_is_attached(books: Path, tmp_path: Path, table: str):
    column = written_once(TABLES[table])[0].name
    with stranger(tmp_path / "mine.db") as db:
        db.exec_driver_sql(f"ATTACH '{books}' AS theirs")
        for statement in (f"DELETE FROM theirs.{table}", f"UPDATE theirs.{table} SET {column} = {column}",
                          f"INSERT OR REPLACE INTO theirs.{table} SELECT * FROM theirs.{table}"):  # fmt: skip
            with pytest.raises(sa.exc.IntegrityError):
                db.exec_driver_sql(statement)


@pytest.mark.parametrize("table", [*WITH_RECORDS, "posting", "journal_entry", "log_leaf"])
def test_no_row_has_a_second_name(books: Path, table: str):
    with pytest.raises(sa.exc.OperationalError, match="no such column: rowid"):
        attempt(books, f"UPDATE OR REPLACE {table} SET rowid = 1")
