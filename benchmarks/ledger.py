"""The ledger's speeds on SQLite and PostgreSQL: durable postings, a settlement, a proof, an audit.

    python -m benchmarks.ledger [--seconds 5] [--batch 100] [--folder DIR] [--no-postgresql]

An entry is two postings, its leaf of the Merkle log and two balances, written by the store's
own `add_entries`; a commit is on disk when it returns (SQLite: WAL, synchronous=FULL;
PostgreSQL: fsync, synchronous_commit). PostgreSQL is a server of our own on the same disk, over
its socket. One commit for each entry, 100 entries in one, and 1,000, in turns in one process, each
on fresh books. Also: what a posting costs beside plain `executemany`, and the disk's own
fdatasync rate, which bounds commits. Results: docs/results/ledger.md
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

from assay.chain.events import ResultFinalized, ResultProposed, RunOpened
from assay.ledger.accounts import ESCROW, payable
from assay.ledger.books import Entry, Posting
from assay.ledger.journal.database import Place
from assay.ledger.journal.log_store import prove_inclusion, read_edge, read_leaves
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.tables import TABLES
from assay.ledger.log.audit import audit
from assay.ledger.log.note import origin_of
from assay.ledger.merkle_log import verify_inclusion
from assay.ledger.settlement.payouts import Row, Settlement, table_hash
from assay.protocol.types import Address, Digest, PeerId
from benchmarks.machine import machine
from tests.ledger.a_postgres import a_server, binaries
from tests.ledger.a_run import BUYER, a_spec

RUN_ID = Digest(bytes(32))
LINES = 2
TURNS = 3
PAIRED = 20_000  # entries
PAYEES = [payable("operator", f"0x{n:040x}", 0) for n in range(200)]
SETTLED_PAYEES = 10_000
PROOFS = 200


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="per way, over all turns")
    parser.add_argument("--batch", type=int, default=100, help="entries per group commit")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: the temporary folder")
    parser.add_argument("--no-postgresql", action="store_true", help="SQLite alone")
    args = parser.parse_args()
    print(f"machine: {machine()}, SQLite {sqlite3.sqlite_version}")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print(f"disk: {_syncs(Path(folder) / 'sync', 1.0):,.0f} fdatasync/s")
        with _databases(Path(folder), is_sqlite_alone=args.no_postgresql) as databases:
            for name, new in databases.items():
                print(f"{name}:")
                _measure(new, args.batch, args.seconds)
        _pair(Path(folder), args.batch)


@contextmanager
def _databases(folder: Path, *, is_sqlite_alone: bool) -> Iterator[dict[str, Callable[[], Place]]]:
    """Makers of fresh places, by database."""
    numbers = count()
    found: dict[str, Callable[[], Place]] = {"SQLite": lambda: folder / f"{next(numbers)}.db"}
    binary = None if is_sqlite_alone else binaries()
    if binary is None:
        yield found
        return
    with a_server(binary, is_durable=True, parent=folder.parent) as server:
        yield {**found, f"PostgreSQL {binary.parent.name}": server.new}


def _measure(new: Callable[[], Place], batch: int, seconds: float) -> None:
    found: dict[int, list[float]] = {1: [], batch: [], 10 * batch: []}
    books = new()
    for _ in range(TURNS):
        for size, rates in found.items():
            books = new()
            rates.append(_postings_s(books, size, seconds / TURNS))
    for size, rates in found.items():
        told = ", ".join(f"{rate:,.0f}" for rate in rates)
        print(f"  {size:5} entries per commit: {_median(rates):8,.0f} durable postings/s  (turns: {told})")
    _settle(new())
    _read(books)


def _postings_s(place: Place, batch: int, seconds: float) -> float:
    store, numbers, written = BookStore(place, RUN_ID), count(), 0
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        written += len(store.add_entries([_entry(next(numbers)) for _ in range(batch)]))
    took = time.perf_counter() - began
    store.close()
    return written * LINES / took


def _pair(folder: Path, batch: int) -> None:
    """CPU of a posting on SQLite beside plain `executemany`: of a table of postings alone, and of the
    store's own rows into its tables without a trigger. The same commits, one after another."""
    ratios = dict[str, list[float]]()
    for turn in range(TURNS):
        batches = [[_entry(at * batch + n) for n in range(batch)] for at in range(PAIRED // batch)]
        place = folder / f"pair-{turn}.db"
        store = BookStore(place, RUN_ID)
        began = time.process_time()
        for entries in batches:
            store.add_entries(entries)
        cost = {"store": time.process_time() - began}
        store.close()
        with closing(sqlite3.connect(place)) as books:
            rows = {name: books.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in TABLES}
            made = [sql for (sql,) in books.execute("SELECT sql FROM sqlite_master WHERE type != 'trigger'")]
        alone = [
            "CREATE TABLE posting (entry INT, line INT, account INT, amount INT, PRIMARY KEY (entry, line))"
        ]
        for name, tables, schema in (
            ("postings alone", ("posting",), alone),
            ("its own rows", ("account", "journal_entry", "posting", "log_leaf", "log_node"), made),
        ):
            cost[name] = _plain_s(
                folder / f"{name}-{turn}.db", schema, {t: rows[t] for t in tables}, len(batches)
            )
        for name, taken in cost.items():
            ratios.setdefault(name, []).append(taken / cost["store"])
    told = ", ".join(f"{name} {1 / _median(found):.1f}" for name, found in ratios.items() if name != "store")
    print(f"CPU of a posting, {batch} entries per commit, as many times that of plain executemany: {told}")


def _plain_s(path: Path, schema: list[str], rows: dict[str, list[tuple[object, ...]]], commits: int) -> float:
    """CPU seconds of writing rows by table in so many durable commits."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        for sql in filter(None, schema):
            db.execute(sql)
        parts = [
            [
                (name, all_of[len(all_of) * at // commits : len(all_of) * (at + 1) // commits])
                for name, all_of in rows.items()
            ]
            for at in range(commits)
        ]
        began = time.process_time()
        for part in parts:
            db.execute("BEGIN IMMEDIATE")
            for name, some in part:
                if some:
                    db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(some[0]))})", some)
            db.execute("COMMIT")
        return time.process_time() - began


def _entry(number: int) -> Entry:
    lines = (
        Posting(account=PAYEES[number % len(PAYEES)], amount=-(1 + number % 7)),
        Posting(account=ESCROW, amount=1 + number % 7),
    )
    return Entry(
        key=f"event/{number:064x}/0/0", kind="Claimed", block_number=number, block_hash=bytes(32),
        block_time=1, epoch=0, postings=lines,
    )  # fmt: skip


def _settle(place: Place) -> None:
    """From the rows of a payout table to its root on chain and its entry, with every payee, on disk."""
    rows = tuple(
        Row(role="operator", peer=PeerId(_hash(n)), account=Address(_hash(n)[:20]), amount=1 + n)
        for n in range(SETTLED_PAYEES)
    )
    spec = a_spec()
    total = sum(row.amount for row in rows)
    store = BookStore(place, RUN_ID)
    opened = RunOpened(
        block_number=1, block_hash=_hash(1), block_time=1, tx_hash=bytes(32), log_index=0, run_id=RUN_ID,
        buyer=BUYER, spec_hash=bytes(32), budget=total, epoch_cap=total, epochs=1, deadline=1, set_version=1,
    )  # fmt: skip
    store.take_blocks([opened], 0, 1, {})
    began = time.perf_counter()
    table = Settlement(
        run_id=RUN_ID, epoch=0, rows=rows, unpaid=(), tokens_paid=0,
        table_hash=table_hash(spec, RUN_ID, 0, rows),
    )  # fmt: skip
    root = table.tree().root
    tree_s = time.perf_counter() - began
    place_of = {"tx_hash": bytes(32), "log_index": 0, "run_id": RUN_ID, "epoch": 0, "digest": root}
    proposed = ResultProposed(
        block_number=2, block_hash=_hash(2), block_time=2, **place_of, root=root, total=total,
        table_hash=table.table_hash, model_hash=bytes(32), window_ends_at=0, proposer=BUYER, bond=0,
    )  # fmt: skip
    final = ResultFinalized(
        block_number=3, block_hash=_hash(3), block_time=3, **place_of, total=total, claim_ends_at=0
    )
    store.take_blocks([proposed, final], 2, 3, {0: table})
    whole_s = time.perf_counter() - began
    assert len(store.balances()) == 1 + SETTLED_PAYEES
    store.close()
    print(f"  settlement of {SETTLED_PAYEES:,} payees: {whole_s:.2f} s, of it hash and tree {tree_s:.2f} s, "
          f"the rest in the books")  # fmt: skip


def _read(place: Place) -> None:
    store = BookStore(place, RUN_ID)
    with store.reading() as db:
        began = time.perf_counter()
        found = audit(db, origin_of(RUN_ID), None, [])
        audit_s = time.perf_counter() - began
        size, root = read_edge(db).size, read_edge(db).root
        leaves = read_leaves(db)
        times = []
        for number in range(PROOFS):
            index = number * size // PROOFS
            began = time.perf_counter()
            proof = prove_inclusion(db, size, index)
            times.append(time.perf_counter() - began)
            verify_inclusion(leaves[index], index, size, proof, root)
    store.close()
    worst = sorted(times)[PROOFS * 99 // 100] * 1000
    print(f"  inclusion proof among {size:,}: {_median(times) * 1000:.2f} ms, 99th of 100: {worst:.2f} ms")
    rate = found.postings / audit_s
    print(f"  audit of {found.postings:,} postings: {audit_s:.2f} s, {rate:,.0f} postings/s")


def _hash(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "big")).digest()


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
