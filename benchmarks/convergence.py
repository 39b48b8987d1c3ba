"""Convergence: the methods at equal tokens, each at its best step size, and what they send.

    python -m benchmarks.convergence [--steps 200] [--seeds 3] [--cells FILE] [--plot FILE]

One model, one text, the same batches for all: AdamW data-parallel (the mean gradient of all nodes,
32 bits a parameter both ways) against every method of `training/methods` in its own code. Step sizes
are chosen on seed 0 from the grids below; the table is then the mean of all seeds. A method with H
local steps gets steps / H rounds. Finished trainings are kept in the file of `--cells` and not
trained again, so that the benchmark can be stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import machine
from cli.simplot import plot_rounds
from cli.simround import SimRound
from cli.simspec import SimSpec, sim_run_spec
from cli.simtrain import simulate
from orders.data import collect_tokens
from orders.spec import data_spec
from protocol.params import RunSpec
from protocol.rule import Curve, ScheduleSpec
from training.data import Tokens, batch_positions, batch_tokens, validation_tokens
from training.exact import initial_parameters
from training.layout import layout_of
from training.model import loss_and_gradient, mean_loss, use_one_thread
from training.schedule import rate

NODES, SEQUENCES, CONTEXT, LOCAL_STEPS = 4, 4, 128, 10
MODEL = {"layers": 4, "width": 128, "heads": 4, "context": CONTEXT}
DATA = [{"source": "stdlib", "max_bytes": 6_000_000}]
WARMUP = 40  # steps
GRIDS: Mapping[str, tuple[float, ...]] = {
    "adamw": (7e-4, 1e-3, 2e-3),
    "demo": (1.5e-3, 2e-3, 2.5e-3),
    "sparseloco": (1e-3, 2e-3, 4e-3),
    "diloco": (5e-4, 1e-3, 2e-3, 4e-3),
    "streaming-diloco": (1e-3, 2e-3, 4e-3),
    "fedavg": (0.1, 0.3, 1.0),
    "demo, 16 bits a value": (2e-3,),
    "demo, k = 64": (2e-3,),
    "demo, beta 0.99": (2e-3,),
}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "demo, 16 bits a value": {"method": "demo", "values": "int16"},
    "demo, k = 64": {"method": "demo", "k": 64},
    "demo, beta 0.99": {"method": "demo", "beta": 0.99},
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
        f"warm-up {WARMUP} steps; seeds 0 to {args.seeds - 1}\n"
    )
    print("| method | step size | loss, mean (range) | against AdamW | kB sent per step | step sizes tried |")
    print("|---|---|---|---|---|---|")
    curves, baseline = {}, 0.0
    for method in args.methods:
        tried = {lr: cells.of(method, lr, 0)[-1].validation or np.inf for lr in GRIDS[method]}
        best = min(tried, key=tried.__getitem__)
        runs = [cells.of(method, best, seed) for seed in range(args.seeds)]
        losses = [run[-1].validation or np.inf for run in runs]
        baseline = baseline or float(np.mean(losses))
        sent = sum(one.update_bytes for one in runs[0]) / args.steps / 1e3
        grid = ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in tried.items())
        curves[method] = runs[0]
        print(
            f"| {method} | {best:g} | {np.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f}) | "
            f"{np.mean(losses) - baseline:+.3f} | {sent:,.1f} | {grid} |",
            flush=True,
        )
    plot_rounds(args.plot, curves, steps=args.steps)
    print(f"\n{time.process_time():.0f} s CPU; plot: {args.plot}")


class Cells:
    """Trainings by method, step size and seed; kept on disk."""

    def __init__(self, path: Path, steps: int) -> None:
        self._path, self._steps = path, steps
        self._kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, method: str, lr: float, seed: int) -> list[SimRound]:
        """One training, from the file or made now."""
        name = f"{method} {lr:g} seed {seed} steps {self._steps}"
        if name not in self._kept:
            self._kept[name] = [asdict(one) for one in train(method, lr, seed, self._steps)]
            self._path.write_text(json.dumps(self._kept))
        return [SimRound(**one) for one in self._kept[name]]


def train(method: str, lr: float, seed: int, steps: int) -> list[SimRound]:
    """One training at one step size."""
    spec = SimSpec.model_validate(_file(method, lr, seed, steps))
    manifest, tokens = collect_tokens(spec.order())
    run = sim_run_spec(spec, data_spec(spec.order(), manifest))
    if method == "adamw":
        return adamw(run, tokens, lr, spec.sim.validate_every, spec.sim.validation_sequences)
    return simulate(spec, run, tokens, lambda _: None)


def _file(method: str, lr: float, seed: int, steps: int) -> dict[str, Any]:
    comm = VARIANTS.get(method, {"method": "demo" if method == "adamw" else method})
    is_gradient = comm["method"] == "demo"
    local = 1 if is_gradient else LOCAL_STEPS
    if method == "streaming-diloco":
        local //= 2  # a fragment each half of H
    rate_key = "lr" if is_gradient else "inner_lr"
    train: dict[str, Any] = {"sequences": SEQUENCES, rate_key: lr}
    if is_gradient:
        train["warmup"] = WARMUP
    else:
        train |= {"steps": local, "inner_warmup": WARMUP // local}
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


def adamw(run: RunSpec, tokens: Tokens, lr: float, every: int, held_sequences: int) -> list[SimRound]:
    """AdamW on the mean gradient of all nodes: betas 0.9 and 0.95, weight decay 0.1, clipped to 1."""
    layout = layout_of(run.model)
    held_out = validation_tokens(tokens, run, held_sequences)
    theta = torch.from_numpy(initial_parameters(run.seed, layout.names, layout.shapes)).requires_grad_(True)
    optimiser = torch.optim.AdamW([theta], lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
    curve = ScheduleSpec(
        curve=Curve.COSINE, peak_nano=int(lr * 1e9), floor_ppm=100_000, warmup_rounds=WARMUP, decay_rounds=0
    )
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
