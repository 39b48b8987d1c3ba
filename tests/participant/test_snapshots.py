"""Snapshots over loopback: what verifiers serve newcomers find, if a manifest certifies its round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from assay.network.blob_store import DiskBlobs
from assay.participant.follower import BLOB_BYTES_MAX
from assay.participant.following.snapshots import SnapshotFinder, SnapshotOffer, SnapshotServer
from assay.participant.following.sync import certified_state
from assay.participant.store import Store
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import Unavailable
from assay.protocol.run_state import start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.signed import NODES, a_chain, a_spec
from assay.training.optimiser.public_state import PublicState, checkpoints, snapshot_bytes_max
from tests.network.loopback import a_host, connected, run
from tests.participant.test_sync import an_aggregate

pytestmark = pytest.mark.slow
SPEC, KEEP, ROUNDS = a_spec(), 2, 6
AGGREGATE = an_aggregate()


def a_server(folder: Path, rounds: int = ROUNDS) -> SnapshotServer:
    """Of a verifier whose worker has gone through so many rounds, without aggregates."""
    parameters = PublicState(SPEC, folder / "theta", KEEP)
    while parameters.round < rounds:
        parameters.apply(parameters.round, AGGREGATE)
    blobs = DiskBlobs(folder / "blobs", bytes_max=1 << 24)
    return SnapshotServer(folder / "theta", blobs, Store(folder / "store.db"))


def a_store(folder: Path, rounds: int = ROUNDS) -> Store:
    """The newcomer's chain of manifests."""
    store, run_state = Store(folder / "newcomer.db"), start(SPEC, RUN_ID)
    for _ in range(rounds):
        (link,) = a_chain(run_state, 1, NODES)
        store.add_link(link)
        run_state = advance(run_state, link.manifest)
    return store


def offered(server: SnapshotServer) -> SnapshotOffer:
    return decode(SnapshotOffer, trio.run(server.answer, bytes(32), b""))


def test_the_newest_checkpoint_is_offered_also_after_a_restart_and_old_ones_are_let_go(tmp_path):
    empty = a_server(tmp_path, 0)
    assert offered(empty) == SnapshotOffer(round=0, blob=NO_DIGEST, size=0)

    seen = []
    for rounds in (2, 4, 6):
        server = a_server(tmp_path, rounds)  # each time a new process
        one = offered(server)
        assert one.round == rounds
        path = checkpoints(tmp_path / "theta")[rounds]
        assert server._blobs.load(one.blob) == path.read_bytes()
        assert server._blobs.size(one.blob) == one.size
        seen.append(one)
    assert server._blobs.size(seen[0].blob) is None
    assert server._blobs.size(seen[1].blob) is not None


def test_rounds_that_change_nothing_share_a_blob_that_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.participant.test_snapshots.AGGREGATE", b"")
    for rounds in (2, 4, 6):
        server = a_server(tmp_path, rounds)
        assert server._blobs.size(offered(server).blob) is not None


def test_what_an_older_round_shares_with_a_served_one_stays_when_a_newer_one_differs(tmp_path, monkeypatch):
    first, server = None, None
    for rounds, aggregate in ((2, b""), (4, b""), (6, AGGREGATE)):
        monkeypatch.setattr("tests.participant.test_snapshots.AGGREGATE", aggregate)
        server = a_server(tmp_path, rounds)
        first = first or offered(server).blob
        last = offered(server).blob
    assert first != last
    assert None not in (server._blobs.size(first), server._blobs.size(last))


def test_a_newcomer_finds_a_snapshot_of_a_round_that_its_chain_certifies_and_no_other(tmp_path):
    server, found = a_server(tmp_path), []
    store = a_store(tmp_path)
    link = next(iter(store.links(4, 1)))
    assert certified_state(link) is not None

    async def main() -> None:
        async with (
            a_host("vera", handlers={"snapshot": server.answer}, blobs=server._blobs) as vera,
            a_host("newcomer") as newcomer,
            connected(vera, newcomer),
        ):
            finder = SnapshotFinder(SPEC, store, tmp_path, [vera.peer], lambda: newcomer)
            found.append(await finder.find(0, ROUNDS))  # of round 6, whose manifest is not there
            found.append(await finder.find(0, 5))  # it is of a later round than asked for
            server._folder = SimpleNamespace(glob=lambda _: [tmp_path / "theta/public-00000004.safetensors"])
            found.append(await finder.find(4, ROUNDS))
            found.append(await finder.find(0, 3))
            found.append(await finder.find(3, 4))
            finder.refuse(found[-1])
            found.append(await finder.find(0, ROUNDS))

    run(main)
    assert found[:4] == [None] * 4 and found[5:] == [None]
    assert (found[4].round, found[4].state) == (4, certified_state(link))
    assert found[4].path.read_bytes() == checkpoints(tmp_path / "theta")[4].read_bytes()


@pytest.mark.parametrize(("too_large", "is_found"), [(0, True), (1, False)])
def test_a_snapshot_of_the_largest_size_is_found_and_none_above_it(
    tmp_path, monkeypatch, too_large, is_found
):
    server = a_server(tmp_path, 4)
    largest = offered(server).size - too_large
    monkeypatch.setattr("assay.participant.following.snapshots.snapshot_bytes_max", lambda _: largest)
    found = []

    async def main() -> None:
        async with (
            a_host("vera", handlers={"snapshot": server.answer}, blobs=server._blobs) as vera,
            a_host("newcomer") as newcomer,
            connected(vera, newcomer),
        ):
            finder = SnapshotFinder(SPEC, a_store(tmp_path), tmp_path, [vera.peer], lambda: newcomer)
            found.append(await finder.find(0, ROUNDS))

    run(main)
    assert (found[0] is not None) == is_found


