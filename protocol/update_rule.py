"""Update rule: the parameters of a communication method (DeMo, DiLoCo and kin), shared by all parties.

Room: protocol (pure). One description covers the whole family (docs/protocol.md,
"The update rule"): a node's local work, the compression of its result, and the network's outer
step. Methods are presets of it: `training/methods/`.

    local:    x = lr * DCT(gradient, equalised), or the pseudo-gradient of `steps` optimiser steps
    compress: e' = beta * e + x;  q = values of the k largest of every block;  e = e' - q
              (e bounded in size and in life: training/optimiser/carry.py)
    outer:    theta' = theta - lr * f(aggregate of all q)

Integers only: rates in 10^-9, ratios in 10^-6.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from assay.protocol.encoding.codec import Later, Max

PPM = 1_000_000
BLOCK_SIDE = 64
BLOCK_SIZE = BLOCK_SIDE * BLOCK_SIDE
SEGMENTS_MAX = 64  # inner states that one commit binds
RANK_MAX = 8
FRAGMENTS_MAX = 64
RESET_MAX = 1024  # rounds
REACH_MAX_NANO = 2 * 10**9  # 1.75 learns, late or with feedback, and 7 diverges (results/convergence.md)
LAG_MAX = 4  # rounds; each keeps one more set of parameters and aggregates


class Optimiser(enum.IntEnum):
    """The inner optimiser of a node."""

    GRADIENT = 1  # one gradient, no step: the momentum is the compressor's error feedback
    SGD = 2
    ADAMW = 3
    MUON = 4  # matrices by their orthogonalised momentum, the rest by Adam (`training/optimiser/muon.py`)


class Transform(enum.IntEnum):
    """Basis in which the largest coefficients are selected."""

    NONE = 1
    DCT = 2


class Values(enum.IntEnum):
    """Quantisation of the coefficients that are sent. All but SIGN carry a scale per block."""

    SIGN = 1  # one bit; the block's amplitude is free, so only a sign step may follow
    SIGN_MEAN = 2  # one bit times the block's mean magnitude
    TWO_BIT = 3  # levels -3, -1, 1, 3
    E3M0 = 4  # sign and three bits of exponent: 0 and +-1, 2, 4 ... 64
    INT8 = 5  # -127 to 127
    INT16 = 6  # -32767 to 32767: as good as float


class Outer(enum.IntEnum):
    """The outer optimiser: how the aggregate changes the parameters."""

    SIGN = 1  # theta - lr * sign
    SGD = 2  # theta - lr * D
    NESTEROV = 3  # v = mu v + D; theta - lr (D + mu v)
    ADAM = 4  # FedAdam (Reddi et al., arXiv:2003.00295)
    YOGI = 5  # FedYogi


class Wire(enum.IntEnum):
    """Encoding of a round's aggregate, which every participant downloads."""

    UNION = 1  # the coefficients that any node sent
    SIGNS = 2  # the step itself, one bit a parameter, however many nodes send how much; for a SIGN step
    MESSAGE = 3  # the mean, compressed like a node's message but with twice its bits: for dense rules


