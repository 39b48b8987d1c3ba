"""Simulate: random traffic against the store and against a reference of plain dicts, with crashes anywhere.

    python -m tests.ledger.simulate --postings 1000000 [--seed 0] [--postgresql] [--folder DIR]

One `random.Random(seed)` decides everything: buyers fund escrows, money moves, is paid out, reversed,
sent twice, out of order and with an old key for something else; and the connection dies before its nth
statement or at its commit, after which the store is opened anew and the same request is sent again.
After every step the trial balance is zero and the accounts it touched stand as in the reference; at the
end every escrow is closed at 0, nothing was paid twice, and the audit finds the whole log good.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from assay.ledger.accounts import ESCROW, Account, budget, payable, reserved
from assay.ledger.books import BooksError, Entry, Posting, reversal_of
from assay.ledger.journal.database import Place
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.writer import read_posted
from assay.ledger.log.audit import audit
from assay.ledger.log.note import origin_of
from tests.ledger.a_postgres import a_server, binaries
from tests.ledger.a_run import RUN, wallet

ORDERS, PAYEES, LATE_MAX = 12, 20, 40
WHOLE_CHECK_EVERY = 3_000  # steps between two looks at every account and every line


class Crash(BaseException):
    """The connection died under the store."""


class Refused(Exception):
    """The reference refuses a request."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sends; it may be sent again, late, or changed under the same key."""

    batch: tuple[Entry, ...]


@dataclass(slots=True)
class Reference:
    """The books in a few dicts, written without a look at the store's code."""

    money: dict[Account, int] = field(default_factory=dict)  # debits less credits
    entered: dict[str, Entry] = field(default_factory=dict)
    journal: list[Entry] = field(default_factory=list)
    undone: set[str] = field(default_factory=set)

    def take(self, request: Request) -> None:
        """Do what is asked, or raise `Refused` and leave everything as it was."""
        size = len(self.journal)
        try:
            for entry in request.batch:
                self._enter(entry)
        except Refused:  # a refusal changes nothing
            while len(self.journal) > size:
                self._forget(self.journal.pop())
            raise

    def free(self, account: Account) -> int:
        """What may still be taken from an account."""
        return self.money.get(account, 0) * account.kind.side

    def _enter(self, entry: Entry) -> None:
        if entry.key in self.entered:
            if self.entered[entry.key] != entry:
                raise Refused
            return
        if entry.reverses and (entry.reverses not in self.entered or entry.reverses in self.undone):
            raise Refused
        self._afford(entry)
        for line in entry.postings:
            self.money[line.account] = self.money.get(line.account, 0) + line.amount
        self.entered[entry.key] = entry
        self.journal.append(entry)
        if entry.reverses:
            self.undone.add(entry.reverses)

    def _forget(self, entry: Entry) -> None:
        for line in entry.postings:
            self.money[line.account] -= line.amount
        del self.entered[entry.key]
        self.undone.discard(entry.reverses)

    def _afford(self, entry: Entry) -> None:
        for line in entry.postings:
            if line.amount * line.account.kind.side < 0 and self.free(line.account) < abs(line.amount):
                raise Refused


