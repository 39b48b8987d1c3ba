"""Certificates: collects and checks the verifiers' signatures on an epoch's result, a veto and a discharge.

Room: participant (edge: host). Who asks computes everything in a result but the model's digest; on that a
quorum must agree.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from typing import TypeVar

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.proposals import CertifiedResult
from assay.chain.statements import (
    Address,
    BadSignatureError,
    Discharge,
    SlashOrder,
    TrackRecord,
    Veto,
    certificate,
    recover,
)
from assay.ledger.settlement.payouts import Settlement
from assay.ledger.settlement.results import epoch_result
from assay.network.host import Handler, Host
from assay.participant.config import Participant
from assay.participant.wallet.judges import Judges
from assay.protocol.agreement.quorum import quorum
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, PeerFault, Unavailable
from assay.protocol.messages import ModelSignature, ResultSignature, StepRequest
from assay.protocol.params import Member
from assay.protocol.types import NO_DIGEST, Digest, PeerId

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
P = TypeVar("P")
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
    request = encode(StepRequest(number=settlement.epoch, node=PeerId(NO_DIGEST)))

    async def ask(member: Member) -> tuple[Digest, bytes]:
        body = await _ask(me, host, own, member.peer, "sign-result", request)
        answer = decode(ResultSignature, body)
        result = epoch_result(me.spec, settlement, answer.model_hash, previous, judges.set_version)
        fields = ("epoch", "prev_result", "root", "table_hash", "total")
        of, message = f"result of epoch {result.epoch}", me.deployment.digest(result)
        check_answer(member, answer, result, fields, message, judges.hot_keys[member.peer], of)
        return answer.model_hash, bytes(answer.signature)

    model, signatures = await all_judges(me, f"epoch {settlement.epoch}", "one result", ask)
    result = epoch_result(me.spec, settlement, model, previous, judges.set_version)
    return CertifiedResult(result=result, certificate=certificate(me.deployment.digest(result), signatures))


async def certified_veto(
    me: Participant,
    host: Host,
    present: Collection[Address],
    case_id: bytes,
    reason: bytes,
    own: Mapping[str, Handler] = NO_HANDLERS,
) -> bytes:
    """Ask verifiers and watchtowers at once to veto a case; signatures of a quorum of the present set.

    Args:
        me: The requesting participant.
        host: Our network.
        present: The hot keys of the present set, which may be another than the run's.
        case_id: The case.
        reason: What the veto says.
        own: Our own handlers, if we sign.

    Raises:
        Unavailable: no quorum finds that its manifests do not imply the case.
    """
    veto = Veto(deployment_id=me.spec.deployment_id, case_id=case_id, reason_hash=reason)
    message, found = me.deployment.digest(veto), set[Address]()

    async def ask(peer: PeerId) -> tuple[None, bytes]:
        signature = await _ask(me, host, own, peer, "sign-veto", case_id)
        signer = recover(message, signature)
        if signer not in present or signer in found:  # a set that was replaced; or another peer showed it
            raise PeerFault(peer, f"sign-veto: signed by {signer}, which is not of the present set, or twice")
        found.add(signer)
        return None, signature

    asked = {member.peer for member in me.spec.judges} | set(me.watchtowers) | ({me.me} if own else set())
    of, need = case_id.hex()[:8], quorum(len(present))
    return certificate(message, (await quorum_of(of, "the veto", ask, sorted(asked), need))[1])


async def certified_discharge(me: Participant, host: Host, judges: Judges) -> bytes:
    """Ask all verifiers at once to discharge our node, which has left; a quorum's signatures.

    Raises:
        Unavailable: a quorum does not find now that nothing we did can be disputed; with their reasons.
    """
    account = evm_address(me.keys.account_address)
    left = Discharge(deployment_id=me.spec.deployment_id, run_id=me.run_id, account=account)
    return await certified(me, host, judges, left, "discharge", "sign-discharge", me.me)


async def certified(
    me: Participant,
    host: Host,
    judges: Judges,
    statement: Discharge | SlashOrder | TrackRecord,
    what: str,
    method: str,
    body: bytes,
    own: Mapping[str, Handler] = NO_HANDLERS,
) -> bytes:
    """A quorum's signatures on a statement, in words `what`, for which each verifier is asked by `method`.

    Raises:
        Unavailable: fewer sign now.
    """
    message = me.deployment.digest(statement)

    async def ask(member: Member) -> tuple[None, bytes]:
        signature = await _ask(me, host, own, member.peer, method, body)
        if recover(message, signature) != judges.hot_keys[member.peer]:
            raise PeerFault(member.peer, f"{method}: not signed by its hot key")
        return None, signature

    return certificate(message, (await all_judges(me, body.hex()[:8], f"the {what}", ask))[1])


async def all_judges(
    me: Participant, of: str, what: str, ask: Callable[[Member], Awaitable[tuple[K, bytes]]]
) -> tuple[K, list[bytes]]:
    """`quorum_of` the run's verifiers and reserves."""
    return await quorum_of(of, what, ask, me.spec.judges, quorum(len(me.spec.judges)))


async def quorum_of(
    of: str, what: str, ask: Callable[[P], Awaitable[tuple[K, bytes]]], asked: Sequence[P], need: int
) -> tuple[K, list[bytes]]:
    """What a quorum answers alike, and their signatures; all are asked at once, and awaited until it has.

    Args:
        of: What `what` belongs to, for the log and the error.
        what: What is signed, likewise.
        ask: Asks one of them; an answer and its signature, both checked.
        asked: Whom to ask.
        need: Number of signatures of a quorum.

    Raises:
        Unavailable: no quorum answers alike now; with their reasons.
    """
    found: dict[K, list[bytes]] = {}
    reasons: list[str] = []

    async def take(one: P) -> None:
        try:
            answer, signature = await ask(one)
        except AssayError as error:
            reasons.append(str(error))
            log.info("not signed", extra={"what": what, "of": of, "reason": str(error)})
        else:
            signed = found.setdefault(answer, [])
            signed.append(signature)
            if len(signed) >= need:
                nursery.cancel_scope.cancel()  # one that is silent would cost `ANSWER_S_MAX` each time

    async with trio.open_nursery() as nursery:
        for one in asked:
            nursery.start_soon(take, one)
    most = max(map(len, found.values()), default=0)
    if most < need:
        listed = "; ".join(sorted(reasons)[:3])
        raise Unavailable(f"{of}: {most} signatures on {what}, expected {need}; {listed}")
    return next((answer, signed) for answer, signed in found.items() if len(signed) == most)


async def _ask(
    me: Participant, host: Host, own: Mapping[str, Handler], verifier: PeerId, method: str, body: bytes
) -> bytes:
    if method in own and verifier == me.me:
        return await own[method](verifier, body)
    return await host.request(verifier, method, body, timeout_s=ANSWER_S_MAX)


def check_answer(
    member: Member,
    answer: ResultSignature | ModelSignature,
    own: object,
    fields: Sequence[str],
    message: bytes,
    hot_key: str,
    of: str,
) -> None:
    """Do nothing if an answer has our fields, and its signature on `message` is by this hot key.

    Raises:
        PeerFault: it is not so; the text names `of`, and the field.
    """
    for field in fields:
        if getattr(answer, field) != getattr(own, field):
            raise PeerFault(member.peer, f"{of}: its {field} differs from ours")
    try:
        signer = recover(message, answer.signature)
    except BadSignatureError as error:
        raise PeerFault(member.peer, f"{of}: {error}") from None
    if signer != hot_key:
        raise PeerFault(member.peer, f"{of}: signed by {signer}, not its hot key")
