"""Ending: for how many rounds a run trained, and what ended it if these are fewer than were ordered.

Room: ledger (pure). Derived from the run state, so every participant, the books and an offline reader agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.funding import funded_epochs
from assay.protocol.messages import Closing
from assay.protocol.run_state import RunState

NEVER_STARTED = "start"  # the time by which the run had to start
CLOSED_BY = {Closing.BY_BUYER: "buyer", Closing.BY_DEADLINE: "deadline"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended, or would end by what is agreed so far."""

    rounds: int  # of training
    rounds_ordered: int
    epochs_funded: int  # by the verifiers' last reports on the escrow
    closed_by: str | None  # "buyer", "deadline" or "start", of a run with fewer rounds than ordered
    closed_block: int | None  # a block of the chain by which an honest verifier had seen its escrow closing

    @property
    def text(self) -> str:
        """For people: how many rounds, and why not more."""
        if self.closed_by is None:
            return f"{self.rounds:,}, as ordered"
        if self.closed_by == NEVER_STARTED:
            reason = "it never started, because too few nodes were ready in time"
            return f"none of {self.rounds_ordered:,} ordered: {reason}"
        by = "by the buyer" if self.closed_by == "buyer" else "by its deadline"
        return f"{self.rounds:,} of {self.rounds_ordered:,} ordered: the run was closed {by}"


def ending_of(run_state: RunState) -> Ending:
    """How the run ends by what this state knows; it is final once the run no longer trains."""
    spec, reports = run_state.spec, run_state.funding_reports
    is_closed = run_state.training_rounds < spec.rounds and not run_state.has_lapsed
    closed_by = CLOSED_BY[run_state.closing] if is_closed else None
    blocks = sorted(one.block for one in reports.values() if one.closing is not Closing.NO)
    return Ending(
        rounds=run_state.training_rounds,
        rounds_ordered=spec.rounds,
        epochs_funded=min(funded_epochs(reports, spec.verifier_peers), spec.epochs),
        closed_by=NEVER_STARTED if run_state.has_lapsed else closed_by,
        closed_block=blocks[faults_tolerated(len(spec.verifiers))] if is_closed else None,
    )
