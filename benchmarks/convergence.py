"""Convergence: the methods at equal tokens, and what a node sends and receives for them.

    python -m benchmarks.convergence [--texts kjv stdlib] [--steps 1000] [--seeds 1] [--cells FILE]
    python -m benchmarks.convergence --cached   (the tables of docs/results/convergence.md, training nothing)

One model, the same batches for all. `adamw` and `muon` are data-parallel: the mean gradient of all nodes, 32
bits a parameter both ways. The others are methods of `training/methods`, in the product's own code. Numbers
are chosen on seed 0 of the first text, in trainings of `--tune-steps`; the table is of `--steps`, long after
the plateau of byte pairs, where methods do not differ. A method with H local steps gets steps / H rounds.
Every finished training is a row of the file of `--cells` and is not made again, so that the benchmark can be
stopped; `--cached` makes none.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.orders.data.tokenise import collect_tokens
from assay.orders.spec import data_spec
from assay.protocol.params import RunSpec
from assay.protocol.update_rule import PPM, LocalSpec
from assay.simulation.plot import plot_rounds
from assay.simulation.round import SimRound
from assay.simulation.spec import SimFile, sim_of, sim_run_spec
from assay.simulation.train import simulate
from assay.training.data.batches import batch_positions, batch_tokens, validation_tokens
from assay.training.data.shards import DataManifest
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.methods.presets import METHODS
from assay.training.model.loss import loss_and_gradient, mean_loss, use_one_thread
from assay.training.optimiser.inner import fresh, inner_step
from assay.training.optimiser.schedule import rate
from benchmarks.machine import machine
from benchmarks.texts import text_table

NODES, SEQUENCES, CONTEXT, HELD_OUT = 4, 4, 128, 128
MODEL = {"layers": 4, "width": 128, "heads": 4, "context": CONTEXT}
DENSE = {"adamw": "diloco", "muon": "muloco"}  # by the method whose inner optimiser it is


@dataclass(frozen=True, slots=True)
class Tuning:
    """Numbers that a training is tried with. lr: of inner steps, or DeMo's. warmup: steps.

    local: inner steps a round. outer, momentum: of the outer step. beta: the second of Adam, or DeMo's.
    fresh: moments begin anew in every round, so that a round starts from public parameters alone.
    """

    lr: float
    local: int = 1
    outer: float = 1.0
    momentum: float = 0.0
    warmup: int = 40
    beta: float = 0.99
    fresh: bool = False

    @property
    def name(self) -> str:
        """What differs from a single step at the defaults."""
        plain = Tuning(self.lr)
        changed = [f"{one.name} {getattr(self, one.name):g}" for one in fields(self)
                   if one.name != "lr" and getattr(self, one.name) != getattr(plain, one.name)]  # fmt: skip
        return ", ".join([f"{self.lr:g}", *changed])


def _rates(like: Tuning, *rates: float) -> tuple[Tuning, ...]:
    return tuple(replace(like, lr=lr) for lr in rates)


_DILOCO = Tuning(0, 10, 0.7, 0.6)
GRIDS: Mapping[str, tuple[Tuning, ...]] = {
    "muon": (*_rates(Tuning(0), 2e-2, 1.4e-2, 3e-2), Tuning(2e-2, warmup=300)),
    "adamw": (*_rates(Tuning(0, warmup=70), 3e-3, 2e-3, 5e-3, 8e-3), Tuning(8e-3, warmup=300)),
    "muloco": _rates(Tuning(0, 5), 2e-2, 3e-2),
    "muloco, long rounds": _rates(Tuning(0, 50), 2e-2),
    "demo": (
        *_rates(Tuning(0, warmup=70, beta=0.98), 2e-3, 4e-3),
        *(Tuning(4e-3, warmup=warmup, beta=0.98) for warmup in (150, 300, 450)),
        *_rates(Tuning(0, warmup=600, beta=0.98), 4e-3, 6e-3),
    ),
    "diloco": _rates(_DILOCO, 1e-3, 2e-3, 4e-3, 8e-3),
    **{f"muloco, {steps} steps": _rates(Tuning(0, steps), 2e-2) for steps in (15, 30)},
    "muloco, 5 steps, fresh": _rates(Tuning(0, 5, fresh=True), 2e-2),
    "muloco, 15 steps, fresh": _rates(Tuning(0, 15, fresh=True), 2e-2, 4e-2, 1e-2),
    "muloco, 30 steps, fresh": _rates(Tuning(0, 30, fresh=True), 2e-2),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One finished training. up, down: kB a node sent and received for each step. curve: step and loss."""

    text: str
    method: str
    tuning: str
    seed: int
    steps: int
    loss: float
    up: float
    down: float
    cpu_s: int
    curve: str

    @property
    def rounds(self) -> list[SimRound]:
        """Every step of the training, for a plot."""
        curve = {
            int(step): float(loss) for step, _, loss in (one.partition(":") for one in self.curve.split())
        }
        sent = self.up * 1e3
        return [SimRound(step, 0.0, curve.get(step + 1), sent, 0, 0) for step in range(self.steps)]


