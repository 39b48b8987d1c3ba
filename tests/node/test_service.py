"""A node's process: what it asks its trainer for follows from the chain, not from what it remembers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from assay.network.blob_store import DiskBlobs
from assay.node.messages import RepeatStep, TakeStep
from assay.node.openings import LOOK_S, REPEATS_MAX, Openings
from assay.node.service import HELD_BYTES_PER_S, HELD_S, NEXT_S, Sent, Service, first_hand
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import Diverged, Unavailable
from assay.protocol.known_answers import Tasks
from assay.protocol.messages import FIRST_HAND, INLINE_UPDATE_BYTES, BlobPiece, OpeningNotice, Submission
from assay.protocol.types import Digest, RoundId
from assay.testing.members import a_digest, peer
from assay.testing.signed import a_history, a_signed_commit
from assay.testing.specs import a_rule
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root

NORA, VERA, VITO = peer("nora"), peer("vera"), peer("vito")


class WorkerProcess:
    """A trainer that answers with what it was asked."""

    async def call(self, request: TakeStep, _answer: Any) -> TakeStep:
        return request


def asked(run_state: Any) -> TakeStep:
    me = SimpleNamespace(me=NORA, spec=run_state.spec)
    tasks = Tasks(node=NORA, root=a_digest("list"), shown={})
    child = SimpleNamespace(child=WorkerProcess())
    service = SimpleNamespace(me=me, tasks=tasks, state_sync=child, _began_s=0.0)
    service._left_ms = lambda passed_s: Service._left_ms(service, passed_s)
    return trio.run(Service._step, service, run_state)


def test_before_its_first_accepted_step_a_node_starts_afresh():
    assert asked(a_history()).base == 0


def test_a_step_continues_the_last_accepted_one_though_later_ones_had_the_same_root():
    """FedAvg keeps nothing back, so every root is the zero root and says nothing of its round."""
    run_state = a_history(rule=a_rule("fedavg"))
    root = zero_root(run_state.run_id, run_state.spec.rule, layout_of(run_state.spec.model).blocks)
    record = replace(run_state.nodes[NORA], momentum=root, base=5)
    run_state = replace(run_state, round=RoundId(7), nodes={**run_state.nodes, NORA: record})

    request = asked(run_state)

    assert (request.round, request.base, request.base_root) == (7, 5, root)


def test_a_trainer_is_told_from_which_round_on_the_nodes_tasks_are_false():
    run_state = a_history()
    assert asked(run_state).tasks_from == 0
    record = replace(run_state.nodes[NORA], tasks=a_digest("list"), tasks_from=3)
    assert asked(replace(run_state, nodes={**run_state.nodes, NORA: record})).tasks_from == 3


def test_a_trainer_is_told_its_seat_where_draws_follow_from_it():
    data = replace(a_history().spec.data, replaces=False)
    run_state = a_history(data=data)
    record = replace(run_state.nodes[NORA], seat=5)
    moved = replace(run_state, nodes={**run_state.nodes, NORA: record})

    assert asked(moved).seat == 5
    assert asked(replace(moved, spec=a_history().spec)).seat == 0
    ahead = []
    me = SimpleNamespace(me=NORA, spec=moved.spec)

    async def call(request, _answer):
        ahead.append(request)

    service = SimpleNamespace(
        me=me, tasks=Tasks(node=NORA, root=a_digest("list"), shown={}), _left_ms=lambda _: 0,
        follower=SimpleNamespace(run_state=moved),
        state_sync=SimpleNamespace(child=SimpleNamespace(call=call)),
    )  # fmt: skip
    trio.run(Service._work_ahead, service, a_signed_commit("nora", run_state, seat=5).commit)
    assert [request.seat for request in ahead] == [5]


def test_a_node_that_is_far_behind_loads_a_snapshot_for_longer_than_a_round():
    """Else each new round would begin the download again, and the node would never train."""
    came, began = list[int](), list[int]()
    run_state = replace(a_history(), round=RoundId(100), training_rounds=1000)

    async def reach(round_id: int) -> None:
        began.append(round_id)
        await trio.sleep(5)  # rounds take a second
        if len(began) == 1:
            raise Unavailable("nobody has it yet")
        came.append(round_id)

    async def grown(beyond: int) -> Any:
        await trio.sleep(1)
        return follower.run_state

    async def contribute(_run_state: Any) -> None:
        came.append(-1)

    async def level() -> None:
        await trio.lowlevel.checkpoint()

    follower = SimpleNamespace(run_state=run_state, grown=grown, level=level)

    async def come_near(_newest: Any) -> None:
        await trio.lowlevel.checkpoint()

    state_sync = SimpleNamespace(reach=reach, come_near=come_near, is_far=lambda _round: not came)
    service: Any = SimpleNamespace(
        me=SimpleNamespace(me=NORA, spec=run_state.spec), follower=follower, state_sync=state_sync
    )
    service._has_left = lambda: -1 in came
    service._contribute = contribute
    service._come_near = partial(Service._come_near, service)

    async def main() -> None:
        with trio.fail_after(60):
            await Service._train(service)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (began, came) == ([100, 100], [100, -1])


class Verifier:
    """A host whose one peer is a verifier; it records what comes, in order, and answers nothing."""

    def __init__(self) -> None:
        self.came: list[object] = []

    async def send(self, _to: object, payload: bytes) -> None:
        self.came.append(decode(BlobPiece, payload).piece)

    async def request(self, _to: object, method: str, _body: bytes, *, timeout_s: float) -> bytes:
        self.came.append(method)
        await trio.sleep_forever()
        raise AssertionError


def submitted(folder: Path, update: bytes, *, is_damaged: bool = False) -> list[object]:
    """What a verifier gets when a node submits a commit with this update."""
    blobs, host = DiskBlobs(folder, bytes_max=1 << 20), Verifier()
    signed = a_signed_commit("nora", a_history())
    signed = replace(signed, commit=replace(signed.commit, update=blobs.put(update)))
    if is_damaged:
        (file,) = [one for one in folder.rglob("*") if one.is_file()]
        file.write_bytes(b"?" * len(update))
    inline = update if len(update) <= INLINE_UPDATE_BYTES else b""
    service = SimpleNamespace(me=SimpleNamespace(blobs=blobs), _host=host)
    service._push_update = lambda *given: Service._push_update(service, *given)

    async def main() -> None:
        with trio.move_on_after(0.2):
            submission = Submission(signed=signed, update=inline)
            await Service._submit(service, VERA, submission, Sent(trio.current_time(), 3, [VERA]))

    trio.run(main)
    return host.came


def test_a_large_update_goes_ahead_of_its_commit_and_a_small_one_with_it(tmp_path):
    large = bytes(range(256)) * 513
    assert len(large) > INLINE_UPDATE_BYTES

    *pieces, last = submitted(tmp_path / "large", large)
    assert b"".join(pieces) == large and last == "submit"
    assert submitted(tmp_path / "small", b"small") == ["submit"]


def test_an_update_that_is_damaged_on_our_disk_is_not_pushed_and_ends_nothing(tmp_path, caplog):
    assert submitted(tmp_path, bytes(INLINE_UPDATE_BYTES + 1), is_damaged=True) == ["submit"]
    assert "update not pushed" in caplog.text


@pytest.mark.parametrize(
    ("receipts", "waits_s", "held_by"),
    [
        ({}, HELD_S + FIRST_HAND, ()),
        ({VERA: 1.0}, 1.5, (VERA,)),
        ({VERA: 0.1}, 0.1 + NEXT_S, (VERA,)),
        ({VERA: 1.0, VITO: 1.4}, 1.4, (VERA, VITO)),
        ({VITO: 1.0, VERA: 1.6}, 1.5, (VITO,)),
        ({VERA: HELD_S + FIRST_HAND - 0.1}, HELD_S + FIRST_HAND, (VERA,)),
        ({peer("viktor"): 1.0}, HELD_S + FIRST_HAND, ()),
    ],
)
def test_the_first_to_hold_an_update_is_waited_for_and_the_second_half_as_long_again(
    receipts, waits_s, held_by
):
    async def main() -> None:
        sent = Sent(trio.current_time(), 3, [VERA, VITO])

        async def acknowledge() -> None:
            for verifier, at_s in receipts.items():
                await trio.sleep_until(sent.at_s + at_s)
                sent.acknowledged(verifier)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge)
            await sent.held(HELD_BYTES_PER_S)
            assert trio.current_time() - sent.at_s == pytest.approx(waits_s)
            assert sent.held_by == held_by
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_each_round_draws_two_verifiers_and_those_that_are_connected_before_others():
    verifiers = [peer(name) for name in ("vera", "vito", "viktor", "vlad")]
    drawn = {tuple(first_hand(verifiers, verifiers)) for _ in range(400)}
    assert len(drawn) == 12 and all(len({*pair}) == 2 for pair in drawn)
    assert all({*first_hand(verifiers, (VERA, VITO))} == {VERA, VITO} for _ in range(100))
    assert first_hand([VERA], ()) == [VERA]


ROUND = 7  # of the run's next manifest


class Steps:
    """A node's files of one step, of which some are gone until its trainer repeats it."""

    def __init__(self, blobs: DiskBlobs, *, can_repeat: bool = True) -> None:
        self.blobs, self.can_repeat, self.is_whole, self.repeated = blobs, can_repeat, False, 0
        self.me = SimpleNamespace(blobs=blobs, me=NORA)
        self.state_sync = SimpleNamespace(child=self, reach=self.reach)
        self.follower = SimpleNamespace(run_state=SimpleNamespace(round=ROUND))
        self.at = 0  # the worker's round
        self.tasks = SimpleNamespace(counts_from=lambda _run_state: 0)
        self._opened: dict[Any, OpeningNotice] = {}
        self._locks, self._repeats = defaultdict[RoundId, trio.Lock](trio.Lock), Counter[RoundId]()
        self.steps = self

    async def reach(self, round_id: int) -> None:
        self.at = round_id

    async def call(self, request: RepeatStep, _answer: Any) -> Any:
        assert self.at == ROUND  # one that has just started has the parameters of no round
        self.repeated += 1
        if not self.can_repeat:
            raise Diverged("the state before is gone, too")
        self.is_whole = True
        return SimpleNamespace(update=b"update")

    async def _shown(self, _audit: Any) -> bytes:
        self.sketch_openings()
        return b"an opening"

    def sketch_openings(self, *_: Any) -> None:
        if not self.is_whole:
            raise Diverged("the step is gone")

    def _sketch(self, _audit: Any) -> None:
        self.sketch_openings()

    _repeat, opening = Openings._repeat, Openings.opening


