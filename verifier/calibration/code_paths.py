"""Code paths: computes the steps of one honest node in child processes, each with other kernels.

Room: verifier (edge: child processes, their environment, files of one temporary folder). One machine stands
in for many: instruction sets, oneDNN and MKL branches, threads and batch groups are chosen by environment and
flags before torch starts, so each path is a process of its own.

    python -m assay.verifier.calibration.code_paths FOLDER PATH    computes one path, as FOLDER/task.json says

The first path leads: it fixes the public trajectory, and the false steps of a node on that path. The
reference class is a path too, by which all others are judged.
Shape suffixes: P = parameters, N = blocks, C = 4096.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.params import BLOCK_SIZE, ComputeSpec, Precision
from assay.protocol.update_rule import LocalSpec, RuleSpec
from assay.training.codec.wire import Aggregate
from assay.training.exact import apply_signs, initial_parameters
from assay.training.execution.challenge import challenge_tokens, fingerprint
from assay.training.execution.execution_class import execution_class
from assay.training.layout import Layout, from_blocks, layout_of
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.loss import check_device, loss_and_gradient, use_threads
from assay.training.model.presets import PRESETS
from assay.training.optimiser.aggregate import step_signs
from assay.training.optimiser.inner import InnerState, fresh, inner_step
from assay.training.optimiser.schedule import rate
from assay.training.reference.gradient import reference_loss_and_gradient
from assay.training.transform.compress import gradient_blocks, transition
from assay.verifier.audit.segment_limits import FRESH_STEPS, SEGMENT_POLICIES, regime_of

Floats = NDArray[np.float32]

SEQUENCES, WARMUP_ROUNDS = 8, 5
SEGMENTS = 3  # of every optimiser; the first begins with fresh moments, the others when they no longer are
SEGMENT_METHODS = ("diloco", "fedavg", "muloco")  # AdamW, SGD and Muon, with these methods' defaults
HONEST = "honest"
LIES = ("one sequence of 8 left out", "parameters one step old", "other data")
_FEWER, _FEWER_LAST = "one sequence of 8 left out", "one sequence of 8 left out of the last step"
_OTHER, _TURNED, _SHORT = "other data", "gradients turned", "last step left out"
_ROUGH = "bfloat16 where float32 was ordered"
TASK = "task.json"
_OTHER_DATA, _OTHER_SEED = 10**6, 10**7
_TIMEOUT_S = 3600
_NO_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}  # torch refuses AMX under a lower ATen capability


@dataclass(frozen=True, slots=True)
class CodePath:
    """One numerical path through the libraries. rows: sequences per pass, 0 for all.
    is_permuted: whether the sequences are reordered. device: "cpu" or "cuda".
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    has_onednn: bool = True
    threads: int = 1
    rows: int = 0
    is_permuted: bool = False
    device: str = "cpu"


