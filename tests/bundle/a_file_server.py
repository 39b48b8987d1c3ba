"""Web servers of folders, which tests make lie, break off, and lack files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


class Server(ThreadingHTTPServer):
    """Serves a folder. bodies: what some names have in its place. asked: names and ranges, in order."""

    def __init__(self, folder: Path, *, ranges: bool = True) -> None:
        self.folder, self.ranges = folder, ranges
        self.bodies: dict[str, bytes | None] = {}
        self.moved_to = ""  # where every request is sent on to
        self.cut_at: dict[str, int] = {}
        self.asked: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/some/where"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, asked = self.path.removeprefix("/some/where/"), self.headers.get("Range")
        self.server.asked.append((name, asked))
        if self.server.moved_to:
            self.send_response(302)
            self.send_header("Location", self.server.moved_to + name)
            self.end_headers()
            return
        path = self.server.folder / name
        body = self.server.bodies.get(name, path.read_bytes() if path.is_file() else None)
        if body is None:
            self.send_error(404)
            return
        begun = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        self.send_response(206 if begun else 200)
        self.send_header("Content-Length", str(len(body) - begun))
        self.end_headers()
        cut = self.server.cut_at.pop(name, None)
        self.wfile.write(body[begun:cut])

    def log_message(self, *_: object) -> None:
        pass


Serve = Callable[..., Server]


@contextmanager
def serving(run: Path) -> Iterator[Serve]:
    """Starts servers, of this folder if it is told no other, and ends them all."""
    servers: list[Server] = []

    def start(folder: Path = run, **how: bool) -> Server:
        servers.append(Server(folder, **how))
        Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
