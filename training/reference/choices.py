"""Choices: whether a model answers an item of multiple choice right, the same on every machine.

Room: training (pure). The log-likelihood of a choice is minus the reference class's loss of its tokens behind
the query, so all verifiers find the same answer (docs/protocol.md section 6a).

Shape suffixes: P = parameters.

Reference:
    Gao et al., "A framework for few-shot language model evaluation",
    https://github.com/EleutherAI/lm-evaluation-harness: `acc` and `acc_norm` of a `multiple_choice` task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import Family, ModelSpec
from assay.training.data.choices import Item
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import layout_of
from assay.training.reference.gradient import reference_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Whether an item is answered right: by log-likelihood, and by log-likelihood per character."""

    acc: bool
    acc_norm: bool


def choice_loss(
    model: ModelSpec,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    frozen: Frozen = ALL_TRAINED,
) -> float:
    """Minus the log-likelihood of one choice's tokens, in nats; infinity if a result is not finite.

    The model is run on as many positions as the tokens need, not on its whole context.

    Args:
        model, theta_P, frozen: As of `reference_loss`.
        tokens: The query, masked, then the choice. Shape (1, at most context + 1), int64.

    Raises:
        ValueError, Unavailable: see `reference_loss`.
    """
    try:
        return reference_loss(*shortened(model, theta_P, tokens.shape[1] - 1), tokens, frozen=frozen)
    except FloatingPointError:
        return math.inf


def shortened(
    model: ModelSpec, theta_P: NDArray[np.float32], context: int
) -> tuple[ModelSpec, NDArray[np.float32]]:
    """The model that reads no more than the first `context` positions of this one, and its parameters.

    Raises:
        ValueError: this model has fewer.
    """
    if not 0 < context <= model.context:
        raise ValueError(f"{context} positions of a model, expected 1 to {model.context}")
    short = replace(model, context=context)
    if model.family is not Family.GPT:  # positions are rotations, not parameters
        return short, theta_P
    at, (_, width) = layout_of(model).offsets()["position"]
    kept, end = at + context * width, at + model.context * width
    return short, np.concatenate([theta_P[:kept], theta_P[end:]])


def answered(item: Item, losses: Sequence[float]) -> Answer:
    """Whether the gold choice is the likeliest; of equally likely ones the first counts.

    Neither way if a loss is not finite: a model that diverged would else answer the first choice.

    Args:
        item: The question.
        losses: `choice_loss` of its choices, in order.
    """
    if not all(map(math.isfinite, losses)):
        return Answer(acc=False, acc_norm=False)
    by_character = [loss / len(text) for loss, text in zip(losses, item.choices, strict=True)]
    return Answer(acc=_first_least(losses) == item.gold, acc_norm=_first_least(by_character) == item.gold)


def answer(
    model: ModelSpec, theta_P: NDArray[np.float32], item: Item, *, frozen: Frozen = ALL_TRAINED
) -> Answer:
    """How a model answers an item, see `answered` and `choice_loss`."""
    return answered(item, [choice_loss(model, theta_P, tokens, frozen=frozen) for tokens in item.sequences()])


def _first_least(values: Sequence[float]) -> int:
    return min(range(len(values)), key=values.__getitem__)
