"""State transition: a run's state as a deterministic fold over its finalised manifests.

Room: protocol (pure). `advance(run_state, manifest)` takes final manifests in order. Which nodes may train,
which audits are open, how they ended and which steps earned money all follow from it (`audits` has the rules
of one audit). Ledger, payouts and slashes are functions of this state and of the EVM chain's events only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from assay.protocol.acceptance import agreed_score
from assay.protocol.agreement.double_votes import signer_of
from assay.protocol.agreement.quorum import faults_tolerated, opening_rounds, quorum
from assay.protocol.auditing import audits as rules
from assay.protocol.auditing.audits import Audit, AuditStatus, Fault
from assay.protocol.auditing.commitments import shown_root
from assay.protocol.auditing.draws import audit_rate_ppm, audit_seed, auditors, beacon_input, is_drawn
from assay.protocol.calendar import Calendar
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import MalformedMessage
from assay.protocol.funding import closing, funded_epochs, is_news
from assay.protocol.messages import (
    LOSS_MICRO_MAX,
    NODES_MAX,
    Appraisal,
    AttendanceKind,
    Closing,
    Commit,
    Contradiction,
    DoubleVote,
    Evaluation,
    EvaluationCommitment,
    FundingReport,
    HandOver,
    KnownAnswer,
    Manifest,
    Member,
    Score,
    SeatNotice,
    SketchOpening,
    StakeReport,
    Verdict,
    VerdictCommitment,
)
from assay.protocol.params import PPM, RunSpec
from assay.protocol.randomness.drand import randomness
from assay.protocol.rotation import UNROTATED, Rotation
from assay.protocol.types import NO_DIGEST, NO_PEER, Digest, PeerId, RoundId

STAKE_REPORT_PAUSE = 64  # rounds between two reports of one verifier on one node's stake
STAKE_REPORT_ROUNDS = 16  # rounds for which a stake report may wait for a manifest
IDLE_ROUNDS = 16  # manifests with commits in a row without a node's, after which another may take its seat
BEACON_PAUSE = 16  # rounds for which a verifier that missed its beacon share is neither awaited nor paid,
PAUSE_DOUBLINGS_MAX = 4  # doubled with each share that it misses in a row
StepId = tuple[RoundId, PeerId]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """What the chain records about one node."""

    member: Member
    joined_round: int = 0  # the first in which it may train
    has_left: bool = False  # by its own statement, or idle until another took its seat: for good
    heard_s: int = 0  # agreed time of its last accepted commit, or of its first round
    momentum: Digest = NO_DIGEST  # root after its last accepted step; zero before the first
    base: int = 0  # 1 + the round of that step, as the commit that continues it says; 0 before the first
    accepted: int = 0
    clean: int = 0  # audits passed in a row, since it was last on probation
    is_biased: frozenset[PeerId] = frozenset()  # verifiers that report it, since it was last on probation
    missed: int = 0  # manifests with commits in a row that had none of its
    returns: int = 0  # how often it came back from absence, since it was last on probation
    absent_round: int = -1  # of the manifest that last found it absent, or took its return
    absent_s: int = 0  # agreed time of its last return
    is_lost: bool = False  # whether its fault is one that was confirmed after its absence
    is_suspect: bool = False  # more than f reported it since it last passed probation: its steps are unpaid
    exec_class: Digest = NO_DIGEST  # of its last accepted step
    fault_round: int = -1  # of the earliest proven fault; from then on nothing is paid
    has_contradicted: bool = False  # whether that fault is equivocation: two commits for one round
    tasks: Digest = NO_DIGEST  # root of its list of known-answer tasks; zero before it announced one
    tasks_from: int = 0  # the first round of which a step on that list may be shown: after the announcement

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
        return tuple(
            node for node, record in self.nodes.items() if record.is_seated and node not in self.late
        )

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

    def key(self, seat: PeerId) -> PeerId:
        """The key that signs for a verifier's seat whatever the next manifest carries of it."""
        return self.rotation.configuration.key(seat)

    def holder_at(self, seat: PeerId, round_id: int) -> PeerId:
        """The key that signed for a seat what the manifest of an earlier round carried of it."""
        return self.rotation.at(round_id).key(seat)

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
        return tuple(seat for seat in peers if seat in faulty or rotation.has_cause(seat, len(peers)))

    @property
    def _next_holder(self) -> PeerId | None:
        return self.rotation.next_holder(self.spec.reserve_peers, int(self.round))

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
        """Whether at most f verifiers report that stake behind this node was withdrawn."""
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
        nodes={member.peer: NodeRecord(member=member) for member in spec.nodes},
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


