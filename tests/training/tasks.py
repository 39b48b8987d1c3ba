"""Tasks: a small GRPO run whose prompts ask for one of their own letters, to train on and to audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.grpo import GrpoSpec, Reward
from assay.protocol.params import ComputeSpec, Precision, RunSpec
from assay.testing.specs import a_rule, a_spec
from assay.training.data.batches import describe
from tests.training.data.test_mask import masked_data

END, LENGTH, COUNT = 0, 17, 160
GRPO = GrpoSpec(group=4, completion=3, end=END, reward=Reward.EXACT)
COMPUTE = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0, grpo=GRPO)


def a_window(prompt: bytes, answer: bytes, length: int = LENGTH) -> NDArray[np.int64]:
    """A task as it lies in the data: the prompt masked, the answer and its end not, the padding masked."""
    row = np.full(length, ~END, np.int64)
    row[: len(prompt)] = ~np.frombuffer(prompt, np.uint8).astype(np.int64)
    row[len(prompt) : len(prompt) + len(answer) + 1] = [*answer, END]
    return row


def tasks() -> NDArray[np.int64]:
    """`COUNT` tasks as one stream: "a=" is to be completed with "a"."""
    return np.concatenate([a_window(b"%c=" % (97 + n % 4), b"%c" % (97 + n % 4)) for n in range(COUNT)])


def sums() -> NDArray[np.int64]:
    """As many tasks that ask for a sum, such as "1+2=" for "3"."""
    pairs = [(n % 4, n // 4 % 4) for n in range(COUNT)]
    return np.concatenate([a_window(b"%d+%d=" % (a, b), b"%d" % (a + b)) for a, b in pairs])


def a_grpo_run(
    folder: Path | None,
    method: str = "demo",
    grpo: GrpoSpec = GRPO,
    stream: Callable[[], NDArray[np.int64]] = tasks,
    **changes: Any,
) -> RunSpec:
    """A run of 8 completions a step on such tasks, whose data are written if there is a folder."""
    spec = a_spec(rounds=20)
    if folder is not None:
        manifest = masked_data(folder, stream(), 256)
        data = describe(manifest, validation_tokens=12 * LENGTH, source="x", licence="y")
    else:
        data = replace(spec.data, tokens=COUNT * LENGTH, validation_tokens=12 * LENGTH)
    compute = replace(COMPUTE, grpo=grpo)
    return a_spec(
        **{"data": data, "compute": compute, "rule": a_rule(method, sequences=8), "rounds": 20, **changes}
    )
