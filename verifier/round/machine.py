"""Round: what one verifier collects for the next manifest.

Room: verifier (pure). Messages come in as values; the driver holds the updates' bytes and has checked that
they decode. A commit meets the same rules on arrival and again inside a proposal (`examination`): an
honest leader never proposes what another honest verifier must refuse.

    SignedCommit --> kept once per node; a different second one is evidence
    InclusionList --> each verifier's newest is kept: the leader carries a quorum's
    Attendance, Admission --> likewise, for the manifest that takes the node out, back or in
    Contradiction --> the evidence is pooled: the next manifest bans the node
    DoubleVote --> likewise of a verifier
    BeaconShare, audit messages --> pooled until a manifest carries them
    Advanced --> the next round begins empty
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from assay.protocol.agreement.double_votes import check_double_vote
from assay.protocol.auditing import audits
from assay.protocol.auditing.audits import Audit
from assay.protocol.auditing.commitments import check_sketch_opening
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import MalformedMessage, OutOfPhase, PeerFault
from assay.protocol.identity import verify
from assay.protocol.membership import ADMISSION_S, may_admit, may_attend
from assay.protocol.messages import (
    Attendance,
    AttendanceKind,
    BeaconShare,
    Contradiction,
    DoubleVote,
    KnownAnswer,
    SeatNotice,
    SignedAdmission,
    SignedAppraisal,
    SignedAttendance,
    SignedCommit,
    SignedEvaluation,
    SignedEvaluationCommitment,
    SignedFundingReport,
    SignedInclusionList,
    SignedSeatNotice,
    SignedStakeReport,
    SignedVerdict,
    SignedVerdictCommitment,
    SketchOpening,
    StakeReport,
    Verdict,
    VerdictCommitment,
)
from assay.protocol.params import RUN_NODES_MAX
from assay.protocol.permitted import (
    check_known_answer,
    may_appraise,
    may_commit_evaluation,
    may_contradict,
    may_give_notice,
    may_open_evaluation,
    may_report_funding,
    may_report_stake,
    may_show_double_vote,
)
from assay.protocol.run_state import RunState, StepId
from assay.protocol.types import Digest, PeerId, RoundId, Signature
from assay.verifier.round import drand as outside
from assay.verifier.round.beacon import pooled
from assay.verifier.round.commits import Rules, check_commit, check_contradiction, check_list, contradiction

MESSAGES_PER_VERIFIER = 1024  # commitments and verdicts pooled for later rounds, each; 250 and 450 bytes
ADMISSIONS_PER_VERIFIER = 2 * RUN_NODES_MAX  # pooled, the newest; 270 bytes each
AuditMessage = tuple[RoundId, PeerId, PeerId]  # a verifier's message about a step
K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Everything a verifier holds for the manifest of `run_state.round`."""

    rules: Rules
    run_state: RunState
    state: Digest  # of the parameters that commits of this round must have used
    opened_ms: int
    most_ms: int | None = None  # after the opening, when most commits were here: `leader.gathered`
    heard: Mapping[PeerId, RoundId] = field(default_factory=dict)  # when a node last sent us a commit
    # In how many rounds it has, since a manifest had one of its.
    heard_in_vain: Mapping[PeerId, int] = field(default_factory=dict)
    commits: Mapping[PeerId, SignedCommit] = field(default_factory=dict)
    inclusion_lists: Mapping[PeerId, SignedInclusionList] = field(default_factory=dict)  # of each the newest
    beacon_shares: Mapping[PeerId, tuple[BeaconShare, ...]] = field(default_factory=dict)
    commitments: Mapping[AuditMessage, SignedVerdictCommitment] = field(default_factory=dict)
    verdicts: Mapping[AuditMessage, SignedVerdict] = field(default_factory=dict)
    sketch_openings: Mapping[StepId, SketchOpening] = field(default_factory=dict)
    known_answers: Mapping[StepId, KnownAnswer] = field(default_factory=dict)
    attendance: Mapping[PeerId, SignedAttendance] = field(default_factory=dict)  # of each node the newest
    admissions: Mapping[tuple[PeerId, PeerId], SignedAdmission] = field(default_factory=dict)
    contradictions: Mapping[PeerId, Contradiction] = field(default_factory=dict)
    double_votes: Mapping[PeerId, DoubleVote] = field(default_factory=dict)  # by verifier, the first seen
    stake_reports: Mapping[tuple[PeerId, PeerId], SignedStakeReport] = field(default_factory=dict)
    funding_reports: Mapping[PeerId, SignedFundingReport] = field(default_factory=dict)  # of each the newest
    evaluations: Mapping[tuple[int, PeerId], SignedEvaluation] = field(default_factory=dict)
    # of each verifier the first that came
    evaluation_commitments: Mapping[tuple[int, PeerId], SignedEvaluationCommitment] = field(
        default_factory=dict
    )
    seat_notices: Mapping[PeerId, SignedSeatNotice] = field(default_factory=dict)  # of each the newest
    drand: Mapping[int, bytes] = field(default_factory=dict)  # checked signatures, by drand round
    appraised: Mapping[tuple[PeerId, PeerId], SignedAppraisal] = field(default_factory=dict)
    _missing: list[tuple[str, ...]] = field(init=False, compare=False, repr=False, default_factory=list)


