"""Store: what is written stays, is written once, and survives being killed between any two statements."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.chain.events import CaseOpened, ChainEvent, Claimed, RunOpened
from assay.ledger.accounts import ESCROW, VAULT, budget, payable, stake
from assay.ledger.books import BooksError, reversal_of
from assay.ledger.journal.database import Place, open_engine, writing
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.tables import TABLES as SCHEMA
from assay.protocol.errors import ConfigError, Unavailable
from tests.ledger.a_database import Databases, attempt, content, is_sqlite, stranger
from tests.ledger.a_postgres import Server
from tests.ledger.a_run import BUDGET, RUN, EventStream, a_settlement, wallet
from tests.ledger.test_books import OTHER_RUN, a_case, an_entry, streams

pytestmark = pytest.mark.slow

TABLES = {epoch: a_settlement(epoch) for epoch in range(2)}


@pytest.fixture
def store(place: Place) -> Iterator[BookStore]:
    books = open_books(place)
    yield books
    books.close()


def open_books(place: Place) -> BookStore:
    return BookStore(place, RUN, now_ms=lambda: 0)


def take(store: BookStore, events: list[ChainEvent], since: int = 0, head: int | None = None) -> Any:
    last = max((event.block_number for event in events), default=0) if head is None else head
    return store.take_blocks(events, since, last, TABLES)


def a_life() -> EventStream:
    """Every kind of entry once."""
    stream = EventStream()
    stream.opened()
    stream.opened(5, OTHER_RUN)
    stream.staked("node-0", 1_000)
    stream.slashed("node-0", 100)
    stream.collected(wallet("verifier-0"), 30)
    for table in TABLES.values():
        stream.settled(table)
    stream.refunded(BUDGET - sum(table.total for table in TABLES.values()))
    return stream


# ---- written rows stay


FORBIDDEN = {
    "update an entry": "UPDATE journal_entry SET kind = 'x'",
    "update a posting": "UPDATE posting SET amount = amount * 2",
    "move a posting": "UPDATE posting SET account = 1",
    "delete an entry": "DELETE FROM journal_entry",
    "delete a posting": "DELETE FROM posting WHERE line = 0",
    "rename an account": "UPDATE account SET owner = 'me'",
    "add a line to an entry": "INSERT INTO posting VALUES (1, 2, 1, 5)",
    "change an event": "UPDATE chain_event SET body = '{}'",
    "delete an event": "DELETE FROM chain_event",
    "invent a state of an event": "UPDATE chain_event SET state = 'gone'",
}
_SAME_KEY = (
    "INTO journal_entry "
    "(id, key, request_hash, kind, epoch, block_number, block_hash, block_time, lines, recorded_ms) "
    "SELECT 999, key, request_hash, kind, epoch, block_number, block_hash, block_time, lines, recorded_ms "
    "FROM journal_entry WHERE id = 1"
)
_LOUDER = "INTO posting SELECT entry, line, account, amount + 1 FROM posting"
FORBIDDEN_ON_SQLITE = {
    "replace an entry": "INSERT OR REPLACE INTO journal_entry SELECT * FROM journal_entry WHERE id = 1",
    "replace an entry by its key": f"INSERT OR REPLACE {_SAME_KEY}",
    "replace a posting": f"INSERT OR REPLACE {_LOUDER}",
}
FORBIDDEN_ON_POSTGRESQL = {
    "replace an entry by its key": f"INSERT {_SAME_KEY} ON CONFLICT (key) DO UPDATE SET kind = 'x'",
    "replace a posting": f"INSERT {_LOUDER} ON CONFLICT (entry, line) DO UPDATE SET amount = excluded.amount",
    "empty the journal": "TRUNCATE journal_entry CASCADE",
    "empty a table": "TRUNCATE chain_event",
}


def _refused(place: Place, statement: str, *pragmas: str) -> None:
    store = open_books(place)
    take(store, a_life().events)
    store.close()
    before = content(place)

    with pytest.raises(sa.exc.IntegrityError):
        attempt(place, *(f"PRAGMA {pragma}" for pragma in pragmas), statement)

    assert content(place) == before


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_database_refuses_to_change_what_is_written(place: Place, name: str):
    _refused(place, FORBIDDEN[name])


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
@pytest.mark.parametrize("name", FORBIDDEN_ON_SQLITE)
def test_sqlite_refuses_to_replace_what_is_written(tmp_path: Path, name: str, recursive: str):
    _refused(tmp_path / "ledger.db", FORBIDDEN_ON_SQLITE[name], f"recursive_triggers = {recursive}")


@pytest.mark.parametrize("name", FORBIDDEN_ON_POSTGRESQL)
def test_postgresql_refuses_to_replace_what_is_written(postgres: Server, name: str):
    _refused(postgres.new(), FORBIDDEN_ON_POSTGRESQL[name])


ENTRY_OF_THREE = (
    "INSERT INTO journal_entry VALUES (2, 'k2', x'00', 'test', -1, 1, x'00', 1, NULL, x'00', 3, 0)"
)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([(0, 5), (1, -3), (2, -1)], "does not sum to zero"),
        ([(0, 0)], "constraint"),
        ([(0, 5), (2, -5)], "lines of the entry are missing"),
        ([(0, 5), (1, -3), (2, -2), (3, 1)], "did not announce"),
    ],
)
def test_the_database_refuses_an_entry_that_is_not_whole(place: Place, lines: list[Any], words: str):
    store = open_books(place)
    store.add_entries([an_entry(5, -5)])
    store.close()

    with pytest.raises(sa.exc.IntegrityError, match=words):
        attempt(
            place,
            *(f"INSERT INTO account VALUES ({n}, 'a{n}', 'budget', '', 'me', {n}, 'aUSD')" for n in (3, 4)),
            ENTRY_OF_THREE,
            *(f"INSERT INTO posting VALUES (2, {line}, {line + 1}, {amount})" for line, amount in lines),
        )


def test_the_database_refuses_two_postings_of_one_account_in_one_entry(place: Place):
    store = open_books(place)
    store.add_entries([an_entry(5, -5)])
    store.close()
    postings = [f"INSERT INTO posting VALUES (2, {rest})" for rest in ("0, 1, 5", "1, 2, -3", "2, 2, -2")]

    with pytest.raises(sa.exc.IntegrityError, match="two postings of one account"):
        attempt(place, ENTRY_OF_THREE, *postings)


def test_an_entry_balances_in_each_asset_alone_in_the_database_too(place: Place):
    store = open_books(place)
    other = replace(budget(RUN), asset="EUR", epoch=7)
    store.add_entries([an_entry(5, -5)])
    store.close()

    opened = f"INSERT INTO account VALUES (9, '{other.code}', 'budget', '', 'me', 7, 'EUR')"
    postings = [f"INSERT INTO posting VALUES (2, {rest})" for rest in ("0, 1, 5", "1, 9, -3", "2, 9, -2")]

    with pytest.raises(sa.exc.IntegrityError, match="does not sum to zero"):
        attempt(place, opened, ENTRY_OF_THREE, *postings)


def test_an_entry_without_postings_is_refused_at_the_commit(postgres: Server):
    """On PostgreSQL alone: SQLite cannot ask at the commit, and the audit finds it there."""
    place = postgres.new()
    open_books(place).close()

    with pytest.raises(sa.exc.IntegrityError, match="missing"):
        attempt(place, ENTRY_OF_THREE)


@pytest.mark.parametrize("amount", ["'5 units'", "2.5"])
def test_sqlite_stores_nothing_but_integers_as_amounts(tmp_path: Path, amount: str):
    place = tmp_path / "ledger.db"
    store = open_books(place)
    store.add_entries([an_entry(5, -5)])
    store.close()

    with pytest.raises(sa.exc.IntegrityError, match="cannot store"):
        attempt(place, ENTRY_OF_THREE, f"INSERT INTO posting VALUES (2, 0, 1, {amount})")


def test_commits_are_on_disk_and_keys_are_checked(tmp_path: Path):
    store = open_books(tmp_path / "ledger.db")
    with store.reading() as db:
        asked = ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers")
        told = {name: db.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in asked}

    assert told == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "recursive_triggers": 1}
    store.close()


def test_commits_are_on_disk_whatever_the_servers_default_is(postgres: Server):
    place = postgres.new()
    with stranger(place) as db:
        name = db.exec_driver_sql("SELECT current_database()").scalar_one()
        db.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    store = open_books(place)

    with store.reading() as db:
        assert db.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
    store.close()


# ---- one writer


def test_a_writer_that_does_not_get_its_turn_is_told_so(place: Place):
    first, second = open_engine(place), open_engine(place, busy_s=0.1)
    with writing(first), pytest.raises(Unavailable, match="another writer held the lock"), writing(second):
        pass
    with writing(second):  # and gets it when the other is through
        pass
    first.dispose()
    second.dispose()


def test_who_only_reads_waits_for_no_writer(place: Place):
    store, reader = open_books(place), open_books(place)
    with writing(store.engine):
        assert reader.balances() == {}
    store.close()
    reader.close()


def test_no_number_of_a_case_is_more_than_a_column_holds(store: BookStore):
    case = a_case(2**64 - 1)

    assert take(store, [case]).seen == (case,)
    assert store.events(CaseOpened) == [case]


def test_a_reader_sees_one_moment(place: Place):
    store, reader = open_books(place), open_books(place)
    with reader.reading() as db:
        before = db.execute(sa.text("SELECT count(*) FROM posting")).scalar_one()
        store.add_entries([an_entry(5, -5)])
        assert db.execute(sa.text("SELECT count(*) FROM posting")).scalar_one() == before == 0
    assert reader.balances()[ESCROW] == 5
    store.close()
    reader.close()


def test_amounts_fill_sixty_four_bits(store: BookStore):
    store.add_entries([an_entry(2**63 - 1, 1 - 2**63)])

    assert store.balances() == {ESCROW: 2**63 - 1, budget(RUN): 1 - 2**63}


@pytest.mark.parametrize("name", ["rowid", "oid", "_rowid_"])
def test_no_row_of_sqlite_has_a_second_name_by_which_it_could_be_replaced(databases, name):
    place = databases.new()
    if not is_sqlite(place):
        pytest.skip("rows have no other name than their key on PostgreSQL")
    store = open_books(place)
    take(store, a_life().events)
    before = content(place)

    for table in SCHEMA:
        for statement in (
            f"UPDATE OR REPLACE {table} SET {name} = (SELECT max({name}) FROM {table})",
            f"INSERT OR REPLACE INTO {table} ({name}) SELECT {name} FROM {table}",
            f"DELETE FROM {table} WHERE {name} > 0",
        ):
            with pytest.raises(sa.exc.OperationalError, match=f"no (such )?column|no column named {name}"):
                attempt(place, statement)
    assert content(place) == before


# ---- once


def test_the_same_request_gives_the_first_result(store: BookStore):
    first = store.add_entries([an_entry(5, -5), an_entry(6, -6, key="other")])

    assert store.add_entries([an_entry(6, -6, key="other"), an_entry(5, -5)]) == [first[1], first[0]]
    assert store.balances() == {ESCROW: 11, budget(RUN): -11}


def test_the_same_key_for_something_else_is_an_error_and_writes_nothing(store: BookStore):
    store.add_entries([an_entry(5, -5)])

    with pytest.raises(BooksError, match="other content"):
        store.add_entries([an_entry(1, -1, key="new"), an_entry(6, -6)])

    assert store.balances()[ESCROW] == 5


def test_a_repetition_within_one_batch_is_one_entry(store: BookStore):
    assert store.add_entries([an_entry(5, -5), an_entry(5, -5)]) == [1, 1]
    assert store.balances()[ESCROW] == 5


def test_an_entry_is_reversed_once(store: BookStore):
    entry = an_entry(5, -5)
    store.add_entries([entry])
    store.add_entries([reversal_of(entry)])
    assert store.balances() == {}

    with pytest.raises(BooksError, match="k was reversed before"):
        store.add_entries([replace(reversal_of(entry), key="again")])


def test_an_entry_is_reversed_once_in_one_batch_and_in_the_database_too(place: Place, store: BookStore):
    entry = an_entry(5, -5)
    store.add_entries([entry, an_entry(5, -5, key="more")])
    undone = reversal_of(entry)

    with pytest.raises(BooksError, match="k was reversed before"):
        store.add_entries([undone, replace(undone, key="again")])
    store.add_entries([undone])
    with pytest.raises(sa.exc.IntegrityError, match=r"append-only|unique"):
        attempt(
            place, "INSERT INTO journal_entry VALUES (4, 'k4', x'00', 'test', -1, 1, x'00', 1, 1, x'', 1, 0)"
        )


def test_what_is_not_on_record_cannot_be_reversed(store: BookStore):
    with pytest.raises(BooksError, match="entry k is to be reversed and is not in the journal"):
        store.add_entries([reversal_of(an_entry(5, -5))])


def test_reading_the_same_blocks_again_changes_nothing(place: Place, store: BookStore):
    events = a_life().events
    assert len(take(store, events).seen) == len(events)
    before = content(place)

    assert take(store, events).seen == ()
    assert content(place) == before


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(streams(), st.randoms(use_true_random=False))
def test_portions_and_overlaps_of_any_size_make_the_same_books(databases, events, rng):
    whole, parts = open_books(databases.new()), open_books(databases.new())
    take(whole, events)
    head = 0
    while head < len(events):
        head = min(len(events), head + rng.randint(1, 4))
        since = max(0, min(parts.next_block, head) - rng.randint(0, 5))
        seen = [event for event in events if since <= event.block_number <= head]
        take(parts, seen, since, head)

    assert whole.balances() == parts.balances()
    assert len(whole.events(RunOpened)) == len(parts.events(RunOpened))
    whole.close()
    parts.close()


def test_a_gap_in_the_blocks_is_refused(store: BookStore):
    take(store, a_life().events[:2])

    with pytest.raises(ValueError, match="never read"):
        store.take_blocks([], store.next_block + 1, 100, TABLES)


# ---- a chain that goes back


def test_what_the_chain_took_back_is_reversed_and_what_came_instead_is_booked(place: Place, store: BookStore):
    old, new = a_life(), EventStream("fork", height=3)
    new.staked("node-1", 7)
    take(store, old.events)

    taken = take(store, [*old.events[:3], *new.events])

    assert (len(taken.seen), taken.orphaned) == (1, len(old.events) - 3)
    assert store.balances() == {
        ESCROW: BUDGET + 5,
        VAULT: 1_007,
        budget(RUN): -BUDGET,
        budget(OTHER_RUN): -5,
        stake(0, wallet("node-0")): -1_000,
        stake(0, wallet("node-1")): -7,
    }
    kinds = [row[3] for row in content(place)["journal_entry"]]
    assert len([kind for kind in kinds if kind == "Refunded"]) == 2  # the entry and its reversal


def test_a_chain_that_is_shorter_now_loses_its_end(store: BookStore):
    events = a_life().events
    take(store, events)

    assert take(store, events[:1], head=1).orphaned == len(events) - 1
    assert (store.balances(), store.next_block) == ({ESCROW: BUDGET, budget(RUN): -BUDGET}, 2)


def test_an_event_that_returns_is_booked_again(store: BookStore):
    events = a_life().events
    take(store, events)
    before = store.balances()
    for _ in range(3):
        take(store, events[:4], head=50)
        take(store, events)

    assert store.balances() == before
    assert len(store.events(Claimed)) == sum(len(table.rows) for table in TABLES.values())


def test_a_result_that_was_taken_back_counts_no_more(store: BookStore):
    stream, table = EventStream(), TABLES[0]
    stream.opened()
    stream.proposed(table)
    take(store, stream.events)
    fork = EventStream("fork", height=1)
    fork.proposed(replace(table, table_hash=b"\7" * 32))
    fork.final(replace(table, table_hash=b"\7" * 32))

    take(store, [stream.events[0], *fork.events])

    assert not [account for account in store.balances() if account.kind.value == "payable"]


def test_blocks_that_need_an_unknown_table_are_read_later(store: BookStore):
    events = a_life().events
    finals = [at for at, event in enumerate(events) if type(event).__name__ == "ResultFinalized"]

    first = store.take_blocks(events, 0, 100, {0: TABLES[0]})
    assert len(first.seen) == finals[1]
    assert store.next_block == events[finals[1]].block_number

    since = store.next_block
    store.take_blocks([e for e in events if e.block_number >= since], since, 100, TABLES)
    assert payable("operator", wallet("node-0"), 0) not in store.balances()
    assert store.next_block == 101


def test_events_that_cannot_be_all_that_happened_write_nothing(place: Place, store: BookStore):
    events = a_life().events
    take(store, events[:2])
    before = content(place)

    with pytest.raises(BooksError):
        take(store, [*events[:2], *events[3:]])

    assert content(place) == before


# ---- killed at any moment


class Killed(Exception):
    """Stands for the end of the process. What it had open is rolled back, as the next to open it does."""


def _run_state(store: BookStore) -> None:
    """Portions, a fork in the middle, and the way back: all that the store does."""
    events, fork = a_life().events, EventStream("fork", height=5)
    fork.staked("node-2", 9)
    for head in (3, 9):
        take(store, events[:head], head=head)
    take(store, [*events[:5], *fork.events])
    take(store, events)


def test_killed_between_any_two_statements_it_ends_with_the_same_books(databases: Databases, place: Place):
    reference = open_books(place)
    _run_state(reference)
    reference.close()
    expected = content(place)

    for survived in count():
        broken = databases.new()
        if not _dies_after(survived, broken):
            break
        again = open_books(broken)
        assert sum(again.balances().values()) == 0
        _history_from_anywhere(again)
        again.close()
        found = content(broken)
        assert _facts(found) == _facts(expected)
    assert survived > 40


def _dies_after(statements: int, place: Place) -> bool:
    """Runs the history until so many writes and commits are through; whether it was cut short.

    Reads do not count: who dies after one leaves what who dies before it leaves.
    """
    store, left = open_books(place), iter(range(statements))

    def die(*told: Any) -> None:
        is_read = len(told) > 2 and str(told[2]).startswith("SELECT")
        if not is_read and next(left, None) is None:
            raise Killed

    sa.event.listen(store.engine, "before_cursor_execute", die)
    sa.event.listen(store.engine, "commit", die)
    try:
        _run_state(store)
    except Killed:
        return True
    finally:
        store.close()
    return False


def _history_from_anywhere(store: BookStore) -> None:
    """A restarted reader knows nothing of forks it missed: it reads what is there now."""
    take(store, a_life().events)


def _facts(found: dict[str, list[tuple[Any, ...]]]) -> Any:
    """What must be the same whenever the reader was away: standing events, and the sum of each account."""
    accounts = {row[0]: row[1] for row in found["account"]}
    sums: dict[str, int] = {}
    for _entry, _line, account, amount in found["posting"]:
        sums[accounts[account]] = sums.get(accounts[account], 0) + amount
    seen = [row[:5] for row in found["chain_event"] if row[5] == "seen"]
    return {code: total for code, total in sums.items() if total}, seen, found["cursor"]


def _write_until_killed(place: Place, ready: Any) -> None:
    store = open_books(place)
    ready.set()
    for number in count():
        store.add_entries([an_entry(1, -1, key=f"{number}/{line}") for line in range(5)])


def test_kill_nine_in_the_middle_of_writing_leaves_whole_batches(place: Place):
    rng = random.Random(7)
    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        ready = context.Event()
        writer = context.Process(target=_write_until_killed, args=(place, ready))
        writer.start()
        assert ready.wait(60)
        writer.join(0.2 + rng.random() / 3)
        assert writer.pid is not None
        os.kill(writer.pid, 9)
        writer.join()

    store = open_books(place)
    with store.reading() as db:
        entries, lines = (
            db.execute(sa.text(f"SELECT count(*) FROM {name}")).scalar_one()
            for name in ("journal_entry", "posting")
        )
    assert entries > 0 and entries % 5 == 0 and lines == 2 * entries
    assert sum(store.balances().values()) == 0
    store.close()


def test_two_writers_book_each_event_once(place: Place):
    events = a_life().events
    first, second = open_books(place), open_books(place)
    take(first, events[:5])
    take(second, events)
    take(first, events)

    assert first.balances() == second.balances()
    assert len(content(place)["chain_event"]) == len(events)
    first.close()
    second.close()


def test_books_of_another_schema_are_refused(place: Place):
    open_books(place).close()
    with stranger(place) as db:
        if is_sqlite(place):
            db.exec_driver_sql("PRAGMA user_version = 99")
        else:
            db.exec_driver_sql("UPDATE schema_version SET version_num = '0099'")

    with pytest.raises(ConfigError, match="schema 99"):
        open_books(place)


@pytest.mark.parametrize("place", ["mysql://me@here/books", "books at home", "sqlite:///ledger.db"])
def test_what_is_no_place_for_books_is_refused_with_words(place: str):
    with pytest.raises(ConfigError, match=r"postgresql|PostgreSQL"):
        open_books(place)


def test_a_server_that_is_not_there_is_unavailable_and_its_password_is_not_told(tmp_path: Path):
    pytest.importorskip("psycopg")
    with pytest.raises(Unavailable) as refused:
        open_books(f"postgresql://me:hunter2@/books?host={tmp_path}")

    assert "hunter2" not in str(refused.value)