def an_audit() -> Any:
    commit = a_signed_commit("nora", a_history()).commit
    return SimpleNamespace(round=commit.round, node=NORA, commit=commit, segment=0)


@pytest.mark.parametrize("how", ["opening", "sketch"])
def test_a_step_that_the_disk_lost_is_repeated_once_and_opened(tmp_path: Path, how: str):
    node = Steps(DiskBlobs(tmp_path, bytes_max=1 << 20))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):  # verifiers
                if how == "opening":
                    nursery.start_soon(Openings.opening, node, an_audit())
                else:
                    nursery.start_soon(Openings._mend, node, an_audit())

    trio.run(main)
    assert (node.is_whole, node.repeated) == (True, 1)


def test_a_step_that_cannot_be_repeated_is_tried_once(tmp_path: Path):
    node = Steps(DiskBlobs(tmp_path, bytes_max=1 << 20), can_repeat=False)
    for _ in range(3):
        with pytest.raises(Diverged):
            trio.run(Openings.opening, node, an_audit())
        trio.run(Openings._mend, node, an_audit())
    assert node.repeated == 1


@pytest.mark.parametrize("room", [0, 1 << 20], ids=["full disk", "room"])
def test_an_update_that_our_disk_lost_is_fetched_from_others(tmp_path: Path, room: int):
    """An old step cannot be repeated any more: its parameters are gone."""
    blobs, fetched = DiskBlobs(tmp_path, bytes_max=room), list[Digest]()

    async def fetch(name: Digest) -> bytes:
        fetched.append(name)
        return b"update"

    node: Any = SimpleNamespace(me=SimpleNamespace(blobs=blobs), _fetch=fetch)
    name = blob_digest(b"update")
    for _ in range(2):
        assert trio.run(Openings._own, node, name) == b"update"
    assert fetched == [name] * (1 if room else 2)


