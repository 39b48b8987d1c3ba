"""Leader: what the next manifest still waits for, and the manifest that a leader makes of what it holds.

Room: verifier (pure). Every verifier looks by the same rules whether its own iteration could propose.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from assay.protocol.agreement.inclusion import compatible_lists, is_bitmap, listed, nodes_bitmap, required
from assay.protocol.auditing import audits
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.membership import admitted, may_attend, may_start
from assay.protocol.messages import (
    CONTRADICTIONS_MAX,
    STAKE_REPORTS_MAX,
    VERIFIERS_MAX,
    AttendanceKind,
    BeaconShare,
    Closing,
    InclusionList,
    Manifest,
    SignedAttendance,
    SignedInclusionList,
    SignedStakeReport,
)
from assay.protocol.permitted import (
    awaited,
    awaited_evaluations,
    may_commit_verdict,
    may_open_verdict,
    with_reports,
)
from assay.protocol.proposal_size import MESSAGES_PER_MANIFEST
from assay.protocol.run_state import RunState, StepId, next_chain
from assay.protocol.types import NO_DIGEST, NO_ITERATION, NO_PEER, Digest, Iteration, PeerId
from assay.verifier.round import drand as outside
from assay.verifier.round.ancestors import base_history
from assay.verifier.round.beacon import is_enough, is_partial, lacks_shares, valid_shares
from assay.verifier.round.machine import Round, fits, may_carry

SHARES, FUNDING, NODES, COMMITS = "beacon shares", "funding", "nodes", " commits"  # as `missing` names them
LATE = 3  # commits are waited for so many times as long as two thirds of them took,
SPARE = 3  # and this part of `collect_ms` longer at least
MISSED_MAX = 2  # rounds in a row that a node may miss before nobody waits for it
HEARD_MAX = 16  # rounds in which it may send a commit that no manifest has, else a liar slows all down
APPRAISALS_PER_MANIFEST = 32
T = TypeVar("T")


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
            lacking.append(f"{absent}{COMMITS}")
        if not _carried_lists(state):
            lacking.append("inclusion lists")
        if _awaits_data(state):
            lacking.append("announcements of data")
    if lacks_shares(run_state, valid_shares(state.beacon_shares, run_state)):
        lacking.append(SHARES)
    if outside.is_waited_for(run_state, state.drand):
        lacking.append("drand")
    if any(_lacks_messages(state, run_state, step) for step in awaited(run_state)):
        lacking.append("verdicts")
    sealed, opened = awaited_evaluations(run_state)
    late = (sealed - set(state.evaluation_commitments)) | (opened - set(state.evaluations))
    if any(verifier in run_state.beacon for _, verifier in late):
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
    if lacking == (SHARES,):  # which follow from the last manifest: it is older than all else that is missing
        patience_ms = run_state.spec.timing.ready_ms
    elif all(one == SHARES or one.endswith(COMMITS) for one in lacking):
        patience_ms = commits_ms(state)
    else:
        patience_ms = run_state.spec.timing.collect_ms
    return has_work and now_ms >= state.opened_ms + patience_ms


def shares_to_pass_on(state: Round, now_ms: int, *, wall_s: int = 0) -> tuple[BeaconShare, ...]:
    """The shares of the beacon for the leader, where it may lack what their verifiers sent to others alone.

    None as long as it may wait for something else.
    """
    is_late = now_ms >= state.opened_ms + commits_ms(state)
    if not is_late and not set(missing(state, (), wall_s=wall_s)) <= {SHARES}:
        return ()
    return valid_shares(state.beacon_shares, state.run_state)


def due_list(state: Round, verifier: PeerId, now_ms: int) -> InclusionList | None:
    """The inclusion list that a seat should sign now; None if there is none, or it is signed already.

    One is due once the commit of every node that is not silent is held, or the deadline for commits has
    passed, and again whenever a commit comes later.
    """
    run_state = state.run_state
    reported = _reported(state, run_state)
    if not reported.takes_commits or verifier == NO_PEER:
        return None
    is_late = now_ms >= state.opened_ms + commits_ms(state)
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


def gathered(state: Round, now_ms: int) -> Round:
    """The round, which notes when two thirds of the commits that are waited for are here."""
    expected = _expected(state)
    held = len(expected & state.commits.keys())
    if state.most_ms is not None or not held or 3 * held < 2 * len(expected):
        return state
    return replace(state, most_ms=now_ms - state.opened_ms)


def commits_ms(state: Round) -> int:
    """How long after the opening commits are waited for: `collect_ms`, or by what most of them took.

    One node that is slow, or pretends to be, holds nobody up for all of `collect_ms`; fewer than a third
    cannot have honest ones left out that are less than `LATE` times as slow as the others. Nodes that choose
    the size of their steps take a part of `collect_ms` by intention: they have all of it.
    """
    spec, most_ms = state.run_state.spec, state.most_ms
    collect_ms = spec.timing.collect_ms
    if most_ms is None or spec.tokens_per_step != spec.most_tokens_per_step:
        return collect_ms
    return min(collect_ms, max(LATE * most_ms, most_ms + collect_ms // SPARE))


def _expected(state: Round) -> frozenset[PeerId]:
    """The nodes whose commits are worth waiting for: those that sent one lately, in time or not.

    Who sent `HEARD_MAX` in vain may still commit in time.
    """
    run_state = state.run_state
    return frozenset(
        node
        for node in run_state.active
        if run_state.nodes[node].missed < MISSED_MAX
        or (
            node in state.heard
            and run_state.round - state.heard[node] < MISSED_MAX
            and state.heard_in_vain.get(node, 0) <= HEARD_MAX
        )
    )


def _awaits_data(state: Round) -> bool:
    """Whether a node that brings data has not sent what binds it to them, and is worth waiting for.

    In the first rounds, and as long as there are no others: rounds without work would else pass at once.
    """
    run_state = state.run_state
    is_new = run_state.round < MISSED_MAX or run_state.is_deserted
    return is_new and bool(run_state.unannounced - state.attendance.keys())


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
    is_shown = any(may_carry(run_state, one) for one in state.known_answers.values())
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
        return tuple(one for _, one in sorted(pool.items()) if fits(run_state, one))

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
            message for _, message in sorted(state.sketch_openings.items()) if may_carry(run_state, message)
        ),
        known_answers=_first(
            message for _, message in sorted(state.known_answers.items()) if may_carry(run_state, message)
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


def _oldest(state: Round, run_state: RunState) -> tuple[SignedStakeReport, ...]:
    """Stake reports for a manifest, in its canonical order: of each verifier in turn, its oldest first.

    Who reports chooses the round that it names: by age alone, f liars could keep all others' reports waiting.
    """
    fit = (item for item in sorted(state.stake_reports.items()) if fits(run_state, item[1]))
    turns: Counter[PeerId] = Counter()
    waiting = []
    for key, signed in sorted(fit, key=lambda item: item[1].stake_report.round):
        waiting.append((turns[signed.stake_report.verifier], key, signed))
        turns[signed.stake_report.verifier] += 1
    first = sorted(waiting, key=lambda item: item[0])[:STAKE_REPORTS_MAX]
    return tuple(signed for _, _, signed in sorted(first, key=lambda item: item[1]))


def _reported(state: Round, run_state: RunState) -> RunState:
    """The run state as it is once every funding report held here is in a manifest."""
    return with_reports(run_state, (signed.funding_report for signed in state.funding_reports.values()))


def _first(messages: Iterable[T]) -> tuple[T, ...]:
    return tuple(itertools.islice(messages, MESSAGES_PER_MANIFEST))


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
