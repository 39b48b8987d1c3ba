"""Books in a file are closed while nobody has them open to write, and other bytes are another state."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from assay.ledger.journal.database import closed_state, open_engine_to_read, reading
from assay.ledger.journal.store import BookStore
from assay.ledger.queries.lookup import log_edge
from assay.protocol.errors import ConfigError
from tests.ledger.a_run import RUN
from tests.ledger.test_books import an_entry


def test_books_that_somebody_has_open_to_write_are_in_no_state(tmp_path: Path):
    path, link = tmp_path / "ledger.db", tmp_path / "link.db"
    assert closed_state(path) is None

    link.symlink_to(path)
    with closing(BookStore(path, RUN)):
        assert closed_state(path) is closed_state(link) is None
    state = closed_state(path)
    assert state is not None

    with reading(open_engine_to_read(path)):
        assert closed_state(path) == state
    assert closed_state("postgresql://nobody@nowhere/books") is None


def test_other_books_of_the_same_size_and_time_are_in_another_state(tmp_path: Path):
    path, other = tmp_path / "ledger.db", tmp_path / "other.db"
    with closing(BookStore(path, RUN)):
        pass
    shutil.copy2(path, other)
    assert (other.stat().st_size, other.stat().st_mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)
    before = closed_state(path)

    os.replace(other, path)

    assert closed_state(path) != before


def test_bytes_that_change_in_place_are_another_state(tmp_path: Path):
    path = tmp_path / "ledger.db"
    with closing(BookStore(path, RUN)):
        pass
    whole, past = path.read_bytes(), path.stat().st_mtime_ns - 10**9
    os.utime(path, ns=(past, past))
    states = [closed_state(path)]

    path.write_bytes(whole[:-1] + b"\1")
    states.append(closed_state(path))
    path.write_bytes(whole + b"\1")
    os.utime(path, ns=(past, past))
    states.append(closed_state(path))

    assert len(set(states)) == 3


def test_through_a_link_the_newest_entries_are_read_of_whichever_file_it_leads_to(tmp_path: Path):
    path, other, link = (tmp_path / name for name in ("ledger.db", "other.db", "link.db"))
    for each in (path, other):
        with closing(BookStore(each, RUN)):
            pass
    link.symlink_to(path)
    engine = open_engine_to_read(link)

    def size() -> int:
        with reading(engine) as db:
            return log_edge(db).size

    with closing(BookStore(path, RUN)) as store:
        store.add_entries([an_entry(1, -1)])  # in the write-ahead log
        assert size() == 1
    link.unlink()
    link.symlink_to(other)

    assert size() == 0


def test_books_with_a_view_in_a_tables_place_are_not_read(tmp_path: Path):
    """It may have rows without end, and whoever checks delivered books would check them for ever."""
    path = tmp_path / "ledger.db"
    with closing(BookStore(path, RUN)):
        pass
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "ALTER TABLE log_leaf RENAME TO kept; CREATE VIEW log_leaf AS WITH RECURSIVE n(i) AS "
            "(SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i AS seq, i AS entry, i AS leaf_hash FROM n"
        )

    with pytest.raises(ConfigError, match="has a view, log_leaf"):
        open_engine_to_read(path)
