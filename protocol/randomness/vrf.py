"""VRF: verifiable random function (RFC 9381) whose proofs are the verifiers' shares of the beacon.

Room: protocol (pure). ECVRF-EDWARDS25519-SHA512-TAI of RFC 9381 (suite 0x03);
names and steps are the RFC's. The key is the peer key, so its seed is the only
secret; for one public key and one input, one output verifies.

libsodium does the curve arithmetic and refuses points outside the prime-order
group where it may. RFC 9381 works with such points (Gamma is only checked to
be on the curve), so untrusted points are multiplied through `_times_small`
and additions; keys are full-order or refused (RFC 9381, 5.4.5).
"""

from __future__ import annotations

import hashlib

from nacl import bindings
from nacl.exceptions import CryptoError

from assay.protocol.errors import MalformedMessage, PeerFault
from assay.protocol.types import PeerId

PROOF_BYTES, OUTPUT_BYTES = 80, 64
_SUITE = b"\x03"
_ORDER = 2**252 + 27742317777372353535851937790883648493
_PRIME = 2**255 - 19
_CHALLENGE_BYTES = 16
_IDENTITY = b"\x01" + bytes(31)


def prove(seed: bytes, alpha: bytes) -> bytes:
    """The 80-byte proof of this key's output on `alpha`. Deterministic.

    Args:
        seed: The 32-byte Ed25519 seed of a peer key.
        alpha: The public input; it must be domain-separated, so that proofs cannot be reused.
    """
    hashed = hashlib.sha512(seed).digest()
    secret = int.from_bytes(hashed[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    public = _base_times(secret)
    point = _encode_to_curve(public, alpha)
    gamma = _times(secret, point)
    nonce = int.from_bytes(hashlib.sha512(hashed[32:] + point).digest(), "little") % _ORDER
    challenge = _challenge(public, point, gamma, _base_times(nonce), _times(nonce, point))
    response = (nonce + challenge * secret) % _ORDER
    return gamma + challenge.to_bytes(_CHALLENGE_BYTES, "little") + response.to_bytes(32, "little")


def verify(peer: PeerId, alpha: bytes, proof: bytes) -> bytes:
    """The 64-byte output that `peer`'s key has on `alpha`.

    Raises:
        MalformedMessage: not the encoding of any proof.
        PeerFault: not this peer's proof for this input, or its key has no unique output.
    """
    gamma, challenge, response = _decode_proof(proof)
    if not _is_full_order(peer):
        raise PeerFault(peer, "key of small or mixed order, which has no unique VRF output")
    point = _encode_to_curve(peer, alpha)
    # U = s*B - c*Y and V = s*H - c*Gamma.
    first = _subtract(_base_times(response), _times(challenge, peer))
    second = _subtract(_times(response, point), _times_small(challenge, gamma))
    if _challenge(peer, point, gamma, first, second) != challenge:
        raise PeerFault(peer, "VRF proof does not hold for this input")
    return proof_to_hash(proof)


def proof_to_hash(proof: bytes) -> bytes:
    """The 64-byte output of a proof, without checking the proof; see `verify`.

    Raises:
        MalformedMessage: not the encoding of any proof.
    """
    gamma, _, _ = _decode_proof(proof)
    doubled = gamma
    for _ in range(3):  # the cofactor, 8
        doubled = _add(doubled, doubled)
    return hashlib.sha512(_SUITE + b"\x03" + doubled + b"\x00").digest()


def _decode_proof(proof: bytes) -> tuple[bytes, int, int]:
    if len(proof) != PROOF_BYTES:
        raise MalformedMessage(f"VRF proof: {len(proof)} bytes, expected {PROOF_BYTES}")
    gamma = proof[:32]
    challenge = int.from_bytes(proof[32:48], "little")
    response = int.from_bytes(proof[48:], "little")
    if response >= _ORDER:
        raise MalformedMessage("VRF proof: the scalar is not reduced")
    if not _is_canonical(gamma):
        raise MalformedMessage("VRF proof: the point is not in its one encoding")
    try:
        _add(gamma, _IDENTITY)
    except CryptoError:
        raise MalformedMessage("VRF proof: the point is not on the curve") from None
    return gamma, challenge, response


def _encode_to_curve(public: bytes, alpha: bytes) -> bytes:
    """Try and increment: the first hash that is a point, times the cofactor (RFC 9381, 5.4.1.1)."""
    for counter in range(256):
        candidate = hashlib.sha512(_SUITE + b"\x01" + public + alpha + bytes([counter]) + b"\x00").digest()[
            :32
        ]
        if not _is_canonical(candidate):
            continue
        try:
            point = _add(candidate, _IDENTITY)
        except CryptoError:
            continue
        for _ in range(3):
            point = _add(point, point)
        if point != _IDENTITY:
            return point
    raise AssertionError("256 hashes in a row are no points: one chance in 2^256")


def _challenge(*points: bytes) -> int:
    hashed = hashlib.sha512(_SUITE + b"\x02" + b"".join(points) + b"\x00").digest()
    return int.from_bytes(hashed[:_CHALLENGE_BYTES], "little")


def _is_canonical(point: bytes) -> bool:
    """Whether y < p, and no sign is set on a point with x = 0."""
    y = int.from_bytes(point, "little") & ((1 << 255) - 1)
    return y < _PRIME and not (point[31] >> 7 and y in (1, _PRIME - 1))


def _is_full_order(public: bytes) -> bool:
    return len(public) == 32 and bool(bindings.crypto_core_ed25519_is_valid_point(public))


def _add(first: bytes, second: bytes) -> bytes:
    return bindings.crypto_core_ed25519_add(first, second)


def _subtract(first: bytes, second: bytes) -> bytes:
    return bindings.crypto_core_ed25519_sub(first, second)


def _base_times(scalar: int) -> bytes:
    if scalar % _ORDER == 0:
        return _IDENTITY  # libsodium refuses this product
    return bindings.crypto_scalarmult_ed25519_base_noclamp((scalar % _ORDER).to_bytes(32, "little"))


def _times(scalar: int, point: bytes) -> bytes:
    """scalar * point, for a point of prime order."""
    if scalar % _ORDER == 0:
        return _IDENTITY
    return bindings.crypto_scalarmult_ed25519_noclamp((scalar % _ORDER).to_bytes(32, "little"), point)


def _times_small(scalar: int, point: bytes) -> bytes:
    """scalar * point for any point on the curve, of which libsodium multiplies no other; both are public."""
    if _is_full_order(point):
        return _times(scalar, point)
    total = _IDENTITY
    for bit in range(_CHALLENGE_BYTES * 8):
        if scalar >> bit & 1:
            total = _add(total, point)
        point = _add(point, point)
    return total
