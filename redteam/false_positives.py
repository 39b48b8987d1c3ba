"""False positives: audits honest steps often enough to bound how rarely one is rejected.

Room: redteam (edge: runs itself in a process for each code path of the CPU). A block test is one opened block
compared bit for bit: before, after, and the sent part. Every step of every honest node is audited with all
blocks of the model opened, and its sketch compared with the auditor's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from assay.protocol.messages import Outcome
from assay.redteam.test_bed import TestBed
from assay.training.model.presets import gpt_spec
from assay.verifier.audit.intervals import rule_of_three

MODEL = gpt_spec(layers=4, width=64, heads=2, context=16)
BLOCKS = 64  # opened at most; the model has fewer
PATHS = ("default", "avx2", "avx512")  # of ATen, by ATEN_CPU_CAPABILITY
ROUNDS, ROUNDS_QUICK = 350, 3  # on every path
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_WAIT_S = 3600


@dataclass(frozen=True, slots=True)
class Honest:
    """Result of audits of honest steps. path: the code path of node and auditor, or all of them."""

    path: str
    audits: int
    blocks: int
    false_slashes: int

    @property
    def block_bound(self) -> float:
        """The rate of false mismatches per block is below this with 95 % confidence, if there was none."""
        return rule_of_three(self.blocks)

    @property
    def audit_bound(self) -> float:
        """The same per audit."""
        return rule_of_three(self.audits)


def audit_honest(rounds: int, seed: int, folder: Path) -> Honest:
    """Audit every step of two honest nodes over these rounds, in this process.

    A mismatch, a sketch that differs and a refused opening all count: each would open a dispute
    that only a committee with the same result would end with a slash.
    """
    lab = TestBed(folder, seed, rounds=0, model=MODEL, blocks=BLOCKS)
    audits = tests = false = 0
    for _ in range(rounds):
        for peer in sorted(lab.trainers):
            record = lab.step_of(peer)
            blocks = lab.drawn(record.update, lab.round)
            opening = lab.trainers[peer].steps.opening(lab.round, blocks)
            found = lab.recompute_worker.examine(record.commit, record.update, opening, blocks)
            audits, tests = audits + 1, tests + len(blocks)
            false += found.outcome is not Outcome.MATCH or found.recomputed != record.sketches[0]
        lab.pass_round()
    return Honest(_path(), audits, tests, false)


def paths_here() -> tuple[str, ...]:
    """The code paths that this CPU has."""
    found = []
    for path in PATHS:
        code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=_environment(path),
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
        )
        if done.returncode == 0 and done.stdout.strip().lower() == path:
            found.append(path)
    return tuple(found)


def audit_everywhere(*, is_quick: bool) -> list[Honest]:
    """Honest audits on every code path of this CPU, each in a process of its own, one thread each."""
    rounds, found = ROUNDS_QUICK if is_quick else ROUNDS, []
    for number, path in enumerate(paths_here()[-1:] if is_quick else paths_here()):
        done = subprocess.run(
            [sys.executable, "-m", "assay.redteam.false_positives", str(rounds), str(number)],
            env=_environment(path), capture_output=True, text=True, timeout=_WAIT_S, check=True,
        )  # fmt: skip
        found.append(Honest(**json.loads(done.stdout)))
    return found


def total(found: list[Honest]) -> Honest:
    """All paths together."""
    return Honest(
        ", ".join(one.path for one in found),
        sum(one.audits for one in found),
        sum(one.blocks for one in found),
        sum(one.false_slashes for one in found),
    )


def _environment(path: str) -> dict[str, str]:
    root = str(Path(__file__).parents[1])
    return {**os.environ, **dict.fromkeys(_THREADS, "1"), "ATEN_CPU_CAPABILITY": path, "PYTHONPATH": root}


def _path() -> str:
    import torch

    return str(torch.backends.cpu.get_cpu_capability()).lower()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="assay-honest-") as scratch:
        made = audit_honest(int(sys.argv[1]), int(sys.argv[2]), Path(scratch))
    print(json.dumps({name: getattr(made, name) for name in made.__dataclass_fields__}))
