"""Plain JSON: what `json` reads, but for nesting that would kill the process."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.plainjson import DEPTH_MAX, parse_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(values)
def test_it_reads_what_json_writes(value):
    assert parse_json(json.dumps(value).encode()) == value


def test_brackets_inside_text_are_no_nesting():
    value = {"text": '[{"' * 10_000 + "\\", "list": ["[" * 500] * 300}

    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":', '"x", [', '["\\"", ['])
def test_deep_nesting_is_refused_however_high_the_recursion_limit_is(opening):
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        with pytest.raises(ValueError, match=r"nested deeper|Extra data"):
            parse_json(opening.encode() * 1_000_000)
    finally:
        sys.setrecursionlimit(before)


def test_nesting_up_to_the_bound_is_read():
    body = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    parse_json(body)
    with pytest.raises(ValueError, match=f"deeper than {DEPTH_MAX}"):
        parse_json(b"[" + body + b"]")
