"""What a Byzantine member may send: a fixed set of byte strings per protocol, with a seed.

Each case is one stream: a protocol name and the writes made on it, in order.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from assay.network.frames import BODY_BYTES_MAX, Kind, encode_frame, pack_request
from assay.protocol.encoding.blob import blob_digest
from tests.network.loopback import NETWORK_ID

MESHSUB = ("/meshsub/1.1.0", "/meshsub/1.2.0")
LIBP2P = ("/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0", "/ipfs/kad/1.0.0")
CTL, BLOB = (f"/assay/{NETWORK_ID}/{name}/1" for name in ("ctl", "blob"))


@dataclass(frozen=True)
class Case:
    name: str
    protocol: str
    writes: tuple[bytes, ...]
    pause_s: float = 0.0  # between writes


def cases() -> list[Case]:
    """At least 120 cases, always the same."""
    rng = random.Random(20261120)
    return [*_control(rng), *_blobs(rng), *_anything(rng), *_drips(rng)]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _control(rng: random.Random) -> Iterator[Case]:
    valid = encode_frame(Kind.REQUEST, pack_request(1, "echo", b"hello"))
    for kind in Kind:
        yield Case(f"{kind.name} empty", CTL, (encode_frame(kind),))
        body = rng.randbytes(min(BODY_BYTES_MAX[kind], 40))
        yield Case(f"{kind.name} random", CTL, (encode_frame(kind, body),))
        yield Case(f"{kind.name} oversize", CTL, (struct.pack(">IB", BODY_BYTES_MAX[kind] + 2, kind) + body,))
    for length in (0, 2**31, 2**32 - 1):
        yield Case("length", CTL, (struct.pack(">IB", length, Kind.NOTIFICATION) + b"x",))
    yield Case(
        "no answer read", CTL, (encode_frame(Kind.REQUEST, pack_request(1, "echo", bytes(200_000))) * 30,)
    )
    yield Case("pings unread", CTL, (encode_frame(Kind.PING, b"abcd") * 5000,))
    yield Case("no such method", CTL, (encode_frame(Kind.REQUEST, pack_request(1, "\u0000?", b"")) * 200,))
    yield Case("method not UTF-8", CTL, (encode_frame(Kind.REQUEST, b"\0\0\0\1\4\xff\xff\xff\xff"),))
    yield Case("method cut short", CTL, (encode_frame(Kind.REQUEST, b"\0\0\0\1\x40ab"),))
    for index in range(20):
        yield Case(f"mutated request {index}", CTL, (_mutated(rng, valid * 3),))


def _blobs(rng: random.Random) -> Iterator[Case]:
    digest = blob_digest(bytes(range(256)) * 4096)
    get, want = encode_frame(Kind.GET, digest), encode_frame(Kind.WANT_CHUNK, b"\0\0\0\0")
    yield Case("want before get", BLOB, (want,))
    yield Case("short digest", BLOB, (encode_frame(Kind.GET, digest[:31]),))
    yield Case("unknown digest", BLOB, (encode_frame(Kind.GET, rng.randbytes(32)), want))
    yield Case("chunk out of range", BLOB, (get, encode_frame(Kind.WANT_CHUNK, b"\xff\xff\xff\xff")))
    yield Case("short index", BLOB, (get, encode_frame(Kind.WANT_CHUNK, b"\xff")))
    yield Case("pull and never read", BLOB, (get, want * 64))
    for index in range(10):
        yield Case(f"mutated pull {index}", BLOB, (_mutated(rng, get + want),))


def _anything(rng: random.Random) -> Iterator[Case]:
    for protocol in (*LIBP2P, CTL, BLOB):
        for size in (0, 1, 4, 5, 33, 5000):
            yield Case(f"random {size}", protocol, (rng.randbytes(size),))
    for protocol in LIBP2P:
        yield Case("giant length", protocol, (_varint(2**63) + b"x",))


def _drips(rng: random.Random) -> Iterator[Case]:
    for protocol in (MESHSUB[0], CTL, BLOB):
        yield Case("slow drip", protocol, tuple(bytes([b]) for b in rng.randbytes(10)), pause_s=0.05)


def _mutated(rng: random.Random, valid: bytes) -> bytes:
    data = bytearray(valid)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at]
            case _:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
    return bytes(data)
