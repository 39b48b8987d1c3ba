"""Convergence: the methods at equal tokens, each at its best step size, and what they send.

    python -m benchmarks.convergence [--steps 200] [--seeds 3] [--cells FILE] [--plot FILE]

One model, one text, the same batches for all: AdamW data-parallel (the mean gradient of all nodes,
32 bits a parameter both ways) against every method of `training/methods` in its own code. Step sizes
are chosen on seed 0 from the grids below, AdamW's and DeMo's with their warm-up, floor and beta; the
table is then the mean of all seeds. A method with H local steps gets steps / H rounds. Finished
trainings are kept in the file of `--cells` and not trained again, so that the benchmark can be stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.orders.data import collect_tokens
from assay.orders.spec import data_spec
from assay.protocol.params import RunSpec
from assay.simulation.plot import plot_rounds
from assay.simulation.round import SimRound
from assay.simulation.spec import SimFile, sim_of, sim_run_spec
from assay.simulation.train import simulate
from assay.training.data.batches import Tokens, batch_positions, batch_tokens, validation_tokens
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.loss import loss_and_gradient, mean_loss, use_one_thread
from assay.training.optimiser.schedule import rate
from benchmarks.machine import machine

NODES, SEQUENCES, CONTEXT, LOCAL_STEPS = 4, 4, 128, 10
MODEL = {"layers": 4, "width": 128, "heads": 4, "context": CONTEXT}
DATA = [{"source": "stdlib", "max_bytes": 6_000_000}]


@dataclass(frozen=True, slots=True)
class Tuning:
    """Numbers that a training is tried with.

    lr: DeMo's and AdamW's, else of inner steps. warmup: steps. floor: share of lr at the end.
    beta: DeMo's, or AdamW's second. All but lr are tuned for these two only.
    """

    lr: float
    warmup: int = 40
    floor: float = 0.1
    beta: float = 0.95

    @property
    def name(self) -> str:
        """The step size, and what differs from the others' warm-up, floor and beta."""
        rest = "" if self == Tuning(self.lr) else f" ({self.warmup}, {self.floor:g}, {self.beta:g})"
        return f"{self.lr:g}{rest}"


def _rates(*rates: float) -> tuple[Tuning, ...]:
    return tuple(Tuning(lr) for lr in rates)


BEST_DEMO = Tuning(2e-3, 70, 0.2, 0.98)
GRIDS: Mapping[str, tuple[Tuning, ...]] = {
    "adamw": (
        *_rates(1e-3, 2e-3, 3e-3),
        Tuning(3e-3, 70),
        Tuning(3e-3, 70, 0.2),
        Tuning(2e-3, 70, 0.2, 0.99),
        Tuning(3e-3, 70, 0.2, 0.99),
        Tuning(4e-3, 70, 0.2, 0.99),
    ),
    "demo": (
        *_rates(2e-3),
        Tuning(2e-3, 70, 0.2),
        BEST_DEMO,
        Tuning(2.5e-3, 70, 0.2, 0.98),
    ),
    "sparseloco": _rates(1e-3, 2e-3, 4e-3),
    "diloco": _rates(5e-4, 1e-3, 2e-3, 4e-3),
    "streaming-diloco": _rates(1e-3, 2e-3, 4e-3),
    "fedavg": _rates(0.1, 0.3, 1.0),
    "demo, not equalised": (*_rates(1.5e-3, 2e-3, 2.5e-3), Tuning(2e-3, beta=0.99), BEST_DEMO),
    "demo, not equalised, 16 bits a value": _rates(2e-3),
    "demo, not equalised, k = 64": _rates(2e-3),
}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "demo, not equalised": {"method": "demo"},
    "demo, not equalised, 16 bits a value": {"method": "demo", "values": "int16"},
    "demo, not equalised, k = 64": {"method": "demo", "k": 64},
}


