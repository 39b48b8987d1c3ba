"""Audit report: what a finished run's audits drew, found and missed, with confidence bounds.

Room: bundle (pure). All counts are folded from the certified chain; only the labels of nodes come from
whoever ran the network, because no chain can know them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from assay.bundle.report.labels import Label
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.messages import CertifiedManifest, Outcome
from assay.protocol.params import PPM, RunSpec
from assay.protocol.run_state import RunState, StepId
from assay.protocol.types import PeerId
from assay.verifier.audit.intervals import exact_interval, rule_of_three

CLASSES = (
    "match",
    "mismatch",
    "withheld",
    "known_answer",
    "dismissed",
    "inconclusive",
    "expired",
    "superseded",
    "late",
)


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts for one node, or for all. Every drawn step is in exactly one of `CLASSES`."""

    steps: int = 0
    drawn: int = 0
    match: int = 0
    mismatch: int = 0
    withheld: int = 0
    known_answer: int = 0  # known-answer tasks, revealed as such
    dismissed: int = 0
    inconclusive: int = 0
    expired: int = 0
    superseded: int = 0
    late: int = 0  # overdue, or found true after that
    expected: float = 0.0  # draws by the rule, given the passed audits that the chain knew
    variance: float = 0.0
    false_steps: int = 0
    false_drawn: int = 0
    false_found: int = 0  # confirmed
    false_missed: int = 0  # passed or dismissed
    expected_caught: float = 0.0  # probability that at least one false step is drawn; of all: expected nodes
    honest_judged: int = 0  # somebody voted MATCH, or somebody accused
    honest_accused: int = 0  # an adverse verdict on a step that was not false
    honest_upheld: int = 0

    def add(self, other: Counts) -> None:
        """Add another's counts."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True, kw_only=True)
class NodeReport:
    """Counts of one node. label: None if nothing is known of it, and then it counts as honest."""

    peer: PeerId
    label: Label | None
    is_caught: bool  # a fault was confirmed
    counts: Counts = field(default_factory=Counts)

    @property
    def behaviour(self) -> str:
        """As labelled; empty if nothing is known."""
        return "" if self.label is None else self.label.behaviour


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFigures:
    """The share of steps that was drawn, and that the rule gives. z: their difference in deviations."""

    measured: float | None
    expected: float | None
    z: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheatFigures:
    """Cheating nodes, by peer in hexadecimal, and their false steps. Intervals: 95 %, exact."""

    nodes: int
    caught: tuple[str, ...]
    missed: tuple[str, ...]
    by_audit: int  # that an audit could catch
    caught_by_audit: int
    expected_by_audit: float
    caught_interval: tuple[float, float]
    steps_drawn: int
    steps_found: int
    steps_missed: int
    power: float | None
    power_interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmFigures:
    """Honest steps that somebody judged, accused, and confirmed as false."""

    judged: int
    accused: int
    confirmed: int
    rate_below: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFigures:
    """All figures of a run's audits."""

    run: str
    run_id: bytes
    floor: float
    probation: int
    nodes: tuple[NodeReport, ...]
    all: Counts
    rate: RateFigures
    cheats: CheatFigures
    false_alarms: AlarmFigures
    unlabelled: bool  # the behaviour of some nodes is not known


def final_audits(run_states: Iterable[RunState]) -> dict[StepId, Audit]:
    """Every audit of the run, in its final status."""
    found: dict[StepId, Audit] = {}
    for run_state in run_states:
        found.update(run_state.audits)
    return found


def kind_of(audit: Audit) -> str:
    """The one class of a closed audit."""
    outcomes = {verdict.outcome for verdict in audit.verdicts}
    match audit.ruling:
        case AuditStatus.PASSED:
            return "match"
        case AuditStatus.CONFIRMED:
            return "mismatch" if audit.is_false else "withheld"
        case AuditStatus.KNOWN_ANSWER:
            return "known_answer"
        case AuditStatus.DISMISSED:
            return "dismissed"
        case AuditStatus.SUPERSEDED:
            return "superseded"
        case AuditStatus.OVERDUE | AuditStatus.LATE:
            return "late"
        case _:
            return "inconclusive" if outcomes == {Outcome.INCONCLUSIVE} else "expired"


def is_known_answer(audit: Audit | None) -> bool:
    """Whether the step was a known-answer task."""
    return audit is not None and audit.is_known_answer and audit.ruling is not AuditStatus.DISMISSED


