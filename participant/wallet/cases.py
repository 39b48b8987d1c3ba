"""Cases: which slash orders a run's manifests imply, and our signature on the veto of any other.

Room: participant (edge in `Vetoes`: the chain, in a thread). Verifiers sign, and watchtowers: where the
verifier set has handed over, a veto is the present set's, whose members watch the runs of the sets before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

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
from assay.protocol.offences import RUN_BYTES
from assay.protocol.types import NO_DIGEST, Address, PeerId

if TYPE_CHECKING:
    from assay.chain.client import Chain

REFUSED_S = 2.0  # until a peer that asked for a veto in vain gets its next answer
REASON = bytes(32)  # of challenges and vetoes: the evidence is the chain of manifests


class Vetoes:
    """Signs the vetoes of cases that our manifests do not imply as they are, whoever asks.

    Any peer may ask about any case, and each answer takes calls of our endpoint. So one is looked up at a
    time, and none of another run, which its id tells; who is refused waits for its next answer.
    """

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        found_honest: Callable[[bytes], bool] = lambda _case_id: False,
    ) -> None:
        """
        Args:
            me: Who signs.
            follower: Its chain of manifests.
            found_honest: Whether we made the accused step of a case again, and it holds.
        """
        self._me, self._follower, self._found_honest = me, follower, found_honest
        self._chain: Chain | None = None
        self._asking = trio.Lock()
        self._served = WeakValueDictionary[PeerId, trio.Lock]()  # by peer, while it asks

    async def answer(self, peer: PeerId, case_id: bytes) -> bytes:
        """Handler of `sign-veto`: a case's id in, our hot key's signature on its veto out.

        Manifests that end before the case was opened say nothing, until half of the veto window is over: the
        accused could ask those that lag.

        Raises:
            MalformedMessage: it is no case's id. Unavailable: they imply it, or it is another run's.
        """
        if len(case_id) != 32:
            raise MalformedMessage(f"case id of {len(case_id)} bytes, expected 32")
        if case_id[:RUN_BYTES] != self._me.run_id[:RUN_BYTES]:
            raise Unavailable(f"case {case_id.hex()[:8]} is not of this run")
        async with self._served.setdefault(peer, trio.Lock()):
            try:
                return await self._sign(case_id)
            except Unavailable:
                await trio.sleep(REFUSED_S)
                raise

    async def _sign(self, case_id: bytes) -> bytes:
        me, follower = self._me, self._follower
        async with self._asking:
            case, since_s, now_s, window_s = await trio.to_thread.run_sync(self._read, case_id)
        is_behind = follower.run_state.time_s <= since_s and not follower.run_state.is_complete
        if is_behind and now_s < since_s + window_s // 2:
            raise Unavailable(f"our manifests end before the case {case_id.hex()[:8]} was opened")
        order = implied_orders(me, follower).get(case_id)
        if order is None and not self._found_honest(case_id):
            order = accused_order(me, follower, case_id, case)
        if is_implied(case, order):
            raise Unavailable(f"our manifests imply the case {case_id.hex()[:8]}")
        veto = Veto(deployment_id=me.spec.deployment_id, case_id=case_id, reason_hash=REASON)
        return sign_digest(me.deployment.digest(veto), me.keys.hot)

    def _read(self, case_id: bytes) -> tuple[CaseState, int, int, int]:
        """A case, when it was opened, and the time of the chain, in seconds; and those of the veto window."""
        chain = self._chain = self._chain or open_chain(self._me)
        case = chain.case(case_id)
        if case.run_id != self._me.run_id:
            raise Unavailable(f"there is no case {case_id.hex()[:8]} of this run")
        window_s = chain.veto_window()
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
