"""Batch size: how many sequences a node trains in a round, by its measured speed.

Room: participant (pure). A run may let its nodes choose between a least and a most, and pays for what they
trained. Leaders wait for commits until `collect_ms`; a node plans for half of that, so that a machine that
is suddenly half as fast is still in time.
"""

from __future__ import annotations

from typing import Protocol

from assay.protocol.params import ComputeSpec, ModelSpec, TimingSpec
from assay.protocol.update_rule import RuleSpec


class Sizes(Protocol):
    """What decides about a step's size: a run's spec has it, and an order's terms."""

    @property
    def model(self) -> ModelSpec: ...
    @property
    def compute(self) -> ComputeSpec: ...
    @property
    def rule(self) -> RuleSpec: ...
    @property
    def timing(self) -> TimingSpec: ...


def planned_ms(timing: TimingSpec) -> int:
    """How long after a round's beginning a node plans to have delivered its step."""
    return timing.collect_ms // 2


def step_tokens(sizes: Sizes, sequence_us: int, left_us: int) -> int:
    """Tokens of the largest step that takes no longer than is left; of the least one, if even that does.

    Args:
        sizes: Of the run.
        sequence_us: Microseconds that a sequence takes; 0: nobody has measured, so the least is taken.
        left_us: Microseconds for all of the step's sequences; negative if it is late already.
    """
    local, unit = sizes.rule.local, sizes.compute.sequence_unit
    fitting = max(left_us, 0) // (sequence_us * local.steps) if sequence_us else 0
    more = max(min(fitting, local.most_sequences) - local.sequences, 0)
    return (local.sequences + more // unit * unit) * local.steps * sizes.model.context
