"""JSON from strangers: parsed as it is, and refused where it would end the process."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.encoding.json_text import NESTED_MAX, canonical_json, parse_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(values)
def test_what_is_parsed_is_what_json_says(value):
    text = json.dumps(value)

    assert parse_json(text) == parse_json(text.encode()) == value


@pytest.mark.parametrize(("head", "tail"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_taken_to_its_bound_and_refused_beyond_it(head, tail):
    def nested(depth):
        return head * depth + ("1" if head != "[" else "") + tail * depth

    parse_json(nested(NESTED_MAX))
    with pytest.raises(ValueError, match=f"nested more than {NESTED_MAX} deep"):
        parse_json(nested(NESTED_MAX + 1))


@pytest.mark.parametrize("body", ["[" * 1_000_000, '"' + "\\\\" * 500_000 + "[" * 500_000, '{"a":' * 300_000])
def test_no_text_ends_the_process_whatever_the_limit_is_raised_to(body, monkeypatch):
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # as py_ecc does
    try:
        with pytest.raises(ValueError):
            parse_json(body)
    finally:
        sys.setrecursionlimit(limit)


def test_brackets_in_texts_are_text():
    text = "[{" * 1000 + '"' + "\\" + "]}" * 10 + '\\"[['

    assert parse_json(json.dumps([text, {text: text}])) == [text, {text: text}]


def test_canonical_text_has_one_form_and_holds_neither_floats_nor_keys_that_are_no_text():
    assert canonical_json({"b": [1, True], "a": "é"}) == '{"a":"é","b":[1,true]}\n'.encode()
    for value in (1.0, [1.0], {"a": {"b": 1.0}}):
        with pytest.raises(TypeError, match="the float"):
            canonical_json(value)
    with pytest.raises(TypeError, match="the key 1, expected text"):
        canonical_json({1: "a"})
