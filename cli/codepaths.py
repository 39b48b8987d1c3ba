"""Code paths: the same steps of one honest node, computed by child processes through other kernels.

Room: cli (edge: child processes, their environment, files of one temporary folder). One machine stands
in for many: instruction sets, oneDNN and MKL branches, threads and batch groups are chosen by
environment and flags before torch starts, so each path is a process of its own.

    python -m cli.codepaths FOLDER PATH    computes one path; FOLDER/task.json says what

The first path leads: it fixes the public trajectory, and the lies of a node on that path.
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

from protocol.errors import ConfigError
from protocol.params import BLOCK_SIZE, ComputeSpec, Precision
from protocol.rule import RuleSpec
from training.challenge import challenge_tokens, fingerprint
from training.compress import gradient_blocks, transition
from training.exact import apply_signs, initial_parameters, inverse_signs, scatter_values
from training.execution import execution_class
from training.inner import InnerState, fresh, inner_step
from training.layout import Layout, from_blocks, layout_of
from training.methods import METHODS
from training.methods.choices import Choices
from training.model import loss_and_gradient, use_threads
from training.presets import PRESETS
from training.schedule import rate

Floats = NDArray[np.float32]

SEQUENCES, WARMUP_ROUNDS, INNER_STEPS = 8, 5, 5
HONEST = "honest"
LIES = ("one sequence of 8 left out", "parameters one step old", "other data")
INNER_LIES = ("one sequence of 8 left out", "last inner step left out")
TASK = "task.json"
_OTHER_DATA = 10**6
_FRESH, _LATER = "inner-fresh", "inner-later"
_TIMEOUT_S = 3600
_NO_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}  # torch refuses AMX under a lower ATen capability


@dataclass(frozen=True, slots=True)
class CodePath:
    """One way through the libraries. rows: sequences per pass, 0 for all; order: of the sequences."""

    environment: Mapping[str, str] = field(default_factory=dict)
    has_onednn: bool = True
    threads: int = 1
    rows: int = 0
    is_permuted: bool = False


LEAD = "native"
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
}


@dataclass(frozen=True, slots=True)
class Task:
    """What every path computes. inner: also segments of inner steps."""

    model: str
    dtype: str
    steps: int
    has_inner: bool

    @property
    def rule(self) -> RuleSpec:
        """DeMo as it comes, with a short warm-up."""
        return METHODS["demo"](Choices(sequences=SEQUENCES, warmup_rounds=WARMUP_ROUNDS))

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

    def x(self, step: int, kind: str = HONEST) -> Floats:
        """What a step adds to the momentum. Shape (N, C)."""
        found: Floats = np.load(self.folder / _name(self.path, kind, step))
        return found

    def inner(self, is_later: bool, kind: str = HONEST) -> Floats:
        """How far a segment of inner steps went. Shape (P,)."""
        found: Floats = np.load(self.folder / _name(self.path, kind, _LATER if is_later else _FRESH))
        return found


def compute_paths(folder: Path, task: Task, names: tuple[str, ...]) -> tuple[dict[str, Done], dict[str, str]]:
    """Compute a task on these paths, the leading one first.

    Returns:
        Results by path, and for each path this machine does not have, why.

    Raises:
        ConfigError: the leading path itself fails.
    """
    (folder / TASK).write_text(json.dumps(asdict(task)))
    done, failed = {}, {}
    for name in (LEAD, *(name for name in names if name != LEAD)):
        environment = {**os.environ, **PATHS[name].environment, "OMP_NUM_THREADS": str(PATHS[name].threads)}
        child = subprocess.run(
            [sys.executable, "-m", "cli.codepaths", str(folder), name],
            env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S,
        )  # fmt: skip
        if child.returncode:
            words = (child.stderr.strip().splitlines() or ["no words"])[-1]
            if name == LEAD:
                raise ConfigError(f"calibration: the steps cannot be computed: {words}")
            failed[name] = words
            continue
        done[name] = Done(folder, name, **json.loads(child.stdout.strip().splitlines()[-1]))
    return done, failed


def compute(folder: Path, name: str) -> dict[str, str]:
    """This process's part: every step of the task on its path, into files."""
    path, task = PATHS[name], Task(**json.loads((folder / TASK).read_text()))
    use_threads(path.threads)
    if not path.has_onednn:
        torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
    mine = replace(task.compute, micro_sequences=path.rows)
    model = PRESETS[task.model]
    layout = layout_of(model)

    def gradient(theta_P: Floats, tokens: NDArray[np.int64]) -> Floats:
        tokens = np.ascontiguousarray(tokens[::-1]) if path.is_permuted else tokens
        return loss_and_gradient(model, layout, theta_P, tokens, compute=mine)[1]

    here = _Here(folder, name, task, layout, gradient)
    _steps(here)
    if task.has_inner:
        _segments(here)
    return {
        "capability": torch.backends.cpu.get_cpu_capability().lower(),
        "execution_class": execution_class(mine).hex(),
        "fingerprint": fingerprint(mine).hex(),
    }


