"""Registrar: registers the buyer's model on chain, and collects the verifiers' ledger cosignatures.

Room: observer (edge: host, chain, store). The record is what the buyer computed; each verifier signs it only
if it computed the same. Collected signatures are stored before they are sent, so a buyer that was killed
sends the same again, and the contract accepts it once.
"""

from __future__ import annotations

import logging

import trio

from assay.bundle.finished import LogPoint, Registered, Settled
from assay.bundle.registry.log_point import read_point
from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.events import ModelRegistered
from assay.chain.statements import ModelRecord, certificate
from assay.ledger.log.cosignature import read_cosignature, witness_name
from assay.ledger.log.note import (
    BadNoteError,
    SignatureLine,
    origin_of,
    read_checkpoint,
    signature_lines,
    with_lines,
)
from assay.ledger.settlement.results import model_record
from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.wallet.certificates import all_judges, check_answer
from assay.protocol.agreement.quorum import quorum
from assay.protocol.calendar import Calendar
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError
from assay.protocol.messages import ModelRequest, ModelSignature
from assay.protocol.params import Member
from assay.protocol.types import NO_DIGEST, Digest, PeerId

log = logging.getLogger(__name__)
ANSWER_S_MAX = 20.0
CERTIFIED = "model/certified"  # parent and certificate, as they were first collected
NOTE_LINES = 5  # of a checkpoint with the ledger service's signature alone


async def register_model(
    me: Participant, host: Host, chain: Chain, calendar: Calendar, last: Settled, inventory: Digest
) -> Registered:
    """Register the run's model on chain; a repeated call resumes.

    Args:
        me: The buyer.
        host: Our network.
        chain: Our account on chain.
        calendar: The run's, complete.
        last: The run's last epoch, final on chain.
        inventory: Of the data the model was trained on.

    Raises:
        Unavailable, ChainRefused: not possible now.
    """

    def record_of(parent: Digest) -> ModelRecord:
        return model_record(me.spec, calendar, last.result, Digest(last.digest), inventory, parent)

    kept = me.store.value(CERTIFIED)
    if kept is None:
        parent = await trio.to_thread.run_sync(parent_on_chain, chain, me)
        kept = parent + await certified_record(me, host, record_of(parent))
        me.store.set_value(CERTIFIED, kept)
    record, cert = record_of(Digest(kept[:32])), kept[32:]
    record_id = await trio.to_thread.run_sync(chain.register_model, record, cert)
    log.info("model registered", extra={"record": record_id.hex()[:8]})
    return Registered(record=record, record_id=record_id, certificate=cert)


def parent_on_chain(chain: Chain, me: Participant) -> Digest:
    """The oldest record of the model that this run started from; zero if it has none."""
    if me.spec.model.base == NO_DIGEST:
        return NO_DIGEST
    for event in chain.events(me.deployment.block):
        if isinstance(event, ModelRegistered) and event.model_hash == me.spec.model.base:
            return Digest(event.record_id)
    return NO_DIGEST


async def certified_record(me: Participant, host: Host, record: ModelRecord) -> bytes:
    """A quorum's signatures on the record that we computed, requested from all verifiers at once.

    Raises:
        Unavailable: no quorum signs it now.
    """
    message, body = me.deployment.digest(record), encode(ModelRequest(parent=Digest(record.parent)))

    async def ask(member: Member) -> tuple[None, bytes]:
        answer = decode(
            ModelSignature, await host.request(member.peer, "sign-model", body, timeout_s=ANSWER_S_MAX)
        )
        fields = ("model_hash", "data_inventory_hash", "config_hash", "last_result")
        check_answer(member, answer, record, fields, message, evm_address(member.hot), "the model's record")
        return None, bytes(answer.signature)

    return certificate(message, (await all_judges(me, me.run_id.hex()[:8], "the model's record", ask))[1])


# ---- the books


async def witnessed_point(me: Participant, host: Host) -> LogPoint | None:
    """The largest ledger checkpoint that a quorum of verifiers cosigned; None without one.

    Of each verifier's answer only its own signature line counts, so none can spoil the others' answers.
    """
    ledger_service = me.ledger_service
    if ledger_service is None:
        return None
    lines: dict[str, dict[PeerId, SignatureLine]] = {}

    async def ask(peer: PeerId) -> None:
        try:
            body = await host.request(peer, "witnessed", b"", timeout_s=ANSWER_S_MAX)
            if body:
                note = body.decode(errors="replace")
                own, line = _own_line(note, me.run_id, ledger_service, peer)
                lines.setdefault(own, {})[peer] = line
        except AssayError as error:
            log.info("no cosigned checkpoint", extra={"peer": peer.hex()[:8], "reason": str(error)})

    async with trio.open_nursery() as nursery:
        for member in me.spec.judges:
            nursery.start_soon(ask, member.peer)
    need = quorum(len(me.spec.judges))
    notes = [
        with_lines(own, [by_peer[peer] for peer in sorted(by_peer)])
        for own, by_peer in lines.items()
        if len(by_peer) >= need
    ]
    points = (read_point(note, me.run_id, ledger_service, me.spec.seat_peers) for note in notes)
    return max(points, key=lambda point: point.size, default=None)


def _own_line(note: str, run_id: Digest, ledger_service: PeerId, peer: PeerId) -> tuple[str, SignatureLine]:
    """The ledger service's part of a note, and this verifier's signature line.

    Raises:
        BadNoteError: not the ledger service's checkpoint of this run, or the verifier did not cosign it.
    """
    checkpoint = read_checkpoint(note, origin_of(run_id), ledger_service)
    for line in signature_lines(note):
        if line.name == witness_name(peer):
            read_cosignature(line, checkpoint, peer)
            return "\n".join(note.split("\n")[:NOTE_LINES]) + "\n", line
    raise BadNoteError("a checkpoint without the log's signature line")
