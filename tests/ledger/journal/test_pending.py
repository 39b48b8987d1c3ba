"""Pending: what waits is promised once, resolved once, and nobody can spend it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from assay.ledger.accounts import ESCROW, budget, reserved
from assay.ledger.books import BooksError, Entry, reversal_of
from assay.ledger.journal.database import Place, writing
from assay.ledger.journal.pending import PendingState, post_pending
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.writer import AvailableBalance
from assay.ledger.log.audit import audit
from assay.ledger.log.note import origin_of
from tests.ledger.a_database import attempt, content, edit
from tests.ledger.a_run import RUN
from tests.ledger.test_books import OTHER_RUN, an_entry

pytestmark = pytest.mark.slow

FREE, SET_ASIDE = budget(RUN), reserved(RUN, 0)


class Clock:
    """Unix time as a test says."""

    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place: Place, clock: Clock) -> Iterator[BookStore]:
    """A buyer has paid in 100."""
    books = BookStore(place, RUN, now_ms=clock)
    books.add_entries([an_entry(100, -100, key="funded")])
    yield books
    with books.reading() as db:
        audit(db, origin_of(RUN), None, ())
    books.close()


def a_move(amount: int, key: str = "move") -> Entry:
    """From the buyer's free money to what is set aside."""
    lines = an_entry(amount, -amount).postings
    return Entry(
        key=key,
        kind="test",
        block_number=1,
        block_time=1,
        block_hash=bytes(32),
        postings=(
            type(lines[0])(account=FREE, amount=amount),
            type(lines[0])(account=SET_ASIDE, amount=-amount),
        ),
    )


def state_of(store: BookStore, key: str = "move") -> PendingState:
    found = store.pending(key)
    assert found is not None
    return found.state


# ---- promised


def test_what_waits_is_pending_on_both_accounts_and_has_moved_on_neither(store: BookStore):
    assert store.hold(a_move(30), expires_ms=10) is PendingState.PENDING

    assert store.available_balance(FREE) == AvailableBalance(posted=-100, debits_pending=30)
    assert store.available_balance(SET_ASIDE) == AvailableBalance(credits_pending=30)
    assert store.available_balance(FREE).available(FREE.kind.side) == 70
    assert store.available_balance(SET_ASIDE).available(SET_ASIDE.kind.side) == 0
    assert store.balances() == {ESCROW: 100, FREE: -100}
    found = store.pending("move")
    assert found is not None and (found.entry, found.expires_ms) == (a_move(30), 10)


def test_what_is_promised_away_can_be_neither_spent_nor_promised_again(store: BookStore):
    store.hold(a_move(30), expires_ms=10)

    with pytest.raises(BooksError, match="would fall to -1"):
        store.add_entries([a_move(71, key="spent")])
    with pytest.raises(BooksError, match="would fall to -1"):
        store.hold(a_move(71, key="promised"), expires_ms=10)
    store.add_entries([a_move(70, key="rest")])


def test_what_is_only_promised_to_an_account_cannot_be_spent_there(store: BookStore):
    store.hold(a_move(30), expires_ms=10)
    back = reversal_of(a_move(1))

    with pytest.raises(BooksError, match="would fall to -1"):
        store.hold(
            Entry(
                key="k",
                kind="test",
                block_number=1,
                block_hash=bytes(32),
                block_time=1,
                postings=back.postings,
            ),
            10,
        )


# ---- resolved


def test_posting_writes_that_entry_and_frees_the_promise(store: BookStore):
    store.hold(a_move(30), expires_ms=10)

    assert store.post_pending("move") == 2

    assert state_of(store) is PendingState.POSTED
    assert store.available_balance(FREE) == AvailableBalance(posted=-70)
    assert store.available_balance(SET_ASIDE) == AvailableBalance(posted=-30)
    assert store.balances() == {ESCROW: 100, FREE: -70, SET_ASIDE: -30}


def test_all_there_is_can_be_promised_and_posted(store: BookStore):
    store.hold(a_move(100), expires_ms=10)
    store.post_pending("move")

    assert store.balances() == {ESCROW: 100, SET_ASIDE: -100}


def test_voiding_frees_the_promise_and_writes_nothing(store: BookStore):
    store.hold(a_move(30), expires_ms=10)

    store.void("move")

    assert state_of(store) is PendingState.VOIDED
    assert (store.available_balance(FREE), store.available_balance(SET_ASIDE)) == (
        AvailableBalance(posted=-100),
        AvailableBalance(),
    )