class World:
    """One history. The same seed gives the same one."""

    store: BookStore

    def __init__(self, place: Place, seed: int, *, crash_rate: float = 0.02) -> None:
        self.place, self.seed, self.crash_rate = place, seed, crash_rate
        self.rng = random.Random(seed)
        self.reference = Reference()
        self.postings = self.steps = self.crashes = self.refused = self.repeated = self.reopened = 0
        self._number = 0
        self._late: deque[Request] = deque(maxlen=LATE_MAX)  # sent before, or held up on the way
        self._planned: dict[Account, int] = {}  # what the request that is being made changes, on own sides
        self._is_careless = False
        self._dies_at: int | None = None
        self._open()

    def run(self, postings: int) -> World:
        """Go on until the journal has so many, then close every escrow and look at everything."""
        while self.postings < postings:
            self.step()
        self.close_escrows()
        self.check_everything()
        self.store.close()
        return self

    def step(self) -> None:
        """One request, perhaps with a crash in it, and the same asked of the reference."""
        self.steps += 1
        self.send(self._next_request())
        if self.steps % WHOLE_CHECK_EVERY == 0:
            self.check_everything()

    def send(self, request: Request) -> None:
        """To both, and compare."""
        entered = len(self.reference.journal)
        try:
            self.reference.take(request)
            is_refused = False
        except Refused:
            is_refused = True
        self._dies_at = self.rng.randint(1, 14) if self.rng.random() < self.crash_rate else None
        while True:
            answer = "taken"
            try:
                self.store.add_entries(request.batch)
            except BooksError as error:
                answer = f"refused: {error}"
            except Crash:
                self.crashes += 1
                self._dies_at = None
                self._open()
                continue  # nobody answered, so the client asks again
            break
        self._dies_at = None
        assert is_refused == (answer != "taken"), (
            f"{request.batch[0].key}: {answer}, replay: World(seed={self.seed}), step {self.steps}"
        )
        self.refused += is_refused
        fresh = self.reference.journal[entered:]
        self.postings += sum(len(entry.postings) for entry in fresh)
        self._compare({line.account for entry in (*request.batch, *fresh) for line in entry.postings})

    def close_escrows(self) -> None:
        """Pay out what is set aside, and give back the rest."""
        for order in range(ORDERS):
            for source in (reserved(_run(order), 0), budget(_run(order))):
                left = self.reference.free(source)
                if left:
                    self.send(Request((self._entry((source, left), (ESCROW, -left)),)))
                assert self.reference.money.get(source, 0) == 0
        for payee in map(_payee, range(PAYEES)):
            left = self.reference.free(payee)
            if left:
                self.send(Request((self._entry((payee, left), (ESCROW, -left)),)))
        assert not any(self.reference.money.values()), f"replay: World(seed={self.seed})"
        assert self.store.balances() == {}, f"an escrow is open, replay: World(seed={self.seed})"

    def check_everything(self) -> None:
        """Every line, leaf and balance; and nothing entered twice."""
        with self.store.reading() as db:
            found = audit(db, origin_of(RUN), None, ())
            assert (found.entries, found.postings) == (len(self.reference.entered), self.postings)
        expected = {account: amount for account, amount in self.reference.money.items() if amount}
        assert self.store.balances() == expected, f"replay: World(seed={self.seed})"

    # ---- what is sent

    def _next_request(self) -> Request:
        roll = self.rng.random()
        if self._late and roll < 0.10:
            self.repeated += 1
            return self.rng.choice(self._late)  # again, or only now
        if self._late and roll < 0.13:
            return self._contradiction(self.rng.choice(self._late))
        request = self._fresh_request()
        self._late.append(request)
        if self.rng.random() < 0.05:  # held up on the way: it comes after later ones, or never
            return self._next_request()
        return request

    def _fresh_request(self) -> Request:
        self._planned, self._is_careless = {}, self.rng.random() < 0.05
        if self.reference.journal and self.rng.random() < 0.12:
            recent = self.reference.journal[-30:]
            return Request((reversal_of(self.rng.choice(recent)),))
        (size,) = self.rng.choices((1, 3, 40, 120), (60, 20, 12, 8))
        return Request(tuple(self._transfer() for _ in range(size)))

    def _contradiction(self, request: Request) -> Request:
        """An old key with another amount."""
        if request.batch[0].reverses:
            return request
        first, *rest = request.batch
        lines = tuple(Posting(account=one.account, amount=one.amount * 3) for one in first.postings)
        other = Entry(
            key=first.key,
            kind=first.kind,
            block_number=0,
            block_hash=first.block_hash,
            block_time=1,
            postings=lines,
        )
        return Request((other, *rest))

    def _transfer(self) -> Entry:
        """What can be afforded after what this request does before it; a careless one does not ask."""
        run, payee = _run(self.rng.randrange(ORDERS)), _payee(self.rng.randrange(PAYEES))
        free, aside = budget(run), reserved(run, 0)
        move = self.rng.randrange(6)
        source = {2: free, 3: aside, 4: free, 5: payee}.get(move, ESCROW)
        amount = self.rng.randint(2, 60)
        if move > 1 and not self._is_careless:
            amount = min(amount, self._left(source))
        if move < 2 or amount < 2:
            return self._entry((ESCROW, amount + 500), (free, -amount - 500))
        match move:
            case 2:
                return self._entry((free, amount), (aside, -amount))
            case 3:
                return self._entry((aside, amount), (payee, -amount))
            case 4:
                other = _payee(self.rng.randrange(PAYEES))
                if other == payee:
                    return self._entry((free, amount), (payee, -amount))
                return self._entry((free, amount), (payee, -1), (other, 1 - amount))
            case _:
                return self._entry((payee, amount), (ESCROW, -amount))

    def _left(self, account: Account) -> int:
        return self.reference.free(account) + min(0, self._planned.get(account, 0))

    def _entry(self, *lines: tuple[Account, int]) -> Entry:
        self._number += 1
        for account, amount in lines:
            self._planned[account] = self._planned.get(account, 0) + amount * account.kind.side
        postings = tuple(Posting(account=account, amount=amount) for account, amount in lines)
        return Entry(
            key=f"sim/{self._number}",
            kind="sim",
            block_number=0,
            block_hash=b"",
            block_time=1,
            postings=postings,
        )

    # ---- the store under test

    def _open(self) -> None:
        if self.reopened:
            self.store.close()
        self.reopened += 1
        self.store = BookStore(self.place, RUN, now_ms=lambda: 1)
        left = self._count_down
        sa.event.listen(self.store.engine, "before_cursor_execute", left)
        sa.event.listen(self.store.engine, "commit", left)

    def _count_down(self, connection: Any, *_: Any) -> None:
        """Cut the connection off where the seed says: before a statement, or at the commit."""
        if self._dies_at is None:
            return
        self._dies_at -= 1
        if self._dies_at <= 0:
            connection.invalidate()  # closes the socket or the file; what was open is rolled back
            raise Crash

    def _compare(self, touched: set[Account]) -> None:
        with self.store.reading() as db:
            total = db.execute(sa.text("SELECT coalesce(sum(posted), 0) FROM balance")).scalar_one()
            found = read_posted(db)
        assert total == 0, f"trial balance {total}, replay: World(seed={self.seed})"
        for account in touched:
            told, expected = found.get(account, 0), self.reference.money.get(account, 0)
            assert told == expected, f"{account.code}: {told}, {expected}, replay: World(seed={self.seed})"


