"""Certificates: collects and checks the verifiers' signatures on an epoch's result, a veto and a discharge.

Room: participant (edge: host). Who asks computes everything in a result but the model's digest; on that a
quorum must agree.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.proposals import CertifiedResult
from assay.chain.statements import BadSignatureError, Discharge, Veto, certificate, recover
from assay.ledger.settlement.payouts import Settlement
from assay.ledger.settlement.results import epoch_result
from assay.network.host import Handler, Host
from assay.participant.config import Participant
from assay.participant.wallet.judges import Judges
from assay.protocol.agreement.quorum import quorum
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, PeerFault, Unavailable
from assay.protocol.messages import ResultSignature, StepRequest
from assay.protocol.params import Member
from assay.protocol.types import NO_DIGEST, Digest, PeerId

log = logging.getLogger(__name__)
ANSWER_S_MAX = 20.0
NO_HANDLERS: Mapping[str, Handler] = {}


async def certified_result(
    me: Participant,
    host: Host,
    judges: Judges,
    settlement: Settlement,
    previous: Digest,
    own: Mapping[str, Handler] = NO_HANDLERS,
) -> CertifiedResult:
    """Ask all verifiers at once to sign the result of an epoch that is ready.

    Args:
        me: The requesting participant.
        host: Our network.
        judges: Whose signatures count, and with which keys.
        settlement: What we computed for the epoch.
        previous: Digest of the result before, zero for epoch 0.
        own: Our own handlers, if we are one of the verifiers.

    Raises:
        Unavailable: no quorum signs the same result now.
    """
    answers: dict[Digest, list[bytes]] = {}
    reasons: list[str] = []

    async def ask(member: Member) -> None:
        try:
            request = encode(StepRequest(number=settlement.epoch, node=PeerId(NO_DIGEST)))
            body = await _ask(me, host, own, member.peer, "sign-result", request)
            answer = decode(ResultSignature, body)
            answers.setdefault(answer.model_hash, []).append(
                _checked(me, judges, member, answer, settlement, previous)
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
    result = epoch_result(me.spec, settlement, model, previous, judges.set_version)
    return CertifiedResult(result=result, certificate=certificate(me.deployment.digest(result), signatures))


async def certified_veto(
    me: Participant,
    host: Host,
    judges: Judges,
    case_id: bytes,
    reason: bytes,
    own: Mapping[str, Handler] = NO_HANDLERS,
) -> bytes:
    """Ask all verifiers at once to veto a case; a quorum's signatures.

    Raises:
        Unavailable: no quorum finds that its manifests do not imply the case.
    """
    veto = Veto(deployment_id=me.spec.deployment_id, case_id=case_id, reason_hash=reason)
    return await _certified(me, host, judges, veto, "sign-veto", case_id, own)


async def certified_discharge(me: Participant, host: Host, judges: Judges) -> bytes:
    """Ask all verifiers at once to discharge our node, which has left; a quorum's signatures.

    Raises:
        Unavailable: a quorum does not find now that nothing we did can be disputed; with their reasons.
    """
    account = evm_address(me.keys.account_address)
    left = Discharge(deployment_id=me.spec.deployment_id, run_id=me.run_id, account=account)
    return await _certified(me, host, judges, left, "sign-discharge", me.me)


async def _certified(
    me: Participant,
    host: Host,
    judges: Judges,
    statement: Veto | Discharge,
    method: str,
    body: bytes,
    own: Mapping[str, Handler] = NO_HANDLERS,
) -> bytes:
    """A quorum's signatures on a statement for which each verifier is asked by `method`.

    Raises:
        Unavailable: fewer sign now.
    """
    message, what = me.deployment.digest(statement), type(statement).__name__.lower()
    found: list[bytes] = []
    reasons: list[str] = []

    async def ask(member: Member) -> None:
        try:
            signature = await _ask(me, host, own, member.peer, method, body)
            if recover(message, signature) == judges.hot_keys[member.peer]:
                found.append(signature)
        except AssayError as error:
            reasons.append(str(error))
            log.info("not signed", extra={"what": what, "of": body.hex()[:8], "reason": str(error)})

    async with trio.open_nursery() as nursery:
        for member in me.spec.verifiers:
            nursery.start_soon(ask, member)
    need = quorum(len(me.spec.verifiers))
    if len(found) < need:
        listed = "; ".join(sorted(reasons)[:3])
        raise Unavailable(f"{len(found)} signatures on the {what}, expected {need}; {listed}")
    return certificate(message, found)


async def _ask(
    me: Participant, host: Host, own: Mapping[str, Handler], verifier: PeerId, method: str, body: bytes
) -> bytes:
    if method in own and verifier == me.me:
        return await own[method](verifier, body)
    return await host.request(verifier, method, body, timeout_s=ANSWER_S_MAX)


def _checked(
    me: Participant,
    judges: Judges,
    member: Member,
    answer: ResultSignature,
    settlement: Settlement,
    previous: Digest,
) -> bytes:
    """The signature, if it is this verifier's on the result that we computed.

    Raises:
        PeerFault: it is not; the message names the field.
    """
    own = epoch_result(me.spec, settlement, answer.model_hash, previous, judges.set_version)
    for field in ("epoch", "prev_result", "root", "table_hash", "total"):
        if getattr(answer, field) != getattr(own, field):
            raise PeerFault(member.peer, f"result of epoch {own.epoch}: its {field} differs from ours")
    try:
        signer = recover(me.deployment.digest(own), answer.signature)
    except BadSignatureError as error:
        raise PeerFault(member.peer, f"result of epoch {own.epoch}: {error}") from None
    if signer != judges.hot_keys[member.peer]:
        raise PeerFault(member.peer, f"result of epoch {own.epoch}: signed by {signer}, not its hot key")
    return bytes(answer.signature)
