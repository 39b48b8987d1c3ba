"""Invoice command: who sells is on file or nothing is issued, and what was delivered stays as signed."""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.bundle import books
from assay.chain.commit_statement import evm_address
from assay.cli.main import run
from assay.protocol.encoding.codec import encode
from tests.ledger.an_invoiced_run import RUN, SPEC, TABLES, an_invoiced_run

pytestmark = pytest.mark.slow

SUPPLIER = """
[supplier]
name = "Assay Compute GmbH"
address = ["Weg 1", "10115 Berlin"]
vat_id = "DE123456789"

[buyer]
name = "Mira Labs"
"""
NAME = f"{RUN.hex()[:8].upper()}-000001"
Assay = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "paper"
    ledger_service = made / "participants" / "ledger"
    ledger_service.mkdir(parents=True)
    an_invoiced_run(ledger_service / "ledger.db", ledger_service)
    shutil.copy(ledger_service / "ledger.db", made / "ledger.db")
    (made / "bundle").mkdir()
    (made / "bundle" / "spec.cbor").write_bytes(encode(SPEC))
    (made / "index.json").write_text("{}")
    return made


@pytest.fixture
def supplier(folder: Path) -> Path:
    path = folder / "participants" / "ledger" / "supplier.toml"
    path.write_text(SUPPLIER)
    return path


@pytest.fixture
def assay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Assay:
    monkeypatch.setattr(books, "run_id_of", lambda _: RUN)
    monkeypatch.setattr(books, "read_spec", lambda _: SPEC)  # too small for a real run

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def delivered(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and "participants" not in p.parts}


def test_without_a_supplier_it_is_pro_forma_and_nothing_is_written(assay: Assay, folder: Path):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    code, out, err = assay("invoice", folder)

    assert (code, err) == (0, "")
    assert f"pro forma {NAME[:9]}PRO-FORMA: epochs 0 to 1" in out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_with_one_it_is_an_invoice_and_the_delivered_books_stay_as_they_are(
    assay: Assay, folder: Path, supplier: Path, tmp_path: Path
):
    before = delivered(folder)
    pdf, table = tmp_path / "i.pdf", tmp_path / "i.csv"

    code, out, err = assay("invoice", folder, "--epoch", 0, "--pdf", pdf, "--csv", table)
    again = assay("invoice", folder, "--epoch", 0)

    assert (code, err) == (0, "")
    assert f"invoice {NAME}: epoch 0, " in out
    assert f"invoice {NAME}: epoch 0, " in again[1]
    assert "not charged   epoch 0, 4 steps, " in out
    assert pdf.read_bytes().startswith(b"%PDF")
    with open(table) as file:
        assert int(list(csv.DictReader(file))[-1]["amount"]) == TABLES[0].total
    assert delivered(folder) == before


