"""Consensus types: state, events and effects of the consensus machine.

Room: verifier (pure). Values only; the rules are in `consensus.machine`. Every record is a protocol message,
so a journal is `codec.encode` on the way in and `codec.decode_any` on the way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from assay.protocol.agreement.configurations import FIRST, Configuration
from assay.protocol.errors import ConfigError
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

Record = Block | Proposal | Vote | QuorumCertificate  # what the journal holds
Certificates = Mapping[tuple[Iteration, VoteKind], QuorumCertificate]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusConfig:
    """What one verifier or reserve must know before the first event. All but `me` is the same for all.

    Every seat is named by the key of its first holder, in all messages and here.
    """

    run_id: Digest
    genesis: Digest  # digest of the run's spec: `Manifest.parent` of round 0
    verifiers: tuple[PeerId, ...]  # names of the seats, ascending
    me: PeerId  # our key
    reserves: tuple[PeerId, ...] = ()  # keys to which a seat may be handed over
    configuration: Configuration = FIRST  # that of the round after the last final one
    iteration_timeout_ms: int = 60_000
    ready_timeout_ms: int = 4_000
    resend_ms: int = 1_000

    def __post_init__(self) -> None:
        if list(self.verifiers) != sorted(set(self.verifiers)):
            raise ConfigError("verifiers must ascend without repetition")
        if set(self.reserves) & set(self.verifiers):
            raise ConfigError("a reserve of this run is a verifier of it")
        if self.me not in (*self.verifiers, *self.reserves):
            raise ConfigError(f"{self.me.hex()[:8]} is not among the verifiers of this run")
        if min(self.iteration_timeout_ms, self.ready_timeout_ms, self.resend_ms) <= 0:
            raise ConfigError("timeouts must be positive")

    @property
    def seat(self) -> PeerId | None:
        """The seat that we hold in this configuration; None while we only follow."""
        return next((seat for seat in self.verifiers if self.configuration.key(seat) == self.me), None)

    @property
    def name(self) -> PeerId | None:
        """The seat that we hold or held, in whose name we sign; None before the first. No key holds two."""
        seat = self.configuration.seat_of(self.me)
        return seat if seat in self.verifiers else None

    def leader(self, iteration: Iteration) -> PeerId:
        """The seat that proposes in an iteration: round robin over the sorted seats."""
        return self.verifiers[iteration % len(self.verifiers)]

    def may_hand_over(self, one: HandOver) -> bool:
        """Whether a seat may go to this holder: a reserve that held none yet."""
        had_one = {earlier.holder for earlier in self.configuration.hand_overs}
        return one.seat in self.verifiers and one.holder in set(self.reserves) - had_one


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """The last block that was emitted as `Finalised`; before round 0, the genesis.

    Where its manifest hands a seat over, `iteration` is the number before the next configuration's first.
    """

    block: Digest = NO_DIGEST
    manifest: Digest
    round: int = -1
    iteration: Iteration = Iteration(0)  # noqa: RUF009 - a NewType call is the identity


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything one verifier remembers. Made by `restore`, changed only by `step`.

    Mappings are never changed in place. Entries concern iterations after the
    tip's (certificates: from the tip's on); older ones are pruned.
    """

    config: ConsensusConfig
    tip: Tip
    now_ms: int
    iteration: Iteration
    entered_ms: int
    resend_at_ms: int
    resend_count: int = 0
    silent_through: Iteration = Iteration(0)  # noqa: RUF009 - up to it we may have signed what we forgot
    finalised_through: Iteration = Iteration(0)  # noqa: RUF009 - up to it that may be a vote to finalise
    ready: tuple[int, int] | None = None  # (round, since when), reported by the driver
    is_overtaken: bool = False  # since the last resend
    own: Mapping[tuple[Iteration, VoteKind], Vote] = field(default_factory=dict)
    vouched: Mapping[Digest, Vote] = field(default_factory=dict)  # our votes for settled ancestors
    drafts: Mapping[Iteration, Block] = field(default_factory=dict)  # blocks we signed as leader
    asked: BuildProposal | None = None
    examining: Digest | None = None
    votes: Mapping[Iteration, Mapping[tuple[PeerId, VoteKind], SignedVote]] = field(default_factory=dict)
    settling: Mapping[Digest, Mapping[PeerId, SignedVote]] = field(default_factory=dict)
    proposals: Mapping[Iteration, Proposal] = field(default_factory=dict)  # the first proposal of each leader
    passes: Mapping[Iteration, SignedBlock] = field(default_factory=dict)  # the first of each leader
    bodies: Mapping[Digest, Proposal] = field(default_factory=dict)  # by block digest
    certificates: Certificates = field(default_factory=dict)
    settled: Mapping[Digest, QuorumCertificate] = field(default_factory=dict)
    accused: frozenset[tuple[Iteration, PeerId]] = frozenset()


