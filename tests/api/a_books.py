"""Books that grow while a server has them open."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event

from assay.ledger.journal.store import BookStore
from tests.ledger.a_run import RUN, EventStream
from tests.ledger.an_invoiced_run import NOW_MS, TABLES


def grow(folder: Path, count: int) -> None:
    """Add entries to the books, as the ledger service does."""
    with closing(BookStore(books_of(folder), RUN, now_ms=lambda: NOW_MS)) as store:
        first = store.next_block
        more = EventStream("more", first)
        for _ in range(count):
            more.staked("node-0", 5)
        store.take_blocks(more.events, first, more.height, TABLES)


def books_of(folder: Path) -> Path:
    return folder / "paper" / "participants" / "ledger" / "ledger.db"


def wait_until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end_s
        Event().wait(0.01)
