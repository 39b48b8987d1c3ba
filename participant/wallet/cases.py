"""Cases: which slash orders a run's manifests imply, and our signature on the veto of any other.

Room: participant (edge in `sign_veto`: the chain, in a thread). Verifiers sign, and watchtowers: where the
verifier set has handed over, a veto is the present set's, whose members watch the runs of the sets before.
"""

from __future__ import annotations

import trio

from assay.chain.state import CaseState
from assay.chain.statements import SlashOrder, Veto, sign_digest
from assay.ledger.settlement.results import (
    accused_order_of,
    accused_round,
    double_vote_order_of,
    fault_ruling_of,
    slash_order_of,
)
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.wallet.claims import open_chain
from assay.protocol.errors import MalformedMessage, Unavailable
from assay.protocol.types import NO_DIGEST, Address

REASON = bytes(32)  # of challenges and vetoes: the evidence is the chain of manifests


async def sign_veto(
    me: Participant, follower: Follower, case_id: bytes, *, found_honest: bool = False
) -> bytes:
    """Our hot key's signature on the veto of a case that our manifests do not imply as it is.

    Manifests that end before the case was opened say nothing, until half of the veto window is over: the
    accused could ask those that lag.

    Args:
        me: Who signs.
        follower: Its chain of manifests.
        case_id: The case; anybody may ask.
        found_honest: Whether we made the accused step again, and it holds.

    Raises:
        MalformedMessage: it is no case's id. Unavailable: they imply it, or it is another run's.
    """
    if len(case_id) != 32:
        raise MalformedMessage(f"case id of {len(case_id)} bytes, expected 32")
    case, since_s, now_s, window_s = await trio.to_thread.run_sync(_read_case, me, case_id)
    if case.run_id != me.run_id:
        raise Unavailable(f"case {case_id.hex()[:8]} is not of this run")
    is_behind = follower.run_state.time_s <= since_s and not follower.run_state.is_complete
    if is_behind and now_s < since_s + window_s // 2:
        raise Unavailable(f"our manifests end before the case {case_id.hex()[:8]} was opened")
    order = implied_orders(me, follower).get(case_id)
    if order is None and not found_honest:
        order = accused_order(me, follower, case_id, case)
    if is_implied(case, order):
        raise Unavailable(f"our manifests imply the case {case_id.hex()[:8]}")
    veto = Veto(deployment_id=me.spec.deployment_id, case_id=case_id, reason_hash=REASON)
    return sign_digest(me.deployment.digest(veto), me.keys.hot)


def _read_case(me: Participant, case_id: bytes) -> tuple[CaseState, int, int, int]:
    """A case, when it was opened, and the time of the chain, in seconds; and those of the veto window."""
    chain = open_chain(me)
    case, window_s = chain.case(case_id), chain.veto_window()
    return case, case.veto_ends_at - window_s, chain.timestamp(), window_s


def is_implied(case: CaseState, order: SlashOrder | None) -> bool:
    """Whether a case is what this slash order names, or less."""
    return (
        order is not None
        and (order.offender, order.role) == (case.offender, case.role)
        and case.ppm <= order.ppm
    )


def accused_order(me: Participant, follower: Follower, case_id: bytes, case: CaseState) -> SlashOrder | None:
    """The slash order about a step of the run that somebody outside its audits found; None if it is not that.

    That the step is false is the word of the quorum which signed: who only follows the run has not made it
    again. Its accused may appeal.
    """
    number = accused_round(case.evidence_hash, int(follower.run_state.round))
    links = () if number is None else me.store.links(number, 1)
    for commit in (signed.commit for link in links for signed in link.manifest.commits):
        account = follower.run_state.nodes[commit.node].member.account
        accuser = Address(bytes.fromhex(case.challenger[2:]))
        order = accused_order_of(me.spec, me.run_id, commit, account, accuser)
        if (order.offence_id, order.evidence_hash) == (case_id, case.evidence_hash):
            return order
    return None


def implied_orders(me: Participant, follower: Follower) -> dict[bytes, SlashOrder]:
    """Every slash order that a participant's manifests imply, by offence id."""
    nodes, rotation = follower.run_state.nodes, follower.run_state.rotation
    orders = [
        slash_order_of(me.spec, me.run_id, audit, nodes[audit.node].member.account, rotation)
        for audit in follower.confirmed.values()
    ]
    orders += [
        fault_ruling_of(me.spec, me.run_id, audit, fault, rotation)
        for audit, fault in follower.failed.values()
    ]
    orders += [
        double_vote_order_of(me.spec, me.run_id, peer, record)
        for peer, record in follower.run_state.verifiers.items()
        if record.double_vote != NO_DIGEST
    ]
    return {order.offence_id: order for order in orders}
