"""Driver: runs the consensus and round state machines and performs their effects.

Room: verifier (edge). It has no rules of its own. Events go into `consensus.machine.step` and
`round.machine.step`; effects come out and are performed in order: persist first, then sign and send. While
one event's effects run, further events wait in a queue, so no two events interleave.
"""

from __future__ import annotations

import functools
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import trio

from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.following.sync import StateSync
from assay.participant.keys.high_water import HighWater
from assay.protocol.agreement.double_votes import double_vote
from assay.protocol.agreement.finality import SETTLED
from assay.protocol.auditing.draws import beacon_input
from assay.protocol.encoding.codec import decode, decode_any, digest, encode
from assay.protocol.errors import MalformedMessage, OutOfPhase, PeerFault, Unavailable
from assay.protocol.identity import sign
from assay.protocol.messages import (
    MESSAGES,
    BeaconShare,
    Block,
    CertifiedManifest,
    Contradiction,
    DoubleVote,
    Manifest,
    ManifestRange,
    Proposal,
    QuorumCertificate,
    SignedBlock,
    SignedCommit,
    SignedInclusionList,
    SignedVote,
    StepRequest,
    Vote,
    VoteKind,
)
from assay.protocol.permitted import may_show_double_vote
from assay.protocol.randomness import vrf
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.verifier.consensus import machine as consensus
from assay.verifier.consensus.check import heard, heard_links
from assay.verifier.consensus.types import (
    Accuse,
    BuildProposal,
    ConsensusConfig,
    Effect,
    Event,
    Examine,
    Finalised,
    NeedBlock,
    NeedSync,
    Persist,
    Received,
    Send,
    SignAndPass,
    SignAndSend,
    SignAndSendProposal,
    Tick,
)
from assay.verifier.round import leader
from assay.verifier.round import machine as rounds
from assay.verifier.round.beacon import holds
from assay.verifier.round.commits import admit, contradiction, is_sign_of_life
from assay.verifier.round.machine import Advanced, Round
from assay.verifier.service.delivery import Delivery
from assay.verifier.service.proposer import GetUpdate, Proposer, now_ms, wall_s

log = logging.getLogger(__name__)
RETRY_S = 1.0
DOUBLE_VOTES = "evidence/double-vote/"  # keys of the first pair of each verifier that we saw
EVIDENCE = "evidence/commit/"  # keys in the store of evidence that `chain_duties` takes to court


