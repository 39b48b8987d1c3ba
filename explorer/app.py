"""App: the explorer's addresses, each a page and its JSON, and the evidence that browsers check.

Room: explorer (edge). Only GET and HEAD; nothing is kept about a reader. A page at ADDRESS is the same value
at ADDRESS.json. Evidence is the protocol's own bytes: a spec, a certified manifest, a settlement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, ClassVar

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response

from assay.bundle.read import BLOB_FOLDERS, BUNDLE
from assay.bundle.settlement_file import settlement_file
from assay.explorer.catalogue import Catalogue
from assay.explorer.explored import Explored
from assay.explorer.guard import FORM_PATH
from assay.explorer.live import GrowthStream, Live, Streams, newest_of
from assay.explorer.pages.auditor import AuditorPage, auditor_page
from assay.explorer.pages.buyer import BuyerPage, OrderPage, buyer_page, order_page
from assay.explorer.pages.epoch import EpochPage, PayoutPage, epoch_page, payout_page, settled_of
from assay.explorer.pages.methods import PATH as METHODS_PATH
from assay.explorer.pages.methods import Axis, MethodsPage, methods_page
from assay.explorer.pages.new_order import NewOrderPage, new_order_page, order_file
from assay.explorer.pages.operator import OperatorPage, operator_page
from assay.explorer.pages.paging import NoSuchPage
from assay.explorer.pages.participants import NodePage, VerifierPage, node_page, verifier_page
from assay.explorer.pages.round import AuditPage, RoundPage, audit_page, link_of, round_page
from assay.explorer.pages.run import (
    AuditsPage,
    Damaged,
    EpochsPage,
    IndexPage,
    NodesPage,
    RoundsPage,
    RunPage,
    audits_page,
    epochs_page,
    index_page,
    nodes_page,
    rounds_page,
    run_page,
)
from assay.explorer.render import Page, html_of, json_of
from assay.orders.form import ORDER_FILE
from assay.participant.files.index import OPENINGS
from assay.protocol.encoding.codec import encode
from assay.protocol.encoding.json_text import plain
from assay.protocol.types import Digest, PeerId

STATIC = Path(__file__).parent / "static"
# Every file that may be served: an address is looked up here and never made into a path.
FILES = {str(path.relative_to(STATIC)): path for path in STATIC.rglob("*") if path.is_file()}
MEDIA_TYPES = {".css": "text/css", ".mjs": "text/javascript", ".svg": "image/svg+xml"}
BYTES, CBOR, JSON, TOML = (
    "application/octet-stream",
    "application/cbor",
    "application/json",
    "application/toml",
)
METHODS = ["GET", "HEAD"]
NUMBER_MAX = 10**9
RUN_ID = re.compile(r"[0-9a-f]{64}")
LIVE_FILE = re.compile(
    rf"{BUNDLE}/(?:links/(?P<number>[0-9]{{6,9}})\.cbor|"
    rf"(?P<folder>{'|'.join(BLOB_FOLDERS)})/(?P<blob>[0-9a-f]{{64}})\.bin)|"
    rf"{OPENINGS}/(?P<opening>[0-9a-f]{{64}})\.bin"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPage:
    """Why there is no page."""

    TEMPLATE: ClassVar[str] = "error.html"
    title: str
    detail: str


def make_app(catalogue: Catalogue, streams: Streams | None = None, api: str = "") -> FastAPI:
    """The app without its guard.

    Args:
        catalogue: Its runs.
        streams: Where its open streams are counted.
        api: Address of an API whose wallet page is linked; empty: none.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.catalogue, app.state.streams, app.state.api = catalogue, streams or Streams(), api
    for address, answer in EVIDENCE.items():
        app.api_route(address, methods=METHODS, response_model=None)(answer)
    for address, make in PAGES.items():  # the JSON first: `{name}` would take `NAME.json` too
        twin = "/index.json" if address == "/" else f"{address}.json"
        app.api_route(twin, methods=METHODS, response_model=None)(_as_json(make))
    for address, make in PAGES.items():
        app.api_route(address, methods=METHODS, response_model=None)(_as_html(make))
    for error in (NoSuchPage, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _on_error)
    return app


def _catalogue(request: Request) -> Catalogue:
    found: Catalogue = request.app.state.catalogue
    return found


def _any_run(name: str, catalogue: Annotated[Catalogue, Depends(_catalogue)]) -> Explored | Damaged:
    found = catalogue.get(name)
    if found is not None:
        (newest,) = newest_of([found])
        return newest
    if RUN_ID.fullmatch(name):  # who found this explorer in the directory knows no name
        for run in newest_of(catalogue.values()):
            if isinstance(run, Explored) and run.delivered.run_id.hex() == name:
                return run
    raise NoSuchPage(f"a run {name[:80]!r}")


def _run(found: Annotated[Explored | Damaged, Depends(_any_run)]) -> Explored:
    if isinstance(found, Damaged):
        raise NoSuchPage(f"anything of the run {found.name}, which is damaged: {found.reason}")
    return found