def _run(order: int) -> bytes:
    return bytes([order]) * 32


def _payee(number: int) -> Account:
    return payable("operator", wallet(f"payee-{number}"), 0)


def _measured(run: Callable[[], World]) -> None:
    began = time.perf_counter()
    world = run()
    print(
        f"seed {world.seed}: {world.postings:,} postings of {len(world.reference.entered):,} entries in "
        f"{world.steps:,} requests, {world.repeated:,} repeated, {world.refused:,} refused, "
        f"{len(world.reference.undone):,} reversed, "
        f"{world.crashes:,} crashes, {time.perf_counter() - began:,.0f} s: books and reference agree"
    )


def main() -> None:
    """One long history, and what was in it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--postings", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgresql", action="store_true", help="on a server of its own; default: SQLite")
    parser.add_argument("--folder", type=Path, help="on the disk to use; default: the temporary folder")
    args = parser.parse_args()
    if args.postgresql:
        found = binaries()
        if found is None:
            parser.error("PostgreSQL is not installed here: apt-get install postgresql")
        with a_server(found, is_durable=True, parent=args.folder) as server:
            _measured(lambda: World(server.new(), args.seed).run(args.postings))
    else:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            _measured(lambda: World(Path(folder) / "ledger.db", args.seed).run(args.postings))


if __name__ == "__main__":
    main()
