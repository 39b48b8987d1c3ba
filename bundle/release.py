"""Release: ECDSA P-256 signatures of a buyer's releases, made and checked with `cryptography` alone.

Room: bundle (pure). Nonces follow from key and message (RFC 6979): equal releases have equal bytes.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from assay.bundle.finished import Release

PEM_BYTES_MAX = 1_000


class BadReleaseError(ValueError):
    """A signature is not this key's of this message, or the key is invalid."""


def release_of(key: ec.EllipticCurvePrivateKey) -> Release:
    """A release key that signs."""
    algorithm = ec.ECDSA(SHA256(), deterministic_signing=True)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return Release(public_key=public, sign=lambda message: key.sign(message, algorithm))


def signed_already(public_key: bytes, signature: bytes) -> Release:
    """A release without a key: its `sign` returns this signature if it covers the bytes.

    `sign` raises BadReleaseError if it does not.
    """

    def sign(message: bytes) -> bytes:
        check_signature(public_key, message, signature)
        return signature

    return Release(public_key=public_key, sign=sign)


def check_signature(public_key: bytes, message: bytes, signature: bytes) -> None:
    """Do nothing if the signature is this key's.

    Raises:
        BadReleaseError: it is not, or the key is none of ECDSA P-256.
    """
    try:
        key = load_pem_public_key(public_key[:PEM_BYTES_MAX])
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadReleaseError(f"not a public key ({error})") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadReleaseError("another kind of key, expected ECDSA P-256")
    try:
        key.verify(signature, message, ec.ECDSA(SHA256()))
    except InvalidSignature:
        raise BadReleaseError("the signature is not this key's of what it should cover") from None
