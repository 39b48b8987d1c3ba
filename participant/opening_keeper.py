"""Opening keeper: keeps the openings that are ours to keep until the run's last result is final.

Room: participant (edge: store, blobs, host). Only bytes that decode as an opening of their step are ever
recorded here, and only what is recorded is deleted: a verdict that names an update or an aggregate as an
opening deletes nothing.

    audit ends --> ours to keep? --no--> deleted, if we judged it
                        '--yes--> kept, or fetched --all results final, or no room left--> deleted

The record also says whose data an opening shows (`may_read`), so it is there before the bytes are.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

import trio

from assay.ledger.settlement.duties import is_settled
from assay.network.blob_store import DiskBlobs
from assay.network.host import Host
from assay.participant.follower import Follower, fetch_blob
from assay.participant.openings import (
    KEPT,
    KINDS,
    KeptOpening,
    check_step,
    keepers,
    named_opening,
    too_many,
)
from assay.participant.store import Store
from assay.participant.telemetry.readings import Readings
from assay.protocol.auditing.audits import Audit
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode, decode_any, encode
from assay.protocol.errors import AssayError, Unavailable
from assay.protocol.messages import Commit
from assay.protocol.run_state import RunState
from assay.protocol.types import Digest, PeerId

log = logging.getLogger(__name__)
LOOK_S = 30.0  # between two looks where the chain stands still
FETCH_S = 20.0
FETCHES_MAX = 4  # at a time: one that nobody serves holds up no other, and each is in memory once
TRIES_MAX = 3  # of one opening that nobody serves
STORE_SHARE = 8  # openings that no audit needs any more take at most 1/8 of a verifier's store


class OpeningKeeper:
    """What one participant keeps of a run's openings."""

    def __init__(
        self, store: Store, blobs: DiskBlobs, *, bytes_max: Callable[[], int], opening_bytes_max: int
    ) -> None:
        """
        Args:
            store: Holds the record of what is kept.
            blobs: Hold the openings, and serve them to members.
            bytes_max: The most that all of them may take, but for those that open audits need.
            opening_bytes_max: Of a single one.
        """
        self._store, self._blobs = store, blobs
        self._bytes_max, self._opening_bytes_max = bytes_max, opening_bytes_max
        found = (decode(KeptOpening, body) for body in store.values(KEPT).values())
        self.kept = {one.opening: one for one in found if blobs.size(one.opening) is not None}
        self._tries = Counter[Digest]()

    async def put(self, commit: Commit, body: bytes) -> None:
        """Record an opening of this commit's step, and store it.

        Raises:
            MalformedMessage: it says that it opens another step, or is no opening.
            Unavailable: the disk is full, or the step's audit has ended meanwhile.
        """

        def look() -> KeptOpening:
            check_step(decode_any(KINDS, body, self._opening_bytes_max), commit)
            name = blob_digest(body)
            return KeptOpening(round=commit.round, node=commit.node, opening=name, size=len(body))

        one = await trio.to_thread.run_sync(look)  # large: decoding and the disk must not hold up votes
        # Recorded first: members are served what has no record. And what a crash leaves without its bytes is
        # forgotten at the start; bytes would stay.
        self._record(one)
        try:
            await trio.to_thread.run_sync(self._blobs.put, body)
        except AssayError:
            self.discard(one.opening)
            raise
        if one.opening not in self.kept:
            self._blobs.remove(one.opening)
            raise Unavailable("opening of an audit that has ended")

    def discard(self, opening: Digest) -> None:
        """Delete an opening that was put here and opens nothing; one without a record stays."""
        one = self.kept.get(opening)
        if one is not None:
            self._remove(one)

    def judged(self, commit: Commit, opening: Digest) -> None:
        """Record an opening that was found to open this commit; it stays at least until its audit ends."""
        size = self._blobs.size(opening) or 0
        self._record(KeptOpening(round=commit.round, node=commit.node, opening=opening, size=size))

    def forget(self, run_state: RunState, is_ours: Callable[[Audit, Digest], bool]) -> None:
        """Delete what is not ours to keep once its audit has ended, and the oldest where room is short."""
        for one in list(self.kept.values()):
            audit = run_state.audits.get(one.step)
            if audit is not None and audit.has_ended and not is_ours(audit, one.opening):
                self._remove(one)
        needed = {step for step, audit in run_state.audits.items() if not audit.has_ended}
        for one in too_many(tuple(self.kept.values()), self._bytes_max(), needed):
            log.info("opening goes: no room", extra={"round": int(one.round), "node": one.node.hex()[:8]})
            self._remove(one)

    def forget_all(self) -> None:
        """Delete everything: nobody can dispute a step of the run any more."""
        for one in list(self.kept.values()):
            self._remove(one)

    def missing(self, run_state: RunState, is_ours: Callable[[Audit, Digest], bool]) -> list[Audit]:
        """Ended audits whose opening is ours to keep and is not here, the newest first."""
        return [
            audit
            for _, audit in sorted(run_state.audits.items(), reverse=True)
            if audit.has_ended
            and (named := named_opening(audit)) is not None
            and named.opening not in self.kept
            and self._blobs.size(named.opening) is None  # else it is something that is not ours to delete
            and named.size <= min(self._opening_bytes_max, self._bytes_max())
            and self._tries[named.opening] < TRIES_MAX
            and is_ours(audit, named.opening)
        ]

    async def fetch(self, host: Host, audit: Audit, holders: Sequence[PeerId]) -> None:
        """Fetch the opening of an ended audit and keep it.

        Raises:
            Unavailable: nobody serves it now, or the disk is full.
            MalformedMessage: what the verdicts name is no opening of the step.
        """
        named = named_opening(audit)
        assert named is not None, "only what is named is missing"
        self._tries[named.opening] += 1
        last = (audit.node,)  # whoever judged it has it, and a faster line
        body = await fetch_blob(host, named.opening, holders, FETCH_S, named.size, last=last)
        await self.put(audit.commit, body)

    def _record(self, one: KeptOpening) -> None:
        self.kept[one.opening] = one
        self._store.set_value(f"{KEPT}{one.opening.hex()}", encode(one))

    def _remove(self, one: KeptOpening) -> None:
        del self.kept[one.opening]
        self._blobs.remove(one.opening)
        self._store.drop_values(f"{KEPT}{one.opening.hex()}", set())


