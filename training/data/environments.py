"""Environments: what a completion of a task earns, by one function each.

Room: training (pure). An environment takes a task and a completion of it to whole millionths, 0 to
`REWARD_MAX`. Nodes, auditors and replays each compute rewards by themselves, from tokens that a buyer or a
model chose: an environment is defined for all tokens, has the same result on all machines, and takes time
linear in them. A new one is a function here and a member of `Reward`.

Rules: docs/protocol.md, "GRPO". Why: docs/decisions/0070-environments.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.protocol.grpo import REWARD_MAX, Reward

ARITHMETIC_CHARACTERS = 64  # of an expression, or a number: bounds the size of what is multiplied

_NOT_A_BYTE = 0xFF  # in UTF-8 no text has this byte
_EXPRESSION = re.compile(rb"-?[0-9]+(?: *[-+*] *-?[0-9]+)*")
_OPERAND = re.compile(rb"([-+*]?) *(-?[0-9]+)")
_NUMBER = re.compile(rb" *(-?[0-9]+)")

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, its answer with its end token, the most tokens of a completion, and the one that ends it."""

    prompt: Ids
    answer: Ids
    room: int
    end: int


Environment = Callable[[Task, Ids], int]


def reward_micro(reward: Reward, task: Task, completion: Ids) -> int:
    """What a completion earns, in millionths: 0 to `REWARD_MAX`, and 0 where the task has no answer.

    Args:
        reward: The run's environment.
        task: What was asked.
        completion: What was sampled, with its end token if it has one.
    """
    return ENVIRONMENTS[reward](task, completion) if len(task.answer) else 0


def exact(task: Task, completion: Ids) -> int:
    """All for the answer, nothing for any other completion."""
    return REWARD_MAX * np.array_equal(completion, task.answer)


def ending(task: Task, completion: Ids) -> int:
    """All for a completion whose last tokens are the answer."""
    return REWARD_MAX * np.array_equal(completion[-len(task.answer) :], task.answer)


def prefix(task: Task, completion: Ids) -> int:
    """The share of the completion, or of the answer if that is longer, that is the answer's beginning."""
    shorter = min(len(completion), len(task.answer))
    differs = np.flatnonzero(completion[:shorter] != task.answer[:shorter])
    equal = int(differs[0]) if len(differs) else shorter
    return REWARD_MAX * equal // max(len(completion), len(task.answer))


def arithmetic(task: Task, completion: Ids) -> int:
    """All for a number, and its end, that is the value of the last expression in the prompt.

    Tokens are read as bytes. An expression is whole numbers with +, - and *, of at most
    `ARITHMETIC_CHARACTERS`; so is a number, which may begin with spaces, a minus and zeros. The answer is not
    read.
    """
    if completion[-1:].tolist() != [task.end]:
        return 0
    said, asked = _NUMBER.fullmatch(_text(completion[:-1])), _EXPRESSION.findall(_text(task.prompt))
    if said is None or not asked or max(len(said[1]), len(asked[-1])) > ARITHMETIC_CHARACTERS:
        return 0
    return REWARD_MAX * (int(said[1]) == _value(asked[-1]))


ENVIRONMENTS: dict[Reward, Environment] = {
    Reward.EXACT: exact,
    Reward.ENDING: ending,
    Reward.PREFIX: prefix,
    Reward.ARITHMETIC: arithmetic,
}


def _text(tokens: Ids) -> bytes:
    return np.where((tokens >= 0) & (tokens < _NOT_A_BYTE), tokens, _NOT_A_BYTE).astype(np.uint8).tobytes()


def _value(expression: bytes) -> int:
    """The value of a sum of products."""
    total = product = 0
    for operator, digits in _OPERAND.findall(expression):
        number = int(digits)
        if operator == b"*":
            product *= number
        else:
            total, product = total + product, -number if operator == b"-" else number
    return total + product
