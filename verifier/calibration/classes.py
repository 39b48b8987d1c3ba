"""Classes: measures how far honest code paths are from the reference class, and false steps from both.

Room: verifier (edge: drives code paths, prints, writes one file). Every code path is a node, and the auditor
judges in the reference class: the node's momentum is its own, the trajectory is public. All blocks are
measured; audits open 64 of them, drawn from a hash. A false step comes from a node on the leading path, whose
state is honest until then.

Shape suffixes: N = blocks, C = 4096, K = sent per block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Group

from assay.protocol.auditing.draws import OPENED_LEAST
from assay.protocol.errors import ConfigError
from assay.protocol.params import BLOCK_SIZE, Precision
from assay.protocol.types import Digest
from assay.protocol.update_rule import CompressSpec, RuleSpec
from assay.training.codec.wire import Update
from assay.training.methods.choices import SEGMENT_STEPS as SEGMENT_STEPS
from assay.training.model.presets import PRESETS
from assay.training.transform.compress import Transition, transition
from assay.verifier.audit.limits import POLICIES, Limit, Limits, MeasuredClass
from assay.verifier.audit.tolerance import Grade, Measured, floor_of, grades, measure, median_of
from assay.verifier.calibration.code_paths import (
    LEAD,
    LIES,
    PATHS,
    REFERENCE,
    WARMUP_ROUNDS,
    Done,
    Task,
    compute_paths,
)
from assay.verifier.calibration.segments import (
    SegmentLieRow,
    SegmentRow,
    segment_lie_rows,
    segment_rows,
    segment_tables,
    slim,
)
from assay.verifier.calibration.tables import counted, drawn_blocks, drawn_few, table

Floats = NDArray[np.float32]

MODELS = ("gpt-1m", "llama-1m")
STEPS = 8
SEGMENT_MAX = 1000
_LEAST_STEPS = 2
_NOISE = 10  # times T1


@dataclass(frozen=True, slots=True)
class HonestRow:
    """One path: its samples, and its audits' outcomes under its own limit. bound: 3 / blocks.

    few_audits, few_matches, few_false: of audits with `OPENED_LEAST` blocks, several draws of each step.
    """

    measured: MeasuredClass
    limit: Limit
    audits: int
    matches: int
    few_audits: int
    few_matches: int
    few_false: int
    bound: float


@dataclass(frozen=True, slots=True)
class LieRow:
    """One kind of false step. margin: the least by which an audit of it exceeded its most exceeded limit."""

    dtype: str
    lie: str
    audits: int
    mismatches: int
    borderline: int
    margin: float
    test: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """A calibration, whether it is sound, and the digest of the limits that it yields."""

    digest: Digest
    is_sound: bool
    measured: Calibration


@dataclass(frozen=True, slots=True)
class Calibration:
    """All measurements. missing: code paths that this machine does not have, and why."""

    steps: int
    honest: tuple[HonestRow, ...]
    lies: tuple[LieRow, ...]
    segments: tuple[SegmentRow, ...]
    segment_lies: tuple[SegmentLieRow, ...]
    missing: dict[str, str]

    @property
    def limits(self) -> Limits:
        """The limits that the honest rows yield."""
        return Limits(
            tuple(row.measured for row in self.honest), tuple(row.measured for row in self.segments)
        )

    @property
    def document(self) -> CalibrationReport:
        """What a program reads of it."""
        return CalibrationReport(digest=self.limits.digest(), is_sound=self.is_sound, measured=self)

    @property
    def is_sound(self) -> bool:
        """Whether every honest audit matched, none with few blocks failed, and no false step matched.

        With few blocks one in thousands is borderline, which the reference class decides.
        """
        rows: tuple[HonestRow | SegmentRow, ...] = (*self.honest, *self.segments)
        honest = [(row.matches, row.audits) for row in rows]
        honest += [(row.few_false, 0) for row in rows]
        lies = [(row.mismatches + row.borderline, row.audits) for row in self.lies]
        lies += [(row.mismatches + row.borderline, row.audits) for row in self.segment_lies]
        return all(found == audits for found, audits in (*honest, *lies))


def calibrate(
    models: Sequence[str] = MODELS,
    steps: int = STEPS,
    paths: Sequence[str] = tuple(PATHS),
    segment: int = SEGMENT_STEPS,
    seeds: int = 1,
    on_model: Callable[[int, int], None] = lambda _done, _of: None,
) -> Calibration:
    """Measure this machine's code paths against the reference class.

    Args:
        models: Names of `assay.training.model.presets`; their samples are pooled.
        steps: Of each model, precision and seed.
        paths: Which of `PATHS`, besides the leading one.
        segment: Inner steps of the longest segment to be judged; 0 for none. Of the first seed.
        seeds: Of first parameters and data; their samples are pooled.
        on_model: Called with how many of all models, in each precision and from each seed, are computed.

    Raises:
        ConfigError: no such model or path, too few steps, or nothing can be computed here.
    """
    for model in models:
        if model not in PRESETS:
            raise ConfigError(f'model "{model}": expected one of {", ".join(PRESETS)}')
    for path in paths:
        if path not in PATHS:
            raise ConfigError(f'path "{path}": expected one of {", ".join(PATHS)}')
    if steps < _LEAST_STEPS or not models or seeds < 1:
        expected = f"expected at least {_LEAST_STEPS} of one"
        raise ConfigError(f"{steps} steps of {len(models)} models and {seeds} seeds: {expected}")
    if not 0 <= segment <= SEGMENT_MAX:
        raise ConfigError(f"a segment of {segment} inner steps: expected 1 to {SEGMENT_MAX}, or 0 for none")
    samples: dict[Precision, dict[str, list[_Seen]]] = {dtype: {} for dtype in POLICIES}
    classes: dict[tuple[Precision, str], Digest] = {}
    lies: dict[Precision, list[tuple[str, Measured]]] = {dtype: [] for dtype in POLICIES}
    segments: list[SegmentRow] = []
    segment_lies: list[SegmentLieRow] = []
    missing: dict[str, str] = {}
    computed = 0
    for seed in range(seeds):
        with tempfile.TemporaryDirectory(prefix="assay-calibrate-") as name:
            whole: dict[Precision, dict[str, dict[str, Done]]] = {}
            for dtype in POLICIES:
                for model in models:
                    folder = Path(name) / f"{dtype.name.lower()}-{model}"
                    folder.mkdir()
                    task = Task(model, dtype.name.lower(), steps, 0 if seed else segment, seed)
                    done, failed = compute_paths(folder, task, tuple(paths))
                    missing |= {f"{path}, {task.dtype}": reason for path, reason in failed.items()}
                    whole.setdefault(dtype, {})[model] = done
                    computed += 1
                    on_model(computed, seeds * len(POLICIES) * len(models))
            for dtype, runs in whole.items():
                rule = Task(models[0], dtype.name.lower(), steps, segment).rule
                for path, step_seen in _honest_steps(rule, runs, steps, seed):
                    samples[dtype].setdefault(path, []).append(step_seen)
                for done in runs.values():
                    classes |= {
                        (dtype, path): Digest(bytes.fromhex(one.execution_class))
                        for path, one in done.items()
                    }
                lower = whole[Precision.BFLOAT16] if dtype is Precision.FLOAT32 else {}
                lies[dtype] += _false_steps(rule, dtype, runs, lower, steps)
                if segment and not seed:
                    segments += segment_rows(dtype, segment, runs)
                    limits = Limits(segments=tuple(row.measured for row in segments))
                    segment_lies += segment_lie_rows(dtype, segment, runs, limits)
    honest = tuple(
        _honest_row(dtype, path, classes[dtype, path], seen)
        for dtype, by_path in samples.items()
        for path, seen in by_path.items()
    )
    found = Limits(tuple(row.measured for row in honest))
    false = [
        row
        for dtype, some in lies.items()
        for row in _lie_rows(dtype, some, found.of(classes[dtype, LEAD], dtype))
    ]
    return Calibration(steps * seeds, honest, tuple(false), tuple(segments), tuple(segment_lies), missing)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One honest step of a path: the distance of all blocks, an audit of the drawn ones, and small audits."""

    rho_B: NDArray[np.float64]
    median: float
    audit: Measured
    few: tuple[Measured, ...]


