"""Segments: measures how far honest machines differ after inner steps, and whether false segments exceed it.

Room: verifier (pure; reads the code paths' files from a folder). Every code path is a node, and the auditor
judges in the reference class; both compute a segment from the leading path's state. All blocks are measured;
audits open 64 of them. A false segment comes from a node on the leading path.

Shape suffixes: N = blocks, C = 4096.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from assay.protocol.auditing.draws import OPENED_LEAST
from assay.protocol.messages import Outcome
from assay.protocol.params import Precision
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import BLOCK_SIZE, PPM
from assay.training.layout import Layout, from_blocks, layout_of, to_blocks
from assay.training.model.presets import PRESETS
from assay.training.optimiser.inner import Floats, InnerState
from assay.verifier.audit.displacement import (
    ModelledSegment,
    gained,
    judge_movement,
    measure_movement,
    sharpened,
)
from assay.verifier.audit.limit import Limit
from assay.verifier.audit.limits import Limits
from assay.verifier.audit.segment import OpenedSegment
from assay.verifier.audit.segment_limits import (
    SEGMENT_POLICIES,
    MeasuredSegment,
    Regime,
    Seen,
    limits_of,
    regime_of,
)
from assay.verifier.audit.tolerance import Grade, Measured, excess, grades, median_of
from assay.verifier.calibration.code_paths import (
    LEAD,
    PATHS,
    REFERENCE,
    SEGMENTS,
    Done,
    Task,
)
from assay.verifier.calibration.tables import counted, drawn_blocks, drawn_few, table

_Audit = tuple[ModelledSegment, tuple[Measured, ...]]
PARTS = ("parameters", "first moment", "second moment")
_NOISE = 10  # times T1
_NOWHERE = InnerState(np.zeros(0, np.float32), (), 0)  # states are megabytes, and a calibration has many


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One path and regime: its samples, and the outcomes of its audits under its own limits.

    few_audits, few_matches, few_false: of audits with `OPENED_LEAST` blocks, several draws of each segment.
    """

    measured: MeasuredSegment
    audits: int
    matches: int
    few_audits: int
    few_matches: int
    few_false: int


@dataclass(frozen=True, slots=True)
class SegmentLieRow:
    """One kind of false segment. margin: the least by which an audit of it exceeded its worst limit."""

    dtype: str
    regime: str
    lie: str
    audits: int
    mismatches: int
    borderline: int
    margin: float
    test: str


@dataclass(frozen=True, slots=True)
class _Case:
    """The first `mark` steps of one segment of one model."""

    task: Task
    layout: Layout
    method: str
    number: int
    mark: int
    start: InnerState

    @property
    def what(self) -> str:
        return f"{self.task.model} {self.method} {self.number} {self.mark}"

    @property
    def regime(self) -> Regime:
        return regime_of(self.task.local(self.method), self.start.count)

    def walked(self, done: Done) -> ModelledSegment:
        """The segment as a path computed it."""
        local, lr = (
            self.task.local(self.method),
            self.task.rate(self.method, self.start.count + self.mark - 1),
        )
        end = done.inner(self.method, self.number, self.mark)
        dtype = Precision[self.task.dtype.upper()]
        return ModelledSegment(local, dtype, self.layout, self.mark, lr, self.start, end)

    def shown(self, end: InnerState, blocks_B: NDArray[np.int64] | slice = slice(None)) -> OpenedSegment:
        """An opening of an end state."""
        parts = tuple(_rows(self.layout, part_P)[blocks_B] for part_P in (end.theta_P, *end.moments))
        return OpenedSegment(self.start, self.start.count + self.mark, parts, parts[0])


