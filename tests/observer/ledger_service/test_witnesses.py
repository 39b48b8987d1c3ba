"""The keeper and its witnesses: every checkpoint cosigned, and no way to sign behind one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from nacl.signing import SigningKey

from assay.ledger.journal.store import BookStore
from assay.ledger.log.audit import Audited, audit
from assay.ledger.log.cosignature import cosigners
from assay.ledger.log.note import Checkpoint, origin_of, read_checkpoint, sign_checkpoint
from assay.ledger.log.signer import CheckpointSigner, LedgerRolledBack, read_published
from assay.network.host import Host, RemoteError
from assay.observer.ledger_service.witnesses import Witnesses
from assay.participant.config import Participant
from assay.participant.store import Store
from assay.protocol.errors import AssayError, Unavailable
from assay.protocol.identity import peer_of
from assay.protocol.types import PeerId
from assay.testing.members import RUN_ID, a_peer_key
from assay.verifier.service.witness import Witness
from tests.ledger.test_books import an_entry

pytestmark = pytest.mark.slow

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

LEDGER_SERVICE = a_peer_key("ledger_service")
NAMES = ("vera", "viktor", "viola", "vito")
PEERS = tuple(sorted(peer_of(a_peer_key(name)) for name in NAMES))
ORIGIN = origin_of(RUN_ID)


class Net:
    """Four verifiers with stores of their own; a peer in `away` does not answer."""

    def __init__(self, folder: Path) -> None:
        self.away: set[PeerId] = set()
        self.witnesses: dict[PeerId, Witness] = {}
        for name in NAMES:
            key = a_peer_key(name)
            me: Any = SimpleNamespace(
                run_id=RUN_ID,
                ledger_service=peer_of(LEDGER_SERVICE),
                keys=SimpleNamespace(peer=key),
                store=Store(folder / f"{name}.db"),
            )
            self.witnesses[peer_of(key)] = Witness(cast(Participant, me), lambda: 1_700_000_000)

    async def request(self, peer: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        await trio.lowlevel.checkpoint()
        if peer in self.away:
            raise Unavailable("not connected")
        try:
            return await self.witnesses[peer].handlers[method](peer_of(LEDGER_SERVICE), body)
        except AssayError as error:
            raise RemoteError(peer, str(error)) from None


class Rig:
    """A keeper's log and its witnesses; `again` is the next process, on books at another path."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.net = folder, Net(folder)
        self.again("ledger.db", "checkpoints")

    def again(self, books: str, checkpoints: str) -> None:
        self.books = BookStore(self.folder / books, RUN_ID, now_ms=lambda: 1)
        self.checkpoints = self.folder / checkpoints
        self.log = CheckpointSigner(self.books, LEDGER_SERVICE, self.checkpoints, PEERS)
        me: Any = SimpleNamespace(
            spec=SimpleNamespace(judges=PEERS, seat_peers=PEERS), me=peer_of(LEDGER_SERVICE)
        )
        self.witnesses = Witnesses(cast(Participant, me), self.log)

    def enter(self, *keys: str) -> None:
        self.books.add_entries([an_entry(1, -1, key=key) for key in keys])

    def ask(self, wait_s: float = 60.0, lines: int = len(PEERS)) -> bool:
        """Let the witnesses work until a quorum and so many cosigned, or time is over."""

        async def main() -> bool:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.witnesses.run, cast(Host, self.net))
                done = await self.witnesses.compared(wait_s) and await self.witnesses.cosigned(wait_s)
                with trio.move_on_after(wait_s):
                    while done and len(self.newest()) < lines:
                        await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            return done

        try:
            return trio.run(main)
        except BaseExceptionGroup as group:
            found: BaseException = group
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            raise found from None

    def newest(self) -> tuple[tuple[PeerId, str], ...]:
        note = self.log.newest()
        return () if note is None else note.cosignatures

    def audited(self) -> Audited:
        with self.books.reading() as db:
            told = read_published(self.checkpoints)
            return audit(db, ORIGIN, bytes(LEDGER_SERVICE.verify_key), told, PEERS)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.books.close()


