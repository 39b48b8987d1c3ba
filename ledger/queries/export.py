"""Export: the journal as CSV or beancount text, every amount to the last unit.

Room: ledger (pure). CSV has one line per posting. Beancount can check its text:
each transaction sums to zero, and each account's balance
is asserted on the day after the last entry. An entry's date is its block's, UTC, whenever the
ledger service wrote it; a document, which no block has, is dated by when it was written.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta, timezone

from assay.ledger.accounts import NO_EPOCH, Account, Kind, Side
from assay.ledger.journal.leaf import Written

DECIMALS = 6  # of the run's token
COLUMNS = (
    "entry", "time", "recorded", "kind", "epoch", "block_number", "block_hash", "key", "reverses",
    "line", "account", "asset", "amount", "leaf_hash",
)  # fmt: skip


def csv_text(written: Sequence[Written]) -> str:
    """The journal with one line per posting; amounts in token units, debits positive."""
    return "".join(csv_lines(written))


def csv_lines(written: Iterable[Written]) -> Iterator[str]:
    """`csv_text` in pieces, the header and then one for each entry, so that memory use is constant."""
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


def beancount_text(written: Sequence[Written], title: str) -> str:
    """The journal in beancount's language (version 2 and 3)."""
    return "".join(beancount_lines(lambda: written, title))


def beancount_lines(journal: Callable[[], Iterable[Written]], title: str) -> Iterator[str]:
    """`beancount_text` line by line.

    Args:
        journal: Returns the entries, oldest first; called twice, since accounts are opened before use.
        title: Of the file.
    """
    return (f"{line}\n" for line in _beancount(journal, title))


def recorded_at(one: Written) -> datetime:
    """Time at which an entry was written."""
    return datetime.fromtimestamp(one.recorded_ms / 1000, timezone.utc)


def happened_at(one: Written) -> datetime:
    """Time of an entry's block; of a document, when it was written."""
    block_time = one.entry.block_time
    return datetime.fromtimestamp(block_time, timezone.utc) if block_time else recorded_at(one)


def _beancount(journal: Callable[[], Iterable[Written]], title: str) -> Iterator[str]:
    yield f'option "title" "{_quoted(title)}"'
    opened: dict[Account, str] = {}
    balances: dict[Account, int] = {}
    last = ""
    for one in journal():
        last = max(last, _day(one))
        for posting in one.entry.postings:
            day = min(_day(one), opened.get(posting.account, _day(one)))  # a fork's may be older
            opened[posting.account] = day
            balances[posting.account] = balances.get(posting.account, 0) + posting.amount
    for asset in sorted({account.asset for account in opened}):
        yield f'option "operating_currency" "{_commodity(asset)}"'
    yield ""
    for account, day in sorted(opened.items(), key=lambda item: item[0].code):
        yield f"{day} open {beancount_account(account)} {_commodity(account.asset)}"
    for one in journal():
        entry = one.entry
        yield ""
        if not entry.postings:
            yield f'{_day(one)} event "{_quoted(entry.kind)}" "{_quoted(entry.key)}"'
            continue
        yield f'{_day(one)} * "{_quoted(entry.kind)}" "{_quoted(entry.key)}"'
        yield f"  entry: {one.number}"
        yield f'  leaf: "{one.leaf.hex()}"'
        for posting in entry.postings:
            account = posting.account
            amount = decimal_text(posting.amount)
            yield f"  {beancount_account(account)}  {amount} {_commodity(account.asset)}"
    if last:
        yield ""
        day_after = (date.fromisoformat(last) + timedelta(days=1)).isoformat()
        for account, balance in sorted(balances.items(), key=lambda item: item[0].code):
            name, amount = beancount_account(account), decimal_text(balance)
            yield f"{day_after} balance {name}  {amount} {_commodity(account.asset)}"


def beancount_account(account: Account) -> str:
    """An account's beancount name: parts begin with a capital letter or a digit."""
    root = "Assets" if account.kind.side is Side.DEBIT else "Liabilities"
    kind = account.kind.value.removeprefix("asset:").capitalize()
    what = {Kind.HELD: "Case", Kind.CASE_BOND: "Case", Kind.GIFT: "Contract"}.get(account.kind, "Run")
    owner = (
        account.owner if account.owner.startswith("0x") or not account.owner else f"{what}-{account.owner}"
    )
    epoch = "" if account.epoch == NO_EPOCH else f"E{account.epoch}"
    return ":".join(part for part in (root, kind, account.role.capitalize(), owner, epoch) if part)


def _commodity(asset: str) -> str:
    return asset.upper()


def _day(one: Written) -> str:
    return happened_at(one).date().isoformat()


def _csv(rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def decimal_text(amount: int) -> str:
    """Token units as decimal tokens, to the last unit: 1234567890 is 1234.567890."""
    whole, part = divmod(abs(amount), 10**DECIMALS)
    return f"{'-' if amount < 0 else ''}{whole}.{part:0{DECIMALS}d}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
