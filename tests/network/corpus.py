"""What a Byzantine member may send: a fixed set of byte strings per protocol, with a seed.

Each case is one stream: a protocol name and the writes made on it, in order.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from libp2p.pubsub.pb import rpc_pb2
from nacl.signing import SigningKey

from assay.network.frames import BODY_BYTES_MAX, Kind, encode_frame, pack_request
from assay.protocol.encoding.blob import blob_digest
from tests.network.loopback import NETWORK_ID, peer_of, seed_of

MESHSUB = ("/meshsub/1.1.0", "/meshsub/1.2.0")
LIBP2P = ("/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0", "/ipfs/kad/1.0.0")
CTL, BLOB, PUSH = (f"/assay/{NETWORK_ID}/{name}/1" for name in ("ctl", "blob", "push"))
TOPIC = f"/assay/{NETWORK_ID}/votes/1"


@dataclass(frozen=True)
class Case:
    name: str
    protocol: str
    writes: tuple[bytes, ...]
    pause_s: float = 0.0  # between writes


def cases() -> list[Case]:
    """At least 200 cases, always the same."""
    rng = random.Random(20261120)
    return [*_gossip(rng), *_control(rng), *_blobs(rng), *_anything(rng), *_drips(rng)]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _rpc(rpc: rpc_pb2.RPC) -> bytes:
    data = rpc.SerializeToString()
    return _varint(len(data)) + data


def _message(**changes: object) -> rpc_pb2.Message:
    fields: dict[str, object] = {
        "from_id": b"\x00\x24\x08\x01\x12\x20" + peer_of("attacker"),
        "data": b"a vote",
        "seqno": b"\0" * 8,
        "topicIDs": [TOPIC],
        "signature": b"\1" * 64,
    }
    return rpc_pb2.Message(**{**fields, **changes})


def _signed(**changes: object) -> rpc_pb2.Message:
    message = _message(**changes)
    message.ClearField("signature")
    key = SigningKey(seed_of("attacker"))
    message.signature = key.sign(b"libp2p-pubsub:" + message.SerializeToString()).signature
    return message


def _gossip(rng: random.Random) -> Iterator[Case]:
    odd_ids = [b"", b"\0", rng.randbytes(38), b"\x12\x20" + rng.randbytes(32), b"\xff" * 300]
    keys = [
        rng.randbytes(36),
        b"\x08\x00\x12\x03abc",
        b"\x08\x7f\x12\x00",
        b"\xff" * 10,
        b"\x08\x01\x12\x01\0",
    ]
    for protocol in MESHSUB:
        for index in range(12):
            data = rng.randbytes(rng.choice([1, 2, 7, 60, 900]))
            yield Case(f"not protobuf {index}", protocol, (_varint(len(data)) + data,))
        for index, key in enumerate(keys):
            for sender in odd_ids:
                publish = [_message(key=key, from_id=sender)]
                yield Case(f"garbage key {index}", protocol, (_rpc(rpc_pb2.RPC(publish=publish)),))
        for sender in odd_ids:
            yield Case("odd author", protocol, (_rpc(rpc_pb2.RPC(publish=[_message(from_id=sender)])),))
        for name, message in {
            "no signature": _message(signature=b""),
            "wrong signature": _message(),
            "two topics": _signed(topicIDs=[TOPIC, "x"]),
            "large": _signed(data=bytes(100_000)),
            "valid": _signed(data=rng.randbytes(9)),
            "no data": _signed(data=b""),
        }.items():
            yield Case(name, protocol, (_rpc(rpc_pb2.RPC(publish=[message])),))
        many = [_message(seqno=struct.pack(">Q", n), data=bytes([n % 256])) for n in range(800)]
        yield Case("many messages", protocol, (_rpc(rpc_pb2.RPC(publish=many)),))
        subscriptions = [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=f"t{n}") for n in range(3000)]
        yield Case("many subscriptions", protocol, (_rpc(rpc_pb2.RPC(subscriptions=subscriptions)),))
        yield Case("sender record", protocol, (_rpc(rpc_pb2.RPC(senderRecord=rng.randbytes(80))),))
        for control in _controls(rng):
            yield Case("control", protocol, (_rpc(rpc_pb2.RPC(control=control)),))
        for length in (2**20 + 1, 2**32, 2**63, 2**64 - 1):
            yield Case("giant length", protocol, (_varint(length) + b"x",))
        for writes in (
            (b"\xff",),
            (b"\xff" * 12,),
            (b"\x80" * 9 + b"\x01",),
            (b"\x05ab",),
            (b"",),
            (b"\0" * 50,),
        ):
            yield Case("varint", protocol, writes)


def _controls(rng: random.Random) -> Iterator[rpc_pb2.ControlMessage]:
    control = rpc_pb2.ControlMessage
    ids = [rng.randbytes(20) for _ in range(500)]
    yield control(ihave=[rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=ids)])
    yield control(
        ihave=[rpc_pb2.ControlIHave(topicID="\x00", messageIDs=[b"not a literal", b"__import__('os')"])]
    )
    yield control(iwant=[rpc_pb2.ControlIWant(messageIDs=[b"not a literal", *ids])])
    yield control(graft=[rpc_pb2.ControlGraft(topicID=name) for name in (TOPIC, "unknown", "")])
    yield control(prune=[rpc_pb2.ControlPrune(topicID=TOPIC, backoff=2**63)])
    peers = [rpc_pb2.PeerInfo(peerID=rng.randbytes(9), signedPeerRecord=rng.randbytes(50)) for _ in range(50)]
    yield control(prune=[rpc_pb2.ControlPrune(topicID=TOPIC, peers=peers)])
    yield control(idontwant=[rpc_pb2.ControlIDontWant(messageIDs=[rng.randbytes(32) for _ in range(900)])])


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
    yield Case("done at once", BLOB, (encode_frame(Kind.DONE),))
    for size in (0, 1, 2**20, 2**40, 2**63, 2**64 - 1):
        offer = encode_frame(Kind.OFFER, rng.randbytes(32) + struct.pack(">Q", size))
        yield Case("offer", PUSH, (offer,))
        yield Case("offer, then rubbish", PUSH, (offer, rng.randbytes(100)))
        yield Case("offer, then a wrong list", PUSH, (offer, encode_frame(Kind.CHUNKS, rng.randbytes(72))))
        yield Case("offer, then a chunk", PUSH, (offer, encode_frame(Kind.CHUNK, rng.randbytes(900))))
    yield Case("short offer", PUSH, (encode_frame(Kind.OFFER, b"abc"),))
    for index in range(10):
        yield Case(f"mutated pull {index}", BLOB, (_mutated(rng, get + want),))


def _anything(rng: random.Random) -> Iterator[Case]:
    for protocol in (*LIBP2P, CTL, BLOB, PUSH):
        for size in (0, 1, 4, 5, 33, 5000):
            yield Case(f"random {size}", protocol, (rng.randbytes(size),))
    for protocol in LIBP2P:
        yield Case("giant length", protocol, (_varint(2**63) + b"x",))


def _drips(rng: random.Random) -> Iterator[Case]:
    for protocol in (MESHSUB[0], CTL, BLOB, PUSH):
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