def _honest_steps(
    rule: RuleSpec, runs: dict[str, dict[str, Done]], steps: int, seed: int
) -> Iterator[tuple[str, _Seen]]:
    """Every honest step of every path that all models have, as the reference class finds it."""
    common = [path for path in PATHS if all(path in done for done in runs.values())]
    for model, done in runs.items():
        for step, x, moved, before in _steps_of(rule, {path: done[path] for path in common}, steps):
            x_NC = done[REFERENCE].x(step)
            what, floor = f"{model} {seed} {step}", floor_of(x_NC)
            drawn = drawn_blocks(what, len(x_NC))
            for path in x:
                every = _opened(rule.compress, np.arange(len(x_NC)), before[path], moved[path], x_NC, floor)
                audit = slim(every, drawn)
                few = tuple(slim(every, some) for some in drawn_few(what, len(x_NC)))
                yield path, _Seen(every.rho_B[~every.is_small_B], median_of(audit), audit, few)


def _honest_row(dtype: Precision, path: str, exec_class: Digest, steps: Sequence[_Seen]) -> HonestRow:
    whole = np.concatenate([one.rho_B for one in steps])
    ppb = [int(np.ceil(value * 1e9)) for value in np.quantile(whole, (0.5, 0.99, 1.0), method="higher")]
    measured = MeasuredClass(
        dtype=dtype,
        path=path,
        exec_class=exec_class,
        blocks=len(whole),
        median=ppb[0],
        p99=ppb[1],
        most=ppb[2],
        profile=min(int(np.ceil(max(one.median for one in steps) * 1e9)), ppb[2]),
    )
    usual, small = (
        counted(grades(one, measured.limit).worst for one in every)
        for every in ([one.audit for one in steps], [audit for one in steps for audit in one.few])
    )
    return HonestRow(measured, measured.limit, *usual[:2], *small, bound=3 / len(whole))


