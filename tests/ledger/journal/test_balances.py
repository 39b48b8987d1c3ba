"""Balances: kept by the database itself, which lets nobody be overdrawn, whoever writes."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from assay.ledger.accounts import budget
from assay.ledger.journal.database import Place
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.journal.store import BookStore
from assay.ledger.log.audit import audit
from assay.ledger.log.note import origin_of
from tests.ledger.a_database import attempt, content, edit
from tests.ledger.a_run import RUN
from tests.ledger.test_books import OTHER_RUN, an_entry

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("amount", "is_there"), [(100, True), (101, False)])
def test_the_database_itself_lets_nobody_be_overdrawn(place: Place, amount: int, is_there: bool):
    books = BookStore(place, RUN, now_ms=lambda: 0)
    books.add_entries([an_entry(100, -100, key="funded")])
    books.add_entries([an_entry(5, -5, key="another's", other=budget(OTHER_RUN))])
    books.close()
    numbers = {row[1]: row[0] for row in content(place)["account"]}
    statements = (
        "INSERT INTO journal_entry VALUES (3, 'k', x'00', 'test', -1, 1, x'00', 1, NULL, x'00', 2, 0)",
        f"INSERT INTO posting VALUES (3, 0, {numbers[budget(RUN).code]}, {amount})",
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
        ("UPDATE balance SET side = -side, posted = 0 WHERE account = 1", "balance of asset:escrow"),
        ("DELETE FROM balance WHERE account = 1", "balance of asset:escrow"),
    ],
)
def test_the_audit_sees_an_altered_balance(place: Place, statement: str, words: str):
    books = BookStore(place, RUN, now_ms=lambda: 0)
    books.add_entries([an_entry(100, -100, key="funded")])
    books.close()
    edit(place, statement)
    books = BookStore(place, RUN, now_ms=lambda: 0)

    with books.reading() as db, pytest.raises(LedgerIntegrityError, match=words):
        audit(db, origin_of(RUN), None, ())
    books.close()