def test_a_credit_note_makes_room_for_another_invoice(assay: Assay, folder: Path, supplier: Path):
    assay("invoice", folder)
    code, _, err = assay("invoice", folder, "--epoch", 1)
    assert (code, f"invoice {NAME} already covers" in err) == (2, True)

    code, out, _ = assay("invoice", folder, "--credit", 1, "--reason", "one for each epoch")
    assert (code, "cancels invoice 1: one for each epoch" in out) == (0, True)
    assert f"{NAME[:-1]}2: epoch 1" in assay("invoice", folder, "--epoch", 1)[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("vat_id = ", "vat = "), "vat_id: is missing"),
        (('vat_id = "DE123456789"', 'vat_id = ""'), "vat_id"),
        (('name = "Assay Compute GmbH"', "name = 7"), "expected text"),
        (('["Weg 1", "10115 Berlin"]', "[]"), "address"),
        (('["Weg 1", "10115 Berlin"]', '["a\\u0000b"]'), "cannot be printed"),
        (("[supplier]", "[seller]"), "[supplier]"),
        (("[supplier]", "[[["), "is not TOML"),
    ],
)
def test_a_supplier_that_lacks_something_is_refused(
    assay: Assay, folder: Path, supplier: Path, change: tuple[str, str], words: str
):
    supplier.write_text(SUPPLIER.replace(*change))

    code, out, err = assay("invoice", folder)

    assert (code, out, words in err) == (2, "", True), err
    assert "PRO-FORMA" not in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["{}", "--epoch", 7], "not final"),
        (["{}", "--credit", 3, "--reason", "x"], "no invoice has the number 3"),
        (["{}", "--supplier", "nowhere.toml"], "cannot be read"),
        (
            ["{}/ledger.db", "--supplier", "{}/participants/ledger/supplier.toml"],
            "part of what was delivered",
        ),
        (["nowhere"], "no ledger.db here"),
        (["{}", "--pdf", "{}/no/such/folder.pdf"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    assay: Assay, folder: Path, supplier: Path, words: list[object], expected: str
):
    code, _, err = assay("invoice", *(str(word).format(folder) for word in words))

    assert (code, err.count("\n"), expected in err) == (2, 1, True), err


RATES = "time,currency,rate,source\n2023-11-01T00:00:00Z,EUR,0.5,example exchange\n"
IN_EURO = SUPPLIER.replace("vat_id", 'currency = "EUR"\nrates = "rates.csv"\nvat_id', 1)


def test_with_a_rates_file_the_invoice_is_in_euro_too(
    assay: Assay, folder: Path, supplier: Path, tmp_path: Path
):
    supplier.write_text(IN_EURO)
    supplier.with_name("rates.csv").write_text(RATES)

    code, out, err = assay("invoice", folder, "--epoch", 0, "--csv", tmp_path / "i.csv")

    assert (code, err) == (0, "")
    assert "EUR" in out
    assert "1 aUSD = 0.5 EUR (example exchange, 2023-11-01 00:00:00 UTC" in (tmp_path / "i.csv").read_text()


@pytest.mark.parametrize(
    ("toml", "rates", "words"),
    [
        (IN_EURO, None, "rates.csv: cannot be read"),
        (IN_EURO, b"\xff", "rates.csv: is not UTF-8 text"),
        (IN_EURO, b"a,b\n", "rates.csv: line 1: the columns are"),
        (IN_EURO.replace('"EUR"', '"aUSD"'), RATES.encode(), "currency 'aUSD', expected one of"),
        (IN_EURO.replace('rates = "rates.csv"\n', ""), RATES.encode(), "currency and rates go together"),
    ],
)
def test_a_currency_without_usable_rates_is_refused(
    assay: Assay, folder: Path, supplier: Path, toml: str, rates: bytes | None, words: str
):
    supplier.write_text(toml)
    if rates is not None:
        supplier.with_name("rates.csv").write_bytes(rates)

    code, out, err = assay("invoice", folder)

    assert (code, out, err.count("\n"), words in err) == (2, "", 1, True), err


AT_HOME = IN_EURO.replace(
    'vat_id = "DE123456789"', 'vat_id = "DE136695976"\ncountry = "DE"\nprices = "gross"', 1
).replace('name = "Mira Labs"', 'name = "Mira Labs"\ncountry = "DE"\nkind = "business"')
AT_HOME += '[[vat_rate]]\ncountry = "DE"\npercent = "19"\nfirst = 2021-01-01\n'


def test_with_countries_the_tax_is_decided_and_shown(assay: Assay, folder: Path, supplier: Path):
    supplier.write_text(AT_HOME)
    supplier.with_name("rates.csv").write_text(RATES)

    code, out, err = assay("invoice", folder, "--epoch", 0)

    assert (code, err) == (0, "")
    assert "19.00 % of DE" in out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('kind = "business"', ""), "[buyer] country and kind are needed"),
        (('kind = "business"', 'kind = "shop"'), "kind"),
        (('"DE136695976"', '"DE136695977"'), "supplier's VAT number"),
        (('prices = "gross"', ""), "prices says whether"),
        (('percent = "19"', 'percent = "19 %"'), "percent"),
        (("first = 2021-01-01", "first = 2031-01-01"), "no rate of VAT of DE in force on 2023-11-14"),
        (('prices = "gross"', 'tax_note = "none"'), "tax_note and country"),
        (('currency = "EUR"\nrates = "rates.csv"', ""), "VAT needs a currency and its rates"),
    ],
)
def test_a_tax_that_cannot_be_decided_issues_nothing(
    assay: Assay, folder: Path, supplier: Path, change: tuple[str, str], words: str
):
    assert change[0] in AT_HOME
    supplier.write_text(AT_HOME.replace(*change))
    supplier.with_name("rates.csv").write_text(RATES)

    code, out, err = assay("invoice", folder)

    assert (code, out, err.count("\n"), words in err) == (2, "", 1, True), err


