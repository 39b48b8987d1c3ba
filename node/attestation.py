"""Attestation: keeps every verifier supplied with fresh hardware evidence of this node.

Room: node (edge). Evidence is made over the digest of a final manifest and sent to every verifier; before it
expires the next is made. Without evidence a node is audited more often, and nothing else changes: so nothing
here may stop it from training.
"""

from __future__ import annotations

import logging

import trio

from assay.attestation.attester import Attester
from assay.attestation.binding import Binding
from assay.attestation.result import read_token
from assay.network.host import Host
from assay.node.attesters import command_attester, software_attester
from assay.participant.config import Config, Participant
from assay.participant.follower import Follower
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import AssayError, ConfigError, Unavailable
from assay.protocol.messages import EVIDENCE_BYTES_MAX, EvidenceSubmission
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, PeerId, RoundId

log = logging.getLogger(__name__)
RETRY_S = 2.0
SHOW_S = 30.0


def attester_of(config: Config, me: Participant) -> Attester | None:
    """The configured attester of this machine; None if there is none, or the run does not use evidence.

    Raises:
        ConfigError: two are configured, or the one configured is unavailable.
    """
    if config.attester_key is not None and config.attester_command:
        raise ConfigError("attester_key and attester_command: expected one of them")
    found: Attester | None = None
    if config.attester_key is not None:
        found = software_attester(config.attester_key, me.spec.audit.code)
    elif config.attester_command:
        found = command_attester(config.attester_command)
    return found if me.spec.audit.attestation != NO_DIGEST else None


async def keep_attested(me: Participant, host: Host, follower: Follower, attester: Attester) -> None:
    """Send fresh evidence whenever our commits are taken, until training or our seat ends."""
    rules, due = me.spec.audit, 1  # the first manifest is the first nonce
    while True:
        run_state = await follower.grown(due - 1)
        record = run_state.nodes.get(me.me)  # none before we have taken a free seat
        if not run_state.is_training or (record is not None and not record.is_seated):
            return
        nonce_round = int(run_state.round) - 1
        if me.me not in run_state.active:  # yet; or an opening of ours is overdue
            due = nonce_round + 2
            continue
        try:
            evidence = await trio.to_thread.run_sync(attester.evidence, binding_of(me, run_state))
        except Unavailable as error:
            log.warning("no evidence", extra={"reason": str(error)})
            due = nonce_round + 2  # the next manifest is the next chance
            continue
        body = encode(evidence)
        if len(body) > EVIDENCE_BYTES_MAX:
            reason = f"{len(body)} bytes, at most {EVIDENCE_BYTES_MAX} expected"
            log.error("evidence is too long to show", extra={"reason": reason})
            return
        shown = EvidenceSubmission(round=RoundId(nonce_round), evidence=body)
        due = nonce_round + 1 + max(rules.attested_rounds // 2, 1)
        async with trio.open_nursery() as nursery:
            for verifier in follower.run_state.holders:
                nursery.start_soon(_submit, me, host, follower, verifier, shown, due)


def binding_of(me: Participant, run_state: RunState) -> Binding:
    """The data that evidence over the newest final manifest must bind.

    `nonce_at_s` is the verifiers' own estimate, and in no hash.
    """
    return Binding(
        deployment_id=me.spec.deployment_id,
        node=me.me,
        run_id=me.run_id,
        epoch=run_state.epoch_of(int(run_state.round) - 1),
        code_digest=me.spec.audit.code,
        nonce=run_state.parent,
        nonce_at_s=0,
    )


async def _submit(
    me: Participant, host: Host, follower: Follower, verifier: PeerId, shown: EvidenceSubmission, until: int
) -> None:
    """Send evidence to one verifier until it has answered, or the next evidence is due."""
    while follower.run_state.round < until:
        try:
            token = await host.request(verifier, "attest", encode(shown), timeout_s=SHOW_S)
            result = read_token(token, verifier, me.domain)
        except Unavailable:  # down, or one manifest behind us
            await trio.sleep(RETRY_S)
            continue
        except AssayError as error:
            log.warning("evidence not accepted", extra={"verifier": verifier.hex()[:8], "reason": str(error)})
            return
        fields = {
            "verifier": verifier.hex()[:8],
            "verdict": result.verdict.label,
            "reasons": [reason.label for reason in result.all_reasons],
        }
        log.info("evidence appraised", extra=fields)
        return
