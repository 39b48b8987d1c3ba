"""Limit: the tolerances by which one quantity of a step is judged between two execution classes.

Room: verifier (pure).
"""

from __future__ import annotations

from dataclasses import dataclass

TIMES_P99 = 10  # a limit over the 99th percentile of honest blocks
TIGHTEST = 2  # most a calibration may divide a policy by: pairs without noise here have some elsewhere


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
