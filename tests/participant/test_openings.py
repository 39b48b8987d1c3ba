"""Openings of drawn steps stay with f + 1 verifiers each, until nobody can dispute the run any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from assay.chain.client import EpochPhase
from assay.network.blob_store import DiskBlobs
from assay.participant import opening_keeper
from assay.participant.config import may_read
from assay.participant.opening_keeper import OpeningKeeper, is_undisputable, keep_openings
from assay.participant.openings import (
    KeptOpening,
    check_step,
    keepers,
    named_opening,
    named_openings,
    too_many,
)
from assay.participant.store import Store
from assay.participant.telemetry.readings import Readings
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.auditing.draws import auditors
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import MalformedMessage, Unavailable
from assay.protocol.messages import Outcome
from assay.protocol.openings import Opening
from assay.protocol.types import Digest, PeerId, RoundId
from assay.testing.members import NODES, VERIFIERS, peers
from assay.testing.messages import a_verdict
from assay.testing.run import a_start, grow

SPEC = a_start().spec
F = 1  # of four verifiers
SIZE_MAX = 1000


def an_audit(round_id: int = 0, node: int = 0, **changes: Any) -> Audit:
    """One that has ended, of a step of an early round, without verdicts."""
    audit = grow(a_start(), round_id + 2).audits[(RoundId(round_id), NODES[node])]
    return replace(audit, ruling=AuditStatus.PASSED, **changes)


def an_opening(audit: Audit) -> bytes:
    """Bytes that say that they open the step."""
    commit = audit.commit
    return encode(
        Opening(
            run_id=commit.run_id, round=commit.round, node=commit.node, blocks=(),
            before=b"", after=b"", paths_before=(), paths_after=(),
        )
    )  # fmt: skip


def judged(audit: Audit, *places: int, body: bytes | None = None) -> Audit:
    """The audit with verdicts of these places of its order on this opening, by default the step's."""
    body = an_opening(audit) if body is None else body
    found = tuple(
        a_verdict(audit, audit.order[at], opening=blob_digest(body), opening_bytes=len(body)) for at in places
    )
    return replace(audit, verdicts=(*audit.verdicts, *found))


def name_of(audit: Audit) -> Digest:
    named = named_opening(audit)
    assert named is not None
    return named.opening


# ---- which, and who


def test_the_opening_of_a_step_is_the_one_that_most_of_its_judges_name() -> None:
    audit = an_audit()
    assert named_opening(audit) is None

    lied = judged(audit, 0, body=b"a liar's")
    assert name_of(lied) == blob_digest(b"a liar's")  # nobody says otherwise
    assert name_of(judged(lied, 1)) == blob_digest(b"a liar's")  # one against one: the first
    assert name_of(judged(lied, 1, 2)) == blob_digest(an_opening(audit))

    again = replace(lied, verdicts=lied.verdicts * 3)  # of several dispute rounds
    assert name_of(judged(again, 1, 2)) == blob_digest(an_opening(audit))


def test_a_verdict_on_no_opening_names_none_and_an_audit_that_goes_on_has_none_to_keep() -> None:
    audit = an_audit()
    withheld = replace(audit, verdicts=(a_verdict(audit, audit.order[0], Outcome.WITHHELD),))
    assert named_opening(withheld) is None

    ended = judged(audit, 0)
    going = replace(judged(an_audit(node=1), 0), ruling=AuditStatus.OPEN)
    assert set(named_openings([ended, going, withheld])) == {name_of(ended)}


@pytest.mark.parametrize(("judges", "expected"), [((0,), (0, 1)), ((2,), (2, 0)), ((3, 1, 0), (0, 1, 3))])
def test_whoever_judged_an_opening_keeps_it_and_the_next_of_the_order_up_to_f_and_one(
    judges: Sequence[int], expected: Sequence[int]
) -> None:
    audit = judged(an_audit(), *judges)

    assert keepers(SPEC, audit, name_of(audit)) == tuple(audit.order[at] for at in expected)
    assert len(keepers(SPEC, audit, name_of(audit))) >= F + 1


@pytest.mark.parametrize("count", [4, 7, 16])
def test_each_opening_has_an_honest_keeper_and_the_load_is_even(count: int) -> None:
    verifiers = peers("verifier", count)
    state = grow(a_start(verifiers=verifiers, rounds=40, audit_rounds=20, dispute_rounds=16), 2)
    (sample, *_) = state.audits.values()
    load, f = Counter[PeerId](), (count - 1) // 3
    for at in range(600):
        order = auditors(Digest(at.to_bytes(32, "big")), sample.node, verifiers)
        audit = judged(replace(sample, order=order, ruling=AuditStatus.PASSED), 0)
        kept_by = keepers(state.spec, audit, name_of(audit))
        assert len(set(kept_by)) == f + 1
        load.update(kept_by)

    even = 600 * (f + 1) / count
    assert all(0.75 * even < load[verifier] < 1.25 * even for verifier in verifiers)


