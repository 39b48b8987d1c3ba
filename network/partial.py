"""Partial: what a broken fetch leaves on disk, so that the next one starts from there.

Room: network (edge: disk). One file per blob, chunks at their final place. There
is no index beside it: whatever is in the file is hashed again and only chunks
that match are kept, so a crash at any instant costs at most the chunk being written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from assay.network.assembly import Assembly
from assay.protocol.encoding.blob import ChunkList
from assay.protocol.types import Digest


class Partial:
    """The file of one unfinished fetch. Methods block; they are called in threads."""

    def __init__(self, folder: Path, digest: Digest) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{digest.hex()}.part"

    def restore(self, assembly: Assembly) -> int:
        """Bring back the chunks that verify; returns how many."""
        if not self._path.exists():
            return 0
        return assembly.restore(self._pieces(assembly.chunks))

    def keep(self, assembly: Assembly, index: int) -> None:
        """Write one present chunk to its place."""
        offset, length = assembly.chunks.span(index)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(handle, bytes(memoryview(assembly.data)[offset : offset + length]), offset)
        finally:
            os.close(handle)

    def remove(self) -> None:
        """The blob is whole; the file is not needed any more."""
        self._path.unlink(missing_ok=True)

    def _pieces(self, chunks: ChunkList) -> Iterator[tuple[int, bytes]]:
        with self._path.open("rb") as file:
            for index in range(len(chunks.hashes)):
                offset, length = chunks.span(index)
                file.seek(offset)
                yield index, file.read(length)
