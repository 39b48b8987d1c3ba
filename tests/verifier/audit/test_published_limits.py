"""The tolerances are those of docs/results/tolerance.md: auditors with others would judge otherwise."""

from __future__ import annotations

from assay.protocol.params import Precision
from assay.verifier.audit import displacement, drift, limit, segment_limits, tolerance
from assay.verifier.audit.limits import POLICIES
from assay.verifier.audit.segment_limits import SEGMENT_POLICIES, Regime

FP32, BF16 = Precision.FLOAT32, Precision.BFLOAT16


def test_a_step_is_judged_by_the_published_limits() -> None:
    found = {dtype: (one.t1, one.t2, one.t3, one.t4, one.profile) for dtype, one in POLICIES.items()}

    assert found == {
        FP32: (20_000, 100_000, 1_000, 1_000, 0),
        BF16: (20_000_000, 30_000_000, 1_000, 1_000, 0),
    }
    assert (tolerance.FLOOR, limit.CAP, tolerance.SMALL_CAP) == (0.001, 10, 100)
    assert (tolerance.BAND, tolerance.CAP_BAND, tolerance.EXCUSED) == (5, 2, 3)
    assert (tolerance.FACTOR_STEPS, tolerance.ROUNDING, tolerance.NUDGE) == (16 / 127, 2**-23, 2**-20)
    assert (limit.TIMES_P99, limit.TIGHTEST) == (10, 2)


def test_a_segment_is_judged_by_the_published_limits() -> None:
    found = {name: tuple((one.t1, one.t2) for one in parts) for name, parts in SEGMENT_POLICIES.items()}

    tight, wide = (100_000, 500_000), (1_000_000, 5_000_000)
    assert found == {
        (FP32, Regime.SGD): (tight,),
        (FP32, Regime.ADAMW): (tight,) * 3,
        (FP32, Regime.MUON): (tight,) * 3,
        (FP32, Regime.FRESH): ((5_000_000, 25_000_000), wide, wide),
        (BF16, Regime.SGD): ((20_000_000, 30_000_000),),
        (BF16, Regime.ADAMW): ((10_000_000, 15_000_000), *((20_000_000, 30_000_000),) * 2),
        (BF16, Regime.FRESH): ((100_000_000, 150_000_000), *((60_000_000, 90_000_000),) * 2),
    }
    own = displacement.OWN_WORK
    assert (own.t1, own.t2, own.t3, own.t4, own.profile) == (2_000, 4_000, 1_000, 1_000, 0)
    assert (segment_limits.FRESH_STEPS, segment_limits.STEPS_MAX) == (5, 65_536)


def test_drift_is_judged_by_the_published_limits() -> None:
    assert (drift.BUCKETS, drift.MEMORY, drift.BIAS_MAX) == (512, 63 / 64, 4.0)
    assert (drift.SLACK, drift.LEVEL_MAX, drift.STEP_MAX) == (1.2, 4.0, 1.0)
