"""Books routes: read-only queries on the ledgers of served runs.

Room: api (edge). The commands print the same values. A run's name is looked up, never made into a path.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from assay.api.access import Principal
from assay.api.catalogue import Head, ReadHead, ServedRun
from assay.api.entries import entry_answer
from assay.api.http.bodies import StrictRoute
from assay.api.http.problems import Problem
from assay.api.payouts import payouts
from assay.api.schemas import (
    AuditResult,
    BalanceAnswer,
    Balances,
    CheckpointAnswer,
    Earnings,
    Entries,
    ProofAnswer,
    Reasons,
    RunAnswer,
    SettlementAnswer,
    UnpaidAnswer,
)
from assay.api.server import Reader, Server, TheServer, check_etag
from assay.ledger.journal.leaf import Written
from assay.ledger.journal.log_store import read_notes
from assay.ledger.journal.reader import PORTION, read_entries
from assay.ledger.journal.tables import TABLES
from assay.ledger.log.note import verifier_key
from assay.ledger.queries.earned import read_earned, read_unpaid
from assay.ledger.queries.export import Language, export_lines
from assay.ledger.queries.lookup import (
    PAGE_MAX,
    checkpoint_of,
    entry_page,
    log_edge,
    newest_note,
    prove_entry,
)
from assay.protocol.errors import ConfigError

PIECE_CHARS = 1 << 16
router = APIRouter(route_class=StrictRoute, prefix="/v1", tags=["books"])
RunName = Annotated[str, Path(max_length=64, examples=["quickstart"])]
Epoch = Annotated[int, Path(ge=0, le=10**9)]
Peer = Annotated[str, Path(pattern=r"^[0-9a-fA-F]{1,64}$")]


@router.get("/runs")
def runs(server: TheServer, caller: Reader) -> list[RunAnswer]:
    """The served runs whose books the caller may read."""
    return [_run(run) for run in server.catalogue.runs.values() if server.may_read(caller, run)]


@router.get("/runs/{run}")
def run(server: TheServer, caller: Reader, run: RunName) -> RunAnswer:
    """One run, with the size of its log."""
    return _run(server.run_for(caller, run))


def _run(run: ServedRun) -> RunAnswer:
    with run.opened() as db:
        edge, note = log_edge(db), newest_note(db)
        settled = db.execute(sa.select(TABLES["settlement"].c.epoch).order_by(sa.text("1"))).scalars()
        epochs = list(settled)
    try:
        run_id = run.spec()[1].hex()
    except Problem:
        run_id = None
    return RunAnswer(
        name=run.name,
        run_id=run_id,
        entries=edge.size,
        root=edge.root,
        checkpoint_size=None if note is None else note.size,
        settled_epochs=epochs,
    )


@router.get("/runs/{run}/balances")
def balances(
    server: TheServer, caller: Reader, run: RunName, request: Request, response: Response
) -> Balances:
    """Every non-zero account balance, on its own side, from the journal."""
    found = server.run_for(caller, run).totals()
    response.headers["ETag"] = check_etag(request, found.edge)
    return Balances(
        entries=found.edge.size,
        root=found.edge.root,
        balances=[
            BalanceAnswer.of(account, account=account.code, amount=amount)
            for account, amount in found.balances
        ],
        trial_balance=found.trial_balance,
    )


@router.get("/runs/{run}/entries", response_model=Entries)
def entries(
    server: TheServer,
    caller: Reader,
    run: RunName,
    request: Request,
    after: Annotated[int, Query(ge=0, lt=2**63, description="number of the last entry before the page")] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    account: Annotated[str, Query(max_length=200, description="prefix of the account codes")] = "",
) -> Response:
    """The journal, oldest first, page by page; each entry is compared with the log."""

    def page(db: Connection) -> Entries:
        found = entry_page(db, after=after, limit=limit, account=account)
        return Entries(entries=[entry_answer(one) for one in found.entries], next=found.next_after)

    return _answer(server, request, server.run_for(caller, run), _log, page)


@router.get("/runs/{run}/proof", response_model=ProofAnswer)
def proof(
    server: TheServer,
    caller: Reader,
    run: RunName,
    request: Request,
    entry: Annotated[str, Query(min_length=1, max_length=200, description="number or key of the entry")],
) -> Response:
    """An entry with its inclusion proof in the signed log."""
    served_run = server.run_for(caller, run)

    def proven(db: Connection) -> ProofAnswer:
        with missing():
            found = prove_entry(db, served_run.origin(db), entry)
        return ProofAnswer(
            entry=entry_answer(found.written),
            leaf_index=found.written.number - 1,
            leaf=found.leaf,
            proof=[each.hex() for each in found.path],
            checkpoint=found.note,
            verifier_key=found.verifier_key,
        )

    return _answer(server, request, served_run, _signed_log, proven)


@router.get("/runs/{run}/checkpoints")
def checkpoints(
    server: TheServer,
    caller: Reader,
    run: RunName,
    limit: Annotated[
        int, Query(ge=1, le=500, description="largest number of checkpoints, newest first")
    ] = 100,
) -> list[CheckpointAnswer]:
    """Signed checkpoints of the log, smallest first."""
    served_run = server.run_for(caller, run)
    with served_run.opened() as db:
        origin = served_run.origin(db)
        found = [(note, checkpoint_of(note, origin)) for note in read_notes(db, newest=limit)]
    return [
        CheckpointAnswer.of(one, note=note.text, verifier_key=verifier_key(one.origin, note.signer))
        for note, one in found
    ]


@router.get("/runs/{run}/audit")
def audit(server: TheServer, caller: Reader, run: RunName) -> AuditResult:
    """Audit of the books: recomputes every leaf, root, sum and checkpoint; cached for a while."""

    found = server.run_for(caller, run).audited(server.config.limits.audit_every_s)
    good = found.audited
    return AuditResult(
        ok=good is not None,
        difference=found.difference or None,
        entries=good.entries if good else None,
        postings=good.postings if good else None,
        root=good.root.hex() if good else None,
        checkpoints=len(good.checkpoints) if good else None,
        age_s=int(time.monotonic() - found.at_s),
    )


@router.get("/runs/{run}/export", responses={200: {"content": {"text/csv": {}, "text/plain": {}}}})
def export(
    server: TheServer,
    caller: Reader,
    run: RunName,
    language: Annotated[Language, Query()] = Language.CSV,
) -> StreamingResponse:
    """The journal in a language; the response breaks off at an entry that differs from the log."""
    served_run = server.run_for(caller, run)
    with served_run.opened() as db:  # fails before anything is sent
        count = log_edge(db).size

    def journal() -> Iterator[Written]:
        for first in range(1, count + 1, PORTION):
            with served_run.opened() as db:  # opened and closed within one step: steps run in any thread
                portion = list(read_entries(db, range(first, min(first + PORTION, count + 1))))
            yield from portion

    title = f"Assay, {served_run.name}"
    lines = export_lines(language, journal, title)
    kind = "text/csv" if language is Language.CSV else "text/plain"
    name = f"{served_run.name}.{language.value}"
    return StreamingResponse(
        _in_turn(server.exporting, _pieces(lines)), media_type=f"{kind}; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )  # fmt: skip


@router.get("/runs/{run}/earnings/{peer}")
def earnings(server: TheServer, caller: Reader, run: RunName, peer: Peer) -> Earnings:
    """A node's earnings in each epoch, by its peer id or a prefix of it."""
    with server.run_for(caller, run).opened() as db, missing():
        return Earnings.model_validate(read_earned(db, peer))


