"""Export: the journal as CSV, beancount or hledger text, every amount to the last unit.

Room: ledger (pure). CSV has one line per posting. Beancount and hledger can check their text:
each transaction sums to zero, and each account's balance
is asserted on the day after the last entry. An entry's date is its block's, UTC, whenever the
ledger service wrote it; a document, which no block has, is dated by when it was written. Of entries
without postings only documents are exported.
"""

from __future__ import annotations

import csv
import enum
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone

from assay.chain.text.units import DECIMALS, money_text
from assay.ledger.accounts import NO_EPOCH, Account, Kind, Side
from assay.ledger.books import DOCUMENT
from assay.ledger.journal.leaf import Written

COLUMNS = (
    "entry", "time", "recorded", "kind", "epoch", "block_number", "block_hash", "key", "reverses",
    "line", "account", "asset", "amount", "leaf_hash",
)  # fmt: skip


Journal = Callable[[], Iterable[Written]]  # the entries, oldest first; called again for each pass


class Language(enum.Enum):
    """What the journal is written in; its value is the file's ending."""

    CSV = "csv"
    BEANCOUNT = "beancount"  # versions 2 and 3
    HLEDGER = "hledger"


def export_lines(language: Language, journal: Journal, title: str) -> Iterator[str]:
    """The journal in pieces, none larger than an entry.

    Args:
        language: To write it in.
        journal: Called twice for the languages in which accounts are opened before use.
        title: Of the file; CSV has none.
    """
    if language is Language.CSV:
        return csv_lines(journal())
    lines = _beancount(journal, title) if language is Language.BEANCOUNT else _hledger(journal, title)
    return (f"{line}\n" for line in lines)


def csv_lines(written: Iterable[Written]) -> Iterator[str]:
    """The header, and then for each entry a line per posting; amounts in token units, debits positive."""
    yield _csv([COLUMNS])
    for one in written:
        entry = one.entry
        yield _csv(
            (
                one.number,
                happened_at(one).isoformat(timespec="seconds"),
                recorded_at(one).isoformat(timespec="milliseconds"),
                entry.kind,
                "" if entry.epoch == NO_EPOCH else entry.epoch,
                entry.block_number,
                entry.block_hash.hex(),
                entry.key,
                entry.reverses,
                number,
                posting.account.code,
                posting.account.asset,
                posting.amount,
                one.leaf.hex(),
            )
            for number, posting in enumerate(entry.postings)
        )


def recorded_at(one: Written) -> datetime:
    """Time at which an entry was written."""
    return datetime.fromtimestamp(one.recorded_ms / 1000, timezone.utc)


def happened_at(one: Written) -> datetime:
    """Time of an entry's block; of a document, when it was written."""
    block_time = one.entry.block_time
    return datetime.fromtimestamp(block_time, timezone.utc) if block_time else recorded_at(one)


@dataclass(frozen=True, slots=True)
class _Survey:
    """What must be known before the first entry is written, and after the last."""

    opened: dict[Account, str]  # the day
    balances: dict[Account, int]
    day_after: str  # the last entry's; empty for an empty journal


def _survey(journal: Journal) -> _Survey:
    opened: dict[Account, str] = {}
    balances: dict[Account, int] = {}
    last = ""
    for one in journal():
        last = max(last, _day(one))
        for posting in one.entry.postings:
            day = min(_day(one), opened.get(posting.account, _day(one)))  # a fork's may be older
            opened[posting.account] = day
            balances[posting.account] = balances.get(posting.account, 0) + posting.amount
    day_after = (date.fromisoformat(last) + timedelta(days=1)).isoformat() if last else ""
    return _Survey(
        {account: opened[account] for account in sorted(opened, key=_code)},
        {account: balances[account] for account in sorted(balances, key=_code)},
        day_after,
    )


def _beancount(journal: Journal, title: str) -> Iterator[str]:
    survey = _survey(journal)
    yield f'option "title" "{_quoted(title)}"'
    for asset in sorted({account.asset for account in survey.opened}):
        yield f'option "operating_currency" "{_commodity(asset)}"'
    yield ""
    for account, day in survey.opened.items():
        yield f"{day} open {account_name(account)} {_commodity(account.asset)}"
    for one in journal():
        entry = one.entry
        if not entry.postings and entry.kind != DOCUMENT:
            continue
        yield ""
        if not entry.postings:
            yield f'{_day(one)} event "{_quoted(entry.kind)}" "{_quoted(entry.key)}"'
            continue
        yield f'{_day(one)} * "{_quoted(entry.kind)}" "{_quoted(entry.key)}"'
        yield f"  entry: {one.number}"
        yield f'  leaf: "{one.leaf.hex()}"'
        for posting in entry.postings:
            yield f"  {account_name(posting.account)}  {_amount(posting.account, posting.amount)}"
    yield ""
    for account, balance in survey.balances.items():
        yield f"{survey.day_after} balance {account_name(account)}  {_amount(account, balance)}"


def _hledger(journal: Journal, title: str) -> Iterator[str]:
    survey = _survey(journal)
    yield f"; {_one_line(title)}"
    for asset in sorted({account.asset for account in survey.opened}):
        yield f"commodity 1.{'0' * DECIMALS} {_commodity(asset)}"
    for account in survey.opened:
        yield f"account {account_name(account)}"
    for one in journal():
        entry = one.entry
        if not entry.postings and entry.kind != DOCUMENT:
            continue
        yield ""
        if not entry.postings:
            yield f"; {_day(one)} {_one_line(entry.kind)} {_one_line(entry.key)}"
            continue
        yield f"{_day(one)} * {_one_line(entry.kind)}  ; entry: {one.number}, leaf: {one.leaf.hex()}"
        yield f"    ; key: {_one_line(entry.key)}"
        for posting in entry.postings:
            yield f"    {account_name(posting.account)}  {_amount(posting.account, posting.amount)}"
    if survey.balances:
        yield f"\n{survey.day_after} * balances"
    for account, balance in survey.balances.items():
        asserted = f"{_amount(account, 0)} = {_amount(account, balance)}"
        yield f"    {account_name(account)}  {asserted}"


def account_name(account: Account) -> str:
    """An account's name for both tools: parts begin with a capital letter or a digit."""
    root = "Assets" if account.kind.side is Side.DEBIT else "Liabilities"
    kind = account.kind.value.removeprefix("asset:").capitalize()
    what = {Kind.HELD: "Case", Kind.CASE_BOND: "Case", Kind.GIFT: "Contract"}.get(account.kind, "Run")
    owner = (
        account.owner if account.owner.startswith("0x") or not account.owner else f"{what}-{account.owner}"
    )
    epoch = "" if account.epoch == NO_EPOCH else f"E{account.epoch}"
    return ":".join(part for part in (root, kind, account.role.capitalize(), owner, epoch) if part)


def _code(account: Account) -> str:
    return account.code


def _amount(account: Account, amount: int) -> str:
    return f"{money_text(amount).replace(',', '')} {_commodity(account.asset)}"


def _commodity(asset: str) -> str:
    return asset.upper()


def _day(one: Written) -> str:
    return happened_at(one).date().isoformat()


def _csv(rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _one_line(text: str) -> str:
    """Text that ends neither its line nor an hledger description, whose comment a semicolon begins."""
    return " ".join(text.replace(";", ",").split())
