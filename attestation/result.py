"""Result: a verifier's signed attestation result, as an Entity Attestation Token in JSON (RFC 9711).

Room: attestation (pure). The result is a message like any other: its canonical
encoding is hashed and signed, under the run's domain. The JSON (RFC 9711,
profile below) has the same fields for other tools; a reader decodes the
message from it, encodes it again, and refuses any other JSON.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

from nacl.signing import SigningKey

from assay.attestation.binding import Binding
from assay.attestation.evidence import GPUS_MAX, DeviceFamily
from assay.attestation.finding import Debug
from assay.attestation.policy import ADVISORIES_MAX, CLAIMS_MAX, NAME_MAX, Claim, TcbStatus
from assay.attestation.reasons import Reason, TrustTier, verdict_of
from assay.protocol.encoding.codec import Max, encode
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import MalformedMessage, PeerFault
from assay.protocol.identity import Domain, peer_of, sign, verify
from assay.protocol.types import Digest, PeerId, Signature

PROFILE = "tag:assay,2026:attestation-result/1"
TOKEN_BYTES_MAX = 256 << 10  # 16 GPUs with 64 blocks each take 130 KiB
REASONS_MAX = 64
COAP_JSON = 50  # RFC 9711 identifies the format of measurements by CoAP content format
UEID_RANDOM = b"\x01"  # type of a UEID that is a random or hashed number
_DEBUG_NAMES = {Debug.NOT_STATED: None, Debug.DISABLED: "disabled-since-boot", Debug.ENABLED: "enabled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """Appraisal result of one device's report."""

    TAG: ClassVar[bytes] = b"assay/attest-device/1"
    family: DeviceFamily
    verdict: TrustTier
    reasons: Annotated[tuple[Reason, ...], Max(REASONS_MAX)]  # ascending
    ueid: Digest  # zero without a signed device id
    debug: Debug
    tcb: TcbStatus
    advisories: Annotated[tuple[Annotated[str, Max(NAME_MAX)], ...], Max(ADVISORIES_MAX)]
    claims: Annotated[tuple[Claim, ...], Max(CLAIMS_MAX)]  # ascending by name


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationResult:
    """Appraisal result of a node's evidence, with the policy and collateral used, and its expiry."""

    TAG: ClassVar[bytes] = b"assay/attest-result/1"
    binding: Binding
    verdict: TrustTier  # the worst of all
    reasons: Annotated[tuple[Reason, ...], Max(REASONS_MAX)]  # against the whole; devices have their own
    main: DeviceResult
    gpus: Annotated[tuple[DeviceResult, ...], Max(GPUS_MAX)]
    evidence: Digest
    collateral: Digest
    policy: Digest
    at_s: int  # Unix time
    expires_s: int  # Unix time from which on it is invalid

    @property
    def all_reasons(self) -> tuple[Reason, ...]:
        """Every reason code against any part, ascending, each once."""
        return tuple(sorted({*self.reasons, *self.main.reasons, *(r for g in self.gpus for r in g.reasons)}))

    @property
    def ueids(self) -> frozenset[Digest]:
        """The ids of its devices; devices without a signed one have the same."""
        return frozenset(one.ueid for one in (self.main, *self.gpus))


def refused(result: AttestationResult, reason: Reason) -> AttestationResult:
    """The result with one more reason, against the evidence as a whole; it ends as it is made."""
    reasons = tuple(sorted({*result.reasons, reason}))
    verdict = max(result.verdict, verdict_of((reason,)))
    return replace(result, reasons=reasons, verdict=verdict, expires_s=result.at_s)


def domain_of(binding: Binding) -> Domain:
    """Signature domain of a result over `binding`."""
    return Domain(binding.deployment_id, binding.run_id)


def write_token(result: AttestationResult, key: SigningKey) -> str:
    """The canonical token of a result, signed with a verifier's peer key."""
    signature = sign(key, domain_of(result.binding), result)
    return _text(result, peer_of(key), signature)


def read_token(text: str | bytes, verifier: PeerId, domain: Domain) -> AttestationResult:
    """The result in a token that `verifier` signed for `domain`; the caller checks its expiry.

    Raises:
        MalformedMessage: not a canonical token.
        PeerFault: signed by another key, or for another run.
    """
    if len(text) > TOKEN_BYTES_MAX:
        raise MalformedMessage(f"token: {len(text)} bytes, at most {TOKEN_BYTES_MAX} expected")
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        found = parse_json(plain)
        result = _result(found["eat"])
        signer = PeerId(bytes.fromhex(found["verifier"]))
        signature = Signature(bytes.fromhex(found["signature"]))
        encode(result)  # checks every bound of every field
        again = _text(result, signer, signature)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as cause:
        raise MalformedMessage(
            f"token: {type(cause).__name__} {str(cause)[:100]}, expected a result"
        ) from None
    if plain != again:
        raise MalformedMessage("token: not in its canonical form")
    if signer != verifier:
        raise PeerFault(verifier, f"did not sign this token, {signer.hex()[:8]} did")
    verify(verifier, domain, result, signature)
    return result


