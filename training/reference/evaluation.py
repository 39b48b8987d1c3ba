"""Evaluation: the mean loss of a model on held-out sequences, with the same digits on every machine.

Room: training (pure). What a verifier reports of a milestone (docs/protocol.md section 6a).

Shape suffixes: P = parameters.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from assay.protocol.acceptance import mean_micro
from assay.protocol.params import ComputeSpec, ModelSpec, Precision
from assay.training.data.mask import target_count
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout
from assay.training.reference.gradient import check_batch, run
from assay.training.reference.operators import operators, sources

_WHOLE = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0)


def sequence_loss(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    frozen: Frozen = ALL_TRAINED,
) -> float:
    """The loss of one sequence in nats, summed over its targets that are not masked; 0 without any.

    Forward alone. Infinity if a result is not finite.

    Args:
        model, layout, theta_P, frozen: As of `reference_loss_and_gradient`.
        tokens: One sequence. Shape (1, context + 1), int64.

    Raises:
        ValueError: sizes, or a token, do not fit the model.
        Unavailable: this thread computes otherwise than IEEE 754 says.
    """
    check_batch(model, layout, theta_P, tokens, frozen)
    if not target_count(tokens):
        return 0.0
    program = operators(model, 1, _WHOLE)
    (end,) = (at for at, one in enumerate(program) if one.name.endswith("/loss"))
    arrays = sources(layout, np.ascontiguousarray(theta_P), np.ascontiguousarray(tokens), frozen)
    try:
        return float(run(program[: end + 1], arrays, lambda *_: None)[0])
    except FloatingPointError:
        return math.inf


def reference_loss_micro(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    frozen: Frozen = ALL_TRAINED,
) -> int:
    """`mean_micro` of `sequence_loss` over all sequences. tokens: shape (sequences, context + 1), int64."""
    rows = (tokens[at : at + 1] for at in range(len(tokens)))
    losses = (sequence_loss(model, layout, theta_P, row, frozen=frozen) for row in rows)
    return mean_micro(losses, target_count(tokens))
