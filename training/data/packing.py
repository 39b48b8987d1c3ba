"""Packing: puts whole conversations into sequences of one length.

Room: training (pure). A conversation goes into the open sequence that it fills best; the same conversations
in the same order give the same sequences, in bounded memory. What stays free is filled with masked
separators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

OPEN_MAX = 64  # sequences that are filled at once
Tokens = NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Packer:
    """Sequences that are being filled, and what was packed so far.

    length: tokens of a sequence. padding: the token that fills its end, masked. A masked token t is ~t.
    """

    length: int
    padding: int
    packed: int = 0  # conversations
    cut: int = 0  # of these, longer than a sequence
    dropped: int = 0  # others: no token to train on in a sequence's length
    padded: int = 0  # tokens
    _open: list[list[Tokens]] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)  # tokens, of each open one

    def add(self, conversation: Tokens) -> Iterator[Tokens]:
        """Pack one conversation; yields the sequences that were finished for it. Each has shape (length,)."""
        kept = conversation[: self.length]
        if not np.any(kept[1:] >= 0):  # the first token of a sequence is not predicted
            self.dropped += 1
            return
        self.packed += 1
        self.cut += len(kept) < len(conversation)
        places = [place for place, free in enumerate(self._free) if free >= len(kept)]
        if places:
            best = min(places, key=lambda place: (self._free[place], place))
            self._open[best].append(kept)
            self._free[best] -= len(kept)
        else:
            if len(self._open) == OPEN_MAX:
                yield self._finish(min(range(OPEN_MAX), key=lambda place: (self._free[place], place)))
            best = len(self._open)
            self._open.append([kept])
            self._free.append(self.length - len(kept))
        if not self._free[best]:
            yield self._finish(best)

    def close(self) -> Iterator[Tokens]:
        """The sequences that are still open, as they are."""
        while self._open:
            yield self._finish(0)

    def _finish(self, place: int) -> Tokens:
        parts, free = self._open.pop(place), self._free.pop(place)
        self.padded += free
        return np.concatenate([*parts, np.full(free, ~self.padding, np.int64)])
