"""Yearly: each operator's pay by quarter, at the rate of its hour, once, whatever the chain took back."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from assay.chain.commit_statement import evm_address
from assay.chain.events import Claimed
from assay.ledger.invoices.rates import Rate
from assay.ledger.invoices.yearly import Payee, Receipt, quarters, read_receipts, yearly_csv
from assay.ledger.journal.database import open_engine_to_read, reading
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.journal.store import BookStore
from assay.protocol.errors import ConfigError
from tests.ledger.a_database import edit
from tests.ledger.a_run import RUN, EventStream
from tests.ledger.an_invoiced_run import TABLES, an_invoiced_run

A, B = "0x" + "aa" * 20, "0x" + "bb" * 20


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp())


def a_receipt(when: str, amount: int = 10**6, account: str = A, is_transfer: bool = False, count: int = 1):
    return Receipt(account=account, time_s=at(when), is_transfer=is_transfer, amount=amount, count=count)


def some_rates(*times: str) -> tuple[Rate, ...]:
    return tuple(
        Rate(time_s=at(when), currency="EUR", nano=(index + 1) * 10**9, source="x")
        for index, when in enumerate(times)
    )


def test_quarters_end_at_midnight_utc_and_other_years_are_not_counted():
    rates = some_rates("2025-12-31", "2026-03-31", "2026-12-31")
    found = quarters(
        [
            a_receipt("2025-12-31T23:59:59"),
            a_receipt("2026-01-01T00:00:00"),
            a_receipt("2026-03-31T23:59:59"),
            a_receipt("2026-04-01T00:00:00"),
            a_receipt("2026-12-31T23:59:59"),
            a_receipt("2027-01-01T00:00:00"),
        ],
        2026,
        "EUR",
        rates,
        {},
    )

    assert [(one.quarter, one.supplies, one.gross) for one in found] == [
        (1, 2, 300),
        (2, 1, 200),
        (4, 1, 300),
    ]


def test_what_was_earned_and_what_was_claimed_are_counted_apart():
    rates = some_rates("2026-01-01", "2026-01-02")
    (one,) = quarters(
        [
            a_receipt("2026-01-01", 3_000_000),
            a_receipt("2026-01-02", 1_000_000, is_transfer=True),
            a_receipt("2026-01-02", 1_000_000, is_transfer=True),
        ],
        2026,
        "EUR",
        rates,
        {A: Payee(name="=SUM(1)", country="DE", vat_id="DE136695976")},
    )

    assert (one.supplies, one.credited, one.gross) == (1, 3_000_000, 300)
    assert (one.transfers, one.transferred, one.value) == (2, 2_000_000, 400)
    (row,) = csv.DictReader(io.StringIO(yearly_csv([one], "EUR")))
    assert (row["gross_consideration"], row["transferred_value"], row["currency"]) == ("3.00", "4.00", "EUR")
    assert row["name"] == "'=SUM(1)"  # no spreadsheet runs it


def test_a_payee_lacks_what_nobody_says_of_it_and_a_legal_person_no_birth_date():
    every = ("name", "address", "person", "tin", "tin_country")
    whole = Payee(
        name="Ola", address="Weg 1", person="natural", tin="1", tin_country="FR", birth_date="1990-05-17"
    )

    assert Payee().missing == every
    assert whole.missing == ()
    assert replace(whole, birth_date="").missing == ("birth_date",)
    assert replace(whole, birth_date="", person="legal").missing == ()
    for name in every:
        assert replace(whole, **{name: ""}).missing == (name,)


def test_a_quarters_sum_is_rounded_once():
    receipts = [a_receipt("2026-01-01", 4_000) for _ in range(10)]  # 0.4 cents each
    (one,) = quarters(receipts, 2026, "EUR", some_rates("2026-01-01"), {})

    assert one.gross == 4


def test_what_a_reorganisation_took_back_is_not_reported():
    receipts = [a_receipt("2026-01-01"), a_receipt("2026-01-01", -(10**6), count=-1)]
    (one,) = quarters(receipts, 2026, "EUR", some_rates("2026-01-01"), {})

    assert (one.supplies, one.credited, one.gross) == (0, 0, 0)


def test_operators_are_apart_and_a_receipt_without_a_rate_is_refused():
    receipts = [a_receipt("2026-01-01"), a_receipt("2026-01-01", account=B)]

    found = quarters(receipts, 2026, "EUR", some_rates("2026-01-01"), {})
    assert [one.account for one in found] == [A, B]
    with pytest.raises(ConfigError, match="no rate of EUR"):
        quarters(receipts, 2026, "EUR", some_rates("2026-02-01"), {})


def test_the_books_receipts_are_what_the_tables_pay_operators(tmp_path: Path):
    an_invoiced_run(tmp_path / "ledger.db", tmp_path)
    with reading(open_engine_to_read(tmp_path / "ledger.db")) as db:
        found = read_receipts(db)

    paid: dict[str, int] = {}
    for table in TABLES.values():
        for row in table.rows:
            if row.role == "operator":
                account = evm_address(row.account)
                paid[account] = paid.get(account, 0) + row.amount
    for is_transfer in (False, True):  # all of it was claimed
        counted: dict[str, int] = {}
        for one in found:
            if one.is_transfer == is_transfer:
                assert one.count == 1
                counted[one.account] = counted.get(one.account, 0) + one.amount
        assert counted == paid


def test_a_claim_is_a_transfer_and_its_reversal_takes_it_back(tmp_path: Path):
    store = BookStore(tmp_path / "ledger.db", RUN)
    stream, table = EventStream(), TABLES[0]
    stream.opened(budget=10**9)
    stream.settled(table)
    paid = [row.role for row in table.rows].index("operator")
    at = [index for index, event in enumerate(stream.events) if isinstance(event, Claimed)][paid]
    first, last = store.next_block, stream.events[at].block_number
    events = stream.events[: at + 1]
    store.take_blocks(events, first, last, {0: table})
    with store.reading() as db:
        before = read_receipts(db)
    store.take_blocks(events[:-1], first, last, {0: table})  # the chain no longer has the last claim
    with store.reading() as db:
        after = read_receipts(db)
    store.close()

    claim, taken_back = before[-1], after[-1]
    assert after[:-1] == before
    assert (claim.is_transfer, claim.amount, claim.count) == (True, table.rows[paid].amount, 1)
    assert claim.account == evm_address(table.rows[paid].account)
    assert taken_back == replace(claim, amount=-claim.amount, count=-1)  # of the same time and quarter


def test_an_altered_entry_is_no_source_of_a_report(tmp_path: Path):
    an_invoiced_run(tmp_path / "ledger.db", tmp_path)
    edit(tmp_path / "ledger.db", "UPDATE journal_entry SET block_time = block_time + 86400")

    with reading(open_engine_to_read(tmp_path / "ledger.db")) as db, pytest.raises(LedgerIntegrityError):
        read_receipts(db)
