"""NVIDIA: parses and appraises reports of a GPU in confidential computing mode.

Room: attestation (pure). A report is one SPDM 1.1 exchange: our GET_MEASUREMENTS
request with the nonce, then the GPU's MEASUREMENTS response with its measured
blocks and, as opaque data, versions. ECDSA P-384 covers all of both. Whether the
GPU is in development mode shows only in the measurements, so the allow-list
decides; NVIDIA's golden values (RIM files) go into the policy's references.
A GPU's id is the key of its boot ROM, which NVIDIA certifies one by one: the report's
own certificate is the ROM's work, another for other firmware, and has two valid
signatures.

Reference: DMTF DSP0274 1.1.1, "MEASUREMENTS response message"; field numbers of
the opaque data as in NVIDIA/nvtrust.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.attestation.certificates import check_p384, check_path, read_certificate
from assay.attestation.evidence import REPORT_BYTES_MAX, Collateral, DeviceFamily, Report
from assay.attestation.finding import DeviceFinding
from assay.attestation.policy import AppraisalPolicy, match_reference
from assay.attestation.reader import Reader
from assay.attestation.reasons import Reason
from assay.protocol.errors import MalformedMessage

SPDM_1_1 = 0x11
GET_MEASUREMENTS = 0xE0
MEASUREMENTS = 0x60
ALL_BLOCKS = 0xFF
DMTF = 1
SCALAR_BYTES = 48
BLOCKS_MAX = 64  # as many as an H100 has
VERSION_BYTES_MAX = 64
VALUE_BYTES_MAX = 64  # SHA-512; NVIDIA's are SHA-384

DRIVER_VERSION = 3
VBIOS_VERSION = 6
FIRMWARE_ID = 20
OID_DICE_TCB_INFO = "2.23.133.5.4.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One parsed SPDM exchange."""

    nonce: bytes
    blocks: dict[int, bytes]  # measured values by index, from 1
    opaque: dict[int, bytes]  # by field number
    r: int
    s: int
    covered: bytes


def parse_report(body: bytes) -> GpuReport:
    """The exchange in `body`.

    Raises:
        MalformedMessage: it is malformed, or has a field twice.
    """
    read = Reader(body, "GPU report", REPORT_BYTES_MAX)
    read.expect(read.number(1, "version"), SPDM_1_1, "the request's SPDM version")
    read.expect(read.number(1, "code"), GET_MEASUREMENTS, "the request's code")
    read.take(1, "attributes")
    read.expect(read.number(1, "operation"), ALL_BLOCKS, "the request's operation")
    nonce = read.take(32, "nonce")
    read.take(1, "slot")
    read.expect(read.number(1, "version"), SPDM_1_1, "the response's SPDM version")
    read.expect(read.number(1, "code"), MEASUREMENTS, "the response's code")
    read.take(2, "parameters")
    count = read.number(1, "number of blocks")
    blocks = _blocks(read.take(read.number(3, "record length"), "measurement record"), count)
    read.take(32, "the response's nonce")
    opaque = _opaque(read.take(read.number(2, "opaque length"), "opaque data"))
    covered = body[: read.at]
    r = int.from_bytes(read.take(SCALAR_BYTES, "r"), "big")
    s = int.from_bytes(read.take(SCALAR_BYTES, "s"), "big")
    read.end()
    return GpuReport(nonce=nonce, blocks=blocks, opaque=opaque, r=r, s=s, covered=covered)


def examine(
    report: Report, expected: bytes, policy: AppraisalPolicy, collateral: Collateral, at_s: int
) -> DeviceFinding:
    """Appraise a GPU's report.

    Args:
        report: With the GPU's certificate first; its issuers there or in the collateral.
        expected: Expected 32-byte nonce.
        policy: The appraisal policy.
        collateral: Issuers and revocation lists.
        at_s: Unix time.

    Raises:
        MalformedMessage: the report, a certificate or a list is malformed.
    """
    found = parse_report(report.body)
    given = [read_certificate(der) for der in report.certificates]
    pool = [read_certificate(der) for der in collateral.certificates]
    path = check_path(given, pool, collateral.crls, policy.pinned(DeviceFamily.NVIDIA_CC), policy, at_s)
    if not given:
        return DeviceFinding(reasons=path.reasons)
    device = given[0]
    signature = check_p384(device.key, found.r, found.s, found.covered)
    if signature or path.reasons:
        return DeviceFinding(reasons=path.reasons + signature)
    claims = {f"block{index}": value.hex() for index, value in found.blocks.items()}
    claims["driver"] = version_text(found.opaque.get(DRIVER_VERSION, b""))
    claims["vbios"] = vbios_text(found.opaque.get(VBIOS_VERSION, b""))
    unmatched, until_s = match_reference(policy, DeviceFamily.NVIDIA_CC, claims, at_s)
    # The certificate's key was derived from firmware of this digest (DICE); the report repeats it.
    firmware = found.opaque.get(FIRMWARE_ID, b"")
    is_same_firmware = len(firmware) == 48 and device.unknown.get(OID_DICE_TCB_INFO, b"").endswith(firmware)
    faults = {Reason.BINDING: found.nonce != expected, Reason.FIRMWARE_MISMATCH: not is_same_firmware}
    return DeviceFinding(
        reasons=tuple(r for r, holds in faults.items() if holds) + unmatched,
        device=path.issuer_key,
        claims=claims,
        not_after_s=min(path.not_after_s, until_s),
    )


def version_text(field: bytes) -> str:
    """A driver version, `550.90.07`; empty if it is not printable."""
    text = field.rstrip(b"\0").decode("ascii", "replace")
    return text if text.isascii() and text.isprintable() and len(text) <= VERSION_BYTES_MAX else ""


def vbios_text(field: bytes) -> str:
    """A VBIOS version in the usual form, `96.00.9F.00.01`; empty if malformed."""
    if len(field) != 8:
        return ""
    return ".".join(f"{byte:02X}" for byte in (*field[3::-1], field[4]))


def _blocks(record: bytes, count: int) -> dict[int, bytes]:
    read = Reader(record, "GPU report's record", REPORT_BYTES_MAX)
    blocks: dict[int, bytes] = {}
    if count > BLOCKS_MAX:
        raise MalformedMessage(f"GPU report: {count} blocks, at most {BLOCKS_MAX} expected")
    for _ in range(count):
        index = read.number(1, "block index")
        read.expect(read.number(1, "specification"), DMTF, "the measurement specification")
        size = read.number(2, "block size")
        read.take(1, "value type")
        length = read.number(2, "value size")
        if size != length + 3 or length > VALUE_BYTES_MAX:
            raise MalformedMessage(f"GPU report: block {index} of {size} bytes holds a value of {length}")
        if index in blocks or not index:
            raise MalformedMessage(f"GPU report: block {index} is there twice, or 0")
        blocks[index] = read.take(length, "value")
    read.end()
    return blocks


def _opaque(data: bytes) -> dict[int, bytes]:
    read = Reader(data, "GPU report's opaque data", REPORT_BYTES_MAX)
    fields: dict[int, bytes] = {}
    while read.at < len(data):
        kind = read.number(2, "field number")
        if kind in fields:
            raise MalformedMessage(f"GPU report: opaque field {kind} is there twice")
        fields[kind] = read.take(read.number(2, "field length"), "field")
    return fields