def _opened(
    compress: CompressSpec,
    blocks_B: NDArray[np.int64],
    before_NC: Floats,
    moved: Transition,
    x_NC: Floats,
    floor: float,
) -> Measured:
    """What an auditor with this x measures of a step in these blocks."""
    after_BC = moved.after_BC[blocks_B]
    return measure(
        compress, blocks_B.tolist(), before_NC[blocks_B], after_BC, moved.sent, x_NC[blocks_B], floor=floor
    )


def _false_steps(
    rule: RuleSpec,
    dtype: Precision,
    runs: dict[str, dict[str, Done]],
    lower: dict[str, dict[str, Done]],
    steps: int,
) -> Iterator[tuple[str, Measured]]:
    """Audits of every kind of false step, over all models and steps."""
    for model, done in runs.items():
        for step, x, moved, before in _steps_of(rule, {LEAD: done[LEAD]}, steps):
            if step < min(WARMUP_ROUNDS - 1, steps - 1):
                continue  # the momentum is still too small to falsify
            worse = lower[model][LEAD].x(step) if lower else None
            t1 = POLICIES[dtype].t1 * 1e-9
            x_NC = done[REFERENCE].x(step)
            drawn = drawn_blocks(f"lie {model} {step}", len(x_NC))
            for lie, claimed in _lies(
                rule.compress, done[LEAD], step, before[LEAD], x[LEAD], moved[LEAD], t1, worse
            ):
                yield lie, slim(_opened(rule.compress, drawn, before[LEAD], claimed, x_NC, floor_of(x_NC)))


def _lie_rows(dtype: Precision, audits: Sequence[tuple[str, Measured]], limit: Limit) -> Iterator[LieRow]:
    """One row for every kind of false step."""
    found: dict[str, list[tuple[Grade, float, str]]] = {}
    for lie, measured in audits:
        seen = grades(measured, limit)
        most = max(range(len(seen.ratios)), key=seen.ratios.__getitem__)
        found.setdefault(lie, []).append((seen.worst, seen.ratios[most], f"T{most + 1}"))
    for lie, some in found.items():
        came_out = [grade for grade, _, _ in some]
        failed, near = came_out.count(Grade.FAILED), came_out.count(Grade.BORDERLINE)
        _, margin, test = min(some, key=lambda one: one[1])
        yield LieRow(dtype.name.lower(), lie, len(some), failed, near, margin, test)


