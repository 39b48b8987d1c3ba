"""Logits: what a model says of the next token, to compare with other implementations."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from assay.protocol.params import ModelSpec
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout
from assay.training.model.loss import _logits, _views


def logits(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    inputs: NDArray[np.int64],
    *,
    frozen: Frozen = ALL_TRAINED,
) -> NDArray[np.float32]:
    """Logits of the next token at every position. Shape (batch, length, vocabulary), float32."""
    frozen.check(model)
    with torch.no_grad():
        views = {**frozen.on("cpu"), **_views(layout, torch.from_numpy(theta_P))}
        found = _logits(model, views, torch.from_numpy(inputs))
    values: NDArray[np.float32] = found.numpy()
    return values
