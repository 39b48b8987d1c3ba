"""Choices: what an order may set about a training method; the method's defaults fill the rest.

Room: training (pure). Units as in protocol/update_rule.py. None: the method's default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from assay.protocol.update_rule import (
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

T = TypeVar("T")
NO_RATE = ScheduleSpec(curve=Curve.CONSTANT, peak_nano=0, floor_ppm=0, warmup_rounds=0, decay_rounds=0)
RESET_ROUNDS = 64  # costs no loss (docs/results/convergence.md)
SEGMENT_STEPS = 5  # inner steps that an audit repeats, unless set otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Every setting of [train] and [comm] in a run file."""

    sequences: int | None = None  # per inner step
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


def given(chosen: T | None, otherwise: T) -> T:
    """The chosen value, else the method's default."""
    return otherwise if chosen is None else chosen


def schedule(choices: Choices, *, peak_nano: int, floor_ppm: int, warmup_rounds: int) -> ScheduleSpec:
    """The outer rate's schedule, as chosen."""
    return ScheduleSpec(
        curve=given(choices.curve, Curve.COSINE),
        peak_nano=given(choices.lr_nano, peak_nano),
        floor_ppm=given(choices.floor_ppm, floor_ppm),
        warmup_rounds=given(choices.warmup_rounds, warmup_rounds),
        decay_rounds=given(choices.decay_rounds, 0),
    )


def inner_loop(
    choices: Choices, optimiser: Optimiser, *, steps: int, lr_nano: int, decay_micro: int, warmup_rounds: int
) -> LocalSpec:
    """The inner optimiser steps, as chosen."""
    count = given(choices.steps, steps)
    is_adam = optimiser is Optimiser.ADAMW
    return LocalSpec(
        optimiser=optimiser,
        steps=count,
        segment=given(choices.segment, min(count, SEGMENT_STEPS)),
        sequences=given(choices.sequences, 4),
        clip_micro=given(choices.clip_micro, PPM),
        equalises=given(choices.equalises, False),
        schedule=ScheduleSpec(
            curve=Curve.COSINE,
            peak_nano=given(choices.inner_lr_nano, lr_nano),
            floor_ppm=100_000,
            warmup_rounds=given(choices.inner_warmup_rounds, warmup_rounds),
            decay_rounds=0,
        ),
        beta1_micro=900_000 if is_adam else 0,
        beta2_micro=950_000 if is_adam else 0,
        epsilon_pico=10_000 if is_adam else 0,
        decay_micro=given(choices.inner_decay_micro, decay_micro),
        proximal_micro=given(choices.proximal_micro, 0),
        keeps_moments=given(choices.keeps_moments, is_adam),
    )


def outer_step(choices: Choices, kind: Outer, rate: ScheduleSpec, *, momentum_micro: int = 0) -> OuterSpec:
    """The outer optimiser, as chosen."""
    chosen = given(choices.outer, kind)
    is_adaptive = chosen in (Outer.ADAM, Outer.YOGI)
    return OuterSpec(
        kind=chosen,
        schedule=rate,
        momentum_micro=given(choices.momentum_micro, 900_000 if is_adaptive else momentum_micro),
        beta2_micro=990_000 if is_adaptive else 0,
        epsilon_nano=1_000_000 if is_adaptive else 0,
        decay_micro=given(choices.outer_decay_micro, 0),
    )


def compressor(
    choices: Choices,
    *,
    transform: Transform,
    k: int,
    values: Values,
    feedback_micro: int,
    keeps_error: bool,
) -> CompressSpec:
    """The compression, as chosen."""
    rank = given(choices.rank, 0)
    keeps = keeps_error if choices.feedback_micro is None else choices.feedback_micro > 0
    return CompressSpec(
        transform=given(choices.transform, transform),
        k=given(choices.k, 64 * 64 if rank else k),
        rank=rank,
        values=given(choices.values, Values.INT8 if rank else values),
        feedback_micro=given(choices.feedback_micro, feedback_micro),
        keeps_error=keeps,
        reset_rounds=given(choices.reset_rounds, RESET_ROUNDS),
    )


def assembled(
    choices: Choices,
    local: LocalSpec,
    compress: CompressSpec,
    outer: OuterSpec,
    *,
    aggregation: str,
    fragments: int = 1,
    merge_ppm: int = 0,
    apply_lag: int = 0,
) -> RuleSpec:
    """The rule made of these parts; choices replace the values given by name."""
    return RuleSpec(
        local=local,
        compress=compress,
        outer=outer,
        aggregation=AggregationSpec(
            name=given(choices.aggregation, aggregation),
            wire=given(choices.wire, Wire.UNION),
            f=given(choices.f, 0),
        ),
        fragments=given(choices.fragments, fragments),
        merge_ppm=given(choices.merge_ppm, merge_ppm),
        read_lag=given(choices.read_lag, 0),
        apply_lag=given(choices.apply_lag, apply_lag),
    )
