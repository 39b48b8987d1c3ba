"""Assembly: a blob being put together from verified chunks, whoever they come from.

Room: network (pure). Sessions take chunk numbers, bring bytes, and give back what
they could not bring. Only bytes that match the chunk list are ever kept.

    missing --take--> asked for --accept--> present
       ^                  |
       +----give_back-----+
"""

from __future__ import annotations

from collections.abc import Iterable

from assay.protocol.encoding.blob import ChunkList


class Assembly:
    """Every chunk is in exactly one of three states: missing, asked for, present."""

    def __init__(self, chunks: ChunkList) -> None:
        self.chunks = chunks
        self.data = bytearray(chunks.size)
        self._missing: dict[int, None] = dict.fromkeys(
            range(len(chunks.hashes))
        )  # ordered, so holders read forward
        self._asked: set[int] = set()

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is present."""
        return not self._missing and not self._asked

    @property
    def present_count(self) -> int:
        """How many chunks are present."""
        return len(self.chunks.hashes) - len(self._missing) - len(self._asked)

    def take(self) -> int | None:
        """The next chunk to ask for, which is now asked for; None if none is missing."""
        if not self._missing:
            return None
        index = next(iter(self._missing))
        del self._missing[index]
        self._asked.add(index)
        return index

    def accept(self, index: int, chunk: bytes) -> None:
        """Keep a chunk that the caller has verified against `chunks`.

        Raises:
            KeyError: nobody asked for it, or it is present already.
        """
        self._asked.remove(index)
        offset, length = self.chunks.span(index)
        assert len(chunk) == length
        self.data[offset : offset + length] = chunk

    def give_back(self, indices: Iterable[int]) -> None:
        """These were asked for and will not come; somebody else may bring them."""
        for index in sorted(indices):
            if index in self._asked:
                self._asked.remove(index)
                self._missing[index] = None
