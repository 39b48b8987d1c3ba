"""Devices: reports as AMD's processors and NVIDIA's GPUs write them, under roots of the tests' own."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from assay.attestation.devices import nvidia
from assay.attestation.devices import sev_snp as snp
from assay.attestation.evidence import Collateral, DeviceFamily, Report
from assay.attestation.policy import AppraisalPolicy
from tests.attestation.authorities import (
    Authority,
    a_collateral,
    a_crl,
    a_policy,
    a_reference,
    a_root,
    an_authority,
)

CHIP = bytes(range(1, 65))
MEASUREMENT = b"\x5a" * 48
TCB = {"bootloader": 3, "tee": 0, "snp": 8, "microcode": 115, "fmc": 0}
FIRMWARE = b"\x77" * 48


def signed_p384(key: Any, covered: bytes) -> tuple[int, int]:
    return utils.decode_dss_signature(key.sign(covered, ec.ECDSA(hashes.SHA384())))


# --- AMD ---


@functools.cache
def amd_root() -> Authority:
    return an_authority("ARK-Tests", kind="rsa", path_length=1)


@functools.cache
def amd_signer() -> Authority:
    return an_authority("SEV-Tests", amd_root(), kind="rsa", signs_crls=False, path_length=0)


def a_vcek(*, chip: bytes = CHIP, is_turin: bool = False, **changed: Any) -> Authority:
    svn = {name: changed.pop(name, value) for name, value in TCB.items()}
    extensions = {
        snp.OID_BOOTLOADER: der_integer(svn["bootloader"]),
        snp.OID_TEE: der_integer(svn["tee"]),
        snp.OID_SNP: der_integer(svn["snp"]),
        snp.OID_MICROCODE: der_integer(svn["microcode"]),
        snp.OID_CHIP: chip,
    }
    if is_turin:
        extensions[snp.OID_FMC] = der_integer(svn["fmc"])
    fields: dict[str, Any] = {"is_issuer": False, "extensions": extensions} | changed
    return an_authority("SEV-VCEK", fields.pop("issuer", amd_signer()), **fields)


def der_integer(value: int) -> bytes:
    return b"\x02\x01" + bytes([value]) if value < 0x80 else b"\x02\x02\x00" + bytes([value])


@dataclass
class SnpFields:
    """A report before it is signed; each test changes what it is about."""

    report_data: bytes = bytes(64)
    version: int = 2
    guest_policy: int = 0x30000
    vmpl: int = 0
    platform: int = 0
    key: int = 0
    measurement: bytes = MEASUREMENT
    migration_agent: bytes = b"\xff" * 32
    reported: bytes = bytes([3, 0, 0, 0, 0, 0, 8, 115])
    chip: bytes = CHIP

    def body(self, key: Any) -> bytes:
        covered = b"".join(
            (
                self.version.to_bytes(4, "little"),
                (7).to_bytes(4, "little"),
                self.guest_policy.to_bytes(8, "little"),
                bytes(32),
                self.vmpl.to_bytes(4, "little"),
                (1).to_bytes(4, "little"),
                self.reported,
                self.platform.to_bytes(8, "little"),
                self.key.to_bytes(4, "little"),
                bytes(4),
                self.report_data,
                self.measurement,
                bytes(32 + 48 + 48),
                b"\x11" * 32,
                self.migration_agent,
                self.reported,
                bytes(24),
                self.chip,
                self.reported,
                bytes(snp.COVERED_BYTES - 488),
            )
        )
        assert len(covered) == snp.COVERED_BYTES
        r, s = signed_p384(key, covered)
        signature = r.to_bytes(72, "little") + s.to_bytes(72, "little")
        return covered + signature.ljust(snp.REPORT_BYTES - snp.COVERED_BYTES, b"\0")


def an_snp_report(expected: bytes, vcek: Authority | None = None, **changed: Any) -> Report:
    vcek = vcek or a_vcek()
    body = dataclasses.replace(SnpFields(report_data=expected), **changed).body(vcek.key)
    return Report(family=DeviceFamily.SEV_SNP, body=body, certificates=(vcek.der, amd_signer().der))


def amd_policy(**changed: Any) -> AppraisalPolicy:
    fields: dict[str, Any] = {
        "roots": (a_root(DeviceFamily.SEV_SNP, amd_root()),),
        "references": (a_reference(DeviceFamily.SEV_SNP, {"measurement": MEASUREMENT.hex()}),),
    }
    return a_policy(DeviceFamily.SEV_SNP, **fields | changed)


def amd_collateral(**changed: Any) -> Collateral:
    return a_collateral(**{"certificates": (amd_root().der,), "crls": (a_crl(amd_root()),)} | changed)


# --- NVIDIA ---

P384_ORDER = int("f" * 48 + "c7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16)
SHA384_ALGORITHM = bytes.fromhex("300a06082a8648ce3d040303")  # ecdsa-with-SHA384, as certificates name it


@functools.cache
def gpu_root() -> Authority:
    return an_authority("Device Identity CA Tests")


@functools.cache
def gpu_model() -> Authority:
    return an_authority("GH100 Identity Tests", gpu_root())


@functools.cache
def gpu_rom(name: str = "GSP BROM Tests") -> Authority:
    return an_authority(name, gpu_model(), signs_crls=False)


def a_gpu_key(name: str = "GSP FMC", **changed: Any) -> Authority:
    extensions = {nvidia.OID_DICE_TCB_INFO: b"\x30\x32\x04\x30" + FIRMWARE}
    fields: dict[str, Any] = {"is_issuer": False, "extensions": extensions} | changed
    return an_authority(name, fields.pop("issuer", gpu_rom()), **fields)


@dataclass
class GpuFields:
    """A GPU's exchange before it is signed."""

    nonce: bytes = bytes(32)
    blocks: dict[int, bytes] = field(default_factory=lambda: {n: bytes([n]) * 48 for n in range(1, 65)})
    opaque: dict[int, bytes] = field(
        default_factory=lambda: {
            6: bytes.fromhex("009f009601000000"),
            3: b"550.90.07\0",
            20: FIRMWARE,
        }
    )

    def body(self, key: Any) -> bytes:
        record = b"".join(
            bytes([index, 1]) + (len(value) + 3).to_bytes(2, "little")
            + bytes([1]) + len(value).to_bytes(2, "little") + value
            for index, value in self.blocks.items()
        )  # fmt: skip
        opaque = b"".join(
            kind.to_bytes(2, "little") + len(value).to_bytes(2, "little") + value
            for kind, value in self.opaque.items()
        )
        covered = (
            bytes([0x11, 0xE0, 0x01, 0xFF]) + self.nonce + b"\0"
            + bytes([0x11, 0x60, 0, 0, len(self.blocks)]) + len(record).to_bytes(3, "little") + record
            + b"\x99" * 32 + len(opaque).to_bytes(2, "little") + opaque
        )  # fmt: skip
        r, s = signed_p384(key, covered)
        return covered + r.to_bytes(48, "big") + s.to_bytes(48, "big")


