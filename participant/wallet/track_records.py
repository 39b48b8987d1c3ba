"""Track records: has a run's verifiers state what our node did there, and checks what other nodes show.

Room: participant (edge: host, one file, the chain). When verifiers sign is `protocol.membership`'s rule.

    drained --a quorum's signatures--> file in the keys' folder --application--> verifiers of the next run
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from assay.chain.addresses import Deployment
from assay.chain.statements import (
    SIGNATURE_BYTES,
    BadSignatureError,
    quorum,
    signers,
    verify_certificate,
)
from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.files.track_record import VALID_S, TrackRecord, write_track_record
from assay.participant.wallet.certificates import certified
from assay.participant.wallet.claims import open_chain
from assay.participant.wallet.judges import read_judges
from assay.protocol.errors import AssayError
from assay.protocol.membership import no_track_record
from assay.protocol.run_state import NodeRecord, RunState
from assay.protocol.types import Digest

if TYPE_CHECKING:  # web3 takes a second to import
    from assay.chain.reader import ChainReader

log = logging.getLogger(__name__)
TRIES_S = 60.0  # for which a node that has ended waits for its track record
RETRY_S = 3.0


def track_record_of(run_id: Digest, record: NodeRecord, certificate: bytes = b"") -> TrackRecord:
    """What a run's state says of a node, once `no_track_record` has nothing against it."""
    return TrackRecord(
        run_id=run_id,
        account=record.member.account,
        exec_class=record.exec_class,
        clean=record.clean,
        heard_s=record.heard_s,
        certificate=certificate,
    )


async def keep_track_record(me: Participant, host: Host, run_state: RunState) -> None:
    """Get our node's track record in this run, whose final state this is to us, and keep it with our keys.

    Tried again for `TRIES_S`, as verifiers may be behind, or the chain away. Without one our next run begins
    on probation.
    """
    reason = no_track_record(run_state, me.me)
    if reason is not None:
        log.info("no track record of this run", extra={"reason": reason})
        return
    with trio.move_on_after(TRIES_S):
        while True:
            try:
                found = await _certified(me, host, run_state.nodes[me.me])
                await trio.to_thread.run_sync(write_track_record, me.config.keys, found)
            except AssayError as error:
                reason = str(error)
                await trio.sleep(RETRY_S)
            else:
                log.info("track record kept", extra={"audits_passed_in_a_row": found.clean})
                return
    log.warning("no track record of this run", extra={"reason": reason or "its verifiers are silent"})


async def _certified(me: Participant, host: Host, record: NodeRecord) -> TrackRecord:
    chain = await trio.to_thread.run_sync(open_chain, me)
    judges = await trio.to_thread.run_sync(read_judges, chain, me.spec, me.run_id)
    said = track_record_of(me.run_id, record).statement(me.spec.deployment_id)
    cert = await certified(me, host, judges, said, "track record", "sign-track-record", me.me)
    return track_record_of(me.run_id, record, cert)


def track_record_fault(
    chain: ChainReader, deployment: Deployment, set_version: int, shown: TrackRecord, now_s: int
) -> str | None:
    """Why a track record does not count in a run, in words; None if it does.

    Args:
        chain: As we see it.
        deployment: The run's.
        set_version: Of the verifier set of the run that is joined.
        shown: By a node of the account that it names.
        now_s: Unix time.

    Raises:
        Unavailable: the endpoint is gone.
    """
    if now_s > shown.heard_s + VALID_S:
        return f"its last step was {(now_s - shown.heard_s) // 86_400} days ago, at most {VALID_S // 86_400}"
    earlier = chain.run(shown.run_id)
    if earlier is None:
        return "its run was not opened in this deployment"
    if earlier.set_version < set_version - 1:
        return f"verifier set {earlier.set_version} signed it, expected {set_version - 1} or a later one"
    members = chain.verifier_set(earlier.set_version)
    message = deployment.digest(shown.statement(deployment.deployment_id))
    try:
        if len(signers(message, shown.certificate)) < quorum(len(members)):  # before many calls to the chain
            return f"{len(shown.certificate) // SIGNATURE_BYTES} signatures of {len(members)} verifiers"
        hot_keys = [chain.hot_key_of(account) for account in members]
        if len(set(hot_keys)) < len(hot_keys):
            return "members of its verifier set have no hot key"
        verify_certificate(message, shown.certificate, hot_keys)
    except BadSignatureError as error:
        return str(error)
    return None
