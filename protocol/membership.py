"""Membership: which nodes join a run, leave it and come back, as facts in its certified chain.

Room: protocol (pure). A spec names the nodes of round 0 and how many seats there are. Whoever locks a lot of
stake for the run may ask verifiers for a free seat; each looks at its own chain and signs an `Admission`. A
manifest that carries a quorum's admissions of one node seats it from the next round on, on probation unless
it showed a track record of another run. A seat ends with the node's own leave or with its ban. No key and no
account takes a second seat in one run. Once nothing that a node did before its leave can be drawn, judged or
disputed any more, `bound_by` nothing keeps its lot, and verifiers discharge it while the run goes on.

Where a spec names fewer nodes than it needs, round 0 trains nothing: its manifest starts the run, with as
many nodes as are needed, or ends it, if its agreed time is later than the spec allows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from assay.protocol.agreement.quorum import quorum
from assay.protocol.encoding.merkle import LEAVES_MAX
from assay.protocol.messages import (
    JOINS_MAX,
    NO_OWN_DATA,
    Admission,
    Attendance,
    AttendanceKind,
    Manifest,
    Member,
    SignedAdmission,
)
from assay.protocol.params import windows_needed
from assay.protocol.run_state import NodeRecord, RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, PeerId

ADMISSION_S = 60  # agreed time for which an admission may wait for the others of its quorum
SAID_ROUNDS = 16  # rounds for which a node's leave, or its list, may wait for a manifest
RETURN_PAUSE_S = 60  # agreed time between a node's first return and its second


def may_join(run_state: RunState, member: Member) -> bool:
    """Whether a seat is free, and neither this member's keys nor its account have a part in the run already.

    A reserve has one: with a verifier's seat it would judge its own steps. Nobody joins a run whose seats all
    have data that only the nodes it names bring.
    """
    spec = run_state.spec
    if not spec.takes_newcomers:
        return False
    known = [*(record.member for record in run_state.nodes.values()), *spec.verifiers, *spec.reserves]
    return run_state.free_seats > 0 and all(
        member.peer != one.peer and member.account != one.account and member.hot != one.hot for one in known
    )


def may_admit(run_state: RunState, admission: Admission, time_s: int) -> bool:
    """Whether the next manifest, of this agreed time, may carry this admission, if it has a quorum's."""
    return _counts(run_state, admission, time_s) and may_join(run_state, admission.member)


def _counts(run_state: RunState, admission: Admission, time_s: int) -> bool:
    """Whether this is a verifier's vote in this run, and not too old."""
    return (
        admission.run_id == run_state.run_id
        and admission.verifier in run_state.spec.verifier_peers
        and time_s - ADMISSION_S <= admission.time_s
        and not run_state.lapses_at(time_s)
    )


def admitted(
    run_state: RunState, admissions: Iterable[SignedAdmission], time_s: int
) -> tuple[SignedAdmission, ...]:
    """Of these admissions those that the next manifest of this agreed time carries: a quorum's for each node.

    Where seats are short, the last manifest's digest orders the members, so that nobody can choose keys that
    come first; in round 0, where this is the spec's digest, with the manifest's time. A manifest is valid
    if it carries exactly what this function chooses from it.

    Returns:
        Ascending by node and verifier.
    """
    need = quorum(len(run_state.spec.verifiers))
    votes: dict[Member, dict[PeerId, SignedAdmission]] = {}
    for signed in admissions:
        if _counts(run_state, signed.admission, time_s):
            votes.setdefault(signed.admission.member, {})[signed.admission.verifier] = signed
    most = max(JOINS_MAX, run_state.spec.least_nodes) if run_state.awaits_nodes else JOINS_MAX
    chosen: dict[PeerId, list[SignedAdmission]] = {}
    taken: set[bytes] = set()
    salt = run_state.parent if run_state.round else run_state.parent + time_s.to_bytes(8, "big")
    for member in sorted(votes, key=lambda one: hashlib.sha256(salt + one.peer + one.hot).digest()):
        names = {bytes(member.peer), bytes(member.account), bytes(member.hot)}
        if len(votes[member]) < need or names & taken or not may_join(run_state, member):
            continue
        if len(chosen) == min(run_state.free_seats, most):
            break
        taken |= names
        chosen[member.peer] = [signed for _, signed in sorted(votes[member].items())][:need]
    return tuple(signed for _, group in sorted(chosen.items()) for signed in group)


