"""The log in the books: a leaf for every entry, and no change of what was logged goes unseen."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from nacl.signing import SigningKey

from assay.chain.events import ResultFinalized
from assay.ledger.books import Entry
from assay.ledger.journal.database import Place, open_engine_to_read, reading
from assay.ledger.journal.leaf import leaf_of
from assay.ledger.journal.log_store import (
    KEPT_LEAVES,
    prove_consistency,
    prove_inclusion,
    read_edge,
    read_leaves,
    read_nodes,
    read_notes,
)
from assay.ledger.journal.reader import LedgerIntegrityError, read_journal
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.tables import SCHEMA_VERSION
from assay.ledger.journal.writer import read_entry
from assay.ledger.log.audit import Audited, audit
from assay.ledger.log.note import Checkpoint, origin_of, read_checkpoint, sign_checkpoint
from assay.ledger.log.signer import CheckpointSigner, read_published
from assay.ledger.merkle_log import (
    inclusion_spans,
    root_of,
    verify_consistency,
)
from assay.protocol.errors import ConfigError, Unavailable
from tests.ledger.a_database import Databases, attempt, edit
from tests.ledger.a_postgres import Server
from tests.ledger.a_run import BUDGET, RUN, EventStream, a_settlement
from tests.ledger.merkle_proofs import consistency_proof, inclusion_proof
from tests.ledger.test_books import an_entry

pytestmark = pytest.mark.slow

KEY = SigningKey(b"k" * 32)
PUBLIC = bytes(KEY.verify_key)
ORIGIN = origin_of(RUN)
TABLES = {epoch: a_settlement(epoch) for epoch in range(2)}


def open_books(place: Place) -> BookStore:
    return BookStore(place, RUN, now_ms=lambda: 1_700_000_000_000)


def a_life() -> EventStream:
    stream = EventStream()
    stream.opened()
    stream.staked("node-0", 1_000)
    stream.slashed("node-0", 100)
    for table in TABLES.values():
        stream.settled(table)
    stream.refunded(BUDGET - sum(table.total for table in TABLES.values()))
    return stream


def live(store: BookStore, events: int | None = None) -> None:
    """Book the first so many events of a life."""
    said = a_life().events[:events]
    store.take_blocks(said, 0, said[-1].block_number, TABLES)


def audited(place: Place, folder: Path | None = None) -> Audited:
    with reading(open_engine_to_read(place)) as db:
        return audit(db, ORIGIN, PUBLIC, read_published(folder) if folder else ())


@pytest.fixture
def store(place: Place) -> Iterator[BookStore]:
    books = open_books(place)
    yield books
    books.close()


def leaves_of(store: BookStore) -> list[bytes]:
    with store.reading() as db:
        return read_leaves(db)


# ---- written together


def test_every_entry_has_its_leaf_and_the_edge_has_their_root(store: BookStore):
    live(store)
    with store.reading() as db:
        written = list(read_journal(db))
        edge, leaves = read_edge(db), read_leaves(db)
        again = [read_entry(db, one.entry.key) for one in written]

    assert len(leaves) == len(written) > 20
    assert leaves == [leaf_of(entry.to_bytes(), 1_700_000_000_000) for entry in again if entry is not None]
    assert (edge.size, edge.root) == (len(leaves), root_of(leaves))


def test_portions_of_any_size_make_the_same_log(databases: Databases):
    whole, parts = open_books(databases.new()), open_books(databases.new())
    live(whole)
    for events in (1, 2, 5, 6, 20, None):
        live(parts, events)

    assert leaves_of(whole) == leaves_of(parts)
    whole.close()
    parts.close()


def test_a_repetition_adds_no_leaf(store: BookStore):
    store.add_entries([an_entry(5, -5)])
    store.add_entries([an_entry(5, -5), an_entry(6, -6, key="new")])

    assert len(leaves_of(store)) == 2


def test_what_the_chain_takes_back_only_makes_the_log_longer(store: BookStore):
    live(store)
    before = leaves_of(store)
    store.take_blocks(a_life().events[:3], 0, 50, TABLES)
    after = leaves_of(store)

    assert len(after) > len(before)
    proof = consistency_proof(after, len(before))
    verify_consistency(len(before), root_of(before), len(after), root_of(after), proof)


def test_killed_between_any_two_statements_no_entry_is_without_its_leaf(databases: Databases):
    for survived in count():
        place = databases.new()
        store, left = open_books(place), iter(range(survived))

        def die(*_: Any, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise InterruptedError

        sa.event.listen(store.engine, "before_cursor_execute", die)
        sa.event.listen(store.engine, "commit", die)
        try:
            for batch in range(3):
                store.add_entries([an_entry(1, -1, key=f"{batch}/{line}") for line in range(batch + 1)])
            is_through = True
        except InterruptedError:
            is_through = False
        store.close()
        assert audited(place).entries in (0, 1, 3, 6)
        if is_through:
            break
    assert survived > 20


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE log_leaf SET leaf_hash = x'00'",
        "DELETE FROM log_leaf",
        "DELETE FROM log_edge",
        "UPDATE checkpoint SET note = ''",
        "DELETE FROM checkpoint",
    ],
)
def test_the_database_refuses_to_change_the_log(place: Place, tmp_path: Path, statement: str):
    store = open_books(place)
    live(store)
    CheckpointSigner(store, KEY, tmp_path / "checkpoints").sign_last()
    store.close()

    with pytest.raises(sa.exc.IntegrityError, match="append-only"):
        attempt(place, statement)


def test_sqlite_refuses_to_replace_a_leaf(tmp_path: Path):
    store = open_books(tmp_path / "ledger.db")
    live(store)
    store.close()

    with pytest.raises(sa.exc.IntegrityError, match="append-only"):
        attempt(
            tmp_path / "ledger.db", "INSERT OR REPLACE INTO log_leaf SELECT seq, entry, x'00' FROM log_leaf"
        )


# ---- checkpoints


def test_a_checkpoint_follows_every_settled_epoch_and_the_end(store: BookStore, tmp_path: Path):
    ledger_service = CheckpointSigner(store, KEY, tmp_path / "checkpoints")
    signed = []
    for events in range(1, len(a_life().events) + 1):
        live(store, events)
        signed += [ledger_service.sign_due()]
    made = [one for one in signed if one is not None]

    assert len(made) == len(TABLES)
    assert ledger_service.sign_last() is not None
    assert ledger_service.sign_last() is None
    assert ledger_service.sign_due() is None
    notes = read_published(tmp_path / "checkpoints")
    told = [read_checkpoint(text, ORIGIN, PUBLIC) for _, text in notes]
    leaves = leaves_of(store)
    assert told[: len(made)] == made
    assert [one.root for one in told] == [root_of(leaves[: one.size]) for one in told]
    assert told[-1].size == len(leaves)


def test_another_runs_result_is_recorded_and_no_reason_to_sign(store: BookStore, tmp_path: Path):
    stream = EventStream()
    stream.opened()
    stream.emit(ResultFinalized, run_id=b"o" * 32, epoch=0, digest=bytes(32), total=5, claim_ends_at=0)
    store.take_blocks(stream.events, 0, stream.height, {})
    ledger_service = CheckpointSigner(store, KEY, tmp_path / "checkpoints")

    assert len(leaves_of(store)) == 2
    assert ledger_service.sign_due() is None


def test_nothing_is_signed_of_empty_books(store: BookStore, tmp_path: Path):
    assert CheckpointSigner(store, KEY, tmp_path / "checkpoints").sign_last() is None


def test_killed_before_the_file_was_there_it_is_written_at_the_next_start(store: BookStore, tmp_path: Path):
    folder = tmp_path / "checkpoints"
    live(store)
    CheckpointSigner(store, KEY, folder).sign_last()
    before = read_published(folder)
    shutil.rmtree(folder)

    CheckpointSigner(store, KEY, folder)

    assert read_published(folder) == before


def test_a_restart_goes_on_with_the_same_log(place: Place, tmp_path: Path):
    for events in (3, 9, 20, None, None):
        store = open_books(place)
        ledger_service = CheckpointSigner(store, KEY, tmp_path / "checkpoints")
        live(store, events)
        ledger_service.sign_last()
        store.close()

    found = audited(place, tmp_path / "checkpoints")
    assert len(found.checkpoints) == 4
    assert found.checkpoints[-1].root == found.root


def test_books_that_were_rolled_back_are_refused(databases: Databases, place: Place, tmp_path: Path):
    store, folder = open_books(place), tmp_path / "checkpoints"
    live(store, 9)
    CheckpointSigner(store, KEY, folder).sign_last()
    store.close()
    old = databases.copy(place)
    store = open_books(place)
    live(store)
    CheckpointSigner(store, KEY, folder).sign_last()
    store.close()

    store = open_books(old)
    with pytest.raises(ConfigError, match="rolled back"):
        CheckpointSigner(store, KEY, folder)
    store.close()


def test_books_that_lost_only_their_last_entry_are_refused(databases: Databases, tmp_path: Path):
    whole, short = open_books(databases.new()), open_books(databases.new())
    live(whole, 9)
    live(short, 8)
    CheckpointSigner(whole, KEY, tmp_path / "checkpoints").sign_last()
    assert len(leaves_of(whole)) == len(leaves_of(short)) + 1

    with pytest.raises(ConfigError, match="rolled back"):
        CheckpointSigner(short, KEY, tmp_path / "checkpoints")
    whole.close()
    short.close()


def test_new_books_in_the_place_of_signed_ones_are_refused(
    store: BookStore, databases: Databases, tmp_path: Path
):
    folder = tmp_path / "checkpoints"
    live(store)
    CheckpointSigner(store, KEY, folder).sign_last()
    empty = databases.new()
    other = open_books(empty)

    with pytest.raises(ConfigError, match="rolled back"):
        CheckpointSigner(other, KEY, folder)
    with reading(open_engine_to_read(empty)) as db, pytest.raises(LedgerIntegrityError, match="older"):
        audit(db, ORIGIN, None, read_published(folder))
    other.close()


def test_altered_books_are_refused_at_the_start(place: Place, tmp_path: Path):
    store = open_books(place)
    live(store)
    CheckpointSigner(store, KEY, tmp_path / "checkpoints").sign_last()
    store.close()
    edit(place, "UPDATE posting SET amount = amount * 2 WHERE entry = 2")

    store = open_books(place)
    with pytest.raises(ConfigError, match="entry 2 "):
        CheckpointSigner(store, KEY, tmp_path / "checkpoints")
    store.close()


# ---- audit

ALTERED = [
    ("an amount, on both sides", "UPDATE posting SET amount = amount * 2 WHERE entry = 2"),
    ("an amount, on one side", "UPDATE posting SET amount = amount + 1 WHERE entry = 2 AND line = 0"),
    ("the kind", "UPDATE journal_entry SET kind = 'Withdrawn' WHERE id = 2"),
    ("the epoch", "UPDATE journal_entry SET epoch = 7 WHERE id = 2"),
    ("the time", "UPDATE journal_entry SET recorded_ms = recorded_ms + 1 WHERE id = 2"),
    ("the block", "UPDATE journal_entry SET block_hash = x'00' WHERE id = 2"),
    ("the block's time", "UPDATE journal_entry SET block_time = block_time + 1 WHERE id = 2"),
    ("the block number", "UPDATE journal_entry SET block_number = 77 WHERE id = 2"),
    ("the key", "UPDATE journal_entry SET key = 'k' WHERE id = 2"),
    ("what it reverses", "UPDATE journal_entry SET reverses = 1 WHERE id = 2"),
    ("the request hash", "UPDATE journal_entry SET request_hash = x'00' WHERE id = 2"),
    ("the announced lines", "UPDATE journal_entry SET lines = 3 WHERE id = 2"),
    ("the accounts", "UPDATE posting SET account = 3 - account WHERE entry = 2 AND account IN (1, 2)"),
    ("an account's owner", "UPDATE account SET owner = 'me' WHERE kind = 'stake'"),
    ("an account's owner and code", "UPDATE account SET owner = 'me', code = 'stake:operator:me' "
     "WHERE kind = 'stake'"),
    ("an account's code", "UPDATE account SET code = 'stake:operator:me' WHERE kind = 'stake'"),
    ("an account's kind", "UPDATE account SET kind = 'gift' WHERE kind = 'stake'"),
    ("an account's asset", "UPDATE account SET asset = 'EUR' WHERE kind IN ('stake', 'asset:vault')"),
    ("a posting that is gone", "DELETE FROM posting WHERE entry = 2 AND line = 1"),
    ("a posting too many", "INSERT INTO posting VALUES (2, 2, 1, 5)"),
    ("all its postings gone", "DELETE FROM posting WHERE entry = 2"),
    ("the entry gone", "DELETE FROM journal_entry WHERE id = 2"),
    ("the leaf", "UPDATE log_leaf SET leaf_hash = x'00' WHERE entry = 2"),
    ("the leaf gone", "DELETE FROM log_leaf WHERE entry = 2"),
]  # fmt: skip


@pytest.mark.parametrize(("_name", "statement"), ALTERED, ids=[name for name, _ in ALTERED])
def test_the_audit_names_the_entry_that_was_altered(place: Place, _name: str, statement: str):
    store = open_books(place)
    live(store)
    store.close()
    assert audited(place).entries > 20
    edit(place, statement)

    with pytest.raises(LedgerIntegrityError, match=r"entry 2\b"):
        audited(place)


def test_the_audit_names_the_entry_whose_text_is_none(tmp_path: Path):
    """On SQLite alone: PostgreSQL takes no text that is not UTF-8."""
    place = tmp_path / "ledger.db"
    store = open_books(place)
    live(store)
    store.close()
    edit(place, "UPDATE journal_entry SET kind = CAST(x'ff' AS TEXT) WHERE id = 2")

    with pytest.raises(LedgerIntegrityError, match=r"entry 2\b"):
        audited(place)


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["UPDATE log_edge SET size = 3"], "log"),
        (["UPDATE log_edge SET roots = substr(roots, 1, length(roots) - 1)"], "log"),
        (["INSERT INTO posting VALUES (999, 0, 1, 5)"], "entry 999: postings without"),
        (["DELETE FROM posting WHERE entry = 1", "UPDATE posting SET entry = 0 WHERE entry = 2"], "entry 0"),
    ],
)
def test_the_audit_sees_what_belongs_to_no_entry(place: Place, statements: list[str], words: str):
    store = open_books(place)
    live(store)
    store.close()
    edit(place, *statements)

    with pytest.raises(LedgerIntegrityError, match=words):
        audited(place)


def _rewritten(place: Place, into: Place, *, keep: int | None = None) -> None:
    """Books with consistent leaves and edge that say something else: entry 2 has twice its amount."""
    with reading(open_engine_to_read(place)) as db:
        entries: list[Entry] = [one.entry for one in read_journal(db)][:keep]
        notes = read_notes(db)
    second = entries[1]
    lines = tuple(type(one)(account=one.account, amount=one.amount * 2) for one in second.postings)
    forged = Entry(
        key=second.key, kind=second.kind, block_number=second.block_number, block_time=second.block_time,
        block_hash=second.block_hash, postings=lines,
    )  # fmt: skip
    other = open_books(into)
    other.add_entries([entries[0], forged, *entries[2:]])
    with other.engine.begin() as db:
        for note in notes:
            row = {"size": note.size, "signer": note.signer, "note": note.text}
            db.execute(sa.insert(sa.table("checkpoint", *map(sa.column, row))), [row])
    other.close()


def test_books_rewritten_with_all_their_hashes_are_caught_by_what_was_signed(
    databases: Databases, place: Place, tmp_path: Path
):
    store, folder = open_books(place), tmp_path / "checkpoints"
    ledger_service = CheckpointSigner(store, KEY, folder)
    live(store, 1)
    first = ledger_service.sign_last()
    live(store)
    last = ledger_service.sign_last()
    store.close()
    forged = databases.new()
    _rewritten(place, forged)
    assert first is not None and last is not None

    with pytest.raises(LedgerIntegrityError, match=f"entries 2 to {last.size} were altered"):
        audited(forged)


def test_a_checkpoint_by_a_stranger_does_not_count(place: Place, tmp_path: Path):
    store, folder = open_books(place), tmp_path / "checkpoints"
    live(store)
    CheckpointSigner(store, SigningKey(b"m" * 32), folder).sign_last()
    store.close()

    with pytest.raises(LedgerIntegrityError, match="another key"):
        audited(place)


def test_a_forged_note_beside_the_books_is_seen(place: Place, tmp_path: Path):
    store, folder = open_books(place), tmp_path / "checkpoints"
    live(store)
    CheckpointSigner(store, KEY, folder).sign_last()
    store.close()
    forged = Checkpoint(origin=ORIGIN, size=2, root=bytes(32))
    (folder / "000000000002.note").write_text(sign_checkpoint(forged, SigningKey(b"m" * 32)))

    with pytest.raises(LedgerIntegrityError, match=r"checkpoints/000000000002\.note"):
        audited(place, folder)


# ---- proofs from what is kept

LONG = 3 * KEPT_LEAVES + 5


@pytest.fixture
def long_log(databases: Databases) -> Iterator[BookStore]:
    """More leaves than one kept subtree has, written in portions."""
    books = open_books(databases.new())
    entries = [an_entry(1, -1, key=str(number)) for number in range(LONG)]
    for start, end in ((0, 1), (1, KEPT_LEAVES + 1), (KEPT_LEAVES + 1, LONG)):
        books.add_entries(entries[start:end])
    yield books
    books.close()


def test_proofs_from_what_is_kept_are_those_from_all_leaves(long_log: BookStore):
    sizes = {1, 2, 3, LONG, *(n * KEPT_LEAVES + more for n in (1, 2, 3) for more in (-1, 0, 1))}
    with long_log.reading() as db:
        leaves = read_leaves(db)
        assert len(read_nodes(db)) == 3 + 1
        for size in sorted(sizes):
            for index in sorted({0, 1, size // 2, size - 1} & set(range(size))):
                assert prove_inclusion(db, size, index) == inclusion_proof(leaves[:size], index)
            for old in sorted({0, 1, size // 2, size - 1, size}):
                assert prove_consistency(db, size, old) == consistency_proof(leaves[:size], old)


def test_a_proof_reads_a_few_leaves_however_long_the_log_is(long_log: BookStore):
    asked: list[str] = []
    sa.event.listen(long_log.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    with long_log.reading() as db:
        prove_inclusion(db, LONG, 70)

    assert len([one for one in asked if "SELECT" in one]) == 2
    assert sum(count for _, count in inclusion_spans(LONG, 70) if count < KEPT_LEAVES) <= 2 * KEPT_LEAVES


def test_what_is_not_in_the_log_is_not_proved(long_log: BookStore):
    with long_log.reading() as db:
        with pytest.raises(IndexError):
            prove_inclusion(db, LONG, LONG)
        with pytest.raises(ValueError, match="lacks"):
            prove_inclusion(db, LONG + 70, 5)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE log_node SET node_hash = x'00'",
        "DELETE FROM log_node",
        "INSERT INTO log_node VALUES (1, x'00')",
    ],
)
def test_the_audit_sees_a_kept_root_that_is_not_the_entries(databases: Databases, statement: str):
    place = databases.new()
    books = open_books(place)
    books.add_entries([an_entry(1, -1, key=str(number)) for number in range(KEPT_LEAVES)])
    books.close()
    assert audited(place).entries == KEPT_LEAVES
    edit(place, statement)

    with pytest.raises(LedgerIntegrityError, match="stored for proofs"):
        audited(place)


# ---- reading alone


@pytest.mark.parametrize("is_open", [False, True])
def test_reading_leaves_the_files_as_they_are(tmp_path: Path, is_open: bool):
    place = tmp_path / "ledger.db"
    store = open_books(place)
    live(store)
    if not is_open:
        store.close()
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir() if not one.name.endswith("-shm")}

    assert audited(place).entries > 20

    after = {one.name: one.read_bytes() for one in tmp_path.iterdir() if not one.name.endswith("-shm")}
    assert after == before
    assert is_open or list(after) == ["ledger.db"]
    store.close()


def test_a_reader_beside_the_writer_sees_the_newest_entry(place: Place):
    store = open_books(place)
    live(store)

    assert audited(place).entries == len(leaves_of(store))
    store.close()


def test_a_reader_cannot_write(place: Place):
    open_books(place).close()

    with pytest.raises(Unavailable, match=r"read-?only"), reading(open_engine_to_read(place)) as db:
        db.execute(sa.text("DELETE FROM cursor"))


def test_what_is_no_book_is_refused_with_words(tmp_path: Path):
    place = tmp_path / "ledger.db"
    with pytest.raises(ConfigError, match="no books here"):
        open_engine_to_read(place)
    place.write_text("nothing like a database, and longer than its header is" * 40)
    with pytest.raises(ConfigError, match="not a book"):
        open_engine_to_read(place)
    place.unlink()
    open_books(place).close()
    for found in (1, SCHEMA_VERSION - 1, SCHEMA_VERSION + 1):
        edit(place, f"PRAGMA user_version = {found}")
        for opened in (open_engine_to_read, open_books):
            with pytest.raises(ConfigError, match=f"schema {found}, {SCHEMA_VERSION} expected"):
                opened(place)


def test_an_empty_database_and_another_schema_are_refused_to_readers_too(postgres: Server):
    place = postgres.new()
    with pytest.raises(ConfigError, match="no books here"):
        open_engine_to_read(place)
    open_books(place).close()
    edit(place, "UPDATE schema_version SET version_num = '0001'")
    for opened in (open_engine_to_read, open_books):
        with pytest.raises(ConfigError, match=f"schema 1, {SCHEMA_VERSION} expected"):
            opened(place)
    edit(place, "ALTER TABLE schema_version RENAME TO alembic_version")
    edit(place, "UPDATE alembic_version SET version_num = '0007'")  # books from before the baseline
    for opened in (open_engine_to_read, open_books):
        with pytest.raises(ConfigError, match=f"schema 7, {SCHEMA_VERSION} expected"):
            opened(place)