# ---- events ----


@dataclass(frozen=True, slots=True)
class Received:
    """A message that passed `authenticate`; our own signed votes and proposals come this way too."""

    message: SignedVote | SignedBlock | Proposal | QuorumCertificate
    now_ms: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes; about every 100 ms. While `is_idle`, no leader is late: there is nothing to propose.

    away: Leaders that nobody waits for.
    is_held_up: Only missing beacon shares keep the leader from proposing, if it follows its parent at once.
    """

    now_ms: int
    is_idle: bool = False
    away: frozenset[PeerId] = frozenset()
    is_held_up: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """This verifier holds all that the manifest of `round` needs, so from now on a silent leader is late."""

    round: RoundId
    now_ms: int


@dataclass(frozen=True, slots=True)
class Built:
    """The manifest that `BuildProposal` of this iteration asked for."""

    iteration: Iteration
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Passed:
    """The manifest of this iteration cannot be made soon: we lack what others hold. `Built` may follow."""

    iteration: Iteration


@dataclass(frozen=True, slots=True)
class Examined:
    """Result of checking a proposal's body. A later `ok=True` may follow an `ok=False`."""

    block: Digest
    ok: bool


@dataclass(frozen=True, slots=True)
class Synced:
    """Certified manifests of the finalised chain, ascending, each of which passed `authenticate`."""

    certified: tuple[CertifiedManifest, ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A message of a later configuration came: its signatures cannot be checked, so it is only a hint.

    We lack certified manifests, at worst are told so falsely, and ask for them once a resend.
    """


Event = Received | Tick | Ready | Built | Passed | Examined | Synced | Overtaken


# ---- effects ----


@dataclass(frozen=True, slots=True)
class Persist:
    """Make `record` durable before any effect that follows."""

    record: Record


@dataclass(frozen=True, slots=True)
class SignAndSend:
    """Sign `vote`, send it to all verifiers, and feed it back as `Received`."""

    vote: Vote


@dataclass(frozen=True, slots=True)
class SignAndSendProposal:
    """Sign `block`, send the `Proposal` made of these fields to all, and feed it back as `Received`."""

    block: Block
    manifest: Manifest
    parent: tuple[QuorumCertificate, ...]
    dummies: tuple[QuorumCertificate, ...]


@dataclass(frozen=True, slots=True)
class SignAndPass:
    """Sign `block`, which names no manifest, and send it to all: we propose nothing in its iteration."""

    block: Block


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message, already signed, to all verifiers."""

    message: Proposal | QuorumCertificate


@dataclass(frozen=True, slots=True)
class BuildProposal:
    """We lead `iteration`: answer with `Built` once the manifest of `round` can be made.

    `ancestors` are the manifests between the last `Finalised` one and the new
    one, oldest first: notarised, so almost surely part of the chain, but not final yet.
    If there are any, nodes have nothing to train on: if their `Finalised` does
    not come within about a second, answer with a manifest without commits. It makes
    them final, and an empty round costs less than a wait that only timeouts end.
    `follows`: the iteration before is the parent's own, so none was skipped between.
    """

    iteration: Iteration
    round: RoundId
    parent: Digest  # block digest; zero for round 0
    parent_manifest: Digest  # what `Manifest.parent` must be
    ancestors: tuple[Manifest, ...]
    follows: bool


@dataclass(frozen=True, slots=True)
class Examine:
    """Check the body of `proposal`, then answer with `Examined`. `ancestors` as in `BuildProposal`."""

    proposal: Proposal
    ancestors: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class NeedBlock:
    """Ask any verifier for the proposal with this block digest (`consensus.body`); feed it as `Received`."""

    block: Digest


@dataclass(frozen=True, slots=True)
class NeedSync:
    """Ask any verifier for certified manifests from `round` up; feed them as `Synced`."""

    round: RoundId


@dataclass(frozen=True, slots=True)
class Accuse:
    """Two statements signed by one verifier of which an honest verifier signs at most one."""

    first: SignedVote | SignedBlock | Proposal
    second: SignedVote | SignedBlock | Proposal


@dataclass(frozen=True, slots=True)
class Finalised:
    """The next manifest of the chain, irrevocably: once per round and in order.

    Once it is durable, journal records of iterations up to its block's may be dropped.
    """

    certified: CertifiedManifest


Effect = (
    Persist
    | SignAndSend
    | SignAndSendProposal
    | SignAndPass
    | Send
    | BuildProposal
    | Examine
    | NeedBlock
    | NeedSync
    | Accuse
    | Finalised
)
