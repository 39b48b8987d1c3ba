"""Rebuild: remakes a run's books from its certified chain and the contracts' events.

Room: observer (edge: the chain, and a new database). Nothing of the old books is needed. What is not in chain
and events, the times of writing and documents, is not remade: so the log's roots are new, and nobody has
signed them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.bundle.books import find_books, opened
from assay.bundle.read import Delivered
from assay.chain.providers import Providers
from assay.ledger.accounts import Account
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.writer import read_balances
from assay.observer.ledger_service.bookkeeper import Recorder
from assay.protocol.errors import AssayError, ConfigError, Unavailable

LINKS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountDifference:
    """An account that two books do not agree about; token units, debits positive."""

    account: str
    rebuilt: int
    present: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltBooks:
    """New books, and how those that are there differ from them."""

    books: Path
    rounds: int  # recorded
    next_block: int  # up to which the chain was read
    trial_balance: int  # anything but zero means that the books are wrong
    present: str  # the others; empty: there are none that can be read
    reason: str  # why not
    differences: tuple[AccountDifference, ...]


def rebuild(
    run: Delivered,
    urls: Sequence[str],
    out: Path,
    on_rounds: Callable[[int, int], None] = lambda _done, _of: None,
) -> RebuiltBooks:
    """Book a run from its first round and the deployment's first block on.

    Args:
        run: As far as it has got.
        urls: JSON-RPC endpoints of its chain, which must agree.
        out: The new database.
        on_rounds: Called with how many rounds are booked, and of how many.

    Raises:
        ConfigError: `out` is there already.
        Unavailable: no endpoint, the disk, or endpoints that disagree. What was written is removed.
    """
    if out.exists():
        raise ConfigError(f"{out}: there already; expected the name of a new database")
    try:
        books = BookStore(out, run.run_id, first_block=run.deployment.block)
        try:
            recorder = Recorder(run.spec, run.run_id, books)
            for at in range(0, len(run.links), LINKS_AT_ONCE):
                recorder.book_rounds(run.links[at : at + LINKS_AT_ONCE], run.tables)
                on_rounds(min(at + LINKS_AT_ONCE, len(run.links)), len(run.links))
            recorder.book_blocks(Providers(urls, run.deployment), run.tables)
            balances = books.balances()
            present, reason, differences = _compared(run.root, balances)
            return RebuiltBooks(
                books=out,
                rounds=books.next_round,
                next_block=books.next_block,
                trial_balance=sum(balances.values()),
                present=present,
                reason=reason,
                differences=differences,
            )
        finally:
            books.close()
    except AssayError:
        for suffix in ("", "-wal", "-shm", "-journal"):  # SQLite's own, and nothing that was there
            out.with_name(f"{out.name}{suffix}").unlink(missing_ok=True)
        raise


def _compared(root: Path, rebuilt: Mapping[Account, int]) -> tuple[str, str, tuple[AccountDifference, ...]]:
    """The books in a run's folder, or why they cannot be read; where they differ."""
    try:
        place = find_books(root)
        with opened(place) as db:
            present = read_balances(db)
    except (ConfigError, Unavailable) as cause:
        return "", str(cause), ()
    differences = tuple(
        AccountDifference(account=one.code, rebuilt=rebuilt.get(one, 0), present=present.get(one, 0))
        for one in sorted({*rebuilt, *present}, key=lambda one: one.code)
        if rebuilt.get(one, 0) != present.get(one, 0)
    )
    return str(place.books), "", differences