@dataclass(frozen=True, slots=True)
class DrandRound:
    """Event: a signed round of the run's drand network; its signature is checked already."""

    number: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Heard:
    """Event: a node sent a commit that it signed, in time or not: it is not silent. See `is_sign_of_life`."""

    node: PeerId


@dataclass(frozen=True, slots=True)
class Advanced:
    """Event: a manifest became final and the parameters are updated."""

    run_state: RunState
    state: Digest
    now_ms: int


@dataclass(frozen=True, slots=True)
class Equivocation:
    """Effect: evidence that we did not have, for the slash court and for all other verifiers."""

    pair: Contradiction


# Messages are events. A commit was admitted (`commits.admit`) and its update is held; every other message is
# checked here, with its signature.
Event = (
    SignedCommit
    | SignedInclusionList
    | BeaconShare
    | SignedVerdictCommitment
    | SignedVerdict
    | SketchOpening
    | KnownAnswer
    | SignedAttendance
    | SignedAdmission
    | Contradiction
    | DoubleVote
    | SignedAppraisal
    | SignedStakeReport
    | SignedFundingReport
    | SignedEvaluation
    | SignedEvaluationCommitment
    | SignedSeatNotice
    | DrandRound
    | Heard
    | Advanced
)


def step(state: Round, event: Event) -> tuple[Round, tuple[Equivocation, ...]]:
    """The round with one more message in it.

    Raises:
        PeerFault: the message breaks a rule; state is unchanged.
        OutOfPhase: it belongs to another round.
    """
    match event:
        case SignedCommit() as signed:
            check_commit(state.rules, state.run_state, state.state, signed)
            known = state.commits.get(signed.commit.node)
            if known is None:
                return replace(state, commits={**state.commits, signed.commit.node: signed}), ()
            # The first commit stands; a second, different one is evidence and nothing else.
            if known.commit == signed.commit:
                return state, ()
            return _contradicted(state, contradiction(known, signed))
        case SignedInclusionList(inclusion_list=one):
            now = state.run_state.round
            if not now <= one.round <= now + 1:  # a verifier that is a little ahead of us lists early
                raise OutOfPhase(one.verifier, f"InclusionList of round {one.round} during round {now}")
            check_list(state.rules, state.run_state, event)
            return replace(state, inclusion_lists={**state.inclusion_lists, one.verifier: event}), ()
        case Contradiction() as pair:
            check_contradiction(state.rules, state.run_state, pair)
            return _contradicted(state, pair)
        case DoubleVote(verifier=verifier) as pair:
            if not may_show_double_vote(state.run_state, pair):
                raise OutOfPhase(verifier, "DoubleVote of a stranger, or of one at fault for it already")
            check_double_vote(state.rules.domain, pair, state.run_state.rotation.configuration)
            return replace(state, double_votes={verifier: pair, **state.double_votes}), ()
        case DrandRound(number, signature):
            return replace(state, drand=outside.pooled(state.drand, number, signature)), ()
        case SignedAppraisal(appraised=appraisal):
            _check_fits(state, event, f"Appraisal of evidence of round {appraisal.round}")
            appraised = {**state.appraised, (appraisal.node, appraisal.verifier): event}
            return replace(state, appraised=appraised), ()
        case SignedStakeReport(stake_report=report):
            _check_fits(state, event, f"StakeReport of round {report.round}")
            waiting = state.stake_reports.get((report.node, report.verifier))
            if waiting is not None and _repeats(report, waiting.stake_report):
                return state, ()
            stake_reports = {**state.stake_reports, (report.node, report.verifier): event}
            return replace(state, stake_reports=stake_reports), ()
        case SignedFundingReport(funding_report=reading):
            _check_fits(state, event, f"FundingReport of block {reading.block}")
            last = state.funding_reports.get(reading.verifier)
            if last is not None and last.funding_report.block >= reading.block:
                return state, ()
            return replace(state, funding_reports={**state.funding_reports, reading.verifier: event}), ()
        case SignedEvaluation(evaluation=found):
            _check_fits(state, event, f"Evaluation of epoch {found.epoch}")
            evaluations = {(found.epoch, found.verifier): event, **state.evaluations}
            return replace(state, evaluations=evaluations), ()
        case SignedEvaluationCommitment(commitment=committed):
            _check_fits(state, event, f"EvaluationCommitment of epoch {committed.epoch}")
            sealed = {(committed.epoch, committed.verifier): event, **state.evaluation_commitments}
            return replace(state, evaluation_commitments=sealed), ()
        case SignedSeatNotice(notice=notice):
            _check_fits(state, event, f"{notice.kind.name} notice of round {notice.round}")
            return replace(state, seat_notices={**state.seat_notices, notice.holder: event}), ()
        case BeaconShare(verifier=verifier):
            if verifier not in state.run_state.spec.verifier_peers:
                raise PeerFault(verifier, "BeaconShare by a stranger to this run")
            kept = pooled(state.beacon_shares.get(verifier, ()), event, state.run_state)
            return replace(state, beacon_shares={**state.beacon_shares, verifier: kept}), ()
        case SignedVerdictCommitment(commitment=commitment):
            _check_message(state, commitment, event.signature, state.commitments)
            key = _message_of(commitment)
            bound = state.commitments.get(key)
            if bound is not None and _outlasts(state.run_state, bound.commitment, commitment):
                return state, ()
            return replace(state, commitments={**state.commitments, key: event}), ()
        case SignedVerdict(verdict=verdict):
            _check_message(state, verdict, event.signature, state.verdicts)
            key = _message_of(verdict)
            judged = state.verdicts.get(key)
            if judged is not None and _outlasts(state.run_state, judged.verdict, verdict):
                return state, ()
            return replace(state, verdicts={**state.verdicts, key: event}), ()
        case SketchOpening() | KnownAnswer():
            return _opened(state, event), ()
        case SignedAttendance(attendance=one):
            _check_fits(state, event, f"{one.kind.name} of round {one.round} at {state.run_state.round}")
            return replace(state, attendance={**state.attendance, one.node: event}), ()
        case SignedAdmission():
            return _with_admission(state, event), ()
        case Heard(node):
            if node not in state.run_state.nodes:
                return state, ()
            now, count = state.run_state.round, state.heard_in_vain.get(node, 0)
            if state.heard.get(node) == now:
                return state, ()
            in_vain = {**state.heard_in_vain, node: count + 1}
            return replace(state, heard={**state.heard, node: now}, heard_in_vain=in_vain), ()
        case Advanced(run_state, parameters, now_ms):
            return _after(state, run_state, parameters, now_ms), ()


