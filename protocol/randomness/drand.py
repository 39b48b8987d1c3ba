"""Drand: external randomness for the beacon, from a drand network's future rounds, and its BLS check.

Room: protocol (pure). A coalition of all verifiers would know the beacon beforehand; a run may mix in
randomness that not even such a coalition can know. A manifest names a future round of a drand network, and
the next manifest carries that round's signature:

    manifest t fixes its commits and names D  ->  D is released  ->  manifest t+1 carries it  ->  draws

Reference:
    drand's scheme bls-unchained-g1-rfc9380 (the "quicknet" network): a BLS signature on G1 of the SHA-256
    of the round's number; hashing to the curve as in RFC 9380, 8.8.1.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, ClassVar

from assay.protocol.encoding.codec import Max
from assay.protocol.errors import MalformedMessage
from assay.protocol.types import NO_DIGEST, Digest

KEY_BYTES, SIGNATURE_BYTES = 96, 48  # compressed points of G2 and G1
AHEAD_S = 120  # a named round may be at most this far ahead, or consensus would stall
SLACK_S = 3  # clock skew and latency; a leader names at least two periods, and this, ahead
GRACE_S = 5  # after its release, a round that no verifier holds is taken as unavailable
NUMBER_MAX = (1 << 53) - 1
_POINTS = "py_ecc.bls.point_compression"
_SCHEME = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrandSpec:
    """Parameters of a drand network; unused if the key is empty."""

    TAG: ClassVar[bytes] = b"assay/drand-spec/1"
    key: Annotated[bytes, Max(KEY_BYTES)]
    genesis_s: int  # Unix time at which its round 1 is released
    period_s: int

    @property
    def is_used(self) -> bool:
        """Whether the run uses drand."""
        return bool(self.key)


NO_DRAND = DrandSpec(key=b"", genesis_s=0, period_s=0)
# The League of Entropy's network, from docs.drand.love/developer.
QUICKNET = DrandSpec(
    key=bytes.fromhex(
        "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
        "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
    ),
    genesis_s=1_692_803_367,
    period_s=3,
)


def drand_faults(spec: DrandSpec) -> tuple[str, ...]:
    """Errors in a network's parameters, as text; empty if valid."""
    if not spec.is_used:
        return () if spec == NO_DRAND else ("drand has a genesis or a period and no key",)
    found = []
    try:
        _key_point(bytes(spec.key))
    except ValueError as error:
        found.append(f"drand's key {spec.key.hex()[:16]}: {error}")
    if spec.genesis_s < 1:
        found.append(f"drand's genesis is {spec.genesis_s}, expected a Unix time")
    if not 1 <= spec.period_s <= AHEAD_S // 4:
        found.append(f"drand's period is {spec.period_s} s, expected 1 to {AHEAD_S // 4}")
    return tuple(found)


def has_begun(spec: DrandSpec, now_s: int) -> bool:
    """Whether there are rounds that a manifest may name: before, none could pass."""
    return not spec.is_used or spec.genesis_s <= now_s + AHEAD_S


def released_s(spec: DrandSpec, number: int) -> int:
    """Unix time, in seconds, at which a round's signature is released."""
    return spec.genesis_s + (number - 1) * spec.period_s


def named_at(spec: DrandSpec, now_s: int) -> int:
    """The round that a leader names at `now_s`: the first whose release is far enough ahead."""
    due_s = now_s + 2 * spec.period_s + SLACK_S
    return max(1, -(-(due_s - spec.genesis_s) // spec.period_s) + 1)


def longest_wait_s(spec: DrandSpec) -> int:
    """Seconds after naming a round until a leader holds it or takes it as unavailable."""
    return 3 * spec.period_s + SLACK_S + GRACE_S


def may_be_named(spec: DrandSpec, number: int, now_s: int) -> bool:
    """Whether a round lies in the near future by this clock, so that a leader cannot know its randomness."""
    return now_s < released_s(spec, number) <= now_s + AHEAD_S


def is_overdue(spec: DrandSpec, number: int, now_s: int) -> bool:
    """Whether a round's release is so long past that it counts as unavailable if not held."""
    return now_s > released_s(spec, number) + GRACE_S


def randomness(signature: bytes) -> Digest:
    """Randomness from a round's signature: 32 bytes; zero bytes without a signature."""
    return Digest(hashlib.sha256(signature).digest()) if signature else NO_DIGEST


def check_signature(spec: DrandSpec, number: int, signature: bytes) -> None:
    """Do nothing if this is the round's unique signature. Takes 0.2 s the first time.

    Raises:
        MalformedMessage: it is not.
    """
    if not 1 <= number <= NUMBER_MAX:
        raise MalformedMessage(f"drand round {number}: expected 1 to {NUMBER_MAX}")
    if len(signature) != SIGNATURE_BYTES:
        raise MalformedMessage(
            f"drand round {number}: a signature of {len(signature)} bytes, expected {SIGNATURE_BYTES}"
        )
    if not _holds(bytes(spec.key), number, bytes(signature)):
        raise MalformedMessage(f"drand round {number}: {signature.hex()[:16]} is not its signature")


@functools.lru_cache(maxsize=1024)
def _holds(key: bytes, number: int, signature: bytes) -> bool:
    curve = import_module("py_ecc.optimized_bls12_381")
    hashing, points = import_module("py_ecc.bls.hash_to_curve"), import_module(_POINTS)
    try:
        point = points.decompress_G1(int.from_bytes(signature, "big"))
    except ValueError:
        return False
    if curve.is_inf(point) or not curve.is_inf(curve.multiply(point, curve.curve_order)):
        return False
    message = hashlib.sha256(number.to_bytes(8, "big")).digest()
    hashed = hashing.hash_to_G1(message, _SCHEME, hashlib.sha256)
    # e(signature, generator) = e(H(message), key), as one product
    product = curve.pairing(curve.G2, point, False) * curve.pairing(_key_point(key), curve.neg(hashed), False)
    return bool(curve.final_exponentiate(product) == curve.FQ12.one())


@functools.lru_cache(maxsize=16)
def _key_point(key: bytes) -> Any:
    """The G2 point of an encoded key.

    Raises:
        ValueError: it is no point, or not in the group.
    """
    curve = import_module("py_ecc.optimized_bls12_381")
    if len(key) != KEY_BYTES:
        raise ValueError(f"{len(key)} bytes, expected {KEY_BYTES}")
    point = import_module(_POINTS).decompress_G2(
        (int.from_bytes(key[:48], "big"), int.from_bytes(key[48:], "big"))
    )
    if curve.is_inf(point) or not curve.is_inf(curve.multiply(point, curve.curve_order)):
        raise ValueError("not a point of the group")
    return point
