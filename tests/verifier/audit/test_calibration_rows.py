"""Calibration rows: each field of a row is taken up to its bounds and refused beyond them."""

from __future__ import annotations

import pytest

from assay.verifier.audit import calibration_rows as rows


def test_a_row_has_exactly_the_expected_fields():
    row = {"a": 1, "b": 2}

    assert rows.checked_fields(row, {"a", "b"}, "row 3") == row
    for other in ({"a"}, {"a", "b", "c"}, {"a", "c"}):
        with pytest.raises(ValueError, match="row 3"):
            rows.checked_fields(row, other, "row 3")
    for no_row in (["a", "b"], "ab", None):
        with pytest.raises(ValueError, match="row 3"):
            rows.checked_fields(no_row, {"a", "b"}, "row 3")


def test_a_name_stands_for_one_of_its_kinds():
    assert rows.one_of("x", {"x": 1, "y": 2}, "kind") == 1
    for unknown in ("z", "", 1, None, ["x"]):
        with pytest.raises(ValueError, match="kind"):
            rows.one_of(unknown, {"x": 1, "y": 2}, "kind")


def test_a_count_is_a_whole_number_that_json_keeps():
    assert [rows.count(value, "n") for value in (0, 1, 2**53)] == [0, 1, 2**53]
    for value in (-1, 2**53 + 1, 1.0, True, "1", None):
        with pytest.raises(ValueError, match="n must"):
            rows.count(value, "n")


def test_a_name_has_1_to_64_printable_ascii_characters():
    assert [rows.name(value, "path") for value in ("x", "a b", "x" * 64)] == ["x", "a b", "x" * 64]
    for value in ("", "x" * 65, "é", "a\nb", "\x7f", 7, None):
        with pytest.raises(ValueError, match="path"):
            rows.name(value, "path")


def test_an_execution_class_is_64_hexadecimal_digits():
    assert rows.execution_class("ab" * 32, "class") == b"\xab" * 32
    for value in ("ab" * 31, "ab" * 31 + "a", "ab" * 33, "xy" * 32, "ab " * 21 + "a", b"ab" * 32, None):
        with pytest.raises(ValueError, match="class"):
            rows.execution_class(value, "class")


@pytest.mark.parametrize(
    ("median", "p99", "most", "profile"),
    [(0, 0, 0, 0), (1, 1, 1, 1), (1, 2, 3, 3), (1, 1, 2, 0), (1, 2, 2, 0)],
)
def test_statistics_of_one_sample_are_in_order(median, p99, most, profile):
    rows.check_order(median, p99, most, profile, "row")


@pytest.mark.parametrize(
    ("median", "p99", "most", "profile"),
    [(2, 1, 3, 0), (1, 3, 2, 0), (3, 2, 1, 0), (1, 2, 3, 4), (0, 0, 0, 1)],
)
def test_statistics_that_no_sample_has_are_refused(median, p99, most, profile):
    with pytest.raises(ValueError, match="row"):
        rows.check_order(median, p99, most, profile, "row")