def _runs(catalogue: Annotated[Catalogue, Depends(_catalogue)]) -> list[Explored]:
    return [run for run in newest_of(catalogue.values()) if isinstance(run, Explored)]


TheCatalogue = Annotated[Catalogue, Depends(_catalogue)]
Runs = Annotated[list[Explored], Depends(_runs)]
AnyRun = Annotated[Explored | Damaged, Depends(_any_run)]
Run = Annotated[Explored, Depends(_run)]
PageNumber = Annotated[int, Query(ge=1, le=NUMBER_MAX)]
Known = Annotated[int, Query(ge=0, le=NUMBER_MAX)]


# ---- pages


def index(catalogue: TheCatalogue, page: PageNumber = 1) -> IndexPage:
    """All runs."""
    found = newest_of(catalogue.values())
    runs = [run for run in found if isinstance(run, Explored)]
    return index_page(runs, [run for run in found if isinstance(run, Damaged)], page)


def methods(runs: Runs, x: Axis = Axis.TOKENS, like: str | None = None, page: PageNumber = 1) -> MethodsPage:
    """The losses of several runs on one scale."""
    return methods_page(runs, x, like, page)


def operator(runs: Runs, account: str, page: PageNumber = 1) -> OperatorPage:
    """All seats of one account."""
    return operator_page(runs, _account(account), page)


def buyer(runs: Runs, account: str, page: PageNumber = 1) -> BuyerPage:
    """All orders of one account."""
    return buyer_page(runs, _account(account), page)


def auditor(runs: Runs, account: str, page: PageNumber = 1) -> AuditorPage:
    """All verifier's seats of one account."""
    return auditor_page(runs, _account(account), page)


def run(run: AnyRun) -> RunPage | Damaged:
    """One run, or what is wrong with it."""
    return run if isinstance(run, Damaged) else run_page(run)


def order(run: Run, page: PageNumber = 1) -> OrderPage:
    """One order, as its buyer follows it."""
    return order_page(run, page)


def rounds(run: Run, page: PageNumber = 1) -> RoundsPage:
    """The chain of manifests."""
    return rounds_page(run, page)


def round_(run: Run, number: int, page: PageNumber = 1) -> RoundPage:
    """One round."""
    return round_page(run, number, page)


def nodes(run: Run, page: PageNumber = 1) -> NodesPage:
    """All nodes."""
    return nodes_page(run, page)


def node(run: Run, peer: str, page: PageNumber = 1) -> NodePage:
    """One node."""
    return node_page(run, _peer(peer), page)


def verifier(run: Run, peer: str, page: PageNumber = 1) -> VerifierPage:
    """One verifier."""
    return verifier_page(run, _peer(peer), page)


def audits(run: Run, page: PageNumber = 1, status: str | None = None) -> AuditsPage:
    """All audits, or those of one status."""
    return audits_page(run, page, status)


def audit(run: Run, number: int, peer: str) -> AuditPage:
    """One audit."""
    return audit_page(run, number, _peer(peer))


def epochs(run: Run, page: PageNumber = 1) -> EpochsPage:
    """All epochs."""
    return epochs_page(run, page)


def epoch(run: Run, number: int, page: PageNumber = 1) -> EpochPage:
    """One epoch."""
    return epoch_page(run, number, page)


def payout(run: Run, number: int, index: int) -> PayoutPage:
    """One row of an epoch's payout table."""
    return payout_page(run, number, index)


def new_order(request: Request) -> NewOrderPage:
    """A form for an order, filled in by the address's query."""
    return new_order_page(dict(request.query_params))


PAGES: dict[str, Callable[..., Page]] = {
    "/": index,
    METHODS_PATH: methods,
    FORM_PATH: new_order,
    "/operators/{account}": operator,
    "/buyers/{account}": buyer,
    "/verifiers/{account}": auditor,
    "/runs/{name}": run,
    "/runs/{name}/order": order,
    "/runs/{name}/rounds": rounds,
    "/runs/{name}/rounds/{number}": round_,
    "/runs/{name}/nodes": nodes,
    "/runs/{name}/nodes/{peer}": node,
    "/runs/{name}/verifiers/{peer}": verifier,
    "/runs/{name}/audits": audits,
    "/runs/{name}/audits/{number}/{peer}": audit,
    "/runs/{name}/epochs": epochs,
    "/runs/{name}/epochs/{number}": epoch,
    "/runs/{name}/epochs/{number}/{index}": payout,
}


# ---- evidence


def spec(run: Run) -> Response:
    """The run's spec, whose digest its id is made of."""
    return Response(encode(run.delivered.spec), media_type=CBOR)


def deployment(run: Run) -> Response:
    """The contracts that the run's statements are for."""
    return Response(run.delivered.deployment.to_json(), media_type=JSON)


def link(run: Run, number: int) -> Response:
    """One certified manifest."""
    return Response(encode(link_of(run, number)), media_type=CBOR)


