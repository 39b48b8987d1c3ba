"""A node that leaves stays until nothing that it did can be drawn, judged or paid."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from assay.node.seat import (
    LEAVE,
    TOLD_S,
    announce_tasks,
    check_told,
    drained,
    leave_when_asked,
    take_seat,
)
from assay.participant.files.application import Application
from assay.participant.files.record import Role, renew_own
from assay.participant.files.track_record import SUFFIX, TrackRecord, write_track_record
from assay.participant.following.snapshots import reach_newest
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import Unavailable
from assay.protocol.identity import verify
from assay.protocol.membership import is_drained
from assay.protocol.messages import AttendanceKind, Manifest, SignedAttendance
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Address, PeerId, RoundId
from assay.testing.members import DOMAIN, NODES, RUN_ID, a_digest, a_peer_key, peer
from assay.testing.run import a_manifest, grow
from assay.testing.run import a_start as a_chain_history
from assay.testing.signed import a_history
from tests.a_network import NOW, keys_of

ME: Any = SimpleNamespace(me=NODES[0])


def left_at(run_state: RunState) -> RunState:
    record = replace(run_state.nodes[NODES[0]], has_left=True)
    return replace(run_state, nodes={**run_state.nodes, NODES[0]: record})


def test_what_a_node_did_keeps_it_until_its_epoch_is_settled_and_its_audits_have_ended():
    run_state = left_at(grow(a_chain_history(rounds=40), 2))
    assert not is_drained(run_state, NODES[0])
    while not is_drained(run_state, NODES[0]):
        run_state = grow(run_state, 1)
    assert int(run_state.round) == run_state.calendar.settled_at(0) + 1
    assert run_state.is_training  # others go on


def test_at_the_end_of_a_run_nobody_waits_for_what_no_manifest_will_change():
    run_state = grow(a_chain_history(), 12)
    while not run_state.is_complete:
        run_state = grow(run_state, 1)
    assert run_state.steps and is_drained(run_state, NODES[0])  # the last epoch stays in the state
    trio.run(drained, ME, SimpleNamespace(run_state=run_state))


def test_a_node_says_that_it_leaves_once_asked_until_the_chain_has_it(tmp_path):
    run_state, said = a_history(), list[SignedAttendance]()
    follower = SimpleNamespace(run_state=run_state)
    me: Any = SimpleNamespace(
        me=peer("nora"),
        run_id=RUN_ID,
        domain=DOMAIN,
        keys=SimpleNamespace(peer=a_peer_key("nora")),
        config=SimpleNamespace(folder=tmp_path),
    )

    async def say(message: SignedAttendance) -> None:
        said.append(message)
        if len(said) == 2:  # the first was lost
            record = replace(run_state.nodes[me.me], has_left=True)
            follower.run_state = replace(run_state, nodes={**run_state.nodes, me.me: record})

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave_when_asked, me, follower, say)
            await trio.sleep(10)
            assert said == []
            (tmp_path / LEAVE).touch()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(said) == 2
    for one in said:
        assert one.attendance.kind is AttendanceKind.LEAVE
        verify(me.me, DOMAIN, one.attendance, one.signature)


def test_a_node_announces_its_tasks_once_it_has_a_seat_until_the_chain_has_the_list():
    spec = a_history().spec
    run_state = a_history(rounds=20, audit=replace(spec.audit, known_answer_count=1))
    me: Any = SimpleNamespace(
        me=peer("nora"), run_id=RUN_ID, domain=DOMAIN, keys=SimpleNamespace(peer=a_peer_key("nora"))
    )
    others = {node: record for node, record in run_state.nodes.items() if node != me.me}
    follower = SimpleNamespace(run_state=replace(run_state, nodes=others))  # not admitted yet
    said = list[SignedAttendance]()
    root = a_digest("list")

    async def say(message: SignedAttendance) -> None:
        said.append(message)
        if len(said) == 2:  # the first was lost
            record = replace(run_state.nodes[me.me], tasks=root, tasks_from=1)
            follower.run_state = replace(run_state, nodes={**run_state.nodes, me.me: record})

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(announce_tasks, me, follower, root, say)
            await trio.sleep(10)
            assert said == []
            follower.run_state = run_state

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [(one.attendance.kind, one.attendance.tasks) for one in said] == [(AttendanceKind.TASKS, root)] * 2
    for one in said:
        verify(me.me, DOMAIN, one.attendance, one.signature)


@pytest.mark.parametrize("ends", ["no list", "training is over", "it has left"])
def test_a_node_announces_nothing_where_there_is_nothing_to_announce_or_nobody_to_hear_it(ends: str):
    run_state = grow(a_chain_history(rounds=20, known_answer_count=1), 1)
    if ends == "it has left":
        run_state = left_at(run_state)
    elif ends == "training is over":
        run_state = replace(run_state, training_rounds=int(run_state.round))
    root = NO_DIGEST if ends == "no list" else a_digest("list")

    async def say(message: SignedAttendance) -> None:
        raise AssertionError(message)

    trio.run(announce_tasks, ME, SimpleNamespace(run_state=run_state), root, say)


def test_whoever_asks_long_after_a_run_had_to_start_and_is_told_nothing_gives_up():
    waits = a_history(nodes=(), least_nodes=2, seats=2, start_by_s=100)
    check_told(waits, 100 + TOLD_S)
    with pytest.raises(Unavailable, match="had to start by 1970"):
        check_told(waits, 101 + TOLD_S)
    check_told(advance(waits, a_late_manifest(waits)), 1 << 40)  # it lapsed, and we know
    check_told(a_history(), 1 << 40)


def a_late_manifest(run_state: RunState) -> Manifest:
    return a_manifest(run_state, time_s=101)


class Followed:
    """A chain that we know to be the newest after a second, with a round each second after."""

    def __init__(self, run_state: RunState) -> None:
        self.run_state = run_state
        self.looked = 0
        self.is_level = False

    def look(self) -> None:
        self.looked += 1

    async def level(self) -> None:
        if not self.is_level:
            await trio.sleep(1)
        self.is_level = True

    async def grown(self, _beyond: int) -> RunState:
        await trio.sleep(1)
        return self.run_state


class Parameters:
    """Of a trainer that took some rounds to start; the second time there is a snapshot that helps."""

    def __init__(self, reach: Callable[[int], Awaitable[None]], is_behind: bool = False) -> None:
        self.reach, self.is_behind, self.asked = reach, is_behind, list[int]()

    async def come_near(self, newest: Callable[[], int]) -> None:
        await trio.sleep(0.1)
        self.asked.append(newest())
        self.is_behind = self.is_behind and len(self.asked) < 2

    def is_far(self, _round_id: int) -> bool:
        return self.is_behind


@dataclass
class Applied:
    """What a verifier was sent, and when."""

    verifier: PeerId
    at_s: float
    is_ready: bool


def applications(
    tmp_path: Path, reach: Callable[[int], Awaitable[None]], *, away_s: float = 0.0, end_s: float = 15.0
) -> tuple[list[Applied], list[PeerId]]:
    """What verifiers get from a newcomer in so many seconds, and these; the first never answers."""
    keys, run_state, sent = keys_of("nadia"), a_history(seats=4), list[Applied]()
    renew_own(tmp_path, keys, Role.NODE, "127.0.0.1", 4001, NOW)
    silent, *others = run_state.spec.seat_peers

    class Verifiers:
        def connected(self) -> list[PeerId]:
            return [silent, *others] if trio.current_time() >= away_s else []

        async def request(self, verifier: PeerId, _method: str, body: bytes, *, timeout_s: float) -> bytes:
            assert verifier in self.connected()
            sent.append(Applied(verifier, trio.current_time(), decode(Application, body).is_ready))
            if verifier == silent:
                await trio.sleep(timeout_s)
                raise Unavailable("no answer")
            await trio.lowlevel.checkpoint()
            return b""

    me: Any = SimpleNamespace(me=peer("nadia"), spec=run_state.spec, config=SimpleNamespace(keys=tmp_path))
    host: Any = Verifiers()
    follower: Any = Followed(run_state)
    state_sync: Any = Parameters(reach)

    async def main() -> None:
        with trio.move_on_after(end_s):
            await take_seat(me, follower, state_sync, host)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert follower.looked
    return sent, others


async def at_once(_round_id: int) -> None:
    await trio.lowlevel.checkpoint()


def test_a_verifier_that_does_not_answer_keeps_a_newcomer_from_no_other(tmp_path):
    sent, others = applications(tmp_path, at_once)

    for verifier in others:
        first = next(one.at_s for one in sent if one.verifier == verifier and one.is_ready)
        assert first < 1.5  # at once when its parameters are the newest


def test_a_newcomer_applies_as_soon_as_it_is_connected(tmp_path):
    sent, others = applications(tmp_path, at_once, away_s=0.7)

    assert {one.verifier for one in sent if one.at_s < 0.9} >= set(others)


def test_a_newcomer_asks_for_a_seat_with_the_newest_parameters_and_not_before(tmp_path):
    """It is not ready before it knows which round that is, nor while it cannot get them."""

    async def reach(_round_id: int) -> None:
        assert trio.current_time() >= 1
        if trio.current_time() < 3 or trio.current_time() > 8:
            raise Unavailable("nobody has the aggregate")
        await trio.lowlevel.checkpoint()

    sent, others = applications(tmp_path, reach)

    ready = [one.at_s for one in sent if one.is_ready and one.verifier in others]
    assert min(ready) >= 3 and 6 < max(ready) < 10
    assert any(not one.is_ready and one.at_s > 10 for one in sent if one.verifier in others)


def test_a_snapshot_of_a_round_that_is_not_final_yet_is_waited_for():
    """Else a newcomer would replay all rounds one by one, each time that it asks right after a checkpoint."""
    run_state, reached = a_history(), list[int]()

    async def reach(round_id: int) -> None:
        reached.append(round_id)

    class Growing(Followed):
        async def grown(self, beyond: int) -> RunState:
            await trio.sleep(3)
            self.run_state = replace(self.run_state, round=RoundId(beyond + 1))
            return self.run_state

    follower: Any = Growing(run_state)
    parameters: Any = Parameters(reach, is_behind=True)
    at = trio.run(reach_newest, follower, parameters, clock=trio.testing.MockClock(autojump_threshold=0))

    assert parameters.asked == [0, 1]
    assert reached == [at] == [1]


def test_a_node_shows_its_track_record_when_it_asks_for_a_seat(tmp_path):
    """A file of another account is left out: it would count nothing."""
    keys, run_state, sent = keys_of("nadia"), a_history(seats=4), list[Application]()
    follower = Followed(run_state)
    renew_own(tmp_path, keys, Role.NODE, "127.0.0.1", 4001, NOW)
    account = Address(bytes(keys.account_address))
    earned = TrackRecord(
        run_id=RUN_ID, account=account, exec_class=NO_DIGEST, clean=40, heard_s=NOW, certificate=b"c"
    )

    class Verifiers:
        def connected(self) -> list[PeerId]:
            return list(run_state.spec.seat_peers)

        async def request(self, _peer: Any, method: str, body: bytes, *, timeout_s: float) -> bytes:
            assert method == "apply"
            sent.append(decode(Application, body))
            await trio.lowlevel.checkpoint()
            seated = {**run_state.nodes, me.me: next(iter(run_state.nodes.values()))}
            follower.run_state = replace(run_state, nodes=seated)
            return b""

    async def reach(_round_id: int) -> None:
        await trio.lowlevel.checkpoint()

    me: Any = SimpleNamespace(
        me=peer("nadia"), spec=run_state.spec, config=SimpleNamespace(keys=tmp_path)
    )  # fmt: skip
    for shown in (earned, replace(earned, account=Address(bytes(20)))):
        follower.run_state, follower.is_level = run_state, False
        for kept in tmp_path.glob(f"*{SUFFIX}"):
            kept.unlink()
        write_track_record(tmp_path, shown)
        clock = trio.testing.MockClock(autojump_threshold=0)
        state_sync: Any = Parameters(reach)
        assert trio.run(take_seat, me, follower, state_sync, Verifiers(), clock=clock)

    verifiers = len(run_state.spec.verifiers)
    assert [one.track_record for one in sent] == [(earned,)] * verifiers + [()] * verifiers
