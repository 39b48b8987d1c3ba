"""Readings: the newest values that the tasks of one process have read or counted, for its metrics.

Room: participant (pure: values). A task writes what it has just read anyway; nobody waits for it, and no
rule depends on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from assay.ledger.settlement.duties import Look
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.run_state import RunState
from assay.protocol.types import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What the chain says about a member's stake and hot key; times in Unix seconds of the chain."""

    stake: int  # token units
    lot: int
    lot_until: int
    needed_until: int  # the escrow's deadline
    hot_key_expiry: int


@dataclass(slots=True, kw_only=True)
class Readings:
    """The newest values that the tasks of one process have read or counted; empty until they do."""

    look: Look | None = None
    holdings: Holdings | None = None
    checks: dict[str, str | None] = field(default_factory=dict)  # by name: the fault; None: good
    work: dict[str, tuple[int, float]] = field(default_factory=dict)  # by request: count, seconds
    ended: Counter[AuditStatus] = field(default_factory=Counter)
    own_ended: Counter[AuditStatus] = field(default_factory=Counter)

    def worked(self, request: str, seconds: float) -> None:
        """Count one answer of the compute worker."""
        count, spent = self.work.get(request, (0, 0.0))
        self.work[request] = (count + 1, spent + seconds)

    def grew(self, before: RunState, after: RunState, me: PeerId) -> None:
        """Count the audits that ended between two states of a run."""
        for audit in ended_between(before, after):
            self.ended[audit.ruling] += 1
            self.own_ended[audit.ruling] += audit.node == me


def ended_between(before: RunState, after: RunState) -> Iterator[Audit]:
    """The audits that ended after the first state, up to the second."""
    for step, audit in after.audits.items():
        known = before.audits.get(step)
        if audit.has_ended and (known is None or not known.has_ended):
            yield audit
