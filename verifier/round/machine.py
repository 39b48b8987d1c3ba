"""Round: what one verifier collects for the next manifest, and which proposed manifests it accepts.

Room: verifier (pure). Messages come in as values; the driver holds the updates' bytes and has checked that
they decode. Every verifier applies the same rules to a commit, on arrival and again inside a proposal: an
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

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from assay.participant.links import check_place
from assay.protocol.agreement.double_votes import check_double_vote
from assay.protocol.agreement.inclusion import compatible_lists, is_bitmap, listed, nodes_bitmap, required
from assay.protocol.agreement.quorum import quorum
from assay.protocol.auditing import audits
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.auditing.commitments import check_sketch_opening
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import MalformedMessage, OutOfPhase, PeerFault
from assay.protocol.identity import verify
from assay.protocol.membership import ADMISSION_S, admitted, may_admit, may_attend, may_start
from assay.protocol.messages import (
    CONTRADICTIONS_MAX,
    STAKE_REPORTS_MAX,
    VERIFIERS_MAX,
    Attendance,
    AttendanceKind,
    BeaconShare,
    Closing,
    Contradiction,
    DoubleVote,
    InclusionList,
    KnownAnswer,
    Manifest,
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
    Verdict,
    VerdictCommitment,
)
from assay.protocol.params import RUN_NODES_MAX
from assay.protocol.permitted import (
    awaited,
    check_known_answer,
    may_appraise,
    may_commit_evaluation,
    may_commit_verdict,
    may_contradict,
    may_give_notice,
    may_open_evaluation,
    may_open_verdict,
    may_report_funding,
    may_report_stake,
    may_show_double_vote,
    unopened,
    with_reports,
)
from assay.protocol.run_state import RunState, StepId, next_chain
from assay.protocol.state_transition import advance
from assay.protocol.types import (
    NO_DIGEST,
    NO_ITERATION,
    NO_PEER,
    Digest,
    Iteration,
    PeerId,
    RoundId,
    Signature,
)
from assay.verifier.round import drand as outside
from assay.verifier.round.beacon import (
    check_reveals,
    is_enough,
    is_partial,
    lacks_shares,
    pooled,
    valid_shares,
)
from assay.verifier.round.commits import (
    Rules,
    admit,
    check_commit,
    check_contradiction,
    check_list,
    contradiction,
)

MESSAGES_PER_VERIFIER = 1024  # commitments and verdicts pooled for later rounds, each; 250 and 450 bytes
MESSAGES_PER_MANIFEST = 110  # of each kind, oldest first; the rest goes into later manifests
APPRAISALS_PER_MANIFEST = 32
ADMISSIONS_PER_VERIFIER = 2 * RUN_NODES_MAX  # pooled, the newest; 270 bytes each
AHEAD_S = 10  # by which a manifest's time may be ahead of our clock, at least,
AHEAD_SHARE = 16  # and a 16th of the absence that it measures: a clock that is minutes late still votes
SHARES, FUNDING, NODES = "beacon shares", "funding", "nodes"  # as `missing` names them
MISSED_MAX = 2  # rounds in a row that a node may miss before nobody waits for it
# A leader looks at its notarised ancestors with every message. Without a cache each look folds all of them
# anew, with their VRF proofs: a verifier that was slow once, and so has many, never catches up.
ADVANCED_KEPT = 64
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
    heard: Mapping[PeerId, RoundId] = field(default_factory=dict)  # when a node last sent us a commit
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
    """Event: a node sent a commit, in time or not: it is not silent."""

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
            return replace(state, heard={**state.heard, node: state.run_state.round}), ()
        case Advanced(run_state, parameters, now_ms):
            return _after(state, run_state, parameters, now_ms), ()


def _after(state: Round, run_state: RunState, parameters: Digest, now_ms: int) -> Round:
    """The next round: it begins with what was pooled and may still be carried."""

    since = state.run_state.rotation.configuration.number
    given_up = {one.seat for one in run_state.rotation.configuration.hand_overs[since:]}

    def is_by_holder(one: Any) -> bool:  # what the former holder signed, the next manifest may not carry
        return isinstance(one, DoubleVote) or getattr(said_in(one), "verifier", None) not in given_up

    def fit(pool: Mapping[K, T]) -> dict[K, T]:
        return {key: one for key, one in pool.items() if _fits(run_state, one) and is_by_holder(one)}

    def wanted(pool: Mapping[AuditMessage, T]) -> dict[AuditMessage, T]:
        return {key: one for key, one in pool.items() if _is_wanted(run_state, key) and is_by_holder(one)}

    return Round(
        rules=state.rules,
        run_state=run_state,
        state=parameters,
        opened_ms=now_ms,
        heard=state.heard,
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


def _fits(run_state: RunState, message: Any) -> bool:
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
    if not _fits(state.run_state, signed):
        raise OutOfPhase(author, what)
    verify(author, state.rules.domain, said, signed.signature)


def missing(state: Round, ancestors: tuple[Manifest, ...] = (), *, wall_s: int = 0) -> tuple[str, ...]:
    """What a leader still waits for, as text for logs; empty when the manifest can be made.

    On a final parent it is kept with the state: a verifier looks several times with every message and tick.
    Not of a run that has not started, which depends on wall_s: Unix time.
    """
    if ancestors or state.run_state.awaits_nodes:
        return _missing_now(state, ancestors, wall_s)
    if not state._missing:
        state._missing.append(_missing_now(state, (), wall_s))
    return state._missing[0]


def _missing_now(state: Round, ancestors: tuple[Manifest, ...], wall_s: int) -> tuple[str, ...]:
    run_state = base_history(state.run_state, ancestors)
    lacking = []
    if awaits_funding(state, ancestors, wall_s):
        lacking.append(FUNDING)
    elif awaits_nodes(state, ancestors, wall_s):
        lacking.append(NODES)
    elif not ancestors and _reported(state, run_state).takes_commits:
        absent = len(_expected(state) - set(state.commits))
        if absent:
            lacking.append(f"{absent} commits")
        if not _carried_lists(state):
            lacking.append("inclusion lists")
    if lacks_shares(run_state, valid_shares(state.beacon_shares, run_state)):
        lacking.append(SHARES)
    if outside.is_waited_for(run_state, state.drand):
        lacking.append("drand")
    if any(_lacks_messages(state, run_state, step) for step in awaited(run_state)):
        lacking.append("verdicts")
    if any(who[1] in run_state.beacon and who not in state.evaluations for who in unopened(run_state)):
        lacking.append("evaluations")
    return tuple(lacking)


def may_propose(
    state: Round, ancestors: tuple[Manifest, ...], now_ms: int, *, follows: bool, wall_s: int = 0
) -> bool:
    """Whether a leader should propose now: everything is in, or enough is and the deadline has passed.

    Args:
        state: What it holds.
        ancestors: Notarised manifests it builds on.
        now_ms: The time.
        follows: No iteration was skipped since the parent's; then every share of the beacon is needed.
        wall_s: Unix time.
    """
    lacking = missing(state, ancestors, wall_s=wall_s)
    if not lacking:
        return True
    if FUNDING in lacking or NODES in lacking:
        return False
    run_state = base_history(state.run_state, ancestors)
    if not is_enough(run_state, valid_shares(state.beacon_shares, run_state), follows=follows):
        return False
    if follows and outside.is_waited_for(run_state, state.drand):
        return False
    if not ancestors and _reported(state, run_state).takes_commits and not _carried_lists(state):
        return False
    is_over = not run_state.is_training or _reported(state, run_state).closing is not Closing.NO
    has_work = bool(state.commits) or bool(ancestors) or is_over or run_state.is_deserted
    timing = run_state.spec.timing
    # A share follows from the last manifest, which is older than all else that a leader waits for.
    patience_ms = timing.ready_ms if lacking == (SHARES,) else timing.collect_ms
    return has_work and now_ms >= state.opened_ms + patience_ms


def due_list(state: Round, verifier: PeerId, now_ms: int) -> InclusionList | None:
    """The inclusion list that a seat should sign now; None if there is none, or it is signed already.

    One is due once the commit of every node that is not silent is held, or the deadline for commits has
    passed, and again whenever a commit comes later.
    """
    run_state = state.run_state
    reported = _reported(state, run_state)
    if not reported.takes_commits or verifier == NO_PEER:
        return None
    is_late = now_ms >= state.opened_ms + run_state.spec.timing.collect_ms
    has_work = bool(state.commits) or reported.closing is not Closing.NO
    is_whole = (bool(state.commits) or run_state.is_deserted) and _expected(state) <= set(state.commits)
    if not is_whole and not (is_late and has_work):
        return None
    found = InclusionList(
        run_id=run_state.run_id,
        round=run_state.round,
        parent=run_state.parent,
        verifier=verifier,
        nodes=nodes_bitmap(tuple(run_state.nodes), state.commits),
    )
    return None if found in _lists(state) else found


def _expected(state: Round) -> frozenset[PeerId]:
    """The nodes whose commits are worth waiting for: those that sent one lately, in time or not."""
    run_state = state.run_state
    return frozenset(
        node
        for node in run_state.active
        if run_state.nodes[node].missed < MISSED_MAX
        or (node in state.heard and run_state.round - state.heard[node] < MISSED_MAX)
    )


def lacking_commits(state: Round) -> Mapping[PeerId, tuple[PeerId, ...]]:
    """Nodes whose commit a leader has to fetch because more than f verifiers list it, and those verifiers."""
    members, lists = tuple(state.run_state.nodes), _lists(state)
    lacking = required(members, lists, len(state.run_state.spec.verifiers)) - set(state.commits)
    return {
        node: tuple(one.verifier for one in lists if node in listed(members, one.nodes)) for node in lacking
    }


def _carried_lists(state: Round) -> tuple[SignedInclusionList, ...]:
    """The lists for a manifest with the commits held, ascending by verifier; () if fewer than a quorum."""
    members, count = tuple(state.run_state.nodes), len(state.run_state.spec.verifiers)
    chosen = compatible_lists(members, _lists(state), state.commits.keys(), count)
    return tuple(state.inclusion_lists[peer] for peer in sorted(one.verifier for one in chosen))


def _lists(state: Round) -> list[InclusionList]:
    """The inclusion lists held for the next manifest, but for those that are no bitmap of its nodes."""
    place, members = (state.run_state.round, state.run_state.parent), tuple(state.run_state.nodes)
    found = (signed.inclusion_list for signed in state.inclusion_lists.values())
    return [one for one in found if (one.round, one.parent) == place and is_bitmap(members, one.nodes)]


def awaits_funding(state: Round, ancestors: tuple[Manifest, ...] = (), wall_s: int = 0) -> bool:
    """Whether no manifest can follow before verifiers report that the escrow pays for it, or closes."""
    run_state = base_history(state.run_state, ancestors)
    return _reported(state, run_state).awaits_funding and not run_state.lapses_at(wall_s)


def awaits_return(state: Round, ancestors: tuple[Manifest, ...], wall_s: int) -> bool:
    """Whether only overdue openings are left of the run, and neither their time is over nor a node back."""
    run_state = base_history(state.run_state, ancestors)
    due_s = run_state.due_s
    said = _attendance(state, run_state, wall_s)
    is_back = any(signed.attendance.kind is AttendanceKind.RETURN for signed in said)
    is_shown = any(_may_carry(run_state, one) for one in state.known_answers.values())
    return due_s is not None and wall_s < due_s and not is_back and not is_shown


def awaits_nodes(state: Round, ancestors: tuple[Manifest, ...], wall_s: int) -> bool:
    """Whether the run has not started, fewer nodes than it needs are ready, and there is time for others."""
    run_state = base_history(state.run_state, ancestors)
    if not run_state.awaits_nodes or run_state.lapses_at(wall_s):
        return False
    if _reported(state, run_state).closing is not Closing.NO:
        return False
    is_enough = ready_count(state, wall_s) >= run_state.spec.least_nodes
    return not is_enough or not may_start(run_state, manifest_of(state, (), NO_DIGEST, wall_s=wall_s))


def ready_count(state: Round, wall_s: int) -> int:
    """The nodes that a run which has not started could start with now, if none of them leaves."""
    joining = admitted(state.run_state, state.admissions.values(), max(state.run_state.time_s, wall_s))
    return len(state.run_state.nodes) + len({signed.admission.member.peer for signed in joining})


def _attendance(state: Round, run_state: RunState, time_s: int) -> tuple[SignedAttendance, ...]:
    """Who leaves and who returns by a manifest of this agreed time, ascending by node."""
    held = (one for _, one in sorted(state.attendance.items()))
    return tuple(one for one in held if may_attend(run_state, one.attendance, time_s))


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
        case AttendanceKind.TASKS:
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


def waited(state: Round, now_ms: int) -> Round:
    """The round with its deadline counted from now on: it was waiting for money, not for its nodes."""
    return replace(state, opened_ms=now_ms)


def is_held_up(state: Round, now_ms: int, *, wall_s: int = 0) -> bool:
    """Whether only missing beacon parts keep a leader that follows at once from proposing.

    Waiting longer is then useless: once this leader's iteration is skipped, the next may do without them.
    A drand round that is not published yet is worth waiting for. wall_s: Unix time.
    """
    if outside.is_coming(state.run_state, state.drand, wall_s):
        return False
    may_do_without = may_propose(state, (), now_ms, follows=False, wall_s=wall_s)
    return may_do_without and not may_propose(state, (), now_ms, follows=True, wall_s=wall_s)


def manifest_of(
    state: Round,
    ancestors: tuple[Manifest, ...],
    aggregate: Digest,
    *,
    iteration: Iteration = NO_ITERATION,
    wall_s: int = 0,
) -> Manifest:
    """The manifest a leader proposes.

    Args:
        state: What it holds.
        ancestors: Notarised manifests it builds on.
        aggregate: Its digest; zero if no commit is carried, or the rule refuses.
        iteration: In which it is proposed.
        wall_s: Unix time.
    """
    run_state = base_history(state.run_state, ancestors)
    is_paid = not ancestors and _reported(state, run_state).takes_commits
    commits = tuple(signed for _, signed in sorted(state.commits.items())) if is_paid else ()
    commitments = (
        signed
        for (round_id, node, verifier), signed in sorted(state.commitments.items())
        if (audit := run_state.audits.get((round_id, node))) is not None
        and may_commit_verdict(run_state, audit, verifier)
        and signed.commitment.pattern == audit.pattern
    )
    verdicts = (
        signed
        for (round_id, node, _), signed in sorted(state.verdicts.items())
        if (audit := run_state.audits.get((round_id, node))) is not None
        and may_open_verdict(run_state, audit, signed.verdict)
    )
    time_s = max(run_state.time_s, wall_s)
    shares = valid_shares(state.beacon_shares, run_state) if run_state.round else ()
    signature = outside.carried(run_state, state.drand)

    def fit(pool: Mapping[Any, T]) -> tuple[T, ...]:
        return tuple(one for _, one in sorted(pool.items()) if _fits(run_state, one))

    return Manifest(
        run_id=run_state.run_id,
        round=run_state.round,
        parent=run_state.parent,
        time_s=time_s,
        commits=commits,
        inclusion_lists=_carried_lists(state) if is_paid else (),
        beacon_shares=shares,
        drand=signature,
        drand_next=outside.next_number(run_state, wall_s),
        is_partial=is_partial(run_state, shares, signature),
        commitments=_first(commitments),
        verdicts=_first(verdicts),
        sketch_openings=_first(
            message for _, message in sorted(state.sketch_openings.items()) if _may_carry(run_state, message)
        ),
        known_answers=_first(
            message for _, message in sorted(state.known_answers.items()) if _may_carry(run_state, message)
        ),
        attendance=_attendance(state, run_state, time_s),
        admissions=admitted(run_state, state.admissions.values(), time_s),
        contradictions=fit(state.contradictions)[:CONTRADICTIONS_MAX],
        double_votes=fit(state.double_votes)[:CONTRADICTIONS_MAX],
        appraised=fit(state.appraised)[:APPRAISALS_PER_MANIFEST],
        stake_reports=_oldest(state, run_state),
        funding_reports=fit(state.funding_reports),
        evaluations=fit(state.evaluations)[:VERIFIERS_MAX],
        seat_notices=fit(state.seat_notices)[:VERIFIERS_MAX],
        disqualified=run_state.disqualified,
        aggregate=aggregate,
        chain=next_chain(run_state.chain, tuple(signed.commit for signed in commits), aggregate),
        hand_over=run_state.hand_over,
        iteration=iteration if run_state.spec.reserves else NO_ITERATION,
        evaluation_commitments=fit(state.evaluation_commitments)[:VERIFIERS_MAX],
    )


def examine(
    state: Round,
    ancestors: tuple[Manifest, ...],
    manifest: Manifest,
    *,
    follows: bool = False,
    iteration: Iteration = NO_ITERATION,
    wall_s: int = 0,
) -> None:
    """Do nothing if this verifier may vote for a proposed manifest. Its aggregate is not checked here.

    Args:
        state: What it holds.
        ancestors: Notarised manifests that the proposed one builds on.
        manifest: The proposed one.
        follows: No iteration was skipped since the parent's.
        iteration: In which it is proposed.
        wall_s: Unix time.

    Raises:
        MalformedMessage, PeerFault, OutOfPhase: the rule it breaks.
    """
    run_state = base_history(state.run_state, ancestors)
    check_place(run_state, manifest)
    ahead_s = max(AHEAD_S, run_state.spec.audit.absence_s // AHEAD_SHARE)
    if run_state.awaits_nodes and abs(manifest.time_s - wall_s) > AHEAD_S:
        raise MalformedMessage(
            f"manifest of another time: it decides at {manifest.time_s} whether the run starts, "
            f"our clock says {wall_s}, at most {AHEAD_S} s from it expected"
        )
    if manifest.time_s > max(run_state.time_s, wall_s + ahead_s):
        raise MalformedMessage(
            f"manifest of the future: its time is {manifest.time_s}, our clock says {wall_s}, "
            f"at most {ahead_s} s ahead expected"
        )
    if run_state.spec.reserves and manifest.iteration != iteration:
        raise MalformedMessage(f"manifest of iteration {manifest.iteration}, expected {iteration}")
    outside.check_outside(run_state, manifest, follows=follows, wall_s=wall_s)
    for signed in manifest.commits:
        if ancestors:
            raise MalformedMessage("manifest with commits on a parent that is not final")
        if state.commits.get(signed.commit.node) != signed:  # ours were admitted under the same rules
            admit(state.rules, run_state, state.state, signed)
    after = with_reports(run_state, (signed.funding_report for signed in manifest.funding_reports))
    if not ancestors and after.takes_commits:
        _check_complete(state.rules, run_state, manifest, is_closing=after.closing is not Closing.NO)
    check_reveals(run_state, manifest, follows=follows)
    signed_by_verifiers: tuple[Any, ...] = (
        *manifest.commitments,
        *manifest.verdicts,
        *manifest.stake_reports,
        *manifest.admissions,
        *manifest.funding_reports,
        *manifest.evaluations,
        *manifest.evaluation_commitments,
        *manifest.appraised,
    )
    for message in signed_by_verifiers:
        said = said_in(message)
        if said.run_id != run_state.run_id:
            raise MalformedMessage(f"manifest carries a {type(said).__name__} of another run")
        verify(run_state.key(said.verifier), state.rules.domain, said, message.signature)
    for pair in manifest.contradictions:
        check_contradiction(state.rules, run_state, pair)


def _check_complete(rules: Rules, run_state: RunState, manifest: Manifest, *, is_closing: bool) -> None:
    """Do nothing if this manifest of a paid round on a final parent shows that it leaves no commit out."""
    if not manifest.commits and not is_closing and not run_state.is_deserted:
        raise MalformedMessage("manifest without commits on a parent that is final")
    count, need = len(manifest.inclusion_lists), quorum(len(run_state.spec.verifiers))
    if count < need:
        raise MalformedMessage(f"manifest with {count} inclusion lists, expected {need}")
    for signed in manifest.inclusion_lists:
        check_list(rules, run_state, signed)


def _oldest(state: Round, run_state: RunState) -> tuple[SignedStakeReport, ...]:
    """Stake reports for a manifest, in its canonical order: those that have waited longest."""
    fit = (item for item in sorted(state.stake_reports.items()) if _fits(run_state, item[1]))
    first = sorted(fit, key=lambda item: item[1].stake_report.round)[:STAKE_REPORTS_MAX]
    return tuple(signed for _, signed in sorted(first, key=lambda item: item[0]))


def _reported(state: Round, run_state: RunState) -> RunState:
    """The run state as it is once every funding report held here is in a manifest."""
    return with_reports(run_state, (signed.funding_report for signed in state.funding_reports.values()))


def base_history(run_state: RunState, ancestors: tuple[Manifest, ...]) -> RunState:
    """The history that a manifest on top of these notarised, not yet final manifests extends."""
    for manifest in ancestors:
        # One that does not extend our history was overtaken: the chain went on beside it.
        if manifest.round == run_state.round and manifest.parent == run_state.parent:
            run_state = _advanced(_Same(run_state), _Same(manifest))
    return run_state


class _Same(Generic[T]):
    """A value that equals itself only, so that a cache need not compare contents."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


