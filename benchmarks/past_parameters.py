"""Past parameters: memory of a process that keeps them for audits, and the time of a replay.

    python -m benchmarks.past_parameters [--model gpt-125m] [--rounds 15]

DeMo with its defaults; every round applies one node's random message. A process of its own for each figure:
a verifier's with all recent rounds in memory, and with as many as `RECENT_BYTES` hold, and a buyer's, which
needs no round of the past.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.protocol.types import PeerId
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule
from assay.training.codec.wire import Update
from assay.training.layout import layout_of
from assay.training.model.presets import PRESETS
from assay.training.optimiser.aggregate import encode_round
from assay.training.optimiser.public_state import RECENT_BYTES, PublicState, kept_rounds
from assay.verifier.aggregation.mean import mean_over_senders
from benchmarks.machine import machine


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt-125m", choices=PRESETS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--room", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--buyer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.room is not None:
        print(_measure(args.model, args.rounds, args.room, is_buyer=args.buyer))
        return
    print(f"machine: {machine()}")
    for name, room_bytes, *more in (
        ("verifier, all in memory", 1 << 50), ("verifier", RECENT_BYTES), ("buyer", RECENT_BYTES, "--buyer"),
    ):  # fmt: skip
        words = ["--model", args.model, "--rounds", str(args.rounds), "--room", str(room_bytes), *more]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.past_parameters", *words],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        print(f"{args.model}, {name}: {done.stdout.strip()}")


def _measure(model: str, rounds: int, room_bytes: int, *, is_buyer: bool) -> str:
    spec = replace(a_spec(rule=a_rule("demo"), rounds=10_000), model=PRESETS[model])
    layout, k = layout_of(spec.model), spec.rule.compress.k
    rng, blocks = np.random.default_rng(0), np.arange(layout.blocks)
    index = np.sort(rng.permuted(np.tile(np.arange(128), (layout.blocks, 1)), axis=1)[:, :k], axis=1)
    with tempfile.TemporaryDirectory() as folder:
        keep, save_every = 0 if is_buyer else kept_rounds(spec), kept_rounds(spec)
        parameters = PublicState(spec, Path(folder), keep, save_every=save_every, room_bytes=room_bytes)
        before_s = time.process_time()
        for round_id in range(rounds):
            signs = np.where(rng.random(index.shape) < 0.5, -1, 1).astype(np.int8)
            mean = mean_over_senders({PeerId(bytes(32)): Update(blocks, index, signs)}, layout.blocks)
            parameters.apply(round_id, encode_round(spec.rule, mean, layout.blocks))
        round_s = (time.process_time() - before_s) / rounds
        before_s = time.process_time()
        if not is_buyer:
            parameters.at(rounds - 1)
            parameters.at(max(rounds - keep, 0))
        replay_s = time.process_time() - before_s
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    copy = 4 * layout.parameters
    return (
        f"{most / 1e9:.2f} GB at most, {most / copy:.1f} copies of the parameters; a round {round_s:.2f} s,"
        f" the last and the oldest past parameters {replay_s:.2f} s, of CPU time"
    )


if __name__ == "__main__":
    main()
