"""Held-out loss under attack, every rule against every attack: the table of docs/results/aggregation.md.

    python -m benchmarks.robustness [--spec examples/sim/clean.toml] [--liars 2] [--seeds 3] [--rounds 100]

Each cell trains from the same start on the same batches; liars replace the last honest
nodes. Losses are nats per byte of the last validation: mean over seeds, and the range. The
first column is without attack but with the rule set up to stand as many liars.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from cli.orderdata import collect_data
from cli.orderspec import data_spec
from cli.simspec import AttackName, RuleName, SimSpec, load_sim, sim_run_spec
from cli.simtrain import simulate
from training.data import read_tokens
from training.model import use_one_thread

RULES = ("mean", "centered-clip", "trimmed-mean", "decoded-trimmed-mean")
ATTACKS = ("none", "sign-flip", "inner-product", "split", "adaptive")


def main() -> None:
    """Train every cell and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, default=Path("examples/sim/clean.toml"))
    parser.add_argument("--liars", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rules", nargs="+", choices=get_args(RuleName), default=list(RULES))
    parser.add_argument("--attacks", nargs="+", choices=get_args(AttackName), default=list(ATTACKS))
    args = parser.parse_args()
    use_one_thread()
    base, since_s = load_sim(args.spec), time.process_time()
    print(f"machine: {_machine()}")
    print(
        f"{args.spec}: {base.sim.nodes} nodes, {args.liars} of them liars, {args.rounds} rounds, "
        f"seeds 0 to {args.seeds - 1}\n"
    )
    print("| rule | " + " | ".join(args.attacks) + " |")
    print("|---" * (1 + len(args.attacks)) + "|")
    for rule in args.rules:
        cells = []
        for attack in args.attacks:
            losses = [
                _loss(_changed(base, rule, attack, args.liars, args.rounds, seed))
                for seed in range(args.seeds)
            ]
            cells.append(f"{np.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})")
        print(f"| {rule} | " + " | ".join(cells) + " |", flush=True)
    print(f"\n{time.process_time() - since_s:.0f} s CPU")


def _changed(base: SimSpec, rule: str, attack: str, liars: int, rounds: int, seed: int) -> SimSpec:
    is_attacked = attack != "none"
    sim = {
        "rule": rule, "attack": attack, "liars": liars if is_attacked else 0, "f": liars, "rounds": rounds,
        "seed": seed, "validate_every": rounds, "validation_sequences": 128,
    }  # fmt: skip
    spec = base.model_copy(update={"sim": base.sim.model_copy(update=sim)})
    spec._folder = base._folder
    return spec


def _loss(spec: SimSpec) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch)
        run = sim_run_spec(spec, data_spec(spec.order(), collect_data(spec.order(), data)))
        last = simulate(spec, run, read_tokens(data, run.data), lambda _: None)[-1].validation
    assert last is not None
    return last


def _machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} CPUs, load {load:.1f}, torch {torch.__version__}, numpy {np.__version__}"
    )


if __name__ == "__main__":
    main()
