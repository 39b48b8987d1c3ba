"""Loss kind: what a run's loss is called, and per what its nats are, wherever people read one.

Room: bundle (pure).
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.protocol.params import RunSpec


@dataclass(frozen=True, slots=True)
class LossKind:
    """The loss that a run minimises. name: "loss" alone is that of the next token."""

    name: str
    unit: str
    objective: str


NEXT_TOKEN = LossKind("loss", "nats per token", "cross-entropy of the next token")
DPO = LossKind("DPO loss", "nats per preference pair", "direct preference optimisation (DPO)")


def loss_kind(spec: RunSpec) -> LossKind:
    """The loss of this run."""
    return DPO if spec.compute.is_dpo else NEXT_TOKEN
