"""DiLoCo: preset of inner AdamW steps, the whole pseudo-gradient sent, and an outer Nesterov step.

Room: training (pure).

Reference:
    Douillard et al., "DiLoCo: Distributed Low-Communication Training", arXiv:2311.08105.
"""

from __future__ import annotations

from assay.protocol.update_rule import Optimiser, Outer, RuleSpec, Transform, Values
from assay.training.methods.choices import (
    Choices,
    assembled,
    compressor,
    inner_loop,
    outer_step,
    schedule,
)


def diloco(choices: Choices) -> RuleSpec:
    """Defaults: 10 steps, all coefficients in eight bits, outer Nesterov 0.9 with step 0.7."""
    return assembled(
        choices,
        inner_loop(
            choices, Optimiser.ADAMW, steps=10, lr_nano=2_000_000, decay_micro=100_000, warmup_rounds=1
        ),
        compressor(
            choices,
            transform=Transform.NONE,
            k=64 * 64,
            values=Values.INT8,
            feedback_micro=0,
            keeps_error=False,
        ),
        outer_step(
            choices,
            Outer.NESTEROV,
            schedule(choices, peak_nano=700_000_000, floor_ppm=1_000_000, warmup_rounds=0),
            momentum_micro=900_000,
        ),
        aggregation="reputation+clipping+mean",
    )
