"""False positives: audits honest steps often enough to bound how rarely one is rejected.

Room: redteam (edge: a process of its own for each code path of the CPU and each way of judging). Every step
of every honest node is audited with all blocks of the model opened. In the node's own class a block test is
one block compared bit for bit (before, after, and the sent part), and the sketch is compared with the
auditor's. In the reference class, which judges between classes, it is one block within the shipped limits.
"""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from assay.protocol.messages import Outcome
from assay.protocol.params import ComputeSpec, Precision
from assay.redteam.nodes.test_bed import TestBed
from assay.training.model.loss import FLOAT32_WHOLE
from assay.training.model.presets import gpt_spec
from assay.verifier.audit.intervals import rule_of_three
from assay.verifier.audit.limits import shipped

MODEL = gpt_spec(layers=4, width=64, heads=2, context=16)
BLOCKS = 64  # opened at most; the model has fewer
PATHS = ("default", "avx2", "avx512")  # of ATen, by ATEN_CPU_CAPABILITY
ROUNDS_QUICK = 3
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_MODULE = "assay.redteam.nodes.false_positives"
_WAIT_S = 3600


class Judging(enum.Enum):
    """How honest steps are judged: the run's precision, and the class of the recompute."""

    OWN = "float32, own class"
    REFERENCE = "float32, reference class"
    REFERENCE_BF16 = "bfloat16, reference class"

    @property
    def compute(self) -> ComputeSpec:
        """The precision that the run orders."""
        return (
            FLOAT32_WHOLE
            if self is not Judging.REFERENCE_BF16
            else replace(FLOAT32_WHOLE, dtype=Precision.BFLOAT16)
        )


@dataclass(frozen=True, slots=True)
class Honest:
    """Result of audits of honest steps.

    judging: how they were judged. path: the code path of the nodes, or all of them. undecided: audits that
    were borderline or inconclusive: they slash nobody and go to a committee. false_slashes: audits that
    found an honest step false.
    """

    judging: str
    path: str
    audits: int
    blocks: int
    undecided: int
    false_slashes: int

    @property
    def block_bound(self) -> float:
        """The rate of false mismatches per block is below this with 95 % confidence, if there was none."""
        return rule_of_three(self.blocks)

    @property
    def audit_bound(self) -> float:
        """The same per audit."""
        return rule_of_three(self.audits)


def audit_honest(rounds: int, seed: int, folder: Path, judging: Judging = Judging.OWN) -> Honest:
    """Audit every step of two honest nodes over these rounds, in this process.

    A mismatch, a sketch that differs in the node's own class, and a refused opening count as false: each
    would open a dispute that only a committee with the same result would end with a slash.
    """
    is_own = judging is Judging.OWN
    lab = TestBed(
        folder,
        seed,
        rounds=0,
        model=MODEL,
        blocks=BLOCKS,
        compute=judging.compute,
        limits=None if is_own else shipped(),
    )
    audits = tests = undecided = false = 0
    for _ in range(rounds):
        for peer in sorted(lab.trainers):
            record = lab.step_of(peer)
            blocks = lab.drawn(record.update, lab.round)
            opening = lab.trainers[peer].steps.opening(lab.round, blocks)
            found = lab.recompute_worker.examine(
                record.commit, record.update, opening, blocks, in_reference=not is_own
            )
            audits, tests = audits + 1, tests + len(blocks)
            undecided += found.outcome in (Outcome.BORDERLINE, Outcome.INCONCLUSIVE)
            false += found.outcome is Outcome.MISMATCH or (is_own and found.recomputed != record.sketches[0])
        lab.pass_round()
    return Honest(judging.value, _path(), audits, tests, undecided, false)


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


def audit_everywhere(
    *, rounds: int, is_quick: bool, on_path: Callable[[int, int], None] = lambda _done, _of: None
) -> list[Honest]:
    """Honest audits on every code path of this CPU, each in a process of its own, one thread each.

    Args:
        rounds: Steps of each node.
        is_quick: Try the last path alone.
        on_path: Called with how many paths are done for how many ways of judging, and of how many.
    """
    found = []
    paths = paths_here()[-1:] if is_quick else paths_here()
    for judging in Judging:
        for number, path in enumerate(paths):
            done = subprocess.run(
                [sys.executable, "-m", _MODULE, judging.name, str(rounds), str(number)],
                env=_environment(path), capture_output=True, text=True, timeout=_WAIT_S, check=True,
            )  # fmt: skip
            found.append(Honest(**json.loads(done.stdout)))
            on_path(len(found), len(Judging) * len(paths))
    return found


def total(found: Sequence[Honest]) -> Honest:
    """All paths and ways of judging together."""
    return Honest(
        "all",
        ", ".join(dict.fromkeys(one.path for one in found)),
        sum(one.audits for one in found),
        sum(one.blocks for one in found),
        sum(one.undecided for one in found),
        sum(one.false_slashes for one in found),
    )


def _environment(path: str) -> dict[str, str]:
    # torch refuses to pack weights for AMX under a lower capability of ATen.
    chosen = {"ATEN_CPU_CAPABILITY": path, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    return {**os.environ, **dict.fromkeys(_THREADS, "1"), **chosen}


def _path() -> str:
    import torch

    return str(torch.backends.cpu.get_cpu_capability()).lower()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="assay-honest-") as scratch:
        made = audit_honest(int(sys.argv[2]), int(sys.argv[3]), Path(scratch), Judging[sys.argv[1]])
    print(json.dumps(asdict(made)))
