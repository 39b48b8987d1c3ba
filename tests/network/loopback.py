"""Builders for tests on real libp2p over loopback: named peers, short waits, child processes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio
from nacl.signing import SigningKey

from assay.network.host import Host, PeerAddress, open_host
from assay.network.limits import Timing
from assay.protocol.types import PeerId
from tests.child_process import PYTHONPATH
from tests.network.memory_blobs import MemoryBlobs

ROOT = Path(__file__).resolve().parents[2]
NETWORK_ID = "loopback"
QUICK = Timing(
    ping_interval_s=0.3,
    redial_min_s=0.1,
    redial_max_s=0.5,
    polite_dial_s=0.1,
    retry_s=0.1,
    send_s=3,
    chunk_s=3,
    first_frame_s=3,
    open_stream_s=3,
)
PATIENCE_S = 60  # a test that waits this long has failed; no claim depends on the figure


def seed_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def peer_of(name: str) -> PeerId:
    return PeerId(bytes(SigningKey(seed_of(name)).verify_key))


async def echo(_peer: PeerId, body: bytes) -> bytes:
    return body


def burn(cpu_s: float) -> None:
    """Take this much processor time of this thread."""
    since_s = time.thread_time()
    while time.thread_time() < since_s + cpu_s:
        pass


@asynccontextmanager
async def a_host(name: str, **changes: Any) -> AsyncIterator[Host]:
    """A host that admits everybody and echoes, unless told otherwise."""
    settings: dict[str, Any] = {
        "seed": seed_of(name),
        "listen_port": 0,
        "network_id": NETWORK_ID,
        "is_member": lambda _peer: True,
        "handlers": {"echo": echo},
        "blobs": MemoryBlobs(),
        "timing": QUICK,
    }
    async with open_host(**{**settings, **changes}) as host:
        yield host


@asynccontextmanager
async def connected(*hosts: Host) -> AsyncIterator[None]:
    """All of these hosts connected to one another."""
    async with trio.open_nursery() as nursery:
        for host in hosts:
            nursery.start_soon(host.keep_connected, [other.address for other in hosts])
        for host in hosts:
            await until(lambda host=host: len(host.connected()) >= len(hosts) - 1)
        yield
        nursery.cancel_scope.cancel()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that must happen; how soon does not matter."""
    with trio.fail_after(PATIENCE_S):
        while not is_so():
            await trio.sleep(0.02)


async def answers(host: Host, peer: PeerId) -> bool:
    """Whether `peer` still echoes, allowing for a reconnection."""
    with trio.move_on_after(PATIENCE_S):
        while True:
            try:
                return await host.request(peer, "echo", b"are you there", timeout_s=5) == b"are you there"
            except Exception:
                await trio.sleep(0.1)
    return False


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run one async test, never longer than a few times our patience."""

    async def bounded() -> None:
        with trio.fail_after(3 * PATIENCE_S):
            await test()

    trio.run(bounded)


class WorkerProcess:
    """A host in a process of its own (child_host.py)."""

    def __init__(self, process: subprocess.Popen[str], address: PeerAddress) -> None:
        self.process = process
        self.address = address

    @property
    def peer(self) -> PeerId:
        return self.address.peer

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None


@contextmanager
def a_child(name: str, *flags: str, port: int = 0) -> Iterator[WorkerProcess]:
    """Start a host in a process of its own; it has ended when the scope is left, whatever happened."""
    process = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("child_host.py")),
            seed_of(name).hex(),
            str(port),
            *flags,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the child did not start"
        yield WorkerProcess(
            process, PeerAddress(peer=peer_of(name), host="127.0.0.1", port=json.loads(line)["port"])
        )
    finally:
        process.kill()
        process.wait()
