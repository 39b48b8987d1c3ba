"""Inclusion lists: whose commits a leader may not leave out of its manifest.

Room: protocol (pure). Once a verifier holds every commit of a round, or the round's deadline has passed, it
signs a list of the nodes whose commits it holds. A manifest with commits carries a quorum's lists, and a
commit of every node that more than f of them name. So a leader can leave out only what some honest verifier
did not hold in time: what all honest verifiers list is named by quorum - f, so more than f, of any quorum's
lists. (Ethereum's fork-choice enforced inclusion lists, EIP-7805, serve the same end.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from assay.protocol.agreement.quorum import faults_tolerated, quorum
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import InclusionList
from assay.protocol.types import PeerId


def nodes_bitmap(members: Collection[PeerId], held: Collection[PeerId]) -> bytes:
    """Which of a run's nodes are held: bit i % 8, lowest first, of byte i // 8 is for `members[i]`."""
    bits = sum(1 << i for i, peer in enumerate(members) if peer in held)
    return bits.to_bytes((len(members) + 7) // 8, "little")


def is_bitmap(members: Collection[PeerId], bitmap: bytes) -> bool:
    """Whether this has the length of these members' bitmaps, and names no more than these."""
    return len(bitmap) == (len(members) + 7) // 8 and not int.from_bytes(bitmap, "little") >> len(members)


def listed(members: Collection[PeerId], bitmap: bytes) -> frozenset[PeerId]:
    """The nodes that a bitmap names.

    Raises:
        MalformedMessage: it is no bitmap of these members.
    """
    if not is_bitmap(members, bitmap):
        raise MalformedMessage(f"inclusion list: {bitmap.hex()} is no bitmap of {len(members)} nodes")
    bits = int.from_bytes(bitmap, "little")
    return frozenset(peer for i, peer in enumerate(members) if bits >> i & 1)


def required(
    members: Collection[PeerId], lists: Iterable[InclusionList], verifier_count: int
) -> frozenset[PeerId]:
    """The nodes that more than f of these lists of distinct verifiers name: at least one honest one does."""
    named = Counter(peer for one in lists for peer in listed(members, one.nodes))
    return frozenset(peer for peer, count in named.items() if count > faults_tolerated(verifier_count))


def compatible_lists(
    members: Collection[PeerId],
    lists: Iterable[InclusionList],
    held: Collection[PeerId],
    verifier_count: int,
) -> tuple[InclusionList, ...]:
    """As many of these lists as a manifest with the commits of `held` may carry; () if fewer than a quorum.

    A leader that cannot get a commit which a few verifiers list may still propose without their lists.
    """
    chosen: list[InclusionList] = []
    for one in sorted(lists, key=lambda one: len(listed(members, one.nodes) - set(held))):
        if required(members, (*chosen, one), verifier_count) <= set(held):
            chosen.append(one)
    return tuple(chosen) if len(chosen) >= quorum(verifier_count) else ()
