"""Charts: the curves of a training report, reduced to a bounded size and drawn as inline SVG.

Room: bundle (pure). However long the run, a curve has at most `CURVE_COLUMNS` columns: of several rounds in
one, it keeps the lowest and the highest value. The scale is that of the lines; a band, which one liar can
stretch, is cut off where it leaves the drawing. A figure's colours are the page's, by its classes; lines
differ in their dashes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from assay.bundle.report.loss_kind import NEXT_TOKEN, LossKind
from assay.bundle.report.training import FAULTS, PASSED, RoundFigures, TrainingReport
from assay.chain.text.units import UNIT

CURVE_COLUMNS = 300
CURVE_WIDTH, CURVE_HEIGHT = 600, 160
MEDIAN = "median of the nodes"
AGREED = "held out, as verifiers agreed"
BAND_SHARE = 0.25  # of the lines' range, that a band adds to the scale at each end, at most
MICRO = 10**6
# For a page with figures, whose own style defines the colours --ink, --soft, --line, --accent and --warn.
FIGURE_STYLE = """
figure { margin: 1rem 0 }
figcaption { color: var(--soft); font-size: .875rem; margin-top: .5rem }
.curve { display: grid; grid-template-columns: auto 1fr; gap: 0 .6rem }
.curve svg { width: 100%; height: 10rem; border-left: 1px solid var(--line);
  border-bottom: 1px solid var(--line); overflow: visible }
.curve path { fill: none; stroke: var(--accent); stroke-width: 2; vector-effect: non-scaling-stroke;
  stroke-linejoin: round }
.curve .band, .keys .band { fill: var(--accent); stroke: none; opacity: .18 }
.plot path.line-1 { stroke: var(--ink); stroke-dasharray: 7 4 } .plot path.line-2 { stroke: var(--warn);
  stroke-dasharray: 2 3 }
.curve .scale { display: flex; flex-direction: column; justify-content: space-between; font-size: .8rem;
  color: var(--soft); font-variant-numeric: tabular-nums; text-align: right; min-width: 3.6rem }
.curve .ends { grid-column: 2; display: flex; justify-content: space-between; font-size: .8rem;
  color: var(--soft); padding-top: .25rem }
.keys { display: flex; flex-wrap: wrap; gap: .25rem 1.2rem; padding: 0; margin: .5rem 0 0;
  list-style: none; font-size: .875rem; color: var(--soft) }
.keys svg { width: 1.8rem; height: .6rem; margin-right: .4rem }
.keys path { fill: none; stroke: var(--accent); stroke-width: 2 }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A curve over rounds. points: (round, lowest, highest) of each column, in order; empty without any."""

    name: str
    points: tuple[tuple[int, float, float], ...]
    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves on one scale. decimals: of its labels; band: from its lowest to its highest values."""

    title: str
    caption: str
    unit: str
    decimals: int
    low: float
    high: float
    first: int  # rounds, or what `axis` counts, at the ends
    last: int
    lines: tuple[Curve, ...]
    band: Curve | None = None
    axis: str = "round"  # what is counted across: "round", or the plural of another thing

    @property
    def text(self) -> str:
        """The chart for those who cannot see it."""
        parts = [
            f"{line.name} from {self.number(line.first)} to {self.number(line.last)}" for line in self.lines
        ]
        return f"{self.title}, {self.unit}: {'; '.join(parts)}."

    def place(self, at: int) -> str:
        """A place on the axis as the chart's labels have it."""
        return f"round {at:,}" if self.axis == "round" else f"{at:,} {self.axis}"

    def number(self, value: float) -> str:
        """A value as the chart's labels have it."""
        return f"{value:,.{self.decimals}f}"


def charts_of(
    report: TrainingReport, kind: LossKind = NEXT_TOKEN, *, has_agreed: bool = True
) -> tuple[Chart, ...]:
    """The charts of a report; none without a round of training. has_agreed: as `write_bundle`'s."""
    return tuple(chart for chart in _charts(report, kind, has_agreed) if chart is not None)


