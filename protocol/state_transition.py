"""State transition: a run's state as a deterministic fold over its finalised manifests.

Room: protocol (pure). `advance(run_state, manifest)` takes final manifests in order. Which nodes may train,
which audits are open, how they ended and which steps earned money all follow from it (`audits` has the rules
of one audit). Ledger, payouts and slashes are functions of this state and of the EVM chain's events only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from assay.protocol.agreement.double_votes import signer_of
from assay.protocol.agreement.quorum import faults_tolerated, quorum
from assay.protocol.auditing import audits as rules
from assay.protocol.auditing.audits import Audit, AuditStatus, Fault
from assay.protocol.auditing.draws import audit_seed, auditors, beacon_input, clean_at_floor, is_drawn
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import (
    Admission,
    Appraisal,
    Attendance,
    AttendanceKind,
    Closing,
    Commit,
    Contradiction,
    DoubleVote,
    KnownAnswer,
    Manifest,
    Member,
    SketchOpening,
    StakeReport,
    Verdict,
    VerdictCommitment,
)
from assay.protocol.params import RunSpec
from assay.protocol.permitted import with_reports
from assay.protocol.randomness.drand import randomness
from assay.protocol.rotation import Rotation
from assay.protocol.run_state import (
    BORDERLINE_MAX,
    BORDERLINE_WEIGHT,
    EvaluationRecord,
    NodeRecord,
    RunState,
    StepId,
    VerifierRecord,
)
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId

BEACON_PAUSE = 16  # rounds for which a verifier that missed its beacon share is neither awaited nor paid,
PAUSE_DOUBLINGS_MAX = 4  # doubled with each share that it misses in a row


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
    after, here = _begun(run_state, manifest), digest(manifest) if name is None else name
    if manifest.round:
        _take_beacon(after, run_state, manifest)
    _take_evidence(after, run_state, manifest)
    _take_announcements_and_returns(after, manifest)
    _rule_on_audits(after, run_state, manifest, here)
    _take_verdicts(after, run_state, manifest)
    _take_reports(after, run_state, manifest)
    _take_commits(after, run_state, manifest)
    _take_evaluations(after, run_state, manifest)
    _hand_over(after, run_state, manifest)
    _change_members(after, run_state, manifest)
    reported = with_reports(run_state, (signed.funding_report for signed in manifest.funding_reports))
    has_lapsed = run_state.lapses_at(manifest.time_s)
    training_rounds = 0 if has_lapsed else run_state.training_rounds
    if run_state.is_training and reported.closing is not Closing.NO:
        training_rounds = int(manifest.round) + bool(manifest.commits)  # what was done here still counts
    return replace(
        run_state,
        round=RoundId(int(manifest.round) + 1),
        parent=here,
        chain=manifest.chain,
        last_commits=tuple(signed.commit for signed in manifest.commits),
        funding_reports=reported.funding_reports,
        training_rounds=training_rounds,
        has_lapsed=run_state.has_lapsed or has_lapsed,
        time_s=manifest.time_s,
        late=frozenset(audit.node for audit in after.audits.values() if audit.is_late),
        drand_next=manifest.drand_next,
        **{one.name: getattr(after, one.name) for one in fields(after)},
    )


@dataclass(slots=True, kw_only=True)
class _After:
    """What a manifest changes of a state, part by part: fields of `RunState`, none of which is shared."""

    nodes: dict[PeerId, NodeRecord]
    verifiers: dict[PeerId, VerifierRecord]
    audits: dict[StepId, Audit]
    steps: dict[StepId, int]
    suspect_steps: frozenset[StepId]
    beacon_shares: dict[int, tuple[PeerId, ...]]
    away: dict[PeerId, int]
    missed_shares: dict[PeerId, int]
    undrawn: tuple[Commit, ...]
    stake_reports: dict[tuple[PeerId, PeerId], StakeReport]
    evaluations: dict[tuple[int, PeerId], EvaluationRecord]
    appraised: dict[tuple[PeerId, PeerId], Appraisal]
    rotation: Rotation


def _begun(run_state: RunState, manifest: Manifest) -> _After:
    """The state without what was final before this manifest; in the first one nodes have just been heard."""
    spec, now, calendar = run_state.spec, int(manifest.round), run_state.calendar
    oldest = calendar.kept_from(now)
    nodes, rotation = dict(run_state.nodes), run_state.rotation
    if not now:
        nodes = {node: replace(record, heard_s=manifest.time_s) for node, record in nodes.items()}
    if spec.reserves:
        leader = spec.verifier_peers[int(manifest.iteration) % len(spec.verifiers)]
        asked = run_state.beacon if now else ()
        rotation = rotation.after(manifest, spec.verifier_peers, asked, leader)
    steps = {step: tokens for step, tokens in run_state.steps.items() if step[0] >= oldest}
    return _After(
        nodes=nodes,
        verifiers=dict(run_state.verifiers),
        audits={step: a for step, a in run_state.audits.items() if step[0] >= oldest or not a.has_ended},
        steps=steps,
        suspect_steps=frozenset(step for step in run_state.suspect_steps if step in steps),
        beacon_shares={at: peers for at, peers in run_state.beacon_shares.items() if at >= oldest},
        away=dict(run_state.away),
        missed_shares=dict(run_state.missed_shares),
        undrawn=run_state.undrawn,
        stake_reports=dict(run_state.stake_reports),
        evaluations={
            key: one for key, one in run_state.evaluations.items() if now <= calendar.settled_at(key[0]) + 1
        },
        appraised={key: one for key, one in run_state.appraised.items() if run_state.is_fresh(one)},
        rotation=rotation,
    )


# ---- the parts of a manifest, in the order in which they count


def _take_beacon(after: _After, run_state: RunState, manifest: Manifest) -> None:
    """Who gave a share is paid, who did not pauses; and the seed that they make draws audits."""
    now, spec = int(manifest.round), run_state.spec
    shared = {beacon_share.verifier for beacon_share in manifest.beacon_shares}
    for peer in run_state.beacon:
        after.missed_shares[peer] = missed = 0 if peer in shared else after.missed_shares.get(peer, 0) + 1
        if missed:
            after.away[peer] = now + 1 + (BEACON_PAUSE << min(missed - 1, PAUSE_DOUBLINGS_MAX))
    if now <= run_state.training_rounds:
        paid = (one.verifier for one in manifest.beacon_shares if one.verifier in run_state.beacon)
        after.beacon_shares[now - 1] = tuple(map(run_state.key, paid))
    seed = beacon_of(run_state, manifest)
    for step, audit in after.audits.items():
        after.audits[step] = rules.draw_replication(
            audit, now, seed, spec.audit, is_partial=manifest.is_partial
        )
    opened, after.undrawn = drawn(run_state, manifest, seed)
    after.audits |= opened


def _take_evidence(after: _After, run_state: RunState, manifest: Manifest) -> None:
    """Contradictions of nodes, double votes of verifiers, and the messages of audits."""
    for pair in manifest.contradictions:
        node = pair.first.commit.node
        after.nodes[node] = _contradicted(after.nodes[node], pair)
    for double_vote in manifest.double_votes:
        signer = signer_of(double_vote, run_state.rotation.configuration)
        after.verifiers[signer] = _double_voted(run_state, after.verifiers[signer], double_vote)
    for step, messages in _messages_by_step(manifest).items():
        after.audits[step] = rules.with_messages(
            after.audits[step],
            int(manifest.round),
            messages.commitments,
            messages.verdicts,
            messages.sketch_openings,
            is_known_answer=bool(messages.known_answers),
        )


def _said(manifest: Manifest, kind: AttendanceKind) -> Iterator[Attendance]:
    return (one.attendance for one in manifest.attendance if one.attendance.kind is kind)


def _take_announcements_and_returns(after: _After, manifest: Manifest) -> None:
    now, nodes = int(manifest.round), after.nodes
    for one in _said(manifest, AttendanceKind.DATA):
        nodes[one.node] = replace(nodes[one.node], own=one.own)
    for one in _said(manifest, AttendanceKind.TASKS):
        nodes[one.node] = replace(nodes[one.node], tasks=one.tasks, tasks_from=now + 1)
    for node in {one.node for one in _said(manifest, AttendanceKind.RETURN)}:
        nodes[node] = replace(
            nodes[node], returns=nodes[node].returns + 1, absent_round=now, absent_s=manifest.time_s
        )


def _rule_on_audits(after: _After, run_state: RunState, manifest: Manifest, here: Digest) -> None:
    """Each audit goes on or ends, in the order of steps; its node and its auditors answer for it."""
    spec, now, nodes, verifiers = run_state.spec, int(manifest.round), after.nodes, after.verifiers
    returned = {one.node for one in _said(manifest, AttendanceKind.RETURN)}
    for step, audit in sorted(after.audits.items()):
        if audit.has_ended and not audit.is_known_answer:
            continue
        record = nodes[audit.node]
        ruled = rules.rule(
            audit,
            now,
            spec,
            here,
            is_banned=record.banned and (audit.is_late or not record.is_lost),
            time_s=manifest.time_s,
            has_returned=audit.node in returned,
            heard_round=record.base - 2 - spec.rule.read_lag,
        )
        after.audits[step] = ruled
        if ruled.ruling is not audit.ruling:
            nodes[audit.node] = _ruled(record, ruled, spec.audit.probation, now)
        for verifier in map(run_state.key, set(ruled.silent) - set(audit.silent)):
            verifiers[verifier] = replace(verifiers[verifier], silent=verifiers[verifier].silent + 1)
        for fault in ruled.faults[len(audit.faults) :]:
            holder = run_state.key(fault.verdict.verifier)
            verifiers[holder] = _failed(verifiers[holder], fault)


def _take_verdicts(after: _After, run_state: RunState, manifest: Manifest) -> None:
    f = faults_tolerated(len(run_state.spec.verifiers))
    for verdict in (signed.verdict for signed in manifest.verdicts):
        holder = run_state.key(verdict.verifier)
        after.verifiers[holder] = replace(after.verifiers[holder], judged=after.verifiers[holder].judged + 1)
        if verdict.is_biased:
            after.nodes[verdict.node] = _leaning(after.nodes[verdict.node], verdict.verifier, f)


def _take_reports(after: _After, run_state: RunState, manifest: Manifest) -> None:
    """Appraisals of nodes' machines, and reports on the stake behind nodes."""
    for appraisal in (signed.appraised for signed in manifest.appraised):
        after.appraised[appraisal.node, appraisal.verifier] = appraisal
    for report in (signed.stake_report for signed in manifest.stake_reports):
        after.stake_reports[report.node, report.verifier] = report
    if manifest.stake_reports:
        reported = replace(run_state, stake_reports=after.stake_reports)
        for node in after.nodes:  # less stake than agreed: probation starts again
            if run_state.has_whole_stake(node) and not reported.has_whole_stake(node):
                after.nodes[node] = replace(after.nodes[node], clean=0)


