"""Rollouts: tasks with an answer, completions of them, and the rewards that completions earn.

Room: training (pure). A task is one window of the data: its prompt masked, its answer not, padding masked. A
rollout is a sequence as long: the prompt masked, the completion not, padding masked, and in the last
`FIGURE_TOKENS` tokens, masked, the completion's reward (three digits of base 256, the highest first) and the
sum of its group's rewards (four). Attention is causal, so no completion reads them, and a rollout alone says
what its gradient is.

Rewards are whole millionths from 0 to `REWARD_MAX`, whatever anybody samples: no completion of one node can
weigh more than another's. Everything here is defined for any tokens, for the data are the buyer's.

Reference:
    Shao et al., arXiv:2402.03300; Liu et al., arXiv:2503.20783 (see protocol/grpo.py).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from assay.protocol.grpo import DIGIT, FIGURE_TOKENS, REWARD_MAX, GrpoSpec, Reward
from assay.protocol.types import Digest
from assay.training.data.environments import Ids, Task, reward_micro
from assay.training.data.mask import visible

_REWARD_DIGITS = 3


def task_of(window: Ids, grpo: GrpoSpec) -> Task:
    """The task that a window of the data holds. Shape (context + 1,); a masked token t is ~t.

    The answer begins with the first token, but the window's, that is not masked, and ends with the first end
    token of it, or where tokens are masked again. A window without one has an empty answer and no room.
    """
    most = len(window) - FIGURE_TOKENS
    trained = np.flatnonzero(window[1:] >= 0) + 1
    if not len(trained):
        return Task(visible(window[:most]), window[:0], 0, grpo.end)
    first = int(trained[0])
    behind = np.flatnonzero(window[first:] < 0)
    whole = window[first : first + int(behind[0])] if len(behind) else window[first:]
    prompt = visible(window[: min(first, most)])
    room = min(grpo.completion, most - len(prompt))
    return Task(prompt, until_end(whole, grpo.end), room, grpo.end)


def until_end(tokens: Ids, end: int) -> Ids:
    """The tokens up to the first end token, which is included; all if there is none."""
    found = np.flatnonzero(tokens == end)
    return tokens[: int(found[0]) + 1] if len(found) else tokens


def laid_out_rollouts(task: Task, completions: list[Ids], reward: Reward, length: int) -> Ids:
    """The completions of one task as rollouts, a group. Shape (group, length), int64.

    Args:
        task: What was completed.
        completions: Of it, each at most `task.room` tokens.
        reward: The run's environment.
        length: Tokens of a sequence: context + 1.
    """
    earned = [reward_micro(reward, task, completion) for completion in completions]
    rows = np.full((len(completions), length), ~0, np.int64)
    rows[:, : len(task.prompt)] = ~task.prompt
    for row, completion, micro in zip(rows, completions, earned, strict=True):
        row[len(task.prompt) : len(task.prompt) + len(completion)] = completion
        row[-FIGURE_TOKENS:] = ~_digits(micro, sum(earned))
    return rows


def figures(rollouts: Ids, group: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What rollouts say of themselves: rewards, and advantages over the mean of the group, both in 1.

    Shapes (sequences,), float64. An advantage is one quotient of two whole numbers, so every machine has the
    same.
    """
    found = visible(rollouts[:, -FIGURE_TOKENS:])
    earned, total = (
        (part * DIGIT ** np.arange(part.shape[1] - 1, -1, -1, dtype=np.int64)).sum(axis=1)
        for part in (found[:, :_REWARD_DIGITS], found[:, _REWARD_DIGITS:])
    )
    return earned / REWARD_MAX, (group * earned - total) / (group * REWARD_MAX)


def rollouts_digest(rollouts: Ids) -> Digest:
    """The digest of a step's rollouts, with their rewards: what a node cannot know without sampling them."""
    body = np.ascontiguousarray(rollouts, "<i8").tobytes()
    return Digest(hashlib.sha256(b"assay/rollouts/1" + body).digest())


def _digits(micro: int, total: int) -> Ids:
    body = micro.to_bytes(_REWARD_DIGITS, "big") + total.to_bytes(FIGURE_TOKENS - _REWARD_DIGITS, "big")
    return np.frombuffer(body, np.uint8).astype(np.int64)
