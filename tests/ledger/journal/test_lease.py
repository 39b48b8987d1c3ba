"""Turns: of two keepers on one database one works, and the other goes on where the first one died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from assay.chain.events import ResultFinalized
from assay.ledger.journal.database import Place
from assay.ledger.journal.lease import Lease, LeaseLost, begin_term
from assay.ledger.journal.store import BookStore
from assay.ledger.log.audit import audit
from assay.ledger.log.note import origin_of
from assay.protocol.errors import Unavailable
from tests.child_process import PYTHONPATH
from tests.ledger.a_database import is_sqlite, stranger
from tests.ledger.a_run import RUN
from tests.ledger.test_books import an_entry

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@contextmanager
def a_ledger_service(place: Place) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ledger.a_ledger_service", str(place)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    try:
        assert heard(process) == "up"
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def settle(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
    return heard(process)


def test_a_second_keeper_waits_and_settles_the_next_epoch_when_the_first_is_killed(place: Place):
    with a_ledger_service(place) as first:
        assert heard(first) == "turn 1"
        with a_ledger_service(place) as second:
            assert not Lease(place).try_take()
            assert settle(first) == "settled 1"

            first.send_signal(signal.SIGKILL)
            first.wait()

            assert heard(second) == "turn 2"
            assert settle(second) == "settled 2"
    store = BookStore(place, RUN)
    assert [one.epoch for one in store.events(ResultFinalized) if isinstance(one, ResultFinalized)] == [0, 1]
    with store.reading() as db:
        audit(db, origin_of(RUN), None, ())
    store.close()


def test_the_turn_is_one_holders_and_free_when_it_is_given_up(place: Place):
    first, second = Lease(place), Lease(place)
    assert first.try_take()
    assert [second.try_take() for _ in range(3)] == [False] * 3
    first.give_up()
    assert second.try_take()
    second.give_up()


def test_a_keeper_that_others_took_over_from_writes_nothing_more(place: Place):
    """As one that was stopped for a while, or whose lock the server forgot."""
    first, second = BookStore(place, RUN), BookStore(place, RUN)
    assert begin_term(first) == 1
    first.add_entries([an_entry(1, -1, key="a")])
    assert begin_term(second) == 2

    with pytest.raises(LeaseLost, match="term 2, ours was 1"):
        first.add_entries([an_entry(1, -1, key="b")])
    second.add_entries([an_entry(1, -1, key="c")])
    with first.reading() as db:  # to look is free
        keys = list(db.execute(sa.text("SELECT key FROM journal_entry ORDER BY id")).scalars())
    assert keys == ["a", "c"]
    first.close()
    second.close()


def test_who_is_no_keeper_may_write_between(place: Place):
    """Invoices are issued by a command, beside the keeper."""
    ledger_service, command = BookStore(place, RUN), BookStore(place, RUN)
    begin_term(ledger_service)
    command.add_entries([an_entry(1, -1, key="a")])
    ledger_service.add_entries([an_entry(1, -1, key="b")])
    ledger_service.close()
    command.close()


def test_a_server_that_cuts_the_holder_off_lets_the_next_one_in(place: Place):
    if is_sqlite(place):
        pytest.skip("a file's lock has no server")
    first, second = Lease(place), Lease(place)
    assert first.try_take() and not second.try_take()
    with stranger(place) as db:
        db.execute(sa.text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"))

    taken = False
    while not taken:
        with suppress(Unavailable):  # its own connection may have been among them
            taken = second.try_take()
    first.give_up()
    second.give_up()


def test_a_place_that_is_none_is_an_error_in_words(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable):
        Lease(tmp_path / "file" / "ledger.db").try_take()
    with pytest.raises(Unavailable, match="nowhere"):
        Lease("postgresql://me@/books?host=/nowhere/at/all").try_take()
