"""World: a whole network of verifiers in one thread, from one seed.

It runs the production `step`, `restore` and `authenticate`; only the driver
around them, the disk and the network are its own. Safety is checked at every
effect, across restarts; `run` returns once the honest have made `rounds` more
rounds after the faults stopped, and raises `Violation` otherwise.

    storm (drops, cuts, crashes, liars) --storm_ms--> calm (liars only) --> done
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from nacl.signing import SigningKey

from assay.protocol.agreement.finality import SETTLED, check_certified
from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.encoding.codec import decode_any, digest, encode
from assay.protocol.errors import AssayError, Diverged
from assay.protocol.identity import Domain, peer_of, sign
from assay.protocol.messages import (
    MESSAGES,
    Block,
    CertifiedManifest,
    Manifest,
    Proposal,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.types import Digest, Iteration, PeerId, RoundId
from assay.testing.run import an_empty_manifest
from assay.verifier.consensus import machine as consensus
from assay.verifier.consensus.check import authenticate
from assay.verifier.consensus.machine import body
from assay.verifier.consensus.types import (
    Accuse,
    BuildProposal,
    Built,
    ConsensusConfig,
    Effect,
    Event,
    Examine,
    Examined,
    Finalised,
    NeedBlock,
    NeedSync,
    Persist,
    Ready,
    Received,
    Record,
    Send,
    SignAndSend,
    SignAndSendProposal,
    State,
    Synced,
    Tick,
)
from tests.simulation.liar import Liar
from tests.simulation.network import Alarm, Delivery, Network, Weather

RUN_ID = Digest(sha256(b"simulated run").digest())
GENESIS = Digest(sha256(b"simulated spec").digest())
DOMAIN = Domain(deployment_id=Digest(sha256(b"simulated deployment").digest()), run_id=RUN_ID)
SOUND = Digest(bytes([1]) * 32)  # what `chain` says in a manifest whose body is true
TICK_MS, DELAY_MAX_MS = 150, 40
CALM_MS_MAX = 30_000  # in which `rounds` rounds must be made


class Violation(AssertionError):
    """Something the protocol promises did not hold."""


@functools.cache
def key_of(index: int) -> SigningKey:
    """The peer key of a verifier, the same in every world so that signatures can be cached."""
    return SigningKey(sha256(b"verifier %d" % index).digest())


@functools.lru_cache(maxsize=1 << 16)
def _decoded(payload: bytes) -> Any:
    return decode_any(MESSAGES, payload)


@functools.lru_cache(maxsize=1 << 16)
def _encoded(message: Any) -> bytes:
    return encode(message)


@functools.lru_cache(maxsize=1 << 16)
def _authentic(verifiers: tuple[PeerId, ...], message: Any) -> bool:
    """Whether production would accept it; remembered, because a world shares its messages."""
    config = ConsensusConfig(run_id=RUN_ID, genesis=GENESIS, verifiers=verifiers, me=verifiers[0])
    try:
        authenticate(config, DOMAIN, message)
    except AssayError:
        return False
    return True


@dataclass(slots=True)
class Honest:
    """An honest verifier's process, disk and past. `journal` and `chain` survive a crash."""

    key: SigningKey
    config: ConsensusConfig
    state: State
    journal: list[Record] = field(default_factory=list)
    chain: list[CertifiedManifest] = field(default_factory=list)
    signed: dict[tuple[Iteration, VoteKind], Vote] = field(default_factory=dict)  # as an outsider saw
    proposed: dict[Iteration, Block] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class World:
    """One network. `journal=False` breaks the rule that restarts remember."""

    seed: int
    verifiers: int = 4
    liars: int = 1
    drop: float = 0.2
    duplicate: float = 0.1
    crash: float = 0.002  # per effect of an honest verifier, while the storm lasts
    rounds: int = 2
    storm_ms: int = 8_000
    journal: bool = True
    rng: random.Random = field(init=False)
    network: Network[int] = field(init=False)
    peers: tuple[PeerId, ...] = field(init=False)
    honest: dict[int, Honest] = field(default_factory=dict)
    lying: dict[int, Liar] = field(default_factory=dict)
    final: dict[int, Digest] = field(default_factory=dict)  # round -> block digest, whoever was first
    accused: set[PeerId] = field(default_factory=set)
    crashes: int = 0
    is_calm: bool = False

    def __post_init__(self) -> None:
        assert self.liars <= faults_tolerated(self.verifiers)
        self.rng = random.Random(self.seed)
        keys = sorted((key_of(i) for i in range(self.verifiers)), key=lambda key: peer_of(key))
        self.peers = tuple(peer_of(key) for key in keys)
        # Rough weather stops agreement, fair weather lets both sides of a cut go on: liars need both.
        delay_ms, rough = self.rng.choice((DELAY_MAX_MS, 150, 400)), self.rng.choice((0.0, 0.5, 1.0))
        weather = Weather(delay_ms=(2, delay_ms), drop=self.drop * rough, duplicate=self.duplicate)
        self.network = Network(seed=self.seed, hosts=tuple(range(self.verifiers)), weather=weather)
        chosen = set(self.rng.sample(range(self.verifiers), self.liars))
        allies = frozenset(self.peers[host] for host in chosen)
        for host, key in enumerate(keys):
            config = self._config(host)
            if host in chosen:
                rng = random.Random(self.rng.randrange(2**32))
                say = functools.partial(self._say, host)
                self.lying[host] = Liar(key, config, DOMAIN, rng, say, allies)
            else:
                self.honest[host] = Honest(key, config, consensus.restore(config, (), 0))
                self.network.wake(host, ("ready", 0), self.rng.randrange(400))
            self.network.wake(host, "tick", self.rng.randrange(TICK_MS))
        for _ in range(self.rng.randrange(4)):
            self.network.wake(None, "cut", self.rng.randrange(self.storm_ms))
        if self.rng.random() < 0.3:
            self.network.wake(None, "blackout", self.rng.randrange(self.storm_ms))
        self.network.wake(None, "calm", self.storm_ms)

    def run(self) -> World:
        """Let time pass until enough rounds are final everywhere.

        Raises:
            Violation: a promise was broken, or no progress in calm weather.
        """
        goal = None
        while goal is None or any(len(one.chain) < goal for one in self.honest.values()):
            event = self.network.next()
            assert event is not None
            self._happen(event)
            if self.is_calm and goal is None:
                goal = max(len(one.chain) for one in self.honest.values()) + self.rounds
            if self.network.now_ms > self.storm_ms + CALM_MS_MAX:
                heights = [len(one.chain) for one in self.honest.values()]
                raise Violation(f"no progress in calm weather: rounds {heights}, expected {goal}")
        return self

    def _config(self, host: int) -> ConsensusConfig:
        return ConsensusConfig(
            run_id=RUN_ID,
            genesis=GENESIS,
            verifiers=self.peers,
            me=self.peers[host],
            iteration_timeout_ms=3_000,
            ready_timeout_ms=500,
            resend_ms=300,
        )

    # ---- what happens ----

    def _happen(self, event: Delivery[int] | Alarm[int]) -> None:
        now_ms = self.network.now_ms
        match event:
            case Delivery(source, target, payload):
                self._deliver(source, target, payload)
            case Alarm(None, "cut"):
                self._cut(min(self.rng.randrange(200, 6_000), self.storm_ms - now_ms))
            case Alarm(None, "blackout"):
                for host in self.honest:
                    if not self.network.is_down(host):
                        self._crash(host)
            case Alarm(None, "calm"):
                self.is_calm = True
                self.network.weather = Weather(delay_ms=(2, DELAY_MAX_MS))
            case Alarm(None, ("restart", int(host))):
                self._restart(host)
            case Alarm(int(host), "tick"):
                self.network.wake(host, "tick", TICK_MS)
                self._take(host, Tick(now_ms))
            case Alarm(int(host), ("ready", int(number))):
                self._take(host, Ready(RoundId(number), now_ms))
            case Alarm(int(host), (Built() | Examined()) as answer):
                self._take(host, answer)

    def _deliver(self, source: int, target: int, payload: bytes) -> None:
        """Messages are protocol messages; a request is one letter and what it asks for."""
        one = self.honest.get(target)
        if payload[:1] == b"b":
            found = body(one.state, Digest(payload[1:])) if one else None
            if found is not None:
                self._say(target, source, found)
            return
        if payload[:1] == b"s":
            for certified in one.chain[int.from_bytes(payload[1:], "big") :][:8] if one else ():
                self._say(target, source, certified)
            return
        message = _decoded(payload[1:])
        if not _authentic(self.peers, message):
            if self.peers[source] not in self._liar_names():
                raise Violation(f"honest {source} sent what production refuses: {message}")
            return
        if isinstance(message, CertifiedManifest):
            self._take(target, Synced((message,), self.network.now_ms))
        else:
            self._take(target, Received(message, self.network.now_ms))

    def _take(self, host: int, event: Event) -> None:
        """One event through the production step, and what it sets off within the same host."""
        if host in self.lying:
            self.lying[host].take(event)
            return
        one, todo = self.honest[host], [event]
        while todo:
            try:
                one.state, effects = consensus.step(one.state, todo.pop(0))
            except Diverged as fault:
                raise Violation(f"host {host} diverged: {fault}") from fault
            except AssayError:
                continue  # the sender would be scored
            for effect in effects:
                if not self.is_calm and self.rng.random() < self.crash:
                    self._crash(host)
                    return
                todo += self._perform(host, one, effect)

    def _cut(self, heal_ms: int) -> None:
        """Split the network; half the time the liars reach both sides and can tell each another story."""
        torn = list(self.honest) if self.rng.random() < 0.5 else list(range(self.verifiers))
        self.rng.shuffle(torn)
        at = self.rng.choice((len(torn) // 2, self.rng.randint(0, len(torn))))
        self.network.partition(torn[:at], torn[at:], heal_ms)

    def _crash(self, host: int) -> None:
        self.crashes += 1
        self.network.crash(host)
        self.network.wake(None, ("restart", host), self.rng.randrange(50, 2_500))

    def _restart(self, host: int) -> None:
        one = self.honest[host]
        self.network.restart(host)
        last = one.chain[-1] if one.chain else None
        if last is not None and self.rng.random() < 0.5:  # the driver may prune its journal
            one.journal = [record for record in one.journal if _iteration(record) > last.block.iteration]
        records = one.journal if self.journal else ()
        one.state = consensus.restore(one.config, records, self.network.now_ms, last)
        self.network.wake(host, "tick", 0)
        self.network.wake(host, ("ready", len(one.chain)), self.rng.randrange(400))

    # ---- what the driver does, and what must be true when it does ----

    def _perform(self, host: int, one: Honest, effect: Effect) -> tuple[Event, ...]:
        now_ms, others = self.network.now_ms, [peer for peer in range(self.verifiers) if peer != host]
        match effect:
            case Persist(record):
                one.journal.append(record)
            case SignAndSend(vote):
                self._check_vote(one, vote)
                signed = SignedVote(vote=vote, verifier=one.config.me, signature=sign(one.key, DOMAIN, vote))
                for peer in others:
                    self._say(host, peer, signed)
                return (Received(signed, now_ms),)
            case SignAndSendProposal(block, manifest, parent, dummies):
                if one.proposed.setdefault(block.iteration, block) != block or block not in one.journal:
                    raise Violation(f"host {host} proposed twice, or before it was durable: {block}")
                proposal = Proposal(
                    block=block,
                    manifest=manifest,
                    parent=parent,
                    dummies=dummies,
                    proposer=one.config.me,
                    signature=sign(one.key, DOMAIN, block),
                )
                for peer in others:
                    self._say(host, peer, proposal)
                return (Received(proposal, now_ms),)
            case Send(message):
                for peer in others:
                    self._say(host, peer, message)
            case BuildProposal():
                # Nodes train only on what is final, so a round after that has nothing to wait for.
                busy_ms = 50 if effect.ancestors else 400
                manifest = toy_manifest(effect, host)
                self.network.wake(host, Built(effect.iteration, manifest), self.rng.randrange(busy_ms))
            case Examine(proposal, _):
                is_sound = proposal.manifest.chain == SOUND
                answer = Examined(digest(proposal.block), is_sound)
                if self.rng.random() < 0.2:  # first it lacks an update, later it has it
                    self.network.wake(host, Examined(answer.block, False), 1)
                self.network.wake(host, answer, self.rng.randrange(2, 60))
            case NeedBlock(block) if others:
                self.network.send(host, self.rng.choice(others), b"b" + block)
            case NeedSync(number) if others:
                self.network.send(host, self.rng.choice(others), b"s" + number.to_bytes(8, "big"))
            case Accuse(first, second):
                self._check_evidence(first, second)
            case Finalised(certified):
                self._check_final(host, one, certified)
                one.chain.append(certified)
                self.network.wake(host, ("ready", len(one.chain)), self.rng.randrange(100, 400))
        return ()

    def _say(self, source: int, target: int | PeerId, message: Any) -> None:
        host = target if isinstance(target, int) else self.peers.index(target)
        self.network.send(source, host, b"m" + _encoded(message))

    def _liar_names(self) -> set[PeerId]:
        return {self.peers[host] for host in self.lying}

    def _check_vote(self, one: Honest, vote: Vote) -> None:
        if self.journal and vote not in one.journal:
            raise Violation(f"signed before it was durable: {vote}")
        if vote.iteration == SETTLED:
            return
        if one.signed.setdefault((vote.iteration, vote.kind), vote) != vote:
            raise Violation(f"two votes of one kind in iteration {vote.iteration}")
        kinds = {kind for iteration, kind in one.signed if iteration == vote.iteration}
        if {VoteKind.DUMMY, VoteKind.FINALISE} <= kinds:
            raise Violation(f"DUMMY and FINALISE in iteration {vote.iteration}")

    def _check_evidence(self, first: SignedVote | Proposal, second: SignedVote | Proposal) -> None:
        culprits = {one.verifier if isinstance(one, SignedVote) else one.proposer for one in (first, second)}
        self.accused |= culprits
        if len(culprits) != 1 or not culprits <= self._liar_names():
            raise Violation(f"an honest verifier is accused: {first} {second}")
        if not all(_authentic(self.peers, one) for one in (first, second)) or first == second:
            raise Violation("evidence that proves nothing")

    def _check_final(self, host: int, one: Honest, certified: CertifiedManifest) -> None:
        number, name = certified.block.round, digest(certified.block)
        try:
            check_certified(certified, DOMAIN, self.peers)
        except AssayError as fault:
            raise Violation(f"round {number}: {fault}") from fault
        if number != len(one.chain):
            raise Violation(f"host {host} finalised round {number}, expected {len(one.chain)}")
        if certified.manifest.chain != SOUND:
            raise Violation(f"round {number} holds a body that honest verifiers refuse")
        if self.final.setdefault(number, name) != name:
            raise Violation(f"two blocks are final in round {number}")
        expected = digest(one.chain[-1].manifest) if one.chain else GENESIS
        if certified.manifest.parent != expected:
            raise Violation(f"round {number} does not extend the chain")


def _iteration(record: Record) -> Iteration:
    if isinstance(record, Block | Vote):
        return record.iteration
    return record.block.iteration if isinstance(record, Proposal) else record.vote.iteration


def toy_manifest(asked: BuildProposal, host: int) -> Manifest:
    """A manifest without content, one for each iteration and host."""
    return an_empty_manifest(
        RUN_ID,
        asked.round,
        asked.parent_manifest,
        aggregate=Digest(sha256(b"%d by %d" % (asked.iteration, host)).digest()),
        chain=SOUND,
    )


def first_violation(seeds: range, make: Callable[[int], World]) -> Violation | None:
    """The first promise broken among these seeds, or None: for tests that break a rule on purpose."""
    for seed in seeds:
        try:
            make(seed).run()
        except Violation as violation:
            return violation
    return None