def node_reports(
    links: tuple[CertifiedManifest, ...],
    run_states: tuple[RunState, ...],
    labels: Mapping[PeerId, Label],
) -> list[NodeReport]:
    """One report per node, ascending by peer.

    Args:
        links: The run's whole chain.
        run_states: Before each certified manifest, and after the last.
        labels: Of nodes of which more is known.
    """
    audits, last = final_audits(run_states), run_states[-1]
    reports = {
        peer: NodeReport(peer=peer, label=labels.get(peer), is_caught=record.fault_round >= 0)
        for peer, record in last.nodes.items()
    }
    unseen = dict.fromkeys(reports, 1.0)
    for round_id, link in enumerate(links):
        for signed in link.manifest.commits:
            node = signed.commit.node
            report = reports[node]
            rate = run_states[round_id + 1].rate_ppm(node) / PPM
            audit = audits.get((signed.commit.round, node))
            is_false = _is_false(report.label, round_id) or is_known_answer(audit)
            _count(report, rate, is_false, audit)
            if is_false:
                unseen[node] *= 1 - rate
    for node, report in reports.items():
        report.counts.expected_caught = 1 - unseen[node]
    return list(reports.values())


def audit_figures(spec: RunSpec, run_id: bytes, reports: list[NodeReport]) -> AuditFigures:
    """All figures, from the reports of all nodes."""
    total = Counts()
    for report in reports:
        total.add(report.counts)
    decided = total.false_found + total.false_missed
    cheats = [report for report in reports if report.label is not None and report.label.is_cheat]
    by_audit = [r for r in cheats if r.label and r.label.false_from is not None and r.counts.false_steps]
    caught = sum(report.is_caught for report in by_audit)
    expected = sum(report.counts.expected_caught for report in by_audit)
    spread = math.sqrt(total.variance)
    return AuditFigures(
        run=spec.name,
        run_id=run_id,
        floor=spec.audit.floor_ppm / PPM,
        probation=spec.audit.probation,
        nodes=tuple(reports),
        all=total,
        rate=RateFigures(
            measured=total.drawn / total.steps if total.steps else None,
            expected=total.expected / total.steps if total.steps else None,
            z=(total.drawn - total.expected) / spread if spread > 1e-9 else None,
        ),
        cheats=CheatFigures(
            nodes=len(cheats),
            caught=tuple(r.peer.hex() for r in cheats if r.is_caught),
            missed=tuple(r.peer.hex() for r in cheats if not r.is_caught),
            by_audit=len(by_audit),
            caught_by_audit=caught,
            expected_by_audit=expected,
            caught_interval=exact_interval(caught, len(by_audit)),
            steps_drawn=total.false_drawn,
            steps_found=total.false_found,
            steps_missed=total.false_missed,
            power=total.false_found / decided if decided else None,
            power_interval=exact_interval(total.false_found, decided),
        ),
        false_alarms=AlarmFigures(
            judged=total.honest_judged,
            accused=total.honest_accused,
            confirmed=total.honest_upheld,
            rate_below=(
                rule_of_three(total.honest_judged)
                if not total.honest_accused
                else exact_interval(total.honest_accused, total.honest_judged)[1]
            ),
        ),
        unlabelled=any(report.label is None for report in reports),
    )


def _is_false(label: Label | None, round_id: int) -> bool:
    """Whether an audit of the step must not pass."""
    return label is not None and label.false_from is not None and round_id >= label.false_from


def _count(report: NodeReport, rate: float, is_false: bool, audit: Audit | None) -> None:
    counts = report.counts
    counts.steps += 1
    counts.expected += rate
    counts.variance += rate * (1 - rate)
    counts.false_steps += is_false
    if audit is None:
        return
    kind = kind_of(audit)
    counts.drawn += 1
    setattr(counts, kind, getattr(counts, kind) + 1)
    if is_false:
        counts.false_drawn += 1
        counts.false_found += kind in ("mismatch", "withheld", "known_answer")
        counts.false_missed += kind in ("match", "dismissed")
    else:
        counts.honest_judged += kind in ("match", "dismissed", "mismatch", "withheld") or bool(audit.adverse)
        counts.honest_accused += bool(audit.adverse)
        counts.honest_upheld += kind in ("mismatch", "withheld")
