"""Presets: the communication methods by name, as one complete rule and what each changes in it.

Room: training (pure). A new method is a rule made of these, and a line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from assay.protocol.update_rule import (
    BLOCK_SIZE,
    PPM,
    AggregationSpec,
    CompressSpec,
    Curve,
    LocalSpec,
    Optimiser,
    Outer,
    OuterSpec,
    RuleSpec,
    ScheduleSpec,
    Transform,
    Values,
    Wire,
)

_INNER_RATE = ScheduleSpec(
    curve=Curve.COSINE, peak_nano=2_000_000, floor_ppm=100_000, warmup_rounds=1, decay_rounds=0
)
_OUTER_RATE = ScheduleSpec(
    curve=Curve.COSINE, peak_nano=700_000_000, floor_ppm=PPM, warmup_rounds=0, decay_rounds=0
)
_NO_RATE = ScheduleSpec(curve=Curve.CONSTANT, peak_nano=0, floor_ppm=0, warmup_rounds=0, decay_rounds=0)

# DiLoCo: 10 inner AdamW steps, the whole pseudo-gradient in eight bits, and an outer Nesterov step.
# Douillard et al., "DiLoCo: Distributed Low-Communication Training", arXiv:2311.08105.
DILOCO = RuleSpec(
    local=LocalSpec(
        optimiser=Optimiser.ADAMW,
        steps=10,
        segment=5,
        sequences=4,
        clip_micro=PPM,
        equalises=False,
        schedule=_INNER_RATE,
        beta1_micro=900_000,
        beta2_micro=950_000,
        epsilon_pico=10_000,
        decay_micro=100_000,
        proximal_micro=0,
        keeps_moments=True,
    ),
    compress=CompressSpec(
        transform=Transform.NONE,
        k=BLOCK_SIZE,
        rank=0,
        values=Values.INT8,
        feedback_micro=0,
        keeps_error=False,
        reset_rounds=128,  # costs no loss (docs/results/convergence.md)
    ),
    outer=OuterSpec(
        kind=Outer.NESTEROV,
        schedule=_OUTER_RATE,
        momentum_micro=900_000,
        beta2_micro=0,
        epsilon_nano=0,
        decay_micro=0,
    ),
    aggregation=AggregationSpec(name="reputation+clipping+mean", wire=Wire.UNION, f=0),
    fragments=1,
    merge_ppm=0,
    read_lag=0,
    apply_lag=0,
)

# Streaming DiLoCo: one of 4 fragments of the model a round, in four bits, applied a round later, half merged.
# Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv:2501.18512.
STREAMING_DILOCO = replace(
    DILOCO,
    local=replace(DILOCO.local, steps=5, schedule=replace(_INNER_RATE, warmup_rounds=2)),
    compress=replace(DILOCO.compress, values=Values.E3M0),
    outer=replace(DILOCO.outer, schedule=replace(_OUTER_RATE, peak_nano=400_000_000)),
    fragments=4,
    merge_ppm=500_000,
    apply_lag=1,
)

# FedAvg: inner SGD steps, then the mean. FedProx adds a proximal weight, FedOpt an outer Adam.
# McMahan et al., arXiv:1602.05629; Li et al., arXiv:1812.06127; Reddi et al., arXiv:2003.00295.
FEDAVG = replace(
    DILOCO,
    local=replace(
        DILOCO.local,
        optimiser=Optimiser.SGD,
        schedule=replace(_INNER_RATE, peak_nano=300_000_000),
        beta1_micro=0,
        beta2_micro=0,
        epsilon_pico=0,
        decay_micro=0,
        keeps_moments=False,
    ),
    outer=replace(
        DILOCO.outer, kind=Outer.SGD, schedule=replace(_OUTER_RATE, peak_nano=10**9), momentum_micro=0
    ),
)

# SparseLoCo: the largest part of the pseudo-gradient in two bits, and an outer step from 1.0 down to 0.4.
# Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", arXiv:2508.15706.
SPARSELOCO = replace(
    DILOCO,
    compress=replace(DILOCO.compress, k=64, values=Values.TWO_BIT, feedback_micro=950_000, keeps_error=True),
    outer=replace(FEDAVG.outer, schedule=replace(_OUTER_RATE, peak_nano=10**9, floor_ppm=400_000)),
)

# MuLoCo: inner Muon steps, the pseudo-gradient in one bit a value with error feedback, and the whole mean
# applied. Nesterov (0.7, 0.6) was 0.02 worse, 0.5 at a rate of 0.03 0.13 worse (docs/results/convergence.md).
# Thérien et al., "MuLoCo: Muon is a practical inner optimizer for DiLoCo", arXiv:2505.23725.
MULOCO = replace(
    DILOCO,
    local=replace(
        DILOCO.local,
        optimiser=Optimiser.MUON,
        steps=5,
        schedule=replace(_INNER_RATE, peak_nano=20_000_000, warmup_rounds=8),
        beta1_micro=950_000,
        beta2_micro=990_000,
    ),
    compress=replace(DILOCO.compress, values=Values.SIGN_MEAN, feedback_micro=PPM, keeps_error=True),
    outer=FEDAVG.outer,
)

# DeMo: one gradient a round, a momentum in the DCT domain, and the signs of its largest coefficients sent.
# Peng, Quesnelle & Kingma, "DeMo: Decoupled Momentum Optimization", arXiv:2411.19870; ours keeps the momentum
# in the DCT domain and sends one bit a coefficient (docs/protocol.md, "The update rule"). A short warm-up
# costs much: 0.2 nats at 200 rounds with 5 against 20. Equalised gradients take 0.12 nats off 60 rounds of
# the quickstart's model (docs/results/convergence.md).
DEMO = replace(
    FEDAVG,
    local=replace(
        FEDAVG.local,
        optimiser=Optimiser.GRADIENT,
        steps=1,
        segment=0,
        equalises=True,
        schedule=_NO_RATE,
    ),
    compress=replace(SPARSELOCO.compress, transform=Transform.DCT, k=32, values=Values.SIGN),
    outer=replace(
        FEDAVG.outer,
        kind=Outer.SIGN,
        schedule=replace(_OUTER_RATE, peak_nano=2_000_000, floor_ppm=100_000, warmup_rounds=600),
    ),
    aggregation=replace(DILOCO.aggregation, name="reputation+mean"),
)

METHODS: Mapping[str, RuleSpec] = {
    "demo": DEMO,
    "muloco": MULOCO,
    "sparseloco": SPARSELOCO,
    "diloco": DILOCO,
    "streaming-diloco": STREAMING_DILOCO,
    "fedavg": FEDAVG,
}


def method_name(rule: RuleSpec) -> str:
    """The method that a rule is one of, whatever its sizes and rates; of none: by its inner optimiser."""
    names = {_kind(preset): name for name, preset in METHODS.items()}
    return names.get(_kind(rule), f"another rule, {rule.local.optimiser.name.lower()} inside")


def _kind(rule: RuleSpec) -> tuple[Optimiser, Transform, bool, bool]:
    sends_part = rule.compress.k < BLOCK_SIZE or rule.compress.rank > 0
    return rule.local.optimiser, rule.compress.transform, sends_part, rule.fragments > 1
