"""Task lists: how a node's list of known-answer tasks is shown, passed on and asked for.

Room: participant (edge: the host). What a single honest verifier has, every one has that asks: else a node
could choose for whom a step is a task, and for whom it is a lie.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import trio

from assay.network.host import Host
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError
from assay.protocol.known_answers import is_announced
from assay.protocol.messages import TaskList
from assay.protocol.run_state import RunState
from assay.protocol.types import PeerId

log = logging.getLogger(__name__)
SHOW, ASK = "list", "listed"  # methods of verifiers: take a list; give that of a node
SHOW_S = 3.0  # for one verifier, and between two attempts
SHOWN_S = 120.0  # for which it is tried to show a list to all


async def show_list(host: Host, verifiers: Collection[PeerId], shown: TaskList) -> None:
    """Show these verifiers a list, until all have it, or for `SHOWN_S`."""
    body, left = encode(shown), set(verifiers)
    with trio.move_on_after(SHOWN_S):
        while left:
            for verifier in sorted(left):
                try:
                    await host.request(verifier, SHOW, body, timeout_s=SHOW_S)
                    left.discard(verifier)
                except AssayError as error:  # it may lack the last manifests
                    log.debug("list not shown", extra={"verifier": verifier.hex()[:8], "reason": str(error)})
            if left:
                await trio.sleep(SHOW_S)
    log.info("list of known-answer tasks shown", extra={"node": shown.node.hex()[:8], "not_to": len(left)})


async def find_list(
    host: Host, verifiers: Collection[PeerId], run_state: RunState, node: PeerId
) -> TaskList | None:
    """The list of a node from the first of these verifiers that has it; None if none shows it now."""
    for verifier in verifiers:
        try:
            shown = decode(TaskList, await host.request(verifier, ASK, node, timeout_s=SHOW_S))
        except AssayError as error:
            log.info("no list found", extra={"verifier": verifier.hex()[:8], "reason": str(error)})
            continue
        if shown.node == node and is_announced(shown, run_state):
            return shown
    return None
