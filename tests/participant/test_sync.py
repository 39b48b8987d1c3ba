"""A worker's parameters follow the chain, and can be rebuilt from it after anything."""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
import trio

from assay.network.blob_store import DiskBlobs
from assay.node.messages import TrainerStart
from assay.participant.compute import AtRound, GetRound, GetState, Reset, State, Workplace
from assay.participant.following import sync
from assay.participant.following.sync import Snapshot, StateSync
from assay.participant.pushes import Pushes
from assay.participant.store import Store
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.errors import Diverged, Unavailable
from assay.protocol.messages import BlobPiece
from assay.protocol.run_state import start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST
from assay.testing.members import RUN_ID, peer
from assay.testing.signed import NODES, STATE, a_chain, a_spec
from assay.testing.specs import a_data_folder
from assay.training.codec.wire import encode_aggregate
from assay.training.layout import layout_of
from assay.training.optimiser.public_state import PublicState, checkpoints
from tests.forked_commands import forked_workers
from tests.training.places import placed

pytestmark = pytest.mark.slow

SPEC = a_spec(state_every=100)  # so only commits of round 0 name parameters, and those are made up
ROUNDS = 5


def an_aggregate():
    """One that moves every parameter of the first block."""
    blocks = layout_of(SPEC.model).blocks
    return encode_aggregate(placed(blocks, np.array([0]), np.array([1]), np.array([16384])), blocks)


AGGREGATE = an_aggregate()


@pytest.fixture(autouse=True)
def _forked():
    with forked_workers():
        yield


@pytest.fixture
def disk(tmp_path):
    """A store with links of some rounds, the first without commits, and the data."""
    return a_disk(tmp_path, SPEC)


def a_disk(tmp_path, spec):
    a_data_folder(tmp_path / "data")
    store, run_state = Store(tmp_path / "store.db"), start(spec, RUN_ID)
    for number in range(ROUNDS):
        (link,) = a_chain(run_state, 1, NODES if number else (), blob_digest(AGGREGATE))
        store.add_link(link)
        run_state = advance(run_state, link.manifest)
    return tmp_path


def expected(round_id, tmp_path):
    """The digest of the parameters so many aggregates on, by the plain function."""
    parameters = PublicState(SPEC, tmp_path / f"plain-{round_id}", 100)
    digest = None
    for number in range(round_id):
        digest = parameters.apply(number, AGGREGATE if number else b"")
    return digest


@asynccontextmanager
async def a_state_sync(disk, fetched=None, folder="me", snapshots=None, pushes=None):
    """A pace on this disk; what it fetches is listed, and comes from a peer that has everything."""

    async def fetch(digest):
        if fetched is None:
            raise Unavailable("nobody is connected")
        fetched.append(digest)
        return AGGREGATE

    (disk / folder).mkdir(exist_ok=True)
    state_sync = StateSync(
        module="assay.node.trainer",
        start=TrainerStart(
            spec=SPEC, run_id=RUN_ID, node=peer("nora"), salt_key=NO_DIGEST, known_answers=(),
            workplace=Workplace(
                data=str(disk / "data"), folder=str(disk / folder), base="", device="cpu", threads=1
            ),
        ),
        log_path=disk / "worker.log",
        store=Store(disk / "store.db"),
        blobs=DiskBlobs(disk / folder / "blobs", bytes_max=1 << 20),
        fetch=fetch,
        snapshots=snapshots, pushes=pushes,
    )  # fmt: skip
    try:
        yield state_sync
    finally:
        await state_sync.child.close()


@pytest.mark.parametrize("is_true", [True, False])
def test_an_aggregate_that_was_pushed_is_not_fetched_unless_it_is_false(disk, is_true):
    fetched, name, pushes = [], blob_digest(AGGREGATE), Pushes(len(AGGREGATE))
    body = AGGREGATE if is_true else bytes(len(AGGREGATE))
    pushes.take(peer("vera"), BlobPiece(blob=name, size=len(body), offset=0, piece=body))

    async def main():
        async with a_state_sync(disk, fetched, pushes=pushes) as state_sync:
            assert await state_sync.aggregate(name) == AGGREGATE
            assert await state_sync.aggregate(name) == AGGREGATE  # kept

    trio.run(main)
    assert fetched == ([] if is_true else [name])