def main() -> None:
    """Train what is missing, print the tables, draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", nargs="+", choices=("kjv", "stdlib"), default=["kjv", "stdlib"])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tune-steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    parser.add_argument("--cells", type=Path, default=Path("benchmarks/convergence.csv"))
    parser.add_argument("--cached", action="store_true")
    parser.add_argument("--plot", type=Path, default=Path("runs/convergence.png"))
    args = parser.parse_args()
    use_one_thread()
    cells = Cells(args.cells, args.cached)
    print(f"machine: {machine()}")
    print(
        f"{NODES} nodes x {SEQUENCES} sequences x {CONTEXT} bytes x {args.steps} steps, {args.seeds} seed(s)"
    )
    best, curves = {}, {}
    for method in args.methods:
        tried = {one: cells.of(args.texts[0], method, one, 0, args.tune_steps) for one in GRIDS[method]}
        losses = {one: cell.loss for one, cell in tried.items() if cell is not None}
        best[method] = min(losses, key=losses.__getitem__) if losses else GRIDS[method][0]
        print(
            f"- {method}: " + "; ".join(f"{one.name}: {loss:.3f}" for one, loss in losses.items()), flush=True
        )
    for text in args.texts:
        print(f"\n{text}\n\n| method | lr | loss | above the first | kB up | kB down | times fewer bytes |")
        print("|---|---|---|---|---|---|---|")
        bar = 0.0
        for method in args.methods:
            runs = [cells.of(text, method, best[method], seed, args.steps) for seed in range(args.seeds)]
            made = [run for run in runs if run is not None]
            if not made:
                continue
            one, loss = made[0], float(np.mean([run.loss for run in made]))
            bar, dense = bar or loss, 8 * layout_parameters() / 1e3
            curves[f"{method}, {text}"] = one.rounds
            sent = f"{one.up:,.1f} | {one.down:,.1f} | {dense / (one.up + one.down):,.0f}"
            print(f"| {method} | {one.tuning} | {loss:.3f} | {loss - bar:+.3f} | {sent} |", flush=True)
    args.plot.parent.mkdir(parents=True, exist_ok=True)
    plot_rounds(args.plot, curves, steps=args.steps)


class Cells:
    """Trainings by text, method, numbers, seed and steps; kept in a CSV file, one row each."""

    def __init__(self, path: Path, cached: bool) -> None:
        self._path, self._cached, self._kept = path, cached, {}
        if path.exists():
            with open(path, newline="") as file:
                for row in csv.DictReader(file):
                    kinds = {one.name: one.type for one in fields(Cell)}
                    cast = {"int": int, "float": float, "str": str}
                    cell = Cell(**{name: cast[str(kinds[name])](value) for name, value in row.items()})
                    self._kept[cell.text, cell.method, cell.tuning, cell.seed, cell.steps] = cell

    def of(self, text: str, method: str, tuning: Tuning, seed: int, steps: int) -> Cell | None:
        """One training, from the file or made now; None if it is not there and none is to be made."""
        key = text, method, tuning.name, seed, steps
        if key not in self._kept and not self._cached:
            began = time.process_time()
            rounds = train(text, method, tuning, seed, steps)
            curve = [
                f"{(r.round + 1) * tuning.local}:{r.validation:.4f}"
                for r in rounds
                if r.validation is not None
            ]
            up, down = (
                sum(getattr(r, f"{way}_bytes") for r in rounds) / steps / 1e3
                for way in ("update", "aggregate")
            )
            loss = rounds[-1].validation
            assert loss is not None
            spent = int(time.process_time() - began)
            self._kept[key] = Cell(*key, round(loss, 4), round(up, 2), round(down, 2), spent, " ".join(curve))
            with open(self._path, "w", newline="") as file:
                writer = csv.DictWriter(file, [one.name for one in fields(Cell)], lineterminator="\n")
                writer.writeheader()
                writer.writerows(asdict(cell) for cell in self._kept.values())
        return self._kept.get(key)


def layout_parameters() -> int:
    """Parameters of the benchmark's model."""
    return layout_of(sim_of(_file("stdlib", "demo", Tuning(1), 0, 10), Path()).order.sizes).parameters


