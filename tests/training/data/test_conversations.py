"""Conversations: lines as fine-tuning files elsewhere have them; anything else is named with its line."""

from __future__ import annotations

import json

import pytest

from assay.protocol.errors import ConfigError
from assay.training.data.conversations import conversation_of, conversations_in
from assay.training.data.documents import documents_in

ASKED = {"role": "user", "content": "2 + 2?"}
ANSWERED = {"role": "assistant", "content": "4"}


def test_messages_and_prompts_are_read():
    found = conversation_of(
        {"messages": [{"role": "system", "content": "Be short."}, ASKED, ANSWERED], "id": 7}
    )

    assert [(one.role, one.content, one.is_trained) for one in found] == [
        ("system", "Be short.", False), ("user", "2 + 2?", False), ("assistant", "4", True),
    ]  # fmt: skip
    assert conversation_of({"prompt": "2 + 2?", "completion": "4"}) == found[1:]


def test_an_answer_of_weight_0_is_not_trained_on():
    found = conversation_of(
        {"messages": [ASKED, {**ANSWERED, "weight": 0}, ASKED, {**ANSWERED, "weight": 1}]}
    )

    assert [one.is_trained for one in found] == [False, False, False, True]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            {"text": "2 + 2"},
            'expected an object with "messages", or with "prompt" and "completion", found text',
        ),
        ([ASKED], "found list"),
        ({"messages": []}, "no list with messages"),
        ({"messages": [ASKED]}, "no message of the assistant to train on"),
        ({"messages": [ASKED, {**ANSWERED, "weight": 0}]}, "no message of the assistant to train on"),
        ({"messages": [ASKED, {**ANSWERED, "weight": 0.5}]}, "message 2: its weight is 0.5, expected 0 or 1"),
        ({"messages": [ASKED, "4"]}, "message 2: expected an object, found str"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "its role is 'tool', expected one of system, user",
        ),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "message 1: its role is"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "expected text, found list"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "tool_calls cannot be trained on"),
        ({"messages": [ASKED, ANSWERED], "tools": [{"type": "function"}]}, "tools, which are not supported"),
        ({"prompt": ["x"], "completion": "y"}, '"prompt": expected text, found list'),
    ],
)
def test_what_is_no_conversation_is_named_with_its_file_and_line(tmp_path, value, words):
    path = tmp_path / "chat.jsonl"
    path.write_text(f"\n{json.dumps({'messages': [ASKED, ANSWERED]})}\n{json.dumps(value)}\n")
    found = conversations_in(path)
    next(found)

    with pytest.raises(ConfigError) as caught:
        next(found)

    assert str(caught.value).startswith(f"data {path}, line 3: ") and words in str(caught.value)


def test_who_reads_conversations_as_text_is_told_the_format(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [ASKED, ANSWERED]}))

    with pytest.raises(ConfigError, match=r'line 1: expected .* "text", found messages; .* format = "chat"'):
        list(documents_in(path, "jsonl", "text"))
