"""Statement: one party's income and expense by the books, as lines on a terminal.

Room: cli (edge: reads the books). The values come from ledger/queries/statement.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime, timezone
from pathlib import Path

from assay.bundle.books import find_books, opened, run_of
from assay.chain.commit_statement import evm_address
from assay.ledger.journal.reader import read_journal
from assay.ledger.queries.statement import Movement, Party, Statement, statement_of
from assay.orders.amounts import UNIT, money_text
from assay.protocol.errors import ConfigError

BUYER, TREASURY = "buyer", "treasury"
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")


def read_statement(run: Path, party: str, since: str | None, until: str | None) -> Statement:
    """The statement of a party.

    Args:
        run: The run.
        party: An address, `buyer` or `treasury`.
        since: First day, such as 2026-01-01; None for the first entry's.
        until: Last day; None for the last entry's.

    Raises:
        ConfigError: not a party or a day, no account of the books is the party's, or the run's spec,
            which names buyer and treasury, is not beside the books.
        LedgerIntegrityError: the books differ from what was logged.
    """
    first, last = _day("--since", since), _day("--until", until)
    if first is not None and last is not None and last < first:
        raise ConfigError(f"--until {last} is before --since {first}")
    place = find_books(run)
    is_named = party in (BUYER, TREASURY)
    if not is_named and not _ADDRESS.fullmatch(party):
        raise ConfigError(f"{party!r}: expected an address such as 0x52..., {BUYER!r} or {TREASURY!r}")
    who = Party(address=party)
    if is_named or place.spec is not None:
        spec, run_id = run_of(place)
        buyer = evm_address(spec.buyer)
        address = {BUYER: buyer, TREASURY: evm_address(spec.money.treasury)}.get(party, party)
        is_buyer = address.lower() == buyer.lower()
        who = Party(address=address, run_id=run_id if is_buyer else None)
    with opened(place) as db:
        journal = list(read_journal(db))
    if not any(who.owns(each.account) for one in journal for each in one.entry.postings):
        raise ConfigError(f"{who.address}: the books have no account of this address")
    return statement_of(who, journal, first, last)


def statement_lines(found: Statement) -> Iterator[str]:
    """The movements, oldest first, and what they add up to."""
    days = f"{found.since or 'the first entry'} to {found.until or 'the last entry'}, UTC"
    yield f"{found.address}{' (the buyer)' if found.is_buyer else ''}, {days}"
    yield f"{'opening balance':<60} {'':>20} {money_text(found.opening):>20} {UNIT}"
    for line in found.lines:
        epoch = "" if line.epoch is None else f"epoch {line.epoch}"
        at = datetime.fromtimestamp(line.time, timezone.utc)
        what = f"{at:%Y-%m-%d %H:%M} {line.entry:>5}  {line.movement.value:<9} {line.kind:<15} {epoch}"
        signed = money_text(line.movement.sign * line.amount)
        yield f"{what:<60} {signed:>20} {money_text(line.balance):>20} {UNIT}"
    for movement in Movement:
        signed = money_text(movement.sign * found.total(movement))
        yield f"{movement.value:<60} {signed:>20} {'':>20} {UNIT}"
    yield f"{'closing balance':<60} {'':>20} {money_text(found.closing):>20} {UNIT}"
    for one in found.accounts:
        yield f"  {one.account:<79} {money_text(one.amount):>20} {UNIT}"


def _day(option: str, text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected a day such as 2026-01-31") from None
