"""Segment limits: how far an honest machine may differ from the reference class after inner steps.

Room: verifier (pure). A segment is judged only of classes that were measured, over at least as many steps:
how noise grows over several steps depends on more than kernels. So an unmeasured class has no limits, and no
measurement may loosen the policy.

AdamW's first steps turn noise where a gradient is nearly zero into whole steps, so segments that begin with
almost fresh moments are a regime of their own. Three parts of a state are compared, each relative to its
displacement in the segment (displacement.py).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from assay.protocol.encoding.json_text import plain, read_plain
from assay.protocol.params import Precision
from assay.protocol.types import Digest
from assay.protocol.update_rule import LocalSpec, Optimiser
from assay.verifier.audit.limit import CAP, Limit, check_distances, check_source, within

FRESH_STEPS = 5  # inner steps after which moments are no longer fresh
STEPS_MAX = 1 << 16
_NO_MESSAGE = 1  # a part of a state is not sent: T3 and T4 do not apply


class Regime(enum.Enum):
    """Kind of segment: optimiser, and whether its moments are fresh at the start."""

    SGD = "sgd"
    ADAMW = "adamw"
    FRESH = "adamw-fresh"
    MUON = "muon"

    @property
    def parts(self) -> int:
        """Parts of a state: the parameters, and two moments of AdamW or Muon."""
        return 1 if self is Regime.SGD else 3


def regime_of(local: LocalSpec, count: int) -> Regime:
    """The regime of a segment that begins this many inner steps after the moments were zero."""
    if local.optimiser is Optimiser.SGD:
        return Regime.SGD
    if local.optimiser is Optimiser.MUON:
        return Regime.MUON
    return Regime.FRESH if count < FRESH_STEPS else Regime.ADAMW


def _limit(t1: int, t2: int) -> Limit:
    return Limit(t1=t1, t2=t2, t3=_NO_MESSAGE, t4=_NO_MESSAGE)


def _float32(t1: int) -> Limit:
    return _limit(t1, 5 * t1)


def _bfloat16(t1: int) -> Limit:
    return _limit(t1, 3 * t1 // 2)


# Parameters, first moment, second moment; docs/results/tolerance.md. Muon in bfloat16 has none:
# orthogonalising turns the noise of small singular values into whole directions, so it is not judged.
SEGMENT_POLICIES: Mapping[tuple[Precision, Regime], tuple[Limit, ...]] = {
    (Precision.FLOAT32, Regime.SGD): (_float32(100_000),),
    (Precision.FLOAT32, Regime.ADAMW): (_float32(100_000),) * 3,
    # Its 99th percentiles on gpt-1m, 5 steps, torch against the reference class: 7e-5, 3e-5, 2e-5.
    (Precision.FLOAT32, Regime.MUON): (_float32(100_000),) * 3,
    (Precision.FLOAT32, Regime.FRESH): (_float32(5_000_000), _float32(1_000_000), _float32(1_000_000)),
    (Precision.BFLOAT16, Regime.SGD): (_bfloat16(20_000_000),),
    (Precision.BFLOAT16, Regime.ADAMW): (
        _bfloat16(10_000_000),
        _bfloat16(20_000_000),
        _bfloat16(20_000_000),
    ),
    (Precision.BFLOAT16, Regime.FRESH): (
        _bfloat16(100_000_000),
        _bfloat16(60_000_000),
        _bfloat16(60_000_000),
    ),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """Distances of one part of a state, 10^-9, beyond rounding. profile: the largest median of one audit."""

    median: int
    p99: int
    most: int
    profile: int

    def __post_init__(self) -> None:
        check_distances(self.median, self.p99, self.most, self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSegment:
    """One code path against the reference class, for segments of one regime of up to `steps` steps.

    path: a name for people. blocks: samples of each part. seen: the parameters, then the moments.
    """

    dtype: Precision
    regime: Regime
    steps: int
    path: str
    exec_class: Digest
    blocks: int
    seen: tuple[Seen, ...]

    def __post_init__(self) -> None:
        check_source(self.path, self.exec_class, self.blocks)
        if not 1 <= self.steps <= STEPS_MAX:
            raise ValueError(f"steps: {self.steps}, expected samples of 1 to {STEPS_MAX} steps")
        if len(self.seen) != self.regime.parts:
            raise ValueError(f"seen: {len(self.seen)}, expected {self.regime.parts} parts of a state")

    @property
    def limits(self) -> tuple[Limit, ...] | None:
        """The limits that these samples yield for each part; None if honest blocks exceed the policy."""
        policies = SEGMENT_POLICIES.get((self.dtype, self.regime))
        if policies is None:
            return None
        parts = tuple(zip(policies, self.seen, strict=True))
        if any(part.p99 > policy.t1 or part.most > CAP * policy.t1 for policy, part in parts):
            return None
        return tuple(within(policy, part.p99, part.profile) for policy, part in parts)


def limits_of(
    measured: Iterable[MeasuredSegment],
    node: Digest,
    dtype: Precision,
    regime: Regime,
    steps: int,
) -> tuple[Limit, ...] | None:
    """The limits for a segment of one class judged in the reference class, by part; None if it is not judged.

    The shortest measured length that covers it counts; of several code paths of this class the loosest.
    """
    sought = node, dtype, regime
    found = [
        one for one in measured if (one.exec_class, one.dtype, one.regime) == sought and one.steps >= steps
    ]
    least = min((one.steps for one in found), default=0)
    allowed = [one.limits for one in found if one.steps == least]
    if not allowed or None in allowed:
        return None
    parts = zip(*(limits for limits in allowed if limits is not None), strict=True)
    return tuple(max(part, key=lambda limit: (limit.t1, limit.profile)) for part in parts)


def plain_segment(one: MeasuredSegment) -> dict[str, Any]:
    """A segment's row in JSON: what was seen of each part is a list of numbers there."""
    row: dict[str, Any] = plain(one)
    return row | {"seen": [astuple(part) for part in one.seen]}


def measured_segment(row: Any, where: str) -> MeasuredSegment:
    """The segment of a JSON row.

    Raises:
        ValueError: not of this form, or numbers out of range.
    """
    if isinstance(row, dict) and isinstance(row.get("seen"), list):
        row = row | {"seen": [_named(part, f"{where}: seen") for part in row["seen"]]}
    return read_plain(MeasuredSegment, row, where)


def _named(part: Any, where: str) -> dict[str, Any]:
    names = [field.name for field in fields(Seen)]
    if not isinstance(part, list) or len(part) != len(names):
        raise ValueError(f"{where} must hold median, p99, most and profile")
    return dict(zip(names, part, strict=True))