def main() -> None:
    """Train what is missing, print the table, draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    parser.add_argument("--cells", type=Path, default=Path("runs/convergence.json"))
    parser.add_argument("--plot", type=Path, default=Path("runs/convergence.png"))
    args = parser.parse_args()
    use_one_thread()
    args.cells.parent.mkdir(parents=True, exist_ok=True)
    cells = Cells(args.cells, args.steps)
    print(f"machine: {machine()}")
    print(
        f"{NODES} nodes x {SEQUENCES} sequences x {CONTEXT} bytes x {args.steps} steps; H = {LOCAL_STEPS}; "
        f"(warm-up, floor, beta) = (40, 0.1, 0.95) unless said; seeds 0 to {args.seeds - 1}\n"
    )
    print(
        "| method | step size (warm-up, floor, beta) | loss, mean (range) "
        "| against AdamW | kB sent per step | tried |"
    )
    print("|---|---|---|---|---|---|")
    curves, baseline = {}, 0.0
    for method in args.methods:
        tried = {one: cells.of(method, one, 0)[-1].validation or np.inf for one in GRIDS[method]}
        best = min(tried, key=tried.__getitem__)
        runs = [cells.of(method, best, seed) for seed in range(args.seeds)]
        losses = [run[-1].validation or np.inf for run in runs]
        baseline = baseline or float(np.mean(losses))
        sent = sum(one.update_bytes for one in runs[0]) / args.steps / 1e3
        grid = ", ".join(f"{one.name}: {loss:.3f}" for one, loss in tried.items())
        curves[method] = runs[0]
        print(
            f"| {method} | {best.name} | {np.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f}) | "
            f"{np.mean(losses) - baseline:+.3f} | {sent:,.1f} | {grid} |",
            flush=True,
        )
    plot_rounds(args.plot, curves, steps=args.steps)
    print(f"\n{time.process_time():.0f} s CPU; plot: {args.plot}")


class Cells:
    """Trainings by method, tuning and seed; kept on disk."""

    def __init__(self, path: Path, steps: int) -> None:
        self._path, self._steps = path, steps
        self._kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, method: str, tuning: Tuning, seed: int) -> list[SimRound]:
        """One training, from the file or made now."""
        name = f"{method} {tuning.name} seed {seed} steps {self._steps}"
        if name not in self._kept:
            self._kept[name] = [asdict(one) for one in train(method, tuning, seed, self._steps)]
            self._path.write_text(json.dumps(self._kept))
        return [SimRound(**one) for one in self._kept[name]]


def train(method: str, tuning: Tuning, seed: int, steps: int) -> list[SimRound]:
    """One training with one tuning."""
    spec = sim_of(SimFile.model_validate(_file(method, tuning, seed, steps)), Path())
    manifest, tokens = collect_tokens(spec.order)
    run = sim_run_spec(spec, data_spec(spec.order, manifest))
    if method == "adamw":
        return adamw(run, tokens, tuning, spec.sim.validate_every, spec.sim.validation_sequences)
    return simulate(spec, run, tokens, lambda _: None)


def _file(method: str, tuning: Tuning, seed: int, steps: int) -> dict[str, Any]:
    comm = dict(VARIANTS.get(method, {"method": "demo" if method == "adamw" else method}))
    is_gradient = comm["method"] == "demo"
    local = 1 if is_gradient else LOCAL_STEPS
    if method == "streaming-diloco":
        local //= 2  # a fragment each half of H
    rate_key = "lr" if is_gradient else "inner_lr"
    train: dict[str, Any] = {"sequences": SEQUENCES, rate_key: tuning.lr}
    if is_gradient:
        train |= {"warmup": tuning.warmup, "lr_floor": tuning.floor}
        train["equalise"] = "not equalised" not in method
        comm["beta"] = tuning.beta
    else:
        train |= {"steps": local, "inner_warmup": tuning.warmup // local}
    every = max(1, steps // 10 // local)
    return {
        "sim": {
            "nodes": NODES, "rounds": steps // local, "seed": seed, "validate_every": every,
            "validation_sequences": 128,
        },
        "model": MODEL,
        "data": DATA,
        "train": train,
        "comm": comm,
    }  # fmt: skip


def adamw(run: RunSpec, tokens: Tokens, tuning: Tuning, every: int, held_sequences: int) -> list[SimRound]:
    """AdamW on the mean gradient of all nodes: first beta 0.9, weight decay 0.1, clipped to 1."""
    layout = layout_of(run.model)
    held_out = validation_tokens(tokens, run, held_sequences)
    theta = torch.from_numpy(initial_parameters(run.seed, layout.names, layout.shapes)).requires_grad_(True)
    optimiser = torch.optim.AdamW([theta], lr=tuning.lr, betas=(0.9, tuning.beta), weight_decay=0.1)
    curve = run.rule.outer.schedule  # the same table as DeMo's
    rounds = []
    for number in range(run.rounds):
        parts = [
            batch_tokens(tokens, batch_positions(run, member.peer, number), run.model.context)
            for member in run.nodes
        ]
        here = theta.detach().numpy()
        loss, slope = loss_and_gradient(run.model, layout, here, np.concatenate(parts), compute=run.compute)
        theta.grad = torch.from_numpy(slope)
        torch.nn.utils.clip_grad_norm_([theta], 1.0)
        optimiser.param_groups[0]["lr"] = float(rate(curve, run.rounds, number))
        optimiser.step()
        is_due = (number + 1) % every == 0 or number + 1 == run.rounds
        held = mean_loss(run.model, layout, theta.detach().numpy(), held_out) if is_due else None
        size = 4 * layout.parameters
        rounds.append(SimRound(number, loss, held, float(size), size, 0))
    return rounds


if __name__ == "__main__":
    main()
