"""More verifiers than are tolerated vanish for good, and another committee trains the rest of the run.

Both networks are production processes in one thread. Of the stopped run nobody is asked: one disk is read.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from assay.bundle.read import Delivered, Held, extended
from assay.bundle.successor import Stop, stop_of, successor_spec, write_start
from assay.participant.store import Store
from assay.protocol.encoding.codec import encode
from assay.protocol.params import RunSpec
from assay.protocol.run_state import start
from assay.testing.members import RUN_ID, a_deployment, a_member, peers
from assay.training.model.initial import state_digest
from tests.simulation.one_thread import BEGUN_S
from tests.simulation.test_rounds import CALM
from tests.simulation.whole_network import Process, WholeNetwork, simulate

pytestmark = pytest.mark.slow

ROUNDS, BEFORE = 6, 3
QUIET_S = 20.0  # of virtual time, in which four leaders are late


class Stopping(WholeNetwork):
    """A network of which two of four verifiers are never seen again."""

    copies: dict[str, Delivered]
    stop: Stop
    late: int  # rounds of training in the end, where those that vanished come back after all

    async def main(self) -> None:
        """Let two vanish, wait, and read what each of the others has on disk."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.network.run)
            alive = [*self.processes.values()]
            scopes = {one.peer: trio.CancelScope() for one in alive}
            for one in alive:
                self._nursery.start_soon(self._until, scopes[one.peer], one)
            while alive[0].run_state is None or alive[0].run_state.round < BEFORE:
                await trio.sleep(0.1)
            gone = [one for one in alive if one.is_verifier][1:3]
            for one in gone:
                scopes[one.peer].cancel()
                alive.remove(one)
            await trio.sleep(QUIET_S)
            before = self._rounds(alive)
            self.contracts.cancelled_s = BEGUN_S + trio.current_time()
            await trio.sleep(QUIET_S)
            assert self._rounds(alive) == before  # nothing is certified any more, not even the close
            self.copies = {one.name: self._copy(one) for one in alive}
            self.stop = stop_of([*self.copies.values()])
            for one in gone:
                one.has_ended, one.kills = False, 1
                self._nursery.start_soon(self._live, one)
            with trio.fail_after(15 * QUIET_S):
                while (ended := gone[0].run_state) is None or ended.training_rounds == ROUNDS:
                    await trio.sleep(0.1)
            self.late = int(ended.training_rounds)
            self._nursery.cancel_scope.cancel()

    async def _until(self, vanished: trio.CancelScope, one: Process) -> None:
        with vanished:
            await self._live(one)

    def _rounds(self, alive: list[Process]) -> list[int]:
        return [int(one.run_state.round) for one in alive if one.run_state is not None]

    def _copy(self, one: Process) -> Delivered:
        """What is on this process's disk, each manifest checked."""
        store = Store(one.folder / "store.db")
        links, run_states = [], [start(self.spec, RUN_ID)]
        for link in store.links():
            found, run_state = extended(run_states[-1], one.name, encode(link), "the run file")
            links.append(found)
            run_states.append(run_state)
        store.close()
        return Delivered(
            root=one.folder, bundle=one.folder, spec=self.spec, run_id=RUN_ID, deployment=a_deployment(),
            links=tuple(links), run_states=tuple(run_states), tables={}, settled={}, sizes={}, report=None,
            is_followed=True,
            held=Held(
                store=one.folder / "store.db", blobs=one.folder / "blobs", data=self.folder / "data",
                limits=None,
            ),
        )  # fmt: skip


class Continuing(WholeNetwork):
    """The network of a stop's successor: the nodes, the verifiers that are left, and two new ones."""

    stop: Stop

    def the_spec(self) -> RunSpec:
        """The successor's."""
        spec = self.stop.spec
        members = [*spec.verifiers[:1], *spec.verifiers[3:], *map(a_member, peers("spare", 2))]
        return successor_spec(
            self.stop, deployment_id=spec.deployment_id, buyer=spec.buyer, treasury=spec.money.treasury,
            nodes=spec.nodes, verifiers=members, now_s=BEGUN_S,
        )  # fmt: skip

    async def main(self) -> None:
        """Hand out the start, and run to the end."""
        write_start(self.stop, self.folder / "data")
        await super().main()


@pytest.fixture(scope="module")
def stopped() -> Stopping:
    return simulate(1, replace(CALM, rounds=ROUNDS), network=Stopping)


def test_what_was_certified_is_on_every_disk_that_is_left(stopped: Stopping):
    assert BEFORE - 1 <= stopped.stop.round < ROUNDS - 1
    assert {len(copy.links) for copy in stopped.copies.values()} == {stopped.stop.round + 1}


def test_a_run_that_is_closed_is_not_trained_on_by_those_that_come_back(stopped: Stopping):
    assert stopped.late - (stopped.stop.round + 1) <= 2  # what is under way when they read that it closes


def test_another_committee_trains_what_is_left_audits_and_pays(stopped: Stopping):
    stop = stopped.stop
    world = simulate(
        2, replace(CALM, rounds=stop.rounds_left), network=type("Next", (Continuing,), {"stop": stop})
    )
    links = world.promises.chain
    trained = [len(link.manifest.commits) for link in links.values()]
    assert trained[: stop.rounds_left] == [4] * stop.rounds_left and not any(trained[stop.rounds_left :])
    begun = {signed.commit.state for signed in links[0].manifest.commits}
    assert begun == {state_digest(stop.theta_P)}
    assert all(posted.is_final for posted in world.contracts.results.values())
