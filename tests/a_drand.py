"""A drand network of the tests' own: one key that signs rounds, and an HTTP server that releases them."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from py_ecc.bls.hash_to_curve import hash_to_G1
from py_ecc.bls.point_compression import compress_G1, compress_G2
from py_ecc.optimized_bls12_381.optimized_curve import G2, multiply

from assay.protocol.randomness.drand import DrandSpec, released_s

SECRET = 20261121
GENESIS_S = 1_700_000_000
SCHEME = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"


@functools.cache
def a_key(secret: int = SECRET) -> bytes:
    """The public key of a secret: a compressed point of G2."""
    high, low = compress_G2(multiply(G2, secret))
    return high.to_bytes(48, "big") + low.to_bytes(48, "big")


@functools.cache
def a_signature(number: int, secret: int = SECRET) -> bytes:
    """The signature of a round: a compressed point of G1."""
    message = hashlib.sha256(number.to_bytes(8, "big")).digest()
    return compress_G1(multiply(hash_to_G1(message, SCHEME, hashlib.sha256), secret)).to_bytes(48, "big")


def a_network(genesis_s: int = GENESIS_S, period_s: int = 3) -> DrandSpec:
    """What a run's spec says of it."""
    return DrandSpec(key=a_key(), genesis_s=genesis_s, period_s=period_s)


def info(spec: DrandSpec) -> dict:
    """How it describes itself."""
    return {
        "public_key": spec.key.hex(), "period": spec.period_s, "genesis_time": spec.genesis_s,
        "schemeID": "bls-unchained-g1-rfc9380", "hash": "00" * 32, "metadata": {"beaconID": "test"},
    }  # fmt: skip


@contextmanager
def serving(spec: DrandSpec, *, lies: bool = False) -> Iterator[str]:
    """Its address. It knows no round before its time; one that lies signs another round instead."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.rsplit("/", 1)[1])
            if time.time() < released_s(spec, number):
                self.send_error(404)
                return
            signature = a_signature(number + 1 if lies else number)
            body = json.dumps({"round": number, "signature": signature.hex()}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{'00' * 32}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