def _after(state: Round, run_state: RunState, parameters: Digest, now_ms: int) -> Round:
    """The next round: it begins with what was pooled and may still be carried."""

    since = state.run_state.rotation.configuration.number
    given_up = {one.seat for one in run_state.rotation.configuration.hand_overs[since:]}

    def is_by_holder(one: Any) -> bool:  # what the former holder signed, the next manifest may not carry
        return isinstance(one, DoubleVote) or getattr(said_in(one), "verifier", None) not in given_up

    def fit(pool: Mapping[K, T]) -> dict[K, T]:
        return {key: one for key, one in pool.items() if fits(run_state, one) and is_by_holder(one)}

    def wanted(pool: Mapping[AuditMessage, T]) -> dict[AuditMessage, T]:
        return {key: one for key, one in pool.items() if _is_wanted(run_state, key) and is_by_holder(one)}

    return Round(
        rules=state.rules,
        run_state=run_state,
        state=parameters,
        opened_ms=now_ms,
        heard=state.heard,
        heard_in_vain={node: n for node, n in state.heard_in_vain.items() if run_state.nodes[node].missed},
        inclusion_lists=fit(state.inclusion_lists),
        beacon_shares=state.beacon_shares,
        commitments=wanted(state.commitments),
        verdicts=wanted(state.verdicts),
        sketch_openings={k: v for k, v in state.sketch_openings.items() if _is_near(run_state, k)},
        known_answers={k: v for k, v in state.known_answers.items() if _is_near(run_state, k)},
        attendance=fit(state.attendance),
        admissions=fit(state.admissions),
        contradictions=fit(state.contradictions),
        double_votes=fit(state.double_votes),
        stake_reports=fit(state.stake_reports),
        funding_reports=fit(state.funding_reports),
        evaluations=fit(state.evaluations),
        evaluation_commitments=fit(state.evaluation_commitments),
        seat_notices=fit(state.seat_notices),
        drand=state.drand,
        appraised=fit(state.appraised),
    )