def may_commit_verdict(run_state: RunState, audit: Audit, verifier: PeerId) -> bool:
    """Whether the next manifest may carry this verifier's verdict commitment.

    Not if it hands the verifier's seat over: the next holder could not open the commitment.
    """
    is_leaving = any(one.seat == verifier for one in run_state.hand_over)
    may_commit = rules.may_commit_verdict(run_state.spec.audit, audit, verifier, int(run_state.round))
    return may_commit and not is_leaving


def may_open_verdict(run_state: RunState, audit: Audit, verdict: Verdict) -> bool:
    """Whether the next manifest may carry this verdict."""
    is_judged = run_state.spec.audit.limits != NO_DIGEST and verdict.exec_class == rules.REFERENCE
    may_say = is_judged or (
        verdict.outcome not in rules.RECOMPUTED or verdict.exec_class == audit.commit.exec_class
    )
    return may_say and rules.may_open_verdict(audit, verdict, int(run_state.round))


def check_known_answer(run_state: RunState, shown: KnownAnswer) -> None:
    """Do nothing if this step is on the list that its node had announced before the step's round.

    Raises:
        MalformedMessage: it is not: what was shown, and from which round the node's list counts.
    """
    record = run_state.nodes.get(shown.node)
    place = f"known-answer task of round {shown.round} of {shown.node.hex()[:8]}"
    if record is None or record.tasks == NO_DIGEST:
        raise MalformedMessage(f"{place}, which has announced no list")
    if shown.round < record.tasks_from:
        raise MalformedMessage(f"{place}: its list counts from round {record.tasks_from}")
    if shown_root(shown, run_state.spec.audit.known_answer_count) != record.tasks:
        raise MalformedMessage(f"{place}: it is not on the list that its node announced")


