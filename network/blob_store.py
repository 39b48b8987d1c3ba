"""Blob store: content-addressed storage of bulk bytes, in memory or on disk.

Room: network (edge: disk). A blob is written atomically.
Disk is not trusted: every read that serves or uses a blob verifies it against
its digest, so a flipped byte is detected and never passed on.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from assay.protocol.encoding.blob import CHUNK_BYTES, ChunkList, blob_digest
from assay.protocol.errors import Unavailable
from assay.protocol.types import Digest

log = logging.getLogger(__name__)


class BlobSource(Protocol):
    """Bulk bytes by digest. Methods may block; the network calls them in threads."""

    def size(self, digest: Digest) -> int | None:
        """Size in bytes, or None if it is not here."""

    def read(self, digest: Digest, offset: int, length: int) -> bytes:
        """Bytes of the blob, not checked.

        Raises:
            Unavailable: it is not here, or the disk failed.
        """

    def discard_damaged(self, digest: Digest) -> None:
        """Forget a blob that was read and is not what its digest says, so that it can be had again."""

    def put(self, data: bytes) -> Digest:
        """Keep these bytes.

        Raises:
            Unavailable: there is no room.
        """


class DiskBlobs:
    """Blobs as files of one folder, named by digest; crash-safe.

    Args:
        folder: Created if it does not exist; used by one process at a time.
        bytes_max: Bound on all blobs together. A blob that does not fit is refused:
            deleting is the caller's decision, see `remove`.
    """

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        self._folder = folder
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.tmp"):
            leftover.unlink()
        self._sizes = {
            Digest(bytes.fromhex(path.stem)): path.stat().st_size
            for path in folder.glob("*.blob")
            if len(path.stem) == 64
        }

    @property
    def used_bytes(self) -> int:
        """Bytes of all blobs together."""
        return sum(self._sizes.values())

    def size(self, digest: Digest) -> int | None:
        """Size in bytes, or None if it is not here."""
        return self._sizes.get(digest)

    def path(self, digest: Digest) -> Path:
        """The file that holds the blob, if it is here; nobody else writes it."""
        return self._folder / f"{digest.hex()}.blob"

    def read(self, digest: Digest, offset: int, length: int) -> bytes:
        """Bytes of the blob as on disk, not verified; may be short.

        Raises:
            Unavailable: it is not here, or the disk failed.
        """
        try:
            with self.path(digest).open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except OSError as error:
            raise Unavailable(f"blob {digest.hex()[:8]}: {error}") from error

    def load(self, digest: Digest) -> bytes:
        """The whole blob, checked against its digest.

        Raises:
            Unavailable: it is not here, or is damaged; damaged files are moved aside.
        """
        size = self.size(digest)
        if size is None:
            raise Unavailable(f"blob {digest.hex()[:8]} is not in the store")
        data = self.read(digest, 0, size)
        if blob_digest(data) != digest:
            self.discard_damaged(digest)
            raise Unavailable(f"blob {digest.hex()[:8]} is damaged on disk")
        return data

    def put(self, data: bytes) -> Digest:
        """Keep these bytes; they are durable when this returns.

        Raises:
            Unavailable: there is no room, or the disk failed.
        """
        digest = blob_digest(data)
        self._keep(digest, len(data), lambda file: file.write(data))
        return digest

    def put_file(self, path: Path) -> tuple[Digest, int]:
        """Keep a copy of a file, of which no more than a chunk is in memory; its digest and size.

        Raises:
            Unavailable: there is no room, the disk failed, or the file is gone.
        """
        try:
            with path.open("rb") as source:
                chunks = _chunk_list_of(source)
                source.seek(0)
                digest = chunks.digest()
                self._keep(digest, chunks.size, lambda file: shutil.copyfileobj(source, file))
        except OSError as error:
            raise Unavailable(f"{path.name} cannot be read ({error.strerror})") from None
        return digest, chunks.size

    def _keep(self, digest: Digest, size: int, write: Callable[[BinaryIO], object]) -> None:
        with self._lock:
            if digest in self._sizes and self._is_whole(digest):
                return
            self._sizes.pop(digest, None)
            if sum(self._sizes.values()) + size > self.bytes_max:
                raise Unavailable(f"blob of {size} bytes does not fit into {self.bytes_max}")
            try:
                self._write(digest, write)
            except OSError as error:
                raise Unavailable(f"blob {digest.hex()[:8]}: {error}") from error
            self._sizes[digest] = size

    def remove(self, digest: Digest) -> None:
        """Delete a blob, if present."""
        with self._lock:
            self._sizes.pop(digest, None)
            self.path(digest).unlink(missing_ok=True)

    def discard_damaged(self, digest: Digest) -> None:
        """Move a damaged file aside, so that the blob can be fetched again."""
        log.error("blob damaged on disk", extra={"digest": digest.hex()})
        with self._lock:
            self._sizes.pop(digest, None)
            path = self.path(digest)
            if path.exists():
                path.replace(path.with_suffix(".damaged"))

    def _is_whole(self, digest: Digest) -> bool:
        try:
            with self.path(digest).open("rb") as file:
                return _chunk_list_of(file).digest() == digest
        except OSError:
            return False

    def _write(self, digest: Digest, write: Callable[[BinaryIO], object]) -> None:
        handle, name = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path(digest))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _chunk_list_of(file: BinaryIO) -> ChunkList:
    """The chunk list of what is left of a file, of which one chunk at a time is in memory."""
    size, hashes = 0, []
    while chunk := file.read(CHUNK_BYTES):
        size += len(chunk)
        hashes.append(hashlib.sha256(chunk).digest())
    return ChunkList(size=size, hashes=tuple(hashes))
