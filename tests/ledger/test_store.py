"""Store: what is written stays, is written once, and survives being killed between any two statements."""

from __future__ import annotations

import multiprocessing
import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.accounts import ESCROW, VAULT, budget, payable, stake
from ledger.books import BooksError, reversal_of
from ledger.events import ChainEvent, Claimed, RunOpened
from ledger.store import BookStore
from protocol.errors import ConfigError, Unavailable
from tests.ledger.a_run import BUDGET, RUN, Tale, a_settlement, wallet
from tests.ledger.test_books import OTHER_RUN, an_entry, tales

TABLES = {epoch: a_settlement(epoch) for epoch in range(2)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def store(path: Path) -> Iterator[BookStore]:
    books = open_books(path)
    yield books
    books.close()


def open_books(path: Path) -> BookStore:
    return BookStore(path, RUN, now_ms=lambda: 0)


def take(store: BookStore, events: list[ChainEvent], since: int = 0, head: int | None = None) -> Any:
    last = max((event.block_number for event in events), default=0) if head is None else head
    return store.take_blocks(events, since, last, TABLES)


def a_life() -> Tale:
    """Every kind of entry once."""
    tale = Tale()
    tale.opened()
    tale.opened(5, OTHER_RUN)
    tale.staked("node-0", 1_000)
    tale.slashed("node-0", 100)
    tale.collected(wallet("verifier-0"), 30)
    for table in TABLES.values():
        tale.settled(table)
    tale.refunded(BUDGET - sum(table.total for table in TABLES.values()))
    return tale


def content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(db.execute(f"SELECT * FROM {name}"), key=repr) for name in names}


# ---- written rows stay


def _forbidden() -> list[tuple[str, str]]:
    entry = "INSERT OR REPLACE INTO journal_entry SELECT * FROM journal_entry WHERE id = 1"
    posting = "INSERT OR REPLACE INTO posting SELECT entry, line, account, amount + 1 FROM posting"
    same_key = (
        "INSERT OR REPLACE INTO journal_entry (id, key, request_hash, kind, epoch, block_number, "
        "block_hash, lines, recorded_ms) SELECT 999, key, request_hash, kind, epoch, block_number, "
        "block_hash, lines, recorded_ms FROM journal_entry WHERE id = 1"
    )
    return [
        ("update an entry", "UPDATE journal_entry SET kind = 'x'"),
        ("update a posting", "UPDATE posting SET amount = amount * 2"),
        ("move a posting", "UPDATE posting SET account = 1"),
        ("delete an entry", "DELETE FROM journal_entry"),
        ("delete a posting", "DELETE FROM posting WHERE line = 0"),
        ("rename an account", "UPDATE account SET owner = 'me'"),
        ("replace an entry", entry),
        ("replace an entry by its key", same_key),
        ("replace a posting", posting),
        ("add a line to an entry", "INSERT INTO posting VALUES (1, 2, 1, 5)"),
        ("change an event", "UPDATE chain_event SET body = '{}'"),
        ("delete an event", "DELETE FROM chain_event"),
        ("invent a state of an event", "UPDATE chain_event SET state = 'gone'"),
    ]


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
@pytest.mark.parametrize(("_name", "statement"), _forbidden(), ids=[name for name, _ in _forbidden()])
def test_the_database_refuses_to_change_what_is_written(
    path: Path, _name: str, statement: str, recursive: str
):
    store = open_books(path)
    take(store, a_life().events)
    store.close()
    before = content(path)

    with closing(sqlite3.connect(path)) as db:  # anybody's connection, not ours
        db.execute(f"PRAGMA recursive_triggers = {recursive}")
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(statement)

    assert content(path) == before


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([(0, 5), (1, -3), (2, -1)], "does not sum to zero"),
        ([(0, 0)], "constraint failed"),
        ([(0, 5), (2, -5)], "lines of the entry are missing"),
        ([(0, 5), (1, -3), (2, -2), (3, 1)], "did not announce"),
        ([(0, "5 units")], "cannot store TEXT"),
        ([(0, 2.5)], "cannot store REAL"),
    ],
)
def test_the_database_refuses_an_entry_that_is_not_whole(path: Path, lines: list[Any], words: str):
    store = open_books(path)
    store.add_entries([an_entry(5, -5)])
    store.close()

    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO journal_entry VALUES (2, 'k2', x'00', 'test', -1, 1, x'00', NULL, 3, 0)")
        with pytest.raises(sqlite3.IntegrityError, match=words):
            db.executemany("INSERT INTO posting VALUES (2, ?, 1, ?)", lines)


def test_commits_are_on_disk_and_keys_are_checked(store: BookStore):
    with store.reading() as db:
        asked = ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers")
        told = {name: db.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in asked}

    assert told == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "recursive_triggers": 1}


