"""Export: beancount and hledger themselves accept the text, and add up the same sums."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pytest
from beancount import loader
from beancount.core.data import Balance, Event, Transaction
from beancount.core.data import Posting as Line

from assay.ledger.accounts import ESCROW, TOKEN, budget, payable
from assay.ledger.books import DOCUMENT, ROUND, Books, Entry, Posting, book, record
from assay.ledger.journal.leaf import Written, leaf_of
from assay.ledger.queries.export import COLUMNS, Language, account_name, export_lines
from tests.ledger.a_run import BUDGET, RUN, EventStream, a_settlement, wallet

DAY_MS = 86_400_000
TABLES = {epoch: a_settlement(epoch) for epoch in range(2)}


def written(
    entries: list[Entry], start_ms: int = 1_700_000_000_000, step_ms: int = DAY_MS // 4
) -> list[Written]:
    times = (start_ms + n * step_ms for n in range(len(entries)))
    return [
        Written(number=n, entry=one, recorded_ms=time_ms, leaf=leaf_of(one.to_bytes(), time_ms))
        for n, (one, time_ms) in enumerate(zip(entries, times, strict=True), 1)
    ]


def a_life() -> list[Entry]:
    stream = EventStream()
    stream.opened()
    stream.staked("node-0", 1_000)
    stream.slashed("node-0", 100)
    for table in TABLES.values():
        stream.settled(table)
    stream.refunded(BUDGET - sum(table.total for table in TABLES.values()))
    books, found = Books(run_id=RUN, tables=TABLES), []
    for event in stream.events:
        books, entry = book(books, event)
        found += [entry] if entry.postings else []
    return found


def text_of(language: Language, found: Sequence[Written], title: str = "a run") -> str:
    return "".join(export_lines(language, lambda: found, title))


def sums_of(entries: Sequence[Entry]) -> dict[str, Decimal]:
    sums: dict[str, Decimal] = {}
    for entry in entries:
        for posting in entry.postings:
            name = account_name(posting.account)
            sums[name] = sums.get(name, Decimal()) + Decimal(posting.amount) / 10**6
    return sums


def read_beancount(text: str) -> list[object]:
    """The directives that beancount finds in a text, once it has nothing to complain of."""
    directives, errors, _ = loader.load_string(text)
    assert not errors
    return list(directives)


def lines_of(directives: Sequence[object]) -> list[Line]:
    return [line for one in directives if isinstance(one, Transaction) for line in one.postings]


def hledger(text: str, *command: str) -> str:
    """Output of hledger's command on a text."""
    if shutil.which("hledger") is None:
        pytest.skip("hledger is not installed")
    ran = subprocess.run(
        ["hledger", "-f", "-", *command], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def hledger_sums(text: str) -> dict[str, Decimal]:
    rows = csv.reader(io.StringIO(hledger(text, "balance", "-N", "--empty", "-O", "csv")))
    next(rows)
    return {account: Decimal(amount.split()[0]) for account, amount in rows}


def test_beancount_finds_our_sums_and_every_balance_asserted():
    entries = a_life()
    found = read_beancount(text_of(Language.BEANCOUNT, written(entries)))

    sums: dict[str, Decimal] = {}
    for line in lines_of(found):
        assert line.units.currency == TOKEN.upper()
        sums[line.account] = sums.get(line.account, Decimal()) + line.units.number
    assert sums == sums_of(entries)
    assert sum(isinstance(one, Transaction) for one in found) == len(entries)
    assert {one.account for one in found if isinstance(one, Balance)} == set(sums)


def test_hledger_checks_strictly_and_finds_our_sums():
    entries = a_life()
    text = text_of(Language.HLEDGER, written(entries))

    hledger(text, "check", "--strict", "ordereddates")
    assert hledger_sums(text) == sums_of(entries)
    assert len(re.findall(r"^\d.* \* ", hledger(text, "print"), re.MULTILINE)) == len(entries) + 1


def test_a_changed_amount_or_balance_is_refused_by_both():
    found = written(a_life())
    for language, check in ((Language.BEANCOUNT, read_beancount), (Language.HLEDGER, hledger_sums)):
        text = text_of(language, found)
        amounts = list(re.finditer(r" 10\.000000 AUSD", text))
        for at in (amounts[0], amounts[-1]):
            with pytest.raises(AssertionError):
                check(f"{text[: at.start()]} 10.000001 AUSD{text[at.end() :]}")


def test_a_clock_that_went_back_opens_accounts_in_time():
    found = written(a_life(), step_ms=-DAY_MS)

    assert lines_of(read_beancount(text_of(Language.BEANCOUNT, found)))
    assert hledger_sums(text_of(Language.HLEDGER, found)) == sums_of(a_life())


def test_an_entry_is_dated_by_its_block_and_a_document_by_when_it_was_written():
    new_year_s, day_s = 1_767_225_600, 86_400  # 2026-01-01 00:00 UTC
    moved = replace(a_life()[0], block_time=new_year_s - 1)
    issued = record(DOCUMENT, "invoice/1", bytes(32))
    late = written([moved, issued], start_ms=(new_year_s + day_s) * 1000, step_ms=0)

    rows = list(csv.DictReader(io.StringIO(text_of(Language.CSV, late[:1]))))
    assert {row["time"] for row in rows} == {"2025-12-31T23:59:59+00:00"}
    assert {row["recorded"] for row in rows} == {"2026-01-02T00:00:00.000+00:00"}
    text = text_of(Language.BEANCOUNT, late)
    assert '2025-12-31 * "RunOpened"' in text
    assert '2026-01-02 event "document"' in text
    text = text_of(Language.HLEDGER, late)
    assert "2025-12-31 * RunOpened" in text
    assert "; 2026-01-02 document" in text


@pytest.mark.parametrize("key", ['with "quotes"', "with ; and | and\na second line", "  2026-01-01 * x"])
def test_amounts_are_exact_to_the_last_unit_whatever_the_key(key: str):
    entry = Entry(
        key=key, kind="test", block_number=1, block_hash=b"", block_time=1, epoch=0,
        postings=(
            Posting(account=ESCROW, amount=2**63 - 1),
            Posting(account=budget(RUN), amount=1 - 2**63),
        ),
    )  # fmt: skip
    found, most = written([entry]), Decimal("9223372036854.775807")

    lines = lines_of(read_beancount(text_of(Language.BEANCOUNT, found)))
    assert [line.units.number for line in lines] == [most, -most]
    assert sorted(hledger_sums(text_of(Language.HLEDGER, found)).values()) == [-most, most]


def test_no_two_accounts_share_a_name_there():
    accounts = {posting.account for entry in a_life() for posting in entry.postings}
    accounts |= {replace(payable("operator", wallet("x"), epoch)) for epoch in range(12)}

    assert len({account_name(one) for one in accounts}) == len(accounts)


def test_an_issued_document_is_an_event_and_moves_nothing():
    issued = record(DOCUMENT, "invoice/1", bytes(32))
    found = written([*a_life(), record(ROUND, "0", bytes(32)), issued])

    directives = read_beancount(text_of(Language.BEANCOUNT, found))
    (event,) = (one for one in directives if isinstance(one, Event))
    assert (event.type, event.description) == ("document", issued.key)
    assert sum(isinstance(one, Transaction) for one in directives) == len(a_life())
    assert hledger_sums(text_of(Language.HLEDGER, found)) == sums_of(a_life())
    assert text_of(Language.CSV, written([issued])).strip() == ",".join(COLUMNS)


def test_empty_books_are_text_too():
    assert read_beancount(text_of(Language.BEANCOUNT, [])) == []
    assert hledger_sums(text_of(Language.HLEDGER, [])) == {}
    assert text_of(Language.CSV, []).strip() == ",".join(COLUMNS)


def test_the_csv_has_every_posting_once():
    found = written(a_life())
    rows = list(csv.DictReader(io.StringIO(text_of(Language.CSV, found))))

    told = [(int(r["entry"]), int(r["line"]), r["account"], int(r["amount"]), r["leaf_hash"]) for r in rows]
    assert told == [
        (one.number, line, posting.account.code, posting.amount, one.leaf.hex())
        for one in found
        for line, posting in enumerate(one.entry.postings)
    ]
    assert sum(int(row["amount"]) for row in rows) == 0
