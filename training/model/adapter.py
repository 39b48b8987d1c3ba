"""Adapter: merges trained low-rank factors into their base.

Room: training (pure). Products have the order of the reference class, so everybody who checks a delivered
model gets its bits.

Shape suffixes: P = trained parameters, F = frozen ones.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import ModelSpec
from assay.training.frozen import Frozen
from assay.training.layout import LORA_A, LORA_B, adapted_names, layout_of
from assay.training.reference import layers


def merged(model: ModelSpec, frozen: Frozen, theta_P: NDArray[np.float32]) -> NDArray[np.float32]:
    """All parameters of a trained model, in the layout of `model.whole`.

    Args:
        model: With an adapter or without.
        frozen: What it leaves as it is.
        theta_P: The trained parameters.

    Returns:
        `theta_P` itself if all are trained; else the base with alpha / rank * B A added to every matrix that
        has an adapter. Shape (F,), float32.
    """
    frozen.check(model)
    if not model.is_adapted:
        return theta_P
    whole_F = frozen.values_F.copy()
    places, factors = frozen.layout.offsets(), layout_of(model).offsets()

    def factor(name: str) -> NDArray[np.float32]:
        at, shape = factors[name]
        return np.ascontiguousarray(theta_P[at : at + math.prod(shape)].reshape(shape))

    scale = np.float32(model.adapter.alpha / model.adapter.rank)
    for name in adapted_names(model):
        at, shape = places[name]
        matrix = whole_F[at : at + math.prod(shape)].reshape(shape)
        matrix[:] = layers.added(scale, matrix, layers.linear(factor(name + LORA_B), factor(name + LORA_A).T))
    return whole_F
