"""Run state: what the final manifests of a run say so far, and what follows from it for the next one.

Room: protocol (pure). `state_transition` makes one from the one before; nothing here changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from assay.protocol.acceptance import agreed_score
from assay.protocol.agreement.quorum import faults_tolerated, opening_rounds, quorum
from assay.protocol.auditing import audits as rules
from assay.protocol.auditing.audits import Audit
from assay.protocol.auditing.draws import audit_rate_ppm
from assay.protocol.calendar import Calendar
from assay.protocol.encoding.codec import digest
from assay.protocol.funding import closing, funded_epochs
from assay.protocol.messages import (
    NO_OWN_DATA,
    NODES_MAX,
    Appraisal,
    Closing,
    Commit,
    FundingReport,
    HandOver,
    Member,
    OwnData,
    Score,
    StakeReport,
    Verdict,
)
from assay.protocol.params import PPM, RunSpec
from assay.protocol.rotation import UNROTATED, Rotation
from assay.protocol.types import NO_DIGEST, NO_PEER, Digest, PeerId, RoundId

IDLE_ROUNDS = 16  # manifests with commits in a row without a node's, after which another may take its seat
BORDERLINE_WEIGHT = 4  # an audit that ends borderline, in audits passed
BORDERLINE_MAX = 16  # a node whose borderline audits outweigh its passed ones by so much loses its seat
StepId = tuple[RoundId, PeerId]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """What the chain records about one node."""

    member: Member
    seat: int = 0  # the number of its seat, which another may have had before
    joined_round: int = 0  # the first in which it may train
    has_left: bool = False  # itself, or idle until another took its seat, or borderline: for good
    heard_s: int = 0  # agreed time of its last accepted commit, or of its first round
    momentum: Digest = NO_DIGEST  # root after its last accepted step; zero before the first
    base: int = 0  # 1 + the round of that step, as the commit that continues it says; 0 before the first
    accepted: int = 0
    clean: int = 0  # audits passed in a row, since it was last on probation; with those of its track record
    borderline: int = 0  # how far audits that ended borderline outweigh those passed since
    is_biased: frozenset[PeerId] = frozenset()  # verifiers that report it, since it was last suspect
    missed: int = 0  # manifests with commits in a row that had none of its
    returns: int = 0  # how often it came back from absence, since it was last on probation
    absent_round: int = -1  # of the manifest that last found it absent, or took its return
    absent_s: int = 0  # agreed time of its last return
    is_lost: bool = False  # whether its fault is one that was confirmed after its absence
    is_suspect: bool = False  # more than f reported it since it last passed probation: its steps are unpaid
    exec_class: Digest = NO_DIGEST  # of its last accepted step; before the first, of its track record
    fault_round: int = -1  # of the earliest proven fault; from then on nothing is paid
    has_contradicted: bool = False  # whether that fault is equivocation: two commits for one round
    tasks: Digest = NO_DIGEST  # root of its list of known-answer tasks; zero before it announced one
    tasks_from: int = 0  # the first round of which a step on that list may be shown: after the announcement
    own: OwnData = NO_OWN_DATA  # what binds it to its own data; none before it announced them

    @property
    def banned(self) -> bool:
        """Whether a fault is proven, so that further commits of the node are refused."""
        return self.fault_round >= 0

    @property
    def is_seated(self) -> bool:
        """Whether it takes up one of the run's seats."""
        return not self.banned and not self.has_left


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierRecord:
    """What the chain records about one verifier."""

    fault_round: int = -1  # earliest step on which a committee proved it wrong
    judged: int = 0  # verdicts the chain carries
    silent: int = 0  # verdicts it committed to and did not reveal in time
    double_vote: Digest = NO_DIGEST  # evidence that it signed statements that exclude each other

    @property
    def is_disqualified(self) -> bool:
        """Whether it is at fault, so that no later step draws it."""
        return self.fault_round >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """What the chain records about a verifier's evaluation of the model after an epoch."""

    holder: PeerId  # who held the verifier's seat, and is paid for it
    commitment: Digest  # the evaluation's digest
    score: Score | None = None  # None: it is not opened


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of a run after `round` manifests."""

    spec: RunSpec
    run_id: Digest
    round: RoundId  # of the next manifest
    parent: Digest
    chain: Digest
    nodes: Mapping[PeerId, NodeRecord]  # all that ever took part, ascending
    verifiers: Mapping[PeerId, VerifierRecord]  # by the key of each that holds a seat, or held one
    audits: Mapping[StepId, Audit]  # of epochs not yet final for settlement
    training_rounds: int  # those ordered, or fewer once the escrow closes; 0 if it never starts
    has_lapsed: bool = False  # whether it never started: too few nodes had come in time
    steps: Mapping[StepId, int] = field(default_factory=dict)  # accepted tokens, same epochs
    suspect_steps: frozenset[StepId] = frozenset()  # of these, by nodes that were suspect before the step
    beacon_shares: Mapping[int, tuple[PeerId, ...]] = field(default_factory=dict)  # holders, by round
    away: Mapping[PeerId, int] = field(default_factory=dict)  # until which round no share is awaited
    missed_shares: Mapping[PeerId, int] = field(default_factory=dict)  # in a row
    last_commits: tuple[Commit, ...] = ()
    undrawn: tuple[Commit, ...] = ()  # of rounds with a partial beacon: a later beacon draws them all
    # by (node, verifier)
    stake_reports: Mapping[tuple[PeerId, PeerId], StakeReport] = field(default_factory=dict)
    # of each verifier the latest
    funding_reports: Mapping[PeerId, FundingReport] = field(default_factory=dict)
    # by (epoch, verifier)
    evaluations: Mapping[tuple[int, PeerId], EvaluationRecord] = field(default_factory=dict)
    time_s: int = 0  # agreed time of the last manifest
    late: frozenset[PeerId] = frozenset()  # nodes with an audit that `is_late`: they may not train
    drand_next: int = 0  # the drand round that the last manifest named; 0: none
    appraised: Mapping[tuple[PeerId, PeerId], Appraisal] = field(default_factory=dict)  # (node, verifier)
    rotation: Rotation = UNROTATED

    @property
    def calendar(self) -> Calendar:
        """Rounds and epochs of the run, as far as is agreed."""
        return self.spec.calendar(self.training_rounds)

    @property
    def is_settled(self) -> bool:
        """Whether training is over and the pay of every epoch follows from this state or an earlier one."""
        return self.round > self.calendar.last_round

    @property
    def is_complete(self) -> bool:
        """Whether training, audits and disputes are over, so that no manifest can follow."""
        return self.is_settled and all(audit.has_ended for audit in self.audits.values())

    @property
    def due_s(self) -> int | None:
        """Agreed time that a manifest must have that follows now without a return; None where any may follow.

        A known-answer task that is shown is as good as a return. Once every epoch is settled, or while no
        node may train, only what is overdue is left to wait for.
        """
        left = [audit for audit in self.audits.values() if not audit.has_ended]
        is_idle = self.is_settled or self.is_deserted
        if not left or not is_idle or any(audit.is_open for audit in left):
            return None
        return min(audit.due_s for audit in left)

    @property
    def is_deserted(self) -> bool:
        """Whether the next round is one of training, and every node is banned, gone or owes an opening."""
        return self.is_training and not self.active

    @property
    def is_training(self) -> bool:
        """Whether the next round is one of training; it takes commits if it `is_funded` too."""
        return self.round < self.training_rounds

    @property
    def is_funded(self) -> bool:
        """Whether the next round trains, and its epoch is paid for by the reports in this state."""
        return self.is_paid_for(self.round)

    @property
    def takes_commits(self) -> bool:
        """Whether the next manifest may carry commits, if there are nodes to make them."""
        return self.is_funded and not self.awaits_nodes

    def is_paid_for(self, round_id: int) -> bool:
        """Whether this round trains, and its epoch is paid for by the reports in this state."""
        funded = funded_epochs(self.funding_reports, self.spec.verifier_peers)
        return round_id < self.training_rounds and self.epoch_of(round_id) < funded

    @property
    def closing(self) -> Closing:
        """Whether the run's escrow is closing by the reports in this state, and by what."""
        return closing(self.funding_reports, self.spec.verifier_peers)

    def score(self, epoch: int) -> Score | None:
        """The agreed score after an epoch with a milestone; None if none is agreed."""
        scores = {
            verifier: record.score
            for (at, verifier), record in self.evaluations.items()
            if at == epoch and record.score is not None
        }
        return agreed_score(scores, self.spec.verifier_peers)

    def falls_short(self, epoch: int) -> bool:
        """Whether the model misses the epoch's milestone, which then costs a share of the price.

        An epoch that a closing escrow cut short has none: its buyer would else gain by cancelling.
        """
        asked, found = self.spec.money.accept.milestone(epoch), self.score(epoch)
        if asked is None or found is None or not self.is_whole(epoch):
            return False
        return not asked.is_reached(found, self.spec.choices.items)

    def is_measured(self, epoch: int) -> bool:
        """Whether the next manifest comes between the end of an epoch with a milestone and its settlement."""
        has_milestone = self.spec.money.accept.milestone(epoch) is not None
        is_now = self.calendar.epoch_end(epoch) <= self.round <= self.calendar.settled_at(epoch)
        return has_milestone and is_now and self.is_whole(epoch)

    def opens_evaluations(self, epoch: int) -> bool:
        """Whether the next manifest opens evaluations of an epoch: it is too late for commitments to them."""
        return self.round > self.calendar.settled_at(epoch) - opening_rounds(len(self.spec.verifiers))

    def is_whole(self, epoch: int) -> bool:
        """Whether an epoch has all the rounds that were ordered."""
        return self.calendar.epoch_end(epoch) == self.spec.ordered.epoch_end(epoch)

    @property
    def awaits_funding(self) -> bool:
        """Whether no manifest of training can follow before other reports come: it is not paid for."""
        return self.is_training and not self.is_funded and self.closing is Closing.NO

    @property
    def awaits_nodes(self) -> bool:
        """Whether the next manifest either starts the run, with the nodes that it waits for, or ends it."""
        return not self.round and bool(self.spec.start_by_s)

    def lapses_at(self, time_s: int) -> bool:
        """Whether a manifest of this agreed time, as the next one, ends a run that has not started."""
        return self.awaits_nodes and time_s > self.spec.start_by_s

    @property
    def active(self) -> tuple[PeerId, ...]:
        """Nodes whose commits the next manifest may take, ascending; none in that which starts a run."""
        if not self.is_training or self.awaits_nodes:
            return ()
        silent = self.unannounced
        return tuple(
            node
            for node, record in self.nodes.items()
            if record.is_seated and node not in self.late and node not in silent
        )

    @property
    def unannounced(self) -> frozenset[PeerId]:
        """Nodes with a seat that train on data of their own, and have not bound themselves to them yet."""
        return frozenset(
            node
            for node in self.spec.bringing_nodes
            if self.nodes[node].is_seated and self.nodes[node].own == NO_OWN_DATA
        )

    def drawing_seat(self, node: PeerId) -> int:
        """The seat that a node's draws follow from; 0 where they follow from its key, with replacement."""
        return 0 if self.spec.data.replaces else self.nodes[node].seat

    @property
    def free_seats(self) -> int:
        """Nodes that may join now, in free seats or in those of idle nodes."""
        seated = sum(record.is_seated and not self.is_idle(node) for node, record in self.nodes.items())
        return min(self.spec.seats - seated, NODES_MAX - len(self.nodes)) if self.is_training else 0

    def is_idle(self, node: PeerId) -> bool:
        """Whether a node has been silent for so long that another may take its seat."""
        record = self.nodes[node]
        is_silent = record.missed >= IDLE_ROUNDS and self.time_s - record.heard_s > self.spec.audit.absence_s
        return record.is_seated and is_silent

    @property
    def beacon(self) -> tuple[PeerId, ...]:
        """Verifiers whose beacon shares the next manifest must carry, ascending.

        A verifier that missed its share pauses: none can choose round by round whether its share counts.
        """
        peers = self.spec.verifier_peers
        present = tuple(peer for peer in peers if self.away.get(peer, 0) <= self.round)
        return present if len(present) >= quorum(len(peers)) else peers

    @property
    def leaders(self) -> tuple[PeerId, ...]:
        """Seats whose turns as leader are waited for, ascending: those that are neither away nor at fault.

        Where these are no more than f, those at fault too: all of so few may be dead.
        """
        at_fault, peers = self._at_fault, self.spec.verifier_peers
        found = tuple(seat for seat in self.beacon if seat not in at_fault)
        return found if len(found) > faults_tolerated(len(peers)) else self.beacon

    def key(self, seat: PeerId) -> PeerId:
        """The key that signs for a verifier's seat whatever the next manifest carries of it."""
        return self.rotation.configuration.key(seat)

    def author(self, audit: Audit, verdict: Verdict) -> PeerId:
        """The key of the holder that gave a verdict in an audit."""
        end = audit.closed_round if audit.has_ended else int(self.round)
        return audit.author(verdict, self.rotation.at(end))

    @property
    def holders(self) -> tuple[PeerId, ...]:
        """The keys of all seats' present holders, in the order of the seats."""
        return tuple(map(self.key, self.spec.verifier_peers))

    def seat_of(self, holder: PeerId) -> PeerId:
        """The verifier's seat that a key signs for in the next manifest; `NO_PEER` if it holds none now."""
        seat = self.rotation.configuration.seat_of(holder)
        return seat if seat in self.spec.verifier_peers and self.key(seat) == holder else NO_PEER

    @property
    def disqualified(self) -> tuple[PeerId, ...]:
        """Verifiers at fault and seats that retire, ascending: no later step draws them."""
        out = {*self._at_fault, *self._retiring}
        return tuple(seat for seat in self.spec.verifier_peers if seat in out)

    @property
    def _at_fault(self) -> tuple[PeerId, ...]:
        return tuple(s for s in self.spec.verifier_peers if self.verifiers[self.key(s)].is_disqualified)

    @property
    def _leaving(self) -> tuple[PeerId, ...]:
        """Seats with a cause to be handed over, while a reserve is ready to take the first of them."""
        rotation, peers = self.rotation, self.spec.verifier_peers
        if not self.spec.reserves or not self.is_training or self._next_holder is None:
            return ()
        faulty = self._at_fault
        return tuple(
            seat
            for seat in peers
            if seat in faulty
            or rotation.has_cause(seat, len(peers))
            or not self.has_whole_stake(self.key(seat))
        )

    @property
    def _next_holder(self) -> PeerId | None:
        backed = filter(self.has_whole_stake, self.spec.reserve_peers)
        return self.rotation.next_holder(backed, int(self.round))

    @property
    def _retiring(self) -> tuple[PeerId, ...]:
        """Seats that no step draws any more, so that no new audit binds their holders: at most f.

        First those that no opening of agreed hours keeps, so that none waits for one that is kept.
        """
        faulty, count = self._at_fault, len(self.spec.verifiers)
        late = [audit for audit in self.audits.values() if audit.is_late]
        kept = {seat for seat in self._leaving if any(audit.binds(seat) for audit in late)}
        able = sorted(set(self._leaving).difference(faulty), key=lambda seat: (seat in kept, seat))
        f = faults_tolerated(count)
        return tuple(able[: max(min(f, 2 * f - len(faulty)), 0)])

    @property
    def hand_over(self) -> tuple[HandOver, ...]:
        """The seat that the next manifest hands over: the first with a cause that no audit binds; or ()."""
        audits, holder = self.audits.values(), self._next_holder if self._leaving else None
        free = (seat for seat in self._leaving if not any(self._binds(audit, seat) for audit in audits))
        seat = next(free, None)
        return (HandOver(seat=seat, holder=holder),) if seat is not None and holder is not None else ()

    def _binds(self, audit: Audit, seat: PeerId) -> bool:
        """Whether it may still find a verdict of this seat's holder false, or not given in time."""
        spec, now = self.spec.audit, int(self.round)
        may_be_shown = spec.known_answer_count > 0 and rules.may_show_known_answer(spec, audit, now)
        return audit.binds(seat, may_be_shown=may_be_shown)

    def discount_ppm(self, node: PeerId) -> int:
        """Factor on the node's adaptive audit rate in the next draw, in millionths, granted by a quorum.

        Fewer than a quorum cannot grant a discount; n - quorum or fewer cannot block one.
        """
        known = self.spec.verifier_peers
        appraisals = (self.appraised.get((node, verifier)) for verifier in known)
        granted = sorted(int(one.discount) for one in appraisals if one is not None and self.is_fresh(one))
        need = quorum(len(known))
        return granted[need - 1] if len(granted) >= need else PPM

    def has_whole_stake(self, node: PeerId) -> bool:
        """Whether at most f verifiers report that stake behind this node, or holder of a seat, has left."""
        known = self.spec.verifier_peers
        reports = (self.stake_reports.get((node, verifier)) for verifier in known)
        return sum(one is not None and not one.is_whole for one in reports) <= faults_tolerated(len(known))

    def rate_ppm(self, node: PeerId) -> int:
        """Probability that the next draw audits this node's step, in millionths."""
        if not self.has_whole_stake(node):
            return PPM
        return audit_rate_ppm(self.spec.audit, self.nodes[node].clean, self.discount_ppm(node))

    def is_fresh(self, appraisal: Appraisal) -> bool:
        """Whether the evidence behind this appraisal still counts in the next manifest."""
        return self.round <= appraisal.round + self.spec.audit.attested_rounds

    def epoch_of(self, round_id: int) -> int:
        """The epoch (settlement) of a round."""
        return self.calendar.epoch_of(int(round_id))


def start(spec: RunSpec, run_id: Digest) -> RunState:
    """The state before the first manifest."""
    return RunState(
        spec=spec,
        run_id=run_id,
        round=RoundId(0),
        parent=digest(spec),
        chain=Digest(hashlib.sha256(b"assay/chain/1" + run_id + digest(spec)).digest()),
        nodes={member.peer: NodeRecord(member=member, seat=seat) for seat, member in enumerate(spec.nodes)},
        verifiers={member.peer: VerifierRecord() for member in spec.verifiers},
        audits={},
        training_rounds=spec.rounds,
    )


def next_chain(chain: Digest, commits: tuple[Commit, ...], aggregate: Digest) -> Digest:
    """H(chain | ids | update digests | aggregate): binds the parameters without hashing them."""
    body = b"".join(commit.node + commit.update for commit in commits)
    return Digest(
        hashlib.sha256(b"assay/chain/1" + chain + len(commits).to_bytes(4, "big") + body + aggregate).digest()
    )
