"""Evaluation: the mean loss of a model on held-out sequences, with the same digits on every machine.

Room: training (pure). What a verifier reports of a milestone (docs/protocol.md section 6a).

Shape suffixes: P = parameters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.protocol.messages import LOSS_MICRO_MAX
from assay.protocol.params import ComputeSpec, ModelSpec, Precision
from assay.training.data.mask import target_count
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout
from assay.training.reference.gradient import check_batch, run
from assay.training.reference.operators import operators, sources

_WHOLE = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0)
_MICRO = 10**6


def reference_loss_micro(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    frozen: Frozen = ALL_TRAINED,
) -> int:
    """Mean next-token loss over the targets that are not masked, in millionths of a nat, rounded to even.

    One sequence after the other, forward alone; the sums of the sequences are added in order, in float64.

    Args:
        model, layout, theta_P, tokens, frozen: As of `reference_loss_and_gradient`.

    Returns:
        0 without any target; `LOSS_MICRO_MAX` if the loss is higher, or not finite.

    Raises:
        ValueError: sizes, or a token, do not fit the model.
        Unavailable: this thread computes otherwise than IEEE 754 says.
    """
    check_batch(model, layout, theta_P, tokens, frozen)
    program = operators(model, 1, _WHOLE)
    (end,) = (at for at, one in enumerate(program) if one.name.endswith("/loss"))
    forward, total = program[: end + 1], 0.0
    theta_P = np.ascontiguousarray(theta_P)
    for row in range(len(tokens)):
        one = np.ascontiguousarray(tokens[row : row + 1])
        if not target_count(one):
            continue
        try:
            total += float(run(forward, sources(layout, theta_P, one, frozen), lambda *_: None)[0])
        except FloatingPointError:
            return LOSS_MICRO_MAX
    mean = total / max(target_count(tokens), 1)
    return min(round(mean * _MICRO), LOSS_MICRO_MAX)