def test_the_oldest_go_first_and_what_open_audits_need_stays() -> None:
    kept = [
        KeptOpening(round=RoundId(at), node=NODES[0], opening=Digest(bytes([at]) * 32), size=10)
        for at in (3, 0, 1, 2)
    ]
    step = (RoundId(0), NODES[0])

    assert too_many(kept, 40, ()) == []
    assert [int(one.round) for one in too_many(kept, 39, ())] == [0]
    assert [int(one.round) for one in too_many(kept, 20, {step})] == [1, 2]
    assert len(too_many(kept, 0, {step})) == 3


# ---- keeping


class World:
    """A keeper with its disk, and a host whose peers serve `served`."""

    def __init__(self, folder: Path, *, room: int = 10**6) -> None:
        self.store, self.blobs = Store(folder / "store.db"), DiskBlobs(folder / "blobs", bytes_max=10**6)
        self.room, self.served = room, dict[Digest, bytes]()
        self.asked = list[tuple[Digest, tuple[PeerId, ...]]]()
        self.asking = self.asked_at_once = 0
        self.keeper = self.again()
        self.seats: dict[PeerId, PeerId] = {}  # of those that hold another's seat
        self.run_state = SimpleNamespace(
            round=RoundId(9),
            audits={},
            spec=SPEC,
            is_complete=False,
            seat_of=lambda holder: self.seats.get(holder, holder),
        )

    def again(self) -> OpeningKeeper:
        return OpeningKeeper(
            self.store, self.blobs, bytes_max=lambda: self.room, opening_bytes_max=SIZE_MAX
        )  # fmt: skip

    def ended(self, *audits: Audit) -> None:
        self.run_state.audits = {(audit.round, audit.node): audit for audit in audits}

    def connected(self) -> tuple[PeerId, ...]:
        return (*VERIFIERS, *NODES)

    async def fetch(self, name: Digest, *, holders: Any, size_max: int, **_more: Any) -> bytes:
        self.asked.append((name, tuple(holders)))
        self.asking += 1
        self.asked_at_once = max(self.asked_at_once, self.asking)
        await trio.lowlevel.checkpoint()
        self.asking -= 1
        body = self.served.get(name)
        if body is None or len(body) > size_max:
            raise Unavailable("nobody has it")
        return body

    async def grown(self, _beyond: int) -> None:
        self.scope.cancel()
        await trio.lowlevel.checkpoint()

    def look(self, me: PeerId, *, keeps_all: bool = False) -> None:
        """What this keeper does at one look."""

        async def once() -> None:
            with trio.CancelScope() as self.scope:
                await keep_openings(self.keeper, self, self, me=me, keeps_all=keeps_all)  # type: ignore[arg-type]

        trio.run(once, clock=MockClock(autojump_threshold=0))

    def end(self) -> None:
        """What it does once the run is over."""

        async def once() -> None:
            with trio.move_on_after(1):
                await keep_openings(self.keeper, self, self, me=VERIFIERS[0], is_over=lambda: True)  # type: ignore[arg-type]

        trio.run(once, clock=MockClock(autojump_threshold=0))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(opening_keeper, "FETCH_S", 0.001)
    return World(tmp_path)


def held_by(world: World, audit: Audit) -> Digest:
    """Have the keeper hold the opening that it has judged."""
    name = world.blobs.put(an_opening(audit))
    world.keeper.judged(audit.commit, name)
    return name


def test_who_took_over_an_auditors_seat_keeps_what_the_seat_is_to_keep(world: World) -> None:
    audit, successor = an_audit(), peers("successor", 1)[0]
    name = held_by(world, audit)
    world.ended(judged(audit, 3))
    world.seats[successor] = audit.order[3]

    world.look(successor)
    assert world.blobs.size(name)

    world.seats.clear()
    world.look(successor)
    assert world.blobs.size(name) is None


def test_an_auditor_keeps_what_it_judged_and_one_whose_verdict_does_not_count_does_not(world: World) -> None:
    audit = an_audit()
    name = held_by(world, audit)
    world.ended(replace(audit, ruling=AuditStatus.OPEN))
    world.look(audit.order[3])
    assert world.blobs.size(name)  # a committee may ask for it

    world.ended(judged(audit, 3))
    world.look(audit.order[3])
    assert world.blobs.size(name)

    world.ended(judged(audit, 0))
    world.look(audit.order[3])
    assert world.blobs.size(name) is None and not world.again().kept


