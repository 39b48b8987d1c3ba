"""Losses: the small curve of every node of a run, all on one scale, and what a run's loss had cost by then.

Room: explorer (pure). However long the run and however many its nodes, there are at most `LOSS_COLUMNS_MAX`
columns in all. The scale is that of the run's own chart, which no liar stretches: what lies beyond it is
drawn at its edge, and the figure beside a curve is as the node states it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from assay.bundle.report.charts import MEDIAN, MICRO, Chart, Curve, curve_of
from assay.bundle.report.training import RoundFigures
from assay.protocol.messages import Commit
from assay.protocol.types import PeerId

LOSS_NODES = 64
LOSS_COLUMNS = 60  # of one curve, at most
LOSS_COLUMNS_MAX = 1280  # of all curves: about 12 kB of paths
SPARK_WIDTH, SPARK_HEIGHT = 300, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoss:
    """The losses that one node states. last: round of its newest step; text: for those who cannot see it."""

    node: PeerId
    curve: Curve
    last: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLosses:
    """The losses of a run's nodes. scale: with the median of all; omitted: nodes beyond those shown."""

    scale: Chart
    rows: tuple[NodeLoss, ...]
    omitted: int


@dataclass(frozen=True, slots=True)
class Reached:
    """The loss of one round, the median of its nodes, and what was done until then, this round included."""

    rounds: int
    tokens: int  # of accepted steps
    bytes: int  # of one node, both ways: its update, in the mean of the accepted ones, and the aggregate
    loss_micro: int


def reached(rounds: Sequence[RoundFigures]) -> tuple[Reached, ...]:
    """What each round with a loss reached, ascending; `bytes` are 0 where sizes are not known."""
    found, tokens, traffic = [], 0, 0
    for one in rounds:
        tokens += one.tokens
        traffic += one.sent_bytes // max(one.accepted, 1) + one.aggregate_bytes
        if one.loss_micro is not None:
            found.append(Reached(one.round + 1, tokens, traffic, one.loss_micro.median))
    return tuple(found)


def loss_curves(found: Sequence[Reached]) -> dict[str, Curve]:
    """The curve of these losses by each of the other fields of `Reached`; none without a loss."""
    if not found:
        return {}
    return {
        axis: curve_of(axis, {getattr(one, axis): one.loss_micro / MICRO for one in found})
        for axis in ("rounds", "tokens", "bytes")
    }


def node_losses(
    chart: Chart, medians: Mapping[int, float], commits: Mapping[PeerId, Mapping[int, Commit]]
) -> NodeLosses:
    """The losses of a run's nodes, ascending by peer.

    Args:
        chart: Of the run's losses.
        medians: By round, not empty.
        commits: Accepted steps of each node, by round.
    """
    shown = list(commits)[:LOSS_NODES]
    columns = min(LOSS_COLUMNS, LOSS_COLUMNS_MAX // max(len(shown), 1))
    rows = []
    for node in shown:
        losses = {at: one.loss_micro / MICRO for at, one in commits[node].items()}
        curve = curve_of(node.hex()[:8], losses, columns)
        ends = f"from {chart.number(curve.first)} to {chart.number(curve.last)}"
        text = f"{chart.title} of node {curve.name} {ends}" if losses else f"no step of node {curve.name}"
        rows.append(NodeLoss(node=node, curve=curve, last=max(losses, default=0), text=text))
    scale = replace(chart, lines=(curve_of(MEDIAN, medians, columns),), band=None)
    return NodeLosses(scale=scale, rows=tuple(rows), omitted=len(commits) - len(shown))


def spark_path(scale: Chart, curve: Curve, last: int) -> str:
    """The SVG path of a curve that has a point, in a box of `SPARK_WIDTH` and `SPARK_HEIGHT`, in few bytes.

    Args:
        scale: What the box shows.
        curve: In each column from its highest value to its lowest, in the end to its last one.
        last: The round of its last value.
    """
    parts = []
    for at, lowest, highest in (*curve.points, (last, curve.last, curve.last)):
        x = (at - scale.first) * SPARK_WIDTH // max(scale.last - scale.first, 1)
        top, bottom = _y(scale, highest), _y(scale, lowest)
        parts.append(f"{x} {top}" if top == bottom else f"{x} {top}V{bottom}")
    return "M" + "L".join(parts)


def _y(scale: Chart, value: float) -> int:
    share = (scale.high - value) / ((scale.high - scale.low) or 1)
    return round(min(max(share, 0.0), 1.0) * SPARK_HEIGHT)
