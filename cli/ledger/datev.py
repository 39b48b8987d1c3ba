"""DATEV: `assay ledger export --datev FILE.toml --month 2026-11`, a month of the books as a posting batch.

Room: cli (edge: reads the books, a TOML file and the rates that it names). docs/operators.md has the file.
"""

from __future__ import annotations

from datetime import date, datetime, timezone
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from assay.bundle.books import find_books, opened
from assay.cli.ledger.invoice import read_rates
from assay.ledger.accounts import Kind
from assay.ledger.invoices.datev import Chart, datev_batch
from assay.ledger.journal.reader import read_journal
from assay.orders.toml import read_tables
from assay.protocol.errors import ConfigError


class DatevFile(BaseModel):
    """Whose books the batch goes to. Nothing has a default: an account decides how a movement is taxed."""

    model_config = ConfigDict(extra="forbid")
    adviser: Annotated[int, Field(ge=1001, le=9_999_999)]
    client: Annotated[int, Field(ge=1, le=99_999)]
    year_start: date
    digits: Annotated[int, Field(ge=4, le=8)]
    rates: str
    accounts: dict[Kind, int]


def datev_export(run: Path, file: Path, month: str | None) -> bytes:
    """The month's batch in the format's own encoding.

    Raises:
        ConfigError: the month or the file is wrong, or an account or a rate is missing.
        LedgerIntegrityError: an entry of the books differs from the log.
    """
    try:
        first = date.fromisoformat(f"{month}-01")
    except ValueError:
        raise ConfigError(f"--month {ascii(month)[:20]}, expected such as 2026-11") from None
    found = read_tables(file, DatevFile)
    for kind, number in found.accounts.items():
        if not 0 < number < 10 ** (found.digits + 1):  # accounts of persons have one digit more
            raise ConfigError(
                f"{file.name}: {kind.value} = {number}, expected at most {found.digits + 1} digits"
            )
    chart = Chart(
        adviser=found.adviser,
        client=found.client,
        year_start=found.year_start,
        digits=found.digits,
        accounts=found.accounts,
    )
    with opened(find_books(run)) as db:
        rates = read_rates(file, found.rates)
        return datev_batch(read_journal(db), first, chart, rates, datetime.now(timezone.utc))