def test_time_frees_the_promise_with_whatever_is_written_next(store: BookStore, clock: Clock):
    store.hold(a_move(30), expires_ms=10)
    clock.now_ms = 9
    with pytest.raises(BooksError):
        store.add_entries([a_move(100, key="all")])
    clock.now_ms = 10

    store.add_entries([a_move(100, key="all")])

    assert state_of(store) is PendingState.EXPIRED
    assert store.available_balance(FREE) == AvailableBalance()


def test_a_moment_before_its_time_it_is_posted_and_at_its_time_no_more(store: BookStore, clock: Clock):
    store.hold(a_move(30), expires_ms=10)
    store.hold(a_move(30, key="late"), expires_ms=10)
    clock.now_ms = 9
    store.post_pending("move")
    clock.now_ms = 10

    with pytest.raises(BooksError, match="late is expired"):
        store.post_pending("late")


def test_what_nobody_expired_yet_cannot_be_posted_after_its_time_either(store: BookStore):
    store.hold(a_move(30), expires_ms=10)

    with writing(store.engine) as db, pytest.raises(BooksError, match="move expired at 10 ms, it is 10 ms"):
        post_pending(db, "move", now_ms=10)


RESOLVE: dict[PendingState, Callable[[BookStore, Clock], Any]] = {
    PendingState.POSTED: lambda store, _: store.post_pending("move"),
    PendingState.VOIDED: lambda store, _: store.void("move"),
}


def _expire(store: BookStore, clock: Clock) -> None:
    clock.now_ms = 10
    store.add_entries([])


@pytest.mark.parametrize("second", RESOLVE)
@pytest.mark.parametrize("first", [PendingState.POSTED, PendingState.VOIDED, PendingState.EXPIRED])
def test_a_promise_is_resolved_once(
    store: BookStore, clock: Clock, first: PendingState, second: PendingState
):
    store.hold(a_move(30), expires_ms=10)
    (RESOLVE | {PendingState.EXPIRED: _expire})[first](store, clock)
    before = (store.balances(), store.available_balance(FREE))

    if first is second:  # a repetition
        RESOLVE[second](store, clock)
    else:
        with pytest.raises(BooksError, match=f"is {first.value}, so it cannot be"):
            RESOLVE[second](store, clock)

    assert (state_of(store), store.balances(), store.available_balance(FREE)) == (first, *before)


@pytest.mark.parametrize("state", ["posted", "voided", "expired"])
def test_the_database_too_resolves_it_once(place: Place, store: BookStore, state: str):
    store.hold(a_move(30), expires_ms=10)
    store.void("move")
    for change in (f"state = '{state}'", "state = 'pending', resolved_ms = NULL", "resolved_ms = 7"):
        with pytest.raises(sa.exc.IntegrityError, match="resolved once"):
            attempt(place, f"UPDATE pending_entry SET {change}")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE pending_entry SET expires_ms = 99",
        "UPDATE pending_posting SET amount = amount * 2",
        "DELETE FROM pending_entry",
        "DELETE FROM pending_posting",
        "INSERT INTO pending_posting VALUES (1, 2, 1, 5)",
        "INSERT INTO pending_entry VALUES (2, 'k', x'00', 'test', 0, 1, x'00', 1, 2, 0, 9, 'posted', 1)",
        "INSERT INTO pending_entry VALUES (2, 'k', x'00', 'test', 0, 1, x'00', 1, 2, 0, 9, 'lost', 1)",
    ],
)
def test_the_database_refuses_to_change_what_was_promised(place: Place, store: BookStore, statement: str):
    store.hold(a_move(30), expires_ms=10)
    before = content(place)

    with pytest.raises(sa.exc.IntegrityError):
        attempt(place, statement)

    assert content(place) == before


# ---- asked again


def test_the_same_request_again_changes_nothing_in_any_state(place: Place, store: BookStore):
    store.hold(a_move(30), expires_ms=10)
    before = content(place)
    assert store.hold(a_move(30), expires_ms=10) is PendingState.PENDING
    assert content(place) == before

    assert store.post_pending("move") == store.post_pending("move") == 2
    assert store.hold(a_move(30), expires_ms=10) is PendingState.POSTED
    assert store.balances()[SET_ASIDE] == -30


