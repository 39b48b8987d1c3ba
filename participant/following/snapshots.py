"""Snapshots: a newcomer's way to the present parameters without replaying every round.

Room: participant (edge: files and host). Verifiers serve their newest checkpoint as a blob. Nothing in it is
believed: the commits of a certified manifest carry the digest of the parameters that their round began with,
and `PublicState.restore` takes only a file with that digest. Equal states give equal bytes, so that chunks
may come from any verifier that serves the same round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import trio

from assay.network.blob_store import DiskBlobs
from assay.network.host import Host
from assay.participant.follower import BLOB_BYTES_MAX, Follower, fetch_blob
from assay.participant.following.sync import Snapshot, StateSync, certified_state
from assay.participant.store import Store
from assay.protocol.agreement.quorum import faults_tolerated, quorum
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.training.optimiser.public_state import checkpoints, snapshot_bytes_max

log = logging.getLogger(__name__)
SERVED = 2  # snapshots kept as blobs: a newcomer may be half through the older one
FETCH_S = 600.0
OTHERS_S = 5.0  # for the offers of the others, once over two thirds have answered
LONE_FETCH_S, LONE_BYTES_PER_S = 30.0, 1_000_000  # time for what liars alone may offer, by its size
LEVEL_S = 20.0  # for others to say that we know the newest round
TRIES, GROWN_S = 3, 10.0  # before rounds are replayed that a snapshot would save
OFFERS = "snapshot/"  # keys of what is served


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOffer:
    """A verifier's newest snapshot; zeros where it has none."""

    TAG: ClassVar[bytes] = b"assay/snapshot-offer/1"
    round: RoundId
    blob: Digest
    size: int  # bytes


class SnapshotServer:
    """Serves the checkpoints of this process's worker: handler `snapshot`."""

    def __init__(self, folder: Path, blobs: DiskBlobs, store: Store) -> None:
        """
        Args:
            folder: Where the worker keeps its checkpoints.
            blobs: Served to members.
            store: Holds what is served, through restarts.
        """
        self._folder, self._blobs, self._store = folder, blobs, store
        offers = (decode(SnapshotOffer, body) for body in store.values(OFFERS).values())
        self._served = {int(one.round): one for one in offers if blobs.size(one.blob) is not None}
        self._lock = trio.Lock()

    async def answer(self, _peer: PeerId, _body: bytes) -> bytes:
        """The offer of our newest snapshot.

        Raises:
            Unavailable: the disk is full, or the checkpoint was just replaced.
        """
        async with self._lock:
            offer = await trio.to_thread.run_sync(self._newest)
            for round_id, one in self._served.items():
                self._store.set_value(f"{OFFERS}{round_id}", encode(one))
            self._store.drop_values(OFFERS, {f"{OFFERS}{round_id}" for round_id in self._served})
            return encode(offer)

    def _newest(self) -> SnapshotOffer:
        found = checkpoints(self._folder)
        if not found:
            return SnapshotOffer(round=RoundId(0), blob=NO_DIGEST, size=0)
        round_id, path = list(found.items())[-1]
        if round_id not in self._served:
            blob, size = self._blobs.put_file(path)
            self._served[round_id] = SnapshotOffer(round=RoundId(round_id), blob=blob, size=size)
            while len(self._served) > SERVED:
                old = self._served.pop(next(iter(self._served))).blob  # never the one just added
                if all(one.blob != old for one in self._served.values()):  # rounds may leave all as it was
                    self._blobs.remove(old)
        return self._served[round_id]


