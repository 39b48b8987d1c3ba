"""Loss kind: what a run's loss is called, and per what its nats are, wherever people read one.

Room: bundle (pure).
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.protocol.params import RunSpec


@dataclass(frozen=True, slots=True)
class LossKind:
    """The loss that a run's nodes state. name: "loss" alone is that of the next token."""

    name: str
    unit: str
    objective: str

    @property
    def held_out(self) -> LossKind:
        """The loss that is measured on held-out data: with GRPO, of the next token of the answers."""
        return NEXT_TOKEN if self == GRPO else self


NEXT_TOKEN = LossKind("loss", "nats per token", "cross-entropy of the next token")
DPO = LossKind("DPO loss", "nats per preference pair", "direct preference optimisation (DPO)")

GRPO = LossKind("missed reward", "of 1, mean of completions", "group relative policy optimisation (GRPO)")


def loss_kind(spec: RunSpec) -> LossKind:
    """The loss of this run."""
    if spec.compute.is_grpo:
        return GRPO
    return DPO if spec.compute.is_dpo else NEXT_TOKEN
