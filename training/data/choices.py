"""Choices: the multiple-choice items that a run's model is scored on, as text and as tokens.

Room: training (pure, but for `read_choices` and `check_texts`, which open files). The buyer tokenises the
items once; all others receive `choices.json` beside the data and check it against the run's spec, which names
it by hash.

    DATA/choices.json   FORMAT, the file's name, and of each item query, choices, gold and their tokens

An item is scored as `lm-evaluation-harness` scores `multiple_choice`: by the log-likelihood of each choice
behind the query and one space. Rules: docs/protocol.md section 6a.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding.json_text import canonical_json, parse_json, plain, read_plain
from assay.protocol.errors import ConfigError
from assay.protocol.params import ITEMS_MAX, NO_CHOICES, ChoicesSpec, RunSpec
from assay.protocol.types import Digest
from assay.training.data.bounded import bounded
from assay.training.data.tokenizer import READING, Tokenizer, byte_tokenizer, load_tokenizer

FORMAT = "assay/choices/1"
CHOICES = "choices.json"
CHOICES_MAX = 16  # of one item
TOKENS_MAX = 1 << 18  # of all items, a query counted with each of its choices: what a verifier computes
FILE_BYTES_MAX = 1 << 22
NAME_CHARS_MAX = 128
DELIMITER = " "  # between query and choice, as in lm-evaluation-harness


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question: the text before the choices, the choices, and the index of the right one.

    query_tokens, choice_tokens: what the model reads, and of each choice what it is scored on.
    """

    query: str
    choices: tuple[str, ...]
    gold: int
    query_tokens: tuple[int, ...]
    choice_tokens: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """Tokens of all its sequences: the query is read once for each choice."""
        return sum(len(self.query_tokens) + len(choice) for choice in self.choice_tokens)

    def sequences(self) -> Iterator[NDArray[np.int64]]:
        """What the model is run on for each choice: the query, masked, then the choice. Shape (1, tokens)."""
        for choice in self.choice_tokens:
            yield np.array([[*(~token for token in self.query_tokens), *choice]], np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """All items of a run, in order. name: of the file that they are from."""

    format: str = FORMAT
    name: str
    items: tuple[Item, ...]

    @property
    def sequences(self) -> int:
        """Forward passes of one score."""
        return sum(len(item.choices) for item in self.items)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(item.tokens for item in self.items)

    def to_json(self) -> bytes:
        """The content of `choices.json`, whose SHA-256 the run's spec names."""
        return canonical_json(plain(self))

    def spec(self) -> ChoicesSpec:
        """What a run's spec states of them."""
        return ChoicesSpec(digest=Digest(hashlib.sha256(self.to_json()).digest()), items=len(self.items))


def tokenised(query: str, choices: tuple[str, ...], gold: int, tokenizer: Tokenizer) -> Item:
    """An item with its tokens. A choice's are those of query, space and choice behind the query's own many.

    Raises:
        ValueError: what of the text is wrong, and what was expected.
    """
    if not query or query != query.rstrip():
        raise ValueError(f"the query is {query!r:.60}, expected text that does not end in white space")
    if not 2 <= len(choices) <= CHOICES_MAX:
        raise ValueError(f"{len(choices)} choices, expected 2 to {CHOICES_MAX}")
    if not 0 <= gold < len(choices):
        raise ValueError(f"gold is {gold}, expected the index of a choice: 0 to {len(choices) - 1}")
    if not all(choices) or len(set(choices)) < len(choices):
        raise ValueError("a choice is empty or there twice")
    before = tokenizer.encode(query.encode()).tolist()
    whole = [tokenizer.encode(f"{query}{DELIMITER}{choice}".encode()).tolist() for choice in choices]
    return Item(
        query=query,
        choices=choices,
        gold=gold,
        query_tokens=tuple(before),
        choice_tokens=tuple(tuple(one[len(before) :]) for one in whole),
    )


def check_choices(choices: Choices, *, context: int, vocabulary: int) -> None:
    """Do nothing if a model of this context and vocabulary can be scored on the items, within the bounds.

    Raises:
        ValueError: which item cannot, and why.
    """
    if choices.format != FORMAT or not 0 < len(choices.name) <= NAME_CHARS_MAX:
        raise ValueError(f"{choices.format!r:.60} of {choices.name!r:.60}, expected {FORMAT} with a name")
    if not 0 < len(choices.items) <= ITEMS_MAX:
        raise ValueError(f"{len(choices.items)} items, expected 1 to {ITEMS_MAX}")
    for number, item in enumerate(choices.items):
        if fault := _fault(item, context, vocabulary):
            raise ValueError(f"item {number}: {fault}")
    if choices.tokens > TOKENS_MAX:
        raise ValueError(
            f"{choices.tokens:,} tokens in all, a query counted with each of its choices, "
            f"expected at most {TOKENS_MAX:,}"
        )


def _fault(item: Item, context: int, vocabulary: int) -> str:
    """What is wrong with an item's tokens; empty if nothing is."""
    if not 2 <= len(item.choices) == len(item.choice_tokens) <= CHOICES_MAX:
        given = f"{len(item.choices)} choices, {len(item.choice_tokens)} tokenised"
        return f"{given}, expected 2 to {CHOICES_MAX} of both"
    if not 0 <= item.gold < len(item.choices):
        return f"gold is {item.gold}, expected 0 to {len(item.choices) - 1}"
    if not all(item.choices) or not all((item.query_tokens, *item.choice_tokens)):
        return "the query or a choice has no tokens of its own"
    if (longest := len(item.query_tokens) + max(map(len, item.choice_tokens))) > context + 1:
        return f"{longest} tokens with its longest choice, expected at most {context + 1}, the context and 1"
    tokens = [*item.query_tokens, *(token for choice in item.choice_tokens for token in choice)]
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        return f"tokens {min(tokens)} to {max(tokens)}, expected 0 to {vocabulary - 1}"
    return ""


def read_choices(folder: Path, spec: RunSpec) -> Choices | None:
    """The items of a run beside its data; None if it has none.

    Raises:
        ConfigError: the file is missing, is not the one the spec names, or cannot be scored.
    """
    if spec.choices == NO_CHOICES:
        return None
    path = folder / CHOICES
    try:
        with open(path, "rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as cause:
        raise ConfigError(f"data {path}: cannot be read ({cause.strerror})") from None
    if hashlib.sha256(body).digest() != spec.choices.digest:
        raise ConfigError(f"data {path}: not the choices this run committed to")
    try:
        choices = read_plain(Choices, parse_json(body))
        check_choices(choices, context=spec.model.context, vocabulary=spec.data.vocabulary)
        if len(choices.items) != spec.choices.items:
            raise ValueError(f"{len(choices.items)} items, the run's spec has {spec.choices.items}")
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"data {path}: {cause}") from None
    return choices


def check_texts(choices: Choices, path: Path | None) -> None:
    """Do nothing if the tokens of every item are those of its text.

    Args:
        choices: The items.
        path: The `tokenizer.json`, perhaps a stranger's; None if tokens are bytes.

    Raises:
        ValueError: which item has others, or the tokenizer takes more than `bounded` allows.
        ConfigError: see `load_tokenizer`.
    """
    if path is None:
        _check_texts(choices, byte_tokenizer())
    else:
        bounded(READING, _check_texts_by, choices, path)


def _check_texts_by(choices: Choices, path: Path) -> None:
    # Runs in a bounded process: what tokenises has no other, so that all items together have its limits.
    _check_texts(choices, load_tokenizer(path, call=lambda function, *given: function(*given)))


def _check_texts(choices: Choices, tokenizer: Tokenizer) -> None:
    for number, item in enumerate(choices.items):
        if tokenised(item.query, item.choices, item.gold, tokenizer) != item:
            raise ValueError(f"item {number}: its tokens are not those of its text")
