"""Held-out loss under attack, rule by rule: the tables of docs/results/robustness.md.

    python -m benchmarks.robustness [--out FILE] [--seeds 3] [--rounds 100] [--audited] [--show]

Each cell trains from the same start on the same batches; liars replace the last honest nodes.
Losses are nats per byte of the last validation. One cell is one line of the CSV file, written when it
is done; cells that the file holds are not trained again, so the work can be stopped and taken up.
Order: what says most first. --show prints the tables of what is there. --audited: attackers are honest until
a late round, and are audited by an order's default rates; who is found lying is gone.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from assay.orders.data.tokenise import collect_tokens
from assay.orders.method import order_rule
from assay.orders.sections import CommSection, RunSection, TrainSection
from assay.orders.spec import data_spec
from assay.simulation.attacks.catalogue import ATTACKS, FORESEEING
from assay.simulation.spec import load_sim, sim_run_spec
from assay.simulation.train import simulate
from assay.training.model.loss import use_one_thread
from benchmarks.machine import machine

SPEC = Path(__file__).parent / "robustness.toml"
DEFAULT = order_rule(RunSection(), TrainSection(), CommSection()).aggregation.name
PLAIN = "mean"
OTHERS = (PLAIN, "centered-clip", "trimmed-mean")
WORST = ("adaptive", "sign-flip", "evasive", "front-runner", *FORESEEING)  # for rules other than the default
AUDITED = (*FORESEEING, "adaptive", "front-runner", "single-block", "inner-product")
LIE_FROM = (30, 50, 85)
ATTACKED = tuple(name for name in ATTACKS if name not in ("none", "blow-up"))  # signs have no volume


@dataclass(frozen=True, slots=True)
class Cell:
    """One training. With attack "none" all nodes are honest, and the rule is set up for f all the same.

    lies_from: the attack's first round where audits find lies; -1: nobody audits, and it begins at once.
    """

    rule: str
    attack: str
    nodes: int
    f: int
    rounds: int
    seed: int
    lies_from: int = -1


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it. frozen: share of parameters that did not move, mean over rounds."""

    loss: float
    frozen: float
    aggregate_bytes: float
    cpu_s: float


def main() -> None:
    """Train the cells that are missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--out", type=Path, default=Path("runs/robustness.csv"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--audited", action="store_true")
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    nodes = load_sim(args.spec).sim.nodes
    if args.show:
        (show_audited if args.audited else show)(read(args.out), nodes, args.rounds, args.seeds)
        return
    use_one_thread()
    print(f"machine: {machine()}", flush=True)
    for cell in (audited_cells if args.audited else cells)(nodes, args.rounds, args.seeds):
        if cell in read(args.out):
            continue
        found = train(args.spec, cell)
        write(args.out, cell, found)
        print(
            f"{cell.rule} {cell.attack} n={cell.nodes} f={cell.f} seed={cell.seed}: {found.loss:.4f}",
            flush=True,
        )


def cells(nodes: int, rounds: int, seeds: int) -> Iterator[Cell]:
    """All cells, those that say most first."""
    for seed in range(seeds):
        for rule in (PLAIN, DEFAULT):
            yield Cell(rule, "none", nodes, 2, rounds, seed)
        for f in (3, 2):
            for attack in FORESEEING:
                yield Cell(DEFAULT, attack, nodes, f, rounds, seed)
    for seed in range(seeds):
        for f in (3, 2):
            for attack in ATTACKED:
                yield Cell(DEFAULT, attack, nodes, f, rounds, seed)
            yield Cell(PLAIN, "none", nodes - f, 0, rounds, seed)  # what the missing nodes cost by themselves
    for rule in OTHERS:
        for seed in range(seeds):
            for attack in WORST:
                yield Cell(rule, attack, nodes, 2, rounds, seed)


def audited_cells(nodes: int, rounds: int, seeds: int) -> Iterator[Cell]:
    """The cells of attackers whom audits find, and those that they are compared with."""
    for seed in range(seeds):
        yield Cell(PLAIN, "none", nodes, 2, rounds, seed)
        for f in (2, 3):
            yield Cell(PLAIN, "none", nodes - f, 0, rounds, seed)
            for attack in AUDITED:
                for first in LIE_FROM:
                    yield Cell(DEFAULT, attack, nodes, f, rounds, seed, first)


def train(file: Path, cell: Cell) -> Found:
    """One cell's training."""
    audits = {"audited": cell.lies_from >= 0, "lies_from": max(cell.lies_from, 0)}
    spec = load_sim(
        file, **{**asdict(cell), **audits}, liars=0 if cell.attack == "none" else cell.f,
        validate_every=cell.rounds, validation_sequences=128,
    )  # fmt: skip
    since_s = time.process_time()
    manifest, tokens = collect_tokens(spec.order)
    run = sim_run_spec(spec, data_spec(spec.order, manifest))
    done = simulate(spec, run, tokens, lambda _: None)
    loss = done[-1].validation
    assert loss is not None
    return Found(
        loss=loss,
        frozen=float(np.mean([one.frozen_ppm for one in done])) / 1e6,
        aggregate_bytes=float(np.mean([one.aggregate_bytes for one in done])),
        cpu_s=time.process_time() - since_s,
    )