class SnapshotFinder:
    """Finds and fetches snapshots of later rounds for `StateSync`."""

    def __init__(
        self, spec: RunSpec, store: Store, folder: Path, verifiers: Sequence[PeerId], host: Callable[[], Host]
    ) -> None:
        """
        Args:
            spec: The run.
            store: Holds the certified manifests.
            folder: For the file that was fetched last.
            verifiers: Whom to ask.
            host: Ours, once it is open.
        """
        self._spec, self._store, self._path = spec, store, folder / "snapshot.safetensors"
        self._verifiers, self._host = verifiers, host
        self._bytes_max = snapshot_bytes_max(spec) + spec.rule.apply_lag * BLOB_BYTES_MAX
        self._liars: set[PeerId] = set()

    async def find(self, after: int, until: int) -> Snapshot | None:
        """A fetched snapshot of a round between these, certified by a manifest in our store; None if none.

        It is not checked yet; whoever finds it false calls `refuse`. What only so many offer as may lie comes
        last, and if it cannot be fetched, they are refused.
        """
        tolerated = faults_tolerated(len(self._verifiers))
        offers = await self._offers()
        for offer, holders in sorted(
            offers.items(), key=lambda one: (len(one[1]) > tolerated, one[0].round), reverse=True
        ):
            round_id = int(offer.round)
            if not after < round_id <= until:  # a peer's number, which the store may not even hold
                continue
            link = next(iter(self._store.links(round_id, 1)), None)
            state = None if link is None or link.manifest.round != round_id else certified_state(link)
            if state is None:
                continue
            try:
                if len(holders) > tolerated:
                    await fetch_blob(self._host(), offer.blob, holders, FETCH_S, offer.size, path=self._path)
                else:
                    await self._fetch_lone(offer, holders)
            except AssayError as error:
                log.warning("snapshot not fetched", extra={"round": round_id, "reason": str(error)})
                self._path.unlink(missing_ok=True)
                continue
            return Snapshot(round=round_id, path=self._path, state=state, holders=tuple(holders))
        return None

    async def _fetch_lone(self, offer: SnapshotOffer, holders: Sequence[PeerId]) -> None:
        deadline_s = min(LONE_FETCH_S + offer.size / LONE_BYTES_PER_S, FETCH_S)
        try:
            await self._host().fetch(
                offer.blob, holders=holders, size_max=offer.size, deadline_s=deadline_s, path=self._path
            )
        except AssayError:
            self._liars.update(holders)
            raise

    def refuse(self, snapshot: Snapshot) -> None:
        """Ask who offered this one no more: none who is honest does, and a liar has always another."""
        self._liars.update(snapshot.holders)

    async def _offers(self) -> dict[SnapshotOffer, list[PeerId]]:
        """Who serves which snapshot. A third that lies and is silent is not waited for."""
        found, answered = dict[SnapshotOffer, list[PeerId]](), set[PeerId]()

        async def ask(verifier: PeerId) -> None:
            try:
                offer = decode(
                    SnapshotOffer, await self._host().request(verifier, "snapshot", b"", timeout_s=60)
                )
            except AssayError as error:
                log.info("no snapshot", extra={"verifier": verifier.hex()[:8], "reason": str(error)})
                return
            answered.add(verifier)
            if len(answered | self._liars) >= quorum(len(self._verifiers)):
                scope = nursery.cancel_scope
                scope.deadline = min(scope.deadline, trio.current_time() + OTHERS_S)
            if offer.blob != NO_DIGEST and offer.size <= self._bytes_max:
                found.setdefault(offer, []).append(verifier)

        async with trio.open_nursery() as nursery:
            for verifier in set(self._verifiers) - self._liars:
                nursery.start_soon(ask, verifier)
        return found


async def reach_newest(follower: Follower, state_sync: StateSync) -> int:
    """Bring the parameters to the newest round, and return it; more rounds may end meanwhile.

    Raises:
        Unavailable, Diverged: they cannot be brought there now.
    """

    def newest() -> int:
        run_state = follower.run_state  # a close makes its training rounds fewer
        return min(int(run_state.round), run_state.training_rounds)

    with trio.move_on_after(LEVEL_S):
        await follower.level()
    for _ in range(TRIES):
        await state_sync.come_near(newest)
        at = int(follower.run_state.round)
        if not state_sync.is_far(newest()):
            break
        with trio.move_on_after(GROWN_S):  # the newest snapshot may be of a round that is not final yet
            await follower.grown(at)
    await state_sync.reach(newest())
    return at
