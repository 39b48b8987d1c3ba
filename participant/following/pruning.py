"""Pruning: deletes updates and aggregates that nobody needs any more, when most of their room is taken.

Room: participant (edge: blobs and store). An update is needed until its step can be audited no more. An
aggregate is needed by whoever replays rounds: a worker that starts again from one of its own checkpoints, or
a newcomer from the newest snapshot. So the last checkpoints bound what is kept, not the length of the run.
A buyer deletes nothing: its copy of the run is the archive that a delivered run is made of.
"""

from __future__ import annotations

import logging

import trio

from assay.network.blob_store import DiskBlobs
from assay.participant.follower import Follower
from assay.participant.following.snapshots import SERVED
from assay.participant.following.sync import REPLAYED_MAX
from assay.participant.store import Store
from assay.protocol.messages import CertifiedManifest, Manifest
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState, StepId
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.codec.contribution import aggregate_bytes_max, contribution_bytes_max
from assay.training.layout import layout_of
from assay.training.optimiser.public_state import checkpoint_rounds, kept_rounds, snapshot_bytes_max

log = logging.getLogger(__name__)
PRUNE_S = 30.0
FULL_SHARE = 0.75  # of a store's room, from which on blobs are deleted


def aggregate_rounds(spec: RunSpec, update_rounds: int) -> int:
    """Rounds whose aggregates are kept: from the last checkpoint but one, and what is replayed at once."""
    return max(2 * checkpoint_rounds(spec, kept_rounds(spec)) + REPLAYED_MAX, update_rounds)


def kept_bytes_max(spec: RunSpec, update_rounds: int) -> int:
    """The most room that what is kept takes, with a quarter for openings and for what is about to go."""
    blocks = layout_of(spec.model).blocks
    kept = (
        update_rounds * spec.seats * contribution_bytes_max(spec.rule, blocks)
        + aggregate_rounds(spec, update_rounds) * aggregate_bytes_max(spec, blocks)
        + SERVED * snapshot_bytes_max(spec)
    )
    return int(kept / FULL_SHARE)


class Pruner:
    """Deletes the oldest blobs of one store. A restart begins at round 0 again, which costs time alone."""

    def __init__(self, spec: RunSpec, store: Store, blobs: DiskBlobs, update_rounds: int) -> None:
        """
        Args:
            spec: The run.
            store: Holds the certified manifests, which name the blobs.
            blobs: Deleted from. Their room is made larger if what is kept would not fit: a run would stop.
            update_rounds: Rounds whose updates are kept.
        """
        self._store, self._blobs = store, blobs
        needed = kept_bytes_max(spec, update_rounds)
        if needed > blobs.bytes_max:
            log.warning("more room for blobs", extra={"configured": blobs.bytes_max, "needed": needed})
            blobs.bytes_max = needed
        self._update_rounds, self._aggregate_rounds = update_rounds, aggregate_rounds(spec, update_rounds)
        self._updates_from = self._aggregates_from = 0  # the oldest rounds that may have some
        self._overdue: dict[StepId, Digest] = {}  # updates of old steps whose openings are owed
        self._needed_until: dict[Digest, int] = {}  # what recent rounds name: the round that needs it no more
        self._read_from = 0  # the oldest round whose names are not in there yet

    def step(self, run_state: RunState) -> bool:
        """Delete what the oldest round has left, updates before aggregates; False if nothing is to go.

        A blob that a later round names too, as an update or as an aggregate, goes with that round.
        """
        now = int(run_state.round)
        for step in self._overdue.keys() - run_state.audits.keys():
            self._remove(self._overdue.pop(step), now)
        if self._blobs.used_bytes <= FULL_SHARE * self._blobs.bytes_max:
            return False
        link = self._link(max(self._read_from, now - self._aggregate_rounds), now)
        if link is not None:
            self._read(link.manifest)
            return True
        link = self._link(self._updates_from, now - self._update_rounds)
        if link is not None:
            for signed in link.manifest.commits:
                step = (signed.commit.round, signed.commit.node)
                if step in run_state.audits:
                    self._overdue[step] = signed.commit.update
                else:
                    self._remove(signed.commit.update, now)
            self._updates_from = int(link.manifest.round) + 1
            return True
        link = self._link(self._aggregates_from, now - self._aggregate_rounds)
        if link is None:
            return False
        if link.manifest.aggregate != NO_DIGEST:
            self._remove(link.manifest.aggregate, now)
        self._aggregates_from = int(link.manifest.round) + 1
        return True

    def _read(self, manifest: Manifest) -> None:
        """Note until when this round's blobs are needed."""
        round_id = int(manifest.round)
        for signed in manifest.commits:
            self._need(signed.commit.update, round_id + self._update_rounds)
        self._need(manifest.aggregate, round_id + self._aggregate_rounds)
        self._read_from = round_id + 1

    def _need(self, name: Digest, end: int) -> None:
        self._needed_until[name] = max(end, self._needed_until.get(name, 0))

    def _remove(self, name: Digest, now: int) -> None:
        if self._needed_until.get(name, 0) <= now and name not in self._overdue.values():
            self._blobs.remove(name)
            self._needed_until.pop(name, None)

    def _link(self, round_id: int, end: int) -> CertifiedManifest | None:
        """The manifest of this round, or of the next that is here, if it is before `end`."""
        link = next(iter(self._store.links(round_id, 1)), None) if round_id < end else None
        return link if link is not None and link.manifest.round < end else None


async def prune(follower: Follower, pruner: Pruner) -> None:
    """Delete what is not needed whenever room is scarce; ends only by cancellation."""
    while True:
        await trio.sleep(PRUNE_S)
        while pruner.step(follower.run_state):
            await trio.lowlevel.checkpoint()