def _take_commits(after: _After, run_state: RunState, manifest: Manifest) -> None:
    now, nodes = int(manifest.round), after.nodes
    for commit in (signed.commit for signed in manifest.commits):
        after.steps[commit.round, commit.node] = commit.tokens
        record = nodes[commit.node]
        if run_state.nodes[commit.node].is_suspect:
            after.suspect_steps |= {(commit.round, commit.node)}
        is_known = record.accepted or record.clean  # here, or by its track record of another run
        if is_known and record.exec_class != commit.exec_class:  # another machine: probation again
            record = replace(record, clean=0)
            after.appraised = {key: one for key, one in after.appraised.items() if key[0] != commit.node}
        nodes[commit.node] = replace(
            record,
            momentum=commit.momentum_after,
            base=now + 1,
            accepted=record.accepted + 1,
            missed=0,
            heard_s=manifest.time_s,
            exec_class=commit.exec_class,
        )


def _take_evaluations(after: _After, run_state: RunState, manifest: Manifest) -> None:
    for committed in (signed.commitment for signed in manifest.evaluation_commitments):
        after.evaluations[committed.epoch, committed.verifier] = EvaluationRecord(
            holder=run_state.key(committed.verifier), commitment=committed.evaluation
        )
    for found in (signed.evaluation for signed in manifest.evaluations):
        after.evaluations[found.epoch, found.verifier] = EvaluationRecord(
            holder=run_state.key(found.verifier), commitment=digest(found), score=found.score
        )


