"""Wire bits per coefficient on real momentum, against the information limit and reference accounting.

    python -m benchmarks.wire [--rounds 40] [--nodes 4]

Trains the quickstart's model (0.87M parameters, k = 32 of 4096) and encodes every update
of the last half of the rounds with the production codec. Limit: log2 of the number of index
sets, and one sign. Reference: int64 index and float32 value, as bloc97/DeMo sends them;
its bytes are made and counted here. CPU time of the codec is the best of three passes.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from training.demo import transformed_gradient, transition, update_of

from cli.order import load_order
from cli.orderdata import collect_tokens
from cli.orderspec import data_spec
from cli.simspec import SimSection, SimSpec, sim_run_spec
from protocol.params import BLOCK_SIZE
from training.data import batch_positions, batch_tokens
from training.exact import (
    apply_signs,
    initial_parameters,
    inverse_signs,
    learning_rate,
    scatter_values,
)
from training.layout import from_blocks, layout_of
from training.model import loss_and_gradient, use_one_thread
from training.wire import Update, decode_update, encode_update
from verifier.aggregation import mean_over_senders


def main() -> None:
    """Train, encode, count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--nodes", type=int, default=4)
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {_machine()}")
    block_count, k, updates = _updates(args.nodes, args.rounds)
    count = sum(update.value_BK.size for update in updates)
    encoded = [encode_update(update, block_count, k) for update in updates]
    ours = 8 * sum(map(len, encoded)) / count
    limit = math.log2(math.comb(BLOCK_SIZE, k)) / k + 1
    reference = 8 * sum(map(_reference_bytes, updates)) / count
    print(f"{len(updates)} updates of rounds {args.rounds // 2} to {args.rounds - 1}, {count:,} coefficients")
    print(f"Assay:             {ours:6.2f} bits per coefficient (to reach: 9.6)")
    print(f"information limit: {limit:6.2f} bits (uniform index sets); Assay takes {ours / limit:.3f} of it")
    print(f"int64 + float32:   {reference:6.2f} bits; {reference / ours:.1f} times Assay's")
    encode_s = min(_cpu_s(lambda: [encode_update(u, block_count, k) for u in updates]) for _ in range(3))
    decode_s = min(_cpu_s(lambda: [decode_update(e, block_count, k) for e in encoded]) for _ in range(3))
    speeds = f"encode {count / encode_s / 1e6:.1f}, decode {count / decode_s / 1e6:.1f}"
    print(f"codec: {speeds} M coefficients per CPU second")


def _updates(nodes: int, rounds: int) -> tuple[int, int, list[Update]]:
    """Block count, k, and the updates of the last half of a short training."""
    order = load_order(Path(__file__).parents[1] / "examples" / "quickstart.toml")
    spec = SimSpec(
        sim=SimSection(nodes=nodes, rounds=rounds), model=order.model, train=order.train, comm=order.comm
    )
    manifest, tokens = collect_tokens(spec.order())
    run = sim_run_spec(spec, data_spec(spec.order(), manifest))
    layout = layout_of(run.model)
    theta = initial_parameters(run.seed, layout.names, layout.shapes)
    momentum = {member.peer: np.zeros((layout.blocks, BLOCK_SIZE), np.float32) for member in run.nodes}
    kept: list[Update] = []
    for number in range(rounds):
        lr, sent = learning_rate(run.rule, run.rounds, number), {}
        for peer, before in momentum.items():
            batch = batch_tokens(tokens, batch_positions(run, peer, number), run.model.context)
            _, gradient = loss_and_gradient(run.model, layout, theta, batch, compute=run.compute)
            step = transition(run.rule, lr, before, transformed_gradient(run.rule, layout, gradient))
            momentum[peer], sent[peer] = step.after_BC, update_of(step)
        found = mean_over_senders(sent, layout.blocks)
        dense = scatter_values(layout.blocks, found.block_T, found.index_T, found.value_T)
        theta = apply_signs(theta, from_blocks(layout, inverse_signs(dense)), lr)
        if number >= rounds // 2:
            kept += sent.values()
    return layout.blocks, run.rule.k, kept


def _reference_bytes(update: Update) -> int:
    """What int64 indices and float32 values of the same coefficients take, without any framing."""
    return update.index_BK.astype(np.int64).nbytes + update.value_BK.astype(np.float32).nbytes


def _cpu_s(work: Callable[[], object]) -> float:
    since_s = time.process_time()
    work()
    return time.process_time() - since_s


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
