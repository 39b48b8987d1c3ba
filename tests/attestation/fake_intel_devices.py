"""Intel devices: quotes and signed TCB data as Intel's enclaves and services write them; the root is ours."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from assay.attestation.devices.intel_quote import SGX_BODY, TD15_BODY, TD_BODY
from assay.attestation.evidence import Collateral, DeviceFamily, Report
from assay.attestation.policy import AppraisalPolicy
from tests.attestation.authorities import (
    AT_S,
    DAY_S,
    Authority,
    a_collateral,
    a_crl,
    a_key,
    a_policy,
    a_reference,
    a_root,
    an_authority,
    moment,
)

PCK_OID = "1.2.840.113741.1.13.1"
CPU_SVN = bytes([3, 3, 2, 2, 4, 1, 0, 5] + [0] * 8)
PCE_SVN = 11
FMSPC = "B0C06F000000"
PPID = b"\x0f" * 16
QE_SIGNER = b"\xdc" * 32
MR = {"mr_td": b"\x01" * 48, "rtmr0": b"\x02" * 48, "rtmr1": b"\x03" * 48, "rtmr2": b"\x04" * 48}
TD_VALUES = {name: value.hex() for name, value in MR.items()}
MR_ENCLAVE = b"\x05" * 32


@functools.cache
def intel_root() -> Authority:
    return an_authority("SGX Root CA Tests", kind="p256", path_length=1)


@functools.cache
def platform_ca() -> Authority:
    return an_authority("SGX PCK Platform CA Tests", intel_root(), kind="p256", path_length=0)


@functools.cache
def tcb_signer() -> Authority:
    return an_authority("SGX TCB Signing Tests", intel_root(), kind="p256", is_issuer=False)


@functools.cache
def a_pck(is_dynamic: bool = False, is_cached: bool = False, is_smt: bool = False) -> Authority:
    """The certificate of a processor whose platform is set up like this."""
    base = "2a864886f84d010d01"
    components = [(f"02{n:02x}", integer(svn)) for n, svn in enumerate(CPU_SVN, 1)]
    tcb = sequence(
        *(entry(base + tail, value) for tail, value in components),
        entry(base + "0211", integer(PCE_SVN)),
        entry(base + "0212", octets(CPU_SVN)),
    )
    flags = (("0701", is_dynamic), ("0702", is_cached), ("0703", is_smt))
    extension = sequence(
        entry(base + "01", octets(PPID)),
        entry(base + "02", tcb),
        entry(base + "03", octets(bytes(2))),
        entry(base + "04", octets(bytes.fromhex(FMSPC))),
        entry(base + "05", b"\x0a\x01\x01"),
        entry(base + "06", octets(b"\x10" * 16)),
        entry(
            base + "07",
            sequence(*(entry(base + t, b"\x01\x01" + (b"\xff" if f else b"\0")) for t, f in flags)),
        ),
    )
    return an_authority(
        "SGX PCK Certificate Tests",
        platform_ca(),
        kind="p256",
        is_issuer=False,
        extensions={PCK_OID: extension},
    )


def tlv(tag: int, body: bytes) -> bytes:
    size = len(body)
    length = bytes([size]) if size < 0x80 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + length + body


def sequence(*items: bytes) -> bytes:
    return tlv(0x30, b"".join(items))


def octets(body: bytes) -> bytes:
    return tlv(0x04, body)


def integer(value: int) -> bytes:
    return tlv(0x02, bytes([value]))


def entry(oid: str, value: bytes) -> bytes:
    return sequence(tlv(0x06, bytes.fromhex(oid)), value)


def raw_signature(key: Any, covered: bytes) -> bytes:
    r, s = utils.decode_dss_signature(key.sign(covered, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def raw_key(key: Any) -> bytes:
    point = serialization.PublicFormat.UncompressedPoint
    return bytes(key.public_key().public_bytes(serialization.Encoding.X962, point)[1:])


def enclave_report(
    report_data: bytes, *, enclave: bytes = MR_ENCLAVE, signer: bytes = b"\x06" * 32,
    attributes: int = 0x05, product: int = 0, svn: int = 0,
) -> bytes:  # fmt: skip
    body = (
        CPU_SVN + bytes(4 + 28) + attributes.to_bytes(8, "little") + (0xE7).to_bytes(8, "little")
        + enclave + bytes(32) + signer + bytes(96)
        + product.to_bytes(2, "little") + svn.to_bytes(2, "little") + bytes(60) + report_data.ljust(64, b"\0")
    )  # fmt: skip
    assert len(body) == SGX_BODY
    return body


@dataclass
class TdFields:
    """A guest's report before it is signed."""

    report_data: bytes = bytes(64)
    version: int = 4
    attributes: int = 1 << 28
    seam_signer: bytes = bytes(48)
    mr_td: bytes = MR["mr_td"]
    service_td: bytes | None = None  # a body of version 1.5 has one

    def body(self) -> bytes:
        body = (
            bytes([6, 1, 3]) + bytes(13) + b"\x5b" * 48 + self.seam_signer + bytes(8)
            + self.attributes.to_bytes(8, "little") + (0x2E7).to_bytes(8, "little")
            + self.mr_td + bytes(48 * 3) + MR["rtmr0"] + MR["rtmr1"] + MR["rtmr2"] + bytes(48)
            + self.report_data
        )  # fmt: skip
        if self.service_td is None:
            assert len(body) == TD_BODY
            return body
        assert len(body) + 64 == TD15_BODY
        return body + bytes([6, 1, 3]) + bytes(13) + self.service_td


