"""A verifier as a witness: one history per keeper, also after a kill, and evidence of every other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import cbor2
import pytest
import trio

from assay.ledger.log.cosignature import read_cosignature
from assay.ledger.log.note import BadNoteError, read_checkpoint, read_line, signature_lines
from assay.ledger.log.witness import Request
from assay.ledger.merkle_log import leaf_hash
from assay.participant.config import Participant
from assay.participant.store import Store
from assay.protocol.errors import MalformedMessage, PeerFault, Unavailable
from assay.protocol.types import Digest, PeerId
from assay.verifier.service.witness import EVIDENCE, EVIDENCE_MAX, Witness
from tests.ledger.log.test_witness import (
    LEAVES,
    ORIGIN,
    OTHER,
    PEERS,
    PUBLIC,
    TIME,
    WITNESSES,
    a_checkpoint,
    a_request,
)

LEDGER_SERVICE, STRANGER = PeerId(PUBLIC), PeerId(bytes(OTHER.verify_key))
FORK = [*LEAVES[:2], *(leaf_hash(bytes([200 + n])) for n in range(18))]


class Rig:
    """A witness with its store; `again` is the next process."""

    def __init__(self, folder: Path, ledger_service: PeerId | None = LEDGER_SERVICE) -> None:
        self.path, self.ledger_service = folder / "store.db", ledger_service
        self.again()

    def again(self) -> None:
        self.store = Store(self.path)
        me: Any = SimpleNamespace(
            run_id=Digest(b"\x11" * 32),
            ledger_service=self.ledger_service,
            keys=SimpleNamespace(peer=WITNESSES[0]),
            store=self.store,
        )
        self.witness = Witness(cast(Participant, me), lambda: TIME)

    def ask(self, request: Request | bytes, peer: PeerId = LEDGER_SERVICE) -> bytes:
        body = request if isinstance(request, bytes) else request.encode()
        return trio.run(self.witness.handlers["witness"], peer, body)

    def newest(self) -> bytes:
        return trio.run(self.witness.handlers["witnessed"], STRANGER, b"")

    def evidence(self) -> list[dict[str, str]]:
        return [cbor2.loads(body) for body in self.store.values(EVIDENCE).values()]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_log_that_grows_is_cosigned_and_remembered_through_restarts(rig: Rig):
    assert rig.newest() == b""
    for old, new in ((0, 3), (3, 8), (8, 8), (8, 20)):
        answer = rig.ask(a_request(new, old))
        assert read_cosignature(read_line(answer.decode()[:-1]), a_checkpoint(new), PEERS[0]) == TIME
        rig.again()
        note = rig.newest().decode()
        assert read_checkpoint(note, ORIGIN, PUBLIC) == a_checkpoint(new)
        assert signature_lines(note)[1].text() + "\n" == answer.decode()


def test_what_was_cosigned_is_on_disk_before_the_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(rig.store, "set_value", refuse)
    with pytest.raises(Unavailable, match="full"):
        rig.ask(a_request(3, 0))


@pytest.mark.parametrize(
    "back",
    [a_request(5, 5), a_request(8, 8, FORK), a_request(9, 8, FORK)],
    ids=["smaller", "other", "forked"],
)
def test_a_ledger_that_goes_back_is_refused_and_the_signed_proof_of_it_kept(rig: Rig, back: Request):
    rig.ask(a_request(8, 0))
    before = rig.newest()

    for _ in range(3):
        with pytest.raises(PeerFault, match="cosigned"):
            rig.ask(back)
        rig.again()

    assert rig.newest() == before
    (kept,) = rig.evidence()
    shown = read_checkpoint(kept["shown"], ORIGIN, PUBLIC)
    assert shown == read_checkpoint(back.note, ORIGIN, PUBLIC)
    assert read_checkpoint(kept["held"], ORIGIN, PUBLIC) == a_checkpoint(8)
    rig.ask(a_request(9, 8))  # the true one goes on


def test_evidence_has_a_bound(rig: Rig):
    rig.ask(a_request(20, 0))
    for size in range(1, 20):
        with pytest.raises(PeerFault):
            rig.ask(a_request(size, size))

    assert len(rig.evidence()) == EVIDENCE_MAX


def test_of_two_requests_from_one_size_the_second_is_told_to_start_anew(rig: Rig):
    """The race of tlog-witness: nothing is awaited between the look and the write."""
    rig.ask(a_request(6, 0))
    answers: list[str] = []

    async def ask(size: int) -> None:
        try:
            await rig.witness.handlers["witness"](LEDGER_SERVICE, a_request(size, 6).encode())
            answers.append("cosigned")
        except (Unavailable, PeerFault):
            answers.append("refused")

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 9)
            nursery.start_soon(ask, 12)

    trio.run(both)
    assert sorted(answers) == ["cosigned", "refused"]


def test_only_the_keeper_that_the_operator_named_is_cosigned(rig: Rig, tmp_path: Path):
    with pytest.raises(PeerFault, match="asks to cosign a ledger"):
        rig.ask(a_request(3, 0), STRANGER)
    with pytest.raises(MalformedMessage, match="another key"):
        rig.ask(a_request(3, 0, key=OTHER))
    with pytest.raises(MalformedMessage):
        rig.ask(b"old 0\n\nrubbish")
    rig.ledger_service = None
    rig.again()
    with pytest.raises(Unavailable, match="names no ledger service"):
        rig.ask(a_request(3, 0))
    assert rig.newest() == b"" and not rig.evidence()


def test_another_keepers_note_in_the_store_is_an_error_and_not_a_beginning(rig: Rig):
    """A file that names another keeper after the first one was cosigned: no second history."""
    rig.ask(a_request(3, 0))
    rig.ledger_service = STRANGER
    rig.again()

    with pytest.raises(BadNoteError, match="another key"):
        rig.ask(a_request(3, 0, key=OTHER), STRANGER)


def test_lines_of_others_are_not_kept(rig: Rig):
    asked = a_request(3, 0)
    rig.ask(Request(old_size=0, proof=(), note=asked.note + "— witness.example/w1 " + "YWJj" * 4_000 + "\n"))

    assert len(rig.newest()) < 1_000