def _hand_over(after: _After, run_state: RunState, manifest: Manifest) -> None:
    for hand_over in manifest.hand_over:
        seat = hand_over.seat
        # The next holder cannot open what the former one committed to, and may commit itself.
        after.evaluations = {
            key: one for key, one in after.evaluations.items() if key[1] != seat or one.score is not None
        }
        after.verifiers[hand_over.holder] = VerifierRecord()
        after.missed_shares.pop(seat, None)
        after.away.pop(seat, None)
        former = run_state.key(seat)
        after.audits = {step: audit.after_hand_over(seat, former) for step, audit in after.audits.items()}


def _change_members(after: _After, run_state: RunState, manifest: Manifest) -> None:
    """Who leaves, who joins, who loses its seat to them, and who was silent."""
    now, nodes = int(manifest.round), after.nodes
    for node in {one.node for one in _said(manifest, AttendanceKind.LEAVE)}:
        nodes[node] = replace(nodes[node], has_left=True)
    votes: dict[Member, list[Admission]] = {}
    for signed in manifest.admissions:
        votes.setdefault(signed.admission.member, []).append(signed.admission)
    for member, found in votes.items():
        exec_class, clean = _carried(run_state.spec, found)
        nodes[member.peer] = NodeRecord(
            member=member, joined_round=now + 1, heard_s=manifest.time_s, exec_class=exec_class, clean=clean
        )
    for node in _unseated(run_state, nodes):
        nodes[node] = replace(nodes[node], has_left=True)
    taken = {one.seat for one in nodes.values() if one.is_seated and one.member not in votes}
    free = (seat for seat in range(run_state.spec.seats) if seat not in taken)
    for member, seat in zip(votes, free, strict=False):
        nodes[member.peer] = replace(nodes[member.peer], seat=seat)
    if manifest.commits:
        for node in set(run_state.active) - {signed.commit.node for signed in manifest.commits}:
            nodes[node] = replace(nodes[node], missed=nodes[node].missed + 1)
    if manifest.admissions:
        after.nodes = dict(sorted(nodes.items()))


