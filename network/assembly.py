"""Assembly: reassembles one blob from verified chunks that several peers send.

Room: network (pure). Fetch sessions take chunk indices, deliver bytes, and give back the
indices they could not deliver. Only bytes that match the chunk list are kept.

    missing --take--> requested --accept--> present
       ^                  |
       +----give_back-----+
"""

from __future__ import annotations

from collections.abc import Iterable

from assay.protocol.encoding.blob import ChunkList


class Assembly:
    """A blob in assembly; each chunk is in exactly one state: missing, requested or present."""

    def __init__(self, chunks: ChunkList) -> None:
        self.chunks = chunks
        self.data = bytearray(chunks.size)
        self._missing: dict[int, None] = dict.fromkeys(
            range(len(chunks.hashes))
        )  # ordered, so holders read forward
        self._requested: set[int] = set()

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is present."""
        return not self._missing and not self._requested

    def take(self) -> int | None:
        """The next missing chunk's index, marked as requested; None if none is missing."""
        if not self._missing:
            return None
        index = next(iter(self._missing))
        del self._missing[index]
        self._requested.add(index)
        return index

    def accept(self, index: int, chunk: bytes) -> None:
        """Keep a chunk that the caller has verified against `chunks`.

        Raises:
            KeyError: it was not requested, or is present already.
        """
        self._requested.remove(index)
        offset, length = self.chunks.span(index)
        assert len(chunk) == length
        self.data[offset : offset + length] = chunk

    def give_back(self, indices: Iterable[int]) -> None:
        """Mark requested chunks as missing again, so that another session may request them."""
        for index in sorted(indices):
            if index in self._requested:
                self._requested.remove(index)
                self._missing[index] = None
