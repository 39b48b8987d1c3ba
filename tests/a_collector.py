"""An OpenTelemetry collector for tests: keeps what processes send it over OTLP and HTTP."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Collector:
    """Where it listens, and (trace id, process, span name) of every span that it was sent."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self.found: set[tuple[int, str, str]] = set()

    def take(self, body: bytes) -> None:
        """Keep the spans of a request."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for one in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {pair.key: pair.value.string_value for pair in one.resource.attributes}
            for scope in one.scope_spans:
                for span in scope.spans:
                    trace_id = int.from_bytes(span.trace_id, "big")
                    self.found.add((trace_id, named["service.instance.id"], span.name))


@contextmanager
def a_collector() -> Iterator[Collector]:
    """A collector on loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server.server_port)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
