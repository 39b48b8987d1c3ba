"""App: assembles the FastAPI app from its routes, behind the guard.

Room: api (edge). No cookies, no CORS, one page (routes/wallet.py): any other path is 404.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from starlette.responses import Response

from assay.api.access import AccessStore
from assay.api.catalogue import make_catalogue
from assay.api.config import ServerFile
from assay.api.gateway import Gateway
from assay.api.http.guard import Guard
from assay.api.http.problems import MEDIA_TYPE, add_handlers
from assay.api.routes import books as books_routes
from assay.api.routes import events as event_routes
from assay.api.routes import hooks as hook_routes
from assay.api.routes import money as money_routes
from assay.api.routes import moves as move_routes
from assay.api.routes import signin as signin_routes
from assay.api.routes import wallet as wallet_routes
from assay.api.schemas import Health, ProblemAnswer
from assay.api.server import SERVER, NotModified, Server, TheServer
from assay.network.http import Message, Receive, Send
from assay.participant.config import read_deployment
from assay.protocol.errors import Unavailable

DESCRIPTION = """Read a run's books, with proofs; sign in with a wallet; ask for a quote; prepare a move of
money, sign it at home, and have it sent. The server holds nobody's keys.
Amounts are token units (10^-6 aUSD) as text."""
_ERRORS = (400, 401, 403, 404, 405, 409, 413, 414, 415, 421, 422, 429, 431, 500, 503)


def make_server(config: ServerFile, base: Path) -> Server:
    """The server of a configuration; paths in it are relative to `base`.

    Raises:
        ConfigError: a file is missing or damaged, or the endpoint serves another chain.
    """
    gateway = None
    if config.chain is not None:
        deployment = read_deployment(base / config.chain.deployment)
        gateway = Gateway(config.chain.rpc_url, deployment)
        with suppress(Unavailable):  # the chain may come back; until then its routes answer so
            gateway.check_deployment()
    return Server(config, make_catalogue(config.runs, base), AccessStore(base / config.access), gateway)


@cache  # its schemas take a tenth of a second, and no request changes it
def make_app() -> FastAPI:
    """The app without its server and guard, as for its documentation."""
    shape = {"schema": {"$ref": f"#/components/schemas/{ProblemAnswer.__name__}"}}
    problem: dict[int | str, dict[str, Any]] = {
        status: {"content": {"application/json": shape, MEDIA_TYPE: {}}} for status in _ERRORS
    }
    # FastAPI compiles a model anew for each status of each route: one of them puts it into the schema.
    problem[_ERRORS[0]]["model"] = ProblemAnswer
    app = FastAPI(
        title="Assay", version="1", description=DESCRIPTION, docs_url=None, redoc_url=None, responses=problem
    )
    add_handlers(app)
    app.add_exception_handler(NotModified, _on_not_modified)
    app.get("/v1/health", tags=["books"])(health)
    for routes in (
        books_routes, event_routes, hook_routes, money_routes, signin_routes, move_routes, wallet_routes,
    ):  # fmt: skip
        app.include_router(routes.router)
    return app


def guarded(server: Server) -> Guard:
    """The app with its server, behind its guard, as served."""

    async def served(scope: Message, receive: Receive, send: Send) -> None:
        await make_app()({**scope, SERVER: server}, receive, send)

    own = urlsplit(server.config.origin).hostname or ""
    return Guard(served, server.config.limits, (own, "localhost"))


def health(server: TheServer) -> Health:
    """Health of the server and of its chain endpoint."""
    chain = "none"
    if server.gateway is not None:
        try:
            server.gateway.block_number()
            chain = "up"
        except Unavailable:
            chain = "down"
    return Health(ok=True, runs=len(server.catalogue.runs), chain=chain)


async def _on_not_modified(request: Request, error: Exception) -> Response:
    assert isinstance(error, NotModified)
    return Response(status_code=304, headers={"ETag": error.tag})
