"""Certificates: validates the X.509 path from a device's certificate to a root that the policy pins.

Room: attestation (pure). Supports only what the three vendors issue: X.509 v3, RSA-PSS or
ECDSA, no name constraints. Trust is in the pinned digest of the root, so a
root may come with the evidence. A certificate that the path does not use is
refused: no part of evidence is ignored. An ECDSA signature (r, s) is valid as (r, n - s)
too, and vendors issue both: a certificate's digest is an id only where it is pinned.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from assay.attestation.evidence import CERTIFICATE_BYTES_MAX, CRL_BYTES_MAX
from assay.attestation.finding import FOREVER_S
from assay.attestation.policy import AppraisalPolicy
from assay.attestation.reasons import Reason
from assay.protocol.errors import MalformedMessage
from assay.protocol.types import Digest

DEPTH_MAX = 6  # NVIDIA's is five

# What the library raises for malformed certificates; some of them are bare Exceptions.
_UNREADABLE = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The parts of a certificate that we use, fully parsed: the library parses names only on access."""

    parsed: x509.Certificate
    der: bytes
    sha256: Digest
    subject: x509.Name
    issuer: x509.Name
    serial: int
    key: CertificatePublicKeyTypes
    not_before_s: int
    not_after_s: int
    is_issuer: bool  # may sign certificates
    path_length: int | None
    signs_crls: bool
    unknown: dict[str, bytes]  # extensions that the library does not parse, by OID


@dataclass(frozen=True, slots=True)
class Path:
    """Result of path validation: the path, or the reasons against it."""

    reasons: tuple[Reason, ...]
    not_after_s: int = FOREVER_S
    issuer_key: bytes = b""  # that signed the device's own certificate: SubjectPublicKeyInfo in DER


def read_certificate(der: bytes) -> Certificate:
    """A certificate in DER, fully parsed.

    Raises:
        MalformedMessage: it is not a certificate.
    """
    if len(der) > CERTIFICATE_BYTES_MAX:
        raise MalformedMessage(f"certificate: {len(der)} bytes, at most {CERTIFICATE_BYTES_MAX} expected")
    try:
        found = x509.load_der_x509_certificate(der)
        basic = usage = None
        unknown = {}
        for extension in found.extensions:
            if isinstance(extension.value, x509.BasicConstraints):
                basic = extension.value
            elif isinstance(extension.value, x509.KeyUsage):
                usage = extension.value
            elif isinstance(extension.value, x509.UnrecognizedExtension):
                unknown[extension.oid.dotted_string] = extension.value.value
        # No signature covers the second naming of the algorithm and the unused bits of the signature.
        # The library is lenient with both, so an attacker could vary them unless compared here.
        if _item(der, 1) != _item(found.tbs_certificate_bytes, 2):
            raise ValueError("its two signature algorithms differ")
        if not _item(der, 2).endswith(b"\0" + found.signature):
            raise ValueError("its signature is not of whole bytes")
        return Certificate(
            found,
            der,
            Digest(hashlib.sha256(der).digest()),
            found.subject,
            found.issuer,
            found.serial_number,
            found.public_key(),
            int(found.not_valid_before_utc.timestamp()),
            int(found.not_valid_after_utc.timestamp()),
            basic is not None and basic.ca and usage is not None and usage.key_cert_sign,
            None if basic is None else basic.path_length,
            usage is not None and usage.crl_sign,
            unknown,
        )
    except _UNREADABLE as cause:
        raise MalformedMessage(f"certificate: not X.509 in DER ({_one_line(cause)})") from None