def _charts(report: TrainingReport, kind: LossKind, has_agreed: bool) -> Iterator[Chart | None]:
    rounds = report.rounds
    spreads = {one.round: one.loss_micro for one in rounds if one.loss_micro is not None}
    agreed = agreed_losses(report, kind) if has_agreed else {}
    measured = " Held out: by the last round of each epoch with a milestone, as the verifiers measured it."
    yield chart_of(
        kind.name[0].upper() + kind.name[1:],
        f"{kind.unit.capitalize()}, of a round's accepted steps, as their nodes state and sign it."
        + (measured if agreed else ""),
        kind.unit,
        {MEDIAN: medians_of(rounds), **({AGREED: agreed} if agreed else {})},
        decimals=3,
        is_from_zero=False,
        band=_band({at: (one.lowest / MICRO, one.highest / MICRO) for at, one in spreads.items()}),
    )
    yield chart_of(
        "Nodes and steps",
        "By round: nodes that could contribute, steps that were accepted, and those that earned nothing.",
        "a round",
        {
            "nodes": _each(rounds, lambda one: one.nodes),
            "accepted": _each(rounds, lambda one: one.accepted),
            "not paid": _each(rounds, lambda one: one.unpaid),
        },
    )
    yield chart_of(
        "Audits",
        "Steps of a round that were drawn to be recomputed, and what became of them.",
        "steps",
        {
            "drawn": _each(rounds, lambda one: sum(one.audits.values())),
            "passed": _each(rounds, lambda one: _count(one, PASSED)),
            "fault confirmed": _each(rounds, lambda one: _count(one, FAULTS)),
        },
    )
    if any(one.sent_bytes for one in rounds):  # of a run that is followed, sizes are not known
        yield chart_of(
            "Traffic",
            "kB by round: updates of all nodes together, and the aggregate that each participant fetches.",
            "kB a round",
            {
                "updates": _each(rounds, lambda one: one.sent_bytes / 1000),
                "aggregate": _each(rounds, lambda one: one.aggregate_bytes / 1000),
            },
            decimals=1,
        )
    yield chart_of(
        "Time",
        "Seconds between the agreed times of a round and the one before.",
        "seconds",
        {"a round": {one.round: one.time_s - before.time_s for before, one in pairwise(rounds)}},
    )
    spent = {one.last_round: one.spent / MICRO for one in report.epochs}
    yield chart_of(
        "Cost",
        f"{UNIT} paid for the epochs so far, at each epoch's last round.",
        UNIT,
        {"so far": {0: 0.0, **spent} if spent else {}},
        decimals=2,
    )


def medians_of(rounds: Sequence[RoundFigures]) -> dict[int, float]:
    """The median loss of each of these rounds that has one, in the loss's unit."""
    return {one.round: one.loss_micro.median / MICRO for one in rounds if one.loss_micro is not None}


def agreed_losses(report: TrainingReport, kind: LossKind) -> dict[int, float]:
    """The held-out loss that verifiers agreed on, by the last round of each epoch that has one.

    None where it is another loss than the one of this kind, which nodes state.
    """
    if kind.held_out != kind:
        return {}
    return {one.last_round: one.score.loss_micro / MICRO for one in report.epochs if one.score is not None}


def _each(rounds: Sequence[RoundFigures], value: Callable[[RoundFigures], float]) -> dict[int, float]:
    return {one.round: value(one) for one in rounds}


def _count(one: RoundFigures, classes: Sequence[str]) -> int:
    return sum(one.audits.get(name, 0) for name in classes)


def chart_of(
    title: str,
    caption: str,
    unit: str,
    values: Mapping[str, Mapping[int, float]],
    *,
    decimals: int = 0,
    is_from_zero: bool = True,
    band: Curve | None = None,
) -> Chart | None:
    """A chart of lines by name; None where the first has no value.

    Args:
        title: Of the chart.
        caption: What it shows, in a sentence.
        unit: Of the values.
        values: By line and round, ascending.
        decimals: Of the labels.
        is_from_zero: Whether the scale begins at 0 rather than at the lowest value.
        band: Behind the lines; it adds `BAND_SHARE` of their range to the scale at most.
    """
    lines = tuple(curve_of(name, one) for name, one in values.items())
    if not lines[0].points:
        return None
    low = min(point[1] for line in lines for point in line.points)
    high = max(point[2] for line in lines for point in line.points)
    if band is not None:
        room = (high - low) * BAND_SHARE
        low = max(low - room, min(low, *(point[1] for point in band.points)))
        high = min(high + room, max(high, *(point[2] for point in band.points)))
    return Chart(
        title=title,
        caption=caption,
        unit=unit,
        decimals=decimals,
        low=0.0 if is_from_zero else low,
        high=high,
        first=min(line.points[0][0] for line in lines),
        last=max(max(one) for one in values.values()),
        lines=lines,
        band=band,
    )


