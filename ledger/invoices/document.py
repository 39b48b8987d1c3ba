"""Document: the invoice or credit note of settled epochs, in token units, and its canonical JSON and CSV.

Room: ledger (pure). No floats. The canonical JSON of a document is stored and hashed; CSV and PDF
are made from it.

    training        one line for each operator: its accepted tokens and its share of the price
    verification    one line for all verifiers
    fee             the rest
Steps that earned nothing are listed with the reason: they were not charged.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from pydantic import TypeAdapter, ValidationError

from assay.chain.text.times import time_text
from assay.chain.text.units import UNIT
from assay.ledger.invoices.billing import Billed
from assay.ledger.invoices.rates import EpochRate, minor_text, rate_text
from assay.ledger.invoices.vat import percent_text
from assay.ledger.settlement.payouts import UnpaidReason

TEXT_CHARS_MAX, LINES_MAX = 200, 8  # of a party's name, and of its address
SERIES = ("invoice", "credit")
REDUCTION = "reduction"  # the line of a partial credit note
AMOUNTS = frozenset(
    {"amount", "total", "worth", "funded", "refunded", "price_per_mtoken", "line_nets", "nano"}
    | {"tax", "paid"}
)
# Fields that documents of before did not have: left out of the JSON while they say nothing.
LATER = frozenset({"billed", "country", "registration", "operator"})
COLUMNS = ("document", "epoch", "what", "peer", "account", "tokens", "amount", "currency", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Seller or buyer. Empty fields were not given."""

    name: str = ""
    address: tuple[str, ...] = ()
    vat_id: str = ""
    account: str = ""  # on chain
    country: str = ""  # ISO 3166
    registration: str = ""  # number in a company register

    def __post_init__(self) -> None:
        texts = (self.name, self.vat_id, self.account, self.country, self.registration, *self.address)
        if len(self.address) > LINES_MAX or any(len(text) > TEXT_CHARS_MAX for text in texts):
            raise ValueError(
                f"a party of {LINES_MAX} address lines and {TEXT_CHARS_MAX} characters each at most"
            )
        if any(not text.isprintable() for text in texts):
            raise ValueError("a party's name, number or address has characters that cannot be printed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of charges."""

    epoch: int
    what: str  # "training", "verification" or "fee"; "reduction" of a partial credit note
    peer: str  # hexadecimal, of the node; empty for the others
    account: str  # payee; empty if there are several
    tokens: int  # accepted, of training
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCharged:
    """Accepted steps that earned nothing, with the price they would have had; or a share of the price."""

    epoch: int
    reason: UnpaidReason
    steps: int  # 0: it is a share of the epoch's price
    tokens: int
    worth: int

    @property
    def part(self) -> str:
        """What was not charged, as text."""
        return f"{self.steps} steps, {self.tokens:,} tokens" if self.steps else "a share of the price"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Evidence for an epoch's lines; hashes in hexadecimal."""

    epoch: int
    tokens: int  # paid
    total: int
    table_hash: str
    root: str
    result: str
    proposed_tx: str  # put root and table hash on chain
    final_tx: str  # made the lines due
    entry: int  # journal entry that made them payable
    entry_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The figures of a document, as derived from the books and the run's spec."""

    run_id: str
    run_name: str
    deployment_id: str
    first_epoch: int
    last_epoch: int
    price_per_mtoken: int
    operators_ppm: int
    verifiers_ppm: int
    lines: tuple[Line, ...]
    not_charged: tuple[NotCharged, ...]
    bases: tuple[Basis, ...]
    checkpoint_size: int  # of the first checkpoint that covers all these entries
    checkpoint_root: str
    checkpoint_note: str
    anchor_tx: str  # that anchored a checkpoint's root on chain; empty if none

    @property
    def total(self) -> int:
        """Token units that left the escrow for these epochs."""
        return sum(line.amount for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Escrow:
    """The buyer's escrow at the time of the document."""

    funded: int
    refunded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """An invoice, a credit note, or a pro forma invoice, which has no number."""

    series: str  # "invoice", "credit"; "pro forma"
    number: int  # from 1; 0 of a pro forma
    issued_ms: int  # Unix time
    corrects: int | None = None  # the invoice that a credit note takes back, or part of it
    reason: str = ""  # of a credit note
    supplier: Party
    buyer: Party
    tax_note: str = ""
    facts: Facts
    escrow: Escrow
    operator: str = ""  # account of the operator who supplies, of a self-billed document
    billed: Billed | None = None  # in a national currency, if the supplier states rates
    salt: str = ""  # 32 random hexadecimal digits: the hash in the log tells nobody else who bought

    @property
    def issued(self) -> datetime:
        """When it was issued, in UTC, to the second."""
        return datetime.fromtimestamp(self.issued_ms // 1000, timezone.utc)

    @property
    def sign(self) -> int:
        """-1 for a credit note, whose amounts are negated; else 1."""
        return -1 if self.series == "credit" else 1

    @property
    def total(self) -> int:
        """Total of the document, in token units."""
        return self.sign * self.facts.total

    @property
    def name(self) -> str:
        """Display name, unique among all runs."""
        return name_of(self.facts.run_id, self.series, self.number, self.operator)

    @property
    def counted_as(self) -> str:
        """Name of the series in which the document has its number: one for each supplier."""
        return series_of(self.series, self.operator)

    @property
    def is_partial(self) -> bool:
        """Whether a credit note takes back only a part of its invoice."""
        return any(line.what == REDUCTION for line in self.facts.lines)

    @property
    def corrected_name(self) -> str:
        """Display name of the invoice that a credit note takes back."""
        assert self.corrects is not None
        return name_of(self.facts.run_id, "invoice", self.corrects, self.operator)

    @property
    def epochs_text(self) -> str:
        """Epoch 3, or epochs 0 to 7."""
        first, last = self.facts.first_epoch, self.facts.last_epoch
        return f"epoch {first}" if first == last else f"epochs {first} to {last}"


_DOCUMENT = TypeAdapter(Document)
_FORMULA = re.compile(r"[=+@\t\r]|-(?![0-9.]+$)")


def name_of(run_id: str, series: str, number: int, operator: str = "") -> str:
    """A document's name: the run's first digits, a self-billing operator's, then the series' own count."""
    run = run_id[:8].upper()
    if series not in SERIES:
        return f"{run}-PRO-FORMA"
    supplier = f"S{operator[2:10].upper()}-" if operator else ""
    return f"{run}-{supplier}{'C' if series == 'credit' else ''}{number:06d}"


def series_of(series: str, operator: str = "") -> str:
    """Name of a series of numbers: "invoice", or "invoice:0x..." of an operator's self-billed ones."""
    return f"{series}:{operator}" if operator else series


def to_json(document: Document) -> str:
    """Canonical JSON of the document: sorted keys, no spaces, amounts as text so that none is rounded."""
    plain = {
        **_plain(asdict(document)),
        "total": str(document.total),
        "currency": UNIT,
        "name": document.name,
    }
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def from_json(text: str) -> Document:
    """Inverts `to_json`.

    Raises:
        ValueError: it is no such document, or not canonical.
    """
    try:
        document = _DOCUMENT.validate_python(json.loads(text))
    except (ValidationError, RecursionError, TypeError) as error:
        raise ValueError(f"not an invoice: {error}") from None
    if to_json(document) != text:
        raise ValueError("an invoice that is not in its canonical encoding")
    return document


def csv_text(document: Document) -> str:
    """CSV with one line for each item charged or not charged, and the total.

    Amounts in token units are integers. Those in a national currency follow as rows of their own, as
    decimals, so that a column of amounts of one currency adds up to that currency's total.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in _rows(document):
        writer.writerow((document.name, *(harmless(cell) for cell in row)))
    return out.getvalue()


def total_rows(billed: Billed) -> Iterator[tuple[str, int, str]]:
    """The sums of a document in its currency: name, minor units, note."""
    yield "net total", billed.net, ""
    if billed.vat is None:
        return
    rate = percent_text(billed.vat.rate_bp)
    yield "VAT", billed.tax, billed.vat.reason or f"{rate} % of {billed.vat.country}"
    yield "total with VAT", billed.gross, ""
    yield "paid from escrow", billed.paid, ""
    yield "due", billed.due, billed.payment_terms


def rate_note(rate: EpochRate, currency: str) -> str:
    """A rate with its source and the times that made it the one which holds."""
    return (
        f"1 {UNIT} = {rate_text(rate.nano)} {currency} ({rate.source}, {time_text(rate.time_s)}; "
        f"supplied {time_text(rate.supplied_s)})"
    )


def _rows(document: Document) -> Iterator[tuple[object, ...]]:
    facts, sign = document.facts, document.sign
    for line in facts.lines:
        tokens = line.tokens if line.what == "training" else ""
        yield (line.epoch, line.what, line.peer, line.account, tokens, sign * line.amount, UNIT, "")
    for one in facts.not_charged:
        yield (one.epoch, "not charged", "", "", one.tokens, 0, UNIT, f"{one.part}: {one.reason.text}")
    yield ("", "total", "", document.buyer.account, "", document.total, UNIT, document.reason)
    billed = document.billed
    if billed is None:
        return
    notes = {one.epoch: rate_note(one, billed.currency) for one in billed.rates}
    for line, net in zip(facts.lines, billed.line_nets, strict=True):
        note = notes[line.epoch]
        amount = minor_text(sign * net)
        yield (line.epoch, line.what, line.peer, line.account, "", amount, billed.currency, note)
    for what, minor, note in total_rows(billed):
        yield ("", what, "", "", "", minor_text(sign * minor), billed.currency, note)


def harmless(cell: object) -> object:
    """The cell, quoted if a spreadsheet would run it as a formula; negative amounts are numbers and stay."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _plain(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if one or key not in LATER}
        return {key: _plain(one, key) for key, one in kept.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, name) for one in value]
    return str(value) if name in AMOUNTS else value