def _lies(
    compress: CompressSpec,
    done: Done,
    step: int,
    before_NC: Floats,
    x_NC: Floats,
    honest: Transition,
    t1: float,
    worse_NC: Floats | None,
) -> Iterator[tuple[str, Transition]]:
    """What a lying node commits to and sends, by name of the lie."""
    for lie in LIES:
        yield lie, transition(compress, before_NC, done.x(step, lie))
    if worse_NC is not None:
        yield "bfloat16 where float32 was ordered", transition(compress, before_NC, worse_NC)
    rng = np.random.default_rng(step)
    noise_NC = rng.standard_normal(x_NC.shape).astype(np.float32)
    noise_NC *= np.linalg.norm(x_NC, axis=1, keepdims=True) / np.linalg.norm(noise_NC, axis=1, keepdims=True)
    yield "noise in place of a gradient", transition(compress, before_NC, noise_NC)
    loud = np.float32(_NOISE * t1)
    yield f"noise of {_NOISE} T1 on it", transition(compress, before_NC, x_NC + noise_NC * loud)
    yield "no gradient at all", transition(compress, before_NC, np.zeros_like(x_NC))
    other = replace(compress, feedback_micro=900_000)
    yield "beta 0.9 for 0.95", transition(other, before_NC, x_NC)
    own_NC = before_NC * np.float32(compress.feedback_micro / 1e6) + x_NC
    yield "nothing subtracted", replace(honest, after_BC=own_NC)
    yield "half of it subtracted", replace(honest, after_BC=(own_NC + honest.after_BC) / np.float32(2))
    sent = honest.sent
    yield "signs turned", _consistent(own_NC, replace(sent, value_BK=-sent.value_BK))
    index_NK = np.sort(
        rng.permuted(np.tile(np.arange(BLOCK_SIZE), (len(own_NC), 1)), axis=1)[:, : compress.k]
    )
    value_NK = np.where(np.take_along_axis(own_NC, index_NK, 1) < 0, -1, 1).astype(np.int8)
    yield "any coefficients sent", _consistent(own_NC, Update(np.arange(len(own_NC)), index_NK, value_NK))


def _consistent(own_NC: Floats, sent: Update) -> Transition:
    """A false message of the node's choice, with an error state that is consistent with it."""
    after_NC, at = own_NC.copy(), (sent.blocks_B[:, None], sent.index_BK)
    mean_N1 = np.abs(own_NC[at]).mean(axis=1, keepdims=True)
    after_NC[at] -= sent.value_BK * mean_N1
    return Transition(sent, after_NC)


def _steps_of(
    rule: RuleSpec, done: dict[str, Done], steps: int
) -> Iterator[tuple[int, dict[str, Floats], dict[str, Transition], dict[str, Floats]]]:
    """Step by step: x, the transition and the momentum before it, of an honest node on each path."""
    before: dict[str, Floats] = {}
    for step in range(steps):
        x = {path: one.x(step) for path, one in done.items()}
        before = before or {path: np.zeros_like(x_NC) for path, x_NC in x.items()}
        moved = {path: transition(rule.compress, before[path], x_NC) for path, x_NC in x.items()}
        yield step, x, moved, before
        before = {path: one.after_BC for path, one in moved.items()}


def calibration_group(found: Calibration) -> Group:
    """All tables of a calibration, and the result."""
    seen_of = ("path", "blocks", "median", "p99", "max", "95 % bound")
    honest = table(*seen_of, "T1", "T2", "audits matched", f"with {OPENED_LEAST} blocks")
    for row in found.honest:
        one, limit = row.measured, row.limit
        numbers = [f"{value * 1e-9:.2g}" for value in (one.median, one.p99, one.most)]
        honest.add_row(
            f"{one.dtype.name.lower()} {one.path}", f"{one.blocks:,}", *numbers,
            f"{row.bound:.1e}", f"{limit.t1 * 1e-9:.2g}", f"{limit.t2 * 1e-9:.2g}",
            f"{row.matches} of {row.audits}", f"{row.few_matches:,} of {row.few_audits:,}",
        )  # fmt: skip
    lies = table("lie", "audits", "mismatch", "borderline", "least margin", "by")
    for lie in found.lies:
        counts = (lie.audits, lie.mismatches, lie.borderline)
        lies.add_row(f"{lie.dtype} {lie.lie}", *map(str, counts), f"{lie.margin:.3g} times", lie.test)
    inner, false = segment_tables(found.segments, found.segment_lies)
    notes = [f"not on this machine: {path} ({why})" for path, why in found.missing.items()]
    verdict = "every honest audit matched, no lie did" if found.is_sound else "NOT SOUND: see the rows"
    return Group(
        honest,
        "",
        lies,
        "",
        inner,
        "",
        false,
        "",
        *notes,
        f"{verdict}; limits {found.limits.digest().hex()[:16]}",
    )
