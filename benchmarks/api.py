"""The API's load: 50 kept-alive connections that read pages of entries and proofs from one server.

    python -m benchmarks.api [--seconds 3] [--entries 10000] [--connections 50] [--json]

The server is a process of its own, started as `assay api serve` on loopback, and serves a public run whose
books end in a signed checkpoint. Each connection sends its next request once the last answer is whole, on the
same cores as the server. Answers are asked for that nobody had before (`new`) and ones that the server keeps
(`kept`: their ETag names the log's root), in turns; medians of the turns. No limit of one address is in the
way, except in the last way, which has the default limits. At the end, in this process: the CPU of a proof
from stored subtree roots beside that of one from all leaves. Results: docs/results/api.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from statistics import median, quantiles

from nacl.signing import SigningKey

from assay.ledger.accounts import ESCROW, payable
from assay.ledger.books import Entry, Posting
from assay.ledger.journal.log_store import prove_inclusion, read_edge, read_leaves
from assay.ledger.journal.store import BookStore
from assay.ledger.log.signer import CheckpointSigner
from assay.ledger.merkle_log import verify_inclusion
from benchmarks.machine import machine
from tests.ledger.merkle_proofs import inclusion_proof

TURNS = 3
PAGE = 100  # entries
KEPT = 100  # answers that are asked for again and again
PROOFS = 200
CUT = 0  # in place of a status: the connection ended or its answer was late
START_S_MAX = 120.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
NO_ADDRESS_LIMIT = "[limits]\naddress_per_minute = 1000000\naddress_burst = 1000000\n"


@dataclass(frozen=True, slots=True)
class Way:
    """One kind of request."""

    name: str
    path: Callable[[int], str]  # by the request's number
    entries: int  # in each answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What all connections saw in one turn."""

    requests_s: float
    entries_s: float
    statuses: dict[int, int]
    median_ms: float
    p99_ms: float
    server_cpu_ms: float  # for each request


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="per turn of a way")
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    numbers = count()
    ways = [
        Way("pages, new", lambda _: _page(next(numbers) * 7919 % (args.entries - PAGE)), PAGE),
        Way("pages, kept", lambda at: _page(at % KEPT * PAGE % (args.entries - PAGE)), PAGE),
        Way("proofs, new", lambda _: _proof(next(numbers) * 7919 % args.entries), 1),
        Way("proofs, kept", lambda at: _proof(at % KEPT), 1),
    ]
    loads: dict[str, list[Load]] = {way.name: [] for way in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_books(folder, args.entries)
        with _served(folder, NO_ADDRESS_LIMIT) as (process, port):
            for _ in range(TURNS):
                for way in ways:
                    loads[way.name].append(_load(process, port, way, args.connections, args.seconds))
        with _served(folder, "") as (process, port):
            whole_s = TURNS * args.seconds
            loads["default limits"] = [_load(process, port, ways[-1], args.connections, whole_s)]
        costs = _proof_costs(folder)
    found = {name: _middle(turns) for name, turns in loads.items()}
    if args.json:
        told = {name: asdict(load) for name, load in found.items()}
        print(json.dumps({"machine": machine(), "connections": args.connections, "loads": told, **costs}))
        return
    print(f"machine: {machine()}")
    print(f"{args.connections} connections, {args.entries:,} entries, {TURNS} turns of {args.seconds:g} s")
    for name, load in found.items():
        statuses = ", ".join(f"{number:,} of {status}" for status, number in sorted(load.statuses.items()))
        print(
            f"{name:15} {load.requests_s:6,.0f} requests/s, {load.entries_s:8,.0f} entries/s, "
            f"median {load.median_ms:.0f} ms, 99th of 100 {load.p99_ms:.0f} ms, "
            f"server's CPU {load.server_cpu_ms:.2f} ms a request; answers: {statuses}"
        )
    print(
        f"CPU of a proof: {costs['stored_ms']:.2f} ms from stored roots, {costs['leaves_ms']:.2f} ms "
        f"from all leaves, {costs['ratio']:.0f} times as much"
    )


def _page(after: int) -> str:
    return f"/v1/runs/load/entries?after={after}&limit={PAGE}"


def _proof(index: int) -> str:
    return f"/v1/runs/load/proof?entry={index + 1}"


def _write_books(folder: Path, entries: int) -> None:
    """Books of so many entries of two postings, and a checkpoint of all of them."""
    payees = [payable("operator", f"0x{n:040x}", 0) for n in range(200)]
    with closing(BookStore(folder / "ledger.db", bytes(32))) as store:
        store.add_entries(
            [
                Entry(
                    key=f"event/{number:064x}/0/0", kind="Claimed", block_number=number, block_hash=bytes(32),
                    block_time=1, epoch=0, postings=(
                        Posting(account=payees[number % len(payees)], amount=-1),
                        Posting(account=ESCROW, amount=1),
                    ),
                )
                for number in range(entries)
            ]
        )  # fmt: skip
        CheckpointSigner(store, SigningKey(bytes(32)), folder / "checkpoints").sign_last()


@contextmanager
def _served(folder: Path, limits: str) -> Iterator[tuple[int, int]]:
    """A server of the books: its process and port."""
    file = folder / "api.toml"
    file.write_text(f'port = 0\npublic_read = true\n[runs]\nload = "ledger.db"\n{limits}')
    command = [sys.executable, "-m", "assay.cli.main", "api", "serve", str(file)]
    with open(folder / "log", "wb+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process.pid, _port(folder / "log", process)
        finally:
            process.terminate()
            process.wait(60)


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    end_s = time.monotonic() + START_S_MAX
    while time.monotonic() < end_s and process.poll() is None:
        for line in log.read_text().splitlines():
            if '"api started"' in line:
                return int(json.loads(line)["url"].rsplit(":", 1)[1])
        time.sleep(0.1)
    raise SystemExit(f"the server has not started: {log.read_text()[-2000:]}")


def _load(process: int, port: int, way: Way, connections: int, seconds: float) -> Load:
    """Ask on all connections for so long."""
    numbers, times, statuses = count(), list[float](), Counter[int]()
    start = threading.Barrier(connections + 1)
    end_s = [0.0]

    def ask() -> None:
        with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.connect()
            start.wait()
            while time.perf_counter() < end_s[0]:
                began_s = time.perf_counter()
                try:
                    connection.request("GET", way.path(next(numbers)))
                    answer = connection.getresponse()
                    body = answer.read()
                except (OSError, HTTPException):
                    statuses[CUT] += 1
                    return
                times.append(time.perf_counter() - began_s)
                statuses[answer.status] += 1
                assert answer.status != 200 or body.count(b'"number":') == way.entries, body[:500]

    threads = [threading.Thread(target=ask) for _ in range(connections)]
    for thread in threads:
        thread.start()
    cpu_s, began_s = _cpu_s(process), time.perf_counter()
    end_s[0] = began_s + seconds
    start.wait()
    for thread in threads:
        thread.join()
    took_s, cpu_s = time.perf_counter() - began_s, _cpu_s(process) - cpu_s
    return Load(
        requests_s=len(times) / took_s,
        entries_s=statuses[200] * way.entries / took_s,
        statuses=dict(statuses),
        median_ms=median(times) * 1000,
        p99_ms=quantiles(times, n=100)[-1] * 1000,
        server_cpu_ms=cpu_s / len(times) * 1000,
    )


def _cpu_s(process: int) -> float:
    """CPU seconds of a process, in user and system."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def _middle(turns: list[Load]) -> Load:
    """The median of each figure, and all answers by status."""
    statuses = Counter[int]()
    for turn in turns:
        statuses.update(turn.statuses)
    return Load(
        requests_s=median(turn.requests_s for turn in turns),
        entries_s=median(turn.entries_s for turn in turns),
        statuses=dict(statuses),
        median_ms=median(turn.median_ms for turn in turns),
        p99_ms=median(turn.p99_ms for turn in turns),
        server_cpu_ms=median(turn.server_cpu_ms for turn in turns),
    )


def _proof_costs(folder: Path) -> dict[str, float]:
    """CPU milliseconds of a proof from stored roots, and from all leaves: medians over the same leaves."""
    stored, whole = list[float](), list[float]()
    with closing(BookStore(folder / "ledger.db", bytes(32))) as store, store.reading() as db:
        edge = read_edge(db)
        for number in range(PROOFS):
            index = number * edge.size // PROOFS
            began_s = time.process_time()
            proof = prove_inclusion(db, edge.size, index)
            stored.append(time.process_time() - began_s)
            began_s = time.process_time()
            leaves = read_leaves(db)
            other = inclusion_proof(leaves, index)
            whole.append(time.process_time() - began_s)
            assert proof == other
            verify_inclusion(leaves[index], index, edge.size, proof, edge.root)
    stored_ms, leaves_ms = median(stored) * 1000, median(whole) * 1000
    return {"stored_ms": stored_ms, "leaves_ms": leaves_ms, "ratio": leaves_ms / stored_ms}


if __name__ == "__main__":
    main()
