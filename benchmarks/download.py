"""What a node downloads per round: the union of all messages against the signs of the step.

    python -m benchmarks.download [--nodes 8 32 128] [--rounds 12]
    python -m benchmarks.download --methods [--nodes 8]

Real messages: the model of benchmarks/robustness.toml trained for a few rounds with this many nodes and no
liars; the last half of the rounds is averaged. "uniform" is what independent uniform indices
would give. Bits are per parameter; a float32 gradient is 32.

`--methods` is another table: what an order of each method uploads and downloads as it is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.orders.data.tokenise import collect_tokens
from assay.orders.spec import data_spec
from assay.orders.toml import read_toml
from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.simulation.spec import SimFile, load_sim, sim_of, sim_run_spec
from assay.simulation.train import simulate
from assay.training.codec.contribution import decode_contribution
from assay.training.codec.wire import Update
from assay.training.data.batches import batch_positions, batch_tokens
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.methods.presets import METHODS
from assay.training.model.loss import loss_and_gradient, use_one_thread
from assay.training.optimiser.aggregate import encode_round, step_signs
from assay.training.optimiser.inner import Floats
from assay.training.optimiser.node_state import start_private
from assay.training.optimiser.outer import apply, start_public
from assay.training.optimiser.step import encode, local
from assay.verifier.aggregation.mean import mean_over_senders
from benchmarks.machine import machine

SPEC = Path(__file__).parent / "robustness.toml"


def main() -> None:
    """Train with each number of nodes and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--methods", action="store_true")
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}")
    if args.methods:
        _print_methods(args.nodes[0], args.rounds)
        return
    print("| n | sent by anybody, uniform | sent by anybody | union, bits | signs, bits | without sign |")
    print("|---" * 6 + "|")
    for nodes in args.nodes:
        print(_line(nodes, args.rounds), flush=True)


def _print_methods(nodes: int, rounds: int) -> None:
    print(f"{nodes} nodes\n\n| `[comm]` | written as | up | down | down / up |\n{'|---' * 5}|")
    methods: list[dict[str, object]] = [{"method": name} for name in METHODS]
    methods += [{"rank": 1}, {"rank": 2}, {"rank": 4}, {"k": 256}]
    for comm in methods:
        raw = read_toml(SPEC)
        train = {"sequences": 1}  # enough for messages of real sizes
        sim = {"nodes": nodes, "rounds": rounds, "validate_every": rounds, "validation_sequences": 1}
        spec = sim_of(SimFile.model_validate({**raw, "sim": sim, "train": train, "comm": comm}), SPEC.parent)
        manifest, tokens = collect_tokens(spec.order)
        run = sim_run_spec(spec, data_spec(spec.order, manifest))
        last = simulate(spec, run, tokens, lambda _: None)[rounds // 2 :]
        bits = 8 / layout_of(run.model).parameters
        up, down = (
            bits * float(np.mean([getattr(one, f"{way}_bytes") for one in last]))
            for way in ("update", "aggregate")
        )
        name = ", ".join(f"{key} = {value}" for key, value in comm.items())
        wire = run.rule.aggregation.wire.name.lower()
        print(f"| {name} | {wire} | {up:.2f} | {down:.2f} | {down / up:.1f} |", flush=True)


def _line(nodes: int, rounds: int) -> str:
    spec = load_sim(SPEC, nodes=nodes, rounds=rounds)
    manifest, tokens = collect_tokens(spec.order)
    run = sim_run_spec(spec, data_spec(spec.order, manifest))
    layout, k = layout_of(run.model), run.rule.compress.k
    public = start_public(run, initial_parameters(run.seed, layout.names, layout.shapes))
    private = [start_private(layout) for _ in run.nodes]
    found = []

    def gradient(theta_P: Floats, part: NDArray[np.int64]) -> tuple[float, Floats]:
        return loss_and_gradient(run.model, layout, theta_P, part, compute=run.compute)

    for number in range(rounds):
        sent: Mapping[PeerId, Update] = {}
        for node, member in enumerate(run.nodes):
            batch = batch_tokens(
                tokens, batch_positions(run, member.peer, number, run.tokens_per_step), run.model.context
            )
            work = local(run, layout, public.theta_P, private[node], batch, number, gradient)
            private[node], body = encode(run, layout, number, private[node], work)
            sent = {**sent, member.peer: decode_contribution(run, layout, number, body)}
        aggregate = mean_over_senders(sent, layout.blocks)
        body = encode_round(run.rule, aggregate, layout.blocks)
        public = apply(run, layout, public, number, body)
        live = int(np.count_nonzero(aggregate.count_N)) * BLOCK_SIZE
        zeros = live - int(np.count_nonzero(step_signs(run.rule, aggregate, layout.blocks)))
        found.append((len(aggregate.value_T) / live, 8 * len(body) / live, zeros / live))
    union, bits, zeros = np.mean(found[rounds // 2 :], axis=0)
    uniform = 1 - (1 - k / BLOCK_SIZE) ** nodes
    # One bit for a sign, and a sparse list of the positions that have none: about 13 bits for each.
    return f"| {nodes} | {uniform:.1%} | {union:.1%} | {bits:.2f} | {1 + 13 * zeros:.2f} | {zeros:.4%} |"


if __name__ == "__main__":
    main()
