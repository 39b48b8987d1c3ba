"""DeMo: preset of one gradient per round, a momentum in the DCT domain, and its largest coefficients sent.

Room: training (pure).

Reference:
    Peng, Quesnelle & Kingma, "DeMo: Decoupled Momentum Optimization", arXiv:2411.19870. Ours keeps
    the momentum in the DCT domain and sends one bit a coefficient (docs/protocol.md, "The update rule").
"""

from __future__ import annotations

from assay.protocol.update_rule import PPM, LocalSpec, Optimiser, Outer, RuleSpec, Transform, Values
from assay.training.methods.choices import (
    NO_RATE,
    Choices,
    assembled,
    compressor,
    given,
    outer_step,
    schedule,
)


def demo(choices: Choices) -> RuleSpec:
    """Defaults: k = 32 of 4096, beta 0.95, signs, step size 2e-3 with a sign step, warm-up of 20 rounds.

    A short warm-up costs much: 0.2 nats at 200 rounds with 5 against 20. Gradients are equalised, which takes
    0.12 nats off 60 rounds of the quickstart's model (docs/results/convergence.md).
    """
    is_sign = given(choices.values, Values.SIGN) is Values.SIGN and not choices.rank
    return assembled(
        choices,
        LocalSpec(
            optimiser=Optimiser.GRADIENT,
            steps=given(choices.steps, 1),
            segment=0,
            sequences=given(choices.sequences, 4),
            clip_micro=given(choices.clip_micro, PPM),
            equalises=given(choices.equalises, True),
            schedule=NO_RATE,
            beta1_micro=0,
            beta2_micro=0,
            epsilon_pico=0,
            decay_micro=0,
            proximal_micro=0,
            keeps_moments=False,
        ),
        compressor(
            choices,
            transform=Transform.DCT,
            k=32,
            values=Values.SIGN,
            feedback_micro=950_000,
            keeps_error=True,
        ),
        outer_step(
            choices, Outer.SIGN, schedule(choices, peak_nano=2_000_000, floor_ppm=100_000, warmup_rounds=20)
        ),
        aggregation="reputation+mean" if is_sign else "reputation+normalize+mean",
    )
