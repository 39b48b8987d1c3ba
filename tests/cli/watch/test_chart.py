"""Chart: a curve keeps its ends, its order and its size."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from assay.cli.watch.chart import braille

BLANK = "⠀"


def test_a_curve_that_falls_begins_at_the_top_left_and_ends_at_the_bottom_right():
    assert braille([3.0, 2.0, 1.0, 0.0], 4, 2, 1) == ["⠑⢄"]


def test_a_steep_step_is_a_line_without_a_gap():
    assert braille([1.0, 0.0], 2, 1, 2) == [chr(0x28B1), chr(0x28B8)]
    assert braille([0.0, 1.0], 2, 1, 2) == [chr(0x28B8), chr(0x2878)]


def test_half_a_run_fills_half_the_width():
    (line,) = braille([2.0, 1.0, 1.0, 1.0], 8, 8, 1)

    assert BLANK not in line[:4] and line[4:] == 4 * BLANK


def test_of_many_values_the_last_of_each_column_counts():
    values = [10.0] * 999 + [0.0]

    assert braille(values, 1000, 1, 1) == [chr(0x28B1)]


def test_without_values_it_is_blank():
    assert braille([], 10, 3, 2) == [3 * BLANK] * 2


@given(
    st.lists(st.floats(-1e6, 1e6), max_size=60),
    st.integers(0, 80),
    st.integers(1, 40),
    st.integers(1, 12),
)
def test_it_has_its_size_and_no_gap(values, total, width, height):
    lines = braille(values, total, width, height)

    assert [len(line) for line in lines] == [width] * height
    used = [any(line[x] != BLANK for line in lines) for x in range(width)]
    expected = math.ceil(max(2 * width * len(values) // max(total, len(values), 1), 1) / 2) if values else 0
    assert used == [True] * expected + [False] * (width - expected)
