"""SEV-SNP: parses and appraises reports of AMD's secure processor.

Room: attestation (pure). The report is 1,184 bytes; ECDSA P-384 covers the first
672, the signature's padding must be zero. The key is the VCEK, of one chip at one firmware level: its
certificate names the chip and the firmware's security versions, and both must equal the report's,
or a report of old, broken firmware could be presented with a new certificate.

Reference: AMD, "SEV Secure Nested Paging Firmware ABI Specification", publication
56860, table "ATTESTATION_REPORT"; "Versioned Chip Endorsement Key (VCEK)
Certificate and KDS Interface Specification", publication 57230.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.attestation.certificates import Certificate, check_p384, check_path, read_certificate
from assay.attestation.evidence import Collateral, DeviceFamily, Report
from assay.attestation.finding import Debug, DeviceFinding
from assay.attestation.policy import AppraisalPolicy, SnpTcb, TcbStatus, match_reference, tcb_faults
from assay.attestation.reader import Reader
from assay.attestation.reasons import Reason
from assay.protocol.errors import MalformedMessage

REPORT_BYTES = 1184
COVERED_BYTES = 672
VERSIONS = range(2, 6)  # later ones may move fields
ECDSA_P384_SHA384 = 1
SCALAR_BYTES = 48

POLICY_MIGRATION = 1 << 18
POLICY_DEBUG = 1 << 19
PLATFORM_SMT = 1 << 0
KEY_MASKED = 1 << 1
VCEK = 0  # 1 is the VLEK, which a cloud provider holds for many chips, and 7 none
NO_MIGRATION_AGENT = b"\xff" * 32

OID_BOOTLOADER = "1.3.6.1.4.1.3704.1.3.1"
OID_TEE = "1.3.6.1.4.1.3704.1.3.2"
OID_SNP = "1.3.6.1.4.1.3704.1.3.3"
OID_MICROCODE = "1.3.6.1.4.1.3704.1.3.8"
OID_FMC = "1.3.6.1.4.1.3704.1.3.9"  # Turin and later
OID_CHIP = "1.3.6.1.4.1.3704.1.4"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpReport:
    """The fields of a report that an appraisal uses."""

    guest_svn: int
    guest_policy: int
    vmpl: int
    platform: int
    key: int
    report_data: bytes
    measurement: bytes
    host_data: bytes
    id_key_digest: bytes
    migration_agent: bytes
    reported_tcb: bytes
    chip: bytes
    r: int
    s: int
    covered: bytes


def parse_report(body: bytes) -> SnpReport:
    """The report in `body`.

    Raises:
        MalformedMessage: malformed, of another version, or its unsigned padding is not zero.
    """
    read = Reader(body, "SEV-SNP report", REPORT_BYTES)
    version = read.number(4, "version")
    if version not in VERSIONS:
        raise MalformedMessage(f"SEV-SNP report: version {version}, expected 2 to {VERSIONS[-1]}")
    guest_svn = read.number(4, "guest_svn")
    guest_policy = read.number(8, "policy")
    read.take(32, "family and image id")
    vmpl = read.number(4, "vmpl")
    read.expect(read.number(4, "signature algorithm"), ECDSA_P384_SHA384, "signature algorithm")
    read.take(8, "current tcb")
    platform = read.number(8, "platform_info")
    key = read.number(4, "key information")
    read.take(4, "reserved")
    report_data = read.take(64, "report_data")
    measurement = read.take(48, "measurement")
    host_data = read.take(32, "host_data")
    id_key_digest = read.take(48, "id_key_digest")
    read.take(48 + 32, "author_key_digest and report_id")
    migration_agent = read.take(32, "report_id_ma")
    reported_tcb = read.take(8, "reported_tcb")
    read.take(24, "processor")
    chip = read.take(64, "chip_id")
    read.take(COVERED_BYTES - read.at, "versions")
    r, s = (_scalar(read, name) for name in ("r", "s"))
    read.zeros(REPORT_BYTES - read.at, "the signature's padding")
    read.end()
    return SnpReport(
        guest_svn=guest_svn, guest_policy=guest_policy, vmpl=vmpl, platform=platform, key=key,
        report_data=report_data, measurement=measurement, host_data=host_data,
        id_key_digest=id_key_digest, migration_agent=migration_agent, reported_tcb=reported_tcb,
        chip=chip, r=r, s=s, covered=body[:COVERED_BYTES],
    )  # fmt: skip


def examine(
    report: Report, expected: bytes, policy: AppraisalPolicy, collateral: Collateral, at_s: int
) -> DeviceFinding:
    """Appraise a SEV-SNP report.

    Args:
        report: With the VCEK's certificate first; its issuers there or in the collateral.
        expected: Expected report data, 64 bytes.
        policy: The appraisal policy.
        collateral: Issuers and revocation lists.
        at_s: Unix time.

    Raises:
        MalformedMessage: the report, a certificate or a list is malformed.
    """
    found = parse_report(report.body)
    given = [read_certificate(der) for der in report.certificates]
    pool = [read_certificate(der) for der in collateral.certificates]
    path = check_path(given, pool, collateral.crls, policy.pinned(DeviceFamily.SEV_SNP), policy, at_s)
    if not given:
        return DeviceFinding(reasons=path.reasons)
    vcek = given[0]
    signature = check_p384(vcek.key, found.r, found.s, found.covered)
    if signature or path.reasons:
        return DeviceFinding(reasons=path.reasons + signature)
    tcb = vcek_tcb(vcek)
    status = TcbStatus.UP_TO_DATE if tcb.reaches(policy.snp_tcb_min) else TcbStatus.OUT_OF_DATE
    is_debug = bool(found.guest_policy & POLICY_DEBUG)
    is_smt = bool(found.platform & PLATFORM_SMT)
    claims = {
        "measurement": found.measurement.hex(),
        "host_data": found.host_data.hex(),
        "id_key_digest": found.id_key_digest.hex(),
        "guest_svn": str(found.guest_svn),
        "policy": hex(found.guest_policy),
    }
    unmatched, until_s = match_reference(policy, DeviceFamily.SEV_SNP, claims, at_s)
    is_masked = bool(found.key & KEY_MASKED) or not any(found.chip)
    is_migratable = bool(found.guest_policy & POLICY_MIGRATION) or found.migration_agent != NO_MIGRATION_AGENT
    faults = {
        Reason.BINDING: found.report_data != expected,
        Reason.DEBUG: is_debug,
        Reason.MIGRATION: is_migratable,
        Reason.VMPL: found.vmpl != 0,
        Reason.SIGNING_KEY: (found.key >> 2) & 7 != VCEK,
        Reason.CHIP_MASKED: is_masked,
        Reason.CHIP_MISMATCH: not is_masked and not _is_chip(vcek, found.chip),
        Reason.TCB_MISMATCH: report_tcb(found.reported_tcb, has_fmc=OID_FMC in vcek.unknown) != tcb,
        Reason.PLATFORM: is_smt and not policy.is_smt_allowed,
    }
    return DeviceFinding(
        reasons=tuple(r for r, holds in faults.items() if holds) + tcb_faults(policy, status) + unmatched,
        device=found.chip,
        claims=claims,
        debug=Debug.ENABLED if is_debug else Debug.DISABLED,
        tcb=status,
        not_after_s=min(path.not_after_s, until_s),
    )


def vcek_tcb(vcek: Certificate) -> SnpTcb:
    """The firmware's TCB version in a VCEK's certificate.

    Raises:
        MalformedMessage: the certificate lacks it.
    """
    return SnpTcb(
        fmc=_svn(vcek, OID_FMC) if OID_FMC in vcek.unknown else 0,
        bootloader=_svn(vcek, OID_BOOTLOADER),
        tee=_svn(vcek, OID_TEE),
        snp=_svn(vcek, OID_SNP),
        microcode=_svn(vcek, OID_MICROCODE),
    )


def report_tcb(field: bytes, *, has_fmc: bool) -> SnpTcb | None:
    """The TCB version in eight bytes, whose order changed with Turin; None if a reserved byte is not zero."""
    if has_fmc:
        fmc, bootloader, tee, snp, *reserved, microcode = field
    else:
        bootloader, tee, *reserved, snp, microcode = field
        fmc = 0
    if any(reserved):
        return None
    return SnpTcb(fmc=fmc, bootloader=bootloader, tee=tee, snp=snp, microcode=microcode)


def _scalar(read: Reader, name: str) -> int:
    number = read.number(SCALAR_BYTES, name)
    read.zeros(72 - SCALAR_BYTES, f"the padding of {name}")
    return number


def _svn(vcek: Certificate, oid: str) -> int:
    """A DER INTEGER from 0 to 255."""
    der = vcek.unknown.get(oid, b"")
    if len(der) == 3 and der[:2] == b"\x02\x01" and der[2] < 0x80:
        return der[2]
    if len(der) == 4 and der[:3] == b"\x02\x02\x00" and der[3] >= 0x80:
        return der[3]
    raise MalformedMessage(
        f"VCEK: extension {oid} is {der.hex()[:20] or 'missing'}, expected a number to 255"
    )


def _is_chip(vcek: Certificate, chip: bytes) -> bool:
    """Whether a certificate is this chip's: its id has 64 bytes; since Turin 8, padded with zeros."""
    named = vcek.unknown.get(OID_CHIP, b"")
    return len(named) in (8, 64) and chip == named.ljust(64, b"\0")
