"""Siege: what share of its rounds ten members cost a network when they attack all its verifiers.

    python -m tests.wan.siege

Room: tests (edge). A whole local network of four verifiers and eight nodes, whose steps take three seconds
(`siege.toml`); ten more nodes never train and attack instead, one attack after another with
quiet rounds between. The attackers run only while nobody else wants a core (Linux's SCHED_IDLE), so that
what rounds lose is what an attack costs those who are attacked. Printed are the mean length of a round in
quiet and under attack, and the verifiers' processor time in a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import runpy
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import cbor2
import trio

from assay.devnet.machines import Loopback
from assay.devnet.run import run_localnet
from assay.network import limits
from assay.network.frames import Kind, encode_frame, pack_id, read_frame
from assay.network.host import Host, PeerAddress
from assay.network.identity import libp2p_id
from assay.node.service import Service
from assay.participant.config import open_network
from assay.participant.files.record import OWN_RECORD, read_record
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError
from assay.protocol.messages import ManifestRange, StepRequest
from assay.protocol.types import NO_DIGEST, PeerId
from assay.verifier.service.process import Service as Verifier
from tests.network import flood

ORDER = Path(__file__).with_name("siege.toml")
HONEST, ATTACKERS, VERIFIERS = 8, 10, 4
FIRST_ROUND = 8  # from then on nobody waits for the nodes that never trained
STEP_S = 3.0  # of a node that is slow
SETTLE_S = 4.0  # after an order, before a part is measured
LARGE = cbor2.dumps([0] * (limits.REQUEST_BYTES_MAX - 512))
PING_FRAME = bytes((0, 2, 0, 1)) + bytes(8)  # Yamux: version 0, ping, SYN


async def _links(host: Host, to: PeerId) -> None:
    body = encode(StepRequest(number=0, node=PeerId(NO_DIGEST)))
    await host.request(to, "links", body, timeout_s=60)


async def _bodies(host: Host, to: PeerId) -> None:
    await host.request(to, "submit", LARGE, timeout_s=60)


async def _facts(host: Host, to: PeerId) -> None:
    await host.send(to, LARGE)


async def _small(host: Host, to: PeerId) -> None:
    await host.send(to, b"\x80")


async def _streams(host: Host, to: PeerId) -> None:
    stream = await host._peers.open_stream(to, host._protocols.ctl)
    await stream.reset()


async def _redials(host: Host, to: PeerId) -> None:
    await host._peers.disconnect(to)
    await trio.sleep(0.02)
    while not host._peers.is_connected(to):  # `keep_connected` would wait longer each time
        await host._peers._dial(host._peers._moved[to])


async def _bytes(host: Host, to: PeerId) -> None:
    """One byte of a frame in each write, which is encrypted, framed, sent and read on its own."""
    stream = await host._peers.open_stream(to, host._protocols.ctl)
    whole = encode_frame(Kind.NOTIFICATION, bytes(limits.NOTIFICATION_BYTES_MAX))
    for at in range(len(whole)):
        await stream.write(whole[at : at + 1])


async def _muxer_pings(host: Host, to: PeerId) -> None:
    """Pings of the multiplexer, which it answers beneath all our limits."""
    secured = host._peers._swarm.get_connections(libp2p_id(to))[0].muxed_conn.secured_conn
    for _ in range(1000):
        await secured.write(PING_FRAME * 50)


async def _blobs(host: Host, to: PeerId) -> None:
    body = encode(StepRequest(number=0, node=PeerId(NO_DIGEST)))
    found = decode(ManifestRange, await host.request(to, "links", body, timeout_s=60))
    newest = next(
        one.manifest.aggregate for one in reversed(found.links) if one.manifest.aggregate != NO_DIGEST
    )
    stream = await host._peers.open_stream(to, host._protocols.blob)
    await stream.write(encode_frame(Kind.GET, newest))
    await read_frame(stream, (Kind.CHUNKS,))
    want = encode_frame(Kind.WANT_CHUNK, pack_id(0))
    while True:
        await stream.write(want)
        await read_frame(stream, (Kind.CHUNK,))


# What an attacker does to each verifier without end, and how often at once.
ATTACKS: dict[str, tuple[Callable[[Host, PeerId], Awaitable[None]], int]] = {
    "links": (_links, limits.REQUESTS_PER_PEER_MAX),
    "bodies": (_bodies, limits.REQUESTS_PER_PEER_MAX),
    "facts": (_facts, 2),
    "small": (_small, 8),
    "pings": (flood.ping, 1),
    "blobs": (_blobs, limits.BLOB_STREAMS_PER_PEER_MAX),
    "streams": (_streams, 8),
    "redials": (_redials, 1),
    "bytes": (_bytes, 2),
    "muxer-pings": (_muxer_pings, 1),
}


async def attack(service: Service | Verifier) -> None:
    """In place of a member's work: attack as the file in `ASSAY_SIEGE` says, until the process is ended.

    It holds an attack's name, and after it the names of its victims if they are not all verifiers.
    """
    _give_way()
    me, orders = service.me, Path(os.environ["ASSAY_SIEGE"])
    done = 0

    def victims(names: Sequence[str]) -> list[PeerAddress]:
        people = me.config.folder.parent
        keys = [people / name / "keys" / OWN_RECORD for name in names]
        peers = [read_record(one, int(time.time())).record.peer for one in keys] or me.spec.seat_peers
        return [me.addresses[peer] for peer in peers]

    async def go_on(host: Host, to: PeerId, one: Callable[[Host, PeerId], Awaitable[None]]) -> None:
        nonlocal done
        while True:
            try:
                await one(host, to)
            except (AssayError, EOFError, OSError, IndexError, StopIteration):  # refused or cut off: again
                await trio.sleep(0.02)
            except Exception as error:  # libp2p's errors share no base class
                print(repr(error), file=sys.stderr)
                await trio.sleep(0.02)
            done += 1
            await trio.lowlevel.checkpoint()

    async with open_network(me, {}) as host, trio.open_nursery() as nursery:
        for address in victims(()):
            host.move(address)
        nursery.start_soon(host.keep_connected, victims(()))
        while True:
            order = _order(orders)
            name, *whom = order.split() or [""]
            if name not in ATTACKS:
                await trio.sleep(0.2)
                continue
            one, at_once = ATTACKS[name]
            done = 0
            async with trio.open_nursery() as attackers:
                for address in victims(whom):
                    for _ in range(at_once):
                        attackers.start_soon(go_on, host, address.peer, one)
                while _order(orders) == order:
                    await trio.sleep(0.2)
                attackers.cancel_scope.cancel()
            print(f"{order}: {done}", file=sys.stderr, flush=True)


def _give_way() -> None:
    """Run only while nobody else wants a core: this process, and its session where those share cores."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def _order(orders: Path) -> str:
    return orders.read_text() if orders.exists() else ""


