"""DATEV: each field is as the format's description says, and the accounts add up to the books' cents.

The first expressions of each line are those of DATEV's description of the header and of the posting batch,
format version 13 (https://developer.datev.de/datev/platform/en/dtvf/formate); the rest follow others' lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timezone

import pytest

from assay.ledger.accounts import BONDS, ESCROW, Kind, budget, payable
from assay.ledger.books import DOCUMENT, Entry, Posting, record
from assay.ledger.invoices import datev
from assay.ledger.invoices.datev import HEADINGS, Chart, datev_batch
from assay.ledger.invoices.rates import Rate
from assay.ledger.journal.leaf import Written
from assay.protocol.errors import ConfigError
from tests.ledger.a_run import RUN, wallet
from tests.ledger.queries.test_export import a_life, written

NOVEMBER, NOON = date(2026, 11, 1), datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
CHART = Chart(
    adviser=29098,
    client=55003,
    year_start=date(2026, 1, 1),
    digits=4,
    accounts={kind: 1_000 + place for place, kind in enumerate(Kind)},
)
OCTOBER = datetime(2026, 10, 31, tzinfo=timezone.utc)
# For one unit of the token.
A_CENT = Rate(time_s=int(OCTOBER.timestamp()), currency="EUR", nano=10_000 * 10**9, source="x")
DAY = r"(20\d{2})(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])"
HEADER = (
    r'"EXTF"', "700", "21", '"Buchungsstapel"', "13", r"20\d{15}", "", '"[a-zA-Z]{0,2}"', r'"\w{0,25}"',
    '""',
    r"\d{4,7}", r"\d{1,5}", DAY, "[4-8]", DAY, DAY, r'"[\w.\-/ ]{0,30}"', '"([A-Z]{2})?"', "[12]",
    "(0|30|40|50|64)", "[01]", '"[A-Z]{3}"', "", '""', "", "", r'"(\d{2}){0,2}"', r"\d{0,4}", "", '""',
    '".{0,16}"',
)  # fmt: skip
FIELDS = {
    1: r"(?!0+,00)\d{1,10},\d{2}", 2: '"[SH]"', 3: '"[A-Z]{3}"', 7: r"(?!0+$)\d{1,9}", 8: r"(?!0+$)\d{1,9}",
    10: r"(0[1-9]|[12]\d|3[01])(0[1-9]|1[0-2])", 11: r'"[\w$%\-/]{0,36}"', 14: '".{0,60}"', 114: "[01]",
    **dict.fromkeys(range(21, 27, 2), '".{0,20}"'), **dict.fromkeys(range(22, 27, 2), '".{0,210}"'),
}  # fmt: skip


def an_entry(
    *postings: Posting, when: datetime = NOON, kind: str = "ResultFinalized", reverses: str = ""
) -> Entry:
    return Entry(
        key=f"{kind}:{when}", kind=kind, block_number=1, block_hash=b"", block_time=int(when.timestamp()),
        epoch=0, postings=postings, reverses=reverses,
    )  # fmt: skip


def paid(amount: int) -> tuple[Posting, Posting]:
    return Posting(account=ESCROW, amount=amount), Posting(account=budget(RUN), amount=-amount)


def rows_of(
    found: Sequence[Written], rate: Rate = A_CENT, chart: Chart = CHART, month: date = NOVEMBER
) -> list[list[str]]:
    """The rows of a batch in which every field is as the description says."""
    lines = datev_batch(found, month, chart, [rate], NOON).decode("cp1252").split("\r\n")
    assert lines.pop() == ""
    header = lines[0].split(";")
    assert len(header) == len(HEADER)
    for number, (cell, form) in enumerate(zip(header, HEADER, strict=True), 1):
        assert re.fullmatch(form, cell), (number, cell)
    assert lines[1] == HEADINGS
    rows = [line.split(";") for line in lines[2:]]
    for row in rows:
        assert len(row) == 125
        for number, cell in enumerate(row, 1):
            assert re.fullmatch(FIELDS.get(number, ""), cell), (number, cell)
        assert row[6] != row[7]
    return rows


def cents_of(rows: Sequence[Sequence[str]]) -> dict[str, int]:
    """What each account of the chart gained by debits."""
    sums: dict[str, int] = {}
    for row in rows:
        cents = int(row[0].replace(",", "")) * (1 if row[1] == '"S"' else -1)
        sums[row[6]] = sums.get(row[6], 0) + cents
        sums[row[7]] = sums.get(row[7], 0) - cents
    return {account: cents for account, cents in sums.items() if cents}


def test_the_header_names_whose_books_of_which_days():
    header = datev_batch([], NOVEMBER, CHART, [], NOON).decode("cp1252").split("\r\n")[0]

    assert header == (
        '"EXTF";700;21;"Buchungsstapel";13;20261129120000000;;"RE";"";"";29098;55003;'
        '20260101;4;20261101;20261130;"Assay 2026-11";"";1;0;0;"EUR";;"";;;"";;;"";""'
    )
    assert HEADINGS.split(";")[:2] == ["Umsatz (ohne Soll/Haben-Kz)", "Soll/Haben-Kennzeichen"]
    assert [HEADINGS.split(";")[place - 1] for place in (8, 10, 14, 37, 87, 114, 118, 125)] == [
        "Gegenkonto (ohne BU-Schlüssel)", "Belegdatum", "Buchungstext", "KOST1 - Kostenstelle",
        "Zusatzinformation- Inhalt 20", "Festschreibung", "Generalumkehr (GU)", "Abw. Skontokonto",
    ]  # fmt: skip


def test_the_charts_accounts_add_up_to_the_books():
    entries = [replace(one, block_time=int(NOON.timestamp())) for one in a_life()]

    sums: dict[str, int] = {}
    for entry in entries:
        for posting in entry.postings:
            number = str(CHART.accounts[posting.account.kind])
            sums[number] = sums.get(number, 0) + posting.amount
    assert cents_of(rows_of(written(entries))) == {account: cents for account, cents in sums.items() if cents}
    assert len(sums) > 5


def test_a_strangers_kind_of_entry_is_one_field_that_moves_no_cursor():
    (row,) = rows_of(written([an_entry(*paid(1_000_000), kind='\x1b[2J\u202e"ł')]), A_CENT)

    assert row[13] == '"?[2J??? 1.000000 aUSD"'


def test_a_row_names_its_entry_the_tokens_and_our_accounts():
    debit, credit = paid(1_234_567_890)
    found = written([an_entry(debit, credit)])

    (row,) = rows_of(found, replace(A_CENT, nano=861_200_000))

    assert row[:3] == ["1063,21", '"S"', '"EUR"']
    assert row[6:8] == ["1000", "1003"]
    assert (row[9], row[10]) == ("2911", '"1"')
    assert row[13] == '"ResultFinalized 1,234.567890 aUSD"'
    assert row[21] == f'"{ESCROW.code}"'
    assert row[23] == f'"{budget(RUN).code}"'
    assert row[25] == f'"{found[0].leaf.hex()}"'


def test_the_days_of_blocks_decide_the_month_and_documents_have_no_rows():
    def at(day: int, month: int, second: int) -> Entry:
        when = datetime(
            2026, month, day, 23 if second else 0, 59 if second else 0, second, tzinfo=timezone.utc
        )
        return an_entry(*paid(100), when=when)

    found = written(
        [at(31, 10, 59), at(1, 11, 0), at(30, 11, 59), at(1, 12, 0), record(DOCUMENT, "invoice/1", bytes(32))]
    )

    assert [row[9] for row in rows_of(found)] == ["0111", "3011"]
    assert [row[9] for row in rows_of(found, month=date(2026, 12, 1))] == ["0112"]


def test_an_entry_is_rounded_once_and_less_than_a_cent_has_no_row():
    owed = [Posting(account=payable("operator", wallet(name), 0), amount=-4_000) for name in "abcdefghij"]
    entry = an_entry(Posting(account=ESCROW, amount=40_000), *owed)

    rows = rows_of(written([entry]), replace(A_CENT, nano=10**9))  # 0.4 cents each

    assert cents_of(rows) == {"1000": 4, "1005": -4}
    assert len(rows) == 4


def test_what_a_reorganisation_took_back_is_nothing_in_every_account():
    postings = (
        Posting(account=ESCROW, amount=3_333), Posting(account=BONDS, amount=6_667),
        Posting(account=budget(RUN), amount=-4_999),
        Posting(account=payable("operator", wallet("a"), 0), amount=-5_001),
    )  # fmt: skip
    back = tuple(replace(one, amount=-one.amount) for one in postings)
    rate = replace(A_CENT, nano=12_345_678_901)

    once = rows_of(written([an_entry(*postings)]), rate)
    both = rows_of(written([an_entry(*postings), an_entry(*back, kind="reversal", reverses="x")]), rate)

    assert cents_of(once)
    assert cents_of(both) == {}


def test_what_stays_in_one_account_of_the_chart_has_no_row():
    same = replace(CHART, accounts={**CHART.accounts, Kind.BUDGET: CHART.accounts[Kind.ESCROW]})

    assert rows_of(written([an_entry(*paid(100))]), chart=same) == []


def test_a_short_first_year_begins_within_its_month():
    late = replace(CHART, year_start=date(2026, 11, 20))
    found = written([an_entry(*paid(100), when=NOON.replace(day=day)) for day in (19, 20)])

    assert [row[9] for row in rows_of(found, chart=late)] == ["2011"]
    assert ";20261120;4;20261120;20261130;" in datev_batch(found, NOVEMBER, late, [A_CENT], NOON).decode(
        "cp1252"
    )


@pytest.mark.parametrize(
    ("chart", "rate", "month", "words"),
    [
        (CHART, A_CENT, date(2025, 12, 1), "2025-12 is not in the business year from 2026-01-01"),
        (CHART, A_CENT, date(2027, 1, 1), "2027-01 is not in the business year"),
        (
            replace(CHART, accounts={Kind.ESCROW: 1000}),
            A_CENT,
            NOVEMBER,
            r"names none for budget, which budget:",
        ),
        (CHART, replace(A_CENT, currency="USD"), NOVEMBER, "no rate of EUR"),
    ],
)
def test_a_batch_that_would_be_wrong_is_refused(chart: Chart, rate: Rate, month: date, words: str):
    with pytest.raises(ConfigError, match=words):
        datev_batch(written([an_entry(*paid(100))]), month, chart, [rate], NOON)


def test_a_batch_has_no_more_rows_than_the_format_allows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datev, "ROWS_MAX", 2)
    entry = an_entry(*paid(100))

    assert len(rows_of(written([entry] * 2))) == 2
    with pytest.raises(ConfigError, match="3 rows in 2026-11, a batch has at most 2"):
        datev_batch(written([entry] * 3), NOVEMBER, CHART, [A_CENT], NOON)
