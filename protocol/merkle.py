"""Merkle: one root over many blocks, and the shortest proof that one of them was there.

Room: protocol (pure). BLAKE3, domain separated, RFC 6962 shape (the left subtree
is the largest power of two), so no leaf is ever duplicated and a tree of n leaves
has one form. The leaf binds its position, so an opening cannot be moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

from protocol.errors import MalformedMessage
from protocol.types import Digest

LEAVES_MAX = 1 << 26
PROOF_MAX = 26


def leaf_hash(domain: bytes, index: int, data: bytes | memoryview) -> Digest:
    """Hash of one leaf: BLAKE3(0x00 | domain | index | data). `domain` is 32 bytes."""
    hasher = blake3(b"\x00" + domain + index.to_bytes(8, "big"))
    hasher.update(data)
    return Digest(hasher.digest())


def root(leaves: Sequence[Digest]) -> Digest:
    """Root of the tree over these leaf hashes; the hash of an empty list is BLAKE3(0x02)."""
    if not leaves:
        return Digest(blake3(b"\x02").digest())
    level = list(leaves)
    while len(level) > 1:
        paired = [_node(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            paired.append(level[-1])  # promoted, not duplicated
        level = paired
    return level[0]


def proof(leaves: Sequence[Digest], index: int) -> tuple[Digest, ...]:
    """Siblings from the leaf up to the root."""
    path: list[Digest] = []
    level, at = list(leaves), index
    while len(level) > 1:
        sibling = at ^ 1
        if sibling < len(level):
            path.append(level[sibling])
        paired = [_node(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            paired.append(level[-1])
        level, at = paired, at // 2
    return tuple(path)


def check(leaf: Digest, index: int, count: int, path: Sequence[Digest], expected: Digest) -> None:
    """Do nothing if `leaf` is at `index` of the `count` leaves under `expected`.

    Raises:
        MalformedMessage: the path does not lead from the leaf to the root.
    """
    if root_of_path(leaf, index, count, path) != expected:
        raise MalformedMessage(f"leaf {index} is not under root {expected.hex()[:8]}")


def root_of_path(leaf: Digest, index: int, count: int, path: Sequence[Digest]) -> Digest:
    """The root that `leaf` has at `index` of `count` leaves, beside these siblings.

    Raises:
        MalformedMessage: there is no such leaf, or there are too few or too many siblings.
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


def _node(left: Digest, right: Digest) -> Digest:
    return Digest(blake3(b"\x01" + left + right).digest())
