"""Limits: measured classes tighten the policy and never loosen it; a calibration file has one form."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.params import Precision
from assay.protocol.types import Digest
from assay.verifier.audit.limits import (
    FORMAT,
    POLICIES,
    TIGHTEST,
    Limits,
    MeasuredClass,
    parse_limits,
    shipped,
)

FP32, BF16 = Precision.FLOAT32, Precision.BFLOAT16
A, B, C = (Digest(bytes([n]) * 32) for n in range(3))


def a_class(**changes: object) -> MeasuredClass:
    facts = {
        "dtype": FP32, "path": "avx512", "exec_class": A,
        "blocks": 1000, "median": 500, "p99": 1200, "most": 2000, "profile": 600,
    }  # fmt: skip
    return MeasuredClass(**{**facts, **changes})


names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=64)
digests = st.binary(min_size=32, max_size=32).map(Digest)


@st.composite
def classes(draw: st.DrawFn) -> MeasuredClass:
    median, p99, most = sorted(draw(st.lists(st.integers(0, 2**53), min_size=3, max_size=3)))
    return MeasuredClass(
        dtype=draw(st.sampled_from(list(POLICIES))),
        path=draw(names),
        exec_class=draw(digests),
        blocks=draw(st.integers(1, 2**53)),
        median=median,
        p99=p99,
        most=most,
        profile=draw(st.integers(0, most)),
    )


@given(st.lists(classes(), max_size=6, unique_by=lambda one: (one.dtype, one.path)))
def test_parsing_inverts_encoding(rows):
    limits = Limits(tuple(rows))

    assert parse_limits(limits.encode()) == limits
    assert parse_limits(limits.encode()).digest() == limits.digest()


@given(classes())
def test_a_measured_class_never_loosens_its_policy(one):
    policy, limit = POLICIES[one.dtype], one.limit

    assert policy.t1 // TIGHTEST <= limit.t1 <= policy.t1
    assert limit.t2 <= policy.t2 and limit.t1 <= limit.t2
    assert (limit.t3, limit.t4) == (policy.t3, policy.t4)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_bytes_that_are_no_calibration_are_refused_in_words(body):
    with pytest.raises(ValueError):
        parse_limits(body)


FIELD = st.sampled_from([field.name for field in fields(MeasuredClass)])
VALUE = st.none() | st.booleans() | st.floats() | st.integers(-(2**60), -1) | st.just([]) | st.just("\u20ac")


@given(FIELD, VALUE)
def test_a_field_of_another_kind_is_refused(name, value):
    whole = json.loads(Limits((a_class(),)).encode())
    whole["classes"][0][name] = value

    with pytest.raises(ValueError, match=r"calibration: class 0"):
        parse_limits(json.dumps(whole).encode())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"blocks": 0}, "samples"),
        ({"median": 1300}, "median <= p99 <= most"),
        ({"p99": 2001}, "median <= p99 <= most"),
        ({"profile": 2001}, "above the largest"),
        ({"most": 2**53 + 1}, "most <= 2.53"),
        ({"median": -1}, "0 <= median"),
        ({"profile": -1}, "below 0"),
        ({"blocks": 2**53 + 1}, "1 to 2.53 samples"),
        ({"p99": 1200.0}, "whole number"),
        ({"p99": "1200"}, "whole number"),
        ({"blocks": True}, "whole number"),
        ({"dtype": "float16"}, "one of float32, bfloat16"),
        ({"path": ""}, "1 to 64"),
        ({"path": "x" * 65}, "1 to 64"),
        ({"path": "a\nb"}, "printable"),
        ({"path": "\x7f"}, "printable"),
        ({"path": "é"}, "ASCII"),
        ({"path": 7}, "path: 7, expected text"),
        ({"exec_class": "00"}, "64 hexadecimal"),
        ({"exec_class": "00" * 33}, "64 hexadecimal"),
        ({"exec_class": "zz" * 32}, "expected bytes in lower-case hexadecimal"),
        ({"exec_class": "0 " * 32}, "expected bytes in lower-case hexadecimal"),
        ({"exec_class": "AB" * 32}, "expected bytes in lower-case hexadecimal"),
        ({"more": 1}, "'more': unknown"),
    ],
)
def test_a_row_that_cannot_be_is_refused(change, words):
    whole = json.loads(Limits((a_class(),)).encode())
    whole["classes"][0] |= change

    with pytest.raises(ValueError, match=f"calibration: class 0.*{words}"):
        parse_limits(json.dumps(whole).encode())


@pytest.mark.parametrize("row", [["avx512"], "avx512", None, {}])
def test_what_is_no_row_is_refused(row):
    whole = json.loads(Limits().encode()) | {"classes": [row]}

    with pytest.raises(ValueError, match="calibration: class 0"):
        parse_limits(json.dumps(whole).encode())


def test_other_spellings_of_the_same_limits_are_refused():
    body = Limits((a_class(),)).encode()
    for other in (body + b" ", body.replace(b": ", b":"), json.dumps(json.loads(body)).encode()):
        with pytest.raises(ValueError, match="canonical"):
            parse_limits(other)


def test_one_path_twice_other_formats_and_endless_files_are_refused():
    for body, words in (
        (Limits((a_class(), a_class(blocks=7))).encode(), "twice"),
        (Limits((a_class(),)).encode().replace(FORMAT.encode(), b"assay/calibration/1"), "format"),
        (b"[" * 10**5, "nested"),
        (b" " * (1 << 20), "Expecting value"),
        (b" " * ((1 << 20) + 1), "at most 1048576"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_limits(body)


def test_a_class_nobody_measured_is_judged_by_the_policy_of_its_precision():
    limits = Limits((a_class(),))

    assert limits.of(A, FP32) == a_class().limit
    assert limits.of(A, FP32).t1 == 12_000
    for node, dtype in ((B, FP32), (C, FP32), (A, BF16)):
        assert limits.of(node, dtype) == POLICIES[dtype]


def test_of_several_paths_with_the_same_classes_the_loosest_holds():
    other = a_class(path="onednn-off", p99=1900)

    for order in ((a_class(), other), (other, a_class())):
        assert Limits(order).of(A, FP32) == other.limit


def test_policies_are_those_of_the_note_or_tighter():
    assert POLICIES[FP32].t1 <= 20_000 and POLICIES[FP32].t2 <= 100_000
    assert POLICIES[BF16].t1 <= 20_000_000 and POLICIES[BF16].t2 <= 30_000_000


def test_another_number_is_another_digest():
    assert Limits((a_class(),)).digest() != Limits((replace(a_class(), profile=601),)).digest()


def test_the_shipped_calibration_covers_both_precisions_with_thousands_of_blocks_each():
    limits = shipped()

    for dtype, t1 in ((FP32, 20_000), (BF16, 20_000_000)):
        rows = [one for one in limits.classes if one.dtype is dtype]
        assert len(rows) >= 5
        assert all(one.blocks >= 1000 and one.most <= t1 * 2 for one in rows)
        assert all(one.limit.t1 <= t1 for one in rows)
