"""Software: reports signed by an ordinary key, so that everything around a device can be tried without one.

Room: attestation (pure). They prove nothing about a machine. A policy that does
not name the family `software`, and pin the very key, refuses them.
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
    """What the key says about the guest that it pretends to measure."""

    TAG: ClassVar[bytes] = b"assay/attest-software/1"
    key: PeerId
    report_data: Annotated[bytes, Max(64)]
    measurement: Digest
    is_debug: bool
    tcb: TcbStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedStatement:
    """A statement and the key's signature of its digest."""

    TAG: ClassVar[bytes] = b"assay/attest-software-signed/1"
    statement: Statement
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareAttester:
    """An attester for tests: says what it is told to say, over the binding it is asked for.

    Args:
        key: Signs; a policy pins its public half.
        measurement: Of the guest, says the attester.
        is_debug: Whether the guest says that it can be looked into.
        tcb: How up to date it says to be.
        gpus: GPU reports that it passes on, as a guest would that has checked them.
    """

    key: SigningKey
    measurement: Digest
    is_debug: bool = False
    tcb: TcbStatus = TcbStatus.UP_TO_DATE
    gpus: tuple[Report, ...] = ()

    @property
    def family(self) -> DeviceFamily:
        """`software`, never a device's."""
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
    """A report's body; `statement.key` is made the signer's."""
    named = replace(statement, key=PeerId(bytes(key.verify_key)))
    signature = Signature(key.sign(digest(named)).signature)
    return encode(SignedStatement(statement=named, signature=signature))


def examine(
    report: Report, expected: bytes, policy: AppraisalPolicy, collateral: Collateral, at_s: int
) -> DeviceFinding:
    """What a software report is worth where a policy names its family.

    Args:
        report: Without certificates.
        expected: The 64 bytes that it must be about.
        policy: Pins the key by the digest of its public half.
        collateral: Of no use here.
        at_s: Unix time.

    Raises:
        MalformedMessage: it is not one canonical encoding of a signed statement.
    """
    signed = decode(SignedStatement, report.body, REPORT_BYTES_MAX)
    said = signed.statement
    try:
        VerifyKey(said.key).verify(digest(said), signed.signature)
    except (BadSignatureError, ValueError):
        return DeviceFinding(reasons=(Reason.SIGNATURE,))
    if key_digest(said.key) not in policy.pinned(DeviceFamily.SOFTWARE):
        return DeviceFinding(reasons=(Reason.ROOT,))
    claims = {"measurement": said.measurement.hex()}
    unmatched, until_s = match_reference(policy, DeviceFamily.SOFTWARE, claims, at_s)
    faults = {
        Reason.CHAIN: bool(report.certificates),
        Reason.BINDING: said.report_data != expected,
        Reason.DEBUG: said.is_debug,
    }
    return DeviceFinding(
        reasons=tuple(r for r, holds in faults.items() if holds) + tcb_faults(policy, said.tcb) + unmatched,
        device=said.key,
        claims=claims,
        debug=Debug.ENABLED if said.is_debug else Debug.DISABLED,
        tcb=said.tcb,
        not_after_s=until_s,
    )


def key_digest(key: PeerId) -> Digest:
    """What a policy pins of a software key."""
    return Digest(hashlib.sha256(key).digest())
