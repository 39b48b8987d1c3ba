"""Intel quote: parser of TDX and SGX quotes, versions 3 to 5.

Room: attestation (pure). A quote is a header, a report body, and a signature with
the certificates of the signing key. No signature is checked here: the
result is what a quote *claims*, within bounds.

Reference: Intel, "Intel TDX DCAP Quoting Library API", appendix "Quote Format";
"Intel SGX ECDSA QuoteLibReference", appendix A.4.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from assay.attestation.evidence import REPORT_BYTES_MAX, DeviceFamily
from assay.attestation.reader import Reader
from assay.protocol.errors import MalformedMessage

ECDSA_P256 = 2
SGX, TDX = 0x00, 0x81
SGX_BODY, TD_BODY, TD15_BODY = 384, 584, 648
BODY_TYPES = {1: SGX_BODY, 2: TD_BODY, 3: TD15_BODY}  # body type numbers of quote version 5
NESTED_CERTIFICATES = 6  # since version 4: the quoting enclave's report, then PEM
PEM_CHAIN = 5
CHAIN_CERTIFICATES = 3  # the processor's, its issuer's, the root

TD_DEBUG_BITS = 0xFF  # "TD under debug": one bit is defined, any of them makes the guest untrusted
TD_MIGRATABLE = 1 << 29
SGX_DEBUG = 1 << 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The parsed fields of a quote."""

    family: DeviceFamily
    version: int
    report_data: bytes
    claims: dict[str, str]
    is_debug: bool
    is_migratable: bool
    is_own_module: bool  # TDX: Intel's module, and no service guest bound
    chain: tuple[bytes, ...]  # DER, the processor's first
    end: int  # offset of the quote's end


def parse_quote(body: bytes) -> Quote:
    """The quote at the beginning of `body`.

    Bytes after its declared end are ignored: some platforms return whole pages.

    Raises:
        MalformedMessage: it is no quote, or of a form without certificates.
    """
    read = Reader(body, "quote", REPORT_BYTES_MAX)
    version = read.number(2, "version")
    if version not in (3, 4, 5):
        raise MalformedMessage(f"quote: version {version}, expected 3 to 5")
    read.expect(read.number(2, "key type"), ECDSA_P256, "the attestation key's type")
    tee = read.number(4, "tee type")
    if version == 3:
        tee = SGX  # those four bytes are reserved or version numbers before version 4
    if tee not in (SGX, TDX):
        raise MalformedMessage(f"quote: tee type {tee:#x}, expected 0x0 (SGX) or 0x81 (TDX)")
    read.take(40, "header")
    size = SGX_BODY if tee == SGX else TD_BODY
    if version == 5:
        kind = read.number(2, "body type")
        size = BODY_TYPES.get(kind, 0)
        read.expect(read.number(4, "body size"), size, f"the size of a body of type {kind}")
        if (tee == SGX) != (size == SGX_BODY):
            raise MalformedMessage(f"quote: body type {kind} for tee type {tee:#x}")
    report = Reader(read.take(size, "report body"), "quote's body", size)
    chain = _chain(read.take(read.number(4, "signature length"), "signature"), version)
    parts = _enclave(report) if tee == SGX else _guest(report, size)
    report.end()
    return Quote(version=version, chain=chain, end=read.at, **parts)  # type: ignore[arg-type]


def _enclave(read: Reader) -> dict[str, object]:
    read.take(16 + 4 + 28, "cpu svn and misc select")
    flags = read.number(8, "attributes")
    xfrm = read.number(8, "xfrm")
    enclave = read.take(32, "mr_enclave")
    read.take(32, "reserved")
    signer = read.take(32, "mr_signer")
    read.take(96, "reserved")
    product, svn = read.number(2, "isv_prod_id"), read.number(2, "isv_svn")
    read.take(60, "reserved")
    claims = {
        "mr_enclave": enclave.hex(),
        "mr_signer": signer.hex(),
        "isv_prod_id": str(product),
        "isv_svn": str(svn),
        "attributes": hex(flags),
        "xfrm": hex(xfrm),
    }
    return {
        "family": DeviceFamily.SGX,
        "report_data": read.take(64, "report_data"),
        "claims": claims,
        "is_debug": bool(flags & SGX_DEBUG),
        "is_migratable": False,
        "is_own_module": True,
    }


def _guest(read: Reader, size: int) -> dict[str, object]:
    read.take(16, "tee_tcb_svn")
    seam = read.take(48, "mr_seam")
    seam_signer = read.take(48, "mr_signer_seam")
    seam_attributes = read.number(8, "seam_attributes")
    attributes = read.number(8, "td_attributes")
    xfam = read.number(8, "xfam")
    names = ("mr_td", "mr_config_id", "mr_owner", "mr_owner_config", "rtmr0", "rtmr1", "rtmr2", "rtmr3")
    claims = {name: read.take(48, name).hex() for name in names}
    claims |= {"mr_seam": seam.hex(), "td_attributes": hex(attributes), "xfam": hex(xfam)}
    data = read.take(64, "report_data")
    service = b""
    if size == TD15_BODY:
        read.take(16, "tee_tcb_svn2")
        service = read.take(48, "mr_service_td")
    return {
        "family": DeviceFamily.TDX,
        "report_data": data,
        "claims": claims,
        "is_debug": bool(attributes & TD_DEBUG_BITS),
        "is_migratable": bool(attributes & TD_MIGRATABLE),
        "is_own_module": not any(seam_signer) and not seam_attributes and not any(service),
    }


def _chain(data: bytes, version: int) -> tuple[bytes, ...]:
    """The certificates in the signature part."""
    read = Reader(data, "quote's signature", REPORT_BYTES_MAX)
    read.take(64 + 64, "signature and key")
    if version >= 4:
        read.expect(read.number(2, "type"), NESTED_CERTIFICATES, "the certification data's type")
        read.expect(read.number(4, "size"), len(data) - read.at, "the certification data's size")
    read.take(384 + 64, "quoting enclave's report and signature")
    read.take(read.number(2, "length"), "authentication data")
    read.expect(read.number(2, "type"), PEM_CHAIN, "the inner certification data's type")
    pem = read.take(read.number(4, "length"), "certificates")
    read.end()
    return pem_chain(pem.removesuffix(b"\0"), CHAIN_CERTIFICATES)


def pem_chain(pem: bytes, count: int) -> tuple[bytes, ...]:
    """The `count` certificates in a canonical PEM text, as DER.

    Raises:
        MalformedMessage: another number of them, or the text is not canonical PEM.
    """
    pieces = pem.split(b"-----END CERTIFICATE-----\n")
    if len(pieces) != count + 1:
        raise MalformedMessage(f"quote: {len(pieces) - 1} certificates in PEM, expected {count}")
    chain = []
    for piece in pieces[:-1]:
        head, _, body = piece.partition(b"\n")
        try:
            chain.append(base64.b64decode(body.replace(b"\n", b""), validate=True))
        except binascii.Error:
            raise MalformedMessage("quote: a certificate in PEM is not base64") from None
        if head != b"-----BEGIN CERTIFICATE-----":
            raise MalformedMessage(f"quote: a certificate in PEM begins with {head[:40]!r}")
    if pem != b"".join(map(_pem, chain)):
        raise MalformedMessage("quote: certificates are not in canonical PEM, expected lines of 64 letters")
    return tuple(chain)


def _pem(der: bytes) -> bytes:
    text = base64.b64encode(der)
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return b"\n".join([b"-----BEGIN CERTIFICATE-----", *lines, b"-----END CERTIFICATE-----", b""])