class Servers:
    """A host whose peers each offer a snapshot of another round; it notes which is fetched.

    What is `made_up` never comes. Who is late answers after so many seconds.
    """

    def __init__(self, *rounds: int, size: int = 1) -> None:
        self.offers = {
            peer(f"vera {at}"): SnapshotOffer(round=RoundId(at), blob=a_digest(f"of {at}"), size=size)
            for at in rounds
        }
        self.fetched, self.made_up = list[Digest](), set[Digest]()
        self.late_s = dict[PeerId, float]()

    def connected(self) -> list[PeerId]:
        return list(self.offers)

    async def request(self, verifier: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        assert (method, body) == ("snapshot", b"") and timeout_s >= 60  # it is read from a disk first
        with trio.fail_after(timeout_s):
            await trio.sleep(self.late_s.get(verifier, 0))
        return encode(self.offers[verifier])

    async def fetch(
        self, name: Digest, *, holders: Sequence[PeerId], deadline_s: float, **_more: object
    ) -> bytes:
        self.fetched.append(name)
        if name in self.made_up:
            await trio.sleep(deadline_s)
            raise Unavailable("nobody has it")
        return b"a snapshot"


@pytest.mark.parametrize("rounds", [(2, 4), (4, 2)])
def test_of_several_offers_the_newest_round_is_fetched(tmp_path, rounds):
    servers = Servers(*rounds)
    finder = SnapshotFinder(SPEC, a_store(tmp_path), tmp_path, list(servers.offers), lambda: servers)

    found = trio.run(finder.find, 0, ROUNDS)

    assert (found.round, servers.fetched) == (4, [a_digest("of 4")])


@pytest.mark.parametrize("at", [2**63, 2**64 - 1])
def test_an_offer_of_a_round_that_no_store_holds_hides_no_other(tmp_path, at):
    servers = Servers(4, at)
    finder = SnapshotFinder(SPEC, a_store(tmp_path), tmp_path, list(servers.offers), lambda: servers)

    assert trio.run(finder.find, 0, ROUNDS).round == 4


def test_who_offered_a_false_snapshot_is_asked_for_no_other(tmp_path):
    """Else one verifier that lies keeps a newcomer fetching what it makes up, and from the true one."""
    servers = Servers(2, 4)
    finder = SnapshotFinder(SPEC, a_store(tmp_path), tmp_path, list(servers.offers), lambda: servers)
    finder.refuse(trio.run(finder.find, 0, ROUNDS))
    liar = peer("vera 4")
    servers.offers[liar] = replace(servers.offers[liar], blob=a_digest("another"))

    found = trio.run(finder.find, 0, ROUNDS)

    assert (found.round, found.holders) == (2, (peer("vera 2"),))
    finder.refuse(found)
    assert trio.run(finder.find, 0, ROUNDS) is None  # so that rounds are replayed


@pytest.mark.parametrize("others", [0, 2])
def test_one_that_offers_what_nobody_has_stops_no_newcomer(tmp_path, others):
    """Others offer the true one as well, and it comes first; or they have none."""
    servers, clock = Servers(2, 4), trio.testing.MockClock(autojump_threshold=0)
    servers.made_up = {a_digest("of 4")}
    none = SnapshotOffer(round=RoundId(0), blob=NO_DIGEST, size=0)
    true = servers.offers[peer("vera 2")]
    servers.offers |= {peer(f"other {at}"): true if at < others else none for at in range(2)}
    finder = SnapshotFinder(SPEC, a_store(tmp_path), tmp_path, list(servers.offers), lambda: servers)

    assert trio.run(finder.find, 0, ROUNDS, clock=clock).round == 2
    assert clock.current_time() < (1 if others else 60)

    assert trio.run(finder.find, 0, ROUNDS).round == 2
    assert servers.fetched.count(a_digest("of 4")) == (0 if others else 1)  # and the liar is asked no more


@pytest.mark.parametrize(("late_s", "round_id", "at_most_s"), [(3.0, 4, 4), (59.0, 2, 6)])
def test_a_third_that_keeps_silent_is_waited_for_a_little(tmp_path, late_s, round_id, at_most_s):
    servers, clock = Servers(1, 2, 3, 4), trio.testing.MockClock(autojump_threshold=0)
    servers.offers[peer("vera 1")] = servers.offers[peer("vera 2")]
    servers.offers[peer("vera 3")] = servers.offers[peer("vera 4")]
    servers.late_s = {peer("vera 4"): late_s}
    finder = SnapshotFinder(SPEC, a_store(tmp_path), tmp_path, list(servers.offers), lambda: servers)

    assert trio.run(finder.find, 0, ROUNDS, clock=clock).round == round_id
    assert clock.current_time() <= at_most_s


@pytest.mark.parametrize(("above", "is_found"), [(0, True), (1, False)])
def test_a_snapshot_also_holds_the_aggregates_that_wait_to_be_applied(tmp_path, above, is_found):
    spec = a_spec(rule=replace(SPEC.rule, apply_lag=2))
    size = snapshot_bytes_max(spec) + 2 * BLOB_BYTES_MAX + above
    servers = Servers(4, size=size)
    finder = SnapshotFinder(spec, a_store(tmp_path), tmp_path, list(servers.offers), lambda: servers)

    assert (trio.run(finder.find, 0, ROUNDS) is not None) == is_found