ACCOUNT = evm_address(next(row.account for row in TABLES[0].rows if row.role == "operator"))
WITH_OPERATOR = (
    AT_HOME
    + f"""
[[operator]]
account = "{ACCOUNT}"
name = "Ola Operator"
address = ["Rue 1", "75001 Paris"]
country = "FR"
vat_id = "FR40303265045"
agreement = "of 2023-01-05"
"""
)
FACTS = {"person": "natural", "tin": "3023217600053", "tin_country": "FR", "birth_date": "1990-05-17"}
IDENTIFIED = WITH_OPERATOR + "".join(
    f"{name} = {value}\n" if name == "birth_date" else f'{name} = "{value}"\n'
    for name, value in FACTS.items()
)


def test_an_operator_has_a_self_billed_invoice_with_reverse_charge(
    assay: Assay, folder: Path, supplier: Path, tmp_path: Path
):
    supplier.write_text(WITH_OPERATOR)
    supplier.with_name("rates.csv").write_text(RATES)

    code, out, err = assay("invoice", folder, "--operator", ACCOUNT.lower(), "--ubl", tmp_path / "i.xml")

    assert (code, err) == (0, "")
    assert f"-S{ACCOUNT[2:10].upper()}-000001" in out
    assert "Reverse charge (articles 44 and 196" in out
    xml = (tmp_path / "i.xml").read_text()
    assert ">389<" in xml
    assert "Self-billing (article 224 of Directive 2006/112/EC), agreement: of 2023-01-05" in xml


def test_a_part_of_an_invoice_is_credited(assay: Assay, folder: Path, supplier: Path):
    assay("invoice", folder)

    code, out, err = assay(
        "invoice", folder, "--credit", 1, "--epoch", 1, "--amount", "0.5", "--reason", "late"
    )

    assert (code, err) == (0, "")
    assert "-C000001: epoch 1, -0.500000 aUSD" in out
    assert "takes back a part of invoice 1: late" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--amount", "1"], "--amount goes with --credit NUMBER"),
        (["--operator", "ola"], "is no address"),
        (["--operator", "0x52908400098527886E0F7030069857D2E4169Ee7"], "is no address"),  # checksum
        (["--operator", "0x" + "ab" * 20], "0 tables [[operator]] of account"),
        (["--credit", 1, "--epoch", 9, "--reason", "x"], "no invoice has the number 1"),
    ],
)
def test_a_mistaken_part_or_operator_is_one_line(
    assay: Assay, folder: Path, supplier: Path, words: list[object], expected: str
):
    supplier.write_text(WITH_OPERATOR)
    supplier.with_name("rates.csv").write_text(RATES)

    code, _, err = assay("invoice", folder, *words)

    assert (code, err.count("\n"), expected in err) == (2, 1, True), err


def test_the_yearly_report_names_operators_and_counts_no_run_twice(
    assay: Assay, folder: Path, supplier: Path, tmp_path: Path
):
    supplier.write_text(WITH_OPERATOR)
    supplier.with_name("rates.csv").write_text(RATES)
    where, rest = tmp_path / "year.csv", ("--supplier", supplier, "--year", 2023)

    code, out, err = assay("ledger", "yearly", folder, *rest, "--csv", where)

    assert (code, err) == (0, "")
    with open(where) as file:
        rows = {row["account"]: row for row in csv.DictReader(file)}
    paid = [
        row
        for table in TABLES.values()
        for row in table.rows
        if row.role == "operator" and evm_address(row.account) == ACCOUNT
    ]
    mine = rows[ACCOUNT]
    assert (mine["quarter"], mine["name"], mine["country"]) == ("4", "Ola Operator", "FR")
    assert (int(mine["supplies"]), int(mine["credited_units"])) == (
        len(paid),
        sum(row.amount for row in paid),
    )
    assert f"2023 Q4 {ACCOUNT} Ola Operator: " in out
    assert f"{ACCOUNT} lacks person, tin, tin_country: " in out
    code, _, err = assay("ledger", "yearly", folder, folder, *rest)
    assert (code, "would count twice" in err) == (2, True)
    code, out, _ = assay("ledger", "yearly", folder, "--supplier", supplier, "--year", 2024)
    assert (code, out) == (0, "nothing was earned or claimed in 2024\n")


