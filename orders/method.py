"""Order method: turns [train] and [comm] into the update rule of a run.

Room: orders (pure). An absent key takes the method's default, so the same order file can change its method by
one key.
"""

from __future__ import annotations

from dataclasses import replace

from assay.orders.amounts import scaled
from assay.orders.sections import CommSection, RunSection, TrainSection
from assay.protocol.update_rule import Curve, Outer, RuleSpec, Transform, Values, Wire
from assay.training.methods.choices import Choices, method_rule
from assay.verifier.aggregation.names import DECODED_NAMES

# Coefficients of a block that all seats send together: from here on a bit for every parameter is shorter than
# their union (docs/results/aggregation.md: 25 nodes at k = 32).
SIGNS_FROM_SENT = 25 * 32
# Of a run, at most: shorter ones end best with so much of them (docs/results/convergence.md).
WARMUP_SHARE = 3, 5
OUTER_NAMES = {
    "sign": Outer.SIGN, "sgd": Outer.SGD, "nesterov": Outer.NESTEROV, "adam": Outer.ADAM, "yogi": Outer.YOGI,
}  # fmt: skip
VALUE_NAMES = {
    "sign": Values.SIGN, "sign-mean": Values.SIGN_MEAN, "2-bit": Values.TWO_BIT, "e3m0": Values.E3M0,
    "int8": Values.INT8, "int16": Values.INT16,
}  # fmt: skip


def order_rule(run: RunSection, train: TrainSection, comm: CommSection) -> RuleSpec:
    """The update rule that these sections describe.

    By default it tolerates a third of the nodes, encodes aggregates in the shortest way, and warms up for as
    long as its method does by default, or three fifths of the run if that is shorter, and never into the last
    rounds in which a rate falls.
    """
    rule = method_rule(
        comm.method,
        Choices(
            sequences=train.sequences,
            sequences_max=train.sequences_max,
            steps=train.steps,
            segment=train.segment,
            clip_micro=_scaled(train.clip, 6),
            equalises=train.equalise,
            inner_lr_nano=_scaled(train.inner_lr, 9),
            inner_warmup_rounds=train.inner_warmup,
            inner_decay_micro=_scaled(train.inner_weight_decay, 6),
            proximal_micro=_scaled(train.proximal, 6),
            keeps_moments=train.keep_moments,
            lr_nano=_scaled(train.lr, 9),
            floor_ppm=_scaled(train.lr_floor, 6),
            warmup_rounds=train.warmup,
            curve=None if train.schedule is None else Curve[train.schedule.upper()],
            decay_rounds=train.decay,
            transform=None if comm.transform is None else Transform[comm.transform.upper()],
            k=comm.k,
            rank=comm.rank,
            values=None if comm.values is None else VALUE_NAMES[comm.values],
            feedback_micro=_scaled(comm.beta, 6),
            reset_rounds=comm.reset,
            outer=None if comm.outer is None else OUTER_NAMES[comm.outer],
            momentum_micro=_scaled(comm.momentum, 6),
            outer_decay_micro=_scaled(train.weight_decay, 6),
            aggregation=comm.aggregation,
            f=max(run.least_count - 1, 0) // 3 if comm.f is None else comm.f,
            wire=None if comm.download is None else Wire[comm.download.upper()],
            fragments=comm.fragments,
            merge_ppm=_scaled(comm.merge, 6),
            read_lag=comm.read_lag,
            apply_lag=comm.apply_lag,
        ),
    )
    if train.warmup is None:
        schedule, (top, bottom) = rule.outer.schedule, WARMUP_SHARE
        before_decay = max(run.rounds - schedule.decay_rounds, 0)
        warmup = min(schedule.warmup_rounds, run.rounds * top // bottom, before_decay)
        rule = replace(rule, outer=replace(rule.outer, schedule=replace(schedule, warmup_rounds=warmup)))
    if rule.local.sequences_max == rule.local.sequences:  # one size
        rule = replace(rule, local=replace(rule.local, sequences_max=0))
    sent = run.seat_count * rule.compress.k  # of low rank 4096: factors fill whole blocks
    is_shorter = sent >= SIGNS_FROM_SENT or rule.aggregation.name in DECODED_NAMES
    if comm.download is None and is_shorter and rule.outer.kind is Outer.SIGN:
        return replace(rule, aggregation=replace(rule.aggregation, wire=Wire.SIGNS))
    is_plain = rule.is_dense and rule.has_scale and rule.compress.transform is Transform.NONE
    if comm.download is None and is_plain:
        return replace(rule, aggregation=replace(rule.aggregation, wire=Wire.MESSAGE))
    return rule


def _scaled(number: float | None, digits: int) -> int | None:
    return None if number is None else scaled(number, digits)
