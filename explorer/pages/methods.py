"""Methods page: the losses of several runs on one scale, by what they had done until then.

Room: explorer (pure). Runs share a scale only where their losses say the same of the same data: one unit, one
data set, one split of it. At most `RUNS_DRAWN` are drawn; the newest come first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import ClassVar

from assay.bundle.report.charts import BAND_SHARE, Chart
from assay.bundle.report.loss_kind import loss_kind
from assay.explorer.explored import Explored
from assay.explorer.pages.paging import ROWS_MAX, Head, NoSuchPage, Paging, cut, head_of
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST
from assay.training.methods.presets import method_name

RUNS_DRAWN = 6  # as many lines differ by their dashes
PATH = "/methods"


class Axis(str, Enum):
    """What is counted across. Bytes are of a node both ways: one way alone flatters who fetches much."""

    ROUNDS = "rounds"
    TOKENS = "tokens"
    BYTES = "bytes"


AXIS_TEXT = {
    Axis.ROUNDS: "rounds of training",
    Axis.TOKENS: "tokens of accepted steps, of all nodes together",
    Axis.BYTES: "bytes of one node both ways: the update that it sends, in the mean of the accepted ones, "
    "and the aggregate that it fetches, each counted once",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodLine:
    """One run that is drawn. Losses are medians of a round's nodes.

    common_micro: at the last round within what all runs drawn have reached; None: its first came later.
    bytes: of one node both ways; None: not known.
    """

    head: Head
    method: str
    model: str
    steps: int  # of the inner optimiser, by a node in a round
    nodes: int
    rounds: int
    tokens: int
    bytes: int | None
    is_stated: bool  # bytes, by the bundle
    first_micro: int
    common_micro: int | None
    last_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartLine:
    """One run that is not on this scale, and why. has_scale: whether it is on another."""

    head: Head
    method: str
    reason: str
    has_scale: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodsPage:
    """Losses of runs by method. like: the run whose loss and data the others share; None: no run has a loss.

    common: what all runs drawn have reached, on the axis. follows: a run drawn that goes on.
    """

    TEMPLATE: ClassVar[str] = "methods.html"
    axis: Axis
    axis_text: str
    like: Head | None
    data: str
    chart: Chart | None
    common: int
    lines: Sequence[MethodLine]
    apart: Sequence[ApartLine]
    apart_omitted: int
    follows: Head | None
    paging: Paging


def methods_page(runs: Sequence[Explored], axis: Axis, like: str | None, page: int) -> MethodsPage:
    """The losses of the runs that share the scale of one of them.

    Args:
        runs: All that are served.
        axis: What is counted across.
        like: The name of that one; None: the newest with a loss.
        page: Of the runs that are drawn, from 1.

    Raises:
        NoSuchPage: no run with a loss has this name, or fewer runs share its scale.
    """
    newest = sorted(runs, key=_start_s, reverse=True)
    chosen = next((run for run in newest if run.reached and like in (None, run.name)), None)
    if chosen is None and like is not None:
        raise NoSuchPage(f"a run {like[:80]!r} with a loss")
    reasons = {run.name: _apart(run, chosen, axis) for run in newest}
    shown, paging = cut([run for run in newest if not reasons[run.name]], page, RUNS_DRAWN)
    drawn = sorted(shown, key=lambda run: method_name(run.delivered.spec.rule))  # of one method: newest first
    at = attrgetter(axis.value)
    common = min((at(run.reached[-1]) for run in drawn), default=0)
    apart = [run for run in newest if reasons[run.name]]
    return MethodsPage(
        axis=axis,
        axis_text=AXIS_TEXT[axis],
        like=None if chosen is None else head_of(chosen),
        data="" if chosen is None else chosen.delivered.spec.data.source,
        chart=_chart(drawn, axis),
        common=common,
        lines=[_line(run, axis, common) for run in drawn],
        apart=[
            ApartLine(
                head=head_of(run),
                method=method_name(run.delivered.spec.rule),
                reason=reasons[run.name],
                has_scale=bool(
                    run.reached and chosen and _differs(run.delivered.spec, chosen.delivered.spec)
                ),
            )
            for run in apart[:ROWS_MAX]
        ],
        apart_omitted=max(len(apart) - ROWS_MAX, 0),
        follows=next((head_of(run) for run in shown if run.is_live), None),
        paging=paging,
    )


def _start_s(run: Explored) -> int:
    """Agreed time of the run's first manifest; 0 before it."""
    return next((link.manifest.time_s for link in run.delivered.links), 0)