def said_in(message: Any) -> Any:
    """The statement that a signed message holds, its first field; any other message is its own."""
    is_signed = message.TAG.startswith(b"assay/signed-")
    return getattr(message, fields(message)[0].name) if is_signed else message


def fits(run_state: RunState, message: Any) -> bool:
    """Whether a manifest of this round or a later one may carry this message, its signature aside."""
    match message:
        case SignedInclusionList(inclusion_list=one):
            return one.round == run_state.round
        case SignedAdmission(admission=admission):
            return may_admit(run_state, admission, run_state.time_s)
    may: Callable[[RunState, Any], bool] = _MAY[type(message)]
    return may(run_state, said_in(message))


def _check_fits(state: Round, signed: Any, what: str) -> None:
    """Do nothing if a manifest may carry this statement, and its author signed it."""
    said = said_in(signed)
    match said:
        case Attendance(node=author) | SeatNotice(holder=author):
            pass
        case _:
            author = state.run_state.key(said.verifier)
    if not fits(state.run_state, signed):
        raise OutOfPhase(author, what)
    verify(author, state.rules.domain, said, signed.signature)


def _repeats(report: StakeReport, earlier: StakeReport) -> bool:
    """Whether a report says again what one that waits says, which keeps its place among its verifier's."""
    return report.is_whole == earlier.is_whole and report.round >= earlier.round


def _is_new(run_state: RunState, said: Attendance) -> bool:
    """Whether the chain may still accept this statement of a node."""
    record = run_state.nodes.get(said.node)
    if record is None or not record.absent_round < said.round <= run_state.round + 1:
        return False
    match said.kind:
        case AttendanceKind.RETURN:
            return said.node in run_state.late
        case AttendanceKind.LEAVE:
            return record.is_seated
        case AttendanceKind.TASKS | AttendanceKind.DATA:
            return may_attend(run_state, said, run_state.time_s)


# By what the next manifest may carry a message, and so until when it is pooled.
_MAY: Mapping[type, Callable[..., bool]] = {
    SignedAppraisal: may_appraise,
    SignedAttendance: _is_new,
    SignedEvaluation: may_open_evaluation,
    SignedEvaluationCommitment: may_commit_evaluation,
    SignedFundingReport: may_report_funding,
    SignedStakeReport: may_report_stake,
    SignedSeatNotice: may_give_notice,
    Contradiction: may_contradict,
    DoubleVote: may_show_double_vote,
}


def _with_admission(state: Round, signed: SignedAdmission) -> Round:
    """The round with a verifier's newest admission of a node."""
    admission = signed.admission
    if admission.verifier not in state.run_state.spec.verifier_peers:
        raise PeerFault(admission.verifier, "Admission by a stranger to this run")
    if not may_admit(state.run_state, admission, state.run_state.time_s):
        raise OutOfPhase(
            admission.verifier, f"Admission of {admission.member.peer.hex()[:8]}, which may not join"
        )
    verify(state.run_state.key(admission.verifier), state.rules.domain, admission, signed.signature)
    key = (admission.member.peer, admission.verifier)
    known = {
        k: one
        for k, one in state.admissions.items()
        if k[1] != admission.verifier or one.admission.time_s >= admission.time_s - ADMISSION_S
    }  # by its own clock: of nodes that stopped asking
    own = [one for one in known if one[1] == admission.verifier]
    if key not in known and len(own) >= ADMISSIONS_PER_VERIFIER:
        del known[min(own, key=lambda one: known[one].admission.time_s)]
    return replace(state, admissions={**known, key: signed})


