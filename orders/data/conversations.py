"""Order conversations: tokenises the conversations that an order names, and packs them into sequences.

Room: orders (edge: reads files). The chat template runs here, on the buyer's machine, and nowhere else: all
others receive masked tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest
from assay.training.data.chat_template import ChatTemplate, chat_tokens
from assay.training.data.conversations import Conversation, conversations_in
from assay.training.data.documents import SUFFIXES
from assay.training.data.mask import target_count
from assay.training.data.packing import Packer
from assay.training.data.shards import ChatData, ShardWriter
from assay.training.data.tokenizer import Tokenizer


def is_chat_file(path: Path) -> bool:
    """Whether a folder's file holds conversations, by its suffix."""
    return SUFFIXES.get(path.suffix.lower()) == "jsonl"


@dataclass(slots=True)
class ConversationWriter:
    """Writes conversations as whole sequences of tokens, source after source, and counts them."""

    template: ChatTemplate
    writer: ShardWriter
    packer: Packer
    tokens_of: Callable[[Conversation], NDArray[np.int64]]
    targets: int = 0

    @classmethod
    def open(
        cls, template: ChatTemplate, tokenizer: Tokenizer, writer: ShardWriter, length: int
    ) -> ConversationWriter:
        """A writer of sequences of `length` tokens.

        Raises:
            ConfigError: the template is none, or what runs it is not installed.
        """
        packer = Packer(length=length, padding=tokenizer.separator or 0)
        return cls(template, writer, packer, chat_tokens(template, tokenizer))

    def begin(self) -> None:
        """Pad what was written before, so that the next token begins a sequence."""
        free = -self.writer.tokens % self.packer.length
        self.packer.padded += free
        self.writer.add(np.full(free, ~self.packer.padding, np.int64))

    def add(self, path: Path, bytes_max: int) -> tuple[int, int, bool]:
        """Add the conversations of a file, as long as their contents are at most `bytes_max` bytes together.

        Returns:
            How many, their bytes, and whether they are all of the file.

        Raises:
            ConfigError: which line is no conversation, or is refused by the template, and why.
        """
        count = taken = 0
        for where, conversation in conversations_in(path):
            size = sum(len(message.content.encode()) for message in conversation)
            if taken + size > bytes_max:
                return count, taken, False
            try:
                tokens = self.tokens_of(conversation)
            except ValueError as cause:
                raise ConfigError(f"{where}: {cause}") from None
            self._write(self.packer.add(tokens))
            count, taken = count + 1, taken + size
        return count, taken, True

    def end(self) -> None:
        """Write the sequences that are still open: a source ends with a whole one."""
        self._write(self.packer.close())

    def _write(self, sequences: Iterator[NDArray[np.int64]]) -> None:
        for sequence in sequences:
            self.targets += target_count(sequence[None])
            self.writer.add(sequence)

    def facts(self) -> ChatData:
        """What became of all conversations."""
        packer = self.packer
        return ChatData(
            template=Digest(hashlib.sha256(self.template.to_json()).digest()),
            sequence=packer.length,
            conversations=packer.packed,
            cut=packer.cut,
            dropped=packer.dropped,
            targets=self.targets,
            padding=packer.padded,
        )
