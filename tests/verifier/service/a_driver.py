"""A driver and its surroundings in tests: everything is real but the network, the parameters and the clock.

Time is a `MockClock` that only the test moves. `settled` returns when nothing is left to do at this time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import trio
import trio.testing

from assay.network.blob_store import DiskBlobs
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.keys.high_water import HighWater
from assay.participant.keys.keyring import Keys
from assay.participant.store import Store
from assay.protocol.agreement.quorum import assemble
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode_any, digest
from assay.protocol.errors import Unavailable
from assay.protocol.identity import sign
from assay.protocol.messages import (
    MESSAGES,
    Block,
    Manifest,
    Proposal,
    QuorumCertificate,
    SignedCommit,
    SignedInclusionList,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState, next_chain
from assay.protocol.types import NO_DIGEST, Digest, Iteration, PeerId
from assay.testing.members import DOMAIN, RUN_ID, a_deployment, a_hot_key, a_peer_key, name_of, peer
from assay.testing.signed import (
    NODES,
    STATE,
    VERIFIERS,
    a_history,
    a_manifest,
    a_signed_commit,
    a_spec,
    by_peer,
    funded,
    inclusion_lists,
)
from assay.training.codec.contribution import decode_contribution
from assay.training.codec.wire import Update, encode_update
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
from assay.verifier.aggregation.combine import combine, tolerated
from assay.verifier.aggregation.reputation import Reputation
from assay.verifier.round.commits import Rules
from assay.verifier.round.machine import Round
from assay.verifier.service.driver import Driver
from assay.verifier.service.proposer import GetUpdate

ME, *OTHERS = VERIFIERS  # ME leads iterations 4, 8, ...; iteration 1 is led by the first of OTHERS
SPEC = a_spec()
TIMING = SPEC.timing
LAYOUT = layout_of(SPEC.model)
RULES = Rules(
    deployment=a_deployment(),
    domain=DOMAIN,
    zero_momentum=zero_root(RUN_ID, SPEC.rule, LAYOUT.blocks),
    block_count=LAYOUT.blocks,
)
Kind = TypeVar("Kind")


class FakeHost:
    """In place of a Host: keeps what is posted, and answers requests by `answer`."""

    def __init__(self) -> None:
        self.members = [peer(name) for name in OTHERS]
        self.posted: list[tuple[PeerId, object]] = []
        self.asked: list[tuple[PeerId, str]] = []
        self.on_post: Callable[[Any], None] = lambda message: None
        self.answer: Callable[[str, bytes], Awaitable[bytes]] = nobody_answers

    def connected(self) -> frozenset[PeerId]:
        return frozenset(self.members)

    def post(self, to: PeerId, payload: bytes) -> None:
        message = decode_any(MESSAGES, payload)
        self.on_post(message)
        self.posted.append((to, message))

    async def send(self, to: PeerId, payload: bytes) -> None:
        self.post(to, payload)

    async def request(self, to: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        self.asked.append((to, method))
        return await self.answer(method, body)

    def posted_to(self, to: PeerId, kind: type[Kind]) -> list[Kind]:
        """Messages of this kind that this peer was sent, in order."""
        return [message for member, message in self.posted if member == to and isinstance(message, kind)]

    def broadcast(self, kind: type[Kind], me: str = ME) -> list[Kind]:
        """Messages of this kind that were sent, in order; each must have gone to every other verifier."""
        first, *rest = [self.posted_to(peer(name), kind) for name in VERIFIERS if name != me]
        assert all(other == first for other in rest)
        return first

    def votes(self, me: str = ME) -> list[Vote]:
        """What was voted, each vote once however often it was sent."""
        return list(dict.fromkeys(signed.vote for signed in self.broadcast(SignedVote, me)))


async def nobody_answers(method: str, body: bytes) -> bytes:
    raise Unavailable(f"nobody answers {method}")


class FakeStateSync:
    """In place of a StateSync: the parameters of each round are there, unless they lag."""

    lags = False

    async def reach(self, round_id: int) -> Digest:
        if self.lags:
            raise Unavailable(f"no parameters of round {round_id}")
        return STATE


@dataclass(frozen=True)
class Running:
    """A driver, and what the test sees of its verifier."""

    me: Participant
    host: FakeHost
    follower: Follower
    state_sync: FakeStateSync
    driver: Driver

    @property
    def journal(self) -> list[object]:
        return [decode_any(MESSAGES, body) for body in self.me.store.records()]

    async def receive(self, *messages: SignedVote | Proposal | QuorumCertificate) -> None:
        """Messages from peers, and all that the verifier does upon each."""
        for message in messages:
            self.driver.receive(message)
            await settled()


def a_participant(folder: Path, name: str = ME, spec: RunSpec = SPEC) -> Participant:
    return Participant(
        config=None, keys=Keys(peer=a_peer_key(name), account=a_hot_key("account"), hot=a_hot_key(name)),
        spec=spec, run_id=RUN_ID, deployment=a_deployment(), addresses={},
        store=Store(folder / "store.db"), blobs=DiskBlobs(folder / "blobs", bytes_max=1 << 20),
    )  # fmt: skip


@asynccontextmanager
async def running(
    folder: Path,
    name: str = ME,
    get_update: GetUpdate | None = None,
    state_sync: FakeStateSync | None = None,
    spec: RunSpec = SPEC,
) -> AsyncIterator[Running]:
    """A driver that runs until the context ends, on what an earlier one left in the folder."""
    me, host, parameters = a_participant(folder, name, spec), FakeHost(), state_sync or FakeStateSync()
    host.members = list(me.verifiers)
    follower = Follower(me.spec, RUN_ID, me.store)
    opening = a_round(follower.run_state)
    for node in NODES:
        me.blobs.put(an_update(node, follower.run_state))
    async with trio.open_nursery() as nursery:
        driver = Driver(
            me, host, follower, parameters, nursery, opening, get_update or held_by(me), lambda number: None,
            HighWater(folder / "signed.mark"),
        )  # fmt: skip
        nursery.start_soon(driver.follow_parameters)
        await settled()
        yield Running(me, host, follower, parameters, driver)
        nursery.cancel_scope.cancel()
    me.store.close()


def held_by(me: Participant) -> GetUpdate:
    """Finds the updates that this verifier holds, and no others."""

    async def load(round_id: int, name: Digest, holders: tuple[PeerId, ...]) -> bytes:
        return me.blobs.load(name)

    return load


async def settled() -> None:
    """Wait until every task waits for a message or for time, and no thread computes."""
    limiter, quiet_count = trio.to_thread.current_default_thread_limiter(), 0
    while quiet_count < 2:
        await trio.testing.wait_all_tasks_blocked()
        quiet_count = 0 if limiter.borrowed_tokens else quiet_count + 1


# ---- commits and manifests, whose updates exist


def lists_of(run_state: RunState, commits: Iterable[SignedCommit]) -> tuple[SignedInclusionList, ...]:
    """Every verifier's list of these commits; none of no commits."""
    nodes = [name_of(signed.commit.node) for signed in commits]
    return inclusion_lists(run_state, nodes) if nodes else ()


