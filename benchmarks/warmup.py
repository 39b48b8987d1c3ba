"""Warm-up: how long a DeMo run of so many rounds should raise its rate, by the held-out loss it ends with.

    python -m benchmarks.warmup --rounds 70 --warmups 20 30 40 50 [--seeds 4] [--lr 0.002] [--width 128]

The data and, but for its size, the model of benchmarks/robustness.toml; four nodes that take four sequences
each; all else is what an order gets that does not name it. A seed draws the parameters and the batches. Nats
per byte.
"""

from __future__ import annotations

import argparse

from assay.orders.data.tokenise import collect_tokens
from assay.orders.spec import data_spec
from assay.simulation.spec import SimFile, load_sim, sim_of, sim_run_spec
from assay.simulation.train import simulate
from assay.training.model.loss import use_one_thread
from benchmarks.machine import machine
from benchmarks.robustness import SPEC

NODES, SEQUENCES = 4, 4


def main() -> None:
    """Train each, and print a line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=70)
    parser.add_argument("--warmups", type=int, nargs="+", default=[20, 30, 40, 50])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--lr", type=float, help="the peak; an order's default if left out")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}\n\n| rounds | seed | {' | '.join(map(str, args.warmups))} |")
    print("|" + "---|" * (len(args.warmups) + 2))
    for seed in range(args.seeds):
        ends = [
            f"{loss_of(args.rounds, warmup, seed, args.lr, args.layers, args.width):.3f}"
            for warmup in args.warmups
        ]
        print(f"| {args.rounds} | {seed} | {' | '.join(ends)} |", flush=True)


def loss_of(rounds: int, warmup: int, seed: int, lr: float | None, layers: int, width: int) -> float:
    """The held-out loss at the end of one training."""
    file = load_sim(SPEC)
    tables = SimFile.model_validate(
        {
            "sim": {
                "nodes": NODES, "rounds": rounds, "seed": seed, "validate_every": rounds,
                "validation_sequences": 128,
            },
            "model": {**file.order.model.model_dump(), "layers": layers, "width": width},
            "data": [one.model_dump() for one in file.order.data],
            "train": {"sequences": SEQUENCES, "warmup": warmup, "lr": lr},
        }
    )  # fmt: skip
    spec = sim_of(tables, SPEC.parent)
    manifest, tokens = collect_tokens(spec.order)
    done = simulate(spec, sim_run_spec(spec, data_spec(spec.order, manifest)), tokens, lambda _: None)
    loss = done[-1].validation
    assert loss is not None
    return loss


if __name__ == "__main__":
    main()
