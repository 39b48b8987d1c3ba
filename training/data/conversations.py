"""Conversations: reads messages, or prompts with completions, out of JSON Lines.

Room: training (edge: reads files). The lines are those of fine-tuning files elsewhere (OpenAI's, TRL's):

    {"messages": [{"role": "system", "content": "..."}, {"role": "user", ...}, {"role": "assistant", ...}]}
    {"prompt": "...", "completion": "..."}       one message of a user, and its answer

An assistant's message with `"weight": 0` is read and not trained on. What a model would have to be shown
otherwise (tools, parts that are no text) is refused, so that nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.training.data.documents import parsed_lines

ROLES = ("system", "user", "assistant")
ASSISTANT = "assistant"
_KEYS = {"role", "content", "weight", "name"}  # of a message; a name is for the reader


@dataclass(frozen=True, slots=True)
class Message:
    """One message. is_trained: whether a model learns to write it; only an assistant's may be."""

    role: str
    content: str
    is_trained: bool


Conversation = tuple[Message, ...]


def conversations_in(path: Path) -> Iterator[tuple[str, Conversation]]:
    """The conversations of a JSON Lines file in its order, see `parsed_lines`."""
    return parsed_lines(path, conversation_of)


def conversation_of(value: object) -> Conversation:
    """The conversation that a parsed line describes.

    Raises:
        ValueError: it is of neither shape, or nothing in it is to be trained on.
    """
    if isinstance(value, dict) and "messages" in value:
        if value.get("tools") or value.get("functions"):
            raise ValueError("a conversation with tools, which are not supported")
        found = value["messages"]
        if not isinstance(found, list) or not found:
            raise ValueError('"messages" is no list with messages')
        messages = tuple(_message(one, number) for number, one in enumerate(found, 1))
    elif isinstance(value, dict) and "prompt" in value and "completion" in value:
        messages = (
            Message("user", _text(value["prompt"], '"prompt"'), False),
            Message(ASSISTANT, _text(value["completion"], '"completion"'), True),
        )
    else:
        known = ", ".join(sorted(map(str, value))[:8]) if isinstance(value, dict) else type(value).__name__
        raise ValueError(
            f'expected an object with "messages", or with "prompt" and "completion", found {known or "none"}'
        )
    if not any(message.is_trained for message in messages):
        raise ValueError("no message of the assistant to train on")
    return messages


def _message(value: object, number: int) -> Message:
    where = f"message {number}"
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, found {type(value).__name__}")
    if unknown := sorted(str(key) for key in value if key not in _KEYS and value[key] is not None):
        raise ValueError(f"{where}: {', '.join(unknown[:8])} cannot be trained on, only text can")
    role = value.get("role")
    if role not in ROLES:
        raise ValueError(f"{where}: its role is {role!r}, expected one of {', '.join(ROLES)}")
    content = _text(value.get("content"), f'{where}, "content"')
    return Message(role, content, _weight(value, where) if role == ASSISTANT else False)


def _weight(value: Mapping[str, Any], where: str) -> bool:
    weight = value.get("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        raise ValueError(f"{where}: its weight is {weight!r}, expected 0 or 1")
    return bool(weight)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected text, found {type(value).__name__}")
    return value.encode("utf-8", "replace").decode()  # a lone surrogate has no UTF-8