def a_td_quote(fields: TdFields, pck: Authority | None = None) -> bytes:
    header = header_of(fields.version, 0x81)
    body = fields.body()
    if fields.version == 5:
        kind = 2 if len(body) == TD_BODY else 3
        body = kind.to_bytes(2, "little") + len(body).to_bytes(4, "little") + body
    return committed(header + body, pck or a_pck(), nested=True, qe_product=2)


def an_sgx_quote(body: bytes, pck: Authority | None = None) -> bytes:
    return committed(header_of(3, 0) + body, pck or a_pck(), nested=False, qe_product=1)


def header_of(version: int, tee: int) -> bytes:
    vendor = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
    return (
        version.to_bytes(2, "little") + b"\x02\0" + tee.to_bytes(4, "little") + bytes(4) + vendor + bytes(20)
    )


def committed(covered: bytes, pck: Authority, *, nested: bool, qe_product: int) -> bytes:
    """What the quoting enclave adds: its signature, its own report, and its processor's certificates."""
    key, auth = a_key("attestation key", "p256"), b"\xa5" * 32
    binding = hashlib.sha256(raw_key(key) + auth).digest()
    qe = enclave_report(binding, signer=QE_SIGNER, attributes=0x11, product=qe_product, svn=6)
    pem = pck.pem + platform_ca().pem + intel_root().pem + b"\0"
    inner = (
        qe + raw_signature(pck.key, qe) + len(auth).to_bytes(2, "little") + auth
        + b"\x05\0" + len(pem).to_bytes(4, "little") + pem
    )  # fmt: skip
    if nested:
        inner = b"\x06\0" + len(inner).to_bytes(4, "little") + inner
    signature = raw_signature(key, covered) + raw_key(key) + inner
    return covered + len(signature).to_bytes(4, "little") + signature


def iso(unix_s: int) -> str:
    return moment(unix_s).strftime("%Y-%m-%dT%H:%M:%SZ")


def tcb_info(
    family: DeviceFamily, *, status: str, advisories: list[str], issued_s: int, minimum: int = 0
) -> str:
    tcb: dict[str, Any] = {
        "sgxtcbcomponents": [{"svn": max(svn, minimum)} for svn in CPU_SVN],
        "pcesvn": PCE_SVN,
    }
    info: dict[str, Any] = {
        "id": "SGX" if family is DeviceFamily.SGX else "TDX",
        "version": 3,
        "issueDate": iso(issued_s),
        "nextUpdate": iso(issued_s + 30 * DAY_S),
        "fmspc": FMSPC,
        "pceId": "0000",
        "tcbType": 0,
        "tcbEvaluationDataNumber": 17,
    }
    if family is DeviceFamily.TDX:
        module = {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "FF" * 8}
        levels = [{"tcb": {"isvsvn": 4}, "tcbDate": iso(AT_S - 90 * DAY_S), "tcbStatus": "UpToDate"}]
        info |= {
            "tdxModule": module,
            "tdxModuleIdentities": [{"id": "TDX_01", **module, "tcbLevels": levels}],
        }
        tcb["tdxtcbcomponents"] = [{"svn": svn} for svn in [5, 0, 2] + [0] * 13]
    level = {"tcb": tcb, "tcbDate": iso(AT_S - 90 * DAY_S), "tcbStatus": status, "advisoryIDs": advisories}
    return json.dumps(info | {"tcbLevels": [level]})


