"""Books of a run with two final epochs, and some steps in them that nobody is charged for."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy as sa
from nacl.signing import SigningKey

from assay.chain.events import LogAnchored
from assay.ledger.invoices.document import Party
from assay.ledger.invoices.store import Parties
from assay.ledger.journal.database import Place
from assay.ledger.journal.log_store import read_edge
from assay.ledger.journal.round_facts import RoundFacts
from assay.ledger.journal.store import BookStore
from assay.ledger.log.signer import CheckpointSigner
from assay.ledger.settlement.payouts import Settlement, settle
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.messages import Outcome
from assay.protocol.types import NO_DIGEST
from assay.testing.messages import a_commit
from tests.ledger.a_database import beside, copy_rows, is_sqlite
from tests.ledger.a_run import BUDGET, RUN, EventStream, a_history, a_spec, an_audit, peer

SPEC = a_spec()
KEY = SigningKey(b"k" * 32)
NOW_MS = 1_700_000_000_000
TOKENS = 4_000_000
SELLER = Parties(
    supplier=Party(name="Assay Compute GmbH", address=("Weg 1", "10115 Berlin"), vat_id="DE123456789"),
    buyer=Party(name="Mira Labs", address=("2 High St",), vat_id=""),
    tax_note="Reverse charge.",
)


def _steps(epoch: int) -> dict[tuple[int, str], int]:
    first = epoch * SPEC.money.epoch_rounds
    return {
        (first + at, f"node-{n}"): TOKENS + 1000 * n + at
        for at in range(SPEC.money.epoch_rounds)
        for n in range(3)
    }


def a_table(epoch: int) -> Settlement:
    """Node 2 was found out in its third step, so that step and the fourth are not paid, nor the first two."""
    first = epoch * SPEC.money.epoch_rounds
    fault = an_audit("node-2", first + 2, AuditStatus.CONFIRMED, v0=Outcome.MISMATCH, v1=Outcome.MISMATCH)
    beacon_shares = {first: [f"verifier-{n}" for n in range(4)]}
    run_state = a_history(SPEC, _steps(epoch), audits=[fault], beacon_shares=beacon_shares, epoch=epoch)
    return settle(run_state, epoch)


TABLES = {epoch: a_table(epoch) for epoch in range(SPEC.epochs)}


def a_stream(epochs: int = SPEC.epochs) -> EventStream:
    stream = EventStream()
    stream.opened(budget=10**9)
    for epoch in range(epochs):
        stream.settled(TABLES[epoch])
    if epochs == SPEC.epochs:
        stream.refunded(10**9 - sum(table.total for table in TABLES.values()))
    return stream


def an_invoiced_run(place: Place, folder: Path, *, epochs: int = SPEC.epochs) -> None:
    """Books with a checkpoint after each epoch, the last anchored: written once, and copied for each test."""
    server = "" if is_sqlite(place) else str(sa.make_url(str(place)).query["host"])
    if (server, epochs) not in _WRITTEN:
        first = Path(_FOLDER.name) / str(len(_WRITTEN))
        first.mkdir()
        books = beside(place, f"first_{epochs}") if server else first / "ledger.db"
        _write(books, first, epochs)
        _WRITTEN[server, epochs] = books, first / "checkpoints"
    books, checkpoints = _WRITTEN[server, epochs]
    if server:
        copy_rows(books, place)
    else:
        shutil.copy(books, place)
    shutil.copytree(checkpoints, folder / "checkpoints")


_FOLDER = TemporaryDirectory()  # removed when the process ends
_WRITTEN: dict[tuple[str, int], tuple[Place, Path]] = {}  # books and checkpoints, by server and epochs


def _write(place: Place, folder: Path, epochs: int) -> None:
    store = BookStore(place, RUN, now_ms=lambda: NOW_MS)
    rounds = SPEC.ordered.settled_at(SPEC.epochs - 1) + 1
    store.add_rounds([facts_of(number) for number in range(rounds)])
    stream = a_stream(epochs)
    ledger_service = CheckpointSigner(store, KEY, folder / "checkpoints")
    at = 0
    for end in [event.block_number for event in stream.events]:
        events = [event for event in stream.events if at < event.block_number <= end]
        store.take_blocks(events, min(at + 1, store.next_block), end, TABLES)
        ledger_service.sign_due()
        at = end
    ledger_service.sign_last()
    with store.reading() as db:
        edge = read_edge(db)
    event = stream.emit(
        LogAnchored, ledger_service="0x" + "ab" * 20, run_id=RUN, size=edge.size, root=edge.root
    )
    store.take_blocks([event], store.next_block, event.block_number, TABLES)
    store.close()


def facts_of(number: int) -> RoundFacts:
    epoch = number // SPEC.money.epoch_rounds
    mine = {step: tokens for e in TABLES for step, tokens in _steps(e).items() if step[0] == number}
    return RoundFacts(
        round=number,
        epoch=epoch,
        manifest=NO_DIGEST,
        aggregate=NO_DIGEST,
        signatures=3,
        active=3,
        commits=tuple(
            a_commit(round_id, peer(node), run_id=RUN, tokens=tokens)
            for (round_id, node), tokens in mine.items()
        ),
        beacon_shares=(),
        drawn=(),
        verdicts=(),
        ruled=(),
        faults=(),
        contradictions=(),
        double_votes=(),
        settlement=next((t for e, t in TABLES.items() if SPEC.ordered.settled_at(e) == number), None),
    )


def other_seller(name: str) -> Parties:
    """A supplier of this name."""
    return replace(SELLER, supplier=replace(SELLER.supplier, name=name))


__all__ = ["BUDGET", "NOW_MS", "RUN", "SELLER", "SPEC", "TABLES", "an_invoiced_run", "other_seller"]
