"""Links: checks one certified manifest against the run state and applies it; the core of a light client.

Room: participant (pure). It needs the spec, but no training data, no torch and no trust in
the sender. What only a verifier can check
(updates, batches, aggregates) a quorum has signed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from assay.protocol.agreement.double_votes import check_double_vote
from assay.protocol.agreement.finality import check_certified
from assay.protocol.agreement.inclusion import required
from assay.protocol.agreement.quorum import quorum
from assay.protocol.auditing import audits
from assay.protocol.auditing.audits import Audit
from assay.protocol.auditing.commitments import check_sketch_opening
from assay.protocol.errors import MalformedMessage
from assay.protocol.identity import Domain, verify
from assay.protocol.membership import admitted, may_attend, may_start
from assay.protocol.messages import (
    AttendanceKind,
    CertifiedManifest,
    Closing,
    FundingReport,
    Manifest,
)
from assay.protocol.permitted import (
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
    with_reports,
)
from assay.protocol.run_state import RunState, next_chain
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, PeerId, RoundId


def extend(run_state: RunState, certified: CertifiedManifest) -> RunState:
    """The run state after one more certified manifest.

    Raises:
        MalformedMessage: it does not extend this state, or its parts disagree.
        PeerFault: a signature of its certificate does not verify.
    """
    # First, because of a forgery it costs a hash and a signature: what a manifest carries has thousands.
    domain = Domain(run_state.spec.deployment_id, run_state.run_id)
    check_certified(certified, domain, run_state.spec.verifier_peers, run_state.rotation.configuration)
    check_place(run_state, certified.manifest)
    return advance(run_state, certified.manifest, certified.block.manifest)  # which is its digest


def _need(manifest: Manifest) -> Callable[[bool, str], None]:
    """A check that refuses the manifest with a reason unless something holds."""

    def need(holds: bool, reason: str) -> None:
        if not holds:
            raise MalformedMessage(f"manifest of round {manifest.round}: {reason}")

    return need


def check_place(run_state: RunState, manifest: Manifest) -> None:
    """Do nothing if a manifest's parent, ordering and members fit the run state it extends.

    Raises:
        MalformedMessage: which part does not fit.
    """

    need = _need(manifest)
    need(manifest.run_id == run_state.run_id, "is of another run")
    need(manifest.round == run_state.round, f"expected round {run_state.round}")
    need(manifest.parent == run_state.parent, "does not extend the manifest before")
    need(not run_state.is_complete, "the run is complete")
    least_s = run_state.time_s
    need(manifest.time_s >= least_s, f"its time is {manifest.time_s}, before its parent's {least_s}")
    due_s = run_state.due_s
    need(
        due_s is None or has_return(manifest) or manifest.time_s >= due_s,
        f"nothing is left but openings overdue until {due_s}, expected a return or that time",
    )
    commits = tuple(signed.commit for signed in manifest.commits)
    need(all(a.node < b.node for a, b in pairwise(commits)), "commits must ascend by node, one each")
    active = set(run_state.active)
    need(all(c.node in active for c in commits), "carries a commit of a node that may not train")
    need(all(c.round == run_state.round for c in commits), "carries a commit of another round")
    need(manifest.aggregate == NO_DIGEST or bool(commits), "has an aggregate of no commits")
    need(
        manifest.chain == next_chain(run_state.chain, commits, manifest.aggregate),
        "the chain digest is wrong",
    )
    beacon_shares = manifest.beacon_shares
    need(
        all(a.verifier < b.verifier for a, b in pairwise(beacon_shares)),
        "beacon shares must ascend by verifier",
    )
    known = set(run_state.spec.verifier_peers)
    need(all(r.verifier in known for r in beacon_shares), "carries a beacon share of an unknown verifier")
    is_used = run_state.spec.audit.drand.is_used
    need(
        not manifest.drand or bool(run_state.drand_next), "carries a drand round that its parent did not name"
    )
    need(is_used or not manifest.drand_next, "names a drand round in a run without them")
    need(manifest.disqualified == run_state.disqualified, "names other verifiers than those at fault")
    need(manifest.hand_over == run_state.hand_over, "hands over another seat than the one that retires")
    need(bool(manifest.iteration) == bool(run_state.spec.reserves), "names an iteration, or none, wrongly")
    _check_notices(run_state, manifest)
    pairs = manifest.contradictions
    nodes = [pair.first.commit.node for pair in pairs]
    need(all(a < b for a, b in pairwise(nodes)), "contradictions must ascend by node, one each")
    for pair in pairs:
        subject = pair.first.commit.node.hex()[:8]
        need(
            may_contradict(run_state, pair),
            f"accuses {subject} of a contradiction that its two commits do not prove",
        )
    shown = manifest.double_votes
    need(
        all(a.verifier < b.verifier for a, b in pairwise(shown)),
        "double votes must ascend by verifier, one each",
    )
    for double_vote in shown:
        subject = double_vote.verifier.hex()[:8]
        need(
            may_show_double_vote(run_state, double_vote),
            f"accuses {subject} of a double vote: no verifier of this run, or at fault for one already",
        )
        domain = Domain(run_state.spec.deployment_id, run_state.run_id)
        check_double_vote(domain, double_vote, run_state.rotation.configuration)
    appraisals = [one.appraised for one in manifest.appraised]
    order = [(one.node, one.verifier) for one in appraisals]
    need(all(a < b for a, b in pairwise(order)), "appraisals must ascend by node and verifier")
    for appraisal in appraisals:
        subject = f"{appraisal.verifier.hex()[:8]} on the evidence of {appraisal.node.hex()[:8]}"
        need(may_appraise(run_state, appraisal), f"carries an appraisal by {subject}, not admissible now")
    reports = [one.stake_report for one in manifest.stake_reports]
    order = [(one.node, one.verifier) for one in reports]
    need(all(a < b for a, b in pairwise(order)), "stake reports must ascend by node and verifier")
    for report in reports:
        subject = f"{report.verifier.hex()[:8]} on the stake of {report.node.hex()[:8]}"
        need(may_report_stake(run_state, report), f"carries a stake report by {subject}, not admissible now")
    _check_membership(run_state, manifest)
    _check_inclusion(run_state, manifest)
    _check_funding(run_state, manifest)
    _check_evaluations(run_state, manifest)
    check_messages(run_state, manifest)
    if run_state.awaits_nodes and not run_state.lapses_at(manifest.time_s):
        is_closing = with_reports(run_state, _reports(manifest)).closing is not Closing.NO
        least = run_state.spec.least_nodes
        need(is_closing or may_start(run_state, manifest), f"starts the run with fewer than {least} nodes")


def _check_notices(run_state: RunState, manifest: Manifest) -> None:
    """Do nothing if what verifiers and reserves say of their seats by this manifest may be said now."""
    need, domain = _need(manifest), Domain(run_state.spec.deployment_id, run_state.run_id)
    said = [one.notice for one in manifest.seat_notices]
    need(all(a.holder < b.holder for a, b in pairwise(said)), "seat notices must ascend by holder, one each")
    for signed in manifest.seat_notices:
        one = signed.notice
        need(
            may_give_notice(run_state, one),
            f"carries a {one.kind.name.lower()} notice of {one.holder.hex()[:8]}, not admissible now",
        )
        verify(one.holder, domain, one, signed.signature)


def has_return(manifest: Manifest) -> bool:
    """Whether a node comes back by this manifest, or shows what it could not while it was away."""
    returns = (one for one in manifest.attendance if one.attendance.kind is AttendanceKind.RETURN)
    return bool(manifest.known_answers) or any(returns)


def _check_membership(run_state: RunState, manifest: Manifest) -> None:
    """Do nothing if those who join, leave or return by this manifest may do so now."""
    need, domain = _need(manifest), Domain(run_state.spec.deployment_id, run_state.run_id)
    said = [one.attendance for one in manifest.attendance]
    need(all(a.node < b.node for a, b in pairwise(said)), "attendance must ascend by node, one each")
    for signed in manifest.attendance:
        one = signed.attendance
        need(
            may_attend(run_state, one, manifest.time_s),
            f"carries a {one.kind.name} attendance of {one.node.hex()[:8]}, not admissible now",
        )
        verify(one.node, domain, one, signed.signature)
    need(
        manifest.admissions == admitted(run_state, manifest.admissions, manifest.time_s),
        "carries other admissions than a quorum's for each node that may join",
    )


def _check_inclusion(run_state: RunState, manifest: Manifest) -> None:
    """Do nothing if a manifest with commits carries a quorum's inclusion lists, and what more than f name."""

    need = _need(manifest)
    lists, spec = [signed.inclusion_list for signed in manifest.inclusion_lists], run_state.spec
    place = (run_state.run_id, run_state.round, run_state.parent)
    need(
        all(a.verifier < b.verifier for a, b in pairwise(lists)),
        "inclusion lists must ascend by verifier, one each",
    )
    known = set(spec.verifier_peers)
    need(all(one.verifier in known for one in lists), "carries an inclusion list of an unknown verifier")
    need(
        all((one.run_id, one.round, one.parent) == place for one in lists),
        "carries an inclusion list of another round",
    )
    least = quorum(len(known))
    need(
        not manifest.commits or len(lists) >= least,
        f"carries commits with {len(lists)} inclusion lists, expected {least}",
    )
    lacking = required(tuple(run_state.nodes), lists, len(known)) - {
        one.commit.node for one in manifest.commits
    }
    need(
        not lacking,
        "leaves out the commits of "
        + ", ".join(sorted(peer.hex()[:8] for peer in lacking))
        + ", which more than f inclusion lists name",
    )