def test_a_keeper_that_did_not_judge_fetches_it_once_and_others_do_not(world: World) -> None:
    audit = judged(an_audit(), 0)
    world.served[name_of(audit)] = an_opening(audit)
    world.ended(audit)

    world.look(audit.order[2])
    assert not world.asked

    world.look(audit.order[1])
    world.look(audit.order[1])
    ((name, holders),) = world.asked
    assert world.blobs.load(name) == an_opening(audit)
    assert audit.order[1] not in holders and holders[-1] == audit.node and audit.order[0] in holders


def test_a_buyer_keeps_them_all(world: World) -> None:
    audits = [judged(an_audit(node=at), 0) for at in range(3)]
    world.served = {name_of(audit): an_opening(audit) for audit in audits}
    world.ended(*audits)

    world.look(PeerId(b"b" * 32), keeps_all=True)

    assert set(world.keeper.kept) == set(world.served)


def test_a_buyer_keeps_no_opening_that_shows_data_which_only_a_node_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(SPEC), "brings_data", lambda _spec, node: node == NODES[1])
    audits = [judged(an_audit(node=at), 0) for at in range(3)]
    world.served = {name_of(audit): an_opening(audit) for audit in audits}
    world.ended(*audits)

    world.look(PeerId(b"b" * 32), keeps_all=True)

    assert set(world.keeper.kept) == {name_of(audits[0]), name_of(audits[2])}


def test_what_shows_data_that_only_a_node_has_is_served_to_verifiers_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    audits = [judged(an_audit(node=at), 0) for at in range(2)]
    for audit in audits:
        held_by(world, audit)
    monkeypatch.setattr(type(SPEC), "bringing_nodes", NODES[1:2])
    public, private = map(name_of, audits)
    update = world.blobs.put(b"an update")

    def readers(me: PeerId, blob: Digest) -> set[PeerId]:
        here: Any = SimpleNamespace(spec=SPEC, me=me, store=world.store)
        members = (*SPEC.seat_peers, *NODES, PeerId(b"b" * 32))
        return {peer for peer in members if may_read(here, peer, blob)}

    everybody = {*SPEC.seat_peers, *NODES, PeerId(b"b" * 32)}
    assert readers(VERIFIERS[0], public) == readers(VERIFIERS[0], update) == everybody
    assert readers(VERIFIERS[0], private) == {*SPEC.seat_peers}
    assert readers(NODES[1], private) == readers(NODES[1], update) == {*SPEC.seat_peers}
    world.keeper = world.again()  # after a restart
    assert readers(VERIFIERS[0], private) == {*SPEC.seat_peers}


def test_an_opening_whose_audit_ends_while_it_is_written_is_not_left_without_a_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit, put = an_audit(), world.blobs.put

    def forgotten(body: bytes) -> Digest:
        assert world.store.values("opening/")
        world.run_state.audits = {(audit.round, audit.node): judged(audit, 0, body=b"another")}
        world.keeper.forget(world.run_state, lambda *_: False)  # type: ignore[arg-type]
        return put(body)

    monkeypatch.setattr(world.blobs, "put", forgotten)
    with pytest.raises(Unavailable, match="has ended"):
        trio.run(world.keeper.put, audit.commit, an_opening(audit))

    assert not world.blobs.used_bytes and not world.store.values("opening/")


def test_what_is_kept_is_known_after_a_restart_and_outlives_the_audit(world: World) -> None:
    audit = judged(an_audit(), 0)
    name = held_by(world, audit)
    world.ended(audit)
    world.look(audit.order[0])

    world.keeper = world.again()
    world.ended()  # pruned from the state
    world.look(audit.order[0])

    assert world.blobs.size(name) and set(world.keeper.kept) == {name}


@pytest.mark.parametrize("body", [b"an aggregate that everybody needs", None])
def test_what_is_no_opening_of_the_step_is_neither_fetched_nor_deleted(
    world: World, body: bytes | None
) -> None:
    audit = an_audit()
    body = an_opening(an_audit(node=1)) if body is None else body  # or another step's
    lied = judged(audit, 0, body=body)
    world.ended(lied)
    world.served[name_of(lied)] = body

    world.look(audit.order[1])
    assert world.asked and world.blobs.size(name_of(lied)) is None

    world.blobs.put(body)
    world.asked.clear()
    world.look(audit.order[1])
    assert not world.asked
    world.end()
    assert world.blobs.load(name_of(lied)) == body


def test_one_that_nobody_serves_is_asked_for_a_few_times_and_one_too_large_never(world: World) -> None:
    audit = judged(an_audit(), 0)
    world.ended(audit)
    for _ in range(10):
        world.look(audit.order[1])
    assert world.keeper._tries[name_of(audit)] == opening_keeper.TRIES_MAX

    world.asked.clear()
    large = judged(an_audit(node=1), 0)
    (verdict,) = large.verdicts
    large = replace(large, verdicts=(replace(verdict, opening_bytes=SIZE_MAX + 1),))
    world.ended(large)
    world.look(large.order[1])
    assert not world.asked


