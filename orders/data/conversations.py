"""Order conversations: tokenises the conversations that an order names, and packs them into sequences.

Room: orders (edge: reads files).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from assay.orders.data.templated import TemplatedWriter, Tokens
from assay.training.data.conversations import Conversation
from assay.training.data.mask import target_count
from assay.training.data.packing import Packer
from assay.training.data.shards import ChatData


@dataclass(slots=True, kw_only=True)
class ConversationWriter(TemplatedWriter):
    """Writes conversations, of which a sequence holds several."""

    packer: Packer = field(init=False)

    def __post_init__(self) -> None:
        TemplatedWriter.__post_init__(self)
        self.packer = Packer(length=self.length, padding=self.padding)

    def begin(self) -> None:
        """Pad what was written before, so that the next token begins a sequence."""
        free = -self.writer.tokens % self.length
        self.packer.padded += free
        self.writer.add(np.full(free, ~self.padding, np.int64))

    def write(self, sides: tuple[Conversation, ...]) -> None:
        """Pack one conversation, and write the sequences that it fills."""
        (conversation,) = sides
        self._write(self.packer.add(self.tokens_of(conversation)))

    def end(self) -> None:
        """Write the sequences that are still open: a source ends with a whole one."""
        self._write(self.packer.close())

    def _write(self, sequences: Iterator[Tokens]) -> None:
        for sequence in sequences:
            self.targets += target_count(sequence[None])
            self.writer.add(sequence)

    def facts(self) -> ChatData:
        """What became of all conversations."""
        packer = self.packer
        return replace(
            TemplatedWriter.facts(self),
            conversations=packer.packed,
            cut=packer.cut,
            dropped=packer.dropped,
            padding=packer.padded,
        )
