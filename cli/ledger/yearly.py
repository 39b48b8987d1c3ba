"""Yearly: the report of `assay ledger yearly`, from the books of any number of runs.

Room: cli (edge: reads books, the supplier's file and its rates, writes the requested file).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eth_utils.address import to_checksum_address

from assay.bundle.books import find_books, log_origin, opened
from assay.chain.text.units import token_text
from assay.cli.ledger.invoice import SupplierFile, terms_of, write_file
from assay.ledger.invoices.rates import minor_text
from assay.ledger.invoices.yearly import Payee, Quarter, Receipt, quarters, read_receipts, yearly_csv
from assay.orders.toml import read_tables
from assay.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Lacking:
    """The facts of a payee that the report should have, and the supplier's file does not give."""

    account: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Yearly:
    """A year's report, and the file it was written to."""

    year: int
    currency: str
    quarters: tuple[Quarter, ...]
    lacking: tuple[Lacking, ...]
    file: Path | None


def write_yearly(runs: Sequence[Path], year: int, supplier: Path, file: Path | None) -> Yearly:
    """Make the report of these runs' operators.

    Raises:
        ConfigError: a run is named twice, the supplier states no currency, or a receipt has no rate.
        LedgerIntegrityError: an entry of the books differs from the log.
    """
    found = read_tables(supplier, SupplierFile)
    terms = terms_of(supplier, found)
    if terms is None:
        raise ConfigError(f"{supplier.name}: a yearly report needs [supplier] currency and rates")
    receipts: list[Receipt] = []
    seen: dict[str, Path] = {}
    for run in runs:
        place = find_books(run)
        with opened(place) as db:
            name = log_origin(place, db)
            if name in seen:
                raise ConfigError(f"{run} and {seen[name]} are books of one run, which would count twice")
            seen[name] = run
            receipts += read_receipts(db)
    payees = {
        str(to_checksum_address(one.account)): Payee(
            name=one.name,
            country=one.country,
            vat_id=one.vat_id,
            address=", ".join(one.address),
            person=one.person,
            tin=one.tin,
            tin_country=one.tin_country,
            birth_date="" if one.birth_date is None else one.birth_date.isoformat(),
        )
        for one in found.operator
    }
    made = quarters(receipts, year, terms.currency, terms.rates, payees)
    if file is not None:
        write_file(file, yearly_csv(made, terms.currency).encode())
    missing = {one.account: one.payee.missing for one in made if one.payee.missing}
    lacking = tuple(Lacking(account, names) for account, names in missing.items())
    return Yearly(year=year, currency=terms.currency, quarters=made, lacking=lacking, file=file)


def yearly_lines(made: Yearly) -> Iterator[str]:
    """A line for each quarter of each operator."""
    for one in made.quarters:
        gross, value = minor_text(one.gross), minor_text(one.value)
        yield (
            f"{one.year} Q{one.quarter} {one.account} {one.payee.name}".rstrip()
            + f": {one.supplies} supplies, {token_text(one.credited)}, {gross} {made.currency}; "
            f"{one.transfers} transfers, {token_text(one.transferred)}, {value} {made.currency}"
        )
    if not made.quarters:
        yield f"nothing was earned or claimed in {made.year}"
    for payee in made.lacking:
        yield f"{payee.account} lacks {', '.join(payee.facts)}: see [[operator]] of the supplier's file"
    if made.file is not None:
        yield f"wrote {made.file}"
