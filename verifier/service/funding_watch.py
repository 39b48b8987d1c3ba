"""Funding watch: reports what this verifier's chain says of the run's escrow.

Room: verifier (edge: the chain, in threads). The finalised block is read, which no reorganisation takes back,
so a report is late by the chain's finality. Once a quorum of verifiers finds an epoch funded it may begin;
once more than f find the escrow closing, training ends (docs/protocol.md section 4a).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from assay.chain.state import FinalEscrow
from assay.ledger.settlement.funding import Reading, reading_of
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.wallet.claims import open_chain
from assay.protocol.errors import AssayError
from assay.protocol.identity import sign
from assay.protocol.messages import FundingReport, SignedFundingReport
from assay.protocol.permitted import may_report_funding

if TYPE_CHECKING:
    from assay.chain.client import Chain

log = logging.getLogger(__name__)
POLL_S = 5.0
REPEAT_S = 1.0  # while a report of ours is in no manifest: it may have been lost


class FundingWatch:
    """One verifier's watch of the run's escrow."""

    def __init__(
        self, me: Participant, follower: Follower, broadcast: Callable[[SignedFundingReport], None]
    ) -> None:
        """
        Args:
            me: The verifier.
            follower: Its chain of manifests.
            broadcast: Passes our report to our round and to our peers.
        """
        self._me, self._follower, self._broadcast = me, follower, broadcast
        self._chain: Chain | None = None
        self._close_delay_s = 0
        self._block = -1  # the newest that we read
        self._posted = 0  # epochs whose results were posted, from the first on; one may have fallen since
        self._last: Reading | str | None = None  # as logged

    async def run(self) -> None:
        """Read the escrow until the run is over; ends only by cancellation before that."""
        while not self._follower.run_state.is_complete:
            report = None
            try:
                final = await trio.to_thread.run_sync(self._read)
            except AssayError as error:  # an unreachable chain says nothing
                self._log("escrow not read", str(error))
            else:
                report = self.due_report(final)
            if report is not None:
                signature = sign(self._me.keys.peer, self._me.domain, report)
                self._broadcast(SignedFundingReport(funding_report=report, signature=signature))
            await trio.sleep(POLL_S if report is None else REPEAT_S)

    def due_report(self, final: FinalEscrow) -> FundingReport | None:
        """Our report if it is news to the chain of manifests, sent before or not; None if it is not.

        An endpoint that goes back to an earlier block lags behind what it said; it is not followed there.
        """
        if final.block < self._block:
            return None
        self._block = final.block
        reading = reading_of(self._me.spec, final, self._close_delay_s, self._posted)
        self._log("escrow read", reading)
        report = FundingReport(
            run_id=self._me.run_id,
            verifier=self._follower.run_state.seat_of(self._me.me),
            block=final.block,
            epochs=reading.epochs,
            closing=reading.closing,
        )
        return report if may_report_funding(self._follower.run_state, report) else None

    def _read(self) -> FinalEscrow:
        if self._chain is None:
            chain = open_chain(self._me)
            self._close_delay_s = chain.close_delay()
            self._chain = chain
        self._posted = self._chain.posted_epochs(self._me.run_id, self._posted)
        return self._chain.final_escrow(self._me.run_id)

    def _log(self, event: str, found: Reading | str) -> None:
        """Log a reading, or why there is none, when it is another than before."""
        if found == self._last:
            return
        self._last = found
        if isinstance(found, str):
            log.warning(event, extra={"reason": found})
        else:
            log.info(event, extra={"epochs_funded": found.epochs, "closing": found.closing.name})
