"""Claims: claims a participant's own payouts as soon as an epoch is final on chain.

Room: participant (edge: the chain, in threads). The payout table is recomputed from
the finalised chain, so a payee trusts no other party for its amount or proof.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import trio

from assay.chain.state import EpochPhase
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.protocol.errors import AssayError

if TYPE_CHECKING:
    from assay.chain.client import Chain

log = logging.getLogger(__name__)
POLL_S = 2.0
BELIEVED_S = 600.0  # for which an endpoint is not checked again: a check is about 60 requests
WAIT_S = 5.0  # for a check by another thread; then this one checks too: no endpoint stalls them in a row
_checked: dict[tuple[str, bytes], float] = {}  # endpoint and deployment -> when, on the monotonic clock
_checking = threading.Lock()


def open_chain(me: Participant, key: bytes | None = None) -> Chain:
    """This participant's chain client, checked against its deployment in the last ten minutes.

    A dozen tasks of a process open one each, most of them as it starts.

    Args:
        me: Whose run, endpoint and account.
        key: Signs in place of the account, what anybody may send.

    Raises:
        ConfigError: another chain, or not these contracts.
        Unavailable: no answer.
    """
    # web3 takes a second to import, so it is done when needed; and in threads only here, since Python cannot
    # import its circles from two places at once.
    from assay.chain.client import Chain

    chain = Chain(me.config.rpc_url, me.deployment, key or me.keys.signer)
    checked = me.config.rpc_url, me.deployment.deployment_id
    is_alone = _checking.acquire(timeout=WAIT_S)
    try:
        if time.monotonic() - _checked.get(checked, -BELIEVED_S) >= BELIEVED_S:
            chain.check_deployment()
            _checked[checked] = time.monotonic()
    finally:
        if is_alone:
            _checking.release()
    return chain


async def claim_everything(me: Participant, follower: Follower) -> None:
    """Claim our rows of every epoch once it is final; returns when nothing is left to claim.

    Of an account that signs by files nothing is claimed here: its owner does it, or who settles for others.
    """
    if me.keys.signs_by_files:
        by_hand = "assay claim, assay key delegate, assay stake release"
        log.warning("the account signs by files: no transaction is sent here", extra={"by_hand": by_hand})
        return
    chain: Chain | None = None
    for epoch in range(me.spec.epochs):
        while epoch not in follower.settlements:
            if epoch >= follower.run_state.calendar.epochs:
                return  # the run closed before
            await follower.grown(int(follower.run_state.round))
        settlement = follower.settlements[epoch]
        indices = settlement.rows_of(me.keys.account_address)
        while indices:
            try:
                if chain is None:
                    chain = await trio.to_thread.run_sync(open_chain, me)
                state = await trio.to_thread.run_sync(chain.epoch_state, me.run_id, epoch)
                if state.phase is EpochPhase.FINAL:
                    tree = settlement.tree()
                    begin_s, amount = time.time(), sum(settlement.rows[i].amount for i in indices)
                    await trio.to_thread.run_sync(chain.claim_all, me.run_id, epoch, tree, indices)
                    log.info("claimed", extra={"epoch": epoch, "amount": amount})
                    last = follower.run_state.calendar.epoch_end(epoch) - 1
                    me.traces.span("claim", last, begin_s, time.time(), epoch=epoch, amount=amount)
                    break
            except AssayError as error:
                log.warning("claim postponed", extra={"epoch": epoch, "reason": str(error)})
            await trio.sleep(POLL_S)