def _check_message(
    state: Round,
    message: VerdictCommitment | Verdict,
    signature: Signature,
    pool: Mapping[AuditMessage, SignedVerdictCommitment] | Mapping[AuditMessage, SignedVerdict],
) -> None:
    """Do nothing if this is a verifier's message that may be pooled; only its newest is kept."""
    run_state, verifier = state.run_state, message.verifier
    if message.run_id != run_state.run_id or verifier not in run_state.spec.verifier_peers:
        raise PeerFault(verifier, f"{type(message).__name__} of another run or by a stranger")
    if not _is_near(run_state, (message.round, message.node)):
        raise OutOfPhase(verifier, f"{type(message).__name__} on round {message.round} at {run_state.round}")
    verify(run_state.key(verifier), state.rules.domain, message, signature)
    if _message_of(message) not in pool and sum(key[2] == verifier for key in pool) >= MESSAGES_PER_VERIFIER:
        raise PeerFault(verifier, f"more than {MESSAGES_PER_VERIFIER} messages waiting")


def _outlasts(
    run_state: RunState, known: VerdictCommitment | Verdict, new: VerdictCommitment | Verdict
) -> bool:
    """Whether a pooled message stays: it fits the audit's present stage, and the new one does not.

    Anybody can send again what a verifier signed before a dispute; it must not evict what it signs now.
    """
    return _is_current(run_state, known) and not _is_current(run_state, new)


def _is_current(run_state: RunState, message: VerdictCommitment | Verdict) -> bool:
    audit = run_state.audits.get((message.round, message.node))
    if audit is None:
        return False
    if isinstance(message, VerdictCommitment):
        return message.pattern == audit.pattern
    committed = audit.committed_by(message.verifier)
    return committed is not None and committed.verdict == digest(message)


def _contradicted(state: Round, pair: Contradiction) -> tuple[Round, tuple[Equivocation, ...]]:
    node = pair.first.commit.node
    if node in state.contradictions:
        return state, ()  # one is enough
    return replace(state, contradictions={**state.contradictions, node: pair}), (Equivocation(pair),)


def _opened(state: Round, message: SketchOpening | KnownAnswer) -> Round:
    run_state, step = state.run_state, (message.round, message.node)
    audit = run_state.audits.get(step)
    if message.run_id != run_state.run_id or audit is None:
        raise OutOfPhase(
            message.node, f"{type(message).__name__} of round {message.round}, which is not audited here"
        )
    try:
        if isinstance(message, SketchOpening):
            check_sketch_opening(message, audit.commit, audit.segment)
            return replace(state, sketch_openings={**state.sketch_openings, step: message})
        check_known_answer(run_state, message)
    except MalformedMessage as fault:
        raise PeerFault(message.node, str(fault)) from None
    return replace(state, known_answers={**state.known_answers, step: message})


def may_carry(run_state: RunState, message: SketchOpening | KnownAnswer) -> bool:
    audit = run_state.audits.get((message.round, message.node))
    if audit is None:
        return False
    if isinstance(message, SketchOpening):
        return audits.may_open_sketch(audit, int(run_state.round))
    return audits.may_show_known_answer(run_state.spec.audit, audit, int(run_state.round))


def _message_of(message: VerdictCommitment | Verdict) -> AuditMessage:
    return message.round, message.node, message.verifier


def _is_near(run_state: RunState, step: StepId) -> bool:
    """Whether messages about this step can still arrive in time, allowing for our being a little behind."""
    audit = run_state.audits.get(step)
    return (
        audit is not None and not audit.has_ended
    ) or run_state.round - run_state.spec.closing_rounds <= step[0] <= run_state.round + 2


def _is_wanted(run_state: RunState, key: AuditMessage) -> bool:
    """Whether the chain may still accept this verifier's message about this step."""
    audit: Audit | None = run_state.audits.get((key[0], key[1]))
    if audit is None:
        return _is_near(run_state, (key[0], key[1]))
    return audit.is_open and not audit.has_judged(key[2])
