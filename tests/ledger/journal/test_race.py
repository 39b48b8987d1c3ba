"""Races: eight writers at one escrow account together spend what is in it, and never a unit more."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError

import pytest
import sqlalchemy as sa

from assay.ledger.accounts import budget, reserved
from assay.ledger.books import BooksError, Entry, Posting
from assay.ledger.journal.database import Place
from assay.ledger.journal.store import BookStore
from assay.ledger.log.audit import audit
from assay.ledger.log.note import origin_of
from assay.protocol.errors import AssayError
from tests.ledger.a_database import stranger
from tests.ledger.a_postgres import Server
from tests.ledger.a_run import RUN
from tests.ledger.test_books import an_entry

pytestmark = pytest.mark.slow

WRITERS, TRIES, ESCROWED = 8, 10, 40
FREE = budget(RUN)
WAIT_S = 60


def a_spend(writer: int, attempt: int) -> Entry:
    """One unit, by a key of its own."""
    return Entry(
        key=f"{writer}/{attempt}",
        kind="test",
        block_number=1,
        block_time=1,
        block_hash=bytes(32),
        postings=(
            Posting(account=FREE, amount=1),
            Posting(account=reserved(RUN, writer), amount=-1),
        ),
    )


def funded(place: Place) -> None:
    store = BookStore(place, RUN, now_ms=lambda: 0)
    store.add_entries([an_entry(ESCROWED, -ESCROWED)])
    store.close()


def spent(place: Place) -> int:
    """What the journal says; the audit has looked at it first."""
    store = BookStore(place, RUN, now_ms=lambda: 0)
    with store.reading() as db:
        audit(db, origin_of(RUN), None, ())
    balances = store.balances()
    store.close()
    assert sum(balances.values()) == 0
    return -sum(amount for account, amount in balances.items() if account.kind == reserved(RUN, 0).kind)


def granted_to(place: Place, writer: int, wait: Callable[[], object]) -> int:
    """How many of its attempts one writer, with a connection of its own, was granted."""
    store, granted = BookStore(place, RUN, now_ms=lambda: 0), 0
    wait()
    for attempt in range(TRIES):
        try:
            store.add_entries([a_spend(writer, attempt)])
        except BooksError:
            continue
        granted += 1
    store.close()
    return granted


def _in_a_process(place: Place, writer: int, barrier: Barrier, told: multiprocessing.Queue[int]) -> None:
    told.put(granted_to(place, writer, barrier.wait))


def test_eight_threads_never_overspend(place: Place):
    funded(place)
    barrier = Barrier(WRITERS)
    with ThreadPoolExecutor(WRITERS) as pool:
        granted = list(pool.map(lambda writer: granted_to(place, writer, barrier.wait), range(WRITERS)))

    assert sum(granted) == ESCROWED == spent(place)


def test_eight_processes_never_overspend(place: Place):
    funded(place)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # else each of them imports everything again
    barrier, told = context.Barrier(WRITERS), context.Queue()
    writers = [context.Process(target=_in_a_process, args=(place, n, barrier, told)) for n in range(WRITERS)]
    for one in writers:
        one.start()
    granted = [told.get(timeout=WAIT_S) for _ in writers]
    for one in writers:
        one.join(WAIT_S)

    assert sum(granted) == ESCROWED == spent(place)


# ---- what the tests above would see without lock and conditional update


def _granted(place: Place, *, takes_the_lock: bool) -> int:
    """Eight read a purse with one unit in it, meet if they can, and who saw a unit takes one."""
    lock = sa.text("SELECT pg_advisory_xact_lock(1)")
    with stranger(place) as db:
        db.execute(sa.text("CREATE TABLE purse (left_over bigint)"))
        db.execute(sa.text("INSERT INTO purse VALUES (1)"))
    all_have_read = Barrier(WRITERS)

    def granted(_writer: int) -> int:
        with stranger(place) as db:  # READ COMMITTED, as PostgreSQL has it if nobody says otherwise
            if takes_the_lock:
                db.execute(lock)
            is_there = db.execute(sa.text("SELECT left_over FROM purse")).scalar_one() > 0
            with suppress(BrokenBarrierError):  # who waits for the lock never comes to read
                all_have_read.wait(1 if takes_the_lock else WAIT_S)
            if is_there:
                db.execute(sa.text("UPDATE purse SET left_over = left_over - 1"))
        return int(is_there)

    with ThreadPoolExecutor(WRITERS) as pool:
        return sum(pool.map(granted, range(WRITERS)))


def test_reading_and_then_writing_without_the_lock_is_seen_to_overspend(postgres: Server):
    """The race is real: PostgreSQL's default lets it through, and raises nothing."""
    assert _granted(postgres.new(), takes_the_lock=False) == WRITERS


def test_the_same_race_with_the_lock_spends_what_there_is(postgres: Server):
    assert _granted(postgres.new(), takes_the_lock=True) == 1


def test_our_own_writer_without_its_lock_is_stopped_by_the_database(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
):
    """The second line of defence: the CHECK on the balance, when the lock were lost."""
    monkeypatch.setattr("assay.ledger.journal.postgres._LOCK", sa.text("SELECT 1"))
    place = postgres.new()
    funded(place)
    barrier = Barrier(WRITERS)

    def granted(writer: int) -> int:
        try:
            return granted_to(place, writer, barrier.wait)
        except (
            AssayError,
            AssertionError,
            ValueError,
        ):  # two took one number: refused as well, nothing spent
            return 0

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(granted, range(WRITERS)))

    assert 0 < spent(place) <= ESCROWED
