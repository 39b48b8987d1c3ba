"""Finality: waits until nothing that the chain has said so far can change.

Room: participant (edge: chain). Processes that end with their run act on its newest block until then: one
that ended before that is final would never hear of a reorganisation.
"""

from __future__ import annotations

import logging

import trio

from assay.chain.reader import ChainReader
from assay.protocol.errors import Unavailable

log = logging.getLogger(__name__)
POLL_S = 1.0
FINAL_S_MAX = 3600.0  # a block of Ethereum's is final after some 13 minutes, if all is well


async def until_final(chain: ChainReader) -> None:
    """Wait until the block that is the newest now is final; after an hour that is said, and not waited for.

    Raises:
        Unavailable: that block is no longer on the chain, so what was read may have changed; or no answer.
    """
    in_thread = trio.to_thread.run_sync
    newest = await in_thread(chain.head)
    log.info("waiting until the last block is final", extra={"block": newest.number})
    with trio.move_on_after(FINAL_S_MAX) as scope:
        while (await in_thread(chain.head, "finalized")).number < newest.number:
            await trio.sleep(POLL_S)
    if scope.cancelled_caught:
        log.warning("the last block is not final yet", extra={"block": newest.number})
    if await in_thread(chain.block_hash, newest.number) != newest.hash:
        raise Unavailable(f"the chain was reorganised: block {newest.number} is another one now")
