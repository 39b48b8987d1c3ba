"""Invoice: makes the documents of `assay ledger invoice` from the books and the supplier's file.

Room: cli (edge: reads a TOML file, writes the ledger service's books and the requested files). Without a
supplier there is no invoice: the output is marked pro forma and takes no number.

    [supplier]                         [buyer]             # may be left out
    name = "Assay Compute GmbH"        name = "Mira Labs"
    address = ["Weg 1", "10115 Berlin"]
    vat_id = "DE123456789"
    tax_note = "Reverse charge."       # may be left out
    currency = "EUR"                   # may be left out: then amounts are in the token alone
    rates = "rates.csv"                # beside this file: ledger/invoices/rates.py

With `[supplier] country` VAT is decided too; docs/operators.md has the whole file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from eth_utils.address import to_checksum_address
from pydantic import BaseModel, ConfigDict, Field

from assay.bundle.books import LEDGER_SERVICE, find_books, find_keepers_books, opened, run_of
from assay.chain.text.units import UNIT, money_text, parse_money, token_text
from assay.ledger.invoices.billing import Taxation, Terms
from assay.ledger.invoices.document import LINES_MAX, TEXT_CHARS_MAX, Document, Party, csv_text, total_rows
from assay.ledger.invoices.en16931 import UBL, xml_bytes
from assay.ledger.invoices.figures import final_epochs
from assay.ledger.invoices.pdf import facturx_bytes, pdf_bytes
from assay.ledger.invoices.rates import Rate, currency_of, minor_text, parse_rates
from assay.ledger.invoices.store import Parties, credit, issue, pro_forma
from assay.ledger.invoices.vat import BUSINESS, DIRECTIVE, Customer, Seller, VatRate
from assay.ledger.journal.database import open_engine
from assay.orders.toml import read_tables
from assay.protocol.errors import ConfigError

SUPPLIER = "supplier.toml"
RATES_CHARS_MAX = 64 << 20
_Text = Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX)]
_MaybeText = Annotated[str, Field(max_length=TEXT_CHARS_MAX)]
_Address = Annotated[tuple[_Text, ...], Field(strict=False, max_length=LINES_MAX)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Named(_Table):
    country: str = ""
    registration: _MaybeText = ""


class _Issuer(_Named):
    name: _Text
    address: Annotated[_Address, Field(min_length=1)]
    vat_id: _Text
    scheme: Literal["standard", "small"] = "standard"
    prices: Literal["", "net", "gross"] = ""
    payment_terms: _MaybeText = ""


class _Supplier(_Issuer):
    tax_note: _MaybeText = ""
    currency: str = ""
    rates: str = ""
    consumers_abroad: Literal["", "oss", "home"] = ""


class _Buyer(_Named):
    name: _MaybeText = ""
    address: _Address = ()
    vat_id: _MaybeText = ""
    kind: Literal["", "business", "consumer"] = ""


class _VatRate(_Table):
    country: _Text
    percent: Annotated[str, Field(pattern=r"^[0-9]{1,2}(\.[0-9]{1,2})?$")]
    first: date
    last: date | None = None


class _Operator(_Issuer):
    """An operator who agreed that its invoices are issued in its name (article 224)."""

    account: Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
    agreement: _Text
    # Of the yearly report alone: no document, and so no log, has these.
    person: Literal["", "natural", "legal"] = ""
    tin: _MaybeText = ""
    tin_country: Annotated[str, Field(pattern=r"^([A-Z]{2})?$")] = ""
    birth_date: date | None = None


class SupplierFile(BaseModel):
    """The tables of a supplier's file."""

    model_config = ConfigDict(extra="forbid")
    supplier: _Supplier
    buyer: _Buyer = _Buyer()
    vat_rate: list[_VatRate] = []
    operator: list[_Operator] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceOptions:
    """The command line's options."""

    epoch: int | None = None
    pdf: Path | None = None
    csv: Path | None = None
    ubl: Path | None = None
    facturx: Path | None = None
    supplier: Path | None = None
    credit: int | None = None
    amount: str | None = None
    reason: str = ""
    operator: str | None = None
    font: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenInvoice:
    """A document, and the files it was written to."""

    name: str
    total: int  # token units; negative of a credit note
    document: Document
    files: tuple[Path, ...]


