"""Order templated data: what conversations, preference pairs and tasks share on their way to tokens.

Room: orders (edge: reads files). The chat template runs here, on the buyer's machine, and nowhere else: all
others receive masked tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest
from assay.training.data.chat_template import ChatTemplate, chat_tokens
from assay.training.data.conversations import Conversation, conversations_in
from assay.training.data.shards import ChatData, ShardWriter
from assay.training.data.tokenizer import Tokenizer

Tokens = NDArray[np.int64]


@dataclass(slots=True)
class TemplatedWriter:
    """Writes what a chat template makes text of, source after source, in whole sequences, and counts it.

    Raises:
        ConfigError: the template is none, or what runs it is not installed.
    """

    template: ChatTemplate
    tokenizer: Tokenizer
    writer: ShardWriter
    length: int  # of a sequence, in tokens
    tokens_of: Callable[[Conversation], Tokens] = field(init=False)
    conversations: int = 0
    targets: int = 0
    padded: int = 0

    def __post_init__(self) -> None:
        self.tokens_of = chat_tokens(self.template, self.tokenizer)

    @property
    def padding(self) -> int:
        """The token that fills a sequence's end, masked."""
        return self.tokenizer.separator or 0

    def begin(self) -> None:
        """Begin a source with a sequence; do nothing where what was written before are whole ones."""

    def add(self, path: Path, bytes_max: int) -> tuple[int, int, bool]:
        """Add what a file holds, as long as its contents are at most `bytes_max` bytes together.

        Returns:
            How many items, their bytes, and whether they are all of the file.

        Raises:
            ConfigError: which line is no item, is too long or is refused by the template, and why.
        """
        count = taken = 0
        for where, sides in self.items(path):
            size = sum(len(message.content.encode()) for side in sides for message in side)
            if taken + size > bytes_max:
                return count, taken, False
            try:
                self.write(sides)
            except ValueError as cause:
                raise ConfigError(f"{where}: {cause}") from None
            count, taken = count + 1, taken + size
        return count, taken, True

    def items(self, path: Path) -> Iterator[tuple[str, tuple[Conversation, ...]]]:
        """The conversations of each line of a file, with where it stands, for errors."""
        return ((where, (conversation,)) for where, conversation in conversations_in(path))

    def write(self, sides: tuple[Conversation, ...]) -> None:
        """Write the conversations of one line.

        Raises:
            ValueError: why they cannot be trained on.
        """
        raise NotImplementedError

    def end(self) -> None:
        """End a source with a whole sequence; do nothing where each line is one."""

    def facts(self) -> ChatData:
        """What became of all conversations."""
        return ChatData(
            template=Digest(hashlib.sha256(self.template.to_json()).digest()),
            sequence=self.length,
            conversations=self.conversations,
            cut=0,
            dropped=0,
            targets=self.targets,
            padding=self.padded,
        )
