"""Order preferences: tokenises the preference pairs that an order names, with the reference model's figures.

Room: orders (edge: reads files). The reference model, which is the order's base, runs here, on the buyer's
machine, and in the reference class: equal files give equal shards on every machine, and whoever has the base
can recompute them. Nodes and auditors read the figures as data. False ones harm the buyer's own model alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.orders.data.templated import TemplatedWriter, Tokens
from assay.protocol.params import ModelSpec
from assay.training.data.conversations import Conversation
from assay.training.data.mask import target_count
from assay.training.data.preferences import laid_out, preferences_in, with_reference
from assay.training.reference.gradient import reference_loss


@dataclass(slots=True, kw_only=True)
class PreferenceWriter(TemplatedWriter):
    """Writes preference pairs, two sequences each."""

    reference: ModelSpec
    theta_P: NDArray[np.float32]  # of the reference model

    def items(self, path: Path) -> Iterator[tuple[str, tuple[Conversation, ...]]]:
        """The two sides of each pair of a file."""
        return preferences_in(path)

    def write(self, sides: tuple[Conversation, ...]) -> None:
        """Write one pair."""
        chosen, rejected = (self.tokens_of(side) for side in sides)
        if np.array_equal(chosen, rejected):
            raise ValueError('"chosen" and "rejected" are the same tokens, expected two completions')
        self.writer.add(np.concatenate([self._sequence(tokens) for tokens in (chosen, rejected)]))
        self.conversations += 2

    def _sequence(self, tokens: Tokens) -> Tokens:
        sequence = laid_out(tokens, self.length, self.padding)
        self.targets += target_count(sequence[None])
        self.padded += self.length - len(tokens)
        return with_reference(sequence, reference_loss(self.reference, self.theta_P, sequence[None]))