def test_every_checkpoint_is_cosigned_and_its_note_published_with_the_lines(rig: Rig):
    for lease in range(3):
        rig.enter(f"{lease}/a", f"{lease}/b")
        signed = rig.log.sign_last()
        assert signed is not None
        assert rig.ask()

        name, text = read_published(rig.checkpoints)[-1]
        told = read_checkpoint(text, ORIGIN, bytes(LEDGER_SERVICE.verify_key))
        assert (name, told) == (f"checkpoints/{signed.size:012d}.note", signed)
        assert set(cosigners(text, told, PEERS)) == set(PEERS)
    assert set(rig.audited().cosigners) == set(PEERS)


def test_a_quorum_is_enough_and_fewer_are_not(rig: Rig):
    rig.enter("a")
    rig.log.sign_last()
    rig.net.away = set(PEERS[:2])
    assert not rig.ask(0.2)
    assert not rig.witnesses.is_compared

    rig.net.away = set(PEERS[:1])
    rig.again("ledger.db", "checkpoints")
    assert rig.ask(lines=3)
    assert set(rig.audited().cosigners) == set(PEERS[1:])


def test_whoever_was_away_cosigns_later_from_where_it_stood(rig: Rig):
    rig.enter("a", "b")
    rig.log.sign_last()
    assert rig.ask()
    rig.net.away = {PEERS[0]}
    rig.enter("c")
    rig.log.sign_last()
    assert rig.ask(lines=3)
    rig.net.away = set()
    rig.again("ledger.db", "checkpoints")
    rig.enter("d", "e", "f")
    rig.log.sign_last()

    assert rig.ask()
    assert {peer for peer, _ in rig.newest()} == set(PEERS)


def test_books_put_back_from_a_copy_are_refused_by_what_verifiers_remember(rig: Rig):
    """Without the folder of notes, which lies on the same disk and was put back with it."""
    rig.enter("a")
    rig.log.sign_last()
    rig.enter("b")
    rig.log.sign_last()
    assert rig.ask()
    rig.books.close()

    rig.again("old.db", "old-checkpoints")
    rig.enter("a")
    with pytest.raises(LedgerRolledBack, match="has a checkpoint of 2 entries: the books were rolled back"):
        rig.ask()
    assert rig.log.newest() is None


def test_other_books_of_the_same_length_are_refused_too(rig: Rig):
    rig.enter("a", "b")
    rig.log.sign_last()
    assert rig.ask()
    rig.books.close()

    rig.again("other.db", "other-checkpoints")
    rig.enter("a", "x", "c")
    with pytest.raises(LedgerRolledBack, match=r"with root .*, the books have"):
        rig.ask()


def test_one_verifier_that_remembers_is_enough_and_no_verifier_can_make_it_up(rig: Rig):
    rig.enter("a", "b")
    rig.log.sign_last()
    liar = rig.net.witnesses[PEERS[0]]
    size = Checkpoint(origin=ORIGIN, size=9, root=bytes(32))

    async def lie(_peer: PeerId, _body: bytes) -> bytes:
        return sign_checkpoint(size, SigningKey(b"m" * 32)).encode()

    liar.handlers = {**liar.handlers, "witnessed": lie}
    assert rig.ask(lines=3)  # three are a quorum; what the liar says is not signed by us
    assert PEERS[0] not in {peer for peer, _ in rig.newest()}

    async def remember(_peer: PeerId, _body: bytes) -> bytes:
        return sign_checkpoint(size, LEDGER_SERVICE).encode()

    liar.handlers = {**liar.handlers, "witnessed": remember}
    rig.again("ledger.db", "checkpoints")
    rig.enter("c")
    rig.log.sign_last()
    with pytest.raises(LedgerRolledBack):
        rig.ask()


def test_a_verifier_that_is_no_witness_counts_as_heard(rig: Rig):
    rig.enter("a")
    rig.log.sign_last()
    for peer in PEERS[:3]:
        rig.net.witnesses[peer].handlers = {"witness": _refused, "witnessed": _refused}

    assert not rig.ask(0.5)
    assert rig.witnesses.is_compared and not rig.witnesses.is_cosigned


async def _refused(_peer: PeerId, _body: bytes) -> bytes:
    raise Unavailable("no such method")


def test_a_line_that_is_not_the_verifiers_is_not_kept(rig: Rig):
    rig.enter("a")
    rig.log.sign_last()
    others = rig.net.witnesses[PEERS[1]].handlers
    rig.net.witnesses[PEERS[0]].handlers = others  # answers with another's cosignature

    assert rig.ask(lines=3)
    assert PEERS[0] not in {peer for peer, _ in rig.newest()}
