"""Identity: Ed25519 signatures over messages, domain-separated by message tag, deployment and run.

Room: protocol (pure). The peer key is Ed25519; the same 32-byte seed is the
libp2p identity. Every signature covers a tag, the deployment, the run and the
digest of all fields of one message, so that bytes signed in one place mean
nothing in any other: two fresh local chains share chain id and addresses, and
only the random `deployment_id` prevents replay of old signatures.
"""

from __future__ import annotations

from dataclasses import dataclass

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from assay.protocol.encoding.codec import Message, digest
from assay.protocol.errors import PeerFault
from assay.protocol.types import Digest, PeerId, Signature

SIGN_TAG = b"assay/sign/1"


@dataclass(frozen=True, slots=True)
class Domain:
    """Signature domain: one run of one deployment."""

    deployment_id: Digest
    run_id: Digest


def signed_bytes(domain: Domain, message: Message) -> bytes:
    """The bytes a peer key signs for `message`: every part has a fixed or encoded length."""
    tag = type(message).TAG
    head = SIGN_TAG + bytes([len(tag)]) + tag
    return head + domain.deployment_id + domain.run_id + digest(message)


def sign(key: SigningKey, domain: Domain, message: Message) -> Signature:
    """Ed25519 signature of `message` under `domain`."""
    return Signature(key.sign(signed_bytes(domain, message)).signature)


def verify(peer: PeerId, domain: Domain, message: Message, signature: Signature) -> None:
    """Do nothing if `peer` signed `message` under `domain`.

    Raises:
        PeerFault: the signature is not by this peer over these bytes.
    """
    try:
        VerifyKey(peer).verify(signed_bytes(domain, message), signature)
    except (BadSignatureError, ValueError, TypeError):
        raise PeerFault(peer, f"signature does not cover this {type(message).__name__}") from None


def peer_of(key: SigningKey) -> PeerId:
    """The peer id (public key) of a peer key."""
    return PeerId(bytes(key.verify_key))
