"""Catalogue: the runs that a server serves, by name, with cached totals and audit results.

Room: api (edge: opens books to read). A client's name is looked up and never made into
a path. Totals are cached with the log's edge and continued from there, so a balance
costs only the entries since the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from assay.api.http.problems import Problem
from assay.bundle.books import Place, find_books, log_origin, run_of
from assay.chain.commit_statement import evm_address
from assay.ledger.journal.database import Place as Database
from assay.ledger.journal.database import State, closed_state, open_engine_to_read, reading
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.journal.tables import TABLES
from assay.ledger.log.audit import Audited, audit
from assay.ledger.log.signer import read_published
from assay.ledger.merkle_log import Edge
from assay.ledger.queries.lookup import Totals, add_up
from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest

Head: TypeAlias = tuple[Edge, str]  # what answers from the books depend on: the log, and other text in them
ReadHead: TypeAlias = Callable[[Connection], Head]
WAIT_S = 1.0  # for another request that reads the whole journal: all routes share the threads that wait here


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditAnswer:
    """Result of the last audit of the books, and when it ended."""

    at_s: float  # monotonic
    audited: Audited | None
    difference: str  # the first difference from the log; empty if none


@dataclass(slots=True)
class ServedRun:
    """One served run."""

    name: str
    run: Path | str
    _totals: Totals | None = None
    _totals_lock: Lock = field(default_factory=Lock)
    _audit: AuditAnswer | None = None
    _audit_lock: Lock = field(default_factory=Lock)
    _engine: tuple[Database, tuple[int, ...], Engine] | None = None  # and the books that it opens, which file
    _heads: dict[ReadHead, tuple[State, Head]] = field(default_factory=dict)  # by what read them

    @property
    def place(self) -> Place:
        """Paths or URLs of its parts."""
        return find_books(self.run)

    @contextmanager
    def opened(self) -> Iterator[Connection]:
        """A consistent snapshot of its books.

        Raises:
            Problem: they cannot be opened now.
        """
        try:
            kept, books = self._engine, self.place.books
            # An engine on a file keeps no file open, but its compiled statements, which cost more than most
            # answers; a database server's engine keeps its pool.
            file = _file_of(books)
            if kept is None or kept[:2] != (books, file):  # a rebuilt file may be of another schema
                self._engine = kept = (books, file, open_engine_to_read(books))
        except (ConfigError, OSError):
            raise Problem(503, f"the books of run {self.name} cannot be opened now") from None
        with reading(kept[2]) as db:
            yield db

    def state(self) -> State | None:
        """The present state of its books if nobody has them open to write."""
        try:
            return closed_state(self.place.books)
        except ConfigError:
            return None

    def known_head(self, read: ReadHead, state: State | None) -> Head | None:
        """What `read` returned when the books were in this state; None if it has to read."""
        known = self._heads.get(read)
        return known[1] if known is not None and known[0] == state else None

    def head(self, read: ReadHead, state: State | None, db: Connection) -> Head:
        """What `read` returns; known from now on if the books are as before `db` was opened."""
        found = read(db)
        if state is not None and state == self.state():
            self._heads[read] = (state, found)
        return found

    def origin(self, db: Connection) -> str:
        """Its log's name."""
        return log_origin(self.place, db)

    def spec(self) -> tuple[RunSpec, Digest]:
        """Its spec and id.

        Raises:
            Problem: the server does not have the spec.
        """
        try:
            return run_of(self.place)
        except ConfigError:
            raise Problem(404, f"the spec of run {self.name} is not on this server") from None

    def is_party(self, account: str) -> bool:
        """Whether an account, in lower case, is in the run's spec or in a payout table of it.

        Not what else its books hold: they have the stakes, rewards and bonds of the whole deployment.
        """
        try:
            spec = self.spec()[0]
        except Problem:
            pass  # its payout tables alone say who takes part
        else:
            members = (*spec.nodes, *spec.verifiers, *spec.reserves)
            parties = (spec.buyer, spec.money.treasury, *(one.account for one in members))
            if account in {evm_address(one).lower() for one in parties}:
                return True
        payee = TABLES["payout"].c.account
        own = sa.select(payee).where(sa.func.lower(payee) == account).limit(1)
        with self.opened() as db:
            return db.execute(own).first() is not None

    def totals(self) -> Totals:
        """The present balances from the journal, added up by one request at a time.

        Raises:
            Problem: another request has been adding up for `WAIT_S`.
            LedgerIntegrityError: an entry differs from the log, or the books were rolled back since the
                last call.
        """
        if not self._totals_lock.acquire(timeout=WAIT_S):
            raise self._busy("balances are being added up")
        try:
            with self.opened() as db:
                self._totals = found = add_up(db, self._totals)
            return found
        finally:
            self._totals_lock.release()

    def audited(self, every_s: float) -> AuditAnswer:
        """The whole audit, repeated after `every_s` seconds by one request; others get the last meanwhile.

        Raises:
            Problem: the first audit has been under way for `WAIT_S`.
        """
        if self._audit_lock.acquire(timeout=0 if self._audit else WAIT_S):
            try:
                if self._audit is None or time.monotonic() >= self._audit.at_s + every_s:
                    found, difference = self._audit_now()
                    self._audit = AuditAnswer(at_s=time.monotonic(), audited=found, difference=difference)
            finally:
                self._audit_lock.release()
        if self._audit is None:
            raise self._busy("first audit is under way")
        return self._audit

    def _audit_now(self) -> tuple[Audited | None, str]:
        place = self.place
        published = [] if place.checkpoints is None else read_published(place.checkpoints)
        run_id = None if place.spec is None else run_of(place)[1]
        with self.opened() as db:
            try:
                return audit(db, self.origin(db), None, published, run_id=run_id), ""
            except LedgerIntegrityError as error:
                return None, str(error)

    def _busy(self, what: str) -> Problem:
        return Problem(503, f"the {what}, of run {self.name}", headers={"Retry-After": "5"})


@dataclass(frozen=True, slots=True)
class RunCatalogue:
    """All served runs of a server."""

    runs: Mapping[str, ServedRun]

    def find(self, name: str) -> ServedRun:
        """The run of this name.

        Raises:
            Problem: there is none.
        """
        found = self.runs.get(name)
        if found is None:
            raise Problem(404, "no run of this name is served here")
        return found


def make_catalogue(runs: Mapping[str, str], base: Path) -> RunCatalogue:
    """The runs of a configuration; paths are relative to `base`."""
    places = {name: where if "://" in where else base / where for name, where in runs.items()}
    return RunCatalogue({name: ServedRun(name, where) for name, where in places.items()})


def _file_of(books: Database) -> tuple[int, ...]:
    """Differs for another file at the same path; empty of a database server's."""
    if isinstance(books, str):
        return ()
    found = books.stat()
    return found.st_dev, found.st_ino
