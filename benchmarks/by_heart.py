"""Audits between classes of data that the model knows by heart: a table of docs/results/tolerance.md.

    python -m benchmarks.by_heart [--losses 0.1 0.01] [--seed 1]

Where a model has learned its batch, the terms of its gradient cancel, and rounding is as large as what is
left. An honest step must not be MISMATCH there, and a lie must. Per loss and step: three audits' findings.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

import numpy as np

from assay.redteam.appeals import Trial, judged_between_classes
from assay.redteam.attack import without
from assay.redteam.test_bed import Floats, TestBed, lab_of
from assay.testing.learned import learned_by_heart
from assay.training.model.loss import use_one_thread
from assay.verifier.audit.limits import shipped
from benchmarks.machine import machine

LOSSES = (0.1, 0.03, 1e-2, 1e-3, 1e-4)
AUDITS = 3


def main() -> None:
    """Print a row for each loss and kind of step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--losses", nargs="+", type=float, default=LOSSES)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}")
    print("| loss | step | findings |\n|---|---|---|", flush=True)
    lab = lab_of(args.seed)
    known = lab.recompute_worker.parameters.read(lab.round)
    for loss in args.losses:
        theta_P = learned_by_heart(lab.spec.model, known, lab.batch(), loss_at_most=loss)
        for name, x in _steps(lab, theta_P).items():
            print(f"| {loss:g} | {name} | {', '.join(_findings(lab, x, theta_P))} |", flush=True)


def _steps(lab: TestBed, theta_P: Floats) -> dict[str, Floats]:
    """The honest step, and lies about it."""
    rng = np.random.default_rng(0)
    honest = lab.x_of(lab.batch(), theta=theta_P)
    size = np.abs(honest).mean()
    noise = rng.standard_normal((2, *honest.shape)).astype(np.float32) * size
    return {
        "honest": honest,
        "parameters of before": lab.x_of(lab.batch()),
        "other data": lab.x_of(np.roll(lab.batch(), 7), theta=theta_P),
        "noise of 10 %": (honest + np.float32(0.1) * noise[0]).astype(np.float32),
        "noise alone": noise[1],
    }


def _findings(lab: TestBed, x: Floats, theta_P: Floats) -> list[str]:
    told = lab.claim(x)
    auditor, trial = lab.recompute_worker, Trial(lab, told, theta_P)
    with ExitStack() as patched:
        patched.enter_context(without(auditor, "limits", shipped()))
        patched.enter_context(without(auditor.parameters, "read", lambda _round: theta_P))
        return [judged_between_classes(trial, told, beacon).name for beacon in range(AUDITS)]


if __name__ == "__main__":
    main()
