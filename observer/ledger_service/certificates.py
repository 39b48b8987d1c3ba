"""Certificates: collects and checks the verifiers' signatures on an epoch's result.

Room: observer (edge: host). The ledger service computes everything in a result but the model's digest; on
that a quorum must agree.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.statements import BadSignatureError, EpochResult, Resolution, certificate, recover
from assay.ledger.settlement.payouts import Settlement
from assay.ledger.settlement.results import epoch_result
from assay.network.host import Host
from assay.participant.config import Participant
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, PeerFault, Unavailable
from assay.protocol.messages import ResolutionSignature, ResultSignature, StepRequest
from assay.protocol.params import Member
from assay.protocol.quorum import quorum
from assay.protocol.types import NO_DIGEST, Digest, PeerId

log = logging.getLogger(__name__)
ANSWER_S_MAX = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedResult:
    """An epoch's result with a quorum's signatures, as the contract expects them."""

    result: EpochResult
    certificate: bytes


async def certified_result(
    me: Participant, host: Host, settlement: Settlement, previous: Digest
) -> CertifiedResult:
    """Ask all verifiers at once to sign the result of an epoch that is ready.

    Args:
        me: The requesting participant.
        host: Our network.
        settlement: What we computed for the epoch.
        previous: Digest of the result before, zero for epoch 0.

    Raises:
        Unavailable: no quorum signs the same result now.
    """
    answers: dict[Digest, list[bytes]] = {}
    reasons: list[str] = []

    async def ask(member: Member) -> None:
        try:
            answer = await _answer(host, member.peer, settlement.epoch)
            answers.setdefault(answer.model_hash, []).append(
                _checked(me, member, answer, settlement, previous)
            )
        except AssayError as error:
            reasons.append(str(error))
            log.info("result not signed", extra={"epoch": settlement.epoch, "reason": str(error)})

    async with trio.open_nursery() as nursery:
        for member in me.spec.verifiers:
            nursery.start_soon(ask, member)
    need = quorum(len(me.spec.verifiers))
    model, signatures = max(answers.items(), key=lambda item: len(item[1]), default=(NO_DIGEST, []))
    if len(signatures) < need:
        listed = "; ".join(sorted(reasons)[:3])
        raise Unavailable(
            f"epoch {settlement.epoch}: {len(signatures)} signatures on one result, expected {need}; {listed}"
        )
    result = epoch_result(me.spec, settlement, model, previous)
    return CertifiedResult(result=result, certificate=certificate(me.deployment.digest(result), signatures))


async def certified_resolution(me: Participant, host: Host, epoch: int) -> tuple[bool, bytes]:
    """Ask every verifier whether a challenged result is right; the quorum's answer and its signatures.

    Raises:
        Unavailable: no quorum gives the same answer now.
    """
    answers: dict[tuple[Digest, bool], list[bytes]] = {}

    async def ask(member: Member) -> None:
        try:
            request = encode(StepRequest(number=epoch, node=PeerId(NO_DIGEST)))
            body = await host.request(member.peer, "sign-resolution", request, timeout_s=ANSWER_S_MAX)
            answer = decode(ResolutionSignature, body)
            message = me.deployment.digest(_resolution(me, epoch, answer.result, answer.stands))
            if recover(message, answer.signature) == evm_address(member.hot):
                answers.setdefault((answer.result, answer.stands), []).append(answer.signature)
        except AssayError as error:
            log.info("challenge not answered", extra={"epoch": epoch, "reason": str(error)})

    async with trio.open_nursery() as nursery:
        for member in me.spec.verifiers:
            nursery.start_soon(ask, member)
    need = quorum(len(me.spec.verifiers))
    for (result, stands), signatures in answers.items():
        if len(signatures) >= need:
            message = me.deployment.digest(_resolution(me, epoch, result, stands))
            return stands, certificate(message, signatures)
    raise Unavailable(f"epoch {epoch}: no quorum gives the same answer to the challenge")


def _resolution(me: Participant, epoch: int, result: Digest, stands: bool) -> Resolution:
    return Resolution(
        deployment_id=me.spec.deployment_id, run_id=me.run_id, epoch=epoch, result=result, stands=stands
    )


async def _answer(host: Host, verifier: PeerId, epoch: int) -> ResultSignature:
    request = encode(StepRequest(number=epoch, node=PeerId(NO_DIGEST)))
    return decode(
        ResultSignature, await host.request(verifier, "sign-result", request, timeout_s=ANSWER_S_MAX)
    )


def _checked(
    me: Participant, member: Member, answer: ResultSignature, settlement: Settlement, previous: Digest
) -> bytes:
    """The signature, if it is this verifier's on the result that we computed.

    Raises:
        PeerFault: it is not; the message names the field.
    """
    own = epoch_result(me.spec, settlement, answer.model_hash, previous)
    for field in ("epoch", "prev_result", "root", "table_hash", "total"):
        if getattr(answer, field) != getattr(own, field):
            raise PeerFault(member.peer, f"result of epoch {own.epoch}: its {field} differs from ours")
    try:
        signer = recover(me.deployment.digest(own), answer.signature)
    except BadSignatureError as error:
        raise PeerFault(member.peer, f"result of epoch {own.epoch}: {error}") from None
    if signer != evm_address(member.hot):
        raise PeerFault(member.peer, f"result of epoch {own.epoch}: signed by {signer}, not its hot key")
    return bytes(answer.signature)
