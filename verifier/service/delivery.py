"""Delivery: pushes a round's aggregate to the nodes while votes on it go round.

Room: verifier (edge: host, disk in a thread). A node would otherwise learn the aggregate's name from the
certified manifest and then pull it, several round trips during which it cannot train. Each node is served by
one verifier of those whose beacon shares came, in turn; it pulls what does not come.
"""

from __future__ import annotations

import logging

import trio

from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.pushes import push
from assay.protocol.errors import Unavailable
from assay.protocol.messages import Manifest
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, Digest, PeerId

log = logging.getLogger(__name__)


class Delivery:
    """What one verifier pushes; one aggregate at a time, the newest notarised one that it has computed."""

    def __init__(self, me: Participant, host: Host, nursery: trio.Nursery) -> None:
        self._me, self._host, self._nursery = me, host, nursery
        self._pushed = NO_DIGEST
        self._scope = trio.CancelScope()

    def begin(self, run_state: RunState, manifest: Manifest) -> None:
        """Push a notarised manifest's aggregate, if it is here and was not pushed yet.

        Args:
            run_state: Before the manifest.
            manifest: Notarised; if another becomes final, what was pushed is of no use, and of no harm.
        """
        aggregate = manifest.aggregate
        if aggregate in (NO_DIGEST, self._pushed) or self._me.blobs.size(aggregate) is None:
            return
        self._pushed, seat = aggregate, run_state.seat_of(self._me.me)
        self._scope.cancel()  # who has not taken the last one by now will pull it
        self._scope = trio.CancelScope()
        self._nursery.start_soon(self._push, receivers(run_state, seat), aggregate, self._scope)

    async def _push(self, nodes: list[PeerId], aggregate: Digest, scope: trio.CancelScope) -> None:
        with scope:
            try:
                body = await trio.to_thread.run_sync(self._me.blobs.load, aggregate)
            except Unavailable as error:  # damaged: nodes pull it from another verifier
                log.error("aggregate not pushed", extra={"reason": str(error)})
                return
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(push, self._host, node, aggregate, body)


def receivers(run_state: RunState, verifier: PeerId) -> list[PeerId]:
    """The nodes that this verifier serves in this round: each has one, another one in the next round."""
    serving = sorted(run_state.beacon) or list(run_state.spec.verifier_peers)
    return [
        node
        for rank, node in enumerate(sorted(run_state.active))
        if serving[(rank + int(run_state.round)) % len(serving)] == verifier
    ]