def _apart(run: Explored, like: Explored | None, axis: Axis) -> str:
    """Why a run is not drawn on the scale of this one; empty if it is."""
    if like is None or not run.reached:
        return "no step of it is accepted yet"
    other = _differs(run.delivered.spec, like.delivered.spec)
    if not other and axis is Axis.BYTES and not run.reached[-1].bytes:
        return "its traffic is known once it is delivered"
    return other


def _differs(own: RunSpec, other: RunSpec) -> str:
    """Why the losses of two runs do not say the same of the same data; empty if they do."""
    kind, data = loss_kind(own), own.data
    if kind != loss_kind(other):
        return f"another loss: {kind.name}, {kind.unit}"
    if (data.root, data.tokenizer) != (other.data.root, other.data.tokenizer):
        return f"other data: Merkle root {data.root.hex()[:16]}, not {other.data.root.hex()[:16]}"
    if _split(own) != _split(other):
        return (
            "the same data, cut otherwise: {:,} tokens held out in windows of {:,}, not {:,} of {:,}".format(
                *_split(own), *_split(other)
            )
        )
    return ""


def _split(spec: RunSpec) -> tuple[int, int]:
    return spec.data.validation_tokens, spec.window_tokens


def _chart(drawn: Sequence[Explored], axis: Axis) -> Chart | None:
    if not drawn:
        return None
    kind = loss_kind(drawn[0].delivered.spec)
    lines = tuple(
        replace(run.loss_curves[axis.value], name=f"{method_name(run.delivered.spec.rule)}: {run.name}")
        for run in drawn
    )
    low = min(point[1] for line in lines for point in line.points)
    high = max(point[2] for line in lines for point in line.points)
    # A run that diverges leaves the drawing, rather than flatten those that learn.
    start = max(line.first for line in lines)
    room = BAND_SHARE * (start - low)
    return Chart(
        title=kind.name[0].upper() + kind.name[1:],
        caption=f"{kind.unit.capitalize()}, median of a round's nodes, by {AXIS_TEXT[axis]}.",
        unit=kind.unit,
        decimals=3,
        low=low,
        high=min(high, start + room) if room else high,
        first=0,
        last=max(getattr(run.reached[-1], axis.value) for run in drawn),
        lines=lines,
        axis=axis.value,
    )


def _line(run: Explored, axis: Axis, common: int) -> MethodLine:
    spec, found = run.delivered.spec, run.reached
    before = bisect_right(found, common, key=attrgetter(axis.value))
    return MethodLine(
        head=head_of(run),
        method=method_name(spec.rule),
        model=_model_text(spec),
        steps=spec.rule.local.steps,
        nodes=run.report.totals.nodes,
        rounds=found[-1].rounds,
        tokens=found[-1].tokens,
        bytes=found[-1].bytes or None,
        is_stated=not run.is_live and not run.delivered.sizes,
        first_micro=found[0].loss_micro,
        common_micro=found[before - 1].loss_micro if before else None,
        last_micro=found[-1].loss_micro,
    )


def _model_text(spec: RunSpec) -> str:
    model = spec.model
    start = ", an adapter" if model.is_adapted else "" if model.base == NO_DIGEST else ", imported"
    return f"{model.family.name.lower()}, {model.layers} x {model.width:,}{start}"