def segment_rows(dtype: Precision, segment: int, runs: dict[str, dict[str, Done]]) -> Iterator[SegmentRow]:
    """One row for every path and regime, over all models."""
    common = [path for path in PATHS if all(path in done for done in runs.values())]
    seen: dict[tuple[str, Regime], list[tuple[Measured, ...]]] = {}
    audits: dict[tuple[str, Regime], list[_Audit]] = {}
    few: dict[tuple[str, Regime], list[_Audit]] = {}
    for case, done in _cases(dtype, segment, runs):
        drawn = drawn_blocks(case.what, case.layout.blocks)
        walked = case.walked(done[REFERENCE])
        own = gained(walked, range(case.layout.blocks))
        for path in common:
            end = case.shown(done[path].inner(case.method, case.number, case.mark))
            every = measure_movement(walked, own, end)
            key = path, case.regime
            seen.setdefault(key, []).append(tuple(slim(one) for one in every))
            light = replace(walked, start=_NOWHERE, end=_NOWHERE)
            audits.setdefault(key, []).append((light, tuple(slim(one, drawn) for one in every)))
            few.setdefault(key, []).extend(
                (light, tuple(slim(one, some) for one in every))
                for some in drawn_few(case.what, case.layout.blocks)
            )
    lead = next(iter(runs.values()))
    for (path, regime), samples in seen.items():
        opened = audits[path, regime]
        parts = [
            _seen([one[part] for one in samples], [one[part] for _, one in opened])
            for part in range(regime.parts)
        ]
        measured = MeasuredSegment(
            dtype=dtype,
            regime=regime,
            steps=segment,
            path=path,
            exec_class=Digest(bytes.fromhex(lead[path].execution_class)),
            blocks=sum(len(one[0].rho_B) for one in samples),
            seen=tuple(parts),
        )
        usual, small = (
            counted(_worst(*audit, measured.limits) for audit in every)
            for every in (opened, few[path, regime])
        )
        yield SegmentRow(measured, *usual[:2], *small)


def _worst(walked: ModelledSegment, audit: Sequence[Measured], limits: Sequence[Limit] | None) -> Grade:
    if limits is None:
        return Grade.FAILED
    allowed = sharpened(walked, limits)
    return max(grades(one, limit).worst for one, limit in zip(audit, allowed, strict=True))


def segment_lie_rows(
    dtype: Precision,
    segment: int,
    runs: dict[str, dict[str, Done]],
    limits: Limits,
) -> Iterator[SegmentLieRow]:
    """One row for every kind of false segment and regime, over all models."""
    found: dict[tuple[str, str], list[tuple[Outcome, float, str]]] = {}
    for case, done in _cases(dtype, segment, runs):
        node_class = Digest(bytes.fromhex(done[LEAD].execution_class))
        allowed = limits_of(limits.segments, node_class, dtype, case.regime, segment)
        if case.mark != segment or allowed is None:
            continue
        drawn = drawn_blocks(f"lie {case.what}", case.layout.blocks)
        walked = case.walked(done[REFERENCE])
        own = gained(walked, drawn.tolist())
        for lie, end in _lies(case, done[LEAD], SEGMENT_POLICIES[dtype, case.regime]):
            shown = case.shown(end, drawn)
            finding, _ = judge_movement(walked, shown, allowed, drawn.tolist(), recomputed=NO_DIGEST)
            margin, test = _margin(measure_movement(walked, own, shown), sharpened(walked, allowed))
            found.setdefault((case.regime.value, lie), []).append((finding.outcome, margin, test))
    for (regime, lie), audits in found.items():
        came_out = [outcome for outcome, _, _ in audits]
        _, margin, test = min(audits, key=lambda one: one[1])
        counts = (came_out.count(Outcome.MISMATCH), came_out.count(Outcome.BORDERLINE))
        yield SegmentLieRow(dtype.name.lower(), regime, lie, len(audits), *counts, margin, test)


def segment_tables(rows: Sequence[SegmentRow], lies: Sequence[SegmentLieRow]) -> tuple[Table, Table]:
    """Tables of honest paths, pooled by regime and by the part that differs most; and of every lie."""
    few = f"with {OPENED_LEAST} blocks"
    honest = table(
        "inner steps", "paths", "blocks a path", "part", "median", "p99", "max", "T1", "matched", few
    )
    kinds = {(row.measured.dtype, row.measured.regime, row.measured.steps) for row in rows}
    for dtype, regime, steps in sorted(kinds, key=lambda kind: (kind[0], kind[1].value)):
        mine = [row for row in rows if (row.measured.dtype, row.measured.regime) == (dtype, regime)]
        matched = (
            f"{sum(row.matches for row in mine)} of {sum(row.audits for row in mine)}",
            f"{sum(row.few_matches for row in mine):,} of {sum(row.few_audits for row in mine):,}",
        )
        for part in range(regime.parts):
            worst = max((row.measured for row in mine), key=lambda one: one.seen[part].p99)
            seen, limits = worst.seen[part], worst.limits
            numbers = [f"{value * 1e-9:.2g}" for value in (seen.median, seen.p99, seen.most)]
            t1 = "none" if limits is None else f"{limits[part].t1 * 1e-9:.2g}"
            honest.add_row(
                f"{dtype.name.lower()} {regime.value}, up to {steps}", str(len(mine)), f"{worst.blocks:,}",
                PARTS[part], *numbers, t1, *matched,
            )  # fmt: skip
    false = table("lie in a segment", "audits", "mismatch", "borderline", "least margin", "by")
    for lie in lies:
        counts = (lie.audits, lie.mismatches, lie.borderline)
        label = f"{lie.dtype} {lie.regime}: {lie.lie}"
        false.add_row(label, *map(str, counts), f"{lie.margin:.3g} times", lie.test)
    return honest, false


