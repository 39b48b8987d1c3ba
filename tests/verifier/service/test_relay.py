"""First hand: two verifiers get a large update from its node, and all come to hold it, though these lie."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
import trio

from assay.network.host import open_host
from assay.node.service import HELD_BYTES_PER_S, HELD_S
from assay.node.service import Service as Node
from assay.participant.pushes import Pushes
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode
from assay.protocol.messages import FIRST_HAND, INLINE_UPDATE_BYTES, BlobPiece, Submission
from assay.protocol.types import PeerId, RoundId
from assay.testing.members import RUN_ID, a_peer_key, peer
from assay.testing.signed import VERIFIERS, a_history, a_spec
from assay.testing.specs import a_model
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
from assay.verifier.service.process import Service
from assay.verifier.service.relay import AT_ONCE, RELAY_S, Relay
from tests.simulation.one_thread import one_thread, run
from tests.simulation.streams import BLOB, Frame, Network, open_simulated_host
from tests.verifier.service import a_driver
from tests.verifier.service.a_driver import Running, a_participant, a_real_commit, an_update, running

NORA = peer("nora")
FIRST = [peer(name) for name in VERIFIERS[:FIRST_HAND]]
REST = [peer(name) for name in VERIFIERS[FIRST_HAND:]]
SPEC = a_spec(model=a_model(width=1152))
ON_THE_WAY_S = 0.5  # for the messages of a submission, beside what is waited for
Lie = Callable[[Frame], tuple[Frame, ...]]


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose updates do not fit beside a commit, and the same two to get one first."""
    layout = layout_of(SPEC.model)
    rules = replace(
        a_driver.RULES, zero_momentum=zero_root(RUN_ID, SPEC.rule, layout.blocks), block_count=layout.blocks
    )
    made = cache(lambda name, _round: an_update(name, a_history(model=SPEC.model)))
    faked = {
        "SPEC": SPEC,
        "LAYOUT": layout,
        "RULES": rules,
        "an_update": lambda name, at: made(name, at.round),
    }
    for name, value in faked.items():
        monkeypatch.setattr(a_driver, name, value)
    monkeypatch.setattr("assay.node.service.first_hand", lambda *_given: FIRST)


@dataclass(eq=False)
class Committee:
    """Four verifiers and a node, what each of these sent of blobs, and who was asked for one."""

    lies: dict[PeerId, Lie] = field(default_factory=dict)
    verifiers: dict[PeerId, Running] = field(default_factory=dict)
    hosts: dict[PeerId, Any] = field(default_factory=dict)
    blob_bytes: Counter[PeerId] = field(default_factory=Counter)
    asked: Counter[tuple[PeerId, PeerId]] = field(default_factory=Counter)
    node: Any = None
    update: bytes = b""

    def sent(self, frame: Frame) -> tuple[Frame, ...]:
        """What travels of a frame."""
        if not frame.method and BlobPiece.TAG in frame.body[:64]:
            self.blob_bytes[frame.source] += len(decode(BlobPiece, frame.body).piece)
        if frame.method == BLOB and frame.answers:
            self.blob_bytes[frame.source] += len(frame.body)
        if frame.method == BLOB and not frame.answers:
            self.asked[frame.source, frame.target] += 1
        return self.lies.get(frame.source, lambda one: (one,))(frame)

    @property
    def holders(self) -> set[PeerId]:
        """Who has the commit of the node, and so its update."""
        return {one for one, verifier in self.verifiers.items() if NORA in verifier.driver.round.commits}

    @property
    def submission(self) -> Submission:
        """The node's."""
        signed = a_real_commit("nora", self.node.follower.run_state)
        return Submission(signed=signed, update=b"")

    async def held(self, *verifiers: PeerId, within_s: float) -> None:
        """Return once these hold the update.

        Raises:
            trio.TooSlowError: they do not in time.
        """
        with trio.fail_after(within_s):
            while not {*verifiers} <= self.holders:
                await trio.sleep(0.01)


