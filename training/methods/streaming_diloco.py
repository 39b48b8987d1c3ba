"""Streaming DiLoCo: preset that syncs one fragment of the model each round, while the rest trains on.

Room: training (pure).

Reference:
    Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv:2501.18512.
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


def streaming_diloco(choices: Choices) -> RuleSpec:
    """Defaults: 4 fragments, 5 steps a round, four bits (E3M0), applied a round later, half merged."""
    return assembled(
        choices,
        inner_loop(
            choices, Optimiser.ADAMW, steps=5, lr_nano=2_000_000, decay_micro=100_000, warmup_rounds=2
        ),
        compressor(
            choices,
            transform=Transform.NONE,
            k=64 * 64,
            values=Values.E3M0,
            feedback_micro=0,
            keeps_error=False,
        ),
        outer_step(
            choices,
            Outer.NESTEROV,
            schedule(choices, peak_nano=400_000_000, floor_ppm=1_000_000, warmup_rounds=0),
            momentum_micro=900_000,
        ),
        aggregation="reputation+clipping+mean",
        fragments=4,
        merge_ppm=500_000,
        apply_lag=1,
    )
