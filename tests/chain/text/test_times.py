"""Moments: a person reads when, and how long that still is."""

from __future__ import annotations

import pytest

from assay.chain.text.times import span_text, time_text, when_text


def test_a_moment_is_told_with_its_distance():
    assert time_text(1_795_000_000) == "2026-11-18 11:06:40 UTC"
    assert when_text(1_795_000_000, 1_794_000_000) == "2026-11-18 11:06:40 UTC (in 11 d 13 h)"
    assert when_text(1_795_000_000, 1_795_000_061) == "2026-11-18 11:06:40 UTC (1 min 1 s ago)"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3_660, "1 h 1 min"), (86_401, "1 d 1 s")]
)
def test_a_span_is_its_two_largest_units(seconds: int, text: str):
    assert span_text(seconds) == text


@pytest.mark.parametrize("unix_s", [2**64 - 1, 2**256 - 1, 253_402_300_800, -1])
def test_a_time_that_no_calendar_holds_is_still_a_text(unix_s: int):
    assert time_text(unix_s) == "after the year 9999"
