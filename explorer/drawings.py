"""Drawings: the map of audits, reduced to a bounded size and drawn as SVG paths.

Room: explorer (pure). However long the run, a map has at most `MAP_CELLS` cells: of several rounds in one, it
keeps the worst outcome. It is one letter a cell, so that a page's JSON holds it in few bytes. Curves:
bundle/report/charts.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.run_state import StepId
from assay.protocol.types import PeerId, RoundId

MAP_CELLS, MAP_COLUMNS, MAP_ROWS = 4000, 120, 50
CELL = 10  # units of the drawing that a cell is high

NOTHING, ACCEPTED = " ", "."
# Worst first: of several steps in one cell, the first of these counts.
MARKS: Mapping[str, tuple[AuditStatus, ...]] = {
    "F": (AuditStatus.CONFIRMED,),
    "D": (AuditStatus.DISMISSED, AuditStatus.DISPUTED, AuditStatus.OVERDUE, AuditStatus.LATE),
    "U": (AuditStatus.EXPIRED, AuditStatus.OPEN),
    "S": (AuditStatus.SUPERSEDED,),
    "K": (AuditStatus.KNOWN_ANSWER,),
    "P": (AuditStatus.PASSED,),
}
# The shape of each mark: offset and size in a cell 10 high, so that no mark differs by its colour alone.
SHAPES: Mapping[str, tuple[float, float]] = {
    "F": (0, 10), "D": (1, 6), "U": (6, 3), "S": (4, 2), "K": (2, 4), "P": (4, 6), ACCEPTED: (9, 1),
}  # fmt: skip
MARK_TEXT: Mapping[str, str] = {
    "P": "audited, passed",
    "K": "known-answer task",
    "S": "void after a fault of its node",
    "U": "audited, not judged",
    "D": "disputed, not confirmed",
    "F": "fault confirmed",
    ACCEPTED: "accepted, not audited",
}
_MARK_OF = {status: mark for mark, statuses in MARKS.items() for status in statuses}
_WORST = "".join(MARKS) + ACCEPTED + NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One node's line of the map: a letter for each cell, and the same in words."""

    node: PeerId
    cells: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditMap:
    """The map of audits. step: rounds in one cell; omitted: nodes beyond those that it shows."""

    rounds: int
    step: int
    rows: tuple[AuditRow, ...]
    omitted: int


def audit_map(
    rounds: int, accepted: Mapping[PeerId, Collection[int]], audits: Mapping[StepId, Audit]
) -> AuditMap:
    """The map of a run's audits: nodes down, ascending by peer, and rounds of training across.

    Args:
        rounds: Of training.
        accepted: Rounds of each node's accepted steps.
        audits: In their final status.
    """
    nodes = list(accepted)
    shown = nodes[:MAP_ROWS]
    columns = max(min(MAP_COLUMNS, MAP_CELLS // max(len(shown), 1), rounds), 1)
    step = -(-rounds // columns)
    rows = []
    for node in shown:
        marks = [_mark(audits.get((RoundId(at), node)), at in accepted[node]) for at in range(rounds)]
        cells = "".join(min(marks[low : low + step], key=_WORST.index) for low in range(0, rounds, step))
        counts = {mark: marks.count(mark) for mark in MARK_TEXT}
        text = "; ".join(f"{count:,} {MARK_TEXT[mark]}" for mark, count in counts.items() if count)
        rows.append(AuditRow(node=node, cells=cells, text=text or "no accepted step"))
    return AuditMap(rounds=rounds, step=step, rows=tuple(rows), omitted=len(nodes) - len(shown))


def _mark(audit: Audit | None, is_accepted: bool) -> str:
    if audit is not None:
        return _MARK_OF[audit.ruling]
    return ACCEPTED if is_accepted else NOTHING


def map_paths(cells: str) -> Sequence[tuple[str, str]]:
    """SVG paths of one line of the map: the mark and its path, equal neighbours in one rectangle."""
    paths: dict[str, list[str]] = {}
    start = 0
    for at in range(1, len(cells) + 1):
        if at < len(cells) and cells[at] == cells[start] == ACCEPTED:
            continue  # a plain line; marks stay apart, so that they can be counted
        if cells[start] != NOTHING:
            top, high = SHAPES[cells[start]]
            gap = 0 if cells[start] == ACCEPTED else 1
            wide = (at - start) * CELL - gap
            paths.setdefault(cells[start], []).append(f"M{start * CELL} {top:g}h{wide}v{high:g}h-{wide}z")
        start = at
    return [(mark, "".join(parts)) for mark, parts in paths.items()]