def qe_identity(family: DeviceFamily, issued_s: int) -> str:
    return json.dumps(
        {
            "id": "QE" if family is DeviceFamily.SGX else "TD_QE",
            "version": 2,
            "issueDate": iso(issued_s),
            "nextUpdate": iso(issued_s + 30 * DAY_S),
            "tcbEvaluationDataNumber": 17,
            "miscselect": "00000000",
            "miscselectMask": "FFFFFFFF",
            "attributes": "11000000000000000000000000000000",
            "attributesMask": "FBFFFFFFFFFFFFFF0000000000000000",
            "mrsigner": QE_SIGNER.hex().upper(),
            "isvprodid": 1 if family is DeviceFamily.SGX else 2,
            "tcbLevels": [{"tcb": {"isvsvn": 4}, "tcbDate": iso(AT_S - 90 * DAY_S), "tcbStatus": "UpToDate"}],
        }
    )


def intel_json(
    family: DeviceFamily = DeviceFamily.TDX,
    *,
    status: str = "UpToDate",
    advisories: list[str] | None = None,
    issued_s: int = AT_S - 2 * DAY_S,
    minimum: int = 0,
    revoked: tuple[Authority, ...] = (),
    **changed: str,
) -> bytes:
    info = tcb_info(family, status=status, advisories=advisories or [], issued_s=issued_s, minimum=minimum)
    identity = qe_identity(family, issued_s)
    signer = (tcb_signer().pem + intel_root().pem).decode()
    found = {
        "pck_crl_issuer_chain": (platform_ca().pem + intel_root().pem).decode(),
        "root_ca_crl": a_crl(intel_root(), from_s=issued_s, to_s=issued_s + 365 * DAY_S).hex(),
        "pck_crl": a_crl(platform_ca(), revoked, from_s=issued_s, to_s=issued_s + 30 * DAY_S).hex(),
        "tcb_info_issuer_chain": signer,
        "tcb_info": info,
        "tcb_info_signature": raw_signature(tcb_signer().key, info.encode()).hex(),
        "qe_identity_issuer_chain": signer,
        "qe_identity": identity,
        "qe_identity_signature": raw_signature(tcb_signer().key, identity.encode()).hex(),
    }
    return json.dumps(found | changed).encode()


def a_td_report(expected: bytes, **changed: Any) -> Report:
    pck = changed.pop("pck", None)
    body = a_td_quote(TdFields(report_data=expected, **changed), pck)
    return Report(family=DeviceFamily.TDX, body=body, certificates=())


def an_sgx_report(expected: bytes, **changed: Any) -> Report:
    body = an_sgx_quote(enclave_report(expected, **changed))
    return Report(family=DeviceFamily.SGX, body=body, certificates=())


def td_policy(**changed: Any) -> AppraisalPolicy:
    fields: dict[str, Any] = {
        "roots": (a_root(DeviceFamily.TDX, intel_root()),),
        "references": (a_reference(DeviceFamily.TDX, TD_VALUES),),
    }
    return a_policy(DeviceFamily.TDX, **fields | changed)


def sgx_policy(**changed: Any) -> AppraisalPolicy:
    fields: dict[str, Any] = {
        "roots": (a_root(DeviceFamily.SGX, intel_root()),),
        "references": (a_reference(DeviceFamily.SGX, {"mr_enclave": MR_ENCLAVE.hex()}),),
    }
    return a_policy(DeviceFamily.SGX, **fields | changed)


def intel_collateral(**changed: Any) -> Collateral:
    return a_collateral(intel=intel_json(**changed))
