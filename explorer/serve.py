"""Serve: runs one explorer process on the runs that it is given.

Room: explorer (edge: listens).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path

from assay.explorer.explored import Explored
from assay.explorer.pages.run import Damaged
from assay.participant.files.record import plain_explorer
from assay.protocol.errors import ConfigError

CONNECTIONS_MAX = 256
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def serve(
    folders: Sequence[Path],
    *,
    listen: str,
    port: int,
    api: str = "",
    on_run: Callable[[Explored | Damaged], None],
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        folders: Of runs, as `open_runs` takes them; each is read and checked before anything is served.
        listen: IP address. On the loopback, only names of the loopback are answered.
        port: 0: any free one.
        api: Address of an API whose wallet page is linked; empty: none.
        on_run: Called with each run, once it is read.
        on_ready: Called with the address of the first page.

    Raises:
        ConfigError: no run's folder, no IP address, or the port is taken.
    """
    try:
        from assay.explorer.app import make_app
        from assay.explorer.catalogue import open_runs
        from assay.explorer.guard import Guard
        from assay.explorer.live import Live, Streams
        from assay.network.http import DeadlineHttp, listening, server_of
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "fastapi", "h11", "jinja2", "starlette"):
            raise
        raise ConfigError("the explorer needs FastAPI, Jinja and uvicorn: pip install 'assay[api]'") from None
    api = plain_explorer(api) if api else ""
    try:
        address = ipaddress.ip_address(listen)
    except ValueError:
        raise ConfigError(f"{listen!r} is no IP address, expected one such as 127.0.0.1") from None
    line, url = listening(listen, port, backlog=128)
    catalogue, streams = open_runs(folders, on_run), Streams()
    host = f"[{listen}]" if address.version == 6 else listen
    guarded = Guard(make_app(catalogue, streams, api), (*LOOPBACK, host) if address.is_loopback else ())
    runner = server_of(guarded, DeadlineHttp, connections=CONNECTIONS_MAX, stop_s=2)
    streams.is_stopping = lambda: runner.should_exit
    on_ready(f"{url}/")
    try:
        runner.run(sockets=[line])
    finally:
        for run in catalogue.values():
            if isinstance(run, Live):
                run.close()
