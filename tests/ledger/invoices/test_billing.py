"""Billing: documents in a national currency, as issued from books."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pypdf import PdfReader
from sqlalchemy.engine import Engine

from assay.ledger.invoices.billing import Billed, Taxation, Terms, bill
from assay.ledger.invoices.document import csv_text, from_json, to_json
from assay.ledger.invoices.figures import supply_times
from assay.ledger.invoices.pdf import pdf_bytes
from assay.ledger.invoices.rates import Rate
from assay.ledger.invoices.store import Parties, credit, issue, read_document
from assay.ledger.invoices.vat import Customer, Seller, VatRate
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


# ---- value added tax

DAY_S = 1_700_000_000  # 2023-11-14
AT_HOME = Taxation(
    seller=Seller(country="DE", vat_id="DE136695976", scheme="standard"),
    customer=Customer(country="DE", kind="business"),
    vat_rates=(VatRate(country="DE", rate_bp=1900, first=date(2021, 1, 1)),),
    prices="gross",
)
ONE_TOKEN = 10**6


def billed(taxation: Taxation | None, *lines: int, currency: str = "EUR", terms: str = "30 days") -> Billed:
    rates = (Rate(time_s=LONG_AGO, currency=currency, nano=10**9, source="x"),)
    stated = Terms(currency=currency, rates=rates, taxation=taxation, payment_terms=terms)
    return bill([(0, amount) for amount in lines], {0: DAY_S}, stated)


def test_gross_prices_contain_the_tax_and_nothing_is_due():
    made = billed(AT_HOME, 100 * ONE_TOKEN, 19 * ONE_TOKEN)

    assert (made.line_nets, made.tax, made.paid) == ((8403, 1597), 1900, 11900)
    assert (made.gross, made.due) == (11900, 0)
    assert made.payment_terms == "Paid from the run's escrow on chain; nothing is due."


def test_net_prices_leave_the_tax_due_under_the_suppliers_terms():
    made = billed(replace(AT_HOME, prices="net"), 100 * ONE_TOKEN)

    assert (made.net, made.tax, made.paid, made.due) == (10000, 1900, 10000, 1900)
    assert made.payment_terms == "30 days"
    with pytest.raises(ConfigError, match="payment_terms"):
        billed(replace(AT_HOME, prices="net"), 100 * ONE_TOKEN, terms="")


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=20), st.sampled_from(["net", "gross"]))
@example([0, 0, 79, 174, 502, 1048, 1048, 1048, 1048, 2301, 2301, 3259, 7094, 26622, 54838, 4984794, 49697215,
          116212271, 24_939_378_808], "gross")  # fmt: skip
def test_net_and_tax_are_the_total_and_the_tax_is_its_rate_to_a_cent(lines: list[int], prices: str):
    made = billed(replace(AT_HOME, prices=prices), *lines)

    assert made.net + made.tax == made.gross == made.paid + made.due
    assert abs(made.tax * 10_000 - made.net * 1900) <= (5_000 if prices == "net" else 5_950)
    assert made.due == (0 if prices == "gross" else made.tax)


def test_tax_is_stated_in_its_states_own_currency():
    with pytest.raises(ConfigError, match=r"VAT of DE is stated in EUR \(article 230\), not in SEK"):
        billed(AT_HOME, ONE_TOKEN, currency="SEK")
    abroad = replace(AT_HOME, customer=Customer(country="US", kind="business"))
    assert billed(abroad, ONE_TOKEN, currency="SEK").tax == 0


def test_who_pays_the_tax_is_stated_or_none_is_charged():
    with pytest.raises(ConfigError, match="prices says whether the escrow pays it"):
        billed(replace(AT_HOME, prices=""), ONE_TOKEN)


def test_a_document_has_one_rate_of_tax():
    new_year = 1_704_067_200
    rates = (
        VatRate(country="DE", rate_bp=1900, first=date(2021, 1, 1), last=date(2023, 12, 31)),
        VatRate(country="DE", rate_bp=2000, first=date(2024, 1, 1)),
    )
    terms = Terms(
        currency="EUR",
        rates=(Rate(time_s=new_year - 86_400, currency="EUR", nano=10**9, source="x"),),
        taxation=replace(AT_HOME, vat_rates=rates),
    )
    lines = [(0, ONE_TOKEN), (1, ONE_TOKEN)]

    assert bill(lines, {0: new_year - 2, 1: new_year - 1}, terms).vat
    with pytest.raises(ConfigError, match="changes with epoch 1: invoice the epochs apart"):
        bill(lines, {0: new_year - 1, 1: new_year}, terms)


def test_an_invoice_with_tax_is_stored_as_it_was_issued(books: Engine):
    seller = replace(SELLER, terms=Terms(currency="EUR", rates=(EUR,), taxation=AT_HOME))
    made = issue(books, SPEC, RUN, 0, 1, seller, NOW_MS)

    with reading(books) as db:
        assert read_document(db, "invoice", 1) == made
    assert made.billed is not None and made.billed.tax > 0
    text = "\n".join(page.extract_text() for page in PdfReader(io.BytesIO(pdf_bytes(made))).pages)
    assert "VAT category S, 19.00 %" in text
    assert "Supplied on 2023-11-14." in text