@dataclass(frozen=True, slots=True)
class _Here:
    """What this process computes with."""

    folder: Path
    path: str
    task: Task
    layout: Layout
    gradient: Callable[[Floats, NDArray[np.int64]], Floats]

    @property
    def is_lead(self) -> bool:
        return self.path == LEAD

    def start(self) -> Floats:
        return initial_parameters(0, self.layout.names, self.layout.shapes)

    def tokens(self, number: int) -> NDArray[np.int64]:
        return challenge_tokens(PRESETS[self.task.model], number, SEQUENCES)

    def keep(self, kind: str, step: int | str, values: Floats) -> None:
        np.save(self.folder / _name(self.path, kind, step), values)


def _steps(here: _Here) -> None:
    """x of every step at the public trajectory; on the leading path also that trajectory, and the lies."""
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
        value_BK = sent.value_BK.astype(np.int32)
        dense = scatter_values(layout.blocks, sent.blocks_B[:, None], sent.index_BK, value_BK)
        theta_P = apply_signs(theta_P, from_blocks(layout, inverse_signs(dense)), lr)
        np.save(file, theta_P)


def _segments(here: _Here) -> None:
    """How far a segment of AdamW goes: the first, with fresh moments, and the third."""
    local = METHODS["diloco"](Choices(sequences=SEQUENCES, inner_warmup_rounds=0)).local
    start = fresh(local, here.start())

    def walk(state: InnerState, steps: int, left_out: int = 0) -> InnerState:
        for step in range(state.count, state.count + steps):
            tokens = here.tokens(2 * _OTHER_DATA + step)[left_out:]
            lr = rate(local.schedule, 1, 0, steps=4 * INNER_STEPS, step=step)
            state = inner_step(local, lr, state, start.theta_P, here.gradient(state.theta_P, tokens))
        return state

    def keep_way(kind: str, what: str, state: InnerState, *how: int) -> None:
        here.keep(kind, what, walk(state, *how).theta_P - state.theta_P)

    file = here.folder / "inner-start.npz"
    if here.is_lead:
        walked = walk(start, 2 * INNER_STEPS)
        np.savez(file, theta=walked.theta_P, first=walked.moments[0], second=walked.moments[1])
    kept = np.load(file)
    later = InnerState(kept["theta"], (kept["first"], kept["second"]), 2 * INNER_STEPS)
    for what, state in ((_FRESH, start), (_LATER, later)):
        keep_way(HONEST, what, state, INNER_STEPS)
        if here.is_lead:
            keep_way(INNER_LIES[0], what, state, INNER_STEPS, 1)
            keep_way(INNER_LIES[1], what, state, INNER_STEPS - 1)


def _name(path: str, kind: str, step: int | str) -> str:
    return f"{path}--{kind.replace(' ', '-')}--{step}.npy"


if __name__ == "__main__":
    print(json.dumps(compute(Path(sys.argv[1]), sys.argv[2])))
