"""A seat is handed over between real drivers, which share a clock; what they send is decoded and checked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, trio_test

from assay.protocol import rotation, state_transition
from assay.protocol.agreement.configurations import number_of
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, Unavailable
from assay.protocol.messages import (
    CertifiedManifest,
    ManifestRange,
    Proposal,
    QuorumCertificate,
    SignedBlock,
    SignedSeatNotice,
    SignedVote,
    StepRequest,
)
from assay.testing.members import name_of, peer
from assay.testing.signed import NODES, VERIFIERS, a_member
from assay.verifier.service.standby import RESIGN, Standby
from tests.verifier.service.a_driver import SPEC, Running, a_real_commit, an_update, running

pytestmark = pytest.mark.slow

RESERVE, SEAT = "rita", VERIFIERS[1]
ROTATING = replace(SPEC, rounds=240, reserves=(a_member(RESERVE),))
TICK_S = 0.25


@dataclass
class Town:
    """Verifiers and a reserve, by name. Who is in `dead` neither sends nor hears anything."""

    folder: Path
    members: dict[str, Running]
    nursery: trio.Nursery
    dead: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    sent: list[tuple[str, Any]] = field(default_factory=list)

    def post(self, sender: str, to: str, message: Any) -> None:
        if self.dead & {sender, to} or to not in self.members:
            return
        driver = self.members[to].driver
        try:
            if isinstance(message, SignedVote | SignedBlock | Proposal | QuorumCertificate):
                driver.receive(message)
            else:
                driver.take(message)
        except AssayError as error:
            self.refused.append(f"{sender} to {to}: {type(message).__name__}: {error}")

    def answers(self, name: str) -> Any:
        async def answer(method: str, body: bytes) -> bytes:
            if name in self.dead or method != "links":
                raise Unavailable(method)
            source = next(one for other, one in self.members.items() if other not in (name, *self.dead))
            first = int(decode(StepRequest, body).number)
            return encode(ManifestRange(links=tuple(source.me.store.links(first, 8))))

        return answer

    def connect(self, name: str) -> None:
        """Deliver what this member posts, and let it say that it is ready if it is a reserve."""
        one = self.members[name]
        one.host.posted = Posts(self, name)  # type: ignore[assignment]
        one.host.answer = self.answers(name)
        standby = Standby(
            one.me,
            one.follower,
            opened=lambda: one.driver.round.run_state.round,
            resigns=(self.folder / name / RESIGN).exists,
            broadcast=broadcasting(one),
        )
        self.nursery.start_soon(standby.run)

    @asynccontextmanager
    async def restarted(self, folder: Path, name: str) -> AsyncIterator[None]:
        """The member's process ended without a word, and another goes on from its store."""
        async with running(folder / name, name, spec=ROTATING) as again:
            self.members[name] = again
            self.connect(name)
            yield

    def resign(self, name: str) -> None:
        """The member's operator asks it to give up its seat."""
        (self.folder / name / RESIGN).touch()

    async def tick(self) -> None:
        for name, one in self.members.items():
            run_state = one.driver.round.run_state
            if name not in self.dead:
                for node in NODES:
                    if peer(node) in run_state.active and peer(node) not in one.driver.round.commits:
                        body = an_update(node, run_state)
                        if one.me.blobs.size(blob_digest(body)) is None:
                            one.me.blobs.put(body)
                        one.driver.take(a_real_commit(node, run_state))
                one.driver.tick()
        await trio.sleep(TICK_S)

    def round(self, name: str = RESERVE) -> int:
        return int(self.members[name].follower.run_state.round)

    async def until(self, reached: Any, ticks: int = 400) -> None:
        for _ in range(ticks):
            if reached():
                return
            await self.tick()
        rounds = {name: self.round(name) for name in self.members}
        raise AssertionError(f"not reached in {ticks} ticks: {rounds}, {self.refused[-3:]}")


@asynccontextmanager
async def a_town(folder: Path) -> AsyncIterator[Town]:
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        for name in (*VERIFIERS, RESERVE):
            (folder / name).mkdir()
        members = {
            name: await stack.enter_async_context(running(folder / name, name, spec=ROTATING))
            for name in (*VERIFIERS, RESERVE)
        }
        town = Town(folder, members, nursery)
        for name in members:
            town.connect(name)
        yield town
        nursery.cancel_scope.cancel()