LEAD, REFERENCE = "native", "reference"
PATHS: Mapping[str, CodePath] = {
    LEAD: CodePath(),
    "aten-avx2": CodePath({"ATEN_CPU_CAPABILITY": "avx2", **_NO_AMX}),
    "aten-default": CodePath({"ATEN_CPU_CAPABILITY": "default", **_NO_AMX}),
    "onednn-avx2": CodePath({"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "onednn-off": CodePath(has_onednn=False),
    "mkl-compatible": CodePath({"MKL_CBWR": "COMPATIBLE"}),
    "threads-2": CodePath(threads=2),
    "micro-4": CodePath(rows=4),
    "permuted": CodePath(is_permuted=True),
    "cuda": CodePath(device="cuda"),
}


@dataclass(frozen=True, slots=True)
class Task:
    """What every path computes. segment: inner steps of a segment, or 0. seed: of parameters and data."""

    model: str
    dtype: str
    steps: int
    segment: int
    seed: int = 0

    @property
    def rule(self) -> RuleSpec:
        """DeMo with its defaults and a short warm-up."""
        return method_rule("demo", Choices(sequences=SEQUENCES, warmup_rounds=WARMUP_ROUNDS))

    @property
    def marks(self) -> tuple[int, ...]:
        """The steps of a segment after which its state is recorded."""
        return tuple(sorted({1, self.segment}))

    @property
    def segment_lies(self) -> tuple[str, ...]:
        """False segments of the leading path."""
        lies = (_FEWER, _FEWER_LAST, _OTHER, _TURNED, _SHORT)
        return (*lies, _ROUGH) if self.dtype == "float32" else lies

    @property
    def methods(self) -> tuple[str, ...]:
        """Those of `SEGMENT_METHODS` that are judged in this precision at all."""
        return tuple(
            method
            for method in SEGMENT_METHODS
            if (self.compute.dtype, regime_of(self.local(method), 0)) in SEGMENT_POLICIES
        )

    def local(self, method: str) -> LocalSpec:
        """The inner steps of a method with its defaults, at their full rate from the first on."""
        return method_rule(method, Choices(sequences=SEQUENCES, inner_warmup_rounds=0)).local

    def rate(self, method: str, step: int) -> np.float32:
        """Learning rate of one inner step."""
        return rate(self.local(method).schedule, 1, 0, steps=begin_of(self.segment, SEGMENTS), step=step)

    @property
    def compute(self) -> ComputeSpec:
        """The whole batch in one pass."""
        return ComputeSpec(dtype=Precision[self.dtype.upper()], micro_sequences=0)


@dataclass(frozen=True, slots=True)
class Done:
    """One path's results in a folder. execution_class, fingerprint: hexadecimal."""

    folder: Path
    path: str
    capability: str
    execution_class: str
    fingerprint: str
    segment: int

    def x(self, step: int, kind: str = HONEST) -> Floats:
        """What a step adds to the momentum. Shape (N, C)."""
        found: Floats = np.load(self.folder / _name(self.path, kind, step))
        return found

    def inner(self, method: str, number: int, mark: int, kind: str = HONEST) -> InnerState:
        """State after a segment's first `mark` steps; for the leading path also after 0 steps: the start."""
        parts = np.load(self.folder / _name(self.path, kind, _inner(method, number, mark)))
        return InnerState(parts[0], tuple(parts[1:]), begin_of(self.segment, number) + mark)


def compute_paths(folder: Path, task: Task, names: tuple[str, ...]) -> tuple[dict[str, Done], dict[str, str]]:
    """Compute a task on these paths, after the leading one and the reference class.

    Returns:
        Results by path, and for each path this machine does not have, why.

    Raises:
        ConfigError: the leading path or the reference class fails.
    """
    (folder / TASK).write_text(json.dumps(asdict(task)))
    done, failed = {}, {}
    for name in (LEAD, REFERENCE, *(name for name in names if name != LEAD)):
        path = _path(name)
        environment = {**os.environ, **path.environment, "OMP_NUM_THREADS": str(path.threads)}
        child = subprocess.run(
            [sys.executable, "-m", "assay.verifier.calibration.code_paths", str(folder), name],
            env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S,
        )  # fmt: skip
        if child.returncode:
            reason = (child.stderr.strip().splitlines() or ["no reason"])[-1]
            if name in (LEAD, REFERENCE):
                raise ConfigError(f"calibration: the steps cannot be computed: {reason}")
            failed[name] = reason
            continue
        facts = json.loads(child.stdout.strip().splitlines()[-1])
        done[name] = Done(folder, name, **facts, segment=task.segment)
    return done, failed


def _path(name: str) -> CodePath:
    return CodePath() if name == REFERENCE else PATHS[name]


def compute(folder: Path, name: str) -> dict[str, str]:
    """This process's part: every step of the task on its path, into files."""
    path, task = _path(name), Task(**json.loads((folder / TASK).read_text()))
    use_threads(path.threads)
    check_device(path.device)
    if not path.has_onednn:
        torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
    mine = replace(task.compute, micro_sequences=path.rows)
    model = PRESETS[task.model]
    layout = layout_of(model)

    def gradient(theta_P: Floats, tokens: NDArray[np.int64], is_rough: bool = False) -> Floats:
        if name == REFERENCE:
            return reference_loss_and_gradient(model, layout, theta_P, tokens, compute=mine)[1]
        tokens = np.ascontiguousarray(tokens[::-1]) if path.is_permuted else tokens
        compute = replace(mine, dtype=Precision.BFLOAT16) if is_rough else mine
        return loss_and_gradient(model, layout, theta_P, tokens, compute=compute, device=path.device)[1]

    here = _Here(folder, name, task, layout, gradient)
    _steps(here)
    if task.segment:
        for method in task.methods:
            _segments(here, method)
    return {
        "capability": torch.backends.cpu.get_cpu_capability().lower(),
        "execution_class": execution_class(mine, path.device).hex(),
        "fingerprint": fingerprint(mine, path.device).hex(),
    }


@dataclass(frozen=True, slots=True)
class _Here:
    """Model, data and device that this process computes with."""

    folder: Path
    path: str
    task: Task
    layout: Layout
    gradient: Callable[..., Floats]

    @property
    def is_lead(self) -> bool:
        return self.path == LEAD

    def start(self) -> Floats:
        return initial_parameters(self.task.seed, self.layout.names, self.layout.shapes)

    def tokens(self, number: int) -> NDArray[np.int64]:
        return challenge_tokens(PRESETS[self.task.model], self.task.seed * _OTHER_SEED + number, SEQUENCES)

    def keep(self, kind: str, step: int | str, values: Floats) -> None:
        np.save(self.folder / _name(self.path, kind, step), values)


def _steps(here: _Here) -> None:
    """x of every step at the public trajectory; on the leading path also that and the false steps."""
    rule, layout = here.task.rule, here.layout
    theta_P = before_P = here.start()
    error_NC = np.zeros((layout.blocks, BLOCK_SIZE), np.float32)
    for step in range(here.task.steps):
        lr, tokens = rate(rule.outer.schedule, here.task.steps, step), here.tokens(step)
        x_NC = gradient_blocks(rule, layout, here.gradient(theta_P, tokens), lr)
        here.keep(HONEST, step, x_NC)
        file = here.folder / f"theta-{step + 1}.npy"
        if not here.is_lead:
            theta_P = np.load(file)
            continue
        work = ((theta_P, tokens[1:]), (before_P, tokens), (theta_P, here.tokens(step + _OTHER_DATA)))
        for kind, (at_P, batch) in zip(LIES, work, strict=True):
            here.keep(kind, step, gradient_blocks(rule, layout, here.gradient(at_P, batch), lr))
        moved = transition(rule.compress, error_NC, x_NC)
        error_NC, before_P, sent = moved.after_BC, theta_P, moved.sent
        count_N = rule.compress.k * np.bincount(sent.blocks_B, minlength=layout.blocks)
        flat = sent.index_BK.reshape(-1).astype(np.int16), sent.value_BK.reshape(-1).astype(np.int32)
        alone = Aggregate(count_N, *flat)
        theta_P = apply_signs(theta_P, from_blocks(layout, step_signs(rule, alone, layout.blocks)), lr)
        np.save(file, theta_P)


def _segments(here: _Here, method: str) -> None:
    """End states of each segment from the leading path's states; on that path also the false ones."""
    task, lead = here.task, Done(here.folder, LEAD, "", "", "", here.task.segment)
    local, anchor_P, length = task.local(method), here.start(), task.segment

    def walk(
        state: InnerState,
        steps: int,
        batch: Callable[[int], NDArray[np.int64]],
        sign: int = 1,
        *,
        is_rough: bool = False,
    ) -> list[InnerState]:
        states = []
        for step in range(state.count, state.count + steps):
            slope_P = here.gradient(state.theta_P, batch(step), is_rough) * np.float32(sign)
            state = inner_step(local, here.layout, task.rate(method, step), state, anchor_P, slope_P)
            states.append(state)
        return states

    def keep(kind: str, number: int, mark: int, state: InnerState) -> None:
        here.keep(kind, _inner(method, number, mark), np.stack([state.theta_P, *state.moments]))

    def tokens(step: int) -> NDArray[np.int64]:
        return here.tokens(2 * _OTHER_DATA + step)

    state = fresh(local, anchor_P)
    for number in range(SEGMENTS):
        if here.is_lead:
            keep(HONEST, number, 0, state)
        start = lead.inner(method, number, 0)
        honest = walk(start, length, tokens)
        for mark in task.marks:
            keep(HONEST, number, mark, honest[mark - 1])
        if not here.is_lead:
            continue
        state = (honest + walk(honest[-1], begin_of(length, number + 1) - honest[-1].count, tokens))[-1]
        before = honest[-2] if length > 1 else start
        false_ends = {
            _FEWER: walk(start, length, lambda step: tokens(step)[1:])[-1],
            _FEWER_LAST: walk(before, 1, lambda step: tokens(step)[1:])[-1],
            _OTHER: walk(start, length, lambda step: tokens(step + _OTHER_DATA))[-1],
            _TURNED: walk(start, length, tokens, -1)[-1],
            _SHORT: before,
        }
        if _ROUGH in task.segment_lies:
            false_ends[_ROUGH] = walk(start, length, tokens, is_rough=True)[-1]
        for lie, false in false_ends.items():
            keep(lie, number, length, false)


def begin_of(segment: int, number: int) -> int:
    """Inner steps before a segment: the second begins where moments are no longer fresh."""
    return max(segment, FRESH_STEPS) + (number - 1) * segment if number else 0


def _inner(method: str, number: int, mark: int) -> str:
    return f"{method}-{number}-{mark}"


def _name(path: str, kind: str, step: int | str) -> str:
    return f"{path}--{kind.replace(' ', '-')}--{step}.npy"


if __name__ == "__main__":
    print(json.dumps(compute(Path(sys.argv[1]), sys.argv[2])))
