"""Stake watch: reports whether the stake behind each node at the run's start is still there.

Room: verifier (edge: the chain, in threads). An operator's stake deters only while it can be slashed:
unstaked amounts stay slashable until they are paid out, and a run may be longer than that. Once more than f
verifiers report a decrease, every step of the node is audited until the stake is back; the node then begins
on probation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.state import StakeState
from assay.chain.statements import OPERATOR
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.wallet.claims import open_chain
from assay.protocol.errors import AssayError
from assay.protocol.identity import sign
from assay.protocol.messages import SignedStakeReport, StakeReport
from assay.protocol.state_transition import RunState, may_report_stake
from assay.protocol.types import PeerId, RoundId

if TYPE_CHECKING:
    from assay.chain.client import Chain

log = logging.getLogger(__name__)
POLL_S = 60.0  # unstaking takes days
FACT = "stake/"  # key in the store: a node's active stake when this verifier first read it


class StakeWatch:
    """One verifier's watch of operators' stakes."""

    def __init__(
        self, me: Participant, follower: Follower, broadcast: Callable[[SignedStakeReport], None]
    ) -> None:
        """
        Args:
            me: The verifier.
            follower: Its chain.
            broadcast: Passes our stake report to the round and to all verifiers.
        """
        self._me, self._follower, self._broadcast = me, follower, broadcast
        self._chain: Chain | None = None

    async def run(self) -> None:
        """Poll every operator's stake; ends only by cancellation."""
        while not self._follower.run_state.is_complete:
            try:
                stakes = await trio.to_thread.run_sync(self._stakes)
            except AssayError as error:  # an unreachable chain says nothing about stake
                log.info("stakes not read", extra={"reason": str(error)})
            else:
                for report in self.due_reports(stakes):
                    signature = sign(self._me.keys.peer, self._me.domain, report)
                    self._broadcast(SignedStakeReport(stake_report=report, signature=signature))
            await trio.sleep(POLL_S)

    def due_reports(self, stakes: Mapping[PeerId, StakeState]) -> list[StakeReport]:
        """The stake reports due now, whether sent before or not: they may have been lost."""
        run_state = self._follower.run_state
        found = []
        for node, stake in sorted(stakes.items()):
            report = StakeReport(
                run_id=self._me.run_id,
                round=RoundId(max(int(run_state.round) - 1, 0)),
                node=node,
                verifier=self._me.me,
                is_whole=self._is_whole(node, stake),
            )
            if _is_due(run_state, report):
                found.append(report)
        return found

    def _is_whole(self, node: PeerId, stake: StakeState) -> bool:
        name = FACT + node.hex()
        first = self._me.store.value(name)
        if first is None:
            first = stake.active.to_bytes(32, "big")
            self._me.store.set_value(name, first)
        return stake.active >= max(int.from_bytes(first, "big"), stake.minimum)

    def _stakes(self) -> dict[PeerId, StakeState]:
        chain = self._chain = self._chain or open_chain(self._me)
        return {
            member.peer: chain.stake_of(evm_address(member.account), OPERATOR)
            for member in self._me.spec.nodes
            if not self._follower.run_state.nodes[member.peer].banned
        }


def _is_due(run_state: RunState, report: StakeReport) -> bool:
    return bool(run_state.round) and may_report_stake(run_state, report)