def _cases(
    dtype: Precision, segment: int, runs: dict[str, dict[str, Done]]
) -> Iterator[tuple[_Case, dict[str, Done]]]:
    for model, done in runs.items():
        task, layout = Task(model, dtype.name.lower(), 0, segment), layout_of(PRESETS[model])
        for method in task.methods:
            for number in range(SEGMENTS):
                start = done[LEAD].inner(method, number, 0)
                for mark in task.marks:
                    yield _Case(task, layout, method, number, mark, start), done


def slim(measured: Measured, blocks_B: NDArray[np.int64] | slice = slice(None)) -> Measured:
    """The measurement in these blocks only, without the residual, which is megabytes."""
    kept = {
        name: getattr(measured, name)[blocks_B]
        for name in ("rho_B", "rounding_B", "is_small_B", "choice_B", "doubt_B", "value_B")
    }
    return replace(measured, **kept, residual_BC=np.zeros((0, BLOCK_SIZE)))  # a slice would keep it all


def _seen(every: Sequence[Measured], opened: Sequence[Measured]) -> Seen:
    """Statistics of one part of a pair's segments."""
    whole = np.concatenate([excess(one)[~one.is_small_B] for one in every])
    ppb = [int(np.ceil(value * 1e9)) for value in np.quantile(whole, (0.5, 0.99, 1.0), method="higher")]
    profile = max(int(np.ceil(median_of(one) * 1e9)) for one in opened)
    median, p99, most = ppb
    return Seen(median, p99, most, min(profile, most))


def _margin(measured: Sequence[Measured], limits: Sequence[Limit]) -> tuple[float, str]:
    """By how much the test that fails by most exceeds its limit, and which it is."""
    seen = [
        (ratio, f"T{test + 1} of the {PARTS[part]}")
        for part, (one, limit) in enumerate(zip(measured, limits, strict=True))
        for test, ratio in enumerate(grades(one, limit).ratios[:2])
    ]
    return max(seen)


def _lies(case: _Case, lead: Done, policies: Sequence[Limit]) -> Iterator[tuple[str, InnerState]]:
    """False end states of a segment, by name of the lie; the step count is always right."""
    for lie in case.task.segment_lies:
        yield lie, lead.inner(case.method, case.number, case.mark, lie)
    true, start = case.walked(lead).end, case.start
    yield "no step at all", start
    way_P = true.theta_P - start.theta_P
    yield "one and a half times the way", replace(true, theta_P=start.theta_P + way_P * np.float32(1.5))
    rng = np.random.default_rng(case.number)
    yield f"noise of {_NOISE} T1 on the way", replace(true, theta_P=_noisy(case, rng, true, 0, policies))
    if not true.moments:
        return
    first, second = true.moments
    yield "first moment turned", replace(true, moments=(-first, second))
    yield "both moments as they were", replace(true, moments=start.moments)
    noisy = _noisy(case, rng, true, 1, policies)
    yield f"noise of {_NOISE} T1 in the first moment", replace(true, moments=(noisy, second))
    yield "second moment halved", replace(true, moments=(first, second * np.float32(0.5)))
    yield "second moment of zero", replace(true, moments=(first, np.zeros_like(second)))


def _noisy(
    case: _Case, rng: np.random.Generator, true: InnerState, part: int, policies: Sequence[Limit]
) -> Floats:
    """One part of a state with noise of `_NOISE` T1 of its displacement in every block."""
    local = case.task.local(case.method)
    before_P, after_P = ((state.theta_P, *state.moments)[part] for state in (case.start, true))
    kept = (1.0, local.beta1_micro / PPM)[part] ** case.mark
    gain_P = after_P - before_P * np.float32(kept)
    rows_NC = _rows(case.layout, gain_P)
    size_N = np.sqrt((rows_NC.astype(np.float64) ** 2).mean(axis=1))
    scale_NC = np.broadcast_to(size_N[:, None], rows_NC.shape).astype(np.float32)
    scale_P = from_blocks(case.layout, scale_NC.reshape(-1, 64, 64))
    loud = np.float32(_NOISE * policies[part].t1 * 1e-9)
    noisy_P: Floats = after_P + scale_P * rng.standard_normal(len(after_P)).astype(np.float32) * loud
    return noisy_P


def _rows(layout: Layout, flat_P: Floats) -> Floats:
    return to_blocks(layout, flat_P).reshape(-1, BLOCK_SIZE)