def _check_funding(run_state: RunState, manifest: Manifest) -> None:
    """Do nothing if a manifest's funding reports are admissible, and no round begins that is not paid for."""

    need = _need(manifest)
    reports = _reports(manifest)
    need(
        all(a.verifier < b.verifier for a, b in pairwise(reports)),
        "funding reports must ascend by verifier, one each",
    )
    for report in reports:
        subject = report.verifier.hex()[:8]
        need(
            may_report_funding(run_state, report),
            f"carries a funding report of {subject} that is not admissible now",
        )
    after = with_reports(run_state, reports)
    epoch = run_state.epoch_of(int(manifest.round))
    need(after.is_funded or not manifest.commits, f"carries commits, but epoch {epoch} is not funded")
    is_over = run_state.lapses_at(manifest.time_s)
    need(
        is_over or not after.awaits_funding, f"takes up a round of training, but epoch {epoch} is not funded"
    )


def _check_evaluations(run_state: RunState, manifest: Manifest) -> None:
    """Do nothing if a manifest's evaluations, and its commitments to others, are admissible now."""
    need = _need(manifest)
    committed = [signed.commitment for signed in manifest.evaluation_commitments]
    keys = [(one.epoch, one.verifier) for one in committed]
    need(
        all(a < b for a, b in pairwise(keys)),
        "commitments to evaluations must ascend by epoch and verifier, one each",
    )
    for commitment in committed:
        subject = f"{commitment.verifier.hex()[:8]} of epoch {commitment.epoch}"
        need(
            may_commit_evaluation(run_state, commitment),
            f"carries a commitment to an evaluation by {subject} that is not admissible now",
        )
    found = [signed.evaluation for signed in manifest.evaluations]
    keys = [(one.epoch, one.verifier) for one in found]
    need(all(a < b for a, b in pairwise(keys)), "evaluations must ascend by epoch and verifier, one each")
    for one in found:
        subject = f"{one.verifier.hex()[:8]} of epoch {one.epoch}"
        need(
            may_open_evaluation(run_state, one),
            f"carries an evaluation by {subject} that is not admissible now",
        )


