"""A server with books and, if wanted, a chain; asked without a socket, or listening on one."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from assay.api.access import AccessStore
from assay.api.app import guarded
from assay.api.catalogue import make_catalogue
from assay.api.config import LimitsSection, ServerFile
from assay.api.gateway import Gateway
from assay.api.http.protocol import Http
from assay.api.server import Server

ORIGIN = "https://api.example.org"
NOW_S = 1_800_000_000


@dataclass
class Clock:
    """Unix time that a test moves."""

    now_s: int = NOW_S

    def __call__(self) -> int:
        return self.now_s


@dataclass
class ApiWorld:
    """A server and a way to ask it."""

    folder: Path
    gateway: Gateway | None = None
    limits: LimitsSection = field(default_factory=lambda: LimitsSection(request_s=600))  # a busy machine's
    public_read: bool = False
    readers: tuple[str, ...] = ()
    webhooks: bool = False
    explorer: str | None = None
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        config = ServerFile(
            origin=ORIGIN,
            runs={"paper": "paper"},
            limits=self.limits,
            public_read=self.public_read,
            readers=frozenset(self.readers),
            webhooks=self.webhooks,
            explorer=self.explorer,
        )
        self.access = AccessStore(self.folder / "access.db")
        self.server = Server(
            config, make_catalogue(config.runs, self.folder), self.access, self.gateway, now_s=self.clock
        )
        self.app = guarded(self.server)

    def token(self, *scopes: str, account: str | None = None, limit: int = 0) -> str:
        return self.access.create_token(
            "test", account=account, scopes=frozenset(scopes), spend_limit=limit, now_s=self.clock(), days=1
        )[0]

    def session(self, account: str) -> str:
        return self.access.open_session(account, self.clock())[0]

    def ask(
        self,
        method: str,
        path: str,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> httpx.Response:
        told = dict(headers or {})
        if token is not None:
            told["Authorization"] = f"Bearer {token}"

        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, timeout=60) as client:
                return await client.request(method, path, headers=told, **more)

        return asyncio.run(once())

    def get(self, path: str, token: str | None = None, **headers: str) -> httpx.Response:
        return self.ask("GET", path, token, headers=headers)


def is_problem(answer: httpx.Response, status: int, words: str = "") -> bool:
    """Whether an answer is this problem, as RFC 9457 has it, and says these words."""
    told = answer.json()
    assert answer.headers["content-type"] == "application/problem+json", answer.headers
    assert told["status"] == answer.status_code, told
    assert {"type", "title", "status", "detail"} <= set(told)
    assert (answer.status_code, words in told["detail"]) == (status, True), told
    return True


@contextmanager
def listening(app: Any, *, send_bytes: int = 0, **more: Any) -> Iterator[str]:
    """The app on a socket of this machine, whose kernel takes about `send_bytes` of an answer if given."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, http=Http, ws="none", lifespan="off", log_config=None,
        access_log=False, server_header=False, proxy_headers=False, **more,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        line = server.servers[0].sockets[0]
        if send_bytes:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        port = line.getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()
