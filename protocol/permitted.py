"""Permitted: which messages the next manifest may carry, and for which it is the last chance.

Room: protocol (pure). A leader takes no other into its manifest, and nobody votes for a manifest with one.
Signatures are checked elsewhere; who may come and go is in `membership`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from assay.protocol.agreement.double_votes import signer_of
from assay.protocol.agreement.quorum import faults_tolerated, opening_rounds
from assay.protocol.auditing import audits as rules
from assay.protocol.auditing.audits import Audit
from assay.protocol.auditing.commitments import shown_root
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import MalformedMessage
from assay.protocol.funding import is_news
from assay.protocol.messages import (
    LOSS_MICRO_MAX,
    Appraisal,
    Contradiction,
    DoubleVote,
    Evaluation,
    EvaluationCommitment,
    FundingReport,
    KnownAnswer,
    Outcome,
    SeatNotice,
    StakeReport,
    Verdict,
)
from assay.protocol.run_state import RunState, StepId
from assay.protocol.types import NO_DIGEST, PeerId

STAKE_REPORT_PAUSE = 64  # rounds between two reports of one verifier on one node's stake
STAKE_REPORT_ROUNDS = 16  # rounds for which a stake report may wait for a manifest


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
    is_own = verdict.exec_class == audit.commit.exec_class
    may_say = is_judged or verdict.outcome not in rules.RECOMPUTED or is_own
    # Drift shows in matches between classes alone: in the node's own class every bit is equal.
    may_lean = verdict.outcome is Outcome.MATCH and not is_own
    is_fit = may_say and (may_lean or not verdict.is_biased)
    return is_fit and rules.may_open_verdict(audit, verdict, int(run_state.round))


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
    record = run_state.nodes.get(report.node)
    is_seat = bool(run_state.spec.reserves) and report.node in run_state.spec.seat_peers
    if record.banned if record is not None else not is_seat:
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


def awaited_evaluations(run_state: RunState) -> tuple[set[tuple[int, PeerId]], set[tuple[int, PeerId]]]:
    """Epochs and verifiers whose commitment, or whose evaluation, an honest leader waits for.

    The next manifest may be its last chance: all leaders after it, at most f, may lie, and leave it out.
    """
    verifiers = run_state.spec.verifier_peers
    last = int(run_state.round) + faults_tolerated(len(verifiers))
    sealed: set[tuple[int, PeerId]] = set()
    opened: set[tuple[int, PeerId]] = set()
    for epoch in (one.epoch for one in run_state.spec.money.accept.milestones):
        settled = run_state.calendar.settled_at(epoch)
        if not run_state.is_measured(epoch):
            continue
        if run_state.opens_evaluations(epoch):
            opened |= {(epoch, one) for one in verifiers} if last >= settled else set()
        elif last >= settled - opening_rounds(len(verifiers)):
            sealed |= {(epoch, one) for one in verifiers}
    known = run_state.evaluations
    return sealed - set(known), {who for who in opened if who in known and known[who].score is None}


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
    """Audits with a missing message for which the next manifest may be the last chance."""
    return tuple(
        step
        for step, audit in sorted(run_state.audits.items())
        if any(rules.awaits(run_state.spec.audit, audit, int(run_state.round)))
    )