def _reports(manifest: Manifest) -> list[FundingReport]:
    return [one.funding_report for one in manifest.funding_reports]


def check_messages(run_state: RunState, manifest: Manifest) -> None:
    """Do nothing if every audit message in a manifest is admissible now, and its proofs hold.

    Signatures are not checked here.

    Raises:
        MalformedMessage: which message does not fit.
    """

    need = _need(manifest)
    at, rules = int(manifest.round), run_state.spec.audit

    def audit_of(round_id: RoundId, node: PeerId) -> Audit:
        audit = run_state.audits.get((round_id, node))
        need(
            audit is not None, f"has a message on round {round_id} of {node.hex()[:8]}, which is not audited"
        )
        assert audit is not None
        return audit

    committed = [(s.commitment.round, s.commitment.node, s.commitment.verifier) for s in manifest.commitments]
    need(all(a < b for a, b in pairwise(committed)), "verdict commitments must ascend by step and verifier")
    for round_id, node, verifier in committed:
        need(
            may_commit_verdict(run_state, audit_of(round_id, node), verifier),
            f"{verifier.hex()[:8]} may not commit to a verdict on round {round_id} of {node.hex()[:8]}",
        )
    steps = [(s.verdict.round, s.verdict.node, s.verdict.verifier) for s in manifest.verdicts]
    need(all(a < b for a, b in pairwise(steps)), "verdicts must ascend by step and verifier")
    for signed in manifest.verdicts:
        verdict = signed.verdict
        step = f"round {verdict.round} of {verdict.node.hex()[:8]}"
        need(
            may_open_verdict(run_state, audit_of(verdict.round, verdict.node), verdict),
            f"{verdict.verifier.hex()[:8]} may not judge {step}"
            f"{' and say that it is biased' if verdict.is_biased else ''}",
        )
    for one in manifest.commitments:  # a commitment from before a dispute must not bind its verifier in it
        pattern = audit_of(one.commitment.round, one.commitment.node).pattern
        need(
            one.commitment.pattern == pattern,
            f"carries a verdict commitment on round {one.commitment.round} of another dispute round",
        )
    opened = [(one.round, one.node) for one in manifest.sketch_openings]
    need(all(a < b for a, b in pairwise(opened)), "sketch openings must ascend by step")
    for sketch_openings in manifest.sketch_openings:
        audit = audit_of(sketch_openings.round, sketch_openings.node)
        need(
            audits.may_open_sketch(audit, at),
            f"opens the sketch of round {sketch_openings.round} at the wrong time",
        )
        check_sketch_opening(sketch_openings, audit.commit, audit.segment)
    shown = [(one.round, one.node) for one in manifest.known_answers]
    need(all(a < b for a, b in pairwise(shown)), "known-answer tasks must ascend by step")
    for known_answers in manifest.known_answers:
        audit = audit_of(known_answers.round, known_answers.node)
        need(known_answers.run_id == run_state.run_id, "carries a known-answer task of another run")
        need(
            audits.may_show_known_answer(rules, audit, at),
            f"shows a known-answer task of round {known_answers.round} at the wrong time",
        )
        check_known_answer(run_state, known_answers)
