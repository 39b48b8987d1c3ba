"""Serve: runs one API server process from its configuration file.

Room: api (edge: reads a TOML file, listens). Only this module needs the packages of
`assay[api]`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from assay.api.access import AccessStore
from assay.api.config import ServerFile
from assay.orders.toml import read_tables
from assay.participant.telemetry.json_log import log_as_json
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

    from assay.api.hooks.delivery import Delivery

log = logging.getLogger(__name__)
CONNECTIONS_MAX = 512


def open_access(path: Path) -> AccessStore:
    """The access store that a server's file names."""
    return AccessStore(path.parent / read_tables(path, ServerFile).access)


def run_server(path: Path, *, is_tethered: bool = False) -> None:
    """Serve until SIGTERM or Ctrl-C, or, if tethered, until standard input closes.

    Raises:
        ConfigError: the file is wrong, a run of it has no books, or the port is taken.
    """
    try:
        from assay.api.app import guarded, make_server
        from assay.api.hooks.delivery import Delivery
        from assay.api.hooks.post import Poster
        from assay.api.http.protocol import Http
        from assay.network.http import listening, server_of
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "fastapi", "h11", "starlette"):
            raise
        raise ConfigError("the API needs FastAPI and uvicorn: pip install 'assay[api]'") from None
    log_as_json()
    config = read_tables(path, ServerFile)
    server = make_server(config, path.parent)
    for name, run in server.catalogue.runs.items():
        try:
            run.place  # noqa: B018 - where its books are
        except ConfigError as error:
            raise ConfigError(f"{path}: [runs] {name}: {error}") from None
    runner = server_of(
        guarded(server), Http, connections=CONNECTIONS_MAX, stop_s=5,
        h11_max_incomplete_event_size=2 * config.limits.header_bytes,
    )  # fmt: skip
    server.streams.is_stopping = lambda: runner.should_exit  # else the shutdown would wait for open streams
    if is_tethered:
        threading.Thread(target=_stop_when_alone, args=(runner,), daemon=True).start()
    line, url = listening(config.listen, config.port, backlog=256)
    log.info("api started", extra={"url": url, "runs": len(config.runs)})
    asyncio.run(_serve(runner, line, Delivery(server, Poster()) if config.webhooks else None))


async def _serve(runner: uvicorn.Server, line: socket.socket, delivery: Delivery | None) -> None:
    """Serve, and send webhooks for as long; if sending raises, the server stops and raises too."""
    if delivery is None:
        await runner.serve(sockets=[line])
        return
    sending = asyncio.create_task(delivery.run())
    sending.add_done_callback(lambda _: _stop(runner))
    try:
        await runner.serve(sockets=[line])
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending


def _stop(runner: uvicorn.Server) -> None:
    runner.should_exit = True


def _stop_when_alone(runner: uvicorn.Server) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _stop(runner)