def may_start(run_state: RunState, manifest: Manifest) -> bool:
    """Whether a run has the nodes that it waits for by this manifest, which fits it otherwise."""
    after = advance(run_state, manifest)
    return sum(record.is_seated for record in after.nodes.values()) >= run_state.spec.least_nodes


def may_attend(run_state: RunState, attendance: Attendance, time_s: int) -> bool:
    """Whether the next manifest, of this agreed time, may carry this statement of a node.

    A node that leaves holds a seat, and so does one that announces a list of known-answer tasks, once in a
    run that orders such tasks. One that returns has an overdue opening, and signed after it was found absent;
    a return costs all verifiers a dispute round, so each one since probation doubles the time until the next.
    """
    record = run_state.nodes.get(attendance.node)
    if record is None or record.banned or attendance.run_id != run_state.run_id:
        return False
    is_list, is_data = (attendance.kind is kind for kind in (AttendanceKind.TASKS, AttendanceKind.DATA))
    if is_list != (attendance.tasks != NO_DIGEST) or is_data != (attendance.own != NO_OWN_DATA):
        return False
    if is_list and not may_announce(run_state, record):
        return False
    if is_data and not may_bring(run_state, attendance):
        return False
    if attendance.kind is not AttendanceKind.RETURN:
        is_recent = run_state.round - SAID_ROUNDS <= attendance.round <= run_state.round
        return is_recent and record.is_seated and run_state.is_training
    is_overdue = any(
        audit.node == attendance.node and audit.awaits_return for audit in run_state.audits.values()
    )
    pause = RETURN_PAUSE_S << min(record.returns - 1, 32) if record.returns else 0
    is_fresh = record.absent_round < attendance.round <= run_state.round
    return is_overdue and is_fresh and time_s >= record.absent_s + pause


def may_announce(run_state: RunState, record: NodeRecord) -> bool:
    """Whether a node has a seat and has announced no list yet, in a run that orders known-answer tasks.

    One with data of its own has none: nobody could make such a step again once its list is shown.
    """
    spec = run_state.spec
    is_asked = spec.audit.known_answer_count > 0 and not spec.brings_data(record.member.peer)
    return is_asked and record.is_seated and record.tasks == NO_DIGEST


def may_bring(run_state: RunState, attendance: Attendance) -> bool:
    """Whether a node binds itself to data of its own for the first time, and has enough for its steps."""
    least, own = windows_needed(run_state.spec.most_windows_per_round), attendance.own
    is_new = attendance.node in run_state.unannounced
    return is_new and own.root != NO_DIGEST and least <= own.windows <= LEAVES_MAX


def is_drained(run_state: RunState, node: PeerId) -> bool:
    """Whether every step of this node is settled and every audit of one has ended, so that none can follow.

    A settled step is drawn no more, not even by a late beacon, nor shown to be a known-answer task, nor can a
    second commit for its round be shown in a manifest.
    """
    calendar = run_state.calendar
    is_settled = all(
        calendar.settled_at(calendar.epoch_of(round_id)) < run_state.round
        for round_id, one in run_state.steps
        if one == node
    )
    return is_settled and all(audit.has_ended for audit in run_state.audits.values() if audit.node == node)


def bound_by(run_state: RunState, node: PeerId) -> str | None:
    """What still binds a node's lot to the run, in words; None if its verifiers may discharge it now.

    A node with a proven fault stays bound to the end: the slash order that follows may come as late. One that
    has not left can be at fault in any round to come.
    """
    record = run_state.nodes.get(node)
    if record is not None and record.is_seated:
        return "it has not left"
    return _disputed_by(run_state, node)


def no_track_record(run_state: RunState, node: PeerId) -> str | None:
    """Why verifiers give a node no track record, in words; None if they sign one now.

    What it states, of the node's record here, changes no more from then on: so all sign the same.
    """
    reason = bound_by(run_state, node) if run_state.is_training else _disputed_by(run_state, node)
    if reason is not None:
        return reason
    record = run_state.nodes[node]
    if not record.accepted or not record.clean or record.is_suspect:
        return "no step of it was accepted, no audit passed since it was last on probation, or it is suspect"
    return None


def _disputed_by(run_state: RunState, node: PeerId) -> str | None:
    """What of a node that trains no more is disputed, or may be; None if nothing."""
    record = run_state.nodes.get(node)
    if record is None:
        return "it never had a seat"
    if record.banned:
        return f"its fault in round {record.fault_round} is proven"
    if not is_drained(run_state, node):
        return "not all of its steps are settled, or an audit of one has not ended"
    return None
