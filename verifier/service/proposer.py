"""Proposer: builds the manifest that this verifier proposes, and checks those that other leaders propose.

Room: verifier (edge: updates from disk and peers, arithmetic in a thread). The rules are those of
`round.machine`; this file supplies the updates' bytes and the time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import trio

from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import AssayError, PeerFault, Unavailable
from assay.protocol.messages import Manifest, Proposal
from assay.protocol.randomness import drand
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.training.codec.contribution import decode_contribution
from assay.training.codec.wire import Update
from assay.training.layout import layout_of
from assay.verifier.aggregation.combine import combine, observed, rounds_behind, tolerated
from assay.verifier.aggregation.reputation import Reputation
from assay.verifier.consensus.types import BuildProposal, Built, Event, Examined, Passed, Ready
from assay.verifier.round import leader
from assay.verifier.round.ancestors import base_history
from assay.verifier.round.examination import examine
from assay.verifier.round.machine import Round

log = logging.getLogger(__name__)
RETRY_S = 1.0
LINKS_AT_ONCE = 8
UPDATES_AT_ONCE = 12  # fetched side by side: each waits for several round trips
ROUND_LAG = 1  # rounds that a leader may be behind, as one whose own work takes longer than others'
STANDINGS_KEPT = 4  # each holds the decoded updates of a few rounds
_Found = TypeVar("_Found")
GetUpdate = Callable[[int, Digest, tuple[PeerId, ...]], Awaitable[bytes]]


class Proposer:
    """Answers the consensus machine's `BuildProposal` and `Examine`."""

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        get_update: GetUpdate,
        present: Callable[[], Round],
        round_opened: Callable[[], Awaitable[None]],
        feed: Callable[[Event], None],
        nursery: trio.Nursery,
    ) -> None:
        """
        Args:
            me: The verifier.
            follower: The finalised chain.
            get_update: An update's bytes, ours or a peer's.
            present: The present round.
            round_opened: Waits for the next one.
            feed: Takes consensus events.
            nursery: For work that takes time.
        """
        self._me, self._follower, self._get_update = me, follower, get_update
        self._present, self._round_opened, self._feed, self._nursery = present, round_opened, feed, nursery
        self._build: BuildProposal | None = None
        self._asked_ms = 0
        self._building: trio.CancelScope | None = None
        self._layout = layout_of(me.spec.model)
        self._standings: dict[tuple[bytes, ...], Reputation] = {}
        self._aggregating = trio.Lock()  # a round's decoded updates are in memory once

    def ask(self, build: BuildProposal) -> None:
        """We lead: a manifest is requested. `consider` answers when one can be made; if we lag, we pass."""
        if self._building is not None:
            self._building.cancel()  # for an iteration that is over
        self._build, self._asked_ms = build, now_ms()
        self._nursery.start_soon(self._begin, build)

    def consider(self) -> None:
        """Report to consensus when the round is complete, and answer its request to build."""
        state, run_state = self._present(), self._follower.run_state
        if run_state.round != state.run_state.round or run_state.is_complete:
            return
        if leader.awaits_return(state, (), wall_s()):
            return
        if not leader.missing(state, wall_s=wall_s()) or leader.is_held_up(state, now_ms(), wall_s=wall_s()):
            self._feed(Ready(run_state.round, now_ms()))
        build = self._build
        if build is None or self._building is not None:
            return
        pending = self._not_final(build.ancestors)
        if base_history(state.run_state, pending).parent != build.parent_manifest:
            return
        # A notarised parent is final a moment later, or not for a long while; only in the latter case
        # is an empty manifest on top of it worth a round.
        if pending and now_ms() < self._asked_ms + self._me.spec.timing.ready_ms:
            return
        if pending and base_history(state.run_state, pending).is_complete:
            self._feed(Built(build.iteration, pending[-1]))  # a closing block: the last one is not final yet
            return
        if leader.awaits_return(state, pending, wall_s()):
            return
        if leader.may_propose(state, pending, now_ms(), follows=build.follows, wall_s=wall_s()):
            self._building = trio.CancelScope()
            self._nursery.start_soon(self._answer, build, pending, state, self._building)

    async def examine(self, proposal: Proposal, ancestors: tuple[Manifest, ...]) -> None:
        """Check a proposal's body and report the result to consensus."""
        manifest, block = proposal.manifest, digest(proposal.block)
        # the block is fixed from here on: the drand round it names must be in the future now
        seen_s = wall_s()
        try:
            with trio.fail_after(self._me.spec.timing.iteration_ms / 1000):
                while self._not_final(ancestors) and manifest.commits:
                    await self._round_opened()  # commits need a final parent: ours is about to be
                while self._follower.run_state.round > self._present().run_state.round:
                    await self._round_opened()
            follows = not proposal.dummies
            pending = self._not_final(ancestors)
            if proposal.block.is_closing:
                self._check_closing(proposal, pending)
                self._feed(Examined(block, True))
                return
            if manifest.drand:
                named = base_history(self._present().run_state, pending).drand_next
                await trio.to_thread.run_sync(self._check_drand, named, manifest.drand)
            examine(
                self._present(),
                pending,
                manifest,
                follows=follows,
                iteration=proposal.block.iteration,
                wall_s=seen_s,
            )
            if manifest.commits:
                author = self._follower.run_state.key(proposal.proposer)
                aggregate = await self._aggregate(manifest, (author, *self._me.verifiers))
                if aggregate != manifest.aggregate:
                    raise PeerFault(
                        proposal.proposer, "proposes an aggregate that is not that of its commits"
                    )
        except trio.TooSlowError:
            log.info("proposal check timed out", extra={"round": int(manifest.round)})
        except (AssayError, ValueError) as error:
            self._say("proposal refused", manifest.round, error)
            self._feed(Examined(block, False))
        else:
            self._feed(Examined(block, True))

    def _check_closing(self, proposal: Proposal, pending: tuple[Manifest, ...]) -> None:
        """Do nothing if the run ends with the manifest of a closing block, which is that of its parent.

        Raises:
            PeerFault: other rounds follow.
        """
        history = base_history(self._present().run_state, pending)
        if not history.is_complete or history.parent != proposal.block.manifest:
            number = int(proposal.block.round)
            raise PeerFault(proposal.proposer, f"closes the run with round {number}, which is not its last")

    def _check_drand(self, named: int, signature: bytes) -> None:
        """Check drand signatures in a thread: a pairing takes a fifth of a second. Results are cached."""
        drand.check_signature(self._me.spec.audit.drand, named, signature)

    def _say(self, event: str, round_id: int, error: Exception) -> None:
        """Log why a manifest came to nothing; of a round that is over it is nothing to look after."""
        is_over = round_id < self._follower.run_state.round
        level = logging.INFO if is_over else logging.WARNING
        log.log(level, event, extra={"round": int(round_id), "reason": str(error)})

    async def _begin(self, build: BuildProposal) -> None:
        if self._lags():
            self._feed(Passed(build.iteration))
        self.consider()

    def _not_final(self, ancestors: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
        """The ancestors that are notarised but not final here."""
        return tuple(manifest for manifest in ancestors if manifest.round >= self._present().run_state.round)

    async def _answer(
        self, build: BuildProposal, pending: tuple[Manifest, ...], state: Round, scope: trio.CancelScope
    ) -> None:
        try:
            with scope:
                await self._make(build, pending, state)
        except AssayError as error:  # an update of ours is damaged; the next tick tries again
            self._say("manifest not built", build.round, error)
            await trio.sleep(RETRY_S)
        finally:
            self._building = None

    async def _make(self, build: BuildProposal, pending: tuple[Manifest, ...], state: Round) -> None:
        aggregate = NO_DIGEST
        draft = leader.manifest_of(state, pending, NO_DIGEST, iteration=build.iteration, wall_s=wall_s())
        if draft.commits:
            aggregate = await self._aggregate(draft, ())
        manifest = leader.manifest_of(state, pending, aggregate, iteration=build.iteration, wall_s=wall_s())
        if self._build is build:
            self._build = None
        self._feed(Built(build.iteration, manifest))

    async def _aggregate(self, manifest: Manifest, holders: tuple[PeerId, ...]) -> Digest:
        """Aggregate the manifest's updates and store the bytes; their digest, or zero if the rule refuses."""
        bodies = await self._bodies(manifest, holders)
        async with self._aggregating:
            if manifest.round < self._follower.run_state.round:
                raise Unavailable(f"round {manifest.round} is final since")
            before = await self._reputation_before(manifest)
            f = tolerated(self._present().run_state)
            rule = partial(combine, self._me.spec, self._layout, manifest.parent, f, before)
            combined = await self._in_thread(manifest, bodies, rule)
            self._keep(manifest, combined.reputation)
        if combined.refusal:
            log.warning("no aggregate", extra={"round": int(manifest.round), "reason": combined.refusal})
        return self._me.blobs.put(combined.body) if combined.body else NO_DIGEST

    async def _reputation_before(self, manifest: Manifest) -> Reputation:
        """Reputation that a manifest begins with: the cached one, else rebuilt from final rounds.

        Whoever comes back rebuilds it once, also if that takes longer than a round: from then on the cached
        one is brought forward.
        """
        behind = rounds_behind(self._me.spec)
        last = self._with_commits(int(manifest.round), min(behind, 1))
        found = self._standings.get(_place(last[0])) if last else Reputation()
        if found is not None:
            return found
        reputation, rounds = Reputation(), self._with_commits(int(manifest.round), behind)
        for at in reversed(range(len(rounds))):
            if (found := self._standings.get(_place(rounds[at]))) is not None:
                reputation, rounds = found, rounds[at + 1 :]
                break
        await self._fetch_updates(rounds)
        for past in rounds:
            bodies = await self._bodies(past, self._me.verifiers)
            comparison = partial(observed, self._me.spec, self._layout, reputation)
            reputation = await self._in_thread(past, bodies, comparison)
        self._keep(last[0], reputation)
        return reputation

    def _lags(self) -> bool:
        """Whether the parameters, or the reputation that an aggregate takes, are those of rounds ago here."""
        run_state = self._follower.run_state
        if run_state.round > self._present().run_state.round + ROUND_LAG:
            return True
        behind = min(rounds_behind(self._me.spec), ROUND_LAG + 1) if run_state.is_training else 0
        last = self._with_commits(int(run_state.round), behind)
        return len(last) > ROUND_LAG and not any(_place(one) in self._standings for one in last)

    def _keep(self, manifest: Manifest, reputation: Reputation) -> None:
        """Remember the reputation after a manifest."""
        self._standings[_place(manifest)] = reputation
        while len(self._standings) > STANDINGS_KEPT:
            del self._standings[next(iter(self._standings))]

    async def _fetch_updates(self, manifests: list[Manifest]) -> None:
        """Have the updates of final rounds here that were agreed on without us, many at a time.

        Raises:
            AssayError: one of them could not be had.
        """
        failed: list[AssayError] = []
        at_once = trio.CapacityLimiter(UPDATES_AT_ONCE)

        async def get(round_id: int, name: Digest) -> None:
            async with at_once:
                try:
                    await self._get_update(round_id, name, self._me.verifiers)
                except AssayError as error:
                    failed.append(error)

        async with trio.open_nursery() as nursery:
            for manifest in manifests:
                for signed in manifest.commits:
                    if self._me.blobs.size(signed.commit.update) is None:
                        nursery.start_soon(get, int(manifest.round), signed.commit.update)
        if failed:
            raise failed[0]

    def _with_commits(self, before: int, count: int) -> list[Manifest]:
        """The last `count` final manifests with commits before a round, oldest first."""
        found: list[Manifest] = []
        while before > 0 and len(found) < count:
            first = max(0, before - LINKS_AT_ONCE)
            links = self._me.store.links(first, before - first)
            found = [link.manifest for link in links if link.manifest.commits] + found
            before = first
        return found[-count:] if count else []

    async def _bodies(self, manifest: Manifest, holders: tuple[PeerId, ...]) -> dict[PeerId, bytes]:
        return {
            signed.commit.node: await self._get_update(int(manifest.round), signed.commit.update, holders)
            for signed in manifest.commits
        }

    async def _in_thread(
        self,
        manifest: Manifest,
        bodies: Mapping[PeerId, bytes],
        what: Callable[[Mapping[PeerId, Update]], _Found],
    ) -> _Found:
        """What is computed of a manifest's decoded updates, which hold up no vote meanwhile."""
        spec, layout, round_id = self._me.spec, self._layout, int(manifest.round)

        def compute() -> _Found:
            return what(
                {node: decode_contribution(spec, layout, round_id, body) for node, body in bodies.items()}
            )

        return await trio.to_thread.run_sync(compute)


def _place(manifest: Manifest) -> tuple[bytes, ...]:
    """Key of the reputation after a manifest, known before its aggregate is."""
    commits = (signed.commit for signed in manifest.commits)
    return (manifest.parent, *(part for commit in commits for part in (commit.node, commit.update)))


def wall_s() -> int:
    """Unix time in seconds."""
    return int(time.time())


def now_ms() -> int:
    """A verifier's clock: monotonic, milliseconds."""
    return int(trio.current_time() * 1000)
