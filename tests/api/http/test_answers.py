"""Answers are made once for an ETag, and what is kept is bounded."""

from __future__ import annotations

from threading import Event, Thread

import pytest
from pydantic import BaseModel

from assay.api.http import answers as module
from assay.api.http.answers import MAKERS, Answers


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


def test_few_answers_are_made_at_once_unless_those_before_them_wait(monkeypatch: pytest.MonkeyPatch):
    answers, begun, may_end = Answers(), list[int](), Event()

    def make(at: int) -> BaseModel:
        begun.append(at)
        assert may_end.wait(60)
        return Text(text="long")

    def asked(*numbers: int) -> list[Thread]:
        threads = [Thread(target=answers.of, args=(str(at), lambda at=at: make(at))) for at in numbers]
        for thread in threads:
            thread.start()
        return threads

    for _ in range(MAKERS):  # which leave their places to others
        with pytest.raises(ZeroDivisionError):
            answers.of("none", lambda: Text(text=str(1 // 0)))
    threads = asked(*range(MAKERS + 3))
    for thread in threads:
        thread.join(0.05)
    assert len(begun) == MAKERS
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    threads += asked(99)
    threads[-1].join(0.5)
    assert begun[MAKERS:] == [99]

    may_end.set()
    for thread in threads:
        thread.join(60)
    assert sorted(begun) == [*range(MAKERS + 3), 99]
