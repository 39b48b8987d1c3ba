"""Training step: where the time of a node's round goes, from tokens to the next parameters.

    python -m benchmarks.training_step [--models gpt-125m llama-1b] [--tokens 8192] [--threads 16]

Wall time, since a step uses a device and all cores: the median of the repeats after one that warms up.
Random tokens and starting parameters; the node is alone, so the aggregate is its own message.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from assay.protocol.encoding import merkle
from assay.protocol.params import BLOCK_SIZE, ComputeSpec, Precision
from assay.protocol.types import Digest, PeerId
from assay.training.codec.wire import encode_update
from assay.training.exact import apply_signs, initial_parameters, is_finite
from assay.training.layout import from_blocks, layout_of
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.loss import check_device, loss_and_gradient, use_threads
from assay.training.model.presets import PRESETS
from assay.training.optimiser.aggregate import step_signs
from assay.training.optimiser.carry import carried_shares, mean_block
from assay.training.optimiser.momentum_root import momentum_leaves
from assay.training.transform.blocked_dct import row_lengths
from assay.training.transform.compress import gradient_blocks, transition, work_sketch
from assay.verifier.aggregation.mean import mean_over_senders
from benchmarks.machine import machine

RUN = Digest(bytes(32))
T = TypeVar("T")


@dataclass
class Stages:
    """Seconds of every stage, by name."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def time(self, name: str, work: Callable[[], T]) -> T:
        """Do some work and keep its time."""
        since_s = time.perf_counter()
        done = work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.setdefault(name, []).append(time.perf_counter() - since_s)
        return done


def main() -> None:
    """Print the stages of a step of each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["gpt-125m", "llama-1b"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--micro", type=int, default=0, help="sequences per pass; 0 for all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    use_threads(args.threads)
    check_device(args.device)
    print(f"machine: {machine()}")
    if args.device == "cuda":
        print(f"device: {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    for name in args.models:
        stages = _stages(name, args)
        medians = {stage: statistics.median(found[1:]) for stage, found in stages.seconds.items()}
        whole = sum(medians.values())
        print(f"{name}, {args.tokens} tokens, {args.dtype}, {args.threads} threads: {whole * 1e3:.0f} ms")
        for stage, found in medians.items():
            print(f"  {stage:32} {found * 1e3:10.1f} ms {found / whole:6.1%}")


def _stages(name: str, args: argparse.Namespace) -> Stages:
    model = PRESETS[name]
    layout = layout_of(model)
    rule = method_rule("demo", Choices())
    compute = ComputeSpec(dtype=Precision[args.dtype.upper()], micro_sequences=args.micro)
    theta = initial_parameters(0, layout.names, layout.shapes)
    momentum = np.zeros((layout.blocks, BLOCK_SIZE), np.float32)
    sequences = max(args.tokens // model.context, 1)
    rng = np.random.default_rng(0)
    stages, lr = Stages(), np.float32(1e-3)
    x = np.zeros_like(momentum)
    for round_id in range(args.repeats + 1):
        tokens = rng.integers(0, model.vocabulary, (sequences, model.context + 1))
        _, slope = stages.time(
            "forward, backward, copies",
            lambda tokens=tokens, theta=theta: loss_and_gradient(
                model, layout, theta, tokens, compute=compute, device=args.device
            ),
        )
        x = stages.time(
            "clipping, equalising, DCT", lambda slope=slope, x=x: gradient_blocks(rule, layout, slope, lr, x)
        )
        stages.time("finite?", lambda x=x: is_finite(x))
        lengths = stages.time("lengths of blocks", lambda x=x: row_lengths(x))

        def carry(lengths=lengths, round_id=round_id) -> None:  # type: ignore[no-untyped-def]
            mean, every = mean_block(rule, lengths), np.arange(layout.blocks)
            shares = carried_shares(
                rule, 1000, 100 + round_id, 100 + round_id, every, momentum, lengths, mean
            )
            less = np.flatnonzero(shares != 1)
            momentum[less] *= shares[less, None]

        stages.time("bounds of the error", carry)
        moved = stages.time(
            "momentum, choice, feedback", lambda x=x: transition(rule.compress, momentum, x, momentum)
        )
        stages.time(
            "encoding",
            lambda moved=moved: encode_update(
                moved.sent, layout.blocks, rule.compress.k, rule.compress.values
            ),
        )
        stages.time("sketch", lambda x=x: work_sketch(RUN, x))
        stages.time("root of the private state", lambda: merkle.root(momentum_leaves(RUN, momentum)))

        def applied(moved=moved, theta=theta):  # type: ignore[no-untyped-def]
            found = mean_over_senders({PeerId(bytes(32)): moved.sent}, layout.blocks)
            return apply_signs(theta, from_blocks(layout, step_signs(rule, found, layout.blocks)), lr)

        theta = stages.time("apply", applied)
    return stages


if __name__ == "__main__":
    main()
