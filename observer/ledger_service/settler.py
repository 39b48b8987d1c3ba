"""Settler: brings every complete epoch to a final result on chain, in order.

Room: observer (edge: host and chain). It holds no state of its own: an epoch's status is read from the
contract each time, so the process may be killed, run twice, or meet a local chain that was rolled back, and
does what is next.

    NONE --quorum signs--> PROPOSED --window over--> FINAL
                             '--somebody objects--> CHALLENGED --quorum says it stands--> CONFIRMED -> FINAL
                                                       '--it does not, or no answer in time--> NONE
An epoch whose total is zero takes the same path: the next result must name it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from assay.chain.client import Chain, EpochPhase, EpochState
from assay.network.host import Host
from assay.observer.ledger_service.certificates import certified_resolution, certified_result
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.wallet.claims import open_chain
from assay.protocol.errors import AssayError
from assay.protocol.types import NO_DIGEST, Digest

log = logging.getLogger(__name__)
POLL_S = 1.0
CLAIM_FOR_OTHERS_S = 30.0  # a payee that has not claimed this long after the last result is paid by us


class Settler:
    """Proposes and finalises results, and in the end claims for payees that did not."""

    def __init__(self, me: Participant, follower: Follower, check: Callable[[], None] = lambda: None) -> None:
        """Does nothing before `run`.

        Args:
            me: The ledger service.
            follower: Its chain of manifests.
            check: Called in a thread before each step; while it raises, nothing is settled.
        """
        self._me, self._follower, self._check = me, follower, check
        self._host: Host

    async def run(self, host: Host) -> None:
        """Settle until every epoch is final and every row is paid; ends only by cancellation."""
        self._host = host
        all_final_at: float | None = None
        chain: Chain | None = None
        while True:
            try:
                if chain is None:
                    chain = await trio.to_thread.run_sync(open_chain, self._me)
                await trio.to_thread.run_sync(self._check)
                if not await self._advance(chain):
                    all_final_at = None
                elif all_final_at is None:
                    all_final_at = trio.current_time()
                elif trio.current_time() > all_final_at + CLAIM_FOR_OTHERS_S:
                    await self._claim_for_others(chain)
                    all_final_at = trio.current_time()
            except AssayError as error:
                log.warning("settling retried", extra={"reason": str(error)})
            await trio.sleep(POLL_S)

    async def _advance(self, chain: Chain) -> bool:
        """Do what is next for each complete epoch; returns whether all epochs of the run are final."""
        previous, is_settled = NO_DIGEST, True
        for epoch in range(self._follower.run_state.calendar.epochs):
            if epoch not in self._follower.settlements:
                return False
            state = await trio.to_thread.run_sync(chain.epoch_state, self._me.run_id, epoch)
            if state.phase is EpochPhase.NONE:
                await self._propose(chain, epoch, previous)
                return False
            if state.phase is EpochPhase.CHALLENGED:
                await self._answer(chain, epoch)
                return False
            if is_settled and await self._is_due(chain, state):
                await trio.to_thread.run_sync(chain.finalize, self._me.run_id, epoch)
                log.info("epoch is final", extra={"epoch": epoch})
            elif state.phase not in (EpochPhase.FINAL, EpochPhase.SWEPT):
                is_settled = False  # later ones may be proposed on top, but none is final before it
            previous = Digest(state.digest)
        return is_settled

    async def _is_due(self, chain: Chain, state: EpochState) -> bool:
        """Whether this result only waits for its predecessor to be final."""
        if state.phase is EpochPhase.PROPOSED:
            return await trio.to_thread.run_sync(chain.timestamp) >= state.until
        return state.phase is EpochPhase.CONFIRMED

    async def _answer(self, chain: Chain, epoch: int) -> None:
        """Post the verifiers' answer to a challenge on chain."""
        stands, cert = await certified_resolution(self._me, self._host, epoch)
        await trio.to_thread.run_sync(chain.resolve, self._me.run_id, epoch, stands, cert)
        log.info("challenge answered", extra={"epoch": epoch, "stands": stands})

    async def _propose(self, chain: Chain, epoch: int, previous: Digest) -> None:
        found = await certified_result(self._me, self._host, self._follower.settlements[epoch], previous)
        await trio.to_thread.run_sync(chain.propose, found.result, found.certificate)
        log.info("epoch proposed", extra={"epoch": epoch, "total": found.result.total})

    async def _claim_for_others(self, chain: Chain) -> None:
        for epoch, settlement in self._follower.settlements.items():
            state = await trio.to_thread.run_sync(chain.epoch_state, self._me.run_id, epoch)
            if state.phase is EpochPhase.FINAL:
                await trio.to_thread.run_sync(chain.claim_all, self._me.run_id, epoch, settlement.tree())