def test_the_same_key_for_another_request_is_refused_in_words(store: BookStore):
    store.hold(a_move(30), expires_ms=10)

    with pytest.raises(BooksError, match="move is on record with another request"):
        store.hold(a_move(31), expires_ms=10)
    with pytest.raises(BooksError, match="move is on record with another request"):
        store.hold(a_move(30), expires_ms=11)


def test_a_key_waits_or_is_in_the_journal(store: BookStore):
    with pytest.raises(BooksError, match="funded is in the journal"):
        store.hold(an_entry(100, -100, key="funded"), expires_ms=10)
    store.hold(a_move(30), expires_ms=10)
    with pytest.raises(BooksError, match="move is on record as pending"):
        store.add_entries([a_move(30)])
    store.void("move")
    with pytest.raises(BooksError, match="move is on record as voided"):
        store.add_entries([a_move(30)])


def test_what_makes_no_sense_is_refused_in_words(store: BookStore, clock: Clock):
    clock.now_ms = 10
    with pytest.raises(BooksError, match="would expire at 10 ms, it is 10 ms"):
        store.hold(a_move(30), expires_ms=10)
    with pytest.raises(BooksError, match="no pending entry move"):
        store.post_pending("move")
    with pytest.raises(BooksError, match="no pending entry move"):
        store.void("move")
    with pytest.raises(ValueError, match="cannot be pending"):
        store.hold(reversal_of(a_move(30)), expires_ms=20)


def test_what_was_posted_is_corrected_by_reversal_alone(store: BookStore):
    store.hold(a_move(30), expires_ms=10)
    store.post_pending("move")

    store.add_entries([reversal_of(a_move(30))])

    assert store.balances() == {ESCROW: 100, FREE: -100}
    assert store.post_pending("move") == 2  # it stays posted; the journal has it and its reversal


# ---- nobody is overdrawn, whoever writes


@pytest.mark.parametrize(("amount", "is_there"), [(70, True), (71, False)])
def test_the_database_itself_lets_nobody_be_overdrawn(place: Place, amount: int, is_there: bool):
    books = BookStore(place, RUN, now_ms=lambda: 0)
    books.add_entries([an_entry(100, -100, key="funded")])
    books.add_entries([an_entry(5, -5, key="another's", other=budget(OTHER_RUN))])
    books.hold(a_move(30), expires_ms=10)
    books.close()
    numbers = {row[1]: row[0] for row in content(place)["account"]}
    statements = (
        "INSERT INTO journal_entry VALUES (3, 'k', x'00', 'test', -1, 1, x'00', 1, NULL, 2, 0)",
        f"INSERT INTO posting VALUES (3, 0, {numbers[FREE.code]}, {amount})",
        f"INSERT INTO posting VALUES (3, 1, {numbers[budget(OTHER_RUN).code]}, {-amount})",
    )

    if is_there:
        attempt(place, *statements)
    else:
        with pytest.raises(sa.exc.IntegrityError, match="no_overdraft"):
            attempt(place, *statements)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE balance SET posted = posted - 1 WHERE account = 2", "balance of budget"),
        ("UPDATE balance SET debits_pending = 0 WHERE account = 2", "balance of budget"),
        ("UPDATE balance SET side = -side, posted = 0 WHERE account = 1", "balance of asset:escrow"),
        ("DELETE FROM balance WHERE account = 1", "balance of asset:escrow"),
        ("UPDATE pending_posting SET amount = amount * 2", "balance of budget"),
        (
            "UPDATE pending_entry SET state = 'voided', resolved_ms = 1 WHERE key = 'move'",
            "balance of budget",
        ),
        (
            "UPDATE pending_entry SET state = 'expired' WHERE key = 'done'",
            "done: expired, and entry 2 of the",
        ),
        ("UPDATE pending_entry SET state = 'posted' WHERE key = 'gone'", "gone: posted, and not in the"),
    ],
)
def test_the_audit_sees_an_altered_balance_or_promise(place: Place, statement: str, words: str):
    books = BookStore(place, RUN, now_ms=lambda: 0)
    books.add_entries([an_entry(100, -100, key="funded")])
    for key in ("done", "gone", "move"):
        books.hold(a_move(10, key=key), expires_ms=10)
    books.post_pending("done")
    books.void("gone")
    books.close()
    edit(place, statement)
    books = BookStore(place, RUN, now_ms=lambda: 0)

    with books.reading() as db, pytest.raises(LedgerIntegrityError, match=words):
        audit(db, origin_of(RUN), None, ())
    books.close()
