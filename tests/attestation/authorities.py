"""Authorities: certificate chains, revocation lists and policies that tests make for themselves."""

from __future__ import annotations

import calendar
import functools
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID

from assay.attestation.binding import Binding
from assay.attestation.evidence import Collateral, DeviceFamily
from assay.attestation.policy import AppraisalPolicy, Claim, Reference, Root, SnpTcb, TcbStatus
from assay.protocol.types import Digest, PeerId

AT_S = calendar.timegm((2026, 11, 20, 12, 0, 0))
DAY_S = 86_400

warnings.filterwarnings("ignore", message=".*serial number.*")  # AMD's own are 0


@dataclass(frozen=True)
class Authority:
    """A certificate and the key to it."""

    certificate: x509.Certificate
    key: Any

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def sha256(self) -> Digest:
        return Digest(hashlib.sha256(self.der).digest())


@functools.cache
def a_key(name: str, kind: str = "p384") -> Any:
    """One key per name: making RSA keys takes a second."""
    if kind == "rsa":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key(ec.SECP384R1() if kind == "p384" else ec.SECP256R1())


def a_name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, common),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Tests"),
        ]
    )


def moment(unix_s: int) -> datetime:
    return datetime.fromtimestamp(unix_s, timezone.utc)


def an_authority(
    name: str,
    issuer: Authority | None = None,
    *,
    kind: str = "p384",
    is_issuer: bool = True,
    signs_crls: bool = True,
    path_length: int | None = None,
    extensions: Mapping[str, bytes] | None = None,
    from_s: int = AT_S - 1000 * DAY_S,
    to_s: int = AT_S + 1000 * DAY_S,
    serial: int | None = None,
    key: Any = None,
) -> Authority:
    """A certificate for `name`, self-signed without an issuer."""
    key = key or a_key(name, kind)
    builder = (
        x509.CertificateBuilder()
        .subject_name(a_name(name))
        .issuer_name(issuer.certificate.subject if issuer else a_name(name))
        .public_key(key.public_key())
        .serial_number(serial or int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))
        .not_valid_before(moment(from_s))
        .not_valid_after(moment(to_s))
    )
    if is_issuer:
        builder = builder.add_extension(x509.BasicConstraints(True, path_length), critical=True)
        builder = builder.add_extension(key_usage(signs_crls), critical=True)
    for oid, value in (extensions or {}).items():
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value)
        builder = builder.add_extension(extension, critical=False)
    signer = issuer.key if issuer else key
    return Authority(builder.sign(signer, **signing(signer)), key)


def signing(signer: Any) -> dict[str, Any]:
    if isinstance(signer, rsa.RSAPrivateKey):
        pss = padding.PSS(mgf=padding.MGF1(hashes.SHA384()), salt_length=48)
        return {"algorithm": hashes.SHA384(), "rsa_padding": pss}
    is_p256 = isinstance(signer.curve, ec.SECP256R1)
    return {"algorithm": hashes.SHA256() if is_p256 else hashes.SHA384()}


def key_usage(signs_crls: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=signs_crls,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def a_crl(
    issuer: Authority,
    revoked: Sequence[Authority] = (),
    *,
    from_s: int = AT_S - DAY_S,
    to_s: int = AT_S + 29 * DAY_S,
) -> bytes:
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.certificate.subject)
        .last_update(moment(from_s))
        .next_update(moment(to_s))
        .add_extension(x509.CRLNumber(1), critical=False)
    )
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    for authority in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(authority.certificate.serial_number)
        builder = builder.add_revoked_certificate(entry.revocation_date(moment(from_s)).build())
    crl = builder.sign(issuer.key, **signing(issuer.key))
    return crl.public_bytes(serialization.Encoding.DER)


def a_binding(**changed: Any) -> Binding:
    fields: dict[str, Any] = {
        "deployment_id": Digest(b"D" * 32),
        "node": PeerId(b"N" * 32),
        "run_id": Digest(b"R" * 32),
        "epoch": 3,
        "code_digest": Digest(b"C" * 32),
        "nonce": Digest(bytes(range(32))),
        "nonce_at_s": AT_S - 60,
    }
    return Binding(**fields | changed)


def a_reference(family: DeviceFamily, values: Mapping[str, str], **changed: Any) -> Reference:
    fields: dict[str, Any] = {
        "name": "good",
        "family": family,
        "values": tuple(Claim(name=name, value=value) for name, value in values.items()),
        "not_before_s": AT_S - 100 * DAY_S,
        "not_after_s": AT_S + 100 * DAY_S,
    }
    return Reference(**fields | changed)


def a_policy(*families: DeviceFamily, **changed: Any) -> AppraisalPolicy:
    """Strict in everything but what `changed` says."""
    fields: dict[str, Any] = {
        "name": "tests",
        "families": families,
        "killed": (),
        "roots": (),
        "references": (),
        "tcb_worst": TcbStatus.UP_TO_DATE,
        "tcb_evaluation_min": 0,
        "snp_tcb_min": SnpTcb(fmc=0, bootloader=3, tee=0, snp=8, microcode=115),
        "refused_advisories": (),
        "refused_devices": (),
        "is_smt_allowed": False,
        "is_dynamic_platform_allowed": False,
        "are_cached_keys_allowed": False,
        "is_revocation_required": True,
        "evidence_age_max_s": DAY_S,
        "collateral_age_max_s": 30 * DAY_S,
        "result_life_s": 3600,
    }
    return AppraisalPolicy(**fields | changed)


def a_root(family: DeviceFamily, authority: Authority) -> Root:
    return Root(family=family, sha256=authority.sha256)


def a_collateral(**changed: Any) -> Collateral:
    fields: dict[str, Any] = {"fetched_at_s": AT_S - DAY_S, "intel": b"", "certificates": (), "crls": ()}
    return Collateral(**fields | changed)