def test_amounts_fill_sixty_four_bits(store: BookStore):
    store.add_entries([an_entry(2**63 - 1, 1 - 2**63)])

    assert store.balances() == {ESCROW: 2**63 - 1, budget(RUN): 1 - 2**63}


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

    with pytest.raises(Unavailable, match="append-only"):
        store.add_entries([replace(reversal_of(entry), key="again")])


def test_reading_the_same_blocks_again_changes_nothing(path: Path, store: BookStore):
    events = a_life().events
    assert len(take(store, events).seen) == len(events)
    before = content(path)

    assert take(store, events).seen == ()
    assert content(path) == before


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tales(), st.randoms(use_true_random=False))
def test_portions_and_overlaps_of_any_size_make_the_same_books(tmp_path_factory, events, rng):
    folder = tmp_path_factory.mktemp("books")
    whole, parts = open_books(folder / "whole.db"), open_books(folder / "parts.db")
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


def test_what_the_chain_took_back_is_reversed_and_what_came_instead_is_booked(path: Path, store: BookStore):
    old, new = a_life(), Tale("fork", height=3)
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
    kinds = [row[3] for row in content(path)["journal_entry"]]
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
    tale, table = Tale(), TABLES[0]
    tale.opened()
    tale.proposed(table)
    take(store, tale.events)
    fork = Tale("fork", height=1)
    fork.proposed(replace(table, table_hash=b"\7" * 32))
    fork.final(replace(table, table_hash=b"\7" * 32))

    take(store, [tale.events[0], *fork.events])

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


def test_events_that_cannot_be_all_that_happened_write_nothing(path: Path, store: BookStore):
    events = a_life().events
    take(store, events[:2])
    before = content(path)

    with pytest.raises(BooksError):
        take(store, [*events[:2], *events[3:]])

    assert content(path) == before


# ---- killed at any moment


class Killed(Exception):
    """Stands for the end of the process. What it had open is rolled back, as the next to open it does."""


def _history(store: BookStore) -> None:
    """Portions, a fork in the middle, and the way back: all that the store does."""
    events, fork = a_life().events, Tale("fork", height=5)
    fork.staked("node-2", 9)
    for head in (3, 9):
        take(store, events[:head], head=head)
    take(store, [*events[:5], *fork.events])
    take(store, events)


def test_killed_between_any_two_statements_it_ends_with_the_same_books(path: Path, tmp_path: Path):
    reference = open_books(path)
    _history(reference)
    reference.close()
    expected = content(path)

    for survived in count():
        broken = tmp_path / f"broken-{survived}.db"
        if not _dies_after(survived, broken):
            break
        again = open_books(broken)
        assert sum(again.balances().values()) == 0
        _history_from_anywhere(again)
        again.close()
        found = content(broken)
        assert _facts(found) == _facts(expected)
    assert survived > 40


def _dies_after(statements: int, path: Path) -> bool:
    """Runs the history until so many statements are through; whether it was cut short."""
    store, left = open_books(path), iter(range(statements))

    def die(*_: Any) -> None:
        if next(left, None) is None:
            raise Killed

    sa.event.listen(store.engine, "before_cursor_execute", die)
    sa.event.listen(store.engine, "commit", die)
    try:
        _history(store)
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


def _write_until_killed(path: str, ready: Any) -> None:
    store = open_books(Path(path))
    ready.set()
    for number in count():
        store.add_entries([an_entry(1, -1, key=f"{number}/{line}") for line in range(5)])


def test_kill_nine_in_the_middle_of_writing_leaves_whole_batches(path: Path):
    rng = random.Random(7)
    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        ready = context.Event()
        writer = context.Process(target=_write_until_killed, args=(str(path), ready))
        writer.start()
        assert ready.wait(60)
        writer.join(0.2 + rng.random() / 3)
        assert writer.pid is not None
        os.kill(writer.pid, 9)
        writer.join()

    store = open_books(path)
    with store.reading() as db:
        entries, lines = (
            db.execute(sa.text(f"SELECT count(*) FROM {name}")).scalar_one()
            for name in ("journal_entry", "posting")
        )
    assert entries > 0 and entries % 5 == 0 and lines == 2 * entries
    assert sum(store.balances().values()) == 0
    store.close()


def test_two_writers_book_each_event_once(path: Path):
    events = a_life().events
    first, second = open_books(path), open_books(path)
    take(first, events[:5])
    take(second, events)
    take(first, events)

    assert first.balances() == second.balances()
    assert len(content(path)["chain_event"]) == len(events)
    first.close()
    second.close()


def test_books_of_another_schema_are_refused(path: Path):
    open_books(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")

    with pytest.raises(ConfigError, match="schema 99"):
        open_books(path)