def write_invoice(run: Path, options: InvoiceOptions) -> WrittenInvoice:
    """Make the document, and write the requested files.

    Args:
        run: A run's folder, or the ledger service's ledger.db.
        options: See `assay invoice --help`.

    Raises:
        ConfigError: nothing to invoice yet, no supplier where one is needed, or a file cannot be written.
        LedgerIntegrityError: the records of an epoch differ.
    """
    made = make_document(run, options, time.time_ns() // 1_000_000)
    forms: tuple[tuple[Path | None, Callable[[], bytes]], ...] = (
        (options.pdf, lambda: pdf_bytes(made, options.font)),
        (options.csv, lambda: csv_text(made).encode()),
        (options.ubl, lambda: xml_bytes(made, UBL)),
        (options.facturx, lambda: facturx_bytes(made, options.font)),
    )
    files = []
    for path, form in forms:
        if path is not None:
            write_file(path, form())
            files.append(path)
    return WrittenInvoice(name=made.name, total=made.total, document=made, files=tuple(files))


def invoice_lines(written: WrittenInvoice) -> Iterator[str]:
    """What the document charges, and where it was written."""
    made = written.document
    yield f"{made.series} {made.name}: {made.epochs_text}, {token_text(made.total)}"
    for what in dict.fromkeys(line.what for line in made.facts.lines):
        lines = [line for line in made.facts.lines if line.what == what]
        tokens = f", {sum(line.tokens for line in lines):,} tokens" if what == "training" else ""
        amount = made.sign * sum(line.amount for line in lines)
        yield f"    {what:<14}{money_text(amount):>20} {UNIT}{tokens}"
    if made.billed is not None:
        for what, minor, note in total_rows(made.billed):
            yield f"    {what:<17}{minor_text(made.sign * minor):>17} {made.billed.currency}  {note}".rstrip()
    for one in made.facts.not_charged:
        yield f"    not charged   epoch {one.epoch}, {one.part}: {one.reason.text}"
    if made.series == "credit":
        part = "takes back a part of" if made.is_partial else "cancels"
        yield f"{part} invoice {made.corrects}: {made.reason}"
    if made.series == "pro forma":
        yield f"pro forma: it has no number; an invoice needs the supplier's file, {SUPPLIER}"
    for path in written.files:
        yield f"wrote {path}"


def make_document(run: Path, options: InvoiceOptions, now_ms: int) -> Document:
    """The requested invoice, credit note or pro forma."""
    supplier = _supplier_file(run, options.supplier)
    if options.amount is not None and options.credit is None:
        raise ConfigError("--amount goes with --credit NUMBER")
    if supplier is None and options.operator is not None:
        raise ConfigError(f"--operator needs the supplier's file, {SUPPLIER}, with its [[operator]]")
    if supplier is None and options.credit is None:
        place = find_books(run)
        spec, run_id = run_of(place)
        with opened(place) as db:
            first, last = _epochs(options.epoch, final_epochs(db, run_id), spec.epochs)
            return pro_forma(db, spec, run_id, first, last, now_ms)
    operator = ""
    if options.operator is not None:
        from assay.chain.deployment.coin import address_given  # importing web3 takes a second

        operator = address_given(options.operator)
    parties = None if supplier is None else read_supplier(supplier, operator)
    place = find_keepers_books(run)
    spec, run_id = run_of(place)
    engine = open_engine(place.books)
    try:
        if options.credit is not None:
            return credit(
                engine,
                spec,
                run_id,
                options.credit,
                options.reason,
                now_ms,
                epoch=options.epoch,
                amount=None if options.amount is None else parse_money(options.amount),
                operator=operator,
            )
        assert parties is not None
        with opened(place) as db:
            first, last = _epochs(options.epoch, final_epochs(db, run_id), spec.epochs)
        return issue(engine, spec, run_id, first, last, parties, now_ms, operator)
    finally:
        engine.dispose()


def read_supplier(path: Path, operator: str = "") -> Parties:
    """The parties of a document, from the ledger service's file.

    Args:
        path: The file.
        operator: Account of an operator, for its self-billed documents: it supplies, and the file's
            supplier buys from it. Empty for invoices to the run's buyer.

    Raises:
        ConfigError: it cannot be read, or a mandatory item of an invoice is missing.
    """
    try:
        found = read_tables(path, SupplierFile)
        if operator:
            return _self_billed(path, found, operator)
        seller, buyer = found.supplier, found.buyer
        return Parties(
            supplier=_party(seller),
            buyer=_party(buyer),
            tax_note=seller.tax_note,
            terms=terms_of(path, found),
        )
    except ValueError as error:
        raise ConfigError(f"{path.name}: {error}") from None


def _self_billed(path: Path, found: SupplierFile, account: str) -> Parties:
    """The operator as supplier, and the file's supplier as its customer."""
    mine = [one for one in found.operator if to_checksum_address(one.account) == account]
    if len(mine) != 1:
        raise ConfigError(f"{len(mine)} tables [[operator]] of account {account}, expected one")
    one, customer = mine[0], found.supplier
    terms = terms_of(path, found)
    if terms is not None and customer.country:
        terms = replace(
            terms,
            payment_terms=one.payment_terms,
            taxation=Taxation(
                seller=Seller(country=one.country, vat_id=one.vat_id, scheme=one.scheme),
                customer=Customer(country=customer.country, kind=BUSINESS, vat_id=customer.vat_id),
                vat_rates=_vat_rates(found),
                prices=one.prices,
            ),
        )
    return Parties(
        supplier=replace(_party(one), account=account),
        buyer=_party(customer),
        tax_note=f"Self-billing (article 224 of {DIRECTIVE}), agreement: {one.agreement}",
        terms=terms,
    )


def _vat_rates(found: SupplierFile) -> tuple[VatRate, ...]:
    return tuple(
        VatRate(country=one.country, rate_bp=int(Decimal(one.percent) * 100), first=one.first, last=one.last)
        for one in found.vat_rate
    )


def _party(given: _Supplier | _Buyer | _Operator) -> Party:
    return Party(
        name=given.name,
        address=given.address,
        vat_id=given.vat_id,
        country=given.country,
        registration=given.registration,
    )


def _taxation(found: SupplierFile) -> Taxation | None:
    """What VAT is decided by; None where the supplier names no country."""
    seller, buyer = found.supplier, found.buyer
    if not seller.country:
        return None
    if seller.tax_note:
        raise ConfigError("[supplier] tax_note and country: with a country the tax is decided, and worded")
    if not buyer.country or not buyer.kind:
        raise ConfigError("[buyer] country and kind are needed to decide VAT")
    return Taxation(
        seller=Seller(
            country=seller.country,
            vat_id=seller.vat_id,
            scheme=seller.scheme,
            consumers_abroad=seller.consumers_abroad,
        ),
        customer=Customer(country=buyer.country, kind=buyer.kind, vat_id=buyer.vat_id),
        vat_rates=_vat_rates(found),
        prices=seller.prices,
    )


def terms_of(path: Path, found: SupplierFile) -> Terms | None:
    """The terms of documents in a currency; None where the file names none.

    Raises:
        ConfigError: the rates cannot be read, or what decides VAT is incomplete.
    """
    seller = found.supplier
    if bool(seller.currency) != bool(seller.rates):
        raise ConfigError("[supplier] currency and rates go together")
    if not seller.currency:
        if seller.country:
            raise ConfigError("[supplier] country: VAT needs a currency and its rates")
        return None
    currency = currency_of(seller.currency)
    return Terms(
        currency=currency,
        rates=read_rates(path, seller.rates),
        taxation=_taxation(found),
        payment_terms=seller.payment_terms,
    )


def read_rates(path: Path, name: str) -> tuple[Rate, ...]:
    """The rates in the file `name` beside the file `path`, which names it.

    Raises:
        ConfigError: it cannot be read, or is no rates file.
    """
    try:
        with open(path.parent / name, encoding="utf-8-sig", newline="") as file:
            text = file.read(RATES_CHARS_MAX + 1)
        if len(text) > RATES_CHARS_MAX:
            raise ConfigError(f"more than {RATES_CHARS_MAX} characters")
        return parse_rates(text)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: is not UTF-8 text") from None
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _epochs(chosen: int | None, final: list[int], count: int) -> tuple[int, int]:
    if chosen is not None:
        return chosen, chosen
    if final != list(range(count)):
        listed = ", ".join(map(str, final)) or "none"
        raise ConfigError(f"the run has {count} epochs and only these are final: {listed}; --epoch names one")
    return 0, count - 1


def _supplier_file(run: Path, given: Path | None) -> Path | None:
    if given is not None:
        return given
    places = [run.parent / SUPPLIER] if run.is_file() else [run / LEDGER_SERVICE / SUPPLIER]
    return next((path for path in places if path.is_file()), None)


def write_file(path: Path, body: bytes) -> None:
    """Write a requested file.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_bytes(body)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