def check_path(
    given: Sequence[Certificate],
    pool: Iterable[Certificate],
    crls: Sequence[bytes],
    pinned: frozenset[Digest],
    policy: AppraisalPolicy,
    at_s: int,
) -> Path:
    """Validate the path from the first certificate of `given` to a pinned root.

    Args:
        given: From the evidence, the device's own first; each must be on the path.
        pool: Other certificates that may be on it.
        crls: Revocation lists in DER.
        pinned: SHA-256 of trusted roots.
        policy: Says whether a list is required for each issuer that may sign one.
        at_s: Unix time.

    Raises:
        MalformedMessage: a revocation list is malformed.
    """
    if not given:
        return Path((Reason.CHAIN,))
    path = [given[0]]
    others = [*given[1:], *pool]
    while path[-1].sha256 not in pinned:
        issuer = next((other for other in others if _is_issued_by(path[-1], other)), None)
        if issuer is None or issuer in path:
            is_top = path[-1].subject == path[-1].issuer
            return Path((Reason.ROOT if is_top else Reason.CHAIN,))
        path.append(issuer)
        if len(path) > DEPTH_MAX:
            return Path((Reason.CHAIN,))
    reasons = []
    is_proper = all(
        issuer.is_issuer and (issuer.path_length is None or below <= issuer.path_length)
        for below, issuer in enumerate(path[1:])
    )
    on_path = {certificate.sha256 for certificate in path}
    # A device's own certificate may sign only reports, and a root cannot be the device's.
    is_device = not path[0].is_issuer and len(path) > 1
    if not is_proper or not is_device or any(extra.sha256 not in on_path for extra in given):
        reasons.append(Reason.CHAIN)
    if any(not c.not_before_s <= at_s <= c.not_after_s for c in path):
        reasons.append(Reason.CERTIFICATE_TIME)
    lists = [_read_crl(der) for der in crls]
    ends = [c.not_after_s for c in path]
    for subject, issuer in itertools.pairwise(path):
        reason, end = _revocation(subject, issuer, lists, policy, at_s)
        reasons += reason
        ends.append(end)
    issuer = path[:2][-1]  # a root is its own
    key = issuer.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Path(tuple(reasons), min(ends), key)


def check_p384(key: CertificatePublicKeyTypes, r: int, s: int, covered: bytes) -> tuple[Reason, ...]:
    """Reasons against an ECDSA P-384 signature with SHA-384: none, or SIGNATURE."""
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        return (Reason.SIGNATURE,)
    try:
        key.verify(utils.encode_dss_signature(r, s), covered, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError):
        return (Reason.SIGNATURE,)
    return ()


def _item(der: bytes, index: int) -> bytes:
    """An item of a DER SEQUENCE that the library has already accepted as well formed."""
    start, _ = _extent(der, 0)
    for _ in range(index):
        start = _extent(der, start)[1]
    return der[start : _extent(der, start)[1]]


def _extent(der: bytes, at: int) -> tuple[int, int]:
    """Offsets at which the contents of the item at `at` begin and end."""
    length = int.from_bytes(der[at + 1 : at + 2], "big")
    start = at + 2
    if length >= 0x80:
        start += length - 0x80
        length = int.from_bytes(der[at + 2 : start], "big")
    return start, start + length


def _is_issued_by(subject: Certificate, issuer: Certificate) -> bool:
    if subject.issuer != issuer.subject:
        return False
    try:
        subject.parsed.verify_directly_issued_by(issuer.parsed)
    except (InvalidSignature, *_UNREADABLE):
        return False
    return True


def _read_crl(der: bytes) -> x509.CertificateRevocationList:
    if len(der) > CRL_BYTES_MAX:
        raise MalformedMessage(f"revocation list: {len(der)} bytes, at most {CRL_BYTES_MAX} expected")
    try:
        return x509.load_der_x509_crl(der)
    except _UNREADABLE as cause:
        raise MalformedMessage(f"revocation list: not an X.509 CRL in DER ({_one_line(cause)})") from None


def _revocation(
    subject: Certificate,
    issuer: Certificate,
    lists: Sequence[x509.CertificateRevocationList],
    policy: AppraisalPolicy,
    at_s: int,
) -> tuple[tuple[Reason, ...], int]:
    """Reasons from revocation lists against one certificate, and their expiry (Unix time)."""
    if not issuer.signs_crls:  # AMD's SEV key and NVIDIA's boot ROM have no list; their issuer's covers them
        return (), FOREVER_S
    end = 0
    for crl in lists:
        try:
            if crl.issuer != issuer.subject or not crl.is_signature_valid(issuer.key):  # type: ignore[arg-type]
                continue
            # Regardless of dates: a revoked certificate stays revoked.
            if crl.get_revoked_certificate_by_serial_number(subject.serial) is not None:
                return (Reason.REVOKED,), 0
            until = crl.next_update_utc
            if until is not None and crl.last_update_utc.timestamp() <= at_s <= until.timestamp():
                end = max(end, int(until.timestamp()))
        except _UNREADABLE as cause:
            raise MalformedMessage(f"revocation list: cannot be read ({_one_line(cause)})") from None
    if end:
        return (), end
    return ((Reason.REVOCATION_UNKNOWN,) if policy.is_revocation_required else ()), FOREVER_S


def _one_line(cause: BaseException) -> str:
    return " ".join(str(cause).split())[:200]
