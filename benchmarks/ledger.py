"""Durable postings a second on SQLite, with group commit against one commit for each entry.

    python -m benchmarks.ledger [--seconds 5] [--batch 100] [--folder DIR]

An entry is two postings and its leaf of the Merkle log, written by the store's own
`add_entries`; a commit is on disk when it returns (WAL, synchronous=FULL). Both ways run
in turns in one process on one disk, each on fresh books. Also: the disk's own fdatasync
rate, and the time of an audit and of an inclusion proof on the books that were written.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import tempfile
import time
from itertools import count
from pathlib import Path

from ledger.accounts import ESCROW, payable
from ledger.books import Entry, Posting
from ledger.log_audit import audit
from ledger.log_note import origin_of
from ledger.log_store import read_leaves
from ledger.merkle_log import inclusion_proof
from ledger.store import BookStore

RUN_ID = bytes(32)
LINES = 2
TURNS = 3
PAYEES = [payable("operator", f"0x{n:040x}", 0) for n in range(200)]


def main() -> None:
    """Write both ways and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="per way, over all turns")
    parser.add_argument("--batch", type=int, default=100, help="entries per group commit")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: the temporary folder")
    args = parser.parse_args()
    cpu = platform.processor() or platform.machine()
    print(f"{os.cpu_count()} cores ({cpu}), Python {platform.python_version()}, "
          f"SQLite {sqlite3.sqlite_version}")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print(f"disk: {_syncs(Path(folder) / 'sync', 1.0):,.0f} fdatasync/s")
        found: dict[int, list[float]] = {1: [], args.batch: []}
        books = Path(folder)
        for turn in range(TURNS):
            for batch, rates in found.items():
                books = Path(folder) / f"{turn}-{batch}.db"
                rates.append(_postings_s(books, batch, args.seconds / TURNS))
        for batch, rates in found.items():
            told = ", ".join(f"{rate:,.0f}" for rate in rates)
            print(
                f"{batch:5} entries per commit: {_median(rates):10,.0f} durable postings/s  (turns: {told})"
            )
        print(f"group commit is {_median(found[args.batch]) / _median(found[1]):,.0f} times as fast")
        _reading(books)


def _postings_s(path: Path, batch: int, seconds: float) -> float:
    store, numbers, written = BookStore(path, RUN_ID), count(), 0
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        written += len(store.add_entries([_entry(next(numbers)) for _ in range(batch)]))
    took = time.perf_counter() - began
    store.close()
    return written * LINES / took


def _entry(number: int) -> Entry:
    lines = (
        Posting(account=PAYEES[number % len(PAYEES)], amount=-(1 + number % 7)),
        Posting(account=ESCROW, amount=1 + number % 7),
    )
    return Entry(
        key=f"event/{number:064x}/0/0", kind="Claimed", block_number=number, block_hash=bytes(32),
        epoch=0, postings=lines,
    )  # fmt: skip


def _reading(path: Path) -> None:
    store = BookStore(path, RUN_ID)
    with store.reading() as db:
        began = time.perf_counter()
        found = audit(db, origin_of(RUN_ID), None, [])
        audit_s = time.perf_counter() - began
        leaves = read_leaves(db)
    store.close()
    for size in (1_000, len(leaves)):
        began = time.perf_counter()
        inclusion_proof(leaves[:size], size // 3)
        print(f"inclusion proof of {size:,} leaves: {(time.perf_counter() - began) * 1000:.1f} ms")
    print(
        f"audit of {found.postings:,} postings: {audit_s:.2f} s, {found.postings / audit_s:,.0f} postings/s"
    )


def _syncs(path: Path, seconds: float) -> float:
    """How often a page can be written durably, which bounds commits."""
    done = 0
    with open(path, "wb") as file:
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            file.write(bytes(4096))
            file.flush()
            os.fdatasync(file.fileno())
            done += 1
        return done / (time.perf_counter() - began)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
