"""Blob stores: whole or not at all, and never believed about their content."""

from __future__ import annotations

import tracemalloc

import pytest

from assay.network.blob_store import DiskBlobs
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.errors import Unavailable
from tests.network.memory_blobs import MemoryBlobs

DATA = bytes(range(256)) * 3000
ROOM = 10_000_000


def flip_one_bit(folder):
    (path,) = folder.glob("*.blob")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_blob_is_still_there_after_a_restart(tmp_path):
    digest = DiskBlobs(tmp_path, bytes_max=ROOM).put(DATA)

    store = DiskBlobs(tmp_path, bytes_max=ROOM)

    assert digest == blob_digest(DATA)
    assert store.size(digest) == len(DATA)
    assert store.load(digest) == DATA
    assert store.read(digest, 1000, 24) == DATA[1000:1024]


def test_a_flipped_bit_on_disk_is_found_and_the_blob_can_be_had_again(tmp_path):
    store = DiskBlobs(tmp_path, bytes_max=ROOM)
    digest = store.put(DATA)
    flip_one_bit(tmp_path)

    with pytest.raises(Unavailable, match="damaged"):
        store.load(digest)

    assert store.size(digest) is None
    assert store.put(DATA) == digest
    assert store.load(digest) == DATA


def test_putting_a_blob_again_repairs_a_damaged_file(tmp_path):
    store = DiskBlobs(tmp_path, bytes_max=ROOM)
    digest = store.put(DATA)
    flip_one_bit(tmp_path)

    store.put(DATA)

    assert store.load(digest) == DATA


def test_a_file_is_kept_by_chunks_as_its_bytes_would_be(tmp_path):
    store, path, size = DiskBlobs(tmp_path / "blobs", bytes_max=3 * len(DATA)), tmp_path / "file", len(DATA)
    path.write_bytes(DATA + b"end")
    assert store.put_file(path) == (blob_digest(DATA + b"end"), size + 3)
    assert store.load(blob_digest(DATA + b"end")) == DATA + b"end"

    flip_one_bit(tmp_path / "blobs")
    digest, _ = store.put_file(path)
    assert store.load(digest) == DATA + b"end"
    path.write_bytes(DATA * 3)
    with pytest.raises(Unavailable, match="does not fit"):
        store.put_file(path)
    path.unlink()
    with pytest.raises(Unavailable, match="file cannot be read"):
        store.put_file(path)


def test_a_large_file_is_not_held_in_memory(tmp_path):
    (tmp_path / "file").write_bytes(bytes(1 << 25))
    store = DiskBlobs(tmp_path / "blobs", bytes_max=1 << 26)
    tracemalloc.start()
    try:
        store.put_file(tmp_path / "file")
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()


def test_a_write_that_was_cut_off_leaves_nothing_behind(tmp_path):
    DiskBlobs(tmp_path, bytes_max=ROOM)
    (tmp_path / "half.tmp").write_bytes(DATA[:100])

    store = DiskBlobs(tmp_path, bytes_max=ROOM)

    assert list(tmp_path.iterdir()) == []
    assert store.size(blob_digest(DATA)) is None


def test_a_blob_that_just_fits_is_kept_and_one_byte_more_is_refused(tmp_path):
    store = DiskBlobs(tmp_path, bytes_max=len(DATA))
    store.put(DATA)
    with pytest.raises(Unavailable, match="does not fit"):
        store.put(b"x")
    store.remove(blob_digest(DATA))
    store.put(b"x")


def test_memory_forgets_the_oldest_first():
    store = MemoryBlobs(bytes_max=25)
    first, second, third = (store.put(bytes([n]) * 10) for n in range(3))
    assert store.size(first) is None
    assert store.read(second, 0, 10) == b"\1" * 10
    assert store.size(third) == 10
    with pytest.raises(Unavailable):
        store.read(first, 0, 1)
    with pytest.raises(Unavailable):
        store.put(bytes(26))
