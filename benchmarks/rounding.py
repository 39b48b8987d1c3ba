"""How far honest classes are apart, and how far a rounding leads: a table of docs/results/tolerance.md.

    python -m benchmarks.rounding [--layers 1 4] [--seed 1]

Per model, precision and kind of parameters, over all blocks, in units of where conviction begins (five times
the policy's first limit): the distance of this machine's gradient from the reference class's, as a share of
what plain limits and widened ones convict from. Above 1 an honest machine would be convicted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from assay.protocol.params import ComputeSpec, ModelSpec, Precision
from assay.redteam.nodes.test_bed import SMALL, Floats, text
from assay.testing.learned import learned_by_heart
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of, to_blocks
from assay.training.model.loss import loss_and_gradient, use_one_thread
from assay.training.model.presets import llama_spec
from assay.training.reference.gradient import reference_loss_and_gradient
from assay.training.reference.rounding import jittered_gradient
from assay.verifier.audit.limits import POLICIES
from assay.verifier.audit.tolerance import BAND, SAMPLES, floor_of, widening
from benchmarks.machine import machine

MODELS = {"gpt": SMALL, "llama": llama_spec(layers=1, width=64, heads=4, kv_heads=2, hidden=96, context=16)}
LOSSES = (1.5, 0.1, 1e-2, 1e-3, 1e-4)
TIMES = (3, 10, 30)
SATURATED = (10, 100, 1000)  # queries and keys alone
SEQUENCES = 4


def main() -> None:
    """Print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", type=int, default=(1, 4))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}")
    columns = "model", "precision", "parameters", "loss", "plain, median", "max", "widened, median", "max"
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for name, small in MODELS.items():
        for layers in args.layers:
            model = replace(small, layers=layers)
            tokens = _batch(model, args.seed)
            for kind, theta_P in _kinds(model, tokens, args.seed):
                for dtype in Precision:
                    row = (
                        name,
                        f"{layers} layers",
                        dtype.name.lower(),
                        kind,
                        *_row(model, theta_P, tokens, dtype),
                    )
                    print(f"| {row[0]}, {' | '.join(row[1:])} |", flush=True)


def _batch(model: ModelSpec, seed: int) -> np.ndarray:
    tokens = text(seed).astype(np.int64)
    starts = np.random.default_rng(seed).integers(0, len(tokens) - model.context - 1, SEQUENCES)
    return np.stack([tokens[at : at + model.context + 1] for at in starts])


def _kinds(model: ModelSpec, tokens: np.ndarray, seed: int) -> Iterator[tuple[str, Floats]]:
    layout = layout_of(model)
    start_P = initial_parameters(seed, layout.names, layout.shapes)
    yield "news", start_P
    for loss in LOSSES:
        yield f"known to {loss:g}", learned_by_heart(model, start_P, tokens, loss_at_most=loss)
    for times in TIMES:
        yield f"{times} times as large", (start_P * np.float32(times)).astype(np.float32)
    for times in SATURATED:
        theta_P = start_P.copy()
        for name, (at, shape) in layout.offsets().items():
            part = theta_P[at : at + int(np.prod(shape))].reshape(shape)
            if name.endswith(("attention.q", "attention.k")):
                part *= np.float32(times)
            elif name.endswith("attention.qkv"):
                part[: 2 * model.width] *= np.float32(times)
        yield f"queries and keys {times} times", theta_P


def _row(model: ModelSpec, theta_P: Floats, tokens: np.ndarray, dtype: Precision) -> tuple[str, ...]:
    layout, compute = layout_of(model), ComputeSpec(dtype=dtype, micro_sequences=0)
    _, own_P = loss_and_gradient(model, layout, theta_P, tokens, compute=compute)
    loss, slope_P = reference_loss_and_gradient(model, layout, theta_P, tokens, compute=compute)
    samples = [
        to_blocks(layout, jittered_gradient(model, layout, theta_P, tokens, compute=compute, seed=seed))
        for seed in (b"%d" % number for number in range(SAMPLES))
    ]
    own_NC, slope_NC = (to_blocks(layout, one).reshape(layout.blocks, -1) for one in (own_P, slope_P))
    size_N = np.maximum(np.linalg.norm(slope_NC.astype(np.float64), axis=1), floor_of(slope_NC))
    apart_N = np.linalg.norm(own_NC.astype(np.float64) - slope_NC, axis=1) / size_N
    plain_N = apart_N / (BAND * POLICIES[dtype].t1 * 1e-9)
    wide = [widening(slope_NC, one.reshape(slope_NC.shape), dtype) for one in samples]
    widened_N = plain_N / np.maximum.reduce([*wide, np.ones(layout.blocks)])
    shown = (f"{found:.2g}" for one in (plain_N, widened_N) for found in (np.median(one), one.max()))
    return (f"{loss:.2g}", *shown)


if __name__ == "__main__":
    main()