@asynccontextmanager
async def a_committee(folder: Path, *, is_real: bool = False, **lies: Lie) -> AsyncIterator[Committee]:
    """A committee that is connected; the frames of the verifiers named are as their lies have them.

    Its hosts are simulated, on a simulated network, or real ones that talk over sockets.
    """
    one = Committee({peer(name): lie for name, lie in lies.items()})
    for name in ("nora", *VERIFIERS):
        (folder / name).mkdir()
    network, ever = Network(random.Random(0), one.sent), a_participant(folder / "nora", "nora", SPEC)
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        for name in VERIFIERS:
            verifier = await stack.enter_async_context(running(folder / name, name, spec=SPEC))
            one.update = a_driver.an_update("nora", verifier.follower.run_state)
            verifier.me.blobs.remove(blob_digest(one.update))
            service: Any = Service.__new__(Service)
            service.me, service.driver, service.follower = verifier.me, verifier.driver, verifier.follower
            service.layout, service.pushes = a_driver.LAYOUT, Pushes(1 << 20)
            service._submitting, service.relay = WeakValueDictionary(), Relay(SPEC.seat_peers, 1 << 20)
            service._host = await stack.enter_async_context(
                a_host(None if is_real else network, name, verifier.me.blobs, submit=service._on_submit)
            )
            nursery.start_soon(take_pieces, service._host, service.pushes)
            one.verifiers[peer(name)], one.hosts[peer(name)] = verifier, service._host
        one.node = Node.__new__(Node)
        one.node.me, one.node._sending_s = ever, 0.0
        one.node.follower = verifier.follower
        one.node._host = await stack.enter_async_context(
            a_host(None if is_real else network, "nora", ever.blobs)
        )
        ever.blobs.put(one.update)
        nursery.start_soon(network.run)
        hosts = [one.node._host, *one.hosts.values()]
        if is_real:
            for host in hosts:
                nursery.start_soon(host.keep_connected, [other.address for other in hosts])
        with trio.fail_after(30):
            while any(len(host.connected()) < len(hosts) - 1 for host in hosts):
                await trio.sleep(0.1)
        yield one
        nursery.cancel_scope.cancel()


def a_host(network: Network | None, name: str, blobs: Any, **handlers: Any) -> Any:
    given: dict[str, Any] = {
        "seed": bytes(a_peer_key(name)), "is_member": lambda _: True, "handlers": handlers, "blobs": blobs,
    }  # fmt: skip
    if network is None:
        return open_host(listen_port=0, network_id="first hand", **given)
    return open_simulated_host(network, **given)


async def take_pieces(host: Any, pushes: Pushes) -> None:
    async for notification in host.notifications:
        pushes.take(notification.peer, decode(BlobPiece, notification.payload))


def handed_in(folder: Path, *, within_s: float, by: list[PeerId], **lies: Lie) -> Committee:
    """The committee after a node has handed its commit in, once these verifiers hold it."""

    async def main() -> Committee:
        async with a_committee(folder, **lies) as one:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.node._hand_in, SPEC.verifier_peers, one.submission)
                await one.held(*by, within_s=within_s)
                nursery.cancel_scope.cancel()
            assert not one.node.me.store.values("refusal/")
        return one

    return simulated(main)


def simulated(main: Callable[[], Awaitable[Any]]) -> Any:
    with one_thread(0):
        return run(main)


def silent(frame: Frame) -> tuple[Frame, ...]:
    """Says nothing."""
    return ()


def hoards(frame: Frame) -> tuple[Frame, ...]:
    """Acknowledges updates, and serves nobody."""
    return () if frame.method == BLOB and frame.answers else (frame,)


def falsifies(frame: Frame) -> tuple[Frame, ...]:
    """Acknowledges updates, and serves other bytes."""
    return (
        (replace(frame, body=bytes(len(frame.body))),) if frame.method == BLOB and frame.answers else (frame,)
    )