@functools.lru_cache(maxsize=ADVANCED_KEPT)
def _advanced(run_state: _Same[RunState], manifest: _Same[Manifest]) -> RunState:
    return advance(run_state.value, manifest.value)


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


def _may_carry(run_state: RunState, message: SketchOpening | KnownAnswer) -> bool:
    audit = run_state.audits.get((message.round, message.node))
    if audit is None:
        return False
    if isinstance(message, SketchOpening):
        return audits.may_open_sketch(audit, int(run_state.round))
    return audits.may_show_known_answer(run_state.spec.audit, audit, int(run_state.round))


def _message_of(message: VerdictCommitment | Verdict) -> AuditMessage:
    return message.round, message.node, message.verifier


def _first(messages: Iterable[T]) -> tuple[T, ...]:
    return tuple(itertools.islice(messages, MESSAGES_PER_MANIFEST))


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


def _lacks_messages(state: Round, run_state: RunState, step: StepId) -> bool:
    """Whether a message is missing for which the next manifest is the last chance; not of who is away."""
    audit, present = run_state.audits[step], run_state.beacon
    due_commitments, due_verdicts, wants_shown = audits.awaits(
        run_state.spec.audit, audit, int(run_state.round)
    )
    commitments = [v for v in due_commitments if v in present and may_commit_verdict(run_state, audit, v)]
    verdicts = [verifier for verifier in due_verdicts if verifier in present]
    pooled = ((v, state.commitments.get((*step, v))) for v in commitments)
    committed = {v for v, one in pooled if one is not None and one.commitment.pattern == audit.pattern}
    if (
        (len(committed) < len(commitments))
        if audit.ruling is AuditStatus.DISPUTED
        else (commitments and not committed)
    ):
        return True
    held = (state.verdicts.get((*step, v)) for v in verdicts)
    if any(one is None or not may_open_verdict(run_state, audit, one.verdict) for one in held):
        return True
    is_disputed = audit.ruling is AuditStatus.DISPUTED
    return wants_shown and step not in (state.known_answers if is_disputed else state.sketch_openings)
