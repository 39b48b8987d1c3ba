"""Sync: state sync of a worker's parameters with the finalised chain, from a snapshot or by replaying it.

Room: participant (edge). Aggregates come from our own blobs or from any peer, always
checked against the digest in a certified manifest, so parameters can be rebuilt
from the chain alone: after a crash of the worker or the process, or a bit flip.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from assay.network.blob_store import DiskBlobs
from assay.participant.compute import Apply, AtRound, GetRound, GetState, Reset, Restore, State
from assay.participant.pushes import Pushes
from assay.participant.store import Store
from assay.participant.worker import WorkerProcess
from assay.protocol.encoding.codec import Message
from assay.protocol.errors import Diverged, Unavailable
from assay.protocol.messages import CertifiedManifest
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId

log = logging.getLogger(__name__)
REPLAYED_MAX = 64  # rounds; a snapshot is as large as many aggregates, and is loaded at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A fetched file that should be a checkpoint of this round, and the digest that a quorum certified."""

    round: int
    path: Path
    state: Digest
    holders: tuple[PeerId, ...]  # who offered it


class Snapshots(Protocol):
    """Where snapshots come from: `participant.following.snapshots.SnapshotFinder`."""

    async def find(self, after: int, until: int) -> Snapshot | None:
        """A snapshot of a round between these, not checked yet; None if there is none."""

    def refuse(self, snapshot: Snapshot) -> None:
        """Note that it was false."""


def certified_state(link: CertifiedManifest) -> Digest | None:
    """The digest of the parameters that this manifest's round began with, if its commits carry it."""
    named = {signed.commit.state for signed in link.manifest.commits} - {NO_DIGEST}
    return named.pop() if len(named) == 1 else None


