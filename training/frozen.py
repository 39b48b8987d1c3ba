"""Frozen: the parameters of a base that a run's gradients read and no step moves.

Room: training (pure). A process makes one value of it and passes it beside the model, so that a base is read,
hashed and copied to a device once, and not in every step.

Shape suffixes: F = frozen parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import ModelSpec
from assay.training import rounded
from assay.training.layout import Layout, frozen_layout

if TYPE_CHECKING:
    from torch import Tensor


class Frozen:
    """Frozen parameters; none where all are trained.

    layout: their order and shapes. bits: of the layers' matrices; 0 if they are float32. stored: as they are
    held, never modified: float32 of shape (F,) or, with `bits`, as `rounded.encode` stores them.
    """

    def __init__(self, layout: Layout, stored: NDArray[Any], bits: int = 0) -> None:
        """
        Raises:
            ValueError: these are not so many parameters, or not so stored.
        """
        if bits:
            self._parts = rounded.parts(layout, stored, bits)
        elif stored.shape != (layout.parameters,) or stored.dtype != np.float32:
            raise ValueError(f"{stored.dtype} of shape {stored.shape}, expected {layout.parameters} float32")
        else:
            self._parts = layout.views(stored)
        self.layout, self.stored, self.bits = layout, stored, bits
        self._on: dict[str, Mapping[str, Tensor]] = {}

    def check(self, model: ModelSpec) -> None:
        """Do nothing if these are the parameters that a model leaves as they are.

        Raises:
            ValueError: it needs others, or none.
        """
        if self.layout != frozen_layout(model):
            expected = frozen_layout(model).parameters
            raise ValueError(f"{self.layout.parameters} frozen parameters, expected {expected}")

    def tensors(self) -> Iterator[NDArray[np.float32]]:
        """Every tensor's values, in the layout's order; what is held in few bits is decoded as it comes."""
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if name in self._parts:
                yield self._parts[name]
            else:
                codes, scales = (self._parts[name + end] for end in (rounded.CODES, rounded.SCALES))
                yield rounded.decoded(codes, scales, shape[1])

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Every tensor by its name, float32; a view where it is held so."""
        return dict(zip(self.layout.names, self.tensors(), strict=True))

    def values(self) -> NDArray[np.float32]:
        """All parameters in one. Shape (F,), a fresh array."""
        return np.concatenate([np.zeros(0, np.float32), *(one.reshape(-1) for one in self.tensors())])

    def on(self, device: str) -> Mapping[str, Tensor]:
        """What torch computes with on a device, by name, copied there by the first call.

        Matrices in few bits are there as codes and scales (model/rounded_linear.py).
        """
        if device not in self._on:
            import torch  # here, because processes that never compute import this file

            if self.bits:
                self._on[device] = {
                    name: torch.from_numpy(part).to(device) for name, part in self._parts.items()
                }
            else:
                self._on[device] = self.layout.views(torch.from_numpy(self.stored).to(device))
        return self._on[device]


ALL_TRAINED = Frozen(Layout((), ()), np.zeros(0, np.float32))
