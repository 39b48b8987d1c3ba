"""Order preferences: tokenises the preference pairs that an order names, with the reference model's figures.

Room: orders (edge: reads files). The reference model, which is the order's base, runs here, on the buyer's
machine, and in the reference class: equal files give equal shards on every machine, and whoever has the base
can recompute them. Nodes and auditors read the figures as data. False ones harm the buyer's own model alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.params import ModelSpec
from assay.protocol.types import Digest
from assay.training.data.chat_template import ChatTemplate, chat_tokens
from assay.training.data.conversations import Conversation
from assay.training.data.mask import target_count
from assay.training.data.preferences import laid_out, preferences_in, with_reference
from assay.training.data.shards import ChatData, ShardWriter
from assay.training.data.tokenizer import Tokenizer
from assay.training.reference.gradient import reference_loss


@dataclass(slots=True, kw_only=True)
class PreferenceWriter:
    """Writes preference pairs, two sequences each, source after source, and counts them."""

    template: ChatTemplate
    writer: ShardWriter
    reference: ModelSpec
    theta_P: NDArray[np.float32]  # of the reference model
    padding: int
    tokens_of: Callable[[Conversation], NDArray[np.int64]]
    pairs: int = 0
    targets: int = 0
    padded: int = 0

    @classmethod
    def open(
        cls,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        writer: ShardWriter,
        reference: ModelSpec,
        theta_P: NDArray[np.float32],
    ) -> PreferenceWriter:
        """A writer of pairs under this reference model.

        Raises:
            ConfigError: the template is none, or what runs it is not installed.
        """
        return cls(
            template=template,
            writer=writer,
            reference=reference,
            theta_P=theta_P,
            padding=tokenizer.separator or 0,
            tokens_of=chat_tokens(template, tokenizer),
        )

    def begin(self) -> None:
        """Do nothing: what was written before are whole pairs."""

    def add(self, path: Path, bytes_max: int) -> tuple[int, int, bool]:
        """Add the pairs of a file, as long as their contents are at most `bytes_max` bytes together.

        Returns:
            How many, their bytes, and whether they are all of the file.

        Raises:
            ConfigError: which line is no pair, is too long or is refused by the template, and why.
        """
        count = taken = 0
        for where, pair in preferences_in(path):
            size = sum(len(message.content.encode()) for side in pair for message in side)
            if taken + size > bytes_max:
                return count, taken, False
            try:
                chosen, rejected = (self.tokens_of(side) for side in pair)
                if np.array_equal(chosen, rejected):
                    raise ValueError('"chosen" and "rejected" are the same tokens, expected two completions')
                sequences = [self._sequence(tokens) for tokens in (chosen, rejected)]
            except ValueError as cause:
                raise ConfigError(f"{where}: {cause}") from None
            self.writer.add(np.concatenate(sequences))
            count, taken = count + 1, taken + size
            self.pairs += 1
        return count, taken, True

    def end(self) -> None:
        """Do nothing: a source ends with a whole pair."""

    def _sequence(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        length = self.reference.context + 1
        sequence = laid_out(tokens, length, self.padding)
        self.targets += target_count(sequence[None])
        self.padded += length - len(tokens)
        return with_reference(sequence, reference_loss(self.reference, self.theta_P, sequence[None]))

    def facts(self) -> ChatData:
        """What became of all pairs."""
        return ChatData(
            template=Digest(hashlib.sha256(self.template.to_json()).digest()),
            sequence=self.reference.context + 1,
            conversations=2 * self.pairs,
            cut=0,
            dropped=0,
            targets=self.targets,
            padding=self.padded,
        )
