"""Muon's step, CPU time beside the gradient's, one core.

    python -m benchmarks.muon_step [--repeats 3] [--tokens 1024]

Newton-Schulz of all matrices of a model, by the product that every machine computes alike and by torch's, in
turns with the gradient in the node's own class (torch) and in the reference class. An audit in either class
adds the first to its gradient.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch

from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.loss import FLOAT32_WHOLE, loss_and_gradient, use_one_thread
from assay.training.model.presets import PRESETS
from assay.training.optimiser.matrices import Floats, matrices
from assay.training.optimiser.muon import orthogonalised
from assay.training.reference.gradient import reference_loss_and_gradient
from benchmarks.machine import machine
from benchmarks.timing import cpu_ms

MODELS = ("gpt-1m", "gpt-15m")


def main() -> None:
    """Time all four on the same matrices and batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=PRESETS)
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}")
    print("| model | tokens | Newton-Schulz, ms | by torch | gradient by torch | in the reference class |")
    print("|---|---|---|---|---|---|")
    for name in args.models:
        model = PRESETS[name]
        layout = layout_of(model)
        theta_P = initial_parameters(0, layout.names, layout.shapes)
        momentum_P = np.random.default_rng(0).standard_normal(layout.parameters).astype(np.float32)
        parts = [matrix.of(momentum_P) for matrix in matrices(layout)]
        shape = max(args.tokens // model.context, 1), model.context + 1
        tokens = np.random.default_rng(1).integers(0, model.vocabulary, shape)
        given = model, layout, theta_P, tokens
        ways: list[Callable[[], object]] = [
            lambda parts=parts: [orthogonalised(part) for part in parts],
            lambda parts=parts: [by_torch(part) for part in parts],
            lambda given=given: loss_and_gradient(*given, compute=FLOAT32_WHOLE),
            lambda given=given: reference_loss_and_gradient(*given, compute=FLOAT32_WHOLE),
        ]
        spent = [[cpu_ms(way) for way in ways] for _ in range(args.repeats + 1)][1:]
        print(
            f"| {name} | {tokens.size - len(tokens)} | "
            + " | ".join(f"{ms:,.0f}" for ms in np.median(spent, axis=0))
            + " |"
        )


def by_torch(matrix_RC: Floats) -> torch.Tensor:
    """The same polynomial with torch's products."""
    x = torch.from_numpy(matrix_RC)
    x = x.mT if x.shape[0] > x.shape[1] else x
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


if __name__ == "__main__":
    main()
