"""Progress: one line of log for each round: whether our step counted, how it is judged, what it earned.

Room: node (pure, but for `report_rounds`, which logs). Everything is read from the certified chain, so what a
node's operator sees is what settles.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from assay.ledger.settlement.payouts import Settlement
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.protocol.run_state import BORDERLINE_MAX, RunState
from assay.protocol.types import PeerId

log = logging.getLogger(__name__)


async def report_rounds(me: Participant, follower: Follower) -> None:
    """Log every final round from now on; while we catch up, only the newest."""
    while True:
        run_state = await follower.grown(int(follower.run_state.round))
        if me.me in run_state.nodes:
            account = me.keys.account_address
            log.info("round final", extra=round_line(run_state, me.me, account, follower.settlements))


def round_line(
    run_state: RunState, node: PeerId, account: bytes, settlements: Mapping[int, Settlement]
) -> dict[str, int | float | str]:
    """What the last manifest of this state means for a node; money in token units.

    Args:
        run_state: After the manifest.
        node: It takes part.
        account: The node's.
        settlements: Of every epoch that is final for settlement.
    """
    record = run_state.nodes[node]
    own = [audit for audit in run_state.audits.values() if audit.node == node]
    commit = next((one for one in run_state.last_commits if one.node == node), None)
    line: dict[str, int | float | str] = {"round": int(run_state.round) - 1}
    if commit is None:
        line["step"] = "none: " + _absence(run_state, node)
    else:
        line |= {"step": "accepted", "loss": commit.loss_micro / 10**6}
        line |= {"tokens": commit.tokens, "least_tokens": run_state.spec.tokens_per_step}
    rows = (row for one in settlements.values() for row in one.rows)
    return line | {
        "accepted": record.accepted,
        "audits_open": sum(audit.is_open for audit in own),
        "audits_passed_in_a_row": record.clean,
        "paid": sum(row.amount for row in rows if row.account == account),
        "unpaid_steps": sum(step.node == node for one in settlements.values() for step in one.unpaid),
    }


def _absence(run_state: RunState, node: PeerId) -> str:
    """Why the last manifest carries no commit of a node."""
    record = run_state.nodes[node]
    if record.banned:
        return f"banned for a fault in round {record.fault_round}"
    if record.borderline >= BORDERLINE_MAX:
        return "it lost its seat: audits found too many of its steps neither honest nor false"
    if record.has_left:
        return "it has left, or was silent until another node took its seat"
    if node in run_state.late:
        return "an opening of ours is overdue"
    if int(run_state.round) > run_state.training_rounds:
        return "training is over"
    if not run_state.last_commits:
        return "the round had no commits"
    return "ours did not reach enough verifiers in time"
