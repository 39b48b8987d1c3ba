"""Liar: a Byzantine verifier that knows the rules and breaks all of them.

It runs the production step like everybody, to know what would be said when,
and says something else: nothing, both things, different things to different
hosts, old things again. Liars hear each other's lies and back them up.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from nacl.signing import SigningKey

from assay.protocol.encoding.codec import digest
from assay.protocol.errors import AssayError
from assay.protocol.identity import Domain, sign
from assay.protocol.messages import Block, Manifest, Proposal, QuorumCertificate, SignedVote, Vote, VoteKind
from assay.protocol.types import NO_DIGEST, Digest, Iteration, PeerId
from assay.testing.run import an_empty_manifest
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
)

Say = Callable[[PeerId, SignedVote | Proposal | QuorumCertificate], None]
HABITS = ("silent", "double", "double", "withhold", "replay", "honest")
MEMORY = 60  # messages it may replay


@dataclass(slots=True)
class Liar:
    """One lying verifier; `say` puts a message on the network, `allies` are the liars, itself too."""

    key: SigningKey
    config: ConsensusConfig
    domain: Domain
    rng: random.Random
    say: Say
    allies: frozenset[PeerId]
    state: State = field(init=False)
    habit: str = "honest"
    heard: list[SignedVote | Proposal | QuorumCertificate] = field(default_factory=list)
    said: set[tuple[Iteration, VoteKind, Digest]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.state = restore(self.config, (), 0)

    def take(self, event: Event) -> None:
        """Follow the protocol in private; lie about what comes out."""
        if self.rng.random() < 0.05:
            self.habit = self.rng.choice(HABITS)
        if isinstance(event, Received):
            self._remember(event.message)
        todo = [event]
        while todo:
            try:
                self.state, effects = step(self.state, todo.pop(0))
            except AssayError:  # its own lies come back to it, and Diverged with them
                continue
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

    def _remember(self, message: SignedVote | Proposal | QuorumCertificate) -> None:
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
                manifest = replace(effect.manifest, aggregate=Digest(self.rng.randbytes(32)))
                twin = self._proposal(replace(effect.block, manifest=digest(manifest)), manifest, effect)
                everybody = self._others()
                half, rest = everybody, everybody
                if self.rng.random() < 0.5:
                    half = self._some()
                    rest = everybody - half
                self._tell(half | self.allies, mine)
                self._tell(rest | self.allies, twin)
                self._back_up(mine.block)
                self._back_up(twin.block)
        return mine

    def _proposal(self, block: Block, manifest: Manifest, effect: SignAndSendProposal) -> Proposal:
        return Proposal(
            block=block,
            manifest=manifest,
            parent=effect.parent,
            dummies=effect.dummies,
            proposer=self.config.me,
            signature=sign(self.key, self.domain, block),
        )

    def _manifest(self, asked: BuildProposal) -> Manifest:
        spoiled = self.habit == "withhold" and self.rng.random() < 0.3
        return an_empty_manifest(
            self.config.run_id,
            asked.round,
            asked.parent_manifest,
            aggregate=Digest(self.rng.randbytes(32)),
            chain=NO_DIGEST if spoiled else Digest(bytes([1]) * 32),
        )

    def _signed(self, vote: Vote) -> SignedVote:
        return SignedVote(vote=vote, verifier=self.config.me, signature=sign(self.key, self.domain, vote))

    def _others(self) -> frozenset[PeerId]:
        return frozenset(self.config.verifiers) - {self.config.me}

    def _some(self) -> frozenset[PeerId]:
        return frozenset(peer for peer in sorted(self._others()) if self.rng.random() < 0.5)

    def _tell(self, peers: frozenset[PeerId], message: SignedVote | Proposal | QuorumCertificate) -> None:
        for peer in sorted(peers - {self.config.me}):
            self.say(peer, message)