def test_two_who_want_an_aggregate_at_once_fetch_it_once(disk):
    fetched, name = [], blob_digest(AGGREGATE)

    async def main():
        async with (
            a_state_sync(disk, fetched, pushes=Pushes(1)) as state_sync,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(state_sync.aggregate, name)
            nursery.start_soon(state_sync.aggregate, name)

    trio.run(main)
    assert fetched == [name]


def test_an_aggregate_that_is_damaged_on_our_disk_is_fetched_again(disk):
    fetched, name = [], blob_digest(AGGREGATE)

    async def main():
        async with a_state_sync(disk, fetched) as state_sync:
            path = DiskBlobs(disk / "me" / "blobs", bytes_max=1 << 20).path(name)
            await state_sync.aggregate(name)
            path.write_bytes(bytes(len(AGGREGATE)))
            assert await state_sync.aggregate(name) == AGGREGATE == path.read_bytes()

    trio.run(main)
    assert fetched == [name, name]


def test_parameters_reach_a_round_from_certified_aggregates_alone(disk, tmp_path):
    fetched = []

    async def main():
        async with a_state_sync(disk, fetched) as state_sync:
            assert await state_sync.reach(3) == expected(3, tmp_path)
            assert await state_sync.reach(2) == expected(2, tmp_path)  # of a round that is behind us

    trio.run(main)
    assert fetched == [blob_digest(AGGREGATE)]  # kept after the first time


def test_a_round_that_the_chain_has_not_reached_is_refused_in_words(disk):
    async def main():
        async with a_state_sync(disk, []) as state_sync:
            with pytest.raises(Diverged, match=f"no link of round {ROUNDS}"):
                await state_sync.reach(ROUNDS + 1)

    trio.run(main)


def test_an_aggregate_that_nobody_brings_is_unavailable_and_can_come_later(disk, tmp_path):
    async def main():
        async with a_state_sync(disk) as state_sync:
            with pytest.raises(Unavailable, match="nobody is connected"):
                await state_sync.reach(2)
            state_sync._blobs.put(AGGREGATE)
            assert await state_sync.reach(2) == expected(2, tmp_path)

    trio.run(main)


def test_a_round_without_an_aggregate_asks_nobody(disk):
    async def main():
        async with a_state_sync(disk) as state_sync:
            assert await state_sync.aggregate(NO_DIGEST) == b""

    trio.run(main)


def test_a_worker_that_was_killed_is_replayed_to_the_same_parameters(disk, tmp_path):
    async def main():
        async with a_state_sync(disk, []) as state_sync:
            await state_sync.reach(2)
            process = state_sync.child._process
            assert process is not None
            process.send_signal(signal.SIGKILL)
            with trio.move_on_after(60):
                await process.wait()
            assert await state_sync.reach(4) == expected(4, tmp_path)
            assert (await state_sync.child.call(GetState(), State)).digest == expected(4, tmp_path)

    trio.run(main)


def test_a_process_that_starts_again_on_the_same_folder_goes_on(disk, tmp_path):
    async def main():
        async with a_state_sync(disk, []) as state_sync:
            await state_sync.reach(4)
        async with a_state_sync(disk) as state_sync:  # the blobs are here: nobody is asked
            assert await state_sync.reach(5) == expected(5, tmp_path)

    trio.run(main)


def test_parameters_that_a_quorum_contradicts_are_rebuilt_once_and_then_it_stops(tmp_path):
    """The chain says that everybody used other parameters in round 1 than anybody can compute."""
    disk = a_disk(tmp_path, a_spec(state_every=1))

    async def main():
        async with a_state_sync(disk, []) as state_sync:
            assert await state_sync.reach(1) == expected(1, tmp_path)
            asked, call = [], state_sync.child.call

            async def noted(request, answer):
                asked.append(type(request))
                return await call(request, answer)

            state_sync.child.call = noted
            with pytest.raises(Diverged, match="rebuilt or not"):
                await state_sync.reach(2)
            assert asked.count(Reset) == 1
            at = await state_sync.child.call(GetRound(), AtRound)
            assert at.round == 1  # rebuilt from zero, to the same end

    trio.run(main)


class Offers:
    """Snapshots that a peer offers, newest first; what was refused."""

    def __init__(self, *offered):
        self.offered, self.refused = list(offered), []

    async def find(self, after, until):
        return next((one for one in self.offered if after < one.round <= until), None)

    def refuse(self, snapshot):
        self.offered.remove(snapshot)
        self.refused.append(snapshot)


def a_snapshot(tmp_path, round_id, *, of=None):
    """A checkpoint of a round, offered as one of another if `of` says so."""
    folder = tmp_path / f"snapshot-{round_id}"
    parameters = PublicState(SPEC, folder, 1)
    for number in range(round_id):
        parameters.apply(number, AGGREGATE if number else b"")
    path = list(checkpoints(folder).values())[-1]
    at = of or round_id
    return Snapshot(round=at, path=path, state=expected(at, tmp_path), holders=())


def test_a_node_far_behind_starts_from_a_snapshot_and_replays_the_rest_only(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(sync, "REPLAYED_MAX", 1)
    spec = replace(SPEC, state_every=1)
    monkeypatch.setattr("tests.participant.test_sync.SPEC", spec)
    applied, false = [], a_snapshot(tmp_path, 2, of=4)
    offers = Offers(false, a_snapshot(tmp_path, 3))

    async def main():
        async with a_state_sync(disk, [], snapshots=offers) as state_sync:
            apply = state_sync._apply

            async def noted(round_id, aggregate):
                applied.append(round_id)
                await apply(round_id, aggregate)

            state_sync._apply = noted
            assert await state_sync.reach(5) == expected(5, tmp_path)

    trio.run(main)
    assert applied == [3, 4]
    assert offers.refused == [false]


@pytest.mark.parametrize(("far", "is_asked"), [(2, False), (3, True)])
def test_a_snapshot_is_asked_for_when_more_than_a_few_rounds_are_missing(
    disk, tmp_path, monkeypatch, far, is_asked
):
    monkeypatch.setattr(sync, "REPLAYED_MAX", 2)
    asked = []

    class Empty:
        async def find(self, after, until):
            asked.append((after, until))

    async def main():
        async with a_state_sync(disk, [], snapshots=Empty()) as state_sync:
            assert await state_sync.reach(far) == expected(far, tmp_path)

    trio.run(main)
    assert asked == [(0, far)] * is_asked


def test_which_round_is_the_newest_is_asked_once_the_worker_has_started(disk, tmp_path, monkeypatch):
    """It takes seconds: by then the newest snapshot may be of a later round than was the newest before."""
    monkeypatch.setattr(sync, "REPLAYED_MAX", 1)
    monkeypatch.setattr("tests.participant.test_sync.SPEC", replace(SPEC, state_every=1))
    offers, asked = Offers(a_snapshot(tmp_path, 3)), []

    async def main():
        async with a_state_sync(disk, [], snapshots=offers) as state_sync:

            def newest():
                asked.append(state_sync._at)
                return 4

            assert not state_sync.is_far(0)
            await state_sync.come_near(newest)
            assert not state_sync.is_far(4) and state_sync.is_far(5)
            assert (await state_sync.child.call(GetRound(), AtRound)).round == 3

    trio.run(main)
    assert asked and min(asked) == 0


def test_rounds_that_a_snapshot_saved_us_have_the_digests_that_their_manifests_certify(tmp_path, monkeypatch):
    """A verifier that went on from a snapshot signs the results of earlier epochs, too."""
    monkeypatch.setattr(sync, "REPLAYED_MAX", 1)
    spec = replace(SPEC, state_every=1)
    monkeypatch.setattr("tests.participant.test_sync.SPEC", spec)
    disk = a_disk(tmp_path, spec)

    async def main():
        async with a_state_sync(disk, [], snapshots=Offers(a_snapshot(tmp_path, ROUNDS))) as state_sync:
            assert await state_sync.reach(ROUNDS) == expected(ROUNDS, tmp_path)
            assert await state_sync.reach(2) == STATE
            with pytest.raises(Diverged, match="round 0 while at 5"):  # it has no commits
                await state_sync.reach(0)

    trio.run(main)
