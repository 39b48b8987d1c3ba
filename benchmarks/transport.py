"""Blob transfer over one libp2p connection, against raw TCP in the same run.

    python -m benchmarks.transport [--mb 64] [--runs 3]

Sender and receiver are two processes on loopback. libp2p: Noise, Yamux, one blob
stream, 256 KiB chunks, each hashed by both sides. Raw: trio TCP, 64 KiB writes, the
receiver hashes the whole. CPU is both processes together. MB = 10^6 bytes. Small ones:
a request of 2 kB that comes back as it is, and blobs of 2 kB, one after another. The idle
figure is the CPU of a connected host that has nothing to do.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import trio

from assay.network.host import Host, PeerAddress, open_host
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.types import PeerId
from benchmarks.machine import machine
from tests.network.memory_blobs import MemoryBlobs

SENDER_SEED, RECEIVER_SEED = b"s" * 32, b"r" * 32
IDLE_S = 10.0
MB = 10**6
SMALL_BYTES, SMALL_COUNT = 2000, 300


def main() -> None:
    """Run both transfers and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--send", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.send is not None:
        trio.run(_send, args.send)
    else:
        trio.run(_measure, args.mb, args.runs)


async def _measure(megabytes: int, runs: int) -> None:
    data = _content(megabytes * MB)
    command = [sys.executable, "-m", "benchmarks.transport", "--send", str(megabytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            host_port, raw_port, peer = _ask(child, "where").split()
            address = PeerAddress(peer=PeerId(bytes.fromhex(peer)), host="127.0.0.1", port=int(host_port))
            print(f"machine: {machine()}")
            async with (
                open_host(
                    seed=RECEIVER_SEED,
                    listen_port=0,
                    network_id="benchmark",
                    is_member=lambda _peer: True,
                    handlers={},
                    blobs=MemoryBlobs(),
                ) as host,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(host.keep_connected, [address])
                while not host.connected():
                    await trio.sleep(0.05)
                await _report("libp2p", child, megabytes, runs, lambda: _fetch(host, address, data))
                await _report("raw TCP", child, megabytes, runs, lambda: _receive(int(raw_port), data))
                small = _small()
                await _report_each("request", child, lambda n: _echo(host, address, small[n]))
                await _report_each("blob", child, lambda n: _fetch(host, address, small[n]))
                before = float(_ask(child, "cpu"))
                await trio.sleep(IDLE_S)
                idle_ms = (float(_ask(child, "cpu")) - before) * 1000 / IDLE_S
                print(f"idle host, 1 peer: {idle_ms:.1f} ms CPU per second")
                nursery.cancel_scope.cancel()
        finally:
            child.kill()


async def _report(
    name: str,
    child: subprocess.Popen[str],
    megabytes: int,
    runs: int,
    transfer: Callable[[], Awaitable[None]],
) -> None:
    speeds, costs = [], []
    for _ in range(runs):
        cpu_s, since_s = time.process_time() + float(_ask(child, "cpu")), time.perf_counter()
        await transfer()
        speeds.append(megabytes / (time.perf_counter() - since_s))
        costs.append((time.process_time() + float(_ask(child, "cpu")) - cpu_s) * 1000 / megabytes)
    shown = ", ".join(f"{speed:.1f}" for speed in speeds)
    print(f"{name}: {shown} MB/s (best {max(speeds):.1f}); {min(costs):.1f} ms CPU per MB, both sides")


async def _report_each(
    name: str, child: subprocess.Popen[str], act: Callable[[int], Awaitable[None]]
) -> None:
    await act(0)
    cpu_s = time.process_time() + float(_ask(child, "cpu"))
    for n in range(1, SMALL_COUNT):
        await act(n)
    cpu_ms = (time.process_time() + float(_ask(child, "cpu")) - cpu_s) * 1000 / (SMALL_COUNT - 1)
    print(f"{name} of {SMALL_BYTES} bytes: {cpu_ms:.2f} ms CPU, both sides")


async def _echo(host: Host, address: PeerAddress, data: bytes) -> None:
    assert await host.request(address.peer, "echo", data, timeout_s=600) == data


async def _fetch(host: Host, address: PeerAddress, data: bytes) -> None:
    got = await host.fetch(blob_digest(data), holders=[address.peer], size_max=len(data), deadline_s=600)
    assert got == data


async def _receive(port: int, data: bytes) -> None:
    got = bytearray()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        async for piece in stream:
            got += piece
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()


async def _send(megabytes: int) -> None:
    data = _content(megabytes * MB)
    blobs = MemoryBlobs()
    for one in (data, *_small()):
        blobs.put(one)

    async def echo(_peer: PeerId, body: bytes) -> bytes:
        return body

    async def send_raw(stream: trio.SocketStream) -> None:
        for offset in range(0, len(data), 65536):
            await stream.send_all(data[offset : offset + 65536])

    async with (
        open_host(
            seed=SENDER_SEED,
            listen_port=0,
            network_id="benchmark",
            is_member=lambda _peer: True,
            handlers={"echo": echo},
            blobs=blobs,
        ) as host,
        trio.open_nursery() as nursery,
    ):
        listeners = await nursery.start(trio.serve_tcp, send_raw, 0)
        raw_port = listeners[0].socket.getsockname()[1]
        while question := await trio.to_thread.run_sync(sys.stdin.readline):
            if question.strip() == "where":
                print(host.address.port, raw_port, host.peer.hex(), flush=True)
            else:
                print(time.process_time(), flush=True)


def _ask(child: subprocess.Popen[str], question: str) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(question + "\n")
    child.stdin.flush()
    return child.stdout.readline()


def _content(size: int) -> bytes:
    return hashlib.shake_256(b"assay benchmark").digest(size)


def _small() -> list[bytes]:
    data = _content(SMALL_BYTES * SMALL_COUNT)
    return [data[at : at + SMALL_BYTES] for at in range(0, len(data), SMALL_BYTES)]


if __name__ == "__main__":
    main()