class Besieged(Loopback):
    """The attackers start from a process of their own, in which a node's service attacks."""

    is_one = False

    def prefix(self, name: str) -> Sequence[str]:
        """This module before the command of the server that forks an attacker; nothing for others."""
        role, _, number = name.partition("-")
        is_attacker = role == "node" and int(number) >= HONEST
        return (sys.executable, "-m", "tests.wan.siege", "attackers") if is_attacker else ()


@dataclass
class Driver:
    """Orders one attack after another, with quiet between, once the network runs; measures each part."""

    out: Path
    names: Sequence[str]
    part_s: float
    orders: Path

    def run(self) -> None:
        """Return when all is measured and printed."""
        while len(self._finalised()) < FIRST_ROUND:
            time.sleep(0.5)
        quiet_s = 0.0
        for name in ("", *(part for one in self.names for part in (one, ""))):
            self.orders.write_text(name)
            time.sleep(SETTLE_S)
            since_s, cpu_s = time.time(), self._cpu_s()
            time.sleep(self.part_s)
            until_s = time.time()
            cpu = (self._cpu_s() - cpu_s) / (until_s - since_s) / VERIFIERS
            within = [at_s for at_s in self._finalised() if since_s <= at_s <= until_s]
            rounds = max(len(within) - 1, 0)
            round_s = (within[-1] - within[0]) / rounds if rounds else math.inf
            line = f"{name or 'quiet':12} {round_s:6.2f} s a round ({rounds}), {cpu:5.2f} of a core each"
            print(line + (f", rounds lost {1 - quiet_s / round_s:6.1%}" if name else ""), flush=True)
            quiet_s = quiet_s if name else round_s
        self.orders.write_text("done")

    def _finalised(self) -> list[float]:
        """When each round was final at the first verifier, in seconds."""
        first: dict[int, float] = {}
        for log in (self.out / "logs").glob("verifier-*.log"):
            for line in log.read_text(errors="replace").splitlines():
                if '"event": "round finalised"' in line:
                    told = json.loads(line)
                    at_s = datetime.fromisoformat(told["t"].replace("Z", "+00:00")).timestamp()
                    first[told["round"]] = min(at_s, first.get(told["round"], at_s))
        return sorted(first.values())

    def _cpu_s(self) -> float:
        """Processor seconds of all verifiers so far, their workers apart."""
        ticks = 0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if not (process / "comm").read_text().startswith("verifier-"):
                    continue
                fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attacks", nargs="*", default=list(ATTACKS), help=f"of {', '.join(ATTACKS)}")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of each attack, and of the quiet after it"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/siege"))
    given = parser.parse_args()
    out = given.out.resolve()
    orders = out.with_name(out.name + ".orders")
    orders.parent.mkdir(parents=True, exist_ok=True)
    orders.write_text("")
    os.environ["ASSAY_SIEGE"] = str(orders)
    driver = Driver(out, given.attacks, given.seconds, orders)
    threading.Thread(target=driver.run, daemon=True).start()
    parts = 2 * len(given.attacks) + 1
    rounds = FIRST_ROUND + math.ceil(parts * (given.seconds + SETTLE_S) / STEP_S) + 4
    overrides = {"nodes": HONEST + ATTACKERS, "rounds": rounds}
    behave = [f"{number}=slow@0" for number in range(HONEST)]
    run_localnet(ORDER, overrides, behave, out, as_json=True, machines=Besieged())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["attackers", *command]:
            Service.run = Verifier.run = attack  # type: ignore[method-assign, assignment]
            sys.argv = command[2:]
            runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        case _:
            main()