def broadcasting(one: Running) -> Any:
    def broadcast(signed: SignedSeatNotice) -> None:
        one.driver.take(signed)
        one.driver.broadcast(encode(signed))

    return broadcast


class Posts(list):  # type: ignore[type-arg]
    """What a host posts is delivered; messages of one sender to one receiver in order."""

    def __init__(self, town: Town, name: str) -> None:
        super().__init__()
        self.town, self.name = town, name

    def append(self, posted: Any) -> None:
        to, message = posted
        self.town.sent.append((self.name, message))
        self.town.nursery.start_soon(self._deliver, name_of(to), message)

    async def _deliver(self, to: str, message: Any) -> None:
        self.town.post(self.name, to, message)


@pytest.fixture
def clock() -> MockClock:
    """Time passes at once where nothing is left to do, and threads have had a moment."""
    return MockClock(autojump_threshold=0.02)


def configuration(town: Town, name: str) -> int:
    return town.members[name].follower.run_state.rotation.configuration.number


def links(town: Town, name: str = RESERVE) -> list[CertifiedManifest]:
    return list(town.members[name].me.store.links())


def is_one_chain(town: Town) -> bool:
    """Whether all have the same manifests, as far as they have any."""
    chains = [[one.block.manifest for one in links(town, name)] for name in town.members]
    return all(one[: len(other)] == other[: len(one)] for one in chains for other in chains)


def works(town: Town) -> bool:
    """Whether the new holder votes, gives beacon shares and leads, in the name of its seat."""
    after = [one for one in links(town) if number_of(one.block.iteration) == 1]
    shares = {share.verifier for link in after for share in link.manifest.beacon_shares}
    leaders = {ROTATING.verifier_peers[int(one.block.iteration) % 4] for one in after}
    signers = {seat for one in after for seat in one.certificate.verifiers}
    return peer(SEAT) in signers & shares & leaders


@trio_test
async def test_a_holder_that_resigns_is_replaced_and_the_run_goes_on_with_the_reserve(tmp_path, clock):
    async with a_town(tmp_path) as town:
        await town.until(lambda: town.round() >= 3)
        town.resign(SEAT)
        asked = trio.current_time()
        await town.until(lambda: (SEAT, SignedSeatNotice) in [(name, type(one)) for name, one in town.sent])
        assert trio.current_time() - asked < 1.5  # a run of short rounds may be over soon
        await town.until(lambda: all(configuration(town, name) for name in town.members))
        town.dead.add(SEAT)
        await town.until(lambda: works(town))
        assert is_one_chain(town)


@trio_test
async def test_the_former_holder_follows_the_run_and_signs_nothing_more(tmp_path, clock):
    async with a_town(tmp_path) as town:
        await town.until(lambda: town.round() >= 3)
        town.resign(SEAT)
        await town.until(lambda: works(town))
        await town.until(lambda: town.round(SEAT) >= town.round() - 1)
        town.sent.clear()
        begun = town.round(SEAT)
        await town.until(lambda: town.round(SEAT) >= begun + 4)
        signed = [one for name, one in town.sent if name == SEAT and not isinstance(one, QuorumCertificate)]
        assert signed == [] and is_one_chain(town)


@trio_test
async def test_a_reserve_that_restarts_after_the_hand_over_goes_on_in_its_seat(tmp_path, clock):
    async with a_town(tmp_path) as town:
        await town.until(lambda: town.round() >= 3)
        town.resign(SEAT)
        await town.until(lambda: all(configuration(town, name) for name in town.members))
        town.dead.add(SEAT)
        before = town.round()
        async with town.restarted(tmp_path, RESERVE):
            await town.until(lambda: works(town) and town.round() >= before + 6)
            assert is_one_chain(town)


@trio_test
async def test_a_dead_holder_is_replaced_and_the_run_goes_on(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(rotation, "ABSENCE_ROUNDS", 12)
    monkeypatch.setattr(state_transition, "BEACON_PAUSE", 4)
    async with a_town(tmp_path) as town:
        await town.until(lambda: town.round() >= 2)
        town.dead.add(SEAT)
        alive = [name for name in town.members if name != SEAT]
        await town.until(lambda: all(configuration(town, name) for name in alive), 1600)
        await town.until(lambda: works(town))
        assert is_one_chain(town)
