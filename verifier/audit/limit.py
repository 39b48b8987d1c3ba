"""Limit: the tolerances by which one quantity of a step is judged between two execution classes, and what
measurements of honest blocks may be.

Room: verifier (pure).
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.protocol.types import Digest

TIMES_P99 = 10  # a limit over the 99th percentile of honest blocks
CAP = 10  # times T1: the distance no block may exceed
TIGHTEST = 2  # most a calibration may divide a policy by: pairs without noise here have some elsewhere
COUNT_MAX = 2**53  # every JSON reader represents it exactly
_PATH_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Tolerances for one pair of classes, in 10^-9.

    t1: median distance of the implied gradient, or of the displacement of one part of a state in a segment of
    inner steps. t2: its 95th percentile. t3: by how much of the block's largest coefficient one that was left
    out may exceed one that was sent. t4: the same for a value that was sent. profile: the median distance
    of honest audits; 0 if nobody measured it.
    """

    t1: int
    t2: int
    t3: int
    t4: int
    profile: int = 0


def within(policy: Limit, p99: int, profile: int) -> Limit:
    """The limit that samples with this 99th percentile yield: between half the policy and the policy."""
    t1 = min(max(TIMES_P99 * p99, policy.t1 // TIGHTEST), policy.t1)
    return Limit(t1=t1, t2=t1 * policy.t2 // policy.t1, t3=policy.t3, t4=policy.t4, profile=profile)


def check_source(path: str, exec_class: Digest, blocks: int) -> None:
    """Do nothing if a code path can have this name, class and number of samples.

    Raises:
        ValueError: it cannot.
    """
    if not 0 < len(path) <= _PATH_MAX or not path.isascii() or not path.isprintable():
        raise ValueError(f"path: {path!r:.80}, expected 1 to {_PATH_MAX} printable ASCII characters")
    if len(exec_class) != 32:
        raise ValueError(f"exec_class: {len(exec_class)} bytes, expected 64 hexadecimal digits")
    if not 1 <= blocks <= COUNT_MAX:
        raise ValueError(f"blocks: {blocks}, expected 1 to 2^53 samples")


def check_distances(median: int, p99: int, most: int, profile: int) -> None:
    """Do nothing if these can be statistics of one sample: median, percentile and maximum in order.

    Raises:
        ValueError: they cannot.
    """
    if not 0 <= median <= p99 <= most <= COUNT_MAX:
        raise ValueError(f"{median}, {p99}, {most}, expected samples with 0 <= median <= p99 <= most <= 2^53")
    if not 0 <= profile <= most:
        raise ValueError(f"profile: {profile}, an audit's median below 0 or above the largest distance")
