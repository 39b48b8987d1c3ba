"""Credits: parts of an invoice are taken back, together never more than it states, in token and cents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import Engine

from assay.chain.commit_statement import evm_address
from assay.ledger.invoices.billing import Taxation, Terms
from assay.ledger.invoices.credits import credit_of, left_of
from assay.ledger.invoices.document import Document, csv_text, from_json, to_json
from assay.ledger.invoices.en16931 import CII, UBL, business_terms, xml_bytes
from assay.ledger.invoices.pdf import pdf_bytes
from assay.ledger.invoices.rates import Rate
from assay.ledger.invoices.store import Parties, credit, issue, read_document, read_documents
from assay.ledger.invoices.vat import Customer, Seller, VatRate
from assay.ledger.journal.database import Place, open_engine, open_engine_to_read, reading
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.log.audit import audit
from assay.ledger.log.note import origin_of
from assay.protocol.errors import ConfigError
from tests.ledger.a_database import edit
from tests.ledger.an_invoiced_run import NOW_MS, RUN, SELLER, SPEC, TABLES, an_invoiced_run
from tests.ledger.invoices.test_en16931 import broken_rules

pytestmark = pytest.mark.slow

TERMS = Terms(
    currency="EUR",
    rates=(Rate(time_s=1_699_999_000, currency="EUR", nano=861_200_000, source="example"),),
    taxation=Taxation(
        seller=Seller(country="DE", vat_id="DE136695976", scheme="standard"),
        customer=Customer(country="DE", kind="business"),
        vat_rates=(VatRate(country="DE", rate_bp=1900, first=date(2021, 1, 1)),),
        prices="gross",
    ),
    payment_terms="30 days",
)
PARTIES = Parties(
    supplier=replace(SELLER.supplier, country="DE", vat_id="DE136695976"),
    buyer=replace(SELLER.buyer, country="DE"),
    terms=TERMS,
)
ACCOUNT = evm_address(next(row.account for row in TABLES[0].rows if row.role == "operator"))


@pytest.fixture
def books(place: Place, tmp_path: Path) -> Iterator[Engine]:
    an_invoiced_run(place, tmp_path)
    engine = open_engine(place)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module", params=["net", "gross"])
def paper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Document:
    folder = tmp_path_factory.mktemp("paper")
    an_invoiced_run(folder / "ledger.db", folder)
    engine = open_engine(folder / "ledger.db")
    assert TERMS.taxation is not None
    terms = replace(TERMS, taxation=replace(TERMS.taxation, prices=request.param))
    made = issue(engine, SPEC, RUN, 0, 1, replace(PARTIES, terms=terms), NOW_MS)
    engine.dispose()
    return made


def a_note(invoice: Document, earlier: list[Document], **part: Any) -> Document:
    number = len(earlier) + 1
    return credit_of(invoice, earlier, number=number, issued_ms=NOW_MS, reason="a reduction", salt="", **part)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 30_000_000)), max_size=12))
def test_all_notes_together_take_back_exactly_the_invoice(paper: Document, parts: list[tuple[int, int]]):
    notes: list[Document] = []
    for epoch, amount in parts:
        if amount <= left_of(paper, notes).get(epoch, 0):
            notes.append(a_note(paper, notes, epoch=epoch, amount=amount))
        else:
            with pytest.raises(ConfigError, match="is not possible"):
                a_note(paper, notes, epoch=epoch, amount=amount)
    if left_of(paper, notes):
        notes.append(a_note(paper, notes))

    assert left_of(paper, notes) == {}
    assert sum(note.total for note in notes) == -paper.total
    whole = paper.billed
    assert whole is not None
    for what in ("net", "tax", "gross", "paid", "due"):
        parts_of = [getattr(note.billed, what) for note in notes]
        assert sum(parts_of) == getattr(whole, what)
        assert all(one >= 0 for one in parts_of)


@pytest.mark.parametrize("syntax", [UBL, CII])
def test_a_partial_note_satisfies_the_rules_and_says_that_it_is_one(paper: Document, syntax: str):
    first = a_note(paper, [], epoch=1, amount=1_234_567)
    note = a_note(paper, [first], epoch=1)

    for one in (first, note):
        assert broken_rules(xml_bytes(one, syntax), syntax) == []
        assert from_json(to_json(one)) == one
        assert "reduction" in csv_text(one)
        assert pdf_bytes(one)
    assert first.is_partial
    assert (first.facts.first_epoch, first.facts.last_epoch) == (1, 1)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"epoch": 7}, "0.000000 aUSD of epoch 7 are left"),
        ({"epoch": 0, "amount": 0}, "is not possible"),
        ({"epoch": 0, "amount": -1}, "is not possible"),
        ({"epoch": 0, "amount": TABLES[0].total + 1}, "is not possible"),
        ({"amount": 1}, "--epoch says of which one"),
    ],
)
def test_more_than_is_left_is_not_taken_back(paper: Document, part: dict[str, int], words: str):
    with pytest.raises(ConfigError, match=words):
        a_note(paper, [], **part)
    assert a_note(paper, [], epoch=0, amount=TABLES[0].total).total == -TABLES[0].total


def test_notes_are_stored_and_a_repeated_command_takes_nothing_back_twice(books: Engine):
    issue(books, SPEC, RUN, 0, 1, PARTIES, NOW_MS)
    first = credit(books, SPEC, RUN, 1, "late", NOW_MS, epoch=0, amount=1000)

    assert credit(books, SPEC, RUN, 1, "late", NOW_MS + 5, epoch=0, amount=1000) == first
    second = credit(books, SPEC, RUN, 1, "late again", NOW_MS, epoch=0, amount=1000)
    rest = credit(books, SPEC, RUN, 1, "late", NOW_MS, epoch=0)
    assert credit(books, SPEC, RUN, 1, "late", NOW_MS, epoch=0) == rest
    assert [one.number for one in (first, second, rest)] == [1, 2, 3]
    with pytest.raises(ConfigError, match="of epoch 0 are left"):
        credit(books, SPEC, RUN, 1, "more", NOW_MS, epoch=0, amount=1)


def test_epochs_are_invoiced_anew_only_when_nothing_is_left_of_their_invoice(books: Engine):
    issue(books, SPEC, RUN, 0, 1, PARTIES, NOW_MS)
    credit(books, SPEC, RUN, 1, "wrong", NOW_MS, epoch=0)
    with pytest.raises(ConfigError, match="already covers epochs 0 to 1"):
        issue(books, SPEC, RUN, 0, 0, PARTIES, NOW_MS)

    last = credit(books, SPEC, RUN, 1, "wrong", NOW_MS)

    assert last.total == -TABLES[1].total
    assert credit(books, SPEC, RUN, 1, "again", NOW_MS) == last
    assert issue(books, SPEC, RUN, 0, 0, PARTIES, NOW_MS).number == 2
    with reading(books) as db:
        assert [one.counted_as for one in read_documents(db)] == ["invoice", "invoice", "credit", "credit"]


# ---- self-billing


def test_an_operator_has_a_series_and_documents_of_its_own(books: Engine, place: Place):
    issue(books, SPEC, RUN, 0, 1, PARTIES, NOW_MS)
    sold = replace(PARTIES, supplier=replace(PARTIES.supplier, name="An operator", account=ACCOUNT))

    made = issue(books, SPEC, RUN, 0, 1, sold, NOW_MS, ACCOUNT)

    rows = [row for table in TABLES.values() for row in table.rows if row.role == "operator"]
    assert made.total == sum(row.amount for row in rows if evm_address(row.account) == ACCOUNT) > 0
    assert {line.account for line in made.facts.lines} == {ACCOUNT}
    assert made.number == 1
    assert made.name == f"{RUN.hex()[:8].upper()}-S{ACCOUNT[2:10].upper()}-000001"
    assert issue(books, SPEC, RUN, 0, 1, sold, NOW_MS + 9, ACCOUNT) == made
    note = credit(books, SPEC, RUN, 1, "late", NOW_MS, epoch=0, amount=1, operator=ACCOUNT)
    assert note.number == 1
    for one, code in ((made, "389"), (note, "261")):
        assert business_terms(one)["BT-3"] == code
        for syntax in (UBL, CII):
            assert broken_rules(xml_bytes(one, syntax), syntax) == []
    with reading(books) as db:
        assert [one.operator for one in read_documents(db)] == [""]  # what a buyer sees
        assert read_documents(db, ACCOUNT) == [made, note]
    with reading(open_engine_to_read(place)) as db:
        audit(db, origin_of(RUN), None, [])


def test_a_self_billed_document_that_was_removed_is_missed_by_the_audit(place: Place, tmp_path: Path):
    an_invoiced_run(place, tmp_path)
    engine = open_engine(place)
    issue(engine, SPEC, RUN, 0, 1, PARTIES, NOW_MS, ACCOUNT)
    engine.dispose()
    edit(place, "DELETE FROM invoice")

    with (
        reading(open_engine_to_read(place)) as db,
        pytest.raises(LedgerIntegrityError, match="in the log"),
    ):
        audit(db, origin_of(RUN), None, [])


def test_who_earned_nothing_sends_no_invoice(books: Engine):
    with pytest.raises(ConfigError, match="paid nothing to 0xaaaa"):
        issue(books, SPEC, RUN, 0, 1, PARTIES, NOW_MS, "0x" + "aa" * 20)
    with reading(books) as db, pytest.raises(ConfigError, match="no invoice has the number 1"):
        read_document(db, "invoice", 1, "0x" + "aa" * 20)