class Driver:
    """Runs one verifier's consensus and present round."""

    def __init__(
        self,
        me: Participant,
        host: Host,
        follower: Follower,
        state_sync: StateSync,
        nursery: trio.Nursery,
        opening: Round,
        get_update: GetUpdate,
        named: Callable[[int], None],
        high_water: HighWater,
    ) -> None:
        """
        Args:
            me, host, follower, state_sync, nursery: What the verifier's process has opened.
            opening: The round to begin with.
            get_update: An update's bytes, ours or a peer's.
            named: Called with every drand round that a manifest names, when it is notarised or final.
            high_water: How far our signatures have come.

        Raises:
            Unavailable: the store or the mark cannot be written.
        """
        self._me, self._host, self._follower, self._state_sync = me, host, follower, state_sync
        self._nursery, self._named = nursery, named
        self.round = opening
        self._opened = trio.Event()
        self._proposer = Proposer(
            me, follower, get_update, lambda: self.round, self.round_opened, self._feed, nursery
        )
        self._delivery = Delivery(me, host, nursery)
        self._revealed: set[Digest] = set()
        # An iteration, and the seats whose shares of the beacon were passed on to its leader.
        self._passed_on: tuple[int, set[PeerId]] = (0, set())
        self._queue: deque[Event] = deque()
        self._is_stepping = False
        self._reveal_again_ms = 0
        self._unfunded = -1  # the round for whose money we last waited
        self._ready_count = -1  # of nodes, when we last logged that more are needed
        self._prove = functools.lru_cache(maxsize=8)(functools.partial(vrf.prove, bytes(me.keys.peer)))
        self._is_syncing = False
        self._fetching: set[Digest | tuple[PeerId, PeerId]] = set()  # blocks; commits by node and holder
        self._get_update = get_update
        timing = me.spec.timing
        config = ConsensusConfig(
            run_id=me.run_id,
            genesis=digest(me.spec),
            verifiers=me.spec.verifier_peers,
            me=me.me,
            reserves=me.spec.reserve_peers,
            configuration=follower.run_state.rotation.configuration,
            iteration_timeout_ms=timing.iteration_ms,
            ready_timeout_ms=timing.ready_ms,
            resend_ms=timing.resend_ms,
        )
        records = [decode_any(MESSAGES, body) for body in me.store.records()]
        last = None
        if int(follower.run_state.round):
            last = next(iter(me.store.links(int(follower.run_state.round) - 1, 1)))
        final = 0 if last is None else int(last.block.iteration)
        lost = high_water.lost_through(map(encode, records), final)
        if any(lost):
            log.error(
                "the store has lost what was signed here: "
                "doing no more than give leaders up until the others are past it",
                extra={"iteration": lost[0], "final": final},
            )
        self._high_water, self._last = high_water, None if last is None else last.manifest
        self._state = consensus.restore(config, records, now_ms(), last, lost)
        for body in me.store.values(DOUBLE_VOTES).values():  # no manifest may have carried it yet
            pair = decode(DoubleVote, body)
            if may_show_double_vote(opening.run_state, pair):
                self.round, _ = rounds.step(self.round, pair)

    # ---- events in ----

    def receive(self, message: SignedVote | SignedBlock | Proposal | QuorumCertificate) -> None:
        """A consensus message from a peer. One of an earlier configuration is of no use any more.

        Raises:
            PeerFault, MalformedMessage: its content or signature is invalid.
        """
        event = heard(self._state.config, self._me.domain, message, now_ms())
        if event is not None:
            self._feed(event)

    def synced(self, links: tuple[CertifiedManifest, ...]) -> None:
        """Certified manifests of the finalised chain from a peer.

        Raises:
            PeerFault, MalformedMessage: one of them is invalid.
        """
        fresh = tuple(one for one in links if one.manifest.round >= self._follower.run_state.round)
        if fresh:
            self._feed(heard_links(self._state.config, self._me.domain, fresh, now_ms()))

    def tick(self) -> None:
        """Time has passed. A complete chain needs no more votes; a lagging verifier asks for manifests."""
        if self._follower.run_state.is_complete:
            return
        is_idle = self._is_waiting()
        if is_idle:
            self.round = leader.waited(self.round, now_ms())
        run_state = self._follower.run_state
        away = frozenset(self._me.spec.verifier_peers) - set(run_state.leaders)
        is_held_up = self.round.run_state.round == run_state.round and leader.is_held_up(
            self.round, now_ms(), wall_s=wall_s()
        )
        self._feed(Tick(now_ms(), is_idle, away, is_held_up))
        if now_ms() >= self._reveal_again_ms:  # the last share may have met verifiers that were down
            self._reveal_again_ms = now_ms() + self._me.spec.timing.resend_ms
            self._reveal_last()
            self._pass_shares_on()
            self._list_again()
        self._list_commits()
        for node, holders in self._lacking_commits().items():
            for peer in holders:
                self._nursery.start_soon(self._fetch_commit, node, peer)
        self._proposer.consider()

    def _is_waiting(self) -> bool:
        """Whether nothing can be agreed now, for want of money, of nodes or of an opening."""
        return (
            self._awaits_funding() or self._awaits_nodes() or leader.awaits_return(self.round, (), wall_s())
        )

    def _awaits_funding(self) -> bool:
        """Whether nothing can be agreed now, because the next epoch is not paid for; logged once."""
        round_id = int(self.round.run_state.round)
        is_present = round_id == self._follower.run_state.round
        is_awaiting = is_present and leader.awaits_funding(self.round, (), wall_s())
        if is_awaiting and self._unfunded != round_id:
            self._unfunded = round_id
            epoch = self.round.run_state.epoch_of(round_id)
            log.warning(
                "waiting: no quorum finds the epoch funded", extra={"round": round_id, "epoch": epoch}
            )
        return is_awaiting

    def _awaits_nodes(self) -> bool:
        """Whether the run has not started, because too few nodes are ready; their number is logged."""
        is_present = self.round.run_state.round == self._follower.run_state.round
        if not (is_present and leader.awaits_nodes(self.round, (), wall_s())):
            return False
        spec, ready = self._me.spec, leader.ready_count(self.round, wall_s())
        if ready != self._ready_count:
            self._ready_count = ready
            log.info(
                "waiting for nodes",
                extra={"ready": ready, "needed": spec.least_nodes, "until_s": spec.start_by_s},
            )
        return True

    def admit(self, signed: SignedCommit) -> None:
        """Check and authenticate a commit before its update is held.

        Raises:
            PeerFault, OutOfPhase: it may not count; a contradiction of an earlier one is kept as evidence.
        """
        if is_sign_of_life(self.round.rules, self.round.run_state, signed):
            self.round, _ = rounds.step(self.round, rounds.Heard(signed.commit.node))
        admit(self.round.rules, self.round.run_state, self.round.state, signed)
        known = self.round.commits.get(signed.commit.node)
        if known is not None and known.commit != signed.commit:
            self.take(signed)
            raise PeerFault(signed.commit.node, f"two commits for round {signed.commit.round}")

    def take(self, event: rounds.Event) -> None:
        """Give the round an admitted commit whose update is held, or another message, ours or a peer's.

        Raises:
            PeerFault, OutOfPhase, MalformedMessage: it is invalid, or it comes at the wrong time.
        """
        self.round, effects = rounds.step(self.round, event)
        self.round = leader.gathered(self.round, now_ms())
        for effect in effects:
            self._keep_evidence(effect.pair)
            self.broadcast(encode(effect.pair))
        self._list_commits()
        self._proposer.consider()

    def take_passed_on(self, share: BeaconShare, peer: PeerId) -> None:
        """Pool another verifier's share of the beacon, which proves itself, if it is valid now.

        Raises:
            OutOfPhase: it is of another round.
            PeerFault: it is not its verifier's.
        """
        run_state = self.round.run_state
        if share.round != run_state.round - 1 or share.run_id != run_state.run_id:
            raise OutOfPhase(peer, f"passes on a BeaconShare of round {share.round} at {run_state.round}")
        if share.verifier not in run_state.spec.verifier_peers or not holds(run_state, share):
            raise PeerFault(peer, "passes on a BeaconShare that its verifier did not make")
        self.take(share)

    def commit_of(self, round_id: int, node: PeerId) -> SignedCommit | None:
        """The commit that we hold of a node for the present round, for a verifier that lacks it."""
        return self.round.commits.get(node) if self.round.run_state.round == round_id else None

    def body(self, block: Digest) -> Proposal | None:
        """A proposal by its block digest, for a peer that lacks it."""
        return consensus.body(self._state, block)

    async def round_opened(self) -> None:
        """Wait until the next round opens here."""
        await self._opened.wait()

    async def follow_parameters(self) -> None:
        """Open each round once its parameters are there; ends only by cancellation."""
        while True:
            run_state = self._follower.run_state
            if run_state.round > self.round.run_state.round:
                state = NO_DIGEST
                if run_state.is_training or run_state.round == run_state.training_rounds:
                    try:
                        state = await self._state_sync.reach(int(run_state.round))
                    except Unavailable as error:
                        log.warning(
                            "parameters lag", extra={"round": int(run_state.round), "reason": str(error)}
                        )
                        await trio.sleep(RETRY_S)
                        continue
                self.take(Advanced(run_state, state, now_ms()))
                self._opened.set()
                self._opened = trio.Event()
                continue
            await self._follower.grown(int(run_state.round))

    async def sync(self) -> None:
        """Ask one peer after another for certified manifests that we lack."""
        if self._is_syncing:
            return
        self._is_syncing = True
        try:
            await self._sync_from_anyone()
        finally:
            self._is_syncing = False

    async def _sync_from_anyone(self) -> None:
        before = self._follower.run_state.round
        peers = [peer for peer in self._me.verifiers if peer in self._host.connected()]
        random.shuffle(peers)  # so that no single peer can starve us with manifests that we have
        for peer in peers:
            try:
                self.synced(await self._links_from(peer))
                if self._follower.run_state.round > before:
                    return
            except (PeerFault, MalformedMessage, Unavailable) as error:
                log.info("sync failed", extra={"peer": peer.hex()[:8], "reason": str(error)})

    def broadcast(self, body: bytes) -> None:
        """A notification to all other verifiers. `check_spec` keeps runs small enough for it to fit."""
        self.post(self._me.verifiers, body)

    def post(self, peers: Iterable[PeerId], body: bytes) -> None:
        """A notification to these peers; one that is too long for a frame is logged, and not sent."""
        for peer in peers:
            try:
                self._host.post(peer, body)
            except ValueError as error:
                log.error("notification not sent", extra={"reason": str(error)})

    # ---- the two state machines ----

    def _feed(self, event: Event) -> None:
        self._queue.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._queue:
                self._step_once(self._queue.popleft())
        finally:
            self._is_stepping = False

    def _step_once(self, event: Event) -> None:
        try:
            self._state, effects = consensus.step(self._state, event)
        except OutOfPhase as late:
            log.debug("out of phase", extra={"reason": str(late)})
            return
        except (PeerFault, MalformedMessage) as fault:
            log.warning("peer fault", extra={"reason": str(fault)})
            return
        for effect in effects:
            self._perform(effect)
        self._serve_notarised()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Persist(record):
                body = encode(record)
                iteration = consensus.iteration_of(record)
                self._me.store.add_record(int(iteration), body)
                if isinstance(record, Vote | Block) and iteration != SETTLED:  # about to be signed
                    finalises = isinstance(record, Vote) and record.kind is VoteKind.FINALISE
                    self._high_water.note(int(iteration), body, finalises=finalises)
            case SignAndSend(vote):
                signature = sign(self._me.keys.peer, self._me.domain, vote)
                signed = SignedVote(vote=vote, verifier=self._seat(), signature=signature)
                self.broadcast(encode(signed))
                self._queue.append(Received(signed, now_ms()))
            case SignAndSendProposal(block, manifest, parent, dummies):
                proposal = Proposal(
                    block=block,
                    manifest=manifest,
                    parent=parent,
                    dummies=dummies,
                    proposer=self._seat(),
                    signature=sign(self._me.keys.peer, self._me.domain, block),
                )
                self.broadcast(encode(proposal))
                self._queue.append(Received(proposal, now_ms()))
            case SignAndPass(block):
                signature = sign(self._me.keys.peer, self._me.domain, block)
                self.broadcast(encode(SignedBlock(block=block, verifier=self._seat(), signature=signature)))
                log.info("turn passed", extra={"round": int(block.round), "iteration": int(block.iteration)})
            case Send(message):
                self.broadcast(encode(message))
            case BuildProposal():
                self._proposer.ask(effect)
            case Examine(proposal, ancestors):
                self._nursery.start_soon(self._proposer.examine, proposal, ancestors)
            case NeedBlock(block):
                self._nursery.start_soon(self._fetch_proposal, block)
            case NeedSync():
                self._nursery.start_soon(self.sync)
            case Accuse(first, second):
                self._show_double_vote(double_vote(_signed(first), _signed(second)))
            case Finalised(certified):
                self._finalised(certified)

    def _seat(self) -> PeerId:
        """The seat in whose name we sign: the one that we hold or held."""
        name = self._state.config.name
        assert name is not None, "nothing is to be signed before we hold a seat"
        return name

    def _finalised(self, certified: CertifiedManifest) -> None:
        self._last = certified.manifest
        self._delivery.begin(self._follower.run_state, certified.manifest)
        self._follower.take(certified)
        self._me.store.drop_records(int(certified.block.iteration))
        manifest = certified.manifest
        for signed in manifest.commits:  # a node that sent us another commit has equivocated
            held = self.round.commits.get(signed.commit.node)
            if held is None or held.commit.round != signed.commit.round:
                continue  # our own round lags behind what was just synced
            if held.commit != signed.commit:
                self._contradicted(contradiction(held, signed))
        for pair in manifest.contradictions:
            self._keep_evidence(pair)
        log.info(
            "round finalised",
            extra={
                "round": int(manifest.round),
                "iteration": int(certified.block.iteration),
                "commits": len(manifest.commits),
                "verdicts": len(manifest.verdicts),
            },
        )
        self._reveal(manifest)
        # A lying leader may leave no room for what a link has more than a proposal: peers then ask for it.
        self.post(self._host.connected() - set(self._me.spec.seat_peers), encode(certified))

    # ---- the beacon ----

    def _serve_notarised(self) -> None:
        """Send what follows from a block as soon as it is notarised.

        Our share of the beacon, as the next leader may have to build on it; and its aggregate, to nodes.
        """
        for (_, kind), certificate in self._state.certificates.items():
            proposal = consensus.body(self._state, certificate.vote.block)
            if kind is not VoteKind.NOTARISE or proposal is None:
                continue
            if proposal.manifest.round == self._follower.run_state.round:
                self._delivery.begin(self._follower.run_state, proposal.manifest)
            if certificate.vote.block not in self._revealed:
                self._revealed.add(certificate.vote.block)
                self._reveal(proposal.manifest)

    def _reveal_last(self) -> None:
        """Send our share for the last final manifest once more: the same VRF proof, whenever it is made."""
        if self._last is not None:
            self._reveal(self._last)

    def _reveal(self, manifest: Manifest) -> None:
        if manifest.drand_next:
            self._named(manifest.drand_next)
        configuration = self._follower.run_state.rotation.configuration
        if manifest.round == self._follower.run_state.round:  # notarised, and not final yet
            configuration = configuration.after(manifest.hand_over)
        seat = self._state.config.name
        if seat is None or configuration.key(seat) != self._me.me:
            return
        alpha = beacon_input(self._me.spec.deployment_id, self._me.run_id, manifest.round, digest(manifest))
        beacon_share = BeaconShare(
            run_id=self._me.run_id,
            round=manifest.round,
            verifier=seat,
            proof=self._prove(alpha),
        )
        self.broadcast(encode(beacon_share))
        self.take(beacon_share)

    def _pass_shares_on(self) -> None:
        """Send other seats' shares to a leader that does not propose, each once in an iteration.

        A liar that sends its share to all but the next leader would else have each of these given up.
        """
        run_state, iteration = self._follower.run_state, self._state.iteration
        to = self._state.config.configuration.key(self._state.config.leader(iteration))
        is_due = iteration not in self._state.proposals and self.round.run_state.round == run_state.round
        if not is_due or to == self._me.me or self._state.config.seat is None:
            return
        if self._passed_on[0] != iteration:
            self._passed_on = iteration, set()
        sent = self._passed_on[1]
        for share in leader.shares_to_pass_on(self.round, now_ms(), wall_s=wall_s()):
            if share.verifier not in sent and run_state.key(share.verifier) not in (to, self._me.me):
                sent.add(share.verifier)
                self.post((to,), encode(share))

    # ---- inclusion lists ----

    def _list_commits(self) -> None:
        """Sign the list of the commits that we hold, once it is due."""
        due = leader.due_list(self.round, self.round.run_state.seat_of(self._me.me), now_ms())
        if due is not None:
            signature = sign(self._me.keys.peer, self._me.domain, due)
            signed = SignedInclusionList(inclusion_list=due, signature=signature)
            self.broadcast(encode(signed))
            self.take(signed)

    def _list_again(self) -> None:
        """Send our list once more: verifiers may have been down, or rounds behind."""
        own = self.round.inclusion_lists.get(self.round.run_state.seat_of(self._me.me))
        if own is not None:
            self.broadcast(encode(own))

    # ---- what others store ----

    def _lacking_commits(self) -> Mapping[PeerId, tuple[PeerId, ...]]:
        """Listed commits that we lack, by node with holders; none of a round that is final already."""
        is_open = self.round.run_state.round == self._follower.run_state.round
        return leader.lacking_commits(self.round) if is_open else {}

    async def _fetch_commit(self, node: PeerId, peer: PeerId) -> None:
        """Fetch a commit and its update, which more than f verifiers list, from one of them.

        All of them are asked at once: one that lists a commit and does not send it must not stall the round.
        """
        if (node, peer) in self._fetching:
            return
        self._fetching.add((node, peer))
        try:
            await trio.sleep(self._me.spec.timing.resend_ms / 1000)  # it may be on its way
            if node in self._lacking_commits():
                await self._ask_for_commit(peer, node)
        finally:
            self._fetching.discard((node, peer))

    async def _ask_for_commit(self, peer: PeerId, node: PeerId) -> None:
        number = int(self.round.run_state.round)
        try:
            request = encode(StepRequest(number=number, node=node))
            signed = decode(SignedCommit, await self._host.request(peer, "commit", request, timeout_s=10))
            if signed.commit.node != node:
                raise PeerFault(peer, f"answers with a commit of {signed.commit.node.hex()[:8]}")
            self.admit(signed)
            await self._get_update(number, signed.commit.update, (peer,))
            self.take(signed)
            log.info("commit fetched", extra={"node": node.hex()[:8], "peer": peer.hex()[:8]})
        except (PeerFault, OutOfPhase, MalformedMessage, Unavailable) as error:
            log.info("commit unavailable", extra={"peer": peer.hex()[:8], "reason": str(error)})

    async def _fetch_proposal(self, block: Digest) -> None:
        """Fetch a block's body from one peer after another; who is silent delays the next by `RETRY_S`."""
        if block in self._fetching:
            return
        self._fetching.add(block)
        peers = [peer for peer in self._me.verifiers if peer in self._host.connected()]
        random.shuffle(peers)  # so that no single peer is always the first

        async def ask(peer: PeerId, answered: trio.Event) -> None:
            await self._ask_for_proposal(peer, block)
            if self.body(block) is not None:
                asking.cancel_scope.cancel()
            answered.set()

        try:
            async with trio.open_nursery() as asking:
                for peer in peers:
                    answered = trio.Event()
                    asking.start_soon(ask, peer, answered)
                    with trio.move_on_after(RETRY_S):
                        await answered.wait()
        finally:
            self._fetching.discard(block)

    async def _ask_for_proposal(self, peer: PeerId, block: Digest) -> None:
        try:
            found = decode(Proposal, await self._host.request(peer, "proposal", block, timeout_s=10))
            if digest(found.block) != block:
                raise PeerFault(peer, "answers with another proposal")
            self.receive(found)
        except (PeerFault, MalformedMessage, Unavailable) as error:
            log.info("proposal unavailable", extra={"peer": peer.hex()[:8], "reason": str(error)})

    async def _links_from(self, peer: PeerId) -> tuple[CertifiedManifest, ...]:
        request = StepRequest(number=int(self._follower.run_state.round), node=PeerId(NO_DIGEST))
        return decode(
            ManifestRange, await self._host.request(peer, "links", encode(request), timeout_s=20)
        ).links

    def _contradicted(self, pair: Contradiction) -> None:
        """Evidence that we found: for the court even if the chain has no more use for it."""
        self._keep_evidence(pair)
        try:
            self.take(pair)
        except (OutOfPhase, PeerFault, MalformedMessage) as late:  # banned already, or too old
            log.info("contradiction of no use to the chain", extra={"reason": str(late)})

    def _show_double_vote(self, pair: DoubleVote) -> None:
        """Keep evidence against a verifier, and hand it to all others: any leader may carry it."""
        self._me.store.set_value(f"{DOUBLE_VOTES}{pair.verifier.hex()}", encode(pair))
        log.warning("verifier double-signed", extra={"verifier": pair.verifier.hex()[:8]})
        self.broadcast(encode(pair))
        try:
            self.take(pair)
        except OutOfPhase:  # the chain has another pair of this verifier
            log.info("double vote of no use to the chain", extra={"verifier": pair.verifier.hex()[:8]})

    def _keep_evidence(self, pair: Contradiction) -> None:
        commit = pair.first.commit
        name = f"{EVIDENCE}{int(commit.round)}/{commit.node.hex()}"
        if self._me.store.value(name) is None:
            self._me.store.set_value(name, encode(pair))
            log.warning("node equivocated", extra={"evidence": name})


def _signed(statement: SignedVote | SignedBlock | Proposal) -> SignedVote | SignedBlock:
    """A statement without the body of its proposal, which proves nothing."""
    if not isinstance(statement, Proposal):
        return statement
    return SignedBlock(block=statement.block, verifier=statement.proposer, signature=statement.signature)
