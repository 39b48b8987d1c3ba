"""Merkle: BLAKE3 Merkle trees over blocks, with inclusion proofs.

Room: protocol (pure). Domain separated, RFC 6962 shape (the left subtree
is the largest power of two), so no leaf is ever duplicated and a tree of n leaves
has one form. The leaf binds its position, so an opening cannot be moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blake3 import blake3

from assay.protocol.errors import MalformedMessage
from assay.protocol.types import Digest

LEAVES_MAX = 1 << 26
_HASH_BYTES = 32


@dataclass(frozen=True, slots=True)
class Tree:
    """All hashes of a tree, so that a proof costs its own length and no hashing.

    count: leaves. hashes: 32 bytes each, the leaves first, then level upon level to the root.
    """

    count: int
    hashes: bytes

    def __post_init__(self) -> None:
        if len(self.hashes) != tree_bytes(self.count):
            raise ValueError(f"{len(self.hashes)} bytes of a tree over {self.count} leaves")

    @property
    def root(self) -> Digest:
        """Root of the tree; the hash of an empty one is BLAKE3(0x02)."""
        return Digest(self.hashes[-_HASH_BYTES:] or blake3(b"\x02").digest())

    def leaf(self, index: int) -> Digest:
        """Hash of one leaf."""
        return self._at(index)

    def proof(self, index: int) -> tuple[Digest, ...]:
        """Siblings from the leaf up to the root."""
        path: list[Digest] = []
        first = 0
        for width in _widths(self.count):
            if index ^ 1 < width:
                path.append(self._at(first + (index ^ 1)))
            first, index = first + width, index // 2
        return tuple(path)

    def _at(self, place: int) -> Digest:
        return Digest(self.hashes[place * _HASH_BYTES : (place + 1) * _HASH_BYTES])


def leaf_hash(domain: bytes, index: int, data: bytes | memoryview) -> Digest:
    """Hash of one leaf: BLAKE3(0x00 | domain | index | data). `domain` is 32 bytes."""
    # One buffer: after a separate header, the hasher would take the rest a kilobyte at a time.
    return Digest(blake3(b"".join((b"\x00", domain, index.to_bytes(8, "big"), data))).digest())


def tree(leaves: Sequence[Digest]) -> Tree:
    """The tree over these leaf hashes."""
    level = b"".join(leaves)
    levels = [level]
    while len(level) > _HASH_BYTES:
        pairs = range(0, len(level) - _HASH_BYTES, 2 * _HASH_BYTES)
        above = [blake3(b"\x01" + level[at : at + 2 * _HASH_BYTES]).digest() for at in pairs]
        if len(level) // _HASH_BYTES % 2:
            above.append(level[-_HASH_BYTES:])  # promoted, not duplicated
        level = b"".join(above)
        levels.append(level)
    return Tree(len(leaves), b"".join(levels))


def tree_bytes(count: int) -> int:
    """Length of `Tree.hashes` in bytes: about two hashes a leaf."""
    return _HASH_BYTES * sum(_widths(count))


def root(leaves: Sequence[Digest]) -> Digest:
    """Root of the tree over these leaf hashes."""
    return tree(leaves).root


def proof(leaves: Sequence[Digest], index: int) -> tuple[Digest, ...]:
    """Siblings from the leaf up to the root; for several proofs, build a `Tree` once."""
    return tree(leaves).proof(index)


def check(leaf: Digest, index: int, count: int, path: Sequence[Digest], expected: Digest) -> None:
    """Do nothing if `leaf` is at `index` of the `count` leaves under `expected`.

    Raises:
        MalformedMessage: the path does not lead from the leaf to the root.
    """
    if root_of_path(leaf, index, count, path) != expected:
        raise MalformedMessage(f"leaf {index} is not under root {expected.hex()[:8]}")


def root_of_path(leaf: Digest, index: int, count: int, path: Sequence[Digest]) -> Digest:
    """The root that follows from `leaf` at `index` of `count` leaves and these siblings.

    Raises:
        MalformedMessage: the index is out of range, or there are too few or too many siblings.
    """
    if not 0 <= index < count <= LEAVES_MAX:
        raise MalformedMessage(f"leaf {index} of {count} does not exist")
    siblings = iter(path)
    here, at, width = leaf, index, count
    used = 0
    while width > 1:
        if at ^ 1 < width:
            sibling = next(siblings, None)
            if sibling is None:
                raise MalformedMessage(f"proof of leaf {index} is too short")
            used += 1
            here = _node(sibling, here) if at % 2 else _node(here, sibling)
        at, width = at // 2, (width + 1) // 2
    if used != len(path):
        raise MalformedMessage(f"proof of leaf {index} has {len(path)} hashes, expected {used}")
    return here


def _widths(count: int) -> Iterator[int]:
    """Number of hashes on each level, from the leaves to the root."""
    while count > 1:
        yield count
        count = (count + 1) // 2
    if count:
        yield count


def _node(left: Digest, right: Digest) -> Digest:
    return Digest(blake3(b"\x01" + left + right).digest())
