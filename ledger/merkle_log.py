"""Merkle log: RFC 6962 append-only Merkle tree, with inclusion and consistency proofs.

Room: ledger (pure). RFC 6962, section 2, with SHA-256, so any Certificate
Transparency verifier can check our proofs. The state is the right edge: the
roots of the perfect subtrees given by the size's binary digits, largest first.

    size 7 = 4 + 2 + 1    edge = root(0..3), root(4..5), leaf 6
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from assay.protocol.errors import AssayError

EMPTY_ROOT = hashlib.sha256().digest()
HASH_BYTES = 32
SIZE_MAX = 2**63 - 1  # what the store's columns hold
Span = tuple[int, int]  # a subtree: its first leaf and its leaf count


class ProofError(AssayError):
    """A proof does not verify."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A log of `size` leaves, as the roots of its perfect subtrees, left to right.

    Raises:
        ValueError: the number of roots is not the number of ones in the size's binary form.
    """

    size: int = 0
    roots: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.size <= SIZE_MAX or len(self.roots) != self.size.bit_count():
            raise ValueError(
                f"a log of {self.size} leaves cannot have {len(self.roots)} subtrees at its edge"
            )
        if any(len(root) != HASH_BYTES for root in self.roots):
            raise ValueError("a subtree's root is not 32 bytes long")

    @property
    def root(self) -> bytes:
        """The Merkle tree hash of all leaves."""
        if not self.roots:
            return EMPTY_ROOT
        *left, node = self.roots
        for sibling in reversed(left):
            node = node_hash(sibling, node)
        return node


def leaf_hash(data: bytes) -> bytes:
    """SHA-256(0x00 | data)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 | left | right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def append(edge: Edge, leaves: Iterable[bytes], seen: Callable[[Span, bytes], None] | None = None) -> Edge:
    """The log with more leaf hashes appended; O(log n) work for each.

    Args:
        edge: The log so far.
        leaves: The leaf hashes to append.
        seen: Called with every perfect subtree of two leaves or more on completion, and its root.
    """
    size, roots = edge.size, list(edge.roots)
    for leaf in leaves:
        node, carry, count = leaf, size, 1
        while carry & 1:  # two perfect subtrees of one height become one
            node = node_hash(roots.pop(), node)
            carry >>= 1
            count *= 2
            if seen is not None:
                seen((size + 1 - count, count), node)
        roots.append(node)
        size += 1
    return Edge(size, tuple(roots))


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The Merkle tree hash of these leaf hashes."""
    return append(Edge(), leaves).root


# ---- proofs


def inclusion_spans(size: int, index: int) -> list[Span]:
    """The subtrees whose roots are the inclusion proof of leaf `index` in the log of this size.

    Raises:
        IndexError: there is no such leaf.
    """
    if not 0 <= index < size:
        raise IndexError(f"leaf {index} of a log of {size}")
    first, count = 0, size
    down: list[Span] = []
    while count > 1:
        left = left_size(count)
        if index - first < left:
            down.append((first + left, count - left))
            count = left
        else:
            down.append((first, left))
            first, count = first + left, count - left
    return down[::-1]


def consistency_spans(size: int, old_size: int) -> list[Span]:
    """The subtrees whose roots are the consistency proof from `old_size` to this size.

    Raises:
        IndexError: the older log is the longer one.
    """
    if not 0 <= old_size <= size:
        raise IndexError(f"a log of {size} leaves has no earlier size {old_size}")
    if old_size in (0, size):
        return []
    first, count, old = 0, size, old_size
    down: list[Span] = []
    is_whole = True  # the old log is the present subtree, so its root is known
    while old != count:
        left = left_size(count)
        if old <= left:
            down.append((first + left, count - left))
            count = left
        else:
            down.append((first, left))
            first, count, old, is_whole = first + left, count - left, old - left, False
    if not is_whole:
        down.append((first, count))
    return down[::-1]


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Do nothing if `leaf` is leaf `index` of the log of this size and root (RFC 9162, 2.1.3.2).

    Raises:
        ProofError: the proof does not verify.
    """
    if not 0 <= index < size:
        raise ProofError(f"leaf {index} cannot be in a log of {size}")
    at, last, node = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise ProofError(f"the proof of leaf {index} is too long: {len(proof)} hashes")
        if at & 1 or at == last:
            node = node_hash(sibling, node)
            while at and not at & 1:  # levels at which the right edge has no sibling
                at, last = at >> 1, last >> 1
        else:
            node = node_hash(node, sibling)
        at, last = at >> 1, last >> 1
    if last != 0:
        raise ProofError(f"the proof of leaf {index} is too short: {len(proof)} hashes")
    if node != root:
        raise ProofError(f"leaf {index} is not in the log of {size} with root {root.hex()[:16]}")


def verify_consistency(
    old_size: int, old_root: bytes, new_size: int, new_root: bytes, proof: Sequence[bytes]
) -> None:
    """Do nothing if the new log begins with the whole old one (RFC 9162, 2.1.4.2).

    Raises:
        ProofError: the proof does not verify.
    """
    refused = ProofError(f"the log of {new_size} is not shown to begin with the log of {old_size}")
    if not 0 <= old_size <= new_size:
        raise ProofError(f"a log of {old_size} cannot grow to {new_size}")
    if old_size in (0, new_size):
        if proof or old_root != (new_root if old_size else EMPTY_ROOT):
            raise refused
        return
    path = list(proof)
    if old_size & (old_size - 1) == 0:
        path.insert(0, old_root)  # a perfect old tree is a node of the new one, so the proof omits it
    if not path:
        raise refused
    at, last = old_size - 1, new_size - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise refused
        if at & 1 or at == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        at, last = at >> 1, last >> 1
    if last != 0 or old != old_root or new != new_root:
        raise refused


def left_size(count: int) -> int:
    """The largest power of two below `count`."""
    return 1 << (count - 1).bit_length() - 1