class Curve(enum.IntEnum):
    """Shape of a learning rate over its steps, after the warm-up."""

    CONSTANT = 1
    COSINE = 2  # down to the floor at the end
    WSD = 3  # warm-up, stable, then linearly down to the floor over the last `decay` rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """A learning rate over the run, evaluated as an exact table (`training/optimiser/schedule.py`)."""

    TAG: ClassVar[bytes] = b"assay/schedule-spec/1"
    curve: Curve
    peak_nano: int
    floor_ppm: int  # share of the peak at the end
    warmup_rounds: int
    decay_rounds: int  # WSD only


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSpec:
    """A node's local work in one round."""

    TAG: ClassVar[bytes] = b"assay/local-spec/2"
    optimiser: Optimiser
    steps: int  # H; 1 for GRADIENT
    segment: int  # steps between two committed inner states; an audit recomputes one segment
    sequences: int  # per step
    clip_micro: int  # gradient norm; 0 = no clipping
    equalises: (
        bool  # GRADIENT: rows and columns are brought nearer to one size (`training/transform/equalise.py`)
    )
    schedule: ScheduleSpec  # of the inner rate, by inner step; GRADIENT has none, its peak is 0
    beta1_micro: int
    beta2_micro: int
    epsilon_pico: int
    decay_micro: int  # decoupled weight decay
    proximal_micro: int  # FedProx: mu / 2 |theta - theta_0|^2 joins the loss
    keeps_moments: bool  # inner moments are kept in the next round
    sequences_max: Annotated[int, Later()] = 0  # most of a step that a node may take; 0: `sequences`, no more

    @property
    def most_sequences(self) -> int:
        """Most sequences of a step; `sequences` are the least."""
        return self.sequences_max or self.sequences

    @property
    def moments(self) -> int:
        """Vectors that the inner optimiser keeps beside the parameters."""
        return 2 if self.optimiser in (Optimiser.ADAMW, Optimiser.MUON) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressSpec:
    """Compression of the local result."""

    TAG: ClassVar[bytes] = b"assay/compress-spec/2"
    transform: Transform
    k: int  # coefficients of each 64 x 64 block; 4096 = all of them
    rank: int  # 0, or two factors of this rank in place of coefficients (PowerSGD)
    values: Values
    feedback_micro: int  # beta: share of the unsent part kept each round
    keeps_error: bool  # false: what was not sent is dropped
    reset_rounds: int  # steps of a block after which its error begins anew; the longest that a lie can last


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSpec:
    """The network's outer step."""

    TAG: ClassVar[bytes] = b"assay/outer-spec/1"
    kind: Outer
    schedule: ScheduleSpec  # by round; with GRADIENT it also scales what enters the momentum
    momentum_micro: int  # NESTEROV: mu; ADAM, YOGI: beta1
    beta2_micro: int
    epsilon_nano: int  # ADAM, YOGI: tau
    decay_micro: int  # theta * (1 - lr * decay) before the step


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationSpec:
    """Aggregation of the nodes' updates: a rule of `verifier/aggregation/registry.py` by name."""

    TAG: ClassVar[bytes] = b"assay/aggregation-spec/2"
    name: Annotated[str, Max(48)]
    wire: Wire
    f: int  # Byzantine nodes it tolerates; a round with n <= 2f commits changes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSpec:
    """One communication method, complete."""

    TAG: ClassVar[bytes] = b"assay/rule-spec/3"
    local: LocalSpec
    compress: CompressSpec
    outer: OuterSpec
    aggregation: AggregationSpec
    fragments: int  # parts of the model, of which each round syncs one (Streaming DiLoCo); 1: all
    merge_ppm: int  # share of its own values that a node keeps in what was synced: a fragment, or all
    read_lag: int  # age, in rounds, of the parameters that local work starts from
    apply_lag: int  # age, in rounds, of the aggregate that a round applies

    @property
    def is_gradient(self) -> bool:
        """Whether local work is one gradient only (DeMo and kin)."""
        return self.local.optimiser is Optimiser.GRADIENT

    @property
    def is_dense(self) -> bool:
        """Whether every coefficient of a block is sent."""
        return self.compress.k == BLOCK_SIZE or self.compress.rank > 0

    @property
    def has_scale(self) -> bool:
        """Whether aggregates carry amplitudes, not only signs."""
        return self.outer.kind is not Outer.SIGN

    @property
    def is_local_kept(self) -> bool:
        """Whether a node continues from its own parameters, not from the network's."""
        return self.fragments > 1 or self.merge_ppm > 0

    @property
    def carries_inner(self) -> bool:
        """Whether a node's inner state outlives the round, so that commits bind it."""
        return not self.is_gradient and (self.local.keeps_moments or self.is_local_kept)

    @property
    def renewal_rounds(self) -> int:
        """Rounds in a row after which no block's error depends on the one before them; 0 if none is kept."""
        return self.compress.reset_rounds * self.fragments if self.compress.keeps_error else 0

    @property
    def lineage_rounds(self) -> int:
        """Rounds in a row of which a step's own is the last, and whose steps alone lead to what it makes."""
        if not self.carries_inner:
            return self.renewal_rounds + 1
        return max(self.renewal_rounds, 1) + self.compress.reset_rounds

    @property
    def idle_steps(self) -> int:
        """Steps that one unseen false step can spare its node: an inner state may hold what it steps by.

        Muon's moments are bounded by the present gradient, so that no step can be had without it.
        """
        is_bounded = not self.carries_inner or (
            self.local.optimiser is Optimiser.MUON and not self.is_local_kept
        )
        return 1 if is_bounded else self.compress.reset_rounds

    @property
    def reach_nano(self) -> int:
        """What an outer step with momentum makes of one aggregate over all rounds, in 10^-9 of it."""
        momentum = self.outer.momentum_micro if self.outer.kind is Outer.NESTEROV else 0
        return self.outer.schedule.peak_nano * PPM // (PPM - momentum)

    @property
    def segments(self) -> int:
        """Number of inner states that a commit binds: 0 for a gradient."""
        return 0 if self.is_gradient else -(-self.local.steps // self.local.segment)

    @property
    def sequences_per_round(self) -> int:
        """Least sequences that one node trains on in a round."""
        return self.local.steps * self.local.sequences

    @property
    def most_sequences_per_round(self) -> int:
        """Most sequences that one node may train on in a round."""
        return self.local.steps * self.local.most_sequences


def check_rule(rule: RuleSpec, need: Callable[[bool, str], None]) -> None:
    """Call `need(holds, text)` for every condition on a rule alone."""
    local, compress, outer = rule.local, rule.compress, rule.outer
    need(local.sequences >= 1, f"sequences is {local.sequences}, expected at least 1")
    need(
        local.sequences_max == 0 or local.sequences_max > local.sequences,
        f"sequences_max is {local.sequences_max}, expected more than sequences, {local.sequences}",
    )
    need(local.steps >= 1, f"{local.steps} inner steps, expected at least 1")
    need(0 <= local.proximal_micro <= 1000 * PPM, "the proximal weight must be 0 to 1000")
    if rule.is_gradient:
        need(local.steps == 1, f"a single gradient takes 1 inner step, not {local.steps}")
        need(local.segment == 0, "a single gradient has no segments")
        need(local.proximal_micro == 0, "a proximal term needs inner steps")
        need(not rule.is_local_kept, "fragments and merging need inner steps")
        need(compress.keeps_error, "a single gradient needs its momentum: keeps_error")
    else:
        need(1 <= local.segment <= local.steps, f"segments of {local.segment} of {local.steps} inner steps")
        need(
            local.steps <= SEGMENTS_MAX * local.segment,
            f"{local.steps} inner steps make more than {SEGMENTS_MAX} segments of {local.segment}",
        )
        need(not local.equalises, "only a single gradient is equalised: inner steps have their own optimiser")
        need(local.schedule.peak_nano > 0, "inner steps need a rate")
        need(
            local.decay_micro * local.schedule.peak_nano < PPM * 10**9,
            "inner rate times weight decay must stay below 1",
        )
    for name, beta in (("beta1", local.beta1_micro), ("beta2", local.beta2_micro)):
        need(0 <= beta < PPM, f"inner {name} is {beta} millionths, expected below 1")
    need(local.moments == 0 or local.epsilon_pico > 0, "AdamW and Muon need an epsilon above 0")
    need(local.moments > 0 or not local.keeps_moments, "only AdamW and Muon have moments to keep")

    need(
        1 <= compress.k <= BLOCK_SIZE // 2 or compress.k == BLOCK_SIZE,
        f"k is {compress.k}, expected 1 to {BLOCK_SIZE // 2}, or {BLOCK_SIZE} for all",
    )
    need(0 <= compress.rank <= RANK_MAX, f"rank is {compress.rank}, expected 0 to {RANK_MAX}")
    if compress.rank:
        need(compress.k == BLOCK_SIZE, f"factors stand for whole blocks: k must be {BLOCK_SIZE}")
        need(compress.values is Values.INT8, "factors are sent as INT8")
    need(0 <= compress.feedback_micro <= PPM, f"feedback is {compress.feedback_micro} millionths")
    need(
        not rule.is_gradient or compress.feedback_micro < PPM,
        f"beta is {compress.feedback_micro} millionths, expected below 1",
    )
    need(
        1 <= compress.reset_rounds <= RESET_MAX,
        f"the error begins anew every {compress.reset_rounds} rounds, 1 to {RESET_MAX} expected",
    )
    need(
        outer.kind is Outer.SIGN or compress.values is not Values.SIGN,
        "SIGN sends no amplitude, so only a sign step can follow; SIGN_MEAN does",
    )

    need(
        outer.kind is Outer.SIGN or rule.aggregation.wire is not Wire.SIGNS,
        "an aggregate of signs moves parameters by a sign step only",
    )
    need(
        rule.aggregation.wire is not Wire.MESSAGE
        or (rule.is_dense and rule.has_scale and compress.transform is Transform.NONE),
        "an aggregate is written like a message where messages are dense, without transform, with amplitudes",
    )
    need(0 <= outer.momentum_micro < PPM, f"outer momentum is {outer.momentum_micro} millionths")
    need(0 <= outer.beta2_micro < PPM, f"outer beta2 is {outer.beta2_micro} millionths")
    need(outer.schedule.peak_nano > 0, "the outer step needs a rate")
    is_adaptive = outer.kind in (Outer.ADAM, Outer.YOGI)
    need(not is_adaptive or outer.epsilon_nano > 0, "an adaptive outer step needs an epsilon above 0")
    for which, schedule in (("inner", local.schedule), ("outer", outer.schedule)):
        need(0 <= schedule.floor_ppm <= PPM, f"the {which} rate's floor must be 0 to 1 of its peak")
        need(schedule.warmup_rounds >= 0 and schedule.decay_rounds >= 0, f"the {which} rate's rounds")
        need(
            (schedule.curve is Curve.WSD) == (schedule.decay_rounds > 0),
            f"the {which} rate has {schedule.decay_rounds} decay rounds and the curve {schedule.curve.name}",
        )
    need(
        outer.decay_micro * outer.schedule.peak_nano < PPM * 10**9,
        "rate times weight decay must stay below 1",
    )
    need(1 <= rule.fragments <= FRAGMENTS_MAX, f"{rule.fragments} fragments, 1 to {FRAGMENTS_MAX} expected")
    need(0 <= rule.merge_ppm <= PPM, "the share merged must be 0 to 1")
    need(0 <= rule.read_lag <= LAG_MAX, f"read_lag is {rule.read_lag}, 0 to {LAG_MAX} expected")
    need(0 <= rule.apply_lag <= LAG_MAX, f"apply_lag is {rule.apply_lag}, 0 to {LAG_MAX} expected")
    need(not rule.is_local_kept or rule.read_lag == 0, "own parameters go with apply_lag; read_lag must be 0")
    need(
        not rule.is_local_kept or rule.apply_lag < rule.fragments,
        "what nodes merge must be applied before its next turn: apply_lag below fragments",
    )
    if outer.kind is Outer.NESTEROV and outer.momentum_micro < PPM:
        reach = f"an outer rate with momentum that makes {rule.reach_nano / 1e9:g} of each aggregate diverges"
        need(
            rule.fragments > 1 or rule.apply_lag * rule.reach_nano <= REACH_MAX_NANO,
            f"{reach} where it is applied {rule.apply_lag} rounds late: expected at most "
            f"{REACH_MAX_NANO / 1e9 / max(rule.apply_lag, 1):g}",
        )
        need(
            rule.is_dense or not compress.keeps_error or rule.reach_nano <= REACH_MAX_NANO,
            f"{reach} where what was not sent is sent later: expected at most {REACH_MAX_NANO / 1e9:g}",
        )
    need(rule.aggregation.f >= 0, f"f is {rule.aggregation.f}, expected at least 0")
