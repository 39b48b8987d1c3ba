"""Frozen: the parameters of a base that a run's gradients read and no step moves.

Room: training (pure). A process makes one value of it and passes it beside the model, so that a base is read,
hashed and copied to a device once, and not in every step.

Shape suffixes: F = frozen parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import ModelSpec
from assay.training.layout import Layout, frozen_layout

if TYPE_CHECKING:
    from torch import Tensor


class Frozen:
    """Frozen parameters; none where all are trained.

    layout: their order and shapes. values_F: shape (F,), float32, never modified.
    """

    def __init__(self, layout: Layout, values_F: NDArray[np.float32]) -> None:
        if values_F.shape != (layout.parameters,) or values_F.dtype != np.float32:
            raise ValueError(
                f"{values_F.dtype} frozen parameters of shape {values_F.shape}, "
                f"expected {layout.parameters} float32"
            )
        self.layout = layout
        self.values_F = values_F
        self._on: dict[str, Mapping[str, Tensor]] = {}

    def check(self, model: ModelSpec) -> None:
        """Do nothing if these are the parameters that a model leaves as they are.

        Raises:
            ValueError: it needs others, or none.
        """
        if self.layout != frozen_layout(model):
            expected = frozen_layout(model).parameters
            raise ValueError(f"{self.layout.parameters} frozen parameters, expected {expected}")

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Every tensor by its name, as a view."""
        return self.layout.views(self.values_F)

    def on(self, device: str) -> Mapping[str, Tensor]:
        """Every tensor by its name as torch has it on a device, copied there by the first call."""
        if device not in self._on:
            import torch  # here, because processes that never compute import this file

            self._on[device] = self.layout.views(torch.from_numpy(self.values_F).to(device))
        return self._on[device]


ALL_TRAINED = Frozen(Layout((), ()), np.zeros(0, np.float32))
