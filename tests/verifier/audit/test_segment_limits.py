"""Segment limits: nothing is judged that was not measured, nor more loosely than by the policy."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.params import Precision
from assay.protocol.types import Digest
from assay.testing.specs import a_rule
from assay.training.methods.choices import SEGMENT_STEPS
from assay.verifier.audit.limit import CAP, TIGHTEST
from assay.verifier.audit.limits import Limits, parse_limits, shipped
from assay.verifier.audit.segment_limits import (
    FRESH_STEPS,
    SEGMENT_POLICIES,
    MeasuredSegment,
    Regime,
    Seen,
    limits_of,
    regime_of,
)

FP32, BF16 = Precision.FLOAT32, Precision.BFLOAT16
A, B, C = (Digest(bytes([n]) * 32) for n in range(3))


def a_segment(**changes: object) -> MeasuredSegment:
    facts = {
        "dtype": FP32, "regime": Regime.ADAMW, "steps": 5, "path": "avx512", "exec_class": A, "blocks": 1000,
        "seen": (Seen(500, 1200, 2000, 600), Seen(0, 7000, 7100, 0), Seen(1, 2, 3, 3)),
    }  # fmt: skip
    return MeasuredSegment(**{**facts, **changes})


@st.composite
def segments(draw: st.DrawFn) -> MeasuredSegment:
    regime = draw(st.sampled_from(Regime))
    seen = []
    for _ in range(regime.parts):
        median, p99, most = sorted(draw(st.lists(st.integers(0, 2**53), min_size=3, max_size=3)))
        seen.append(Seen(median, p99, most, draw(st.integers(0, most))))
    names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=64)
    digests = st.binary(min_size=32, max_size=32).map(Digest)
    return MeasuredSegment(
        dtype=draw(st.sampled_from([FP32, BF16])),
        regime=regime,
        steps=draw(st.integers(1, 1 << 16)),
        path=draw(names),
        exec_class=draw(digests),
        blocks=draw(st.integers(1, 2**53)),
        seen=tuple(seen),
    )


def name_of(one: MeasuredSegment) -> object:
    return one.dtype, one.regime, one.steps, one.path


@given(st.lists(segments(), max_size=5, unique_by=name_of))
def test_parsing_inverts_encoding(rows):
    limits = Limits(segments=tuple(rows))

    assert parse_limits(limits.encode()) == limits


@given(segments())
def test_a_measured_segment_never_loosens_its_policy_and_honest_blocks_beyond_it_are_not_judged(pair):
    policies = SEGMENT_POLICIES.get((pair.dtype, pair.regime))
    if policies is None or any(
        part.p99 > policy.t1 or part.most > CAP * policy.t1
        for part, policy in zip(pair.seen, policies, strict=True)
    ):
        assert pair.limits is None
        return
    for limit, policy in zip(pair.limits, policies, strict=True):
        assert policy.t1 // TIGHTEST <= limit.t1 <= policy.t1 and limit.t1 <= limit.t2 <= policy.t2


def test_one_honest_block_beyond_what_no_block_may_exceed_leaves_a_path_unjudged():
    """One block convicts, whatever all others say."""
    policy = SEGMENT_POLICIES[FP32, Regime.SGD][0]
    for beyond in (0, 1):
        seen = (Seen(0, 0, CAP * policy.t1 + beyond, 0),)
        assert (a_segment(regime=Regime.SGD, seen=seen).limits is None) == bool(beyond)


def test_a_policy_exists_for_every_precision_kind_and_part_but_muon_in_bfloat16():
    kinds = {(dtype, regime) for dtype in (FP32, BF16) for regime in Regime}
    assert set(SEGMENT_POLICIES) == kinds - {(BF16, Regime.MUON)}
    assert all(len(policies) == regime.parts for (_, regime), policies in SEGMENT_POLICIES.items())


def between(*pairs: MeasuredSegment, **changes: object):
    sought = {"node": A, "dtype": FP32, "regime": Regime.ADAMW, "steps": 5, **changes}
    return limits_of(pairs, **sought)


def test_what_was_not_measured_is_not_judged():
    assert between(a_segment()) == a_segment().limits
    assert between(a_segment(), steps=1) == a_segment().limits
    for change in (
        {"node": B}, {"node": C}, {"dtype": BF16}, {"regime": Regime.FRESH},
        {"regime": Regime.SGD}, {"steps": 6},
    ):  # fmt: skip
        assert between(a_segment(), **change) is None
    assert between() is None


def test_the_shortest_length_that_covers_a_segment_counts():
    short, long = a_segment(), a_segment(steps=20, seen=(Seen(9000, 9000, 9000, 9000),) * 3)
    for order in ((short, long), (long, short)):
        assert between(*order, steps=5) == short.limits
        assert between(*order, steps=6) == long.limits
        assert between(*order, steps=21) is None


def test_of_several_paths_with_the_same_classes_the_loosest_of_each_part_holds():
    other = a_segment(path="onednn-off", seen=(Seen(1, 9000, 9000, 1), Seen(1, 1, 1, 1), Seen(1, 2, 3, 3)))
    for order in ((a_segment(), other), (other, a_segment())):
        found = between(*order)
        assert [limit.t1 for limit in found] == [90_000, 70_000, 50_000]
        assert [limit.profile for limit in found] == [1, 0, 3]


def test_one_path_whose_honest_blocks_are_too_far_apart_leaves_all_of_the_same_classes_unjudged():
    beyond = SEGMENT_POLICIES[FP32, Regime.ADAMW][1].t1 + 1
    noisy = a_segment(
        path="onednn-off", seen=(Seen(0, 0, 0, 0), Seen(0, beyond, beyond, 0), Seen(0, 0, 0, 0))
    )

    assert noisy.limits is None
    assert between(a_segment(), noisy) is None


def test_moments_are_fresh_for_a_few_steps_and_sgd_has_none():
    adamw, sgd = a_rule("sparseloco").local, a_rule("fedavg").local

    assert [regime_of(adamw, n) for n in (0, FRESH_STEPS - 1)] == [Regime.FRESH] * 2
    assert [regime_of(adamw, n) for n in (FRESH_STEPS, 10**6)] == [Regime.ADAMW] * 2
    assert regime_of(sgd, 0) is regime_of(sgd, 10**6) is Regime.SGD


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"blocks": 0}, "samples"),
        ({"steps": 0}, "samples of 1 to"),
        ({"steps": (1 << 16) + 1}, "samples of 1 to"),
        ({"steps": True}, "whole number"),
        ({"regime": "adam"}, "one of sgd, adamw"),
        ({"dtype": "float16"}, "one of float32, bfloat16"),
        ({"seen": []}, "3 parts"),
        ({"seen": [[1, 2, 3, 3]]}, "3 parts"),
        ({"seen": [[1, 2, 3, 3]] * 4}, "3 parts"),
        ({"seen": {"a": 1}}, "expected a list"),
        ({"seen": [[1, 2, 3]] * 3}, "median, p99, most and profile"),
        ({"seen": ["1233"] * 3}, "median, p99, most and profile"),
        ({"seen": [[3, 2, 3, 3]] * 3}, "median <= p99"),
        ({"seen": [[1, 2, 3, 4]] * 3}, "above the largest"),
        ({"seen": [[1, 2, 3.0, 3]] * 3}, "whole number"),
        ({"seen": [[-1, 2, 3, 3]] * 3}, "0 <= median"),
        ({"path": ""}, "1 to 64"),
        ({"exec_class": "00"}, "64 hexadecimal"),
        ({"more": 1}, "'more': unknown"),
    ],
)
def test_a_row_that_cannot_be_is_refused(change, words):
    whole = json.loads(Limits(segments=(a_segment(),)).encode())
    whole["segments"][0] |= change

    with pytest.raises(ValueError, match=f"calibration: segment 0.*{words}"):
        parse_limits(json.dumps(whole).encode())


def test_one_segment_twice_and_a_list_that_is_none_are_refused():
    twice = Limits(segments=(a_segment(), a_segment(blocks=7))).encode()
    with pytest.raises(ValueError, match="one path twice"):
        parse_limits(twice)
    assert parse_limits(Limits(segments=(a_segment(), a_segment(steps=7))).encode())
    for other in (None, {}, "rows", [[]] * 5000):
        whole = json.loads(Limits().encode()) | {"segments": other}
        with pytest.raises(ValueError, match="segments must be a list"):
            parse_limits(json.dumps(whole).encode())


def test_another_segment_row_is_another_digest():
    one, other = (Limits(segments=(a_segment(blocks=count),)) for count in (1, 2))
    assert one.digest() != other.digest() != Limits().digest()


def test_the_shipped_calibration_covers_the_segments_of_the_shipped_methods():
    rows = shipped().segments
    for dtype, regime in SEGMENT_POLICIES:
        mine = [row for row in rows if (row.dtype, row.regime) == (dtype, regime)]
        assert len(mine) >= 5
        assert all(row.steps >= SEGMENT_STEPS and row.blocks >= 400 for row in mine)
        assert all(row.limits is not None for row in mine)