async def keep_openings(
    keeper: OpeningKeeper,
    host: Host,
    follower: Follower,
    *,
    me: PeerId,
    keeps_all: bool = False,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Keep what is ours while the run goes on; ends only by cancellation.

    Args:
        keeper: Its record.
        host: To fetch with.
        follower: The chain of manifests.
        me: Who keeps.
        keeps_all: Whether it keeps every opening, as a buyer does, and not only its part, as a verifier does.
        is_over: Whether no step can be disputed any more.
    """
    spec = follower.run_state.spec

    def is_ours(audit: Audit, opening: Digest) -> bool:
        named = named_opening(audit)
        is_named = named is not None and named.opening == opening
        # A buyer is no verifier, and nobody else is shown what of a node's own data an opening holds.
        keeps = keeps_all and not spec.brings_data(audit.node)
        return is_named and (keeps or follower.run_state.seat_of(me) in keepers(spec, audit, opening))

    limit = trio.CapacityLimiter(FETCHES_MAX)

    async def fetch(audit: Audit) -> None:
        holders = dict.fromkeys((*(v.verifier for v in audit.verdicts), *spec.seat_peers, audit.node))
        try:
            async with limit:
                await keeper.fetch(host, audit, [peer for peer in holders if peer != me])
        except AssayError as error:
            fields = {"round": int(audit.round), "node": audit.node.hex()[:8], "reason": str(error)}
            log.info("opening not kept", extra=fields)

    while True:
        run_state = follower.run_state
        if is_over():
            keeper.forget_all()
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            for audit in keeper.missing(run_state, is_ours):
                nursery.start_soon(fetch, audit)
        keeper.forget(run_state, is_ours)
        with trio.move_on_after(LOOK_S):
            await follower.grown(int(run_state.round))


def is_undisputable(readings: Readings, run_state: RunState) -> bool:
    """Whether every result of a run is final on its chain, and no case about a step of it is open."""
    look = readings.look
    return (
        run_state.is_complete
        and look is not None
        and len(look.epochs) >= run_state.calendar.epochs
        and is_settled(look)
        and all(view.state.phase.is_over for view in look.cases)
    )