def test_a_few_are_asked_for_at_once_so_that_one_that_nobody_serves_holds_up_no_other(world: World) -> None:
    audits = [judged(an_audit(round_id=at, node=node), 0) for at in range(2) for node in range(3)]
    world.served = {name_of(audits[-1]): an_opening(audits[-1])}
    world.ended(*audits)

    world.look(PeerId(b"b" * 32), keeps_all=True)

    assert world.asked_at_once == opening_keeper.FETCHES_MAX < len(audits)
    assert set(world.keeper.kept) == set(world.served)


def test_a_shown_size_that_is_too_small_is_not_exceeded(world: World) -> None:
    audit = judged(an_audit(), 0)
    (verdict,) = audit.verdicts
    audit = replace(audit, verdicts=(replace(verdict, opening_bytes=10),))
    world.served[name_of(audit)] = an_opening(audit)
    world.ended(audit)

    world.look(audit.order[1])

    assert world.asked and world.blobs.size(name_of(audit)) is None


def test_an_opening_takes_the_room_that_it_has_whatever_a_verdict_says(world: World) -> None:
    audit = judged(an_audit(), 0)
    (verdict,) = audit.verdicts
    audit = replace(audit, verdicts=(replace(verdict, opening_bytes=SIZE_MAX),))
    world.served[name_of(audit)] = an_opening(audit)
    world.ended(audit)

    world.look(audit.order[1])

    assert [one.size for one in world.keeper.kept.values()] == [len(an_opening(audit))] != [SIZE_MAX]


def test_a_full_disk_and_a_crash_leave_nothing_that_nobody_deletes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: Exception) -> Any:
        def fail(*_: Any) -> None:
            raise error

        return fail

    audit = judged(an_audit(), 0)
    world.served[name_of(audit)] = an_opening(audit)
    world.ended(audit)
    with monkeypatch.context() as full:
        full.setattr(world.blobs, "put", fails(Unavailable("full")))
        world.look(audit.order[1])
    assert not world.keeper.kept and not world.store.values("opening/")

    with monkeypatch.context() as killed:
        killed.setattr(world.store, "set_value", fails(SystemError("killed")))
        with pytest.RaisesGroup(SystemError):
            world.look(audit.order[1])
    assert not world.blobs.used_bytes

    world.keeper = world.again()
    world.look(audit.order[1])
    assert world.blobs.size(name_of(audit)) == len(an_opening(audit))


def test_at_the_bound_the_oldest_goes_and_at_the_end_everything(world: World) -> None:
    audits = [judged(an_audit(at), 0) for at in range(3)]
    names = [held_by(world, audit) for audit in audits]
    world.ended(*audits)
    world.room = sum(len(an_opening(audit)) for audit in audits[1:])
    world.look(PeerId(b"b" * 32), keeps_all=True)
    assert [world.blobs.size(name) is not None for name in names] == [False, True, True]

    world.end()
    assert not world.blobs.used_bytes and not world.store.values("opening/")


def test_a_keeper_without_room_keeps_and_asks_for_nothing(world: World) -> None:
    audit = judged(an_audit(), 0)
    world.served[name_of(audit)] = an_opening(audit)
    world.ended(audit)
    world.room = 0

    world.look(audit.order[1], keeps_all=True)

    assert not world.asked and not world.blobs.used_bytes


def test_another_steps_opening_is_named_in_the_error() -> None:
    audit, other = an_audit(), an_audit(node=1)
    with pytest.raises(MalformedMessage, match=f"of node {other.node.hex()[:8]}, expected round 0"):
        check_step(decode(Opening, an_opening(other)), audit.commit)


def test_a_run_is_disputable_until_its_last_result_is_final_and_its_last_case_over() -> None:
    def over(phases: Sequence[EpochPhase], *, cases: Sequence[bool] = (), is_complete: bool = True) -> bool:
        look = SimpleNamespace(
            epochs=[SimpleNamespace(state=SimpleNamespace(phase=phase)) for phase in phases],
            cases=[SimpleNamespace(state=SimpleNamespace(phase=SimpleNamespace(is_over=x))) for x in cases],
        )
        state = SimpleNamespace(is_complete=is_complete, calendar=SimpleNamespace(epochs=2))
        return is_undisputable(Readings(look=look), state)  # type: ignore[arg-type]

    final, proposed = EpochPhase.FINAL, EpochPhase.PROPOSED
    assert over([final, final]) and over([final, EpochPhase.SWEPT], cases=[True])
    assert not over([final]) and not over([final, proposed]) and not over([final, EpochPhase.CHALLENGED])
    assert not over([final, final], cases=[True, False]) and not over([final, final], is_complete=False)
    assert not is_undisputable(Readings(), SimpleNamespace(is_complete=True))  # type: ignore[arg-type]