def a_round(run_state: RunState | None = None, commits: Iterable[SignedCommit] = ()) -> Round:
    run_state, commits = run_state or a_history(), list(commits)
    return Round(
        rules=RULES,
        run_state=run_state,
        state=STATE,
        opened_ms=0,
        commits={signed.commit.node: signed for signed in commits},
        inclusion_lists={one.inclusion_list.verifier: one for one in lists_of(run_state, commits)},
        funding_reports=funded(),
    )


def an_update(name: str, run_state: RunState) -> bytes:
    """The bytes of this node's update in the next round: random signs at random places."""
    rng = np.random.default_rng([*name.encode(), int(run_state.round)])
    blocks, k = LAYOUT.blocks, SPEC.rule.compress.k
    index_BK = np.array([np.sort(rng.choice(4096, k, replace=False)) for _ in range(blocks)], np.int64)
    value_BK = rng.choice(np.array([-1, 1], np.int8), (blocks, k))
    return encode_update(Update(np.arange(blocks), index_BK, value_BK), blocks, k)


def a_real_commit(name: str, run_state: RunState, **changes: Any) -> SignedCommit:
    """A commit to `an_update`."""
    body = an_update(name, run_state)
    return a_signed_commit(
        name, run_state, **{"update": blob_digest(body), "update_bytes": len(body), **changes}
    )


def an_aggregate(names: Iterable[str], run_state: RunState) -> bytes:
    """What the run's rule makes of these nodes' updates, for nodes without a past."""
    updates = {
        peer(name): decode_contribution(SPEC, LAYOUT, int(run_state.round), an_update(name, run_state))
        for name in by_peer(list(names))
    }
    return combine(SPEC, LAYOUT, run_state.parent, tolerated(run_state), Reputation(), updates).body


def a_real_manifest(
    names: Iterable[str], run_state: RunState | None = None, aggregate: Digest | None = None
) -> Manifest:
    """The next manifest with these nodes' real commits, and their aggregate unless another is given."""
    run_state = run_state or a_history()
    commits = [a_real_commit(name, run_state) for name in by_peer(list(names))]
    if aggregate is None:
        aggregate = blob_digest(an_aggregate(names, run_state)) if commits else NO_DIGEST
    return with_commits(a_manifest(run_state), run_state, commits, aggregate)


def with_commits(
    manifest: Manifest, run_state: RunState, commits: Iterable[SignedCommit], aggregate: Digest
) -> Manifest:
    """The manifest with these commits and what follows from them."""
    carried = tuple(commits)
    chain = next_chain(run_state.chain, tuple(signed.commit for signed in carried), aggregate)
    lists = lists_of(run_state, carried)
    return replace(manifest, commits=carried, inclusion_lists=lists, aggregate=aggregate, chain=chain)


# ---- what other verifiers send


def a_proposal(manifest: Manifest, iteration: int = 1, parent: Proposal | None = None) -> Proposal:
    """The proposal of the iteration's leader, right after its parent's iteration."""
    leader = VERIFIERS[iteration % 4]
    block = Block(
        run_id=RUN_ID, iteration=Iteration(iteration), round=manifest.round,
        parent=NO_DIGEST if parent is None else digest(parent.block), manifest=digest(manifest),
    )  # fmt: skip
    return Proposal(
        block=block, manifest=manifest,
        parent=() if parent is None else (a_quorum(VoteKind.NOTARISE, parent),), dummies=(),
        proposer=peer(leader), signature=sign(a_peer_key(leader), DOMAIN, block),
    )  # fmt: skip


def a_vote(name: str, kind: VoteKind, proposal: Proposal, iteration: int | None = None) -> SignedVote:
    """This verifier's vote for a proposal, in its iteration or in another."""
    number = proposal.block.iteration if iteration is None else Iteration(iteration)
    vote = Vote(run_id=RUN_ID, iteration=number, kind=kind, block=digest(proposal.block))
    return SignedVote(vote=vote, verifier=peer(name), signature=sign(a_peer_key(name), DOMAIN, vote))


def a_quorum(kind: VoteKind, proposal: Proposal) -> QuorumCertificate:
    """The certificate of a proposal by all verifiers but ME."""
    return assemble([a_vote(name, kind, proposal) for name in OTHERS])
