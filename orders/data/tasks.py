"""Order tasks: tokenises the prompts and answers that an order names, one task in each window of the data.

Room: orders (edge: reads files). The chat template runs here, on the buyer's machine; nodes receive a prompt
that is masked and an answer that is not, and sample their own completions of the prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.grpo import FIGURE_TOKENS, GrpoSpec
from assay.protocol.types import Digest
from assay.training.data.chat_template import ChatTemplate, chat_tokens
from assay.training.data.conversations import Conversation, conversations_in
from assay.training.data.mask import visible
from assay.training.data.rollouts import task_of
from assay.training.data.shards import ChatData, ShardWriter
from assay.training.data.tokenizer import Tokenizer


@dataclass(slots=True, kw_only=True)
class TaskWriter:
    """Writes tasks, a window each, source after source, and counts them."""

    template: ChatTemplate
    writer: ShardWriter
    grpo: GrpoSpec
    length: int  # of a window, in tokens
    padding: int
    tokens_of: Callable[[Conversation], NDArray[np.int64]]
    tasks: int = 0
    targets: int = 0
    padded: int = 0

    @classmethod
    def open(
        cls, template: ChatTemplate, tokenizer: Tokenizer, writer: ShardWriter, grpo: GrpoSpec, length: int
    ) -> TaskWriter:
        """A writer of windows of `length` tokens.

        Raises:
            ConfigError: the template is none, or what runs it is not installed.
        """
        return cls(
            template=template,
            writer=writer,
            grpo=grpo,
            length=length,
            padding=tokenizer.separator or 0,
            tokens_of=chat_tokens(template, tokenizer),
        )

    def begin(self) -> None:
        """Do nothing: what was written before are whole windows."""

    def add(self, path: Path, bytes_max: int) -> tuple[int, int, bool]:
        """Add the tasks of a file, as long as their contents are at most `bytes_max` bytes together.

        Returns:
            How many, their bytes, and whether they are all of the file.

        Raises:
            ConfigError: which line is no task, is too long or is refused by the template, and why.
        """
        count = taken = 0
        for where, conversation in conversations_in(path):
            size = sum(len(message.content.encode()) for message in conversation)
            if taken + size > bytes_max:
                return count, taken, False
            try:
                self.writer.add(self._window(self.tokens_of(_asked(conversation))))
            except ValueError as cause:
                raise ConfigError(f"{where}: {cause}") from None
            count, taken = count + 1, taken + size
            self.tasks += 1
        return count, taken, True

    def end(self) -> None:
        """Do nothing: a source ends with a whole window."""

    def _window(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """One task, without what the template writes behind the end of the answer."""
        grpo, trained = self.grpo, np.flatnonzero(tokens[1:] >= 0) + 1
        if not len(trained):
            raise ValueError("no token of the answer is trained on")
        first = int(trained[0])
        ends = np.flatnonzero(
            visible(tokens[first:]) == grpo.end
        )  # a template may leave it out of the answer
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
        assert len(task_of(window, grpo).answer) == answer, "a window holds its task"
        self.targets += answer
        self.padded += self.length - first - answer
        return window

    def facts(self) -> ChatData:
        """What became of all tasks."""
        return ChatData(
            template=Digest(hashlib.sha256(self.template.to_json()).digest()),
            sequence=self.length,
            conversations=self.tasks,
            cut=0,
            dropped=0,
            targets=self.targets,
            padding=self.padded,
        )


def _asked(conversation: Conversation) -> Conversation:
    """A conversation of which the last message alone, an assistant's, is the answer.

    Raises:
        ValueError: it ends with another message.
    """
    *before, last = conversation
    if not last.is_trained:
        raise ValueError(f"its last message is of role {last.role!r}, expected the assistant's answer")
    return (*(replace(message, is_trained=False) for message in before), last)