def as_eat(result: AttestationResult) -> dict[str, Any]:
    """The claims set of a result, as JSON values."""
    binding = result.binding
    return {
        "eat_profile": PROFILE,
        "eat_nonce": binding.nonce.hex(),
        **_device_claims(result.main),
        "submods": {f"gpu{index}": _device_claims(gpu) for index, gpu in enumerate(result.gpus)},
        "iat": result.at_s,
        "exp": result.expires_s,
        "assay_verdict": result.verdict.label,
        "assay_reasons": [reason.label for reason in result.reasons],
        "assay_binding": {
            "deployment_id": binding.deployment_id.hex(),
            "node": binding.node.hex(),
            "run_id": binding.run_id.hex(),
            "epoch": binding.epoch,
            "code_digest": binding.code_digest.hex(),
            "nonce_at": binding.nonce_at_s,
        },
        "assay_evidence": result.evidence.hex(),
        "assay_collateral": result.collateral.hex(),
        "assay_policy": result.policy.hex(),
    }


def _text(result: AttestationResult, signer: PeerId, signature: Signature) -> str:
    token = {"eat": as_eat(result), "verifier": signer.hex(), "signature": signature.hex()}
    return json.dumps(token, indent=1, ensure_ascii=True) + "\n"


def _device_claims(device: DeviceResult) -> dict[str, Any]:
    claims: dict[str, Any] = {}
    if any(device.ueid):
        claims["ueid"] = base64.urlsafe_b64encode(UEID_RANDOM + device.ueid).rstrip(b"=").decode()
    if device.debug is not Debug.NOT_STATED:
        claims["dbgstat"] = _DEBUG_NAMES[device.debug]
    claims["measurements"] = [[COAP_JSON, {claim.name: claim.value for claim in device.claims}]]
    claims["assay_device"] = {
        "family": device.family.label,
        "verdict": device.verdict.label,
        "reasons": [reason.label for reason in device.reasons],
        "tcb": device.tcb.label,
        "advisories": list(device.advisories),
    }
    return claims


def _result(eat: dict[str, Any]) -> AttestationResult:
    """The result in a claims set; raises what dictionary accesses and conversions raise."""
    bound = eat["assay_binding"]
    return AttestationResult(
        binding=Binding(
            deployment_id=_digest(bound["deployment_id"]),
            node=PeerId(bytes.fromhex(bound["node"])),
            run_id=_digest(bound["run_id"]),
            epoch=bound["epoch"],
            code_digest=_digest(bound["code_digest"]),
            nonce=_digest(eat["eat_nonce"]),
            nonce_at_s=bound["nonce_at"],
        ),
        verdict=_member(TrustTier, eat["assay_verdict"]),
        reasons=tuple(_member(Reason, name) for name in eat["assay_reasons"]),
        main=_device(eat),
        gpus=tuple(_device(claims) for claims in eat["submods"].values()),
        evidence=_digest(eat["assay_evidence"]),
        collateral=_digest(eat["assay_collateral"]),
        policy=_digest(eat["assay_policy"]),
        at_s=eat["iat"],
        expires_s=eat["exp"],
    )


def _device(device_claims: dict[str, Any]) -> DeviceResult:
    own = device_claims["assay_device"]
    ((_, measured),) = device_claims["measurements"]
    ueid = (
        base64.urlsafe_b64decode(device_claims["ueid"] + "==")[1:] if "ueid" in device_claims else bytes(32)
    )
    return DeviceResult(
        family=_member(DeviceFamily, own["family"]),
        verdict=_member(TrustTier, own["verdict"]),
        reasons=tuple(_member(Reason, name) for name in own["reasons"]),
        ueid=Digest(ueid),
        debug=_debug(device_claims.get("dbgstat")),
        tcb=_member(TcbStatus, own["tcb"]),
        advisories=tuple(own["advisories"]),
        claims=tuple(Claim(name=name, value=value) for name, value in measured.items()),
    )


_Worded = TypeVar("_Worded", DeviceFamily, TrustTier, Reason, TcbStatus)


def _member(kind: type[_Worded], name: object) -> _Worded:
    for member in kind:
        if member.label == name:
            return member
    raise ValueError(f"{str(name)[:40]!r} is not a {kind.__name__}")


def _debug(name: object) -> Debug:
    for debug, known in _DEBUG_NAMES.items():
        if known == name:
            return debug
    raise ValueError(f"{str(name)[:40]!r} is not a dbgstat")


def _digest(text: str) -> Digest:
    return Digest(bytes.fromhex(text))
