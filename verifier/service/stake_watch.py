"""Stake watch: reports whether the lot behind each node, and each verifier's seat, is whole.

Room: verifier (edge: the chain, in threads). An operator's stake deters as far as it is locked for this run.
Once more than f verifiers report that a lot was never locked, was cut by a slash, or was discharged although
its node has a seat, every step of the node is audited until it is whole; it then begins on probation.
A verifier's seat whose lot is below the set's minimum, or whose account has let its delegation end, goes to a
reserve: so an account gives up a seat whose keys it has lost, or somebody else has, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.statements import OPERATOR, VERIFIER, term_of
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.wallet.claims import open_chain
from assay.protocol.errors import AssayError
from assay.protocol.identity import sign
from assay.protocol.messages import SignedStakeReport, StakeReport
from assay.protocol.permitted import may_report_stake
from assay.protocol.run_state import RunState
from assay.protocol.types import PeerId, RoundId

if TYPE_CHECKING:
    from assay.chain.client import Chain

log = logging.getLogger(__name__)
POLL_S = 60.0  # a lot is cut by a case of days


class StakeWatch:
    """One verifier's watch of others' lots."""

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
        """Poll every lot; ends only with the run, or by cancellation."""
        while not self._follower.run_state.is_complete:
            try:
                whole = await trio.to_thread.run_sync(self._whole)
            except AssayError as error:  # an unreachable chain says nothing about stake
                log.info("stakes not read", extra={"reason": str(error)})
            else:
                for report in self.due_reports(whole):
                    signature = sign(self._me.keys.peer, self._me.domain, report)
                    self._broadcast(SignedStakeReport(stake_report=report, signature=signature))
            await trio.sleep(POLL_S)

    def due_reports(self, whole: Mapping[PeerId, bool]) -> list[StakeReport]:
        """The stake reports due now, whether sent before or not: they may have been lost."""
        run_state = self._follower.run_state
        found = []
        for node, is_whole in sorted(whole.items()):
            report = StakeReport(
                run_id=self._me.run_id,
                round=RoundId(max(int(run_state.round) - 1, 0)),
                node=node,
                verifier=run_state.seat_of(self._me.me),
                is_whole=is_whole,
            )
            if _is_due(run_state, report):
                found.append(report)
        return found

    def _whole(self) -> dict[PeerId, bool]:
        chain = self._chain = self._chain or open_chain(self._me)
        run, run_id = chain.run(self._me.run_id), self._me.run_id
        if run is None:  # nobody opened it, and no round begins
            return {}
        lots = {
            peer: chain.lot_of(evm_address(record.member.account), OPERATOR, run_id)
            for peer, record in self._follower.run_state.nodes.items()
            if record.is_seated
        }
        return {
            **{peer: lot.amount >= run.lot and lot.until >= run.deadline for peer, lot in lots.items()},
            **self._backed(chain),
        }

    def _backed(self, chain: Chain) -> dict[PeerId, bool]:
        """Of whoever may hold a seat that can change hands: whether its account still stands for it."""
        spec = self._me.spec
        if not spec.reserves:
            return {}
        term, now_s = term_of(chain.set_version_of(self._me.run_id)), chain.timestamp()
        least = chain.minimum_stake(VERIFIER)
        found = {}
        for member in spec.judges:
            account = evm_address(member.account)
            hot_key = chain.hot_key(chain.hot_key_of(account))
            speaks = hot_key is not None and hot_key.expiry > now_s
            found[member.peer] = speaks and chain.lot_of(account, VERIFIER, term).amount >= least
        return found


def _is_due(run_state: RunState, report: StakeReport) -> bool:
    return bool(run_state.round) and may_report_stake(run_state, report)
