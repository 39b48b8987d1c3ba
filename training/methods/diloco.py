"""DiLoCo: AdamW on its own for some steps, then the whole way gone, and a Nesterov step.

Room: training (pure).

Reference:
    Douillard et al., "DiLoCo: Distributed Low-Communication Training", arXiv:2311.08105.
"""

from __future__ import annotations

from protocol.rule import Optimiser, Outer, RuleSpec, Transform, Values
from training.methods.choices import (
    Choices,
    aggregation,
    compressor,
    given,
    inner_loop,
    outer_step,
    schedule,
)


def diloco(choices: Choices) -> RuleSpec:
    """Defaults: 10 steps, all coefficients in eight bits, outer Nesterov 0.9 with step 0.7."""
    return RuleSpec(
        local=inner_loop(
            choices, Optimiser.ADAMW, steps=10, lr_nano=2_000_000, decay_micro=100_000, warmup_rounds=1
        ),
        compress=compressor(
            choices,
            transform=Transform.NONE,
            k=64 * 64,
            values=Values.INT8,
            feedback_micro=0,
            keeps_error=False,
        ),
        outer=outer_step(
            choices,
            Outer.NESTEROV,
            schedule(choices, peak_nano=700_000_000, floor_ppm=1_000_000, warmup_rounds=0),
            momentum_micro=900_000,
        ),
        aggregation=aggregation(choices, "standing+clipping+mean"),
        fragments=given(choices.fragments, 1),
        merge_ppm=given(choices.merge_ppm, 0),
        read_lag=given(choices.read_lag, 0),
        apply_lag=given(choices.apply_lag, 0),
    )
