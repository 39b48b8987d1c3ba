"""Liar: a Byzantine verifier that knows the rules and breaks all of them.

It runs the production step like everybody, to know what would be said when,
and says something else: nothing, both things, different things to different
hosts, old things again. Liars hear each other's lies and back them up.

Where seats change hands it signs in the name of its own in every configuration, also before it holds it and
after; a stubborn one does not see that a configuration ended, and goes on in it. As leader it hands over what
is not due, or leaves out what is, and goes on after the last round of a configuration.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from nacl.signing import SigningKey

from assay.protocol.agreement.configurations import Configuration, before_first, number_of
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import AssayError
from assay.protocol.identity import Domain, sign
from assay.protocol.messages import (
    Block,
    CertifiedManifest,
    HandOver,
    Manifest,
    Proposal,
    QuorumCertificate,
    SignedBlock,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.types import NO_DIGEST, Digest, Iteration, PeerId, RoundId
from assay.testing.run import an_empty_manifest
from assay.verifier.consensus.chain import dummies_between, is_certified
from assay.verifier.consensus.machine import restore, step
from assay.verifier.consensus.types import (
    BuildProposal,
    Built,
    ConsensusConfig,
    Event,
    Examine,
    Examined,
    Finalised,
    Received,
    Send,
    SignAndSend,
    SignAndSendProposal,
    State,
    Tick,
)

Due = Callable[[Configuration, RoundId, Digest], tuple[HandOver, ...]]
Say = Callable[[PeerId, SignedVote | SignedBlock | Proposal | QuorumCertificate], None]
HABITS = ("silent", "double", "double", "withhold", "replay", "honest")
MEMORY = 60  # messages it may replay


@dataclass(slots=True)
class Liar:
    """One lying verifier; `say` puts a message on the network, `allies` are the liars, itself too.

    seat: That which it holds at some time. due: What a manifest of a round, on a parent, must hand over.
    """

    key: SigningKey
    config: ConsensusConfig
    domain: Domain
    rng: random.Random
    say: Say
    allies: frozenset[PeerId]
    seat: PeerId
    due: Due
    state: State = field(init=False)
    habit: str = "honest"
    is_stubborn: bool = False
    heard: list[SignedVote | SignedBlock | Proposal | QuorumCertificate] = field(default_factory=list)
    said: set[tuple[Iteration, VoteKind, Digest]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.state = restore(self.config, (), 0)
        if self.config.reserves:
            self.is_stubborn = self.rng.random() < 0.4

    def take(self, event: Event) -> None:
        """Follow the protocol in private; lie about what comes out."""
        if self.rng.random() < 0.05:
            self.habit = self.rng.choice(HABITS)
        if isinstance(event, Received):
            self._remember(event.message)
        if isinstance(event, Tick) and self.config.reserves and self.heard and self.rng.random() < 0.2:
            self._come_late(self.rng.choice(self.heard))
        todo = [event]
        while todo:
            try:
                state, effects = step(self.state, todo.pop(0))
            except AssayError:  # its own lies come back to it, and Diverged with them
                continue
            if self.is_stubborn and state.config.configuration != self.state.config.configuration:
                continue
            self.state = state
            for effect in effects:
                match effect:
                    case SignAndSend(vote):
                        signed = self._signed(vote)
                        todo.append(Received(signed, self.state.now_ms))
                        self._lie_about(signed)
                    case SignAndSendProposal():
                        todo.append(Received(self._propose(effect), self.state.now_ms))
                    case Send(message) if self.habit == "honest":
                        self._tell(self._others(), message)
                    case Examine(proposal):
                        todo.append(Examined(digest(proposal.block), True))
                    case BuildProposal():
                        todo.append(Built(effect.iteration, self._manifest(effect)))
                    case Finalised():
                        self.habit = self.rng.choice(HABITS)

    def overhear(
        self, message: SignedVote | SignedBlock | Proposal | QuorumCertificate | CertifiedManifest
    ) -> None:
        """A message of another configuration, or one that others refuse."""
        if not isinstance(message, CertifiedManifest):
            self._remember(message)

    def _come_late(self, message: SignedVote | SignedBlock | Proposal | QuorumCertificate) -> None:
        """Vote for, against and beside what was said long ago, whoever holds its seat now."""
        match message:
            case Proposal(block=block) | SignedBlock(block=block):
                self._back_up(block)
            case SignedVote(vote=vote) | QuorumCertificate(vote=vote) if vote.iteration:
                self._say_once(vote.iteration, vote.kind, vote.block)
                self._say_once(vote.iteration, VoteKind.DUMMY, NO_DIGEST)

    def _remember(self, message: SignedVote | SignedBlock | Proposal | QuorumCertificate) -> None:
        self.heard.append(message)
        if len(self.heard) > MEMORY:
            self.heard.pop(self.rng.randrange(MEMORY))
        if isinstance(message, Proposal) and self.habit == "double":
            self._back_up(message.block)
        if isinstance(message, SignedVote) and message.vote.iteration > 0 and self.habit == "double":
            self._say_once(message.vote.iteration, message.vote.kind, message.vote.block)
        if self.habit == "replay" and self.rng.random() < 0.2:
            self._tell(self._some(), self.rng.choice(self.heard))

    def _back_up(self, block: Block) -> None:
        """Vote every way there is, each to somebody else."""
        for kind in VoteKind:
            named = NO_DIGEST if kind is VoteKind.DUMMY else digest(block)
            self._say_once(block.iteration, kind, named)

    def _say_once(self, iteration: Iteration, kind: VoteKind, block: Digest) -> None:
        if (iteration, kind, block) not in self.said:
            self.said.add((iteration, kind, block))
            vote = Vote(run_id=self.config.run_id, iteration=iteration, kind=kind, block=block)
            self._tell(self._some() | self.allies, self._signed(vote))

    def _lie_about(self, signed: SignedVote) -> None:
        if self.habit in ("honest", "double", "replay"):
            self._tell(self._others(), signed)
        elif self.habit == "withhold":
            self._tell(self._some(), signed)

    def _propose(self, effect: SignAndSendProposal) -> Proposal:
        mine = self._proposal(effect.block, effect.manifest, effect)
        match self.habit:
            case "honest" | "replay":
                self._tell(self._others(), mine)
            case "withhold":
                self._tell(self._some(), mine)
            case "double":
                twin = self._twin(effect)
                everybody = self._others()
                half, rest = everybody, everybody
                if self.rng.random() < 0.5:
                    half = self._some()
                    rest = everybody - half
                self._tell(half | self.allies, mine)
                self._tell(rest | self.allies, twin)
                self._back_up(mine.block)
                self._back_up(twin.block)
        if self.habit in ("double", "withhold") and self.rng.random() < 0.5:
            nothing = replace(mine.block, manifest=NO_DIGEST)
            signature = sign(self.key, self.domain, nothing)
            self._tell(self._some(), SignedBlock(block=nothing, verifier=self.seat, signature=signature))
        return mine

    def _twin(self, effect: SignAndSendProposal) -> Proposal:
        """Another proposal of the same iteration; on a configuration's last round one that goes on in it."""
        block, manifest = effect.block, replace(effect.manifest, aggregate=Digest(self.rng.randbytes(32)))
        is_closing = block.is_closing
        if self.config.reserves:
            orphan = self._orphan(effect) if self.rng.random() < 0.5 else None
            if orphan is not None:
                return orphan
            if self.rng.random() < 0.5:
                manifest = replace(manifest, hand_over=self._another(manifest.hand_over))
            if self.rng.random() < 0.3:
                is_closing = not is_closing
        if block.is_closing and not is_closing:
            on = RoundId(block.round + 1)
            manifest = replace(manifest, round=on, parent=block.manifest, hand_over=())
        block = replace(block, round=manifest.round, manifest=digest(manifest), is_closing=is_closing)
        return self._proposal(block, manifest, effect)

    def _orphan(self, effect: SignAndSendProposal) -> Proposal | None:
        """A child of a block that was given up and never certified, as if it began its configuration."""
        begin, own = before_first(number_of(effect.block.iteration)), self.state
        dummies = dummies_between(own, begin, effect.block.iteration)
        given_up = [
            one for one in own.bodies.values()
            if begin < one.block.iteration < effect.block.iteration and not is_certified(own, one.block)
        ]  # fmt: skip
        if not (begin and dummies and given_up):
            return None
        below = self.rng.choice(given_up)
        number, parent = RoundId(below.block.round + 1), below.block.manifest
        hand_over = self.due(own.config.configuration, number, parent)
        manifest = replace(effect.manifest, round=number, parent=parent, hand_over=hand_over)
        block = replace(effect.block, round=number, parent=digest(below.block), manifest=digest(manifest))
        return self._proposal(block, manifest, replace(effect, parent=(), dummies=dummies))

    def _another(self, due: tuple[HandOver, ...]) -> tuple[HandOver, ...]:
        """None where one is due, or one that may be another."""
        if due and self.rng.random() < 0.7:
            return ()
        seat, holder = self.rng.choice(self.config.verifiers), self.rng.choice(self.config.reserves)
        return (HandOver(seat=seat, holder=holder),)

    def _proposal(self, block: Block, manifest: Manifest, effect: SignAndSendProposal) -> Proposal:
        return Proposal(
            block=block,
            manifest=manifest,
            parent=effect.parent,
            dummies=effect.dummies,
            proposer=self.seat,
            signature=sign(self.key, self.domain, block),
        )

    def _manifest(self, asked: BuildProposal) -> Manifest:
        spoiled = self.habit == "withhold" and self.rng.random() < 0.3
        hand_over = self.due(self.state.config.configuration, asked.round, asked.parent_manifest)
        if self.config.reserves and self.habit != "honest" and self.rng.random() < 0.3:
            hand_over = self._another(hand_over)
        made = an_empty_manifest(
            self.config.run_id,
            asked.round,
            asked.parent_manifest,
            aggregate=Digest(self.rng.randbytes(32)),
            chain=NO_DIGEST if spoiled else Digest(bytes([1]) * 32),
        )
        return replace(made, hand_over=hand_over)

    def _signed(self, vote: Vote) -> SignedVote:
        return SignedVote(vote=vote, verifier=self.seat, signature=sign(self.key, self.domain, vote))

    def _others(self) -> frozenset[PeerId]:
        return frozenset((*self.config.verifiers, *self.config.reserves)) - {self.config.me}

    def _some(self) -> frozenset[PeerId]:
        return frozenset(peer for peer in sorted(self._others()) if self.rng.random() < 0.5)

    def _tell(
        self, peers: frozenset[PeerId], message: SignedVote | SignedBlock | Proposal | QuorumCertificate
    ) -> None:
        for peer in sorted(peers - {self.config.me}):
            self.say(peer, message)