def may_appraise(run_state: RunState, appraisal: Appraisal) -> bool:
    """Whether the next manifest may carry this appraisal: of recent evidence of a node in the run.

    A verifier may appraise a node again when half of its last appraisal's validity is over: no node can
    crowd others out of manifests by submitting evidence in every round.
    """
    if run_state.spec.audit.attestation == NO_DIGEST or appraisal.run_id != run_state.run_id:
        return False
    if appraisal.node not in run_state.active or appraisal.verifier not in run_state.spec.verifier_peers:
        return False
    life = run_state.spec.audit.attested_rounds
    is_young = appraisal.round < run_state.round <= appraisal.round + (life + 1) // 2
    known = run_state.appraised.get((appraisal.node, appraisal.verifier))
    return is_young and (known is None or known.round + max(life // 2, 1) <= appraisal.round)


def may_report_stake(run_state: RunState, report: StakeReport) -> bool:
    """Whether the next manifest may include this stake report.

    A verifier's first report on a node is that stake was withdrawn; each later one reverses the last, at
    least `STAKE_REPORT_PAUSE` rounds later: no Byzantine verifier can crowd others out by alternating.
    """
    if report.run_id != run_state.run_id or report.verifier not in run_state.spec.verifier_peers:
        return False
    if report.node not in run_state.nodes or run_state.nodes[report.node].banned:
        return False
    known = run_state.stake_reports.get((report.node, report.verifier))
    if known is None:
        is_news = not report.is_whole
    else:
        is_news = report.is_whole != known.is_whole and known.round + STAKE_REPORT_PAUSE <= report.round
    return is_news and report.round < run_state.round <= report.round + STAKE_REPORT_ROUNDS


def may_report_funding(run_state: RunState, report: FundingReport) -> bool:
    """Whether the next manifest may include this report on the escrow: a verifier's next one, if it is news.

    Each verifier has at most one in a manifest, so none can crowd others out.
    """
    if report.run_id != run_state.run_id or report.verifier not in run_state.spec.verifier_peers:
        return False
    return is_news(run_state.funding_reports.get(report.verifier), report)


def may_commit_evaluation(run_state: RunState, commitment: EvaluationCommitment) -> bool:
    """Whether the next manifest may carry this commitment to an evaluation: a verifier's first."""
    return (
        commitment.run_id == run_state.run_id
        and commitment.verifier in run_state.spec.verifier_peers
        and run_state.is_measured(commitment.epoch)
        and not run_state.opens_evaluations(commitment.epoch)
        and (commitment.epoch, commitment.verifier) not in run_state.evaluations
    )


def may_open_evaluation(run_state: RunState, evaluation: Evaluation) -> bool:
    """Whether the next manifest may carry this evaluation: the one that its verifier committed to."""
    epoch, score = evaluation.epoch, evaluation.score
    record = run_state.evaluations.get((epoch, evaluation.verifier))
    return (
        evaluation.run_id == run_state.run_id
        and evaluation.verifier in run_state.spec.verifier_peers
        and record is not None
        and record.score is None
        and record.commitment == digest(evaluation)
        and score.loss_micro <= LOSS_MICRO_MAX
        and max(score.acc_count, score.acc_norm_count) <= run_state.spec.choices.items
        and run_state.is_measured(epoch)
        and run_state.opens_evaluations(epoch)
    )


def unopened(run_state: RunState) -> tuple[tuple[int, PeerId], ...]:
    """Epochs and verifiers whose committed evaluation is not opened: the next manifest is the last chance."""
    return tuple(
        (epoch, verifier)
        for (epoch, verifier), record in sorted(run_state.evaluations.items())
        if record.score is None and run_state.round == run_state.calendar.settled_at(epoch)
    )


def with_reports(run_state: RunState, reports: Iterable[FundingReport]) -> RunState:
    """The run state in which those funding reports are known too that the next manifest may carry."""
    fresh = {one.verifier: one for one in reports if may_report_funding(run_state, one)}
    return replace(run_state, funding_reports={**run_state.funding_reports, **fresh}) if fresh else run_state


def may_contradict(run_state: RunState, pair: Contradiction) -> bool:
    """Whether the next manifest may carry this pair, its signatures aside.

    Two different commits of one node for one round of this run, in the order of their digests, of a
    node that is not banned yet, while pay for that round can still be withheld.
    """
    first, second = pair.first.commit, pair.second.commit
    record = run_state.nodes.get(first.node)
    is_pair = (first.run_id, first.round, first.node) == (second.run_id, second.round, second.node)
    return (
        is_pair
        and first.run_id == run_state.run_id
        and digest(first) < digest(second)
        and record is not None
        and not record.banned
        and run_state.round - run_state.spec.closing_rounds <= first.round <= run_state.round
    )


def may_show_double_vote(run_state: RunState, pair: DoubleVote) -> bool:
    """Whether the next manifest may carry this pair, itself unchecked: a verifier's first in the run."""
    if pair.verifier not in run_state.spec.verifier_peers:
        return False
    try:
        signer = signer_of(pair, run_state.rotation.configuration)
    except MalformedMessage:
        return False
    return run_state.verifiers[signer].double_vote == NO_DIGEST


def may_give_notice(run_state: RunState, notice: SeatNotice) -> bool:
    """Whether the next manifest may carry this statement of a verifier or a reserve about its seat."""
    spec = run_state.spec
    return (
        notice.run_id == run_state.run_id
        and bool(spec.reserves)
        and run_state.is_training
        and run_state.rotation.may_say(notice, spec.verifier_peers, spec.reserve_peers, int(run_state.round))
    )


def awaited(run_state: RunState) -> tuple[StepId, ...]:
    """Audits with a missing message for which the next manifest is the last chance."""
    return tuple(
        step
        for step, audit in sorted(run_state.audits.items())
        if any(rules.awaits(run_state.spec.audit, audit, int(run_state.round)))
    )


def advance(run_state: RunState, manifest: Manifest, name: Digest | None = None) -> RunState:
    """The state after one more final manifest.

    Args:
        run_state: The state before it.
        manifest: Final and checked: certified, next round, linked to `run_state.parent`.
        name: Its digest, if only a part of the manifest is given.

    Returns:
        The new state; the old one is not modified.
    """
    assert manifest.round == run_state.round and manifest.parent == run_state.parent
    now = int(manifest.round)
    spec, nodes, verifiers = run_state.spec, dict(run_state.nodes), dict(run_state.verifiers)
    audits, steps, beacon_shares, evaluations = _prune(run_state, now)
    if not now:
        nodes = {node: replace(record, heard_s=manifest.time_s) for node, record in nodes.items()}
    away, missed_shares, undrawn = dict(run_state.away), dict(run_state.missed_shares), run_state.undrawn
    leader = spec.verifier_peers[int(manifest.iteration) % len(spec.verifiers)]
    rotation = run_state.rotation
    if spec.reserves:
        asked = run_state.beacon if now else ()
        rotation = rotation.after(manifest, spec.verifier_peers, asked, leader)
    if now:
        shared = {beacon_share.verifier for beacon_share in manifest.beacon_shares}
        for peer in run_state.beacon:
            missed_shares[peer] = 0 if peer in shared else missed_shares.get(peer, 0) + 1
            if missed_shares[peer]:
                doublings = min(missed_shares[peer] - 1, PAUSE_DOUBLINGS_MAX)
                away[peer] = now + 1 + (BEACON_PAUSE << doublings)
        if now <= run_state.training_rounds:
            paid = (one.verifier for one in manifest.beacon_shares if one.verifier in run_state.beacon)
            beacon_shares[now - 1] = tuple(map(run_state.key, paid))
        seed = beacon_of(run_state, manifest)
        for step, audit in audits.items():
            audits[step] = rules.draw_replication(
                audit, now, seed, spec.audit, is_partial=manifest.is_partial
            )
        opened, undrawn = drawn(run_state, manifest, seed)
        audits |= opened

    for pair in manifest.contradictions:
        nodes[pair.first.commit.node] = _contradicted(nodes[pair.first.commit.node], pair)
    for double_vote in manifest.double_votes:
        signer = signer_of(double_vote, run_state.rotation.configuration)
        verifiers[signer] = _double_voted(run_state, verifiers[signer], double_vote)
    for step, messages in _messages_by_step(manifest).items():
        audits[step] = rules.with_messages(
            audits[step],
            now,
            messages.commitments,
            messages.verdicts,
            messages.sketch_openings,
            is_known_answer=bool(messages.known_answers),
        )
    here = digest(manifest) if name is None else name
    said = [signed.attendance for signed in manifest.attendance]
    returned = {one.node for one in said if one.kind is AttendanceKind.RETURN}
    for one in said:
        if one.kind is AttendanceKind.TASKS:
            nodes[one.node] = replace(nodes[one.node], tasks=one.tasks, tasks_from=now + 1)
    for node in returned:
        nodes[node] = replace(
            nodes[node], returns=nodes[node].returns + 1, absent_round=now, absent_s=manifest.time_s
        )
    for step, audit in sorted(audits.items()):
        record = nodes[audit.node]
        after = rules.rule(
            audit,
            now,
            spec,
            here,
            is_banned=record.banned and (audit.is_late or not record.is_lost),
            time_s=manifest.time_s,
            has_returned=audit.node in returned,
            heard_round=record.base - 2 - spec.rule.read_lag,
        )
        audits[step] = after
        if after.ruling is not audit.ruling:
            nodes[after.node] = _ruled(nodes[after.node], after, spec.audit.probation, now)
        for verifier in map(run_state.key, set(after.silent) - set(audit.silent)):
            verifiers[verifier] = replace(verifiers[verifier], silent=verifiers[verifier].silent + 1)
        for fault in after.faults[len(audit.faults) :]:
            holder = run_state.key(fault.verdict.verifier)
            verifiers[holder] = _failed(verifiers[holder], fault)
    for signed_verdict in manifest.verdicts:
        verifier = signed_verdict.verdict.verifier
        holder = run_state.key(verifier)
        verifiers[holder] = replace(verifiers[holder], judged=verifiers[holder].judged + 1)
        if signed_verdict.verdict.is_biased:
            node = signed_verdict.verdict.node
            nodes[node] = _leaning(nodes[node], verifier, faults_tolerated(len(spec.verifiers)))

    appraised = {key: one for key, one in run_state.appraised.items() if run_state.is_fresh(one)}
    for signed_message in manifest.appraised:
        appraised[(signed_message.appraised.node, signed_message.appraised.verifier)] = (
            signed_message.appraised
        )
    stake_reports = dict(run_state.stake_reports)
    for signed_stake_report in manifest.stake_reports:
        stake_reports[(signed_stake_report.stake_report.node, signed_stake_report.stake_report.verifier)] = (
            signed_stake_report.stake_report
        )
    if manifest.stake_reports:
        reported = replace(run_state, stake_reports=stake_reports)
        for node in nodes:  # less stake than agreed: probation starts again
            if run_state.has_whole_stake(node) and not reported.has_whole_stake(node):
                nodes[node] = replace(nodes[node], clean=0)
    suspect_steps = frozenset(step for step in run_state.suspect_steps if step in steps)
    for signed_commit in manifest.commits:
        commit = signed_commit.commit
        steps[(commit.round, commit.node)] = commit.tokens
        record = nodes[commit.node]
        if run_state.nodes[commit.node].is_suspect:
            suspect_steps |= {(commit.round, commit.node)}
        if record.accepted and record.exec_class != commit.exec_class:  # another machine: probation again
            record = replace(record, clean=0, is_biased=frozenset())
            appraised = {key: one for key, one in appraised.items() if key[0] != commit.node}
        nodes[commit.node] = replace(
            record,
            momentum=commit.momentum_after,
            base=now + 1,
            accepted=record.accepted + 1,
            missed=0,
            heard_s=manifest.time_s,
            exec_class=commit.exec_class,
        )

    for committed in (signed.commitment for signed in manifest.evaluation_commitments):
        evaluations[(committed.epoch, committed.verifier)] = EvaluationRecord(
            holder=run_state.key(committed.verifier), commitment=committed.evaluation
        )
    for found in (signed.evaluation for signed in manifest.evaluations):
        evaluations[(found.epoch, found.verifier)] = EvaluationRecord(
            holder=run_state.key(found.verifier), commitment=digest(found), score=found.score
        )

    for hand_over in manifest.hand_over:
        seat = hand_over.seat
        # The next holder cannot open what the former one committed to, and may commit itself.
        evaluations = {
            key: record for key, record in evaluations.items() if key[1] != seat or record.score is not None
        }
        verifiers[hand_over.holder] = VerifierRecord()
        missed_shares.pop(seat, None)
        away.pop(seat, None)
        former = run_state.key(seat)
        audits = {step: audit.after_hand_over(seat, former) for step, audit in audits.items()}
    for node in {one.node for one in said if one.kind is AttendanceKind.LEAVE}:
        nodes[node] = replace(nodes[node], has_left=True)
    for signed_admission in manifest.admissions:
        member = signed_admission.admission.member
        nodes[member.peer] = NodeRecord(member=member, joined_round=now + 1, heard_s=manifest.time_s)
    for node in _unseated(run_state, nodes):
        nodes[node] = replace(nodes[node], has_left=True)

    commits = tuple(signed_commit.commit for signed_commit in manifest.commits)
    if commits:
        for node in set(run_state.active) - {commit.node for commit in commits}:
            nodes[node] = replace(nodes[node], missed=nodes[node].missed + 1)
    reported = with_reports(run_state, (signed.funding_report for signed in manifest.funding_reports))
    has_lapsed = run_state.lapses_at(manifest.time_s)
    training_rounds = 0 if has_lapsed else run_state.training_rounds
    if run_state.is_training and reported.closing is not Closing.NO:
        training_rounds = now + bool(commits)  # what was done in this round still counts
    return replace(
        run_state,
        round=RoundId(now + 1),
        parent=here,
        chain=manifest.chain,
        nodes=dict(sorted(nodes.items())) if manifest.admissions else nodes,
        verifiers=verifiers,
        audits=audits,
        steps=steps,
        suspect_steps=suspect_steps,
        beacon_shares=beacon_shares,
        away=away,
        missed_shares=missed_shares,
        last_commits=commits,
        undrawn=undrawn,
        stake_reports=stake_reports,
        funding_reports=reported.funding_reports,
        evaluations=evaluations,
        training_rounds=training_rounds,
        has_lapsed=run_state.has_lapsed or has_lapsed,
        time_s=manifest.time_s,
        late=frozenset(audit.node for audit in audits.values() if audit.is_late),
        drand_next=manifest.drand_next,
        appraised=appraised,
        rotation=rotation,
    )


def beacon_of(run_state: RunState, manifest: Manifest) -> Digest:
    """The audit seed for the previous manifest, from the beacon shares that `manifest` carries."""
    before = RoundId(int(manifest.round) - 1)
    alpha = beacon_input(run_state.spec.deployment_id, run_state.run_id, before, manifest.parent)
    shares = [(beacon_share.verifier, beacon_share.proof) for beacon_share in manifest.beacon_shares]
    return audit_seed(alpha, shares, drand=randomness(manifest.drand))


def drawn(
    run_state: RunState, manifest: Manifest, seed: Digest
) -> tuple[dict[StepId, Audit], tuple[Commit, ...]]:
    """The audits that `manifest` opens, and the commits that wait for a later manifest's beacon.

    After a given-up iteration a leader may leave out shares, and so choose among seeds. Such a partial
    beacon draws nothing: every step of its round is audited, by the seed of the next complete beacon, or
    of whichever beacon comes when f auditors may yet be silent, and f leaders leave out commitments to
    verdicts, before an honest one's is in a manifest. As that beacon's shares may have been chosen, too,
    more than f auditors judge then.
    """
    spec, f = run_state.spec.audit, faults_tolerated(len(run_state.spec.verifiers))
    now, judges = int(manifest.round), judges_of(run_state.spec, manifest.disqualified)
    last_chance = now + 2 + f * (spec.takeover_rounds + 1) - spec.audit_rounds
    due = [c for c in run_state.undrawn if not manifest.is_partial or int(c.round) <= last_chance]
    waiting = [c for c in run_state.undrawn if c not in due]
    if manifest.is_partial:
        waiting += run_state.last_commits
    else:
        fresh = run_state.last_commits
        due += [c for c in fresh if is_drawn(seed, c.node, run_state.rate_ppm(c.node))]
    opened = {
        (commit.round, commit.node): Audit(
            round=commit.round,
            node=commit.node,
            commit=commit,
            seed=seed,
            order=auditors(seed, commit.node, judges),
            verifiers=len(run_state.spec.verifiers),
            rate_ppm=run_state.rate_ppm(commit.node),
            auditors_wanted=f + 1 if f and manifest.is_partial else 0,
        )
        for commit in due
    }
    return opened, tuple(waiting)


def judges_of(spec: RunSpec, disqualified: Sequence[PeerId]) -> tuple[PeerId, ...]:
    """The verifiers that may audit: those not at fault and not retiring, or all if these are too few.

    With fewer than a quorum, a few Byzantine verifiers could form a committee. Where seats retire, at most f,
    each verifier at fault is one Byzantine less among those left, which are n - 2f or more.
    """
    left = tuple(peer for peer in spec.verifier_peers if peer not in set(disqualified))
    n = len(spec.verifiers)
    least = n - 2 * faults_tolerated(n) if spec.reserves else quorum(n)
    return left if len(left) >= least else spec.verifier_peers


@dataclass(slots=True)
class _StepMessages:
    """The messages of one manifest about one audit."""

    commitments: list[VerdictCommitment] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    sketch_openings: SketchOpening | None = None
    known_answers: KnownAnswer | None = None


def _messages_by_step(manifest: Manifest) -> dict[StepId, _StepMessages]:
    found: dict[StepId, _StepMessages] = {}
    for committed in manifest.commitments:
        found.setdefault(
            (committed.commitment.round, committed.commitment.node), _StepMessages()
        ).commitments.append(committed.commitment)
    for signed in manifest.verdicts:
        verdict = signed.verdict
        found.setdefault((verdict.round, verdict.node), _StepMessages()).verdicts.append(verdict)
    for sketch_openings in manifest.sketch_openings:
        found.setdefault(
            (sketch_openings.round, sketch_openings.node), _StepMessages()
        ).sketch_openings = sketch_openings
    for known_answers in manifest.known_answers:
        found.setdefault(
            (known_answers.round, known_answers.node), _StepMessages()
        ).known_answers = known_answers
    return found


def _unseated(run_state: RunState, nodes: Mapping[PeerId, NodeRecord]) -> list[PeerId]:
    """The idle nodes, longest silent first, that lose their seats because others took more than were free.

    Even one that came back with this manifest: seats must never be more than the escrow is sized for.
    """
    over = sum(record.is_seated for record in nodes.values()) - run_state.spec.seats
    idle = [node for node in run_state.nodes if run_state.is_idle(node) and nodes[node].is_seated]
    return sorted(idle, key=lambda node: (-run_state.nodes[node].missed, node))[: max(over, 0)]


def _ruled(record: NodeRecord, audit: Audit, probation: int, now: int) -> NodeRecord:
    """The node's record after a change of its audit's status by the manifest of `now`."""
    if audit.ruling in (AuditStatus.PASSED, AuditStatus.DISMISSED):
        clean = record.clean + 1
        if clean < probation:
            return replace(record, clean=clean)
        return replace(record, clean=clean, is_suspect=False, returns=0)
    if audit.ruling is AuditStatus.OVERDUE:  # whoever comes back begins on probation
        return replace(record, clean=0, absent_round=now)
    if audit.ruling is AuditStatus.CONFIRMED and audit.due_s >= 0:
        # Its other steps were audited or not drawn long ago, and paid: they stand.
        return replace(record, clean=0, fault_round=now, is_lost=True)
    if audit.ruling is AuditStatus.CONFIRMED:
        return replace(record, clean=0, fault_round=int(audit.round))
    return record


def _leaning(record: NodeRecord, verifier: PeerId, f: int) -> NodeRecord:
    """Puts the node back on probation, unpaid, when more than f verifiers report bias. Not a fault."""
    reporters = record.is_biased | {verifier}
    if len(reporters) <= f:
        return replace(record, is_biased=reporters)
    return replace(record, is_biased=frozenset(), clean=0, is_suspect=True)


def _contradicted(record: NodeRecord, pair: Contradiction) -> NodeRecord:
    return replace(record, clean=0, fault_round=int(pair.first.commit.round), has_contradicted=True)


def _failed(record: VerifierRecord, fault: Fault) -> VerifierRecord:
    return replace(record, fault_round=_earliest(record, int(fault.verdict.round)))


def _double_voted(run_state: RunState, record: VerifierRecord, pair: DoubleVote) -> VerifierRecord:
    """The record of a verifier at fault from this round on, or from the last trained one if it is over."""
    at = min(int(run_state.round), run_state.training_rounds - 1)
    return replace(record, fault_round=_earliest(record, max(at, 0)), double_vote=digest(pair))


def _earliest(record: VerifierRecord, round_id: int) -> int:
    return min(round_id, record.fault_round) if record.is_disqualified else round_id


def _prune(
    run_state: RunState, now: int
) -> tuple[
    dict[StepId, Audit],
    dict[StepId, int],
    dict[int, tuple[PeerId, ...]],
    dict[tuple[int, PeerId], EvaluationRecord],
]:
    """Audits, steps, beacon shares, evaluations without the epochs that were final before this manifest."""

    calendar = run_state.calendar

    def kept(round_id: int) -> bool:
        return now <= calendar.settled_at(calendar.epoch_of(round_id)) + 1

    return (
        {step: a for step, a in run_state.audits.items() if kept(step[0]) or not a.has_ended},
        {step: tokens for step, tokens in run_state.steps.items() if kept(step[0])},
        {round_id: peers for round_id, peers in run_state.beacon_shares.items() if kept(round_id)},
        {key: one for key, one in run_state.evaluations.items() if now <= calendar.settled_at(key[0]) + 1},
    )
