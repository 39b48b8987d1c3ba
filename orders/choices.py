"""Order choices: reads and tokenises the multiple-choice items that an order names.

Room: orders (edge: reads one file). JSON Lines, an item each, in the names of `lm-evaluation-harness`:
`{"query": "2 + 3 =", "choices": ["4", "5"], "gold": 1}`. Other keys are left unread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.protocol.errors import ConfigError
from assay.protocol.params import ITEMS_MAX, ModelSpec
from assay.training.data.choices import (
    FILE_BYTES_MAX,
    NAME_CHARS_MAX,
    Choices,
    Item,
    check_choices,
    tokenised,
)
from assay.training.data.documents import json_lines
from assay.training.data.tokenizer import Tokenizer

KEYS = ("query", "choices", "gold")


def choices_in(path: Path, tokenizer: Tokenizer, model: ModelSpec) -> Choices:
    """The items of a JSON Lines file, with their tokens.

    Args:
        path: The file.
        tokenizer: The run's.
        model: Its context bounds the tokens of an item.

    Raises:
        ConfigError: which line is no item, or cannot be scored, and why.
    """
    items: list[Item] = []
    for where, value in json_lines(path):
        if len(items) == ITEMS_MAX:
            raise ConfigError(f"{where}: an item too many, expected at most {ITEMS_MAX}")
        try:
            items.append(tokenised(*_parts(value), tokenizer))
        except ValueError as cause:
            raise ConfigError(f"{where}: {cause}") from None
    choices = Choices(name=path.name[:NAME_CHARS_MAX], items=tuple(items))
    try:
        check_choices(choices, context=model.context, vocabulary=tokenizer.vocabulary)
    except ValueError as cause:
        raise ConfigError(f"data {path}: {cause}") from None
    if (size := len(choices.to_json())) > FILE_BYTES_MAX:
        raise ConfigError(f"data {path}: {size:,} bytes with tokens, expected at most {FILE_BYTES_MAX:,}")
    return choices


def _parts(value: Any) -> tuple[str, tuple[str, ...], int]:
    """Query, choices and gold of a line.

    Raises:
        ValueError: one is missing, or of another kind.
    """
    if not isinstance(value, dict) or any(key not in value for key in KEYS):
        known = ", ".join(list(value)[:8]) if isinstance(value, dict) else type(value).__name__
        raise ValueError(f'expected an object with "query", "choices" and "gold", found {known or "none"}')
    query, choices, gold = (value[key] for key in KEYS)
    if not isinstance(query, str):
        raise ValueError(f"query is {query!r:.60}, expected text")
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        raise ValueError(f"choices are {choices!r:.60}, expected a list of texts")
    if not isinstance(gold, int) or isinstance(gold, bool):
        raise ValueError(f"gold is {gold!r:.60}, expected the index of the right choice, counted from 0")
    return _utf8(query), tuple(map(_utf8, choices)), gold


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # a lone surrogate has no UTF-8
