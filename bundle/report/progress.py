"""Progress: how far a run and each of its nodes have got, and what is earned before an epoch is settled.

Room: bundle (pure). `assay watch` and the explorer show the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.ledger.settlement.payouts import Settlement, draft
from assay.protocol.run_state import NodeRecord, RunState

PACE_ROUNDS = 12  # latest rounds on which the time left is based


def phase_of(run_state: RunState) -> str:
    """Where a run is: waiting, training, closing or over."""
    if not int(run_state.round):
        return "waiting"
    if int(run_state.round) < run_state.calendar.rounds:
        return "training"
    return "over" if run_state.is_settled else "closing"


def status_of(run_state: RunState, record: NodeRecord, last_round: int | None) -> str:
    """How a node stands: training, new, away, late, suspect, banned or left.

    Args:
        run_state: The newest.
        record: The node's in it.
        last_round: Of its last accepted step; None: it has none yet.
    """
    if record.banned:
        return "banned"
    if record.has_left:
        return "left"
    if record.member.peer in run_state.late:
        return "late"
    if record.is_suspect:
        return "suspect"
    if last_round is None:
        return "new"
    return "away" if record.missed > 1 else "training"


def round_s(times_s: Sequence[int]) -> float | None:
    """Seconds that a round takes at present; None before the second.

    Args:
        times_s: Agreed times of all manifests or of the newest, ascending.
    """
    newest = times_s[-PACE_ROUNDS - 1 :]
    return (newest[-1] - newest[0]) / (len(newest) - 1) if len(newest) > 1 else None


def left_s(run_state: RunState, times_s: Sequence[int]) -> int | None:
    """Seconds until training is over, at the present rate; None where it is over or no rate is known."""
    left, each_s = run_state.calendar.rounds - int(run_state.round), round_s(times_s)
    return None if each_s is None or left <= 0 else round(each_s * left)


def drafts(run_state: RunState, settled: int) -> dict[int, Settlement]:
    """The payout tables, by epoch, of what was accepted and is not settled, if nothing is found against it.

    Args:
        run_state: The newest.
        settled: Epochs that are settled: all before this one.
    """
    calendar, done = run_state.calendar, int(run_state.round)
    begun = min(-(-done // calendar.epoch_rounds), calendar.epochs)
    return {epoch: draft(run_state, epoch) for epoch in range(settled, begun)}
