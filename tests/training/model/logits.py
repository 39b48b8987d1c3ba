"""Logits: what a model says of the next token, to compare with other implementations."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from assay.protocol.params import ModelSpec, Precision
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout
from assay.training.model.loss import logits_of


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
        parameters = {**frozen.on("cpu"), **layout.views(torch.from_numpy(theta_P))}
        found = logits_of(model, parameters, torch.from_numpy(inputs), Precision.FLOAT32)
    values: NDArray[np.float32] = found.numpy()
    return values