# ---- curves


def curve_of(name: str, values: Mapping[int, float], columns: int = CURVE_COLUMNS) -> Curve:
    """The curve of some values by round, ascending, in at most `columns` columns."""
    rounds = list(values)
    first, last = (values[rounds[0]], values[rounds[-1]]) if rounds else (0.0, 0.0)
    return Curve(
        name=name,
        points=_columns({at: (value, value) for at, value in values.items()}, columns),
        first=first,
        last=last,
    )


def _band(values: Mapping[int, tuple[float, float]]) -> Curve:
    """The band between two values by round."""
    return Curve(name="lowest to highest", points=_columns(values), first=0.0, last=0.0)


def _columns(
    values: Mapping[int, tuple[float, float]], columns: int = CURVE_COLUMNS
) -> tuple[tuple[int, float, float], ...]:
    rounds, points = list(values), []
    columns = min(columns, len(rounds))
    for column in range(columns):
        low, high = (len(rounds) * at // columns for at in (column, column + 1))
        part = [values[one] for one in rounds[low:high]]
        points.append((rounds[low], min(one for one, _ in part), max(one for _, one in part)))
    return tuple(points)


# ---- drawing


def figure_html(chart: Chart) -> str:
    """A chart as HTML: the drawing with its scale, keys and caption, and the same in words for a reader."""
    band = "" if chart.band is None else f'<path class="band" d="{band_path(chart)}"/>'
    paths = "".join(
        f'<path class="line-{index}" d="{line_path(chart, line)}"/>' for index, line in enumerate(chart.lines)
    )
    return (
        '<figure class="plot"><div class="curve">\n'
        f'<div class="scale" aria-hidden="true"><span>{chart.number(chart.high)}</span>'
        f"<span>{chart.number(chart.low)}</span></div>\n"
        f'<svg viewBox="0 0 {CURVE_WIDTH} {CURVE_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(chart.text)}">{band}{paths}</svg>\n'
        f'<div class="ends" aria-hidden="true"><span>{escape(chart.place(chart.first))}</span>'
        f"<span>{escape(chart.place(chart.last))}</span></div>\n</div>\n"
        f'<ul class="keys" aria-hidden="true">{"".join(_keys(chart))}</ul>\n'
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def _keys(chart: Chart) -> Iterator[str]:
    if len(chart.lines) == 1 and chart.band is None:
        return
    for index, line in enumerate(chart.lines):
        yield _key(f'<path class="line-{index}" d="M0 3H18"/>', line.name)
    if chart.band is not None:
        yield _key('<path class="band" d="M0 0H18V6H0z"/>', chart.band.name)


def _key(mark: str, name: str) -> str:
    return f'<li><svg viewBox="0 0 18 6" aria-hidden="true">{mark}</svg>{escape(name)}</li>'


def line_path(chart: Chart, line: Curve) -> str:
    """The SVG path of a line, scaled to `CURVE_WIDTH` and `CURVE_HEIGHT`; a single round is a short line."""
    parts = []
    for at, lowest, highest in line.points:
        for value in (highest, lowest) if highest > lowest else (highest,):
            parts.append(_place(chart, at, value))
    if len(parts) == 1:
        x, y = parts[0].split()
        parts.append(f"{4 if x == '0.0' else float(x) - 4:g} {y}")
    return "M" + "L".join(parts)


def band_path(chart: Chart) -> str:
    """The SVG path around the chart's band, within the drawing."""
    assert chart.band is not None
    points = chart.band.points
    above = [_place(chart, at, highest) for at, _, highest in points]
    below = [_place(chart, at, lowest) for at, lowest, _ in reversed(points)]
    return f"M{'L'.join((*above, *below))}z"


def _place(chart: Chart, at: int, value: float) -> str:
    share = (chart.high - value) / ((chart.high - chart.low) or 1)
    x = (at - chart.first) * CURVE_WIDTH / max(chart.last - chart.first, 1)
    return f"{x:.1f} {min(max(share, 0.0), 1.0) * CURVE_HEIGHT:.1f}"
