"""SparseLoCo: preset of inner AdamW steps, then the largest part of the pseudo-gradient in two bits.

Room: training (pure).

Reference:
    Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", arXiv:2508.15706.
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


def sparseloco(choices: Choices) -> RuleSpec:
    """Defaults: 10 steps, k = 64 of 4096, feedback 0.95, two bits, outer step 1.0 falling to 0.4."""
    return assembled(
        choices,
        inner_loop(
            choices, Optimiser.ADAMW, steps=10, lr_nano=2_000_000, decay_micro=100_000, warmup_rounds=1
        ),
        compressor(
            choices,
            transform=Transform.NONE,
            k=64,
            values=Values.TWO_BIT,
            feedback_micro=950_000,
            keeps_error=True,
        ),
        outer_step(
            choices, Outer.SGD, schedule(choices, peak_nano=10**9, floor_ppm=400_000, warmup_rounds=0)
        ),
        aggregation="reputation+clipping+mean",
    )