def settlement(run: Run, number: int) -> Response:
    """One epoch's settlement, as a bundle has it."""
    return Response(json.dumps(plain(settlement_file(settled_of(run, number)))), media_type=JSON)


def events(request: Request, name: str, catalogue: TheCatalogue, known: Known = 0) -> Response:
    """Server-sent events of a live run: the number of its manifests, whenever this is not `known`."""
    live = catalogue.get(name)
    if not isinstance(live, Live):
        raise NoSuchPage(f"a live run {name[:80]!r}")
    return GrowthStream(request.app.state.streams, live, known)


def run_file(run: Run, path: str) -> Response:
    """One file of the delivered run, or of its chain while it goes on; for `assay run fetch`."""
    if run.is_live:
        return _live_file(run, path)
    file = run.files.get(path)
    if file is None or not file.is_file():
        raise NoSuchPage(f"a delivered file {path[:80]!r}")
    return FileResponse(file, media_type=BYTES)


def _live_file(run: Explored, path: str) -> Response:
    """A file that the bundle of this run will have, by its name there."""
    if path in (f"{BUNDLE}/spec.cbor", f"{BUNDLE}/deployment.json"):
        return spec(run) if path.endswith(".cbor") else deployment(run)
    found = LIVE_FILE.fullmatch(path)
    if found is not None and found["number"]:
        return link(run, int(found["number"]))
    if found is not None and found["opening"]:
        opening = Digest(bytes.fromhex(found["opening"]))
        kept = run.delivered.opening(opening) if opening in run.openings else None
        if kept is not None:
            return FileResponse(kept, media_type=BYTES)
    elif found is not None:
        blob = Digest(bytes.fromhex(found["blob"]))
        file = run.delivered.file(found["folder"], blob)
        if blob in run.blobs and file.is_file():
            return FileResponse(file, media_type=BYTES)
    raise NoSuchPage(f"a file {path[:80]!r} of a run that goes on")


def new_order_file(request: Request) -> Response:
    """The file of the order that the address's query describes."""
    text = order_file(dict(request.query_params))
    return Response(
        text, media_type=TOML, headers={"content-disposition": f'attachment; filename="{ORDER_FILE}"'}
    )


def static(path: str) -> Response:
    """One of the explorer's own files."""
    file = FILES.get(path)
    if file is None:
        raise NoSuchPage("such a file")
    return FileResponse(file, media_type=MEDIA_TYPES[file.suffix])


EVIDENCE: dict[str, Callable[..., Response]] = {
    "/runs/{name}/spec.cbor": spec,
    "/runs/{name}/deployment.json": deployment,
    "/runs/{name}/rounds/{number}.cbor": link,
    "/runs/{name}/settlements/{number}.json": settlement,
    "/runs/{name}/events": events,
    "/runs/{name}/files/{path:path}": run_file,
    f"{FORM_PATH}.toml": new_order_file,
    "/static/{path:path}": static,
}


# ---- answers


def _as_html(make: Callable[..., Page]) -> Callable[..., Response]:
    page = Depends(make)

    def answer(request: Request, made: Any = page) -> Response:
        return HTMLResponse(html_of(made, request.scope["path"], request.app.state.api))

    return answer


def _as_json(make: Callable[..., Page]) -> Callable[..., Response]:
    page = Depends(make)

    def answer(made: Any = page) -> Response:
        return Response(json_of(made), media_type=JSON)

    return answer


async def _on_error(request: Request, error: Exception) -> Response:
    """There is no such page, or no such method: told as a page, or as JSON where that was asked for."""
    status, headers = int(HTTPStatus.NOT_FOUND), None
    match error:
        case NoSuchPage():
            detail = f"There is no {error}."
        case RequestValidationError():
            wrong = error.errors()[0]
            detail = f"{wrong['loc'][-1]}: {wrong['msg']}"
        case _:
            assert isinstance(error, HTTPException)
            status, headers = error.status_code, error.headers
            detail = "No page of this explorer has this address, or takes this method."
    found = ErrorPage(title=HTTPStatus(status).phrase, detail=detail)
    path = request.scope["path"]
    if path.endswith(".json"):
        return Response(json_of(found), status, headers, JSON)
    return HTMLResponse(html_of(found, path, request.app.state.api), status, headers)


def _peer(text: str) -> PeerId:
    """A peer id in lower-case hexadecimal. Raises NoSuchPage."""
    try:
        peer = PeerId(bytes.fromhex(text))
    except ValueError:
        peer = PeerId(b"")
    if peer.hex() != text or len(peer) != 32:
        raise NoSuchPage(f"a participant {text[:80]!r}; expected 64 hexadecimal digits")
    return peer


def _account(text: str) -> bytes:
    """An account: 40 hexadecimal digits after 0x, in any case. Raises NoSuchPage."""
    if re.fullmatch(r"0x[0-9a-fA-F]{40}", text) is None:
        raise NoSuchPage(f"an account {text[:80]!r}; expected 0x and 40 hexadecimal digits")
    return bytes.fromhex(text[2:])
