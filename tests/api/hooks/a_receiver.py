"""A receiver of webhooks: HTTPS on loopback under a public name, whose certificate the poster trusts."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from assay.api.hooks.post import Address, Poster

HOST = "hooks.example.org"
URL = f"https://{HOST}/assay?from=api"


@dataclass
class Receiver:
    """What came in, and what is answered: the statuses of `answers` first, then 200."""

    port: int = 0
    certificate: Path = Path()
    answers: list[int] = field(default_factory=list)
    got: list[Any] = field(default_factory=list)  # (path, headers, body), also of what was not accepted
    changed: threading.Condition = field(default_factory=threading.Condition)

    def poster(self) -> Poster:
        """A poster to which the receiver's loopback address is public, and that trusts its certificate."""

        async def lookup(host: str) -> Sequence[Address]:
            return [("127.0.0.1", self.port)]

        return Poster(tls=ssl.create_default_context(cafile=str(self.certificate)), lookup=lookup)

    def wait(self, count: int) -> list[dict[str, Any]]:
        """The bodies, as soon as there are `count`."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, 120), f"{len(self.got)} of {count}"
            return [json.loads(body) for _, _, body in self.got]


@contextmanager
def receiving(folder: Path, answers: Sequence[int] = ()) -> Iterator[Receiver]:
    """A receiver on a free port."""
    receiver = Receiver(certificate=folder / "receiver.pem", answers=list(answers))
    _write_certificate(receiver.certificate)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with receiver.changed:
                receiver.got.append((self.path, dict(self.headers), body))
                status = receiver.answers.pop(0) if receiver.answers else 200
                receiver.changed.notify_all()
            self.send_response(status)
            self.send_header("location", "https://127.0.0.1/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(receiver.certificate)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join(120)
        server.server_close()


def _write_certificate(path: Path) -> None:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
