"""Preferences: reads pairs of a chosen and a rejected completion, and lays a pair out as two sequences.

Room: training (edge: reads files). The lines are those of TRL's DPOTrainer, with text or lists of messages:

    {"prompt": "...", "chosen": "...", "rejected": "..."}
    {"prompt": [{"role": "user", ...}], "chosen": [{"role": "assistant", ...}], "rejected": [...]}

A pair lies in the data as two sequences of context + 1 tokens, the chosen first. What is not its completion
is masked. The last `REFERENCE_TOKENS` tokens of a sequence, which no completion can see, say what the -log p
of the completion is under the reference model: nats times 2^16, four digits of base 256, the highest first.

Reference:
    Rafailov et al., "Direct Preference Optimization: Your Language Model is Secretly a Reward Model",
    NeurIPS 2023, arXiv:2305.18290.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.grpo import DIGIT
from assay.training.data.conversations import ASSISTANT, Conversation, conversation_of
from assay.training.data.documents import parsed_lines
from assay.training.data.mask import visible

REFERENCE_TOKENS = 4
REFERENCE_SCALE = 1 << 16
_PARTS = ("prompt", "chosen", "rejected")

Pair = tuple[Conversation, Conversation]


def preferences_in(path: Path) -> Iterator[tuple[str, Pair]]:
    """The chosen and the rejected conversation of every line, see `parsed_lines`."""
    return parsed_lines(path, pair_of)


def pair_of(value: object) -> Pair:
    """The conversations that a parsed line describes; of them the completion alone is trained on.

    Raises:
        ValueError: it describes none, a completion is empty, or both are the same.
    """
    if not isinstance(value, dict) or any(part not in value for part in _PARTS):
        known = ", ".join(sorted(map(str, value))[:8]) if isinstance(value, dict) else type(value).__name__
        raise ValueError(
            f'expected an object with "prompt", "chosen" and "rejected", found {known or "none"}'
        )
    if value.get("tools"):
        raise ValueError("a preference pair with tools, which are not supported")
    prompt = _messages(value["prompt"], "prompt", "user")
    sides = [_messages(value[part], part, ASSISTANT) for part in _PARTS[1:]]
    for part, side in zip(_PARTS[1:], sides, strict=True):
        if not any(message.is_trained and message.content.strip() for message in side):
            raise ValueError(f'"{part}" is empty, expected a completion of the assistant')
    if sides[0] == sides[1]:
        raise ValueError('"chosen" and "rejected" are the same, expected two completions')
    silent = tuple(replace(message, is_trained=False) for message in prompt)
    return silent + sides[0], silent + sides[1]


def _messages(value: Any, part: str, role: str) -> Conversation:
    messages = [{"role": role, "content": value}] if isinstance(value, str) else value
    # One reader of messages; the last one lets a prompt pass, of which nothing is to be trained on.
    whole = [*messages, {"role": ASSISTANT, "content": ""}] if isinstance(messages, list) and messages else []
    try:
        return conversation_of({"messages": whole})[:-1]
    except ValueError as cause:
        raise ValueError(
            f'"{part}": {cause}' if whole else f'"{part}" is neither text nor messages'
        ) from None


def laid_out(tokens: NDArray[np.int64], length: int, padding: int) -> NDArray[np.int64]:
    """A conversation's tokens as a sequence of `length`, with a reference of 0; a masked token t is ~t.

    Raises:
        ValueError: it is too long, or nothing of it is trained on.
    """
    most = length - REFERENCE_TOKENS
    if len(tokens) > most:
        raise ValueError(f"{len(tokens)} tokens, at most {most} fit the model's context beside the reference")
    if not np.any(tokens[1:] >= 0):
        raise ValueError("no token of the completion is trained on")
    rest = np.full(length - len(tokens), ~padding, np.int64)
    rest[-REFERENCE_TOKENS:] = ~0
    return np.concatenate([tokens, rest])


def with_reference(sequence: NDArray[np.int64], nats: float) -> NDArray[np.int64]:
    """A sequence that says what its completion's -log p is under the reference model, rounded to 2^-16 nats.

    Raises:
        ValueError: it is no number that four digits hold.
    """
    if not 0 <= nats < DIGIT**REFERENCE_TOKENS / REFERENCE_SCALE - 1:
        raise ValueError(f"the reference model gives a completion {nats} nats, expected 0 to under 65,535")
    digits = round(nats * REFERENCE_SCALE).to_bytes(REFERENCE_TOKENS, "big")
    return np.concatenate([sequence[:-REFERENCE_TOKENS], ~np.frombuffer(digits, np.uint8).astype(np.int64)])


def reference_nats(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """What each sequence says of the reference model's -log p, in nats. Shape (sequences,), float64.

    Defined for all tokens under 2^24, as no other can be in data: what is no digit counts like one.
    """
    weights = DIGIT ** np.arange(REFERENCE_TOKENS - 1, -1, -1, dtype=np.int64)
    total = (visible(tokens[:, -REFERENCE_TOKENS:]) * weights).sum(axis=1)
    nats: NDArray[np.float64] = total / REFERENCE_SCALE
    return nats
