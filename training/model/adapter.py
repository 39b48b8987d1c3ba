"""Adapter: merges trained low-rank factors into their base.

Room: training (pure). Products have the order of the reference class, so everybody who checks a delivered
model gets its bits.

Shape suffixes: P = trained parameters, F = frozen ones.
"""

from __future__ import annotations

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
    whole_F = frozen.values()
    matrices, factors = frozen.layout.views(whole_F), layout_of(model).views(np.ascontiguousarray(theta_P))
    scale = np.float32(model.adapter.alpha / model.adapter.rank)
    for name in adapted_names(model):
        product = layers.linear(factors[name + LORA_B], factors[name + LORA_A].T)
        matrices[name][:] = layers.added(scale, matrices[name], product)
    return whole_F
