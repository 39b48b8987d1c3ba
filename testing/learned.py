"""Learned: parameters that know a batch by heart, so that little is left of its gradient's terms.

Room: testing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import ModelSpec
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import layout_of
from assay.training.model.loss import FLOAT32_WHOLE, loss_and_gradient

_STEPS_MAX = 4000


class NotLearned(Exception):
    """The model cannot know these data so well."""


def learned_by_heart(
    model: ModelSpec,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    loss_at_most: float,
    frozen: Frozen = ALL_TRAINED,
) -> NDArray[np.float32]:
    """Parameters with at most this loss, in nats, on a batch: Adam from `theta_P`, on the batch alone.

    Shape (P,), float32, as `theta_P`, which is not modified.

    Raises:
        NotLearned: it was not reached.
    """
    layout, mean, square = layout_of(model), np.zeros_like(theta_P), np.zeros_like(theta_P)
    for step in range(1, _STEPS_MAX):
        loss, slope_P = loss_and_gradient(
            model, layout, theta_P, tokens, compute=FLOAT32_WHOLE, frozen=frozen
        )
        if loss <= loss_at_most:
            return theta_P
        mean, square = 0.9 * mean + 0.1 * slope_P, 0.99 * square + 0.01 * slope_P**2
        move = 3e-3 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-9)
        theta_P = (theta_P - move).astype(np.float32)
    raise NotLearned(f"a loss of {loss:.1e} after {_STEPS_MAX} steps, expected {loss_at_most:.1e}")
