"""FedAvg: preset of inner SGD steps, then the mean; FedProx adds a proximal weight, FedOpt an outer Adam.

Room: training (pure).

Reference:
    McMahan et al., arXiv:1602.05629; Li et al., arXiv:1812.06127; Reddi et al., arXiv:2003.00295.
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


def fedavg(choices: Choices) -> RuleSpec:
    """Defaults: 10 SGD steps of 0.3, all coefficients in eight bits, the mean as it is."""
    is_adaptive = choices.outer in (Outer.ADAM, Outer.YOGI)
    return assembled(
        choices,
        inner_loop(choices, Optimiser.SGD, steps=10, lr_nano=300_000_000, decay_micro=0, warmup_rounds=1),
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
            Outer.SGD,
            schedule(
                choices,
                peak_nano=10_000_000 if is_adaptive else 10**9,
                floor_ppm=1_000_000,
                warmup_rounds=0,
            ),
        ),
        aggregation="reputation+clipping+mean",
    )
