"""Postings in the audit: what an entry moves is what its event and the payout tables lead to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.chain.events import RunOpened
from assay.ledger.books import Books, book
from assay.ledger.journal import store
from assay.ledger.journal.database import open_engine_to_read, reading
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.journal.store import BookStore
from assay.ledger.log.audit import audit
from assay.ledger.log.note import origin_of
from assay.protocol.types import Digest
from tests.ledger.an_invoiced_run import RUN
from tests.ledger.log import test_records
from tests.ledger.log.test_records import write
from tests.ledger.test_books import an_entry

pytestmark = pytest.mark.slow


def audited(place: Path, run_id: Digest | None = RUN) -> None:
    with reading(open_engine_to_read(place)) as db:
        audit(db, origin_of(RUN), None, (), run_id=run_id)


def with_more(books: Books, event: Any) -> tuple[Books, Any]:
    """A buyer that is said to have put in a unit more than the event's row says."""
    return books, replace(event, budget=event.budget + 1) if isinstance(event, RunOpened) else event


def without_tables(books: Books, event: Any) -> tuple[Books, Any]:
    """Nothing becomes payable."""
    return replace(books, tables={}), event


def test_books_are_made_again_through_reorganisations_to_the_same_entries(tmp_path: Path) -> None:
    write(tmp_path / "ledger.db", tmp_path)

    audited(tmp_path / "ledger.db")


@pytest.mark.parametrize(("lie", "kind"), [(with_more, "RunOpened"), (without_tables, "ResultFinalized")])
def test_postings_that_no_event_leads_to_are_found_though_the_log_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Callable[..., tuple[Books, Any]], kind: str
) -> None:
    monkeypatch.setattr(test_records, "issue", lambda *_: None)  # which compares the epoch's entry itself
    monkeypatch.setattr(store, "book", lambda books, event, *told: book(*lie(books, event), *told))
    place = tmp_path / "ledger.db"
    write(place, tmp_path)

    audited(place, None)
    with pytest.raises(LedgerIntegrityError, match=f"^entry event/.*: says other than what its {kind} leads"):
        audited(place)


def test_money_that_no_event_moved_is_found(tmp_path: Path) -> None:
    place = tmp_path / "ledger.db"
    write(place, tmp_path)
    books = BookStore(place, RUN)
    books.add_entries([an_entry(5, -5, key="made-up")])
    books.close()

    audited(place, None)
    with pytest.raises(LedgerIntegrityError, match=r"^entry made-up: moves money, and no event"):
        audited(place)
