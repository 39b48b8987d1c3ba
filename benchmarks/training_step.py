"""Training step: where the time of a node's round goes, from tokens to the next parameters.

    python -m benchmarks.training_step [--models gpt-125m llama-1b] [--tokens 8192] [--threads 16]

Wall time, since a step uses a device and all cores: the median of the repeats after one that warms up.
Random tokens and starting parameters; the node is alone, so the aggregate is its own message. Beside each
transform of the host's is that of `training/transform/on_device.py` on the device, of the same gradient, with
the same bits: else the command ends.
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
from numpy.typing import NDArray

from assay.protocol.encoding import merkle
from assay.protocol.params import BLOCK_SIZE, ComputeSpec, Precision
from assay.protocol.types import Digest, PeerId
from assay.protocol.update_rule import RuleSpec
from assay.training.codec.wire import encode_update
from assay.training.exact import apply_signs, initial_parameters, is_finite
from assay.training.layout import Layout, from_blocks, layout_of
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.loss import check_device, gradient_on_device, use_threads
from assay.training.model.presets import PRESETS
from assay.training.optimiser.aggregate import step_signs
from assay.training.optimiser.carry import carried_shares, leave, mean_block, shares_by_length
from assay.training.optimiser.momentum_root import momentum_leaves
from assay.training.transform import on_device
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
    on_device: dict[str, list[float]] = field(default_factory=dict)

    def time(self, name: str, work: Callable[[], T], *, on_device: bool = False) -> T:
        """Do some work and keep its time."""
        found = self.on_device if on_device else self.seconds
        since_s = time.perf_counter()
        done = work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.setdefault(name, []).append(time.perf_counter() - since_s)
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
        medians, there = (
            {stage: statistics.median(found[1:]) for stage, found in one.items()}
            for one in (stages.seconds, stages.on_device)
        )
        whole = sum(medians.values())
        print(f"{name}, {args.tokens} tokens, {args.dtype}, {args.threads} threads: {whole * 1e3:.0f} ms")
        for stage, found in medians.items():
            beside = f"{there[stage] * 1e3:10.1f} ms by torch" if stage in there else ""
            print(f"  {stage:32} {found * 1e3:10.1f} ms {found / whole:6.1%} {beside}")


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
    error_there = torch.zeros(momentum.shape, device=args.device)
    for round_id in range(args.repeats + 1):
        tokens = rng.integers(0, model.vocabulary, (sequences, model.context + 1))
        _, slope_there = stages.time(
            "forward, backward",
            lambda tokens=tokens, theta=theta: gradient_on_device(
                model, layout, theta, tokens, compute=compute, device=args.device
            ),
        )
        slope = stages.time("gradient or error to the host", lambda slope=slope_there: slope.cpu().numpy())
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
            leave(momentum, shares)

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
        kept = _on_device(stages, rule, layout, slope_there, lr, error_there, 100 + round_id)
        if kept.tobytes() != momentum.tobytes():
            raise AssertionError("the device's transforms have other bits than the host's")
    return stages


def _on_device(
    stages: Stages,
    rule: RuleSpec,
    layout: Layout,
    slope_P: torch.Tensor,
    lr: np.float32,
    error_NC: torch.Tensor,
    round_id: int,
) -> NDArray[np.float32]:
    """The same step's transforms on the device; the error after it, which lies there, on the host."""

    def time(name: str, work: Callable[[], T]) -> T:
        return stages.time(name, work, on_device=True)

    x_NC = time("clipping, equalising, DCT", lambda: on_device.gradient_blocks(rule, layout, slope_P, lr))
    length_N = time("lengths of blocks", lambda: on_device.row_lengths(x_NC))

    def carry() -> None:
        every, before_N = np.arange(layout.blocks), on_device.row_lengths(error_NC)
        mean = mean_block(rule, length_N)
        share_N = shares_by_length(rule, 1000, round_id, round_id, every, before_N, length_N, mean)
        on_device.leave(error_NC, share_N)

    time("bounds of the error", carry)
    time("momentum, choice, feedback", lambda: on_device.transition(rule.compress, error_NC, x_NC))
    time("sketch", lambda: on_device.work_sketch(RUN, x_NC))
    return time("gradient or error to the host", lambda: error_NC.cpu().numpy())


if __name__ == "__main__":
    main()
