"""World: a whole network of verifiers in one thread, from one seed.

It runs the production `step`, `restore` and `authenticate`; only the driver
around them, the disk and the network are its own. Safety is checked at every
effect, across restarts; `run` returns once the honest have made `rounds` more
rounds after the faults stopped, and raises `Violation` otherwise.

    storm (drops, cuts, crashes, liars) --storm_ms--> calm (liars only) --> done

With reserves, seats change hands (docs/decisions/0051): one to each of them, in order, in manifests that
follow from their parents alone, as in a fold. In each configuration at most `liars` seats lie and at most f
are faulty. The holder before a hand-over may lie, die, come back or only retire; the one after it may lie. In
the last configuration, too, somebody may die once it has begun, so that the run needs the new holders' votes.
One host's disk may lose links.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from nacl.signing import SigningKey

from assay.protocol.agreement.configurations import Configuration, number_of
from assay.protocol.agreement.double_votes import check_double_vote, double_vote
from assay.protocol.agreement.finality import SETTLED, check_certified
from assay.protocol.agreement.quorum import faults_tolerated, quorum
from assay.protocol.encoding.codec import decode_any, digest, encode
from assay.protocol.errors import AssayError, Diverged
from assay.protocol.identity import Domain, peer_of, sign
from assay.protocol.messages import (
    MESSAGES,
    Block,
    CertifiedManifest,
    HandOver,
    Manifest,
    Proposal,
    SignedBlock,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.types import Digest, Iteration, PeerId, RoundId
from assay.testing.run import an_empty_manifest
from assay.verifier.consensus import machine as consensus
from assay.verifier.consensus.chain import block_digest
from assay.verifier.consensus.check import heard, heard_links
from assay.verifier.consensus.machine import body, iteration_of
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
    Overtaken,
    Passed,
    Persist,
    Ready,
    Received,
    Record,
    Send,
    SignAndPass,
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
LAGS = (
    0.15  # of the turns of honest leaders: they find that they lack something, before they propose or after
)
LATEST = 12  # rounds a configuration at most, if the run gets there


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
def _told(
    seats: tuple[PeerId, ...], reserves: tuple[PeerId, ...], configuration: Configuration, message: Any
) -> Event | AssayError | None:
    """What production makes of a message; remembered, because a world shares its messages."""
    config = ConsensusConfig(
        run_id=RUN_ID, genesis=GENESIS, verifiers=seats, me=seats[0], reserves=reserves,
        configuration=configuration,
    )  # fmt: skip
    try:
        if isinstance(message, CertifiedManifest):
            return heard_links(config, DOMAIN, (message,), 0)
        return heard(config, DOMAIN, message, 0)
    except AssayError as fault:
        return fault


@dataclass(slots=True)
class Honest:
    """The process, disk and past of an honest verifier or reserve. `journal` and `chain` survive a crash."""

    key: SigningKey
    config: ConsensusConfig
    state: State
    journal: list[Record] = field(default_factory=list)
    chain: list[CertifiedManifest] = field(default_factory=list)
    signed: dict[tuple[Iteration, VoteKind], Vote] = field(default_factory=dict)  # as an outsider saw
    proposed: dict[Iteration, Block] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class World:
    """One network of `verifiers` seats. `journal=False` breaks the rule that restarts remember."""

    seed: int
    verifiers: int = 4
    liars: int = 1
    reserves: int = 0  # hosts beyond the first holders of seats, and hand-overs
    drop: float = 0.2
    duplicate: float = 0.1
    crash: float = 0.002  # per effect of an honest verifier, while the storm lasts
    rounds: int = 2
    storm_ms: int = 8_000
    journal: bool = True
    rng: random.Random = field(init=False)
    network: Network[int] = field(init=False)
    peers: tuple[PeerId, ...] = field(init=False)  # keys of the hosts: the seats' first holders, reserves
    hand_overs: tuple[HandOver, ...] = field(init=False)  # as they will follow each other
    pace: int = field(init=False)  # a hand-over is due in one of so many manifests
    deaths: dict[int, int] = field(default_factory=dict)  # host by the configuration in which it dies
    forgetful: int | None = None  # the host whose disk may lose links
    honest: dict[int, Honest] = field(default_factory=dict)
    lying: dict[int, Liar] = field(default_factory=dict)
    final: dict[int, Digest] = field(default_factory=dict)  # round -> block digest, whoever was first
    certifiable: dict[int, Digest] = field(default_factory=dict)  # likewise, if all liars sign for it
    blocks: dict[Digest, Block] = field(default_factory=dict)  # whatever was proposed
    voted: dict[Vote, set[PeerId]] = field(default_factory=dict)  # the seats for which the honest signed it
    dead: set[int] = field(default_factory=set)
    doomed: set[int] = field(default_factory=set)
    accused: set[PeerId] = field(default_factory=set)
    crashes: int = 0
    passes: int = 0  # of turns, by honest leaders
    is_calm: bool = False

    def __post_init__(self) -> None:
        assert self.liars <= faults_tolerated(self.verifiers)
        self.rng = random.Random(self.seed)
        keys = sorted((key_of(i) for i in range(self.verifiers)), key=lambda key: peer_of(key))
        keys += (key_of(self.verifiers + i) for i in range(self.reserves))
        self.peers = tuple(peer_of(key) for key in keys)
        # Rough weather stops agreement, fair weather lets both sides of a cut go on: liars need both.
        delay_ms, rough = self.rng.choice((DELAY_MAX_MS, 150, 400)), self.rng.choice((0.0, 0.5, 1.0))
        weather = Weather(delay_ms=(2, delay_ms), drop=self.drop * rough, duplicate=self.duplicate)
        self.network = Network(seed=self.seed, hosts=tuple(range(len(keys))), weather=weather)
        chosen = self._cast()
        allies = frozenset(self.peers[host] for host in chosen)
        for host, key in enumerate(keys):
            config = self._config(host)
            if host in chosen:
                rng = random.Random(self.rng.randrange(2**32))
                say = functools.partial(self._say, host)
                seat = self._seat(config)
                assert seat is not None
                self.lying[host] = Liar(key, config, DOMAIN, rng, say, allies, seat, self.due)
            else:
                self.honest[host] = Honest(key, config, consensus.restore(config, (), 0))
                self.network.wake(host, ("ready", 0), self.rng.randrange(400))
            self.network.wake(host, "tick", self.rng.randrange(TICK_MS))
        for _ in range(self.rng.randrange(4)):
            self.network.wake(None, "cut", self.rng.randrange(self.storm_ms))
        if self.rng.random() < 0.3:
            self.network.wake(None, "blackout", self.rng.randrange(self.storm_ms))
        self.network.wake(None, "calm", self.storm_ms)
        if 0 in self.deaths:
            self.network.wake(None, ("die", self.deaths[0]), self.rng.randrange(self.storm_ms // 2))

    def run(self) -> World:
        """Let time pass until enough rounds are final everywhere.

        Raises:
            Violation: a promise was broken, or no progress in calm weather.
        """
        goal = None
        while goal is None or any(len(one.chain) < goal for one in self._living()):
            event = self.network.next()
            assert event is not None
            self._happen(event)
            if self.is_calm and goal is None and self._has_handed_over():
                goal = max(len(one.chain) for one in self._living()) + self.rounds
                goal += self.verifiers if self.reserves else 0  # until every holder has led
            if self.network.now_ms > self.storm_ms + CALM_MS_MAX * (1 + self.reserves):
                heights = [len(one.chain) for one in self.honest.values()]
                raise Violation(f"no progress in calm weather: rounds {heights}, expected {goal}")
        for host, one in self.honest.items():
            holds = one.state.config.seat is not None and one.state.config.configuration.number
            signed = {number_of(iteration) for iteration, _ in one.signed}
            if holds and host not in self.dead | {self.forgetful} and holds not in signed:
                raise Violation(f"host {host} holds a seat in configuration {holds} and never voted in it")
        return self

    def due(self, configuration: Configuration, number: RoundId, parent: Digest) -> tuple[HandOver, ...]:
        """What a manifest must hand over: a function of the manifests before it, and so of its branch."""
        done = configuration.number
        if not number or done == len(self.hand_overs):
            return ()
        is_due = parent[0] % self.pace == 0 or number >= LATEST * (done + 1)
        return (self.hand_overs[done],) if is_due else ()

    def _cast(self) -> set[int]:
        """Draw the hand-overs, who dies and who forgets; the hosts that lie."""
        self.hand_overs, self.pace = (), 1
        if not self.reserves:
            return set(self.rng.sample(range(self.verifiers), self.liars))
        self.hand_overs = tuple(
            HandOver(seat=self.rng.choice(self.seats), holder=holder)
            for holder in self.peers[self.verifiers :]
        )
        self.pace = self.rng.choice((1, 2, 4))
        hosts = self.rng.sample(range(len(self.peers)), len(self.peers))
        if self.rng.random() < 0.5:  # a liar's seat is handed over, perhaps to another
            hosts.sort(key=lambda host: not any(one.seat == self.peers[host] for one in self.hand_overs))
        lying = set[int]()
        for host in hosts:
            if max(self._faulty(lying | {host})) <= self.liars:
                lying.add(host)
        faults = faults_tolerated(self.verifiers)
        faulty, honest = set(lying), [host for host in hosts if host not in lying]
        if honest and self.rng.random() < 0.3 and max(self._faulty(lying | {honest[0]})) <= faults:
            self.forgetful = honest[0]
            faulty.add(honest[0])
        for number in range(len(self.hand_overs) + 1):
            ends = number == len(self.hand_overs)
            seat = self.rng.choice(self.seats) if ends else self.hand_overs[number].seat
            host = self.peers.index(Configuration(self.hand_overs[:number]).key(seat))
            if host not in faulty and self._faulty(faulty)[number] < faults and self.rng.random() < 0.7:
                self.deaths[number] = host
        return lying

    def _faulty(self, hosts: set[int]) -> list[int]:
        """In each configuration, how many seats these hosts hold."""
        names = {self.peers[host] for host in hosts}
        configurations = [Configuration(self.hand_overs[:to]) for to in range(len(self.hand_overs) + 1)]
        return [sum(one.key(seat) in names for seat in self.seats) for one in configurations]

    @property
    def seats(self) -> tuple[PeerId, ...]:
        """The names of the seats."""
        return self.peers[: self.verifiers]

    def _seat(self, config: ConsensusConfig) -> PeerId | None:
        """The seat that a host holds in some configuration."""
        if config.me in self.seats:
            return config.me
        return next((one.seat for one in self.hand_overs if one.holder == config.me), None)

    def _living(self) -> list[Honest]:
        return [one for host, one in self.honest.items() if host not in self.dead]

    def _has_handed_over(self) -> bool:
        numbers = (one.state.config.configuration.number for one in self._living())
        return max(numbers) == len(self.hand_overs)

    def _config(self, host: int) -> ConsensusConfig:
        return ConsensusConfig(
            run_id=RUN_ID,
            genesis=GENESIS,
            verifiers=self.seats,
            me=self.peers[host],
            reserves=self.peers[self.verifiers :],
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
            case Alarm(None, ("die", int(host))):
                self.dead.add(host)
                self.network.crash(host)
                if self.rng.random() < 0.5:
                    self.network.wake(None, ("return", host), self.rng.randrange(3_000, 12_000))
            case Alarm(None, ("return", int(host))):
                self.dead.discard(host)
                self._restart(host)
            case Alarm(None, ("restart", int(host))) if host not in self.dead:
                self._restart(host)
            case Alarm(int(host), "tick"):
                self.network.wake(host, "tick", TICK_MS)
                self._take(host, Tick(now_ms))
            case Alarm(int(host), ("ready", int(number))):
                self._take(host, Ready(RoundId(number), now_ms))
            case Alarm(int(host), (Built() | Passed() | Examined()) as answer):
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
        configuration = (one or self.lying[target]).state.config.configuration
        if isinstance(message, CertifiedManifest) and one and message.block.round < len(one.chain):
            return
        event = _told(self.seats, self.peers[self.verifiers :], configuration, message)
        if isinstance(event, Received | Synced):
            self._take(target, replace(event, now_ms=self.network.now_ms))
            return
        if target in self.lying:
            self.lying[target].overhear(message)
        if isinstance(event, AssayError) and source in self.honest:
            raise Violation(f"honest {source} sent what production refuses: {event}: {message}")
        if isinstance(event, Overtaken):
            self._take(target, event)

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
        torn = list(self.honest) if self.rng.random() < 0.5 else list(range(len(self.peers)))
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
        if host == self.forgetful and self.rng.random() < 0.5:
            del one.chain[-self.rng.randint(1, 4) :]
        last = one.chain[-1] if one.chain else None
        if last is not None and host != self.forgetful and self.rng.random() < 0.5:  # its driver may prune
            one.journal = [record for record in one.journal if iteration_of(record) > last.block.iteration]
        records = one.journal if self.journal else ()
        config = replace(one.config, configuration=_configuration(one.chain))
        one.state = consensus.restore(config, records, self.network.now_ms, last)
        self.network.wake(host, "tick", 0)
        self.network.wake(host, ("ready", len(one.chain)), self.rng.randrange(400))

    # ---- what the driver does, and what must be true when it does ----

    def _perform(self, host: int, one: Honest, effect: Effect) -> tuple[Event, ...]:
        now_ms, others = self.network.now_ms, [peer for peer in range(len(self.peers)) if peer != host]
        match effect:
            case Persist(record):
                one.journal.append(record)
            case SignAndSend(vote):
                seat = self._check_vote(one, vote)
                signed = SignedVote(vote=vote, verifier=seat, signature=sign(one.key, DOMAIN, vote))
                for peer in others:
                    self._say(host, peer, signed)
                return (Received(signed, now_ms),)
            case SignAndSendProposal(block, manifest, parent, dummies):
                if one.proposed.setdefault(block.iteration, block) != block or block not in one.journal:
                    raise Violation(f"host {host} proposed twice, or before it was durable: {block}")
                self.blocks[block_digest(block)] = block
                proposal = Proposal(
                    block=block,
                    manifest=manifest,
                    parent=parent,
                    dummies=dummies,
                    proposer=self._check_seat(one, block.iteration),
                    signature=sign(one.key, DOMAIN, block),
                )
                for peer in others:
                    self._say(host, peer, proposal)
                return (Received(proposal, now_ms),)
            case SignAndPass(block):
                if one.proposed.setdefault(block.iteration, block) != block or block not in one.journal:
                    raise Violation(f"host {host} passed its turn and proposed, or not durably: {block}")
                self.passes += 1
                seat = self._check_seat(one, block.iteration)
                passed = SignedBlock(block=block, verifier=seat, signature=sign(one.key, DOMAIN, block))
                for peer in others:
                    self._say(host, peer, passed)
            case Send(message):
                for peer in others:
                    self._say(host, peer, message)
            case BuildProposal():
                # Nodes train only on what is final, so a round after that has nothing to wait for.
                busy_ms = 50 if effect.ancestors else 400
                hand_over = self.due(one.state.config.configuration, effect.round, effect.parent_manifest)
                manifest = replace(toy_manifest(effect, host), hand_over=hand_over)
                self.network.wake(host, Built(effect.iteration, manifest), self.rng.randrange(busy_ms))
                if self.rng.random() < LAGS:
                    self.network.wake(host, Passed(effect.iteration), self.rng.randrange(busy_ms))
            case Examine(proposal, _):
                is_sound = self._may_count(one.state.config.configuration, proposal)
                answer = Examined(digest(proposal.block), is_sound)
                if self.rng.random() < 0.2:  # first it lacks an update, later it has it
                    self.network.wake(host, Examined(answer.block, False), 1)
                self.network.wake(host, answer, self.rng.randrange(2, 60))
            case NeedBlock(block) if others:
                self.network.send(host, self.rng.choice(others), b"b" + block)
            case NeedSync(number) if others:
                self.network.send(host, self.rng.choice(others), b"s" + number.to_bytes(8, "big"))
            case Accuse(first, second):
                self._check_evidence(one.state.config.configuration, first, second)
            case Finalised(certified):
                self._check_final(host, one, certified)
                one.chain.append(certified)
                self.network.wake(host, ("ready", len(one.chain)), self.rng.randrange(100, 400))
                self._begin(host, _configuration(one.chain).number)
        return ()

    def _begin(self, host: int, number: int) -> None:
        """Once another keeps the link that begins a configuration, the one may die that does so in it."""
        doomed = self.deaths.get(number)
        if number and doomed not in (None, host) and host != self.forgetful and doomed not in self.doomed:
            self.doomed.add(doomed)
            self.network.wake(None, ("die", doomed), self.rng.randrange(2_000))

    def _say(self, source: int, target: int | PeerId, message: Any) -> None:
        if isinstance(message, Proposal):
            self.blocks[block_digest(message.block)] = message.block
        host = target if isinstance(target, int) else self.peers.index(target)
        self.network.send(source, host, b"m" + _encoded(message))

    def _check_vote(self, one: Honest, vote: Vote) -> PeerId:
        """The seat in whose name an honest verifier signs this, if it may."""
        if self.journal and vote not in one.journal:
            raise Violation(f"signed before it was durable: {vote}")
        if vote.iteration == SETTLED:
            seat = self._check_seat(one, self.blocks[vote.block].iteration)
            self._check_certifiable(seat, vote)
            return seat
        seat = self._check_seat(one, vote.iteration)
        if one.signed.setdefault((vote.iteration, vote.kind), vote) != vote:
            raise Violation(f"two votes of one kind in iteration {vote.iteration}")
        kinds = {kind for iteration, kind in one.signed if iteration == vote.iteration}
        if {VoteKind.DUMMY, VoteKind.FINALISE} <= kinds:
            raise Violation(f"DUMMY and FINALISE in iteration {vote.iteration}")
        if vote.kind is VoteKind.FINALISE:
            self._check_certifiable(seat, vote)
        return seat

    def _check_seat(self, one: Honest, iteration: Iteration) -> PeerId:
        """The seat that an honest verifier holds in an iteration."""
        seat, configuration = self._seat(one.config), self._configuration_of(iteration)
        if seat is None or configuration.key(seat) != one.config.me:
            raise Violation(f"signed in iteration {iteration} without a seat")
        return seat

    def _configuration_of(self, iteration: Iteration) -> Configuration:
        return Configuration(self.hand_overs[: number_of(iteration)])

    def _check_certifiable(self, seat: PeerId, vote: Vote) -> None:
        """Whoever holds these votes and the liars' can show this block as final: one a round at most."""
        block, signers = self.blocks[vote.block], self.voted.setdefault(vote, set())
        signers.add(seat)
        configuration, liars = self._configuration_of(block.iteration), self._liar_names()
        lying = {seat for seat in self.seats if configuration.key(seat) in liars}
        if len(signers | lying) < quorum(self.verifiers) or block.is_closing:
            return
        if self.certifiable.setdefault(block.round, vote.block) != vote.block:
            raise Violation(f"certificates can be made by which two blocks are final in round {block.round}")

    def _check_evidence(
        self,
        configuration: Configuration,
        first: SignedVote | SignedBlock | Proposal,
        second: SignedVote | SignedBlock | Proposal,
    ) -> None:
        """The evidence is a double vote, by a liar that held the seat."""
        pair = double_vote(_signed(first), _signed(second))
        try:
            check_double_vote(DOMAIN, pair, configuration)
        except AssayError as fault:
            raise Violation(f"evidence that proves nothing: {fault}") from fault
        iteration = first.vote.iteration if isinstance(first, SignedVote) else first.block.iteration
        culprit = configuration.of(iteration).key(pair.verifier)
        self.accused.add(culprit)
        if culprit not in self._liar_names():
            raise Violation(f"an honest verifier is accused: {first} {second}")

    def _liar_names(self) -> set[PeerId]:
        return {self.peers[host] for host in self.lying}

    def _may_count(self, configuration: Configuration, proposal: Proposal) -> bool:
        """Whether honest verifiers find a proposal good that they examine; no run ends here."""
        return not proposal.block.is_closing and self._is_sound(configuration, proposal.manifest)

    def _is_sound(self, configuration: Configuration, manifest: Manifest) -> bool:
        """What honest verifiers check of a manifest; the configuration is that of its block's iteration."""
        due = self.due(configuration, manifest.round, manifest.parent)
        return manifest.chain == SOUND and manifest.hand_over == due

    def _check_final(self, host: int, one: Honest, certified: CertifiedManifest) -> None:
        number, name = certified.block.round, digest(certified.block)
        configuration = _configuration(one.chain)
        try:
            check_certified(certified, DOMAIN, self.seats, configuration)
        except AssayError as fault:
            raise Violation(f"round {number}: {fault}") from fault
        if number != len(one.chain):
            raise Violation(f"host {host} finalised round {number}, expected {len(one.chain)}")
        if number_of(certified.block.iteration) != configuration.number:
            raise Violation(f"round {number} is final in an iteration of an earlier configuration")
        if not self._is_sound(configuration, certified.manifest):
            raise Violation(f"round {number} holds a body that honest verifiers refuse")
        for known in (self.final, self.certifiable):
            if known.setdefault(number, name) != name:
                raise Violation(f"two blocks are final in round {number}")
        expected = digest(one.chain[-1].manifest) if one.chain else GENESIS
        if certified.manifest.parent != expected:
            raise Violation(f"round {number} does not extend the chain")


def _configuration(chain: list[CertifiedManifest]) -> Configuration:
    """That of the round after a chain's last."""
    return Configuration(tuple(one for link in chain for one in link.manifest.hand_over))


def _signed(one: SignedVote | SignedBlock | Proposal) -> SignedVote | SignedBlock:
    if not isinstance(one, Proposal):
        return one
    return SignedBlock(block=one.block, verifier=one.proposer, signature=one.signature)


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
