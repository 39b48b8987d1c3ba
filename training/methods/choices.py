"""Choices: what an order may set about a training method; the method's preset fills the rest.

Room: training (pure).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from assay.protocol.update_rule import BLOCK_SIZE, Curve, Outer, RuleSpec, Transform, Values, Wire
from assay.training.methods.presets import METHODS

Spec = TypeVar("Spec", bound=Any)
SEGMENT_STEPS = 5  # inner steps that an audit repeats, unless set otherwise
ADAPTIVE_LR_NANO = 10_000_000  # at most, unless set otherwise: about the step of ADAM or YOGI


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Every setting of [train] and [comm] in a run file. Units as in protocol/update_rule.py."""

    sequences: int | None = None  # per inner step
    sequences_max: int | None = None
    steps: int | None = None
    segment: int | None = None
    clip_micro: int | None = None
    equalises: bool | None = None
    inner_lr_nano: int | None = None
    inner_warmup_rounds: int | None = None
    inner_decay_micro: int | None = None
    proximal_micro: int | None = None
    keeps_moments: bool | None = None
    lr_nano: int | None = None
    floor_ppm: int | None = None
    warmup_rounds: int | None = None
    curve: Curve | None = None
    decay_rounds: int | None = None
    transform: Transform | None = None
    k: int | None = None
    rank: int | None = None
    values: Values | None = None
    feedback_micro: int | None = None
    reset_rounds: int | None = None
    outer: Outer | None = None
    momentum_micro: int | None = None
    outer_decay_micro: int | None = None
    aggregation: str | None = None
    f: int | None = None
    wire: Wire | None = None
    fragments: int | None = None
    merge_ppm: int | None = None
    read_lag: int | None = None
    apply_lag: int | None = None


def method_rule(method: str, choices: Choices) -> RuleSpec:
    """The preset of this name in `METHODS`, with these choices and what follows from them."""
    rule = METHODS[method]
    local = _with(
        rule.local,
        steps=choices.steps,
        sequences=choices.sequences,
        sequences_max=choices.sequences_max,
        clip_micro=choices.clip_micro,
        equalises=choices.equalises,
    )
    if not rule.is_gradient:
        rate = _with(
            local.schedule, peak_nano=choices.inner_lr_nano, warmup_rounds=choices.inner_warmup_rounds
        )
        local = _with(
            replace(local, schedule=rate, segment=min(local.steps, SEGMENT_STEPS)),
            segment=choices.segment,
            decay_micro=choices.inner_decay_micro,
            proximal_micro=choices.proximal_micro,
            keeps_moments=choices.keeps_moments,
        )
    compress, outer, aggregation = rule.compress, rule.outer, rule.aggregation
    if choices.rank:
        compress = replace(compress, k=BLOCK_SIZE, values=Values.INT8)
    compress = _with(
        compress,
        transform=choices.transform,
        k=choices.k,
        rank=choices.rank,
        values=choices.values,
        feedback_micro=choices.feedback_micro,
        reset_rounds=choices.reset_rounds,
        keeps_error=None if choices.feedback_micro is None else choices.feedback_micro > 0,
    )
    if choices.outer in (Outer.ADAM, Outer.YOGI):
        slow = replace(outer.schedule, peak_nano=min(outer.schedule.peak_nano, ADAPTIVE_LR_NANO))
        outer = replace(
            outer, schedule=slow, momentum_micro=900_000, beta2_micro=990_000, epsilon_nano=1_000_000
        )
    outer = _with(
        outer,
        kind=choices.outer,
        schedule=_with(
            outer.schedule,
            curve=choices.curve,
            peak_nano=choices.lr_nano,
            floor_ppm=choices.floor_ppm,
            warmup_rounds=choices.warmup_rounds,
            decay_rounds=choices.decay_rounds,
        ),
        momentum_micro=choices.momentum_micro,
        decay_micro=choices.outer_decay_micro,
    )
    if rule.is_gradient and (compress.rank or compress.values is not Values.SIGN):
        aggregation = replace(aggregation, name="reputation+normalize+mean")
    return _with(
        replace(rule, local=local, compress=compress, outer=outer),
        aggregation=_with(aggregation, name=choices.aggregation, wire=choices.wire, f=choices.f),
        fragments=choices.fragments,
        merge_ppm=choices.merge_ppm,
        read_lag=choices.read_lag,
        apply_lag=choices.apply_lag,
    )


def _with(spec: Spec, **chosen: object) -> Spec:
    """`spec` with those values that were chosen, that is are not None."""
    return replace(spec, **{name: value for name, value in chosen.items() if value is not None})