def write(path: Path, cell: Cell, found: Found) -> None:
    """One more line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [*Cell.__slots__, *Found.__slots__]
    is_new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(names)
        writer.writerow([getattr(cell if name in Cell.__slots__ else found, name) for name in names])


def read(path: Path) -> dict[Cell, Found]:
    """All lines of a file; none if there is no file."""
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        lines = list(csv.DictReader(file))
    return {
        Cell(line["rule"], line["attack"], *(int(line[name]) for name in Cell.__slots__[2:])): Found(
            *(float(line[n]) for n in Found.__slots__)
        )
        for line in lines
    }


Text = Callable[..., str]  # of a cell without rounds and seed, over all seeds


def texts(found: dict[Cell, Found], nodes: int, rounds: int, seeds: int) -> Text:
    """Losses as mean and range over seeds, and what they lie above the unattacked mean of the same seeds."""

    def losses(rule: str, attack: str, count: int, f: int, lies_from: int = -1) -> dict[int, float]:
        keyed = {seed: Cell(rule, attack, count, f, rounds, seed, lies_from) for seed in range(seeds)}
        return {seed: found[cell].loss for seed, cell in keyed.items() if cell in found}

    clean = losses(PLAIN, "none", nodes, 2)

    def text(rule: str, attack: str, count: int, f: int, lies_from: int = -1) -> str:
        known = losses(rule, attack, count, f, lies_from)
        known = {seed: loss for seed, loss in known.items() if seed in clean}
        if not known:
            return "-"
        more = [loss - clean[seed] for seed, loss in known.items()]
        low, high = min(known.values()), max(known.values())
        return f"{np.mean(list(known.values())):.3f} ({low:.3f} to {high:.3f}), {np.mean(more):+.3f}"

    return text


def show_audited(found: dict[Cell, Found], nodes: int, rounds: int, seeds: int) -> None:
    """The table of attackers whom audits find."""
    text = texts(found, nodes, rounds, seeds)
    print(f"unattacked mean of {nodes}: {text(PLAIN, 'none', nodes, 2)}")
    print("\n| attack, from round | f = 2 | f = 3 |\n|---|---|---|")
    alone = (text(PLAIN, "none", nodes - f, 0) for f in (2, 3))
    print("| none: the honest nodes alone | " + " | ".join(alone) + " |")
    for attack in AUDITED:
        for first in LIE_FROM:
            losses = " | ".join(text(DEFAULT, attack, nodes, f, first) for f in (2, 3))
            print(f"| {attack}, {first} | {losses} |")


def show(found: dict[Cell, Found], nodes: int, rounds: int, seeds: int) -> None:
    """The tables of attackers whom nobody audits."""
    text = texts(found, nodes, rounds, seeds)
    print(f"unattacked mean of {nodes}: {text(PLAIN, 'none', nodes, 2)}; ", end="")
    print(f"the default rule without attack: {text(DEFAULT, 'none', nodes, 2)}")
    for fewer in (2, 3):
        print(f"{nodes - fewer} honest nodes alone: {text(PLAIN, 'none', nodes - fewer, 0)}")
    print("\n| attack | f = 2 | f = 3 |\n|---|---|---|")
    for attack in ATTACKED:
        print(f"| {attack} | " + " | ".join(text(DEFAULT, attack, nodes, f) for f in (2, 3)) + " |")
    print("\n| rule, f = 2 | " + " | ".join(WORST) + " |")
    print("|---" * (1 + len(WORST)) + "|")
    for rule in (DEFAULT, *OTHERS):
        print(f"| {rule} | " + " | ".join(text(rule, attack, nodes, 2) for attack in WORST) + " |")
    mine = [one for cell, one in found.items() if cell.rule == DEFAULT]
    if mine:
        frozen = [one.frozen for one in mine]
        print(f"\nparameters that did not move, {DEFAULT}: {np.mean(frozen):.4%}, at most {max(frozen):.4%}")
    print(f"{sum(one.cpu_s for one in found.values()) / 60:.0f} CPU minutes for {len(found)} trainings")


if __name__ == "__main__":
    main()
