"""Relay: large updates from the verifiers that a node sent them to, which spares the node further copies.

Room: verifier (edge: host). A node names the verifiers that acknowledged its update. It may lie, and so may
they: bytes count only under the digest that the node signed, each node's word counts once a round, and what
does not come in a bounded time is fetched from the node, as if nobody had been named.

    commit, held_by --> named verifiers --bytes | nothing in time--> the node
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Collection, Sequence

import trio

from assay.network.host import Host
from assay.network.limits import BLOB_STREAMS_PER_PEER_MAX
from assay.protocol.errors import AssayError
from assay.protocol.messages import Commit
from assay.protocol.types import PeerId, RoundId

log = logging.getLogger(__name__)
RELAY_S, RELAY_BYTES_PER_S = 3.0, 1_000_000  # the time for an update, others before it included
STALLED = 32  # rounds for which a verifier that let a fetch wait to its end is not asked
AT_ONCE = BLOB_STREAMS_PER_PEER_MAX  # all may be of one holder, which ends more streams than these


class Relay:
    """Fetches updates from other verifiers; each node's word counts once in a round."""

    def __init__(self, verifiers: Collection[PeerId], size_max: int) -> None:
        """
        Args:
            verifiers: Whoever may hold a seat of the run.
            size_max: Of an update, in bytes.
        """
        self._verifiers, self._size_max = verifiers, size_max
        self._asked: dict[PeerId, RoundId] = {}  # by node, when we last asked others for its update
        self._again: dict[PeerId, RoundId] = {}  # by verifier that let a fetch wait, when to ask it again
        self._places = trio.CapacityLimiter(AT_ONCE)

    async def update(self, host: Host, commit: Commit, held_by: Sequence[PeerId]) -> bytes | None:
        """The bytes that an admitted commit names; None if nobody is named, or they do not come in time."""
        connected, limit_s = host.connected(), RELAY_S + commit.update_bytes / RELAY_BYTES_PER_S
        named = [
            one
            for one in held_by
            if one in self._verifiers and one in connected and commit.round >= self._again.get(one, 0)
        ]
        if not named or self._asked.get(commit.node) == commit.round:
            return None
        self._asked[commit.node] = commit.round
        random.shuffle(named)
        began_s, reason = math.inf, "too late"  # it begins once there is a place
        with trio.move_on_after(limit_s):
            async with self._places:
                began_s = trio.current_time()
                try:
                    return await host.fetch(
                        commit.update, holders=named, size_max=self._size_max, deadline_s=limit_s
                    )
                except AssayError as error:
                    reason = str(error)
        if trio.current_time() >= began_s + RELAY_S:  # or four nodes with such a friend took all places
            self._again.update(dict.fromkeys(named, RoundId(commit.round + STALLED)))
        log.info("update not had from verifiers", extra={"node": commit.node.hex()[:8], "reason": reason})
        return None
