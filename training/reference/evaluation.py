"""Evaluation: a model's loss on held-out sequences and its answers to items, with the same digits everywhere.

Room: training (pure). What a verifier reports of a milestone (docs/protocol.md section 6a). The loss is
measured in units: a sequence, or with DPO a preference pair.

Shape suffixes: P = parameters.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from assay.protocol.acceptance import mean_micro
from assay.protocol.messages import Score
from assay.protocol.params import ComputeSpec, ModelSpec
from assay.training.data.choices import Choices
from assay.training.data.mask import target_count
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.reference.choices import answer
from assay.training.reference.gradient import reference_loss


def unit_loss(
    model: ModelSpec,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    compute: ComputeSpec,
    frozen: Frozen = ALL_TRAINED,
) -> tuple[float, int]:
    """The summed loss of one unit in nats, and the number of its targets, or 1 of a pair.

    Forward alone. Infinity if a result is not finite.

    Args:
        model, theta_P, frozen: As of `reference_loss`.
        tokens: One unit. Shape (`compute.drawn_sequences`, context + 1), int64.
        compute: Names the loss.

    Raises:
        ValueError, Unavailable: see `reference_loss`.
    """
    count = 1 if compute.is_dpo else target_count(tokens)
    if not count:
        return 0.0, 0
    try:
        return reference_loss(model, theta_P, tokens, beta_micro=compute.beta_micro, frozen=frozen), count
    except FloatingPointError:
        return math.inf, count


def reference_loss_micro(
    model: ModelSpec,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    compute: ComputeSpec,
    frozen: Frozen = ALL_TRAINED,
) -> int:
    """`mean_micro` of `unit_loss` over all units. tokens: shape (sequences, context + 1), int64."""
    units = (
        tokens[at : at + compute.drawn_sequences] for at in range(0, len(tokens), compute.drawn_sequences)
    )
    found = [unit_loss(model, theta_P, one, compute=compute, frozen=frozen) for one in units]
    return mean_micro((loss for loss, _ in found), sum(count for _, count in found))


def reference_score(
    model: ModelSpec,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    choices: Choices | None,
    *,
    compute: ComputeSpec,
    frozen: Frozen = ALL_TRAINED,
) -> Score:
    """`reference_loss_micro` of the tokens, and how many of the choices' items are answered right."""
    acc, acc_norm = (0, 0) if choices is None else right_answers(model, theta_P, choices, frozen=frozen)
    return Score(
        loss_micro=reference_loss_micro(model, theta_P, tokens, compute=compute, frozen=frozen),
        acc_count=acc,
        acc_norm_count=acc_norm,
    )


def right_answers(
    model: ModelSpec, theta_P: NDArray[np.float32], choices: Choices, *, frozen: Frozen = ALL_TRAINED
) -> tuple[int, int]:
    """How many items are answered right: by log-likelihood, and by log-likelihood per character."""
    answers = [answer(model, theta_P, item, frozen=frozen) for item in choices.items]
    return sum(one.acc for one in answers), sum(one.acc_norm for one in answers)
