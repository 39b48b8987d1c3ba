"""Lookup: an answer reads only what it rests on, and never shows what was altered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from nacl.signing import SigningKey
from sqlalchemy.engine import Connection

from assay.ledger.accounts import ESCROW
from assay.ledger.books import request_hash
from assay.ledger.journal.database import Place, open_engine, open_engine_to_read, reading
from assay.ledger.journal.leaf import leaf_of
from assay.ledger.journal.log_store import KEPT_LEAVES
from assay.ledger.journal.reader import LedgerIntegrityError, read_entries, read_journal
from assay.ledger.journal.store import BookStore
from assay.ledger.log.note import origin_of
from assay.ledger.log.signer import CheckpointSigner
from assay.ledger.merkle_log import Edge, append, leaf_hash, verify_inclusion
from assay.ledger.queries.lookup import Totals, add_up, entry_page, number_of, prove_entry
from assay.protocol.errors import ConfigError
from tests.ledger.a_database import edit
from tests.ledger.a_run import RUN
from tests.ledger.journal.test_store import TABLES, a_life
from tests.ledger.test_books import an_entry

pytestmark = pytest.mark.slow

KEY = SigningKey(b"k" * 32)
ORIGIN = origin_of(RUN)
MORE = 3 * KEPT_LEAVES + 5


@pytest.fixture
def books(place: Place, tmp_path: Path) -> Place:
    """A life and some more entries, all of them signed."""
    store = BookStore(place, RUN, now_ms=lambda: 1_700_000_000_000)
    events = a_life().events
    store.take_blocks(events, 0, events[-1].block_number, TABLES)
    store.add_entries([an_entry(1, -1, key=str(number)) for number in range(1000, 1000 + MORE)])
    CheckpointSigner(store, KEY, tmp_path / "checkpoints").sign_last()
    store.close()
    return place


@pytest.fixture
def db(books: Place) -> Iterator[Connection]:
    engine = open_engine_to_read(books)
    with reading(engine) as db:
        yield db
    engine.dispose()


def statements(db: Connection) -> list[str]:
    """What is asked from now on."""
    asked: list[str] = []
    sa.event.listen(db, "before_cursor_execute", lambda *given: asked.append(given[2]))
    return asked


def test_some_entries_are_what_the_whole_journal_says_of_them(db: Connection):
    whole = list(read_journal(db))

    assert list(read_entries(db, [5, 2, 2, len(whole)])) == [whole[1], whole[4], whole[-1]]
    with pytest.raises(LedgerIntegrityError, match="is missing"):
        list(read_entries(db, [len(whole) + 1]))


def test_pages_of_any_size_hold_every_entry_once_and_in_order(db: Connection):
    whole = list(read_journal(db))
    for limit in (1, 7, len(whole), len(whole) + 1):
        found, after = [], 0
        while True:
            page = entry_page(db, after=after, limit=limit)
            found += page.entries
            if page.next_after is None:
                break
            assert len(page.entries) == limit
            after = page.next_after
        assert found == whole
    touching = [one for one in whole if any(p.account == ESCROW for p in one.entry.postings)]
    assert list(entry_page(db, account="asset:escrow", limit=500).entries) == touching
    assert entry_page(db, account="asset:%").entries == ()


def test_every_entry_has_a_proof_that_the_signed_root_bears_out(db: Connection):
    whole = list(read_journal(db))
    for one in whole:
        proof = prove_entry(db, ORIGIN, one.entry.key)
        assert prove_entry(db, ORIGIN, str(one.number)).path == proof.path
        assert (proof.written, proof.checkpoint.size) == (one, len(whole))
        verify_inclusion(leaf_hash(proof.leaf), one.number - 1, len(whole), proof.path, proof.checkpoint.root)


def test_a_proof_asks_for_a_few_subtrees_and_not_for_the_journal(db: Connection):
    add_up(db)
    asked = statements(db)

    prove_entry(db, ORIGIN, "77")

    assert 0 < len(asked) < 15
    whole = [text for text in asked if "WHERE" not in text and "log_edge" not in text and "LIMIT" not in text]
    assert whole == []


def test_balances_go_on_from_where_they_were_added_up_before(books: Place, db: Connection):
    whole = list(read_journal(db))
    half = len(whole) // 2
    amounts: dict = {}
    for one in whole[:half]:
        for posting in one.entry.postings:
            amounts[posting.account] = amounts.get(posting.account, 0) + posting.amount
    so_far = Totals(edge=append(Edge(), [one.leaf for one in whole[:half]]), amounts=amounts)

    assert add_up(db, so_far) == add_up(db)
    assert add_up(db).trial_balance == 0
    assert all(amount > 0 for _, amount in add_up(db).balances)


@pytest.mark.parametrize("number", [3, 80])
def test_an_altered_entry_is_never_shown(books: Place, number: int):
    edit(books, f"UPDATE posting SET amount = amount * 2 WHERE entry = {number}")
    engine = open_engine(books)
    with reading(engine) as db:
        for ask in (
            lambda: prove_entry(db, ORIGIN, str(number)),
            lambda: add_up(db),
            lambda: entry_page(db, after=number - 1, limit=1),
        ):
            with pytest.raises(LedgerIntegrityError, match=f"entry {number} "):
                ask()
        assert entry_page(db, after=0, limit=number - 1).entries  # the others stand
    engine.dispose()


def test_an_entry_altered_with_its_leaf_has_no_proof_under_the_signed_root(books: Place):
    engine = open_engine(books)
    with reading(engine) as db:
        one = next(read_entries(db, [80]))
    engine.dispose()
    forged = replace(one.entry, block_number=one.entry.block_number + 1)
    leaf = leaf_of(forged.to_bytes(), one.recorded_ms)
    edit(
        books,
        f"UPDATE journal_entry SET block_number = block_number + 1, "
        f"request_hash = x'{request_hash(forged.to_bytes()).hex()}' WHERE id = 80",
        f"UPDATE log_leaf SET leaf_hash = x'{leaf.hex()}' WHERE entry = 80",
    )
    engine = open_engine(books)
    with reading(engine) as db, pytest.raises(LedgerIntegrityError, match="entry 80 "):
        prove_entry(db, ORIGIN, "80")
    engine.dispose()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE log_edge SET size = 128, roots = substr(roots, 1, 32)", "rolled back"),
        ("UPDATE checkpoint SET note = replace(note, 'assay/books', 'assay/cooks')", "checkpoint of"),
        ("UPDATE log_node SET node_hash = x'" + "00" * 32 + "'", "entry 77 "),
    ],
)
def test_books_that_do_not_fit_what_was_signed_prove_nothing(books: Place, statement: str, words: str):
    edit(books, statement)
    engine = open_engine(books)
    with reading(engine) as db, pytest.raises(LedgerIntegrityError, match=words):
        prove_entry(db, ORIGIN, "77")
    engine.dispose()


def test_an_entry_is_named_by_number_or_key_and_by_nothing_else(db: Connection):
    count = len(list(read_journal(db)))
    assert number_of(db, "1") == 1
    assert number_of(db, str(count)) == count
    for name in ("0", str(count + 1), "-1", "٣", "1" * 400, "", "1.0", "x"):
        with pytest.raises(ConfigError, match="no entry"):
            number_of(db, name)


def test_books_that_were_rolled_back_since_they_were_added_up_are_refused(db: Connection):
    so_far = add_up(db)
    longer = Totals(edge=append(so_far.edge, [bytes(32)]), amounts=so_far.amounts)
    other = Totals(edge=append(Edge(), [bytes(32)]), amounts={})

    with pytest.raises(LedgerIntegrityError, match="rolled back"):
        add_up(db, longer)
    with pytest.raises(LedgerIntegrityError, match="another root"):
        add_up(db, other)
