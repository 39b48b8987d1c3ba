"""Identity: converts between Assay's PeerId (32-byte Ed25519 key) and libp2p's peer id.

Room: network (pure). libp2p's id never leaves this package.
"""

from __future__ import annotations

from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.peer.id import ID

from assay.protocol.errors import MalformedMessage
from assay.protocol.types import PeerId

_PREFIX = b"\x00\x24\x08\x01\x12\x20"  # identity multihash of a protobuf Ed25519 public key


def key_pair(seed: bytes) -> KeyPair:
    """The libp2p key of this 32-byte seed; PyNaCl's `SigningKey(seed)` is the same key."""
    return create_new_key_pair(seed)


def libp2p_id(peer: PeerId) -> ID:
    """libp2p's id of a peer's key."""
    return ID(_PREFIX + peer)


def peer_id(identity: ID) -> PeerId:
    """The Ed25519 key in libp2p's id.

    Raises:
        MalformedMessage: the id holds no Ed25519 key, so no member has it.
    """
    spelled = identity.to_bytes()
    if len(spelled) != len(_PREFIX) + 32 or not spelled.startswith(_PREFIX):
        raise MalformedMessage(f"peer id {spelled[:8].hex()} is not an Ed25519 key")
    return PeerId(spelled[len(_PREFIX) :])
