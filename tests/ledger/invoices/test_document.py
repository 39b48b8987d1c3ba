"""Invoices: numbers without a gap, amounts that the journal bears out, and nothing changes afterwards."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa
from pypdf import PdfReader
from sqlalchemy.engine import Engine

from assay.chain.text.units import money_text
from assay.ledger.books import DOCUMENT, document_hash, record
from assay.ledger.invoices.document import Document, Party, csv_text, from_json, name_of, to_json
from assay.ledger.invoices.pdf import pdf_bytes
from assay.ledger.invoices.store import credit, issue, pro_forma, read_document, read_documents
from assay.ledger.journal.database import Place, open_engine, open_engine_to_read, reading, writing
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.journal.writer import write_entries
from assay.ledger.log.audit import Audited, audit
from assay.ledger.log.note import origin_of
from assay.protocol.errors import ConfigError
from tests.ledger.a_database import attempt, edit
from tests.ledger.an_invoiced_run import NOW_MS, RUN, SELLER, SPEC, TABLES, an_invoiced_run, other_seller

pytestmark = pytest.mark.slow

THREADS = 8
EPOCHS = range(SPEC.epochs)


@pytest.fixture
def books(place: Place, tmp_path: Path) -> Iterator[Engine]:
    an_invoiced_run(place, tmp_path)
    engine = open_engine(place)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """An invoice of the whole run, on SQLite."""
    folder = tmp_path_factory.mktemp("paper")
    place = folder / "ledger.db"
    an_invoiced_run(place, folder)
    engine = open_engine(place)
    made = issue(engine, SPEC, RUN, 0, 1, SELLER, NOW_MS)
    engine.dispose()
    return made


def an_invoice(books: Engine, first: int, last: int | None = None) -> Document:
    return issue(books, SPEC, RUN, first, first if last is None else last, SELLER, NOW_MS)


def issued(books: Engine) -> list[Document]:
    with reading(books) as db:
        return read_documents(db)


# ---- amounts


def test_an_invoice_charges_what_the_tables_pay_and_says_what_it_does_not(books: Engine):
    made = an_invoice(books, 0)

    table = TABLES[0]
    assert made.total == table.total == sum(line.amount for line in made.facts.lines)
    training = {line.peer: line for line in made.facts.lines if line.what == "training"}
    assert {row.peer.hex(): row.amount for row in table.rows if row.role == "operator"} == {
        peer: line.amount for peer, line in training.items()
    }
    assert sum(line.tokens for line in training.values()) == table.tokens_paid
    by_role = {line.what: line.amount for line in made.facts.lines if line.what != "training"}
    assert by_role == {"verification": table.paid("verifier"), "fee": table.paid("fee")}
    assert sum(one.steps for one in made.facts.not_charged) == len(table.unpaid) == 4
    assert all(one.worth > 0 and "fault" in one.reason for one in made.facts.not_charged)
    assert made.escrow.funded == 10**9
    assert made.escrow.funded - made.escrow.refunded == sum(one.total for one in TABLES.values())
    basis = made.facts.bases[0]
    assert (basis.root, basis.table_hash) == (table.tree().root.hex(), table.table_hash.hex())
    assert made.facts.checkpoint_size >= basis.entry > 0
    assert made.name == f"{RUN.hex()[:8].upper()}-000001"


def test_the_whole_run_is_one_invoice_with_the_lines_of_all_epochs(books: Engine):
    made = an_invoice(books, 0, 1)

    assert made.total == sum(table.total for table in TABLES.values())
    assert [basis.epoch for basis in made.facts.bases] == list(EPOCHS)
    assert made.facts.anchor_tx != ""  # the checkpoint that holds both is the one that was anchored


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE payout SET amount = amount + 1 WHERE epoch = 0 AND row_index = 0", "payout table's"),
        ("UPDATE settlement SET total = total + 1 WHERE epoch = 0", "payout table's sum"),
        ("UPDATE settlement SET tokens_paid = tokens_paid + 1000 WHERE epoch = 0", "price of its tokens"),
        ("UPDATE contribution SET tokens = tokens + 1 WHERE epoch = 0 AND round = 1", "tokens of its paid"),
        ("UPDATE settlement SET root = x'" + "00" * 32 + "' WHERE epoch = 0", "contract's result"),
        ("DELETE FROM unpaid WHERE epoch = 0", "tokens of its paid"),
        ("UPDATE posting SET amount = -amount WHERE entry IN "
         "(SELECT id FROM journal_entry WHERE kind = 'ResultFinalized' AND epoch = 0)", "entry "),
        ("UPDATE journal_entry SET kind = 'Claimed' WHERE kind = 'ResultFinalized' AND epoch = 0",
         "journal's entry"),
        ("DELETE FROM chain_event WHERE kind = 'ResultProposed'", "no ResultFinalized with"),
        ("DELETE FROM settlement WHERE epoch = 0", "0 payout tables"),
        ("UPDATE chain_event SET kind = 'RunClosing' WHERE kind = 'RunOpened'", "not opened by the buyer"),
        ("UPDATE checkpoint SET note = replace(note, '—', '-')", "checkpoint of"),
    ],
)  # fmt: skip
def test_records_that_differ_make_no_invoice_and_use_no_number(
    place: Place, tmp_path: Path, statement: str, words: str
):
    an_invoiced_run(place, tmp_path)
    edit(place, statement)
    books = open_engine(place)

    with pytest.raises(LedgerIntegrityError, match=words):
        an_invoice(books, 0)

    assert issued(books) == []
    books.dispose()


def test_an_epoch_that_is_not_final_has_no_invoice_yet(place: Place, tmp_path: Path):
    an_invoiced_run(place, tmp_path, epochs=1)
    books = open_engine(place)

    for first, last in ((1, 1), (0, 1), (5, 5), (-1, 0), (1, 0)):
        with pytest.raises(ConfigError, match="not final: no invoice yet; final epochs: 0"):
            an_invoice(books, first, last)
    assert an_invoice(books, 0).number == 1
    books.dispose()


def test_an_entry_that_no_checkpoint_covers_is_not_invoiced_yet(place: Place, tmp_path: Path):
    an_invoiced_run(place, tmp_path)
    edit(place, "DELETE FROM checkpoint")
    books = open_engine(place)

    with pytest.raises(ConfigError, match="no checkpoint covers"):
        an_invoice(books, 0)
    books.dispose()


# ---- numbers


def test_asking_again_gives_the_same_document_and_no_new_number(books: Engine):
    first = an_invoice(books, 0)
    again = issue(books, SPEC, RUN, 0, 0, other_seller("Somebody else"), NOW_MS + 1)

    assert again == first
    assert an_invoice(books, 1).number == 2
    assert [one.number for one in issued(books)] == [1, 2]


def test_an_epoch_is_on_one_invoice_that_stands(books: Engine):
    an_invoice(books, 0)

    with pytest.raises(ConfigError, match="already covers epochs 0 to 0"):
        an_invoice(books, 0, 1)


def test_eight_threads_at_once_leave_no_gap_and_issue_nothing_twice(place: Place, tmp_path: Path):
    an_invoiced_run(place, tmp_path)
    open_engine(place).dispose()
    barrier = Barrier(THREADS)

    def work(thread: int) -> list[str]:
        engine = open_engine(place)
        barrier.wait(60)
        done = []
        for lease in range(6):
            made = an_invoice(engine, (thread + lease) % 2)
            done.append(made.name)
            if thread % 2 == lease % 2:
                try:
                    note = credit(engine, SPEC, RUN, made.number, f"thread {thread}", NOW_MS)
                    done.append(note.name)
                except ConfigError:
                    raise AssertionError("an invoice that was issued can be taken back") from None
        engine.dispose()
        return done

    with ThreadPoolExecutor(THREADS) as pool:
        told = {name for names in pool.map(work, range(THREADS)) for name in names}

    engine = open_engine(place)
    kept = issued(engine)
    engine.dispose()
    for series in ("invoice", "credit"):
        numbers = [one.number for one in kept if one.series == series]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 2
    assert told == {one.name for one in kept}
    taken_back = [one.corrects for one in kept if one.series == "credit"]
    assert len(set(taken_back)) == len(taken_back)
    standing = [one for one in kept if one.series == "invoice" and one.number not in taken_back]
    assert len({one.facts.first_epoch for one in standing}) == len(standing) <= 2


def test_a_crash_between_any_two_statements_leaves_no_gap(place: Place, tmp_path: Path):
    an_invoiced_run(place, tmp_path)
    for stop in range(200):
        engine = open_engine(place)
        asked = [0]

        def count(*_: Any, asked: list[int] = asked, stop: int = stop) -> None:
            asked[0] += 1
            if asked[0] > stop:
                raise KeyboardInterrupt

        sa.event.listen(engine, "before_cursor_execute", count)
        try:
            made = an_invoice(engine, 0)
            break
        except KeyboardInterrupt:
            pass
        finally:
            engine.dispose()
    assert stop > 10
    assert made.number == 1
    engine = open_engine(place)
    assert [one.number for one in issued(engine)] == [1]
    assert an_invoice(engine, 1).number == 2
    engine.dispose()


# ---- what was issued stays


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE invoice SET total = total + 1",
        "UPDATE invoice SET body = '{}'",
        "UPDATE invoice SET issued_ms = 0",
        "DELETE FROM invoice",
        "INSERT INTO invoice VALUES ('invoice', 3, 7, 7, NULL, 1, 0, '', x'00')",
        "INSERT INTO invoice VALUES ('invoice', 2, 0, 0, NULL, 1, 0, '', x'00')",
        "INSERT INTO invoice VALUES ('invoice', 0, 7, 7, NULL, 1, 0, '', x'00')",
        "INSERT INTO invoice VALUES ('credit', 1, 0, 0, 9, -1, 0, '', x'00')",
        "INSERT INTO invoice SELECT 'credit', 1, 0, 0, 1, -total - 1, 0, '', x'00' FROM invoice",  # too much
        "INSERT INTO invoice SELECT 'credit', 1, 0, 1, 1, -total, 0, '', x'00' FROM invoice",
        "INSERT INTO invoice VALUES ('credit', 1, 0, 0, 1, 1, 0, '', x'00')",
        f"INSERT INTO invoice VALUES ('credit:0x{40 * 'a'}', 1, 0, 0, 1, -1, 0, '', x'00')",
        f"INSERT INTO invoice VALUES ('invoice:0x{39 * 'a'}', 1, 0, 0, NULL, 1, 0, '', x'00')",
        "INSERT INTO invoice VALUES ('credit', 1, 0, 0, NULL, -1, 0, '', x'00')",
        "INSERT INTO invoice VALUES ('draft', 1, 7, 7, NULL, 1, 0, '', x'00')",
        "INSERT INTO invoice VALUES ('invoice', 2, 8, 7, NULL, 1, 0, '', x'00')",
    ],
)
def test_the_database_itself_refuses_to_change_or_misnumber(books: Engine, place: Place, statement: str):
    made = an_invoice(books, 0)

    with pytest.raises(sa.exc.SQLAlchemyError):
        attempt(place, statement)

    assert issued(books) == [made]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE invoice SET total = total + 1",
        "UPDATE invoice SET body = replace(body, 'Berlin', 'Bern')",
        "UPDATE invoice SET last_epoch = 1",
    ],
)
def test_a_document_changed_by_the_databases_owner_is_seen(place: Place, tmp_path: Path, statement: str):
    an_invoiced_run(place, tmp_path)
    books = open_engine(place)
    an_invoice(books, 0)
    books.dispose()
    edit(place, statement)
    books = open_engine(place)

    with reading(books) as db, pytest.raises(LedgerIntegrityError, match="invoice 1: its text"):
        read_document(db, "invoice", 1)
    books.dispose()


def audited(place: Place) -> Audited:
    with reading(open_engine_to_read(place)) as db:
        return audit(db, origin_of(RUN), None, [])


def rewritten(one: Document) -> str:
    """SQL that gives the document another buyer, and its row the hash of that."""
    text = to_json(replace(one, buyer=replace(one.buyer, name="Somebody Else")))
    same = f"series = 'invoice' AND number = {one.number}"
    return f"UPDATE invoice SET body = '{text}', body_hash = x'{document_hash(text).hex()}' WHERE {same}"


@pytest.mark.parametrize(
    ("edited", "words"),
    [
        (
            lambda _: "DELETE FROM invoice WHERE series = 'credit'",
            "^credit 1 is in the log and not on record",
        ),
        (rewritten, "^invoice 2 is "),
        (lambda _: "UPDATE invoice SET number = 7 WHERE number = 2", "^invoice 2 is in the log and not"),
        (
            lambda _: (
                "INSERT INTO invoice SELECT series, 3, first_epoch, last_epoch, corrects, total, issued_ms, "
                "body, body_hash FROM invoice WHERE series = 'invoice' AND number = 1"
            ),
            "^invoice 3 is not in the log",
        ),
    ],
    ids=["removed", "rewritten", "renumbered", "added"],
)
def test_the_audit_finds_what_became_of_a_document_that_its_own_row_cannot_show(
    place: Place, tmp_path: Path, edited: Callable[[Document], str], words: str
):
    an_invoiced_run(place, tmp_path)
    before = audited(place).entries
    engine = open_engine(place)
    an_invoice(engine, 0)
    second = an_invoice(engine, 1)
    credit(engine, SPEC, RUN, 2, "wrong address", NOW_MS)
    engine.dispose()
    assert audited(place).entries == before + 3

    edit(place, edited(second))

    with pytest.raises(LedgerIntegrityError, match=words):
        audited(place)


@pytest.mark.parametrize("key", ["document", "document/invoice", "document/invoice/1/00/00", "x" * 99])
def test_a_document_in_the_log_that_is_named_in_no_known_way_is_an_error_in_words(
    place: Place, tmp_path: Path, key: str
):
    an_invoiced_run(place, tmp_path)
    engine = open_engine(place)
    with writing(engine) as db:
        write_entries(db, [replace(record(DOCUMENT, "", b"x" * 32), key=key)], NOW_MS)
    engine.dispose()

    with pytest.raises(LedgerIntegrityError, match="is in the log and not on record"):
        audited(place)


def test_the_hash_in_the_log_tells_nobody_who_bought(books: Engine):
    made = an_invoice(books, 0)
    note = credit(books, SPEC, RUN, 1, "wrong address", NOW_MS)

    again = an_invoice(books, 0)

    assert len({made.salt, note.salt, again.salt}) == 3
    assert {len(one.salt) for one in (made, note, again)} == {32}


def test_an_invoice_that_the_books_no_longer_bear_out_is_not_shown_as_good(place: Place, tmp_path: Path):
    an_invoiced_run(place, tmp_path)
    books = open_engine(place)
    an_invoice(books, 0)
    books.dispose()
    edit(place, "UPDATE unpaid SET reason = 'accused' WHERE epoch = 0")
    books = open_engine(place)

    with pytest.raises(LedgerIntegrityError, match="not charged differs from the books"):
        an_invoice(books, 0)
    books.dispose()


def test_a_credit_note_takes_a_whole_invoice_back_once(books: Engine):
    first = an_invoice(books, 0)
    note = credit(books, SPEC, RUN, 1, "wrong VAT number", NOW_MS + 5)

    assert (note.total, note.corrects, note.reason) == (-first.total, 1, "wrong VAT number")
    assert note.name.endswith("-C000001")
    assert credit(books, SPEC, RUN, 1, "again", NOW_MS + 9) == note
    assert an_invoice(books, 0).number == 2  # the first number is never used again
    with pytest.raises(ConfigError, match="no invoice has the number 9"):
        credit(books, SPEC, RUN, 9, "x", NOW_MS)
    for reason in ("", "  ", "a\nb", "x" * 300):
        with pytest.raises(ConfigError, match="needs a reason"):
            credit(books, SPEC, RUN, 2, reason, NOW_MS)


def test_a_pro_forma_takes_no_number(books: Engine):
    with reading(books) as db:
        made = pro_forma(db, SPEC, RUN, 0, 1, NOW_MS)

    assert (made.number, made.supplier, made.salt, issued(books)) == (0, Party(), "", [])
    assert "PRO-FORMA" in made.name
    assert "Pro forma" in pdf_text(pdf_bytes(made))


# ---- spellings


def test_a_document_is_its_json_and_nothing_else(paper: Document):
    text = to_json(paper)

    assert from_json(text) == paper
    assert f'"total":"{paper.total}"' in text  # amounts are text: no reader rounds them
    for other in (text.replace('"number":1', '"number":01'), text + " ", "{}", "[]", "nonsense",
                  text.replace('"currency":"aUSD"', '"currency":"EUR"'), text[:-1] + ',"x":1}'):  # fmt: skip
        with pytest.raises(ValueError):
            from_json(other)
    assert document_hash(text) != document_hash(text + " ")


def test_csv_adds_up_to_the_total(paper: Document):
    rows = list(csv.DictReader(io.StringIO(csv_text(paper))))

    charged = [int(row["amount"]) for row in rows if row["what"] in ("training", "verification", "fee")]
    assert sum(charged) == int(rows[-1]["amount"]) == paper.total
    assert sum(int(row["tokens"]) for row in rows if row["what"] == "training") == sum(
        table.tokens_paid for table in TABLES.values()
    )


def test_no_cell_of_the_csv_is_run_by_a_spreadsheet(paper: Document):
    evil = replace(paper, series="credit", corrects=1, reason='=HYPERLINK("http://evil")')

    assert list(csv.DictReader(io.StringIO(csv_text(evil))))[-1]["note"].startswith("'=")


# ---- on paper


def pdf_text(body: bytes) -> str:
    """The text of a PDF, as a reader that searches it finds it."""
    return "\n".join(page.extract_text() for page in PdfReader(io.BytesIO(body)).pages)


def test_one_document_has_one_pdf_whenever_it_is_made(paper: Document, monkeypatch: pytest.MonkeyPatch):
    first = pdf_bytes(paper)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 10**6)

    assert pdf_bytes(paper) == first
    assert first.startswith(b"%PDF-")
    assert b"/CreationDate (D:20231114" in first  # of the document, not of the day on which it is printed
    assert pdf_bytes(replace(paper, issued_ms=NOW_MS + 86_400_000)) != first


def test_the_pdfs_text_can_be_searched(paper: Document):
    text = pdf_text(pdf_bytes(paper))

    for words in (
        f"Invoice {paper.name}", "Assay Compute GmbH", "DE123456789", "Mira Labs", "Reverse charge.",
        paper.buyer.account, money_text(paper.total), "Not charged", paper.facts.bases[1].root,
        paper.facts.bases[0].final_tx, paper.facts.checkpoint_root, paper.facts.anchor_tx, "2023-11-14",
    ):  # fmt: skip
        assert words in text.replace("\n", "") or words in text, words


@pytest.mark.parametrize("name", ["Łódź Çelik Ωmega Ελλάς ООО «Ёлка»", "W" * 200, "ab " * 66])
def test_long_names_and_other_alphabets_are_printed(paper: Document, name: str):
    made = replace(paper, supplier=replace(paper.supplier, name=name), buyer=replace(paper.buyer, name=name))

    text = pdf_text(pdf_bytes(made)).replace("\n", "").replace(" ", "")
    assert text.count(name.replace(" ", "")) == 2


def test_a_character_that_the_font_lacks_is_an_error_in_words(paper: Document, tmp_path: Path):
    made = replace(paper, supplier=replace(paper.supplier, name="株式会社"))

    with pytest.raises(ConfigError, match=r"Source Sans Pro has no .*U\+682A.*--font"):
        pdf_bytes(made)
    nonsense = tmp_path / "font.ttf"
    nonsense.write_bytes(b"no font at all, whatever its name says")
    for font in (nonsense, tmp_path / "missing.ttf"):
        with pytest.raises(ConfigError, match="cannot be used as a font"):
            pdf_bytes(made, font)


def test_a_party_is_bounded():
    for make in (
        lambda: Party(name="x" * 201),
        lambda: Party(address=("x",) * 9),
        lambda: Party(name="a\nb"),
        lambda: Party(name="a\x00b"),
        lambda: Party(vat_id="\u202e"),
    ):
        with pytest.raises(ValueError):
            make()


def test_a_thousand_lines_run_over_pages(paper: Document):
    lines = tuple(replace(paper.facts.lines[0], peer=f"{n:064x}") for n in range(1_000))
    made = replace(paper, facts=replace(paper.facts, lines=lines))

    assert len(PdfReader(io.BytesIO(pdf_bytes(made))).pages) > 10


def test_names_of_documents_differ_between_runs_and_series():
    names = {name_of(run, series, n) for run in ("aa" * 32, "bb" * 32) for series in ("invoice", "credit")
             for n in (1, 2)}  # fmt: skip
    assert len(names) == 8


def test_an_invoice_is_printed_without_matplotlib():
    script = "import sys, assay.ledger.invoices.pdf; sys.exit('matplotlib' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
