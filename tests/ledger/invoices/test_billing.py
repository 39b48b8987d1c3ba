"""Billing: documents in a national currency, as issued from books."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pypdf import PdfReader
from sqlalchemy.engine import Engine

from assay.ledger.invoices.billing import Terms
from assay.ledger.invoices.document import csv_text, from_json, to_json
from assay.ledger.invoices.figures import supply_times
from assay.ledger.invoices.pdf import pdf_bytes
from assay.ledger.invoices.rates import Rate
from assay.ledger.invoices.store import Parties, credit, issue, read_document
from assay.ledger.journal.database import open_engine, reading
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.protocol.errors import ConfigError
from tests.ledger.a_database import edit
from tests.ledger.an_invoiced_run import NOW_MS, RUN, SELLER, SPEC, TABLES, an_invoiced_run

pytestmark = pytest.mark.slow

LONG_AGO = 1_699_999_000  # before the blocks of tests/ledger/a_run.py
EUR = Rate(time_s=LONG_AGO, currency="EUR", nano=861_200_000, source="example exchange")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    an_invoiced_run(tmp_path / "ledger.db", tmp_path)
    return tmp_path / "ledger.db"


@pytest.fixture
def books(place: Path) -> Iterator[Engine]:
    engine = open_engine(place)
    yield engine
    engine.dispose()


def in_euro(*rates: Rate) -> Parties:
    return replace(SELLER, terms=Terms(currency="EUR", rates=rates))


def test_an_invoice_states_its_lines_in_the_currency_with_rate_source_and_hour(books: Engine):
    made = issue(books, SPEC, RUN, 0, 0, in_euro(EUR), NOW_MS)

    assert made.billed is not None
    rate = made.billed.rates[0]
    assert (rate.nano, rate.source, rate.time_s) == (861_200_000, "example exchange", LONG_AGO)
    assert rate.supplied_s > LONG_AGO
    assert made.billed.net == round(TABLES[0].total * 861_200_000 * 100 / 10**15)
    assert len(made.billed.line_nets) == len(made.facts.lines)
    with reading(books) as db:
        assert read_document(db, "invoice", 1) == made
    assert from_json(to_json(made)) == made


def test_each_epoch_of_an_invoice_is_converted_at_its_own_hour(books: Engine):
    with reading(books) as db:
        facts = issue(books, SPEC, RUN, 0, 1, SELLER, NOW_MS).facts
        times = supply_times(db, RUN, facts)
    credit(books, SPEC, RUN, 1, "again, in euro", NOW_MS)
    assert times[0] < times[1]
    later = replace(EUR, time_s=times[1], nano=2 * EUR.nano)

    made = issue(books, SPEC, RUN, 0, 1, in_euro(EUR, later), NOW_MS)

    assert made.billed is not None
    assert [one.nano for one in made.billed.rates] == [EUR.nano, 2 * EUR.nano]
    exact = sum(TABLES[epoch].total * EUR.nano * (epoch + 1) for epoch in (0, 1))
    assert made.billed.net == (exact * 100 * 2 + 10**15) // (2 * 10**15)


def test_a_credit_note_takes_back_the_same_amounts_whatever_the_rate_is_by_then(books: Engine):
    invoice = issue(books, SPEC, RUN, 0, 0, in_euro(EUR), NOW_MS)
    note = credit(books, SPEC, RUN, 1, "a mistake", NOW_MS + 1)

    assert note.billed == invoice.billed
    rows = list(csv.DictReader(io.StringIO(csv_text(note))))
    euro = [row for row in rows if row["currency"] == "EUR"]
    assert euro[-1]["what"] == "net total"
    assert float(euro[-1]["amount"]) < 0
    assert sum(float(row["amount"]) for row in euro[:-1]) == pytest.approx(float(euro[-1]["amount"]))


def test_a_document_without_rates_is_the_one_of_before(books: Engine):
    made = issue(books, SPEC, RUN, 0, 0, SELLER, NOW_MS)

    assert sorted(json.loads(to_json(made))) == [
        "buyer",
        "corrects",
        "currency",
        "escrow",
        "facts",
        "issued_ms",
        "name",
        "number",
        "reason",
        "salt",
        "series",
        "supplier",
        "tax_note",
        "total",
    ]
    assert sorted(json.loads(to_json(made))["buyer"]) == ["account", "address", "name", "vat_id"]


def test_without_a_rate_in_force_nothing_is_issued_and_no_number_is_used(books: Engine):
    late = replace(EUR, time_s=EUR.time_s + 10**6)
    with pytest.raises(ConfigError, match="rates file: no rate of EUR at or before"):
        issue(books, SPEC, RUN, 0, 0, in_euro(late), NOW_MS)

    assert issue(books, SPEC, RUN, 0, 0, in_euro(EUR), NOW_MS).number == 1


def test_a_time_that_the_journal_does_not_bear_out_is_no_time_of_supply(books: Engine, place: Path):
    books.dispose()
    edit(
        place,
        "UPDATE chain_event SET body = replace(body, '\"block_time\": 17', '\"block_time\": 18') "
        "WHERE kind = 'ResultFinalized'",
    )
    engine = open_engine(place)
    with pytest.raises(LedgerIntegrityError, match="time of its final result"):
        issue(engine, SPEC, RUN, 0, 0, in_euro(EUR), NOW_MS)
    engine.dispose()


def test_the_pdf_prints_the_rate_and_the_total(books: Engine):
    made = issue(books, SPEC, RUN, 0, 0, in_euro(EUR), NOW_MS)
    text = "\n".join(page.extract_text() for page in PdfReader(io.BytesIO(pdf_bytes(made))).pages)

    assert "1 aUSD = 0.8612 EUR (example exchange, 2023-11-14" in text
    assert "Net total" in text