def test_what_identifies_an_operator_is_in_the_yearly_report_and_in_no_document_or_log(
    assay: Assay, folder: Path, supplier: Path, tmp_path: Path
):
    supplier.write_text(IDENTIFIED)
    supplier.with_name("rates.csv").write_text(RATES)
    where = tmp_path / "year.csv"

    code, out, _ = assay("ledger", "yearly", folder, "--supplier", supplier, "--year", 2023, "--csv", where)
    assert assay("invoice", folder, "--operator", ACCOUNT, "--ubl", tmp_path / "i.xml")[0] == 0

    with open(where) as file:
        mine = {row["account"]: row for row in csv.DictReader(file)}[ACCOUNT]
    assert (code, mine["address"]) == (0, "Rue 1, 75001 Paris")
    assert {name: mine[name] for name in FACTS} == FACTS
    assert f"{ACCOUNT} lacks" not in out
    written = (tmp_path / "i.xml").read_bytes() + b"".join(
        path.read_bytes() for path in folder.rglob("ledger.db*")
    )
    assert b"Rue 1" in written
    for name in ("tin", "birth_date"):
        assert FACTS[name] not in out
        assert FACTS[name].encode() not in written


DATEV = """adviser = 29098
client = 55003
year_start = 2023-01-01
digits = 4
rates = "rates.csv"
[accounts]
"asset:escrow" = 1590
budget = 1701
reserved = 1702
payable = 1703
"""


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    (tmp_path / "rates.csv").write_text(RATES)
    (tmp_path / "datev.toml").write_text(DATEV)
    return tmp_path / "datev.toml"


def test_a_month_of_the_books_is_a_batch_in_the_formats_own_bytes(
    folder: Path, chart: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
):
    words = ["ledger", "export", str(folder), "--datev", str(chart), "--month", "2023-11"]
    monkeypatch.setattr(sys, "argv", ["assay", *words])
    with pytest.raises(SystemExit) as ended:
        run()

    assert not ended.value.code
    out = capsysbinary.readouterr().out.decode("cp1252")
    header, headings, *rows = out.split("\r\n")
    assert header.startswith('"EXTF";700;21;"Buchungsstapel";13;2')
    assert ";29098;55003;20230101;4;20231101;20231130;" in header
    assert ";BU-Schlüssel;" in headings
    paid = sum(row.amount for table in TABLES.values() for row in table.rows)
    cents = sum(int(row.split(";")[0].replace(",", "")) for row in rows[:-1] if ";1703;1590;" in row)
    assert cents == pytest.approx(paid / 20_000, abs=len(rows))  # at 0.5 EUR a token; each entry is rounded


@pytest.mark.parametrize(
    ("change", "words", "expected"),
    [
        (("", ""), ["--month", "2023-13"], "--month '2023-13', expected such as 2026-11"),
        (("", ""), [], "--datev FILE.toml goes with --month MONTH, and with nothing else"),
        (("", ""), ["--month", "2023-11", "--csv"], "and with nothing else"),
        (("adviser = 29098\n", ""), ["--month", "2023-11"], "adviser"),
        (("payable = 1703", "payables = 1703"), ["--month", "2023-11"], "payables"),
        (
            ("payable = 1703", "payable = 100000"),
            ["--month", "2023-11"],
            "payable = 100000, expected at most 5 digits",
        ),
        (("payable = 1703", ""), ["--month", "2023-11"], "[accounts] names none for payable"),
        (("rates.csv", "rate.csv"), ["--month", "2023-11"], "rate.csv: cannot be read"),
    ],
)
def test_a_mistaken_batch_is_one_line(
    assay: Assay, folder: Path, chart: Path, change: tuple[str, str], words: list[str], expected: str
):
    assert change[0] in DATEV
    chart.write_text(DATEV.replace(*change))

    code, out, err = assay("ledger", "export", folder, "--datev", chart, *words)

    assert (code, out, err.count("\n"), expected in err) == (2, "", 1, True), err