def _carried(spec: RunSpec, votes: Sequence[Admission]) -> tuple[Digest, int]:
    """The class in which a node passed audits elsewhere, and how many in a row: what f + 1 found at least.

    One of these is honest, so f liars raise nothing. A quorum has f + 1 honest votes, so where these agree f
    liars lower nothing.
    """
    f, carried = faults_tolerated(len(spec.verifiers)), (0, NO_DIGEST)
    for exec_class in {one.exec_class for one in votes}:
        counts = sorted((one.clean for one in votes if one.exec_class == exec_class), reverse=True)
        if len(counts) > f and counts[f]:
            carried = max(carried, (counts[f], exec_class))
    clean, exec_class = carried
    return exec_class, min(clean, clean_at_floor(spec.audit))


# ---- draws


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


# ---- records and messages


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
        if audit.is_known_answer:  # if it had passed before it was shown, it has counted
            return record
        clean = record.clean + 1
        record = replace(record, borderline=max(record.borderline - 1, 0))
        if clean < probation:
            return replace(record, clean=clean)
        return replace(record, clean=clean, is_suspect=False, returns=0)
    if audit.is_unjudged:  # else a node whose steps nobody can judge would be drawn as rarely as a proven one
        borderline = record.borderline + BORDERLINE_WEIGHT * audit.is_borderline
        has_left = record.has_left or borderline >= BORDERLINE_MAX
        return replace(record, clean=0, borderline=borderline, has_left=has_left)
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
