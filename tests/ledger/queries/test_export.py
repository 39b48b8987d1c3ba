"""Export: other tools add up the same sums from our text."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from decimal import Decimal

from assay.ledger.accounts import ESCROW, TOKEN, budget, payable
from assay.ledger.books import Books, Entry, Posting, book, document_entry
from assay.ledger.journal.leaf import Written, leaf_of
from assay.ledger.queries.export import COLUMNS, beancount_account, beancount_text, csv_text
from tests.ledger.a_run import BUDGET, RUN, EventStream, a_settlement, wallet

DAY_MS = 86_400_000
TABLES = {epoch: a_settlement(epoch) for epoch in range(2)}


def written(
    entries: list[Entry], start_ms: int = 1_700_000_000_000, step_ms: int = DAY_MS // 4
) -> list[Written]:
    times = (start_ms + n * step_ms for n in range(len(entries)))
    return [
        Written(number=n, entry=one, recorded_ms=time_ms, leaf=leaf_of(one, time_ms))
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
        found += [entry] if entry else []
    return found


class Adder:
    """Reads the beancount text as beancount does, as far as we use it, and adds everything up again."""

    DIRECTIVE = re.compile(r"(\d{4}-\d\d-\d\d) (open|balance|\*) (.*)")
    POSTING = re.compile(r"  ([A-Z][A-Za-z0-9:-]*)  (-?\d+\.\d+) ([A-Z][A-Z0-9]*)")
    ACCOUNT = re.compile(r"(Assets|Liabilities)(:[A-Z0-9][A-Za-z0-9-]*)+")

    def __init__(self, text: str) -> None:
        self.opened: dict[str, str] = {}
        self.balances: dict[str, Decimal] = {}
        self.transactions = self.asserted = 0
        rest: dict[str, Decimal] = {}
        day = ""
        for line in text.splitlines():
            if match := self.DIRECTIVE.fullmatch(line):
                assert not any(rest.values()), f"a transaction sums to {rest}"
                day, kind, what = match.groups()
                rest = {}
                if kind == "open":
                    account, commodity = what.split()
                    assert self.ACCOUNT.fullmatch(account) and account not in self.opened
                    assert commodity == TOKEN.upper()
                    self.opened[account] = day
                elif kind == "balance":
                    account, amount, _ = what.split()
                    assert self.balances[account] == Decimal(amount)
                    self.asserted += 1
                else:
                    self.transactions += 1
            elif match := self.POSTING.fullmatch(line):
                account, amount, commodity = match.groups()
                assert self.opened[account] <= day, f"{account} is used before it is open"
                self.balances[account] = self.balances.get(account, Decimal()) + Decimal(amount)
                rest[commodity] = rest.get(commodity, Decimal()) + Decimal(amount)
            else:
                assert re.fullmatch(r'(option "[a-z_]+" ".*")|(  [a-z]+: .*)|', line), line
        assert not any(rest.values())


def test_each_transaction_sums_to_zero_and_every_balance_is_asserted():
    entries = a_life()
    adder = Adder(beancount_text(written(entries), "a run"))

    sums: dict[str, Decimal] = {}
    for entry in entries:
        for posting in entry.postings:
            name = beancount_account(posting.account)
            sums[name] = sums.get(name, Decimal()) + Decimal(posting.amount) / 10**6
    assert adder.balances == sums
    assert adder.transactions == len(entries)
    assert adder.asserted == len(sums) == len(adder.opened)
    assert sum(adder.balances.values()) == 0


def test_a_clock_that_went_back_opens_accounts_in_time():
    Adder(beancount_text(written(a_life(), step_ms=-DAY_MS), "a run"))


def test_an_entry_is_dated_by_its_block_and_a_document_by_when_it_was_written():
    new_year_s, day_s = 1_767_225_600, 86_400  # 2026-01-01 00:00 UTC
    moved = replace(a_life()[0], block_time=new_year_s - 1)
    issued = document_entry("invoice", 1, "{}")
    late = written([moved, issued], start_ms=(new_year_s + day_s) * 1000, step_ms=0)

    rows = list(csv.DictReader(io.StringIO(csv_text(late[:1]))))
    assert {row["time"] for row in rows} == {"2025-12-31T23:59:59+00:00"}
    assert {row["recorded"] for row in rows} == {"2026-01-02T00:00:00.000+00:00"}
    text = beancount_text(late, "a run")
    assert '2025-12-31 * "RunOpened"' in text
    assert '2026-01-02 event "document"' in text


def test_amounts_are_exact_to_the_last_unit():
    entry = Entry(
        key='with "quotes"', kind="test", block_number=1, block_hash=b"", block_time=1, epoch=0,
        postings=(
            Posting(account=ESCROW, amount=2**63 - 1),
            Posting(account=budget(RUN), amount=1 - 2**63),
        ),
    )  # fmt: skip
    text = beancount_text(written([entry]), "a run")

    assert "9223372036854.775807 AUSD" in text and "-9223372036854.775807 AUSD" in text
    Adder(text)


def test_no_two_accounts_share_a_name_there():
    accounts = {posting.account for entry in a_life() for posting in entry.postings}
    accounts |= {replace(payable("operator", wallet("x"), epoch)) for epoch in range(12)}

    assert len({beancount_account(one) for one in accounts}) == len(accounts)


def test_an_issued_document_is_an_event_and_moves_nothing():
    issued = document_entry("invoice", 1, "{}")

    text = beancount_text(written([*a_life(), issued]), "a run")

    (line,) = (line for line in text.splitlines() if " event " in line)
    assert line.endswith(f' event "document" "{issued.key}"')
    assert Adder(text.replace(line, "")).transactions == len(a_life())
    assert csv_text(written([issued])).strip() == ",".join(COLUMNS)


def test_empty_books_are_text_too():
    assert Adder(beancount_text([], "nothing")).transactions == 0
    assert csv_text([]).strip() == ",".join(COLUMNS)


def test_the_csv_has_every_posting_once():
    found = written(a_life())
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))

    told = [(int(r["entry"]), int(r["line"]), r["account"], int(r["amount"]), r["leaf_hash"]) for r in rows]
    assert told == [
        (one.number, line, posting.account.code, posting.amount, one.leaf.hex())
        for one in found
        for line, posting in enumerate(one.entry.postings)
    ]
    assert sum(int(row["amount"]) for row in rows) == 0