@lru_cache(maxsize=2)
def _tokens(text: str) -> tuple[DataManifest, NDArray[Any]]:
    return collect_tokens(sim_of(_file(text, "demo", Tuning(1), 0, 10), Path()).order)


def train(text: str, method: str, tuning: Tuning, seed: int, steps: int) -> list[SimRound]:
    """One training with one tuning."""
    spec = sim_of(_file(text, method, tuning, seed, steps), Path())
    manifest, tokens = _tokens(text)
    run = sim_run_spec(spec, data_spec(spec.order, manifest))
    if method in DENSE:
        return list(dense(run, METHODS[DENSE[method]].local, tuning, tokens, spec.sim.validate_every))
    return simulate(spec, run, tokens, lambda _: None)


def _file(text: str, method: str, tuning: Tuning, seed: int, steps: int) -> SimFile:
    name = DENSE.get(method, method).partition(",")[0]
    comm: dict[str, Any] = {"method": name}
    train: dict[str, Any] = {"sequences": SEQUENCES}
    if name == "demo":
        train |= {"lr": tuning.lr, "warmup": tuning.warmup, "lr_floor": 0.1}
        comm["beta"] = tuning.beta
    else:
        warmup = tuning.warmup // tuning.local
        train |= {"steps": tuning.local, "inner_lr": tuning.lr, "inner_warmup": warmup, "lr": tuning.outer}
        comm |= {"momentum": tuning.momentum, **({"outer": "nesterov"} if tuning.momentum else {})}
        if tuning.fresh:
            train |= {"keep_moments": False, "segment": tuning.local}
    rounds = steps // tuning.local
    # Nobody lies, so reputation would leave nobody out.
    sim = {
        "nodes": NODES, "rounds": rounds, "seed": seed, "validate_every": max(1, rounds // 10),
        "validation_sequences": HELD_OUT, "rule": "mean" if name == "demo" else "clipping+mean",
    }  # fmt: skip
    data = [text_table(text, Path("runs/texts"))]
    return SimFile.model_validate({"sim": sim, "model": MODEL, "data": data, "train": train, "comm": comm})


def dense(
    run: RunSpec, local: LocalSpec, tuning: Tuning, tokens: NDArray[Any], every: int
) -> Iterator[SimRound]:
    """An optimiser on the mean gradient of all nodes, clipped to 1, by the product's inner step."""
    layout = layout_of(run.model)
    local = replace(local, beta2_micro=int(tuning.beta * PPM))
    held_out = validation_tokens(tokens, run, HELD_OUT)
    state = fresh(local, initial_parameters(run.seed, layout.names, layout.shapes))
    for number in range(run.rounds):
        parts = [
            batch_tokens(
                tokens, batch_positions(run, member.peer, number, run.tokens_per_step), run.model.context
            )
            for member in run.nodes
        ]
        batch = np.concatenate(parts)
        loss, slope_P = loss_and_gradient(run.model, layout, state.theta_P, batch, compute=run.compute)
        lr = rate(run.rule.local.schedule, run.rounds, number)
        state = inner_step(local, layout, lr, state, state.theta_P, slope_P)
        is_due = (number + 1) % every == 0 or number + 1 == run.rounds
        held = mean_loss(run.model, layout, state.theta_P, held_out) if is_due else None
        size = 4 * layout.parameters
        yield SimRound(number, loss, held, float(size), size, 0)


if __name__ == "__main__":
    main()