def a_gpu_report(
    nonce: bytes, key: Authority | None = None, rom: Authority | None = None, **changed: Any
) -> Report:
    rom = rom or gpu_rom()
    key = key or a_gpu_key(issuer=rom)
    body = dataclasses.replace(GpuFields(nonce=nonce), **changed).body(key.key)
    chain = (key.der, rom.der, gpu_model().der, gpu_root().der)
    return Report(family=DeviceFamily.NVIDIA_CC, body=body, certificates=chain)


def a_twin(certificate: bytes) -> bytes:
    """The same certificate with its other valid signature: (r, n - s) for (r, s)."""
    found = x509.load_der_x509_certificate(certificate)
    r, s = utils.decode_dss_signature(found.signature)
    twin = der_item(0x03, b"\0" + utils.encode_dss_signature(r, P384_ORDER - s))
    return der_item(0x30, found.tbs_certificate_bytes + SHA384_ALGORITHM + twin)


def der_item(tag: int, contents: bytes) -> bytes:
    size = len(contents)
    if size < 0x80:
        return bytes([tag, size]) + contents
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + contents


GPU_VALUES = {
    "driver": "550.90.07",
    "vbios": "96.00.9F.00.01",
    "block1": "01" * 48,
    "block64": "40" * 48,
}


def gpu_policy(**changed: Any) -> AppraisalPolicy:
    fields: dict[str, Any] = {
        "roots": (a_root(DeviceFamily.NVIDIA_CC, gpu_root()),),
        "references": (a_reference(DeviceFamily.NVIDIA_CC, GPU_VALUES),),
    }
    return a_policy(DeviceFamily.NVIDIA_CC, **fields | changed)


def gpu_crls() -> tuple[bytes, ...]:
    return a_crl(gpu_root()), a_crl(gpu_model())
