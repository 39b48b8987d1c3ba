"""Software: test attester whose reports are signed by an ordinary key, without attestation hardware.

Room: attestation (pure). Its reports prove nothing about a machine. A policy refuses them unless
it names the family `software` and pins the key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from assay.attestation.binding import Binding, report_data
from assay.attestation.evidence import REPORT_BYTES_MAX, Collateral, DeviceFamily, Evidence, Report
from assay.attestation.finding import Debug, DeviceFinding
from assay.attestation.policy import AppraisalPolicy, TcbStatus, match_reference, tcb_faults
from assay.attestation.reasons import Reason
from assay.protocol.encoding.codec import Max, decode, digest, encode
from assay.protocol.types import Digest, PeerId, Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Claims of the software attester about the guest."""

    TAG: ClassVar[bytes] = b"assay/attest-software/1"
    key: PeerId
    report_data: Annotated[bytes, Max(64)]
    measurement: Digest
    is_debug: bool
    tcb: TcbStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedStatement:
    """A statement with the key's signature of its digest."""

    TAG: ClassVar[bytes] = b"assay/attest-software-signed/1"
    statement: Statement
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareAttester:
    """An attester for tests: signs configured claims over the given binding.

    Args:
        key: Signing key; a policy pins its public half.
        measurement: Claimed measurement of the guest.
        is_debug: Claimed debug state.
        tcb: Claimed TCB status.
        gpus: GPU reports to include, as a guest would that has checked them.
    """

    key: SigningKey
    measurement: Digest
    is_debug: bool = False
    tcb: TcbStatus = TcbStatus.UP_TO_DATE
    gpus: tuple[Report, ...] = ()

    @property
    def family(self) -> DeviceFamily:
        """Always `software`."""
        return DeviceFamily.SOFTWARE

    def evidence(self, binding: Binding) -> Evidence:
        """Evidence over `binding` and the GPU reports."""
        statement = Statement(
            key=PeerId(bytes(self.key.verify_key)),
            report_data=report_data(binding, self.gpus),
            measurement=self.measurement,
            is_debug=self.is_debug,
            tcb=self.tcb,
        )
        main = Report(family=DeviceFamily.SOFTWARE, body=sign_statement(self.key, statement), certificates=())
        return Evidence(main=main, gpus=self.gpus)


def sign_statement(key: SigningKey, statement: Statement) -> bytes:
    """The body of a signed report; `statement.key` is replaced by the signer's."""
    named = replace(statement, key=PeerId(bytes(key.verify_key)))
    signature = Signature(key.sign(digest(named)).signature)
    return encode(SignedStatement(statement=named, signature=signature))


def examine(
    report: Report, expected: bytes, policy: AppraisalPolicy, collateral: Collateral, at_s: int
) -> DeviceFinding:
    """Appraise a software report under a policy that names its family.

    Args:
        report: Without certificates.
        expected: Expected report data, 64 bytes.
        policy: Pins the key by the digest of its public half.
        collateral: Not used.
        at_s: Unix time.

    Raises:
        MalformedMessage: it is not the canonical encoding of a signed statement.
    """
    signed = decode(SignedStatement, report.body, REPORT_BYTES_MAX)
    statement = signed.statement
    try:
        VerifyKey(statement.key).verify(digest(statement), signed.signature)
    except (BadSignatureError, ValueError):
        return DeviceFinding(reasons=(Reason.SIGNATURE,))
    if key_digest(statement.key) not in policy.pinned(DeviceFamily.SOFTWARE):
        return DeviceFinding(reasons=(Reason.ROOT,))
    claims = {"measurement": statement.measurement.hex()}
    unmatched, until_s = match_reference(policy, DeviceFamily.SOFTWARE, claims, at_s)
    faults = {
        Reason.CHAIN: bool(report.certificates),
        Reason.BINDING: statement.report_data != expected,
        Reason.DEBUG: statement.is_debug,
    }
    return DeviceFinding(
        reasons=tuple(r for r, holds in faults.items() if holds)
        + tcb_faults(policy, statement.tcb)
        + unmatched,
        device=statement.key,
        claims=claims,
        debug=Debug.ENABLED if statement.is_debug else Debug.DISABLED,
        tcb=statement.tcb,
        not_after_s=until_s,
    )


def key_digest(key: PeerId) -> Digest:
    """Digest by which a policy pins a software key."""
    return Digest(hashlib.sha256(key).digest())
