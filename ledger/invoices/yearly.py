"""Yearly: what each operator earned and was paid in a year, by quarter, for tax reports.

Room: ledger (edge: reads the store). Two things are counted, both from journal entries that were
compared with the log and dated by their block:

    credited       a final result made pay due: the gross consideration of one supply
    transferred    the operator claimed it on chain: one transfer of the token

Each is converted at the rate of its own hour, and a quarter's sum is rounded once. A reorganisation's
reversal takes both amount and count back. docs/decisions/0041-tax-documents.md says for which law,
0062-accountants.md which facts of a payee it asks for: they are in the report alone, never in the log.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.chain.events import Claimed, ResultFinalized
from assay.chain.text.units import UNIT
from assay.ledger.accounts import Kind
from assay.ledger.invoices.document import harmless
from assay.ledger.invoices.rates import Rate, half_up_sum, minor_text, rate_at
from assay.ledger.journal.reader import read_entries
from assay.ledger.journal.tables import TABLES

_ENTRY = TABLES["journal_entry"]
_OPERATOR = "operator"
COLUMNS = (
    "year",
    "quarter",
    "account",
    "name",
    "country",
    "vat_id",
    "address",
    "person",
    "tin",
    "tin_country",
    "birth_date",
    "asset",
    "supplies",
    "credited_units",
    "currency",
    "gross_consideration",
    "transfers",
    "transferred_units",
    "transferred_value",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One payee's part of a journal entry; a reversal's amount and count are below zero."""

    account: str
    time_s: int  # of the block
    is_transfer: bool  # claimed; else credited by a final result
    amount: int  # token units
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Payee:
    """Who an account is, as the supplier's file says; empty where it says nothing."""

    name: str = ""
    country: str = ""
    vat_id: str = ""
    address: str = ""
    person: str = ""  # "natural" or "legal"
    tin: str = ""  # tax identification number
    tin_country: str = ""  # that issued it: where the payee is resident for tax
    birth_date: str = ""  # of a natural person, ISO 8601

    @property
    def missing(self) -> tuple[str, ...]:
        """What a report needs by Directive 2011/16/EU, annex VI, section II.B, and the file lacks."""
        needed = ["name", "address", "person", "tin", "tin_country"]
        if self.person == "natural":
            needed.append("birth_date")
        return tuple(name for name in needed if not getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarter:
    """One operator's quarter. Amounts in token units, and in minor units of the currency."""

    year: int
    quarter: int
    account: str
    payee: Payee
    supplies: int
    credited: int
    gross: int
    transfers: int
    transferred: int
    value: int


def read_receipts(db: Connection) -> list[Receipt]:
    """All pay of a run's operators that became due or was claimed, in the order of the journal.

    Raises:
        LedgerIntegrityError: an entry differs from the log.
    """
    kinds = (ResultFinalized.__name__, Claimed.__name__)
    numbers = db.execute(sa.select(_ENTRY.c.id).where(_ENTRY.c.kind.in_(kinds)).order_by(_ENTRY.c.id))
    found = []
    for one in read_entries(db, numbers.scalars()):
        entry = one.entry
        is_transfer = entry.kind == Claimed.__name__
        for posting in entry.postings:
            account = posting.account
            if account.kind is not Kind.PAYABLE or account.role != _OPERATOR:
                continue
            found.append(
                Receipt(
                    account=account.owner,
                    time_s=entry.block_time,
                    is_transfer=is_transfer,
                    amount=posting.amount if is_transfer else -posting.amount,
                    count=-1 if entry.reverses else 1,
                )
            )
    return found


def quarters(
    receipts: Iterable[Receipt], year: int, currency: str, rates: Sequence[Rate], payees: dict[str, Payee]
) -> tuple[Quarter, ...]:
    """The operators' quarters of a calendar year in UTC, by account and quarter.

    Raises:
        ConfigError: a receipt has no rate.
    """
    groups: dict[tuple[str, int], list[Receipt]] = {}
    for one in receipts:
        day = datetime.fromtimestamp(one.time_s, timezone.utc)
        if day.year == year:
            groups.setdefault((one.account, (day.month + 2) // 3), []).append(one)
    made = []
    for (account, quarter), mine in sorted(groups.items()):
        credited = [one for one in mine if not one.is_transfer]
        claimed = [one for one in mine if one.is_transfer]
        made.append(
            Quarter(
                year=year,
                quarter=quarter,
                account=account,
                payee=payees.get(account, Payee()),
                supplies=sum(one.count for one in credited),
                credited=sum(one.amount for one in credited),
                gross=_value(credited, currency, rates),
                transfers=sum(one.count for one in claimed),
                transferred=sum(one.amount for one in claimed),
                value=_value(claimed, currency, rates),
            )
        )
    return tuple(made)


def yearly_csv(found: Iterable[Quarter], currency: str) -> str:
    """CSV with a line for each quarter; token amounts are integers, the currency's are decimals."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in found:
        row: dict[str, object] = {
            "year": one.year,
            "quarter": one.quarter,
            "account": one.account,
            **asdict(one.payee),
            "asset": UNIT,
            "supplies": one.supplies,
            "credited_units": one.credited,
            "currency": currency,
            "gross_consideration": minor_text(one.gross),
            "transfers": one.transfers,
            "transferred_units": one.transferred,
            "transferred_value": minor_text(one.value),
        }
        writer.writerow({name: harmless(cell) for name, cell in row.items()})
    return out.getvalue()


def _value(receipts: Sequence[Receipt], currency: str, rates: Sequence[Rate]) -> int:
    return half_up_sum((one.amount, rate_at(rates, currency, one.time_s).nano) for one in receipts)
