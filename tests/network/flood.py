"""Flood: what ten members that flood a host add to another member's notifications and requests.

python -m tests.network.flood

Figures are the victim's own processor time between the answers to one member that asks again as soon as it
is answered, so that other processes on the machine do not count. Each flood is tried on the host as it is,
and on one that serves whatever comes first. Three processes: victim, ten flooding hosts, and this one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import trio

from assay.network import limits
from assay.network.cpu_time import CpuTime
from assay.network.frames import Kind, encode_frame, pack_id, read_frame
from assay.network.host import Host, PeerAddress, open_host
from assay.network.limits import Timing
from assay.protocol.encoding.blob import CHUNK_BYTES, blob_digest
from tests.child_process import PYTHONPATH
from tests.network.loopback import NETWORK_ID, ROOT, a_host, burn, peer_of, seed_of, until
from tests.network.memory_blobs import MemoryBlobs

FLOODERS, ROUND_TRIPS, WARM_S = 10, 40, 4.0
DEAR_S = 0.008  # of each flooding notification or request, as of 256 KiB that take longest to decode
BLOB = bytes(range(256)) * (8 * CHUNK_BYTES // 256)
WORD = b"word"


async def victim(is_plain: bool) -> None:
    """Serve until killed: `heard` answers once as many words were heard, with our processor time."""
    if is_plain:

        async def at_once(_self: Any, _peer: Any, work: Any) -> Any:
            return await work

        CpuTime.share = at_once  # type: ignore[method-assign]
        CpuTime.least = lambda _self, peers: next(iter(peers))  # type: ignore[method-assign]
    heard = 0
    changed = trio.Event()

    async def answer(_peer: Any, body: bytes) -> bytes:
        while heard < int(body):
            await changed.wait()
        return str(time.process_time()).encode()

    async def dear(_peer: Any, body: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        burn(DEAR_S)
        return body

    blobs = MemoryBlobs()
    blobs.put(BLOB)
    async with open_host(
        seed=seed_of("victim"),
        listen_port=0,
        network_id=NETWORK_ID,
        is_member=lambda _peer: True,
        handlers={"heard": answer, "dear": dear},
        blobs=blobs,
    ) as host:
        print(json.dumps({"port": host.address.port}), flush=True)
        async for notification in host.notifications:
            with host.metered(notification.peer):
                if notification.payload == WORD:
                    heard += 1
                    changed.set()
                    changed = trio.Event()
                else:
                    burn(DEAR_S)


async def _notify(host: Host, to: Any) -> None:
    await host.send(to, bytes(1000))


async def _ask(host: Host, to: Any) -> None:
    await host.request(to, "dear", b"", timeout_s=60)


async def ping(host: Host, to: Any) -> None:
    """Ping on a stream of its own, twenty at a time."""
    stream = await host._peers.open_stream(to, host._protocols.ctl)
    while True:
        await stream.write(encode_frame(Kind.PING, bytes(4)) * 20)
        for _ in range(20):
            await read_frame(stream, (Kind.PONG,))


async def _read(host: Host, to: Any) -> None:
    stream = await host._peers.open_stream(to, host._protocols.blob)
    await stream.write(encode_frame(Kind.GET, blob_digest(BLOB)))
    await read_frame(stream, (Kind.CHUNKS,))
    want = encode_frame(Kind.WANT_CHUNK, pack_id(0))
    await stream.write(want * limits.CHUNKS_IN_FLIGHT)
    while True:
        await read_frame(stream, (Kind.CHUNK,))
        await stream.write(want)


# What a flooder does without end, and how often at once.
FLOODS: dict[str, tuple[Callable[[Host, Any], Awaitable[None]], int]] = {
    "notifications": (_notify, 1),
    "requests": (_ask, limits.REQUESTS_PER_PEER_MAX),
    "pings": (ping, 1),
    "blob reads": (_read, limits.BLOB_STREAMS_PER_PEER_MAX),
}


async def flooders(kind: str, address: PeerAddress) -> None:
    """Ten hosts that do it until killed."""
    flood, at_once = FLOODS[kind]
    begun: list[int] = []

    async def go_on(host: Host) -> None:
        while True:
            try:
                await flood(host, address.peer)
            except Exception:  # refused, reset or dropped: again
                await trio.sleep(0.02)

    async def one(number: int) -> None:
        async with a_host(f"flooder {number}", timing=Timing()) as host, trio.open_nursery() as nursery:
            nursery.start_soon(host.keep_connected, [address])
            await until(lambda: bool(host.connected()))
            begun.append(number)
            if len(begun) == FLOODERS:
                print("begun", flush=True)
            for _ in range(at_once):
                nursery.start_soon(go_on, host)

    async with trio.open_nursery() as nursery:
        for number in range(FLOODERS):
            nursery.start_soon(one, number)


async def honest(address: PeerAddress) -> tuple[list[float], list[float]]:
    """The victim's processor milliseconds from one answer to the next: requests, and words with a request."""
    async with a_host("honest", timing=Timing()) as host, trio.open_nursery() as nursery:
        nursery.start_soon(host.keep_connected, [address])
        await until(lambda: bool(host.connected()))
        await trio.sleep(WARM_S)

        async def ask(words: int) -> float:
            answer = await host.request(address.peer, "heard", str(words).encode(), timeout_s=120)
            return 1000 * float(answer)

        requests, words = [await ask(0)], []
        for _ in range(ROUND_TRIPS):
            requests.append(await ask(0))
        words.append(requests[-1])
        for number in range(ROUND_TRIPS):
            await host.send(address.peer, WORD)
            words.append(await ask(number + 1))
        nursery.cancel_scope.cancel()
    return _steps(requests), _steps(words)


def _steps(times_ms: list[float]) -> list[float]:
    return [later - sooner for sooner, later in itertools.pairwise(times_ms)]


@contextlib.contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.network.flood", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": PYTHONPATH},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Print one line for each flood and host: medians and worst."""
    for is_plain in (False, True):
        for kind in ("none", *FLOODS):
            with _process("victim", *["plain"] * is_plain) as process:
                assert process.stdout is not None
                port = json.loads(process.stdout.readline())["port"]
                with contextlib.ExitStack() as stack:
                    if kind != "none":
                        flood = stack.enter_context(_process("flooders", kind, str(port)))
                        assert flood.stdout is not None
                        assert flood.stdout.readline(), "the flooders did not begin"
                    address = PeerAddress(peer=peer_of("victim"), host="127.0.0.1", port=port)
                    requests, words = trio.run(honest, address)
            figures = " ".join(f"{statistics.median(one):8.1f} {max(one):8.1f}" for one in (requests, words))
            print(f"{'plain' if is_plain else 'as it is':9} {kind:14} {figures}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["victim", *rest]:
            trio.run(victim, bool(rest))
        case ["flooders", kind, port]:
            trio.run(flooders, kind, PeerAddress(peer=peer_of("victim"), host="127.0.0.1", port=int(port)))
        case _:
            main()