def test_an_opening_that_was_found_damaged_is_made_again_though_no_manifest_comes(tmp_path: Path):
    blobs, audit = DiskBlobs(tmp_path, bytes_max=1 << 20), an_audit()
    audit.has_ended = False
    node: Any = Steps(blobs)
    node.is_whole = True
    notice = trio.run(Openings.opening, node, audit)
    assert trio.run(Openings.opening, node, audit) == notice

    async def grown(_round: int) -> None:  # the next manifest waits for the opening
        await trio.sleep_forever()

    run_state = SimpleNamespace(round=3, audits={(audit.round, NORA): audit}, holders=())
    node.follower = SimpleNamespace(run_state=run_state, grown=grown)
    node._due_messages = lambda *_: ()
    for name in ("_reopen", "_reopen_damaged"):
        setattr(node, name, partial(getattr(Openings, name), node))

    async def main() -> None:
        with trio.move_on_after(LOOK_S + 1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Openings.run, node)
                await trio.sleep(0.5)
                blobs.discard_damaged(notice.opening)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert blobs.load(notice.opening) == b"an opening"


def test_a_full_disk_does_not_have_a_step_repeated_again_and_again(tmp_path: Path):
    node = Steps(DiskBlobs(tmp_path / "a", bytes_max=0))
    node.is_whole = True
    with pytest.raises(Unavailable, match="does not fit"):
        trio.run(Openings.opening, node, an_audit())
    assert node.repeated == 0

    node.is_whole = False
    for _ in range(10):
        with pytest.raises(Unavailable, match="does not fit"):
            trio.run(Openings.opening, node, an_audit())
        node.is_whole = False
        if node.repeated == REPEATS_MAX:
            break
    with pytest.raises(Diverged):
        trio.run(Openings.opening, node, an_audit())
    assert node.repeated == REPEATS_MAX
