"""Order tasks: tokenises the prompts and answers that an order names, one task in each window of the data.

Room: orders (edge: reads files). Nodes receive a prompt that is masked and an answer that is not, and sample
their own completions of the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from assay.orders.data.templated import TemplatedWriter, Tokens
from assay.protocol.grpo import FIGURE_TOKENS, REWARD_MAX, GrpoSpec
from assay.training.data.conversations import Conversation
from assay.training.data.environments import reward_micro
from assay.training.data.mask import visible
from assay.training.data.rollouts import task_of


@dataclass(slots=True, kw_only=True)
class TaskWriter(TemplatedWriter):
    """Writes tasks, a window each."""

    grpo: GrpoSpec

    def write(self, sides: tuple[Conversation, ...]) -> None:
        """Write one task."""
        (conversation,) = sides
        self.writer.add(self._window(self.tokens_of(_asked(conversation))))
        self.conversations += 1

    def _window(self, tokens: Tokens) -> Tokens:
        """One task, without what the template writes behind the end of the answer."""
        grpo, trained = self.grpo, np.flatnonzero(tokens[1:] >= 0) + 1
        if not len(trained):
            raise ValueError("no token of the answer is trained on")
        first = int(trained[0])
        # a template may leave it out of the answer
        ends = np.flatnonzero(visible(tokens[first:]) == grpo.end)
        if not len(ends):
            raise ValueError(
                f"the chat template ends the answer without token {grpo.end}, which ends a completion"
            )
        answer = int(ends[0]) + 1
        if answer > grpo.completion:
            raise ValueError(f"an answer of {answer} tokens, a completion has at most {grpo.completion}")
        if first + grpo.completion + FIGURE_TOKENS > self.length:
            most = self.length - grpo.completion - FIGURE_TOKENS
            raise ValueError(
                f"a prompt of {first} tokens, at most {most} fit the model's context beside a completion and "
                "its figures"
            )
        window = np.full(self.length, ~self.padding, np.int64)
        window[:first] = ~visible(tokens[:first])
        window[first : first + answer] = visible(tokens[first : first + answer])
        task = task_of(window, grpo)
        assert len(task.answer) == answer, "a window holds its task"
        if reward_micro(grpo.reward, task, task.answer) < REWARD_MAX:
            raise ValueError(f"its answer does not earn 1, by {grpo.reward.name.lower()}")
        self.targets += answer
        self.padded += self.length - first - answer
        return window


def _asked(conversation: Conversation) -> Conversation:
    """A conversation of which the last message alone, an assistant's, is the answer.

    Raises:
        ValueError: it ends with another message.
    """
    *before, last = conversation
    if not last.is_trained:
        raise ValueError(f"its last message is of role {last.role!r}, expected the assistant's answer")
    return (*(replace(message, is_trained=False) for message in before), last)
