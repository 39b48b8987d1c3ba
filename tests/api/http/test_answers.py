"""Answers are made once for an ETag, and what is kept is bounded."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from assay.api.http.answers import Answers


class Text(BaseModel):
    text: str


def nobody() -> BaseModel:
    pytest.fail("the answer was made again")


def test_an_answer_is_made_once_and_carries_its_etag():
    answers = Answers()
    first = answers.of('"a"', lambda: Text(text="long"))

    again = answers.of('"a"', nobody)

    assert (again.body, again.headers["ETag"]) == (first.body, '"a"') == (b'{"text":"long"}', '"a"')
    assert answers.of('"b"', lambda: Text(text="other")).body == b'{"text":"other"}'


def test_what_was_used_longest_ago_goes_first():
    answers = Answers(bytes_max=30)  # two of 15
    for tag in "ab":
        answers.of(tag, lambda: Text(text="long"))
    answers.of("a", nobody)

    answers.of("c", lambda: Text(text="long"))

    answers.of("a", nobody)
    answers.of("c", nobody)
    assert answers.of("b", lambda: Text(text="new!")).body == b'{"text":"new!"}'


def test_an_answer_larger_than_all_room_is_given_and_not_kept():
    answers = Answers(bytes_max=14)

    for text in ("long", "next"):
        assert answers.of("a", lambda text=text: Text(text=text)).body == b'{"text":"%s"}' % text.encode()