def test_a_node_sends_two_copies_of_a_large_update_and_four_verifiers_hold_it(tmp_path: Path) -> None:
    one = handed_in(tmp_path, within_s=ON_THE_WAY_S, by=[*FIRST, *REST])

    assert len(one.update) > INLINE_UPDATE_BYTES
    assert one.blob_bytes[NORA] == 2 * len(one.update)
    assert sum(one.blob_bytes[verifier] for verifier in FIRST) == 2 * len(one.update)


def test_a_verifier_that_acknowledges_an_update_and_serves_nobody_costs_no_copy(tmp_path: Path) -> None:
    """The node waited for the receipt of the other that it sent the update to."""
    one = handed_in(tmp_path, within_s=15, by=[*FIRST, *REST], **{VERIFIERS[0]: falsifies})

    assert one.blob_bytes[NORA] == 2 * len(one.update)


@pytest.mark.parametrize("lie", [silent, hoards, falsifies])
def test_if_both_that_got_the_update_lie_the_others_have_it_from_the_node(tmp_path: Path, lie: Lie) -> None:
    size_s = 300_000 / HELD_BYTES_PER_S
    limit_s = HELD_S + FIRST_HAND * size_s if lie is silent else RELAY_S + size_s

    one = handed_in(tmp_path, within_s=limit_s + 1, by=REST, **dict.fromkeys(VERIFIERS[:FIRST_HAND], lie))

    assert one.blob_bytes[NORA] == 4 * len(one.update)


def test_a_node_that_names_who_has_nothing_makes_a_verifier_ask_each_once_a_round(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_committee(tmp_path) as one:
            named = replace(one.submission, held_by=tuple(FIRST))
            relay, host = Relay(SPEC.seat_peers, 1 << 20), one.hosts[REST[0]]
            for _ in range(5):
                assert await relay.update(host, named.signed.commit, named.held_by) is None
            assert [one.asked[host.peer, verifier] for verifier in FIRST] == [1, 1]

    simulated(main)


def test_what_a_nodes_host_writes_to_its_sockets_is_two_copies(tmp_path: Path) -> None:
    async def main() -> tuple[int, int]:
        async with a_committee(tmp_path, is_real=True) as one:
            async with trio.open_nursery() as nursery:
                before = one.node._host.traffic().sent
                nursery.start_soon(one.node._hand_in, SPEC.verifier_peers, one.submission)
                await one.held(*FIRST, *REST, within_s=60)
                nursery.cancel_scope.cancel()
            return one.node._host.traffic().sent - before, len(one.update)

    sent, size = trio.run(main)
    assert 2 * size < sent < 2.05 * size


def test_four_nodes_whose_friend_lets_them_wait_take_all_places_once_and_not_in_each_round(
    tmp_path: Path,
) -> None:
    async def main() -> list[float]:
        took = []
        async with a_committee(tmp_path, **{VERIFIERS[0]: hoards}) as one:
            asking = one.hosts[REST[0]]
            relay = Relay(SPEC.seat_peers, 1 << 20)
            commit = one.submission.signed.commit
            for number in (0, 1):
                async with trio.open_nursery() as nursery:
                    for liar in range(AT_ONCE):
                        said = replace(commit, node=PeerId(bytes([liar]) * 32), round=RoundId(number))
                        nursery.start_soon(relay.update, asking, said, FIRST[:1])
                    await trio.sleep(0.01)
                    began_s = trio.current_time()
                    one.verifiers[FIRST[1]].me.blobs.put(one.update)
                    honest = replace(commit, round=RoundId(number))
                    found = await relay.update(asking, honest, FIRST[1:])
                    took.append(trio.current_time() - began_s)
            assert found == one.update
        return took

    first_s, second_s = simulated(main)
    assert first_s > RELAY_S / 2 and second_s < ON_THE_WAY_S