class StateSync:
    """A worker that holds the parameters (theta), and the round they are at."""

    def __init__(
        self,
        *,
        module: str,
        start: Message,
        log_path: Path,
        store: Store,
        blobs: DiskBlobs,
        fetch: Callable[[Digest], Awaitable[bytes]],
        snapshots: Snapshots | None = None,
        pushes: Pushes | None = None,
        worked: Callable[[Message, float], None] = lambda _request, _seconds: None,
    ) -> None:
        """Configure the worker; it starts with the first call.

        Args:
            module: The worker's, see `WorkerProcess`.
            start: Its start.
            log_path: Its standard error.
            store: Holds the manifests to replay, and state digests.
            blobs: Our own blobs.
            fetch: Gets a blob from peers; raises Unavailable.
            snapshots: Used when more than `REPLAYED_MAX` rounds are missing; None: all are replayed.
            pushes: Aggregates that verifiers send before we ask for them.
            worked: See `WorkerProcess`.
        """
        self.child = WorkerProcess(module, start, log_path, self._started, worked)
        self._store, self._blobs, self._fetch, self._snapshots = store, blobs, fetch, snapshots
        self._pushes = pushes
        self._at = -1
        self._lock, self._fetching = trio.Lock(), trio.Lock()
        self._repaired: set[int] = set()

    async def reach(self, round_id: int) -> Digest:
        """Bring the parameters to `round_id` and return their digest.

        Raises:
            Unavailable: an aggregate could not be fetched, or the worker died.
            Diverged: the worker is past that round.
        """
        async with self._lock:
            return await self._reach(round_id)

    def is_far(self, round_id: int) -> bool:
        """Whether more rounds are missing up to this one than are replayed where there is a snapshot."""
        return round_id - self._at > REPLAYED_MAX

    async def come_near(self, newest: Callable[[], int]) -> None:
        """Go on from a snapshot, if up to the newest round more are missing than are replayed.

        The worker may take long to start, and which round is the newest is asked after that.

        Raises:
            Unavailable: the worker died.
        """
        async with self._lock:
            await self._come_near(newest)

    async def _come_near(self, newest: Callable[[], int]) -> None:
        if self._at < 0:
            await self.child.call(GetRound(), AtRound)
        if self._snapshots is not None and self.is_far(newest()):
            await self._restore(self._snapshots, newest())

    async def _reach(self, round_id: int) -> Digest:
        await self._come_near(lambda: round_id)
        while self._at < round_id:
            link = next(iter(self._store.links(self._at, 1)), None)
            if link is None or link.manifest.round != self._at:
                raise Diverged(f"no link of round {self._at} to step over")
            if await self._contradicts(link):
                await self._repair(link)
                continue
            await self._apply(self._at, await self.aggregate(link.manifest.aggregate))
        if self._at == round_id:
            return await self._state()
        found = self._store.value(f"state/{round_id}") or self._certified(round_id)
        if found is None:
            raise Diverged(f"asked for the parameters of round {round_id} while at {self._at}")
        return Digest(found)

    def _certified(self, round_id: int) -> Digest | None:
        """The digest of a round's parameters by its manifest, for rounds that a snapshot saved us."""
        link = next(iter(self._store.links(round_id, 1)), None)
        return None if link is None or link.manifest.round != round_id else certified_state(link)

    async def _restore(self, snapshots: Snapshots, round_id: int) -> None:
        """Go on from the newest certified snapshot at or before this round, if there is a true one."""
        while (snapshot := await snapshots.find(self._at, round_id)) is not None:
            request = Restore(round=RoundId(snapshot.round), path=str(snapshot.path), state=snapshot.state)
            try:
                await self.child.call(request, AtRound)
            except Diverged as error:
                log.warning("snapshot refused", extra={"round": snapshot.round, "reason": str(error)})
                snapshots.refuse(snapshot)
                continue
            snapshot.path.unlink(missing_ok=True)
            log.info("parameters restored", extra={"from": self._at, "round": snapshot.round})
            self._at = snapshot.round
            self._store.set_value(f"state/{self._at}", snapshot.state)
            return

    async def aggregate(self, digest: Digest) -> bytes:
        """An aggregate's bytes, stored to serve peers later; empty for a round without one.

        Raises:
            Unavailable: nobody sent it in time.
        """
        if digest == NO_DIGEST:
            return b""
        async with self._fetching:
            if self._blobs.size(digest) is not None:
                with suppress(Unavailable):  # damaged on our disk: others have it, too
                    return self._blobs.load(digest)
            body = await self._pushes.whole(digest) if self._pushes is not None else None
            if body is None:
                body = await self._fetch(digest)
            await trio.to_thread.run_sync(self._blobs.put, body)
            return body

    async def _contradicts(self, link: CertifiedManifest) -> bool:
        """Whether a quorum certified other parameters for this round than ours."""
        named = {signed.commit.state for signed in link.manifest.commits} - {NO_DIGEST}
        return bool(named) and await self._state() not in named

    async def _state(self) -> Digest:
        """Digest of the worker's present parameters."""
        name = f"state/{self._at}"
        found = self._store.value(name)
        if found is None:
            found = (await self.child.call(GetState(), State)).digest
            self._store.set_value(name, found)
        return Digest(found)

    async def _repair(self, link: CertifiedManifest) -> None:
        """Rebuild the parameters from the chain, once per round; if they diverge again, it is no bit flip.

        Raises:
            Diverged: the rebuilt parameters are the same.
        """
        round_id = int(link.manifest.round)
        if round_id in self._repaired:
            raise Diverged(
                f"our parameters of round {round_id} differ from the certified ones, rebuilt or not"
            )
        self._repaired.add(round_id)
        log.error("parameters diverged: rebuilding them from the chain", extra={"round": round_id})
        await self.child.call(Reset(), AtRound)
        self._store.drop_values("state/", set())
        self._at = 0

    async def _apply(self, round_id: int, aggregate: bytes) -> None:
        try:
            applied = await self.child.call(Apply(round=RoundId(round_id), aggregate=aggregate), State)
        except Diverged as error:
            # The worker has restarted from a checkpoint and reports its round.
            log.warning("worker is at another round", extra={"reason": str(error)})
            self._started((await self.child.call(GetRound(), AtRound)).round)
            return
        self._at = round_id + 1
        self._store.set_value(f"state/{self._at}", applied.digest)

    def _started(self, round_id: RoundId) -> None:
        self._at = int(round_id)