@router.get("/runs/{run}/earnings/{peer}/why/{epoch}")
def why(server: TheServer, caller: Reader, run: RunName, peer: Peer, epoch: Epoch) -> Reasons:
    """Every unpaid step of an epoch, with the digests that prove the reason."""
    with server.run_for(caller, run).opened() as db, missing():
        found = read_unpaid(db, peer, epoch)
    return Reasons.of(
        found,
        unpaid=[
            UnpaidAnswer.of(
                one,
                reason=one.reason.value,
                findings=[*one.evidence.findings, *one.fault.findings],
                rulings=[*one.evidence.rulings, *one.fault.rulings],
            )
            for one in found.unpaid
        ],
    )


@router.get("/runs/{run}/settlements/{epoch}")
def settlement(server: TheServer, caller: Reader, run: RunName, epoch: Epoch) -> SettlementAnswer:
    """An epoch's payout table, each row with its claim proof."""
    served_run = server.run_for(caller, run)
    run_id = served_run.spec()[1]
    with served_run.opened() as db:
        return payouts(db, run_id, epoch)


def _answer(
    server: Server,
    request: Request,
    run: ServedRun,
    read_head: ReadHead,
    make: Callable[[Connection], BaseModel],
) -> Response:
    """The answer to a request, kept or made from one snapshot of the run's books."""
    state = run.state()
    known = run.known_head(read_head, state)
    kept = None if known is None else server.answers.kept(check_etag(request, *known))
    if kept is not None:
        return kept  # without opening the books, which costs more than all else
    with run.opened() as db:
        tag = check_etag(request, *run.head(read_head, state, db))
        return server.answers.of(tag, lambda: make(db))


def _log(db: Connection) -> Head:
    return log_edge(db), ""


def _signed_log(db: Connection) -> Head:
    note = newest_note(db)
    return log_edge(db), note.text if note else ""


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    """Lines joined to larger pieces, because each piece is handed to another thread."""
    piece: list[str] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= PIECE_CHARS:
            yield "".join(piece)
            piece, size = [], 0
    yield "".join(piece)


async def _in_turn(turn: asyncio.Semaphore, pieces: Iterator[str]) -> AsyncIterator[str]:
    """The pieces, each made while no other export's is: who reads slowly keeps no turn, and no thread."""
    while True:
        async with turn:
            piece = await run_in_threadpool(next, pieces, None)
        if piece is None:
            return
        yield piece


@contextmanager
def missing() -> Iterator[None]:
    """Context in which a failed look-up becomes a 404 problem."""
    try:
        yield
    except ConfigError as error:
        raise Problem(404, str(error)[:500]) from None


def may_see(caller: Principal | None, buyer: str) -> None:
    """Do nothing if the caller may see a buyer's documents.

    Raises:
        Problem: they belong to another account.
    """
    if caller is not None and caller.account is not None and caller.account != buyer:
        raise Problem(403, "only the run's buyer may read its invoices")
