"""Parameters: recomputes the model for the buyer from the certified aggregates alone.

Room: observer (edge: blobs, store, checkpoint files). Nobody is trusted for the model: each commit's digest
of the parameters it used is compared with ours. Mismatches are durable; after a restart the steps since the
last checkpoint are repeated, and their mismatches found again. A checkpoint counts only if the store has its
digest, and so those of all rounds before; else every round is repeated from the blobs.
"""

from __future__ import annotations

import logging

import cbor2
import numpy as np
import trio
from numpy.typing import NDArray

from assay.network.host import Host
from assay.observer.ledger_service.status import Mismatch
from assay.participant.config import Participant
from assay.participant.follower import fetch_blob
from assay.protocol.errors import Unavailable
from assay.protocol.messages import CertifiedManifest
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.optimiser.public_state import PublicState

log = logging.getLogger(__name__)
CHECKPOINT_ROUNDS = 16
FETCH_S = 60.0
FETCHES_AT_ONCE = 4


class Replay:
    """The model as the buyer computes it. One task at a time."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        folder = me.config.folder / "parameters"
        self._parameters = PublicState(me.spec, folder, 0, me.base, save_every=CHECKPOINT_ROUNDS)
        if me.store.value(self._state_name(self.round)) != self._parameters.digest():
            self._parameters.reset()  # the disk damaged the checkpoint, or lost what the store had of before
        self._me.store.set_value(self._state_name(self.round), self._parameters.digest())

    @property
    def round(self) -> int:
        """The round whose parameters we hold."""
        return self._parameters.round

    @property
    def theta(self) -> NDArray[np.float32]:
        """The newest parameters. Shape (P,), float32; not to be modified."""
        return self._parameters.at(self.round)

    def state(self, round_id: int) -> Digest:
        """Our digest of the parameters that a round starts from; only of rounds reached before."""
        found = self._me.store.value(self._state_name(round_id))
        assert found is not None, f"round {round_id} was never reached"
        return Digest(found)

    async def step(self, host: Host, certified: CertifiedManifest) -> Digest:
        """Fetch everything a final manifest names, check its states, apply it; our state after it.

        Raises:
            Unavailable: a blob is unavailable now; nothing has changed.
            MalformedMessage: what a quorum certified is no aggregate.
        """
        manifest = certified.manifest
        assert int(manifest.round) == self.round
        await self._hold(host, _names(certified))
        self._compare(certified)
        state = await trio.to_thread.run_sync(self._apply, certified)
        self._me.store.set_value(self._state_name(self.round), state)
        return state

    async def mend(self, host: Host) -> None:
        """Fetch again what the disk damaged or lost of all rounds so far: nobody else keeps the whole run.

        Raises:
            Unavailable: nobody serves it now.
        """
        whole = set[Digest]()
        for round_id in range(self.round):
            for certified in self._me.store.links(round_id, 1):
                names = [name for name in _names(certified) if name not in whole]
                for name in names:
                    try:
                        await trio.to_thread.run_sync(self._me.blobs.load, name)
                    except Unavailable as error:
                        log.warning("blob to be fetched again", extra={"reason": str(error)})
                        await trio.to_thread.run_sync(self._me.blobs.discard_damaged, name)
                await self._hold(host, names)
                whole.update(names)

    def compared(self) -> tuple[int, tuple[Mismatch, ...]]:
        """The number of rounds whose commits named their parameters, and the mismatches."""
        rounds, wrong = 0, []
        for round_id in range(0, self._me.spec.rounds, self._me.spec.state_every):
            body = self._me.store.value(f"agreement/{round_id}")
            if body is not None:
                rounds += 1
                wrong += [Mismatch(**one) for one in cbor2.loads(body)]
        return rounds, tuple(wrong)

    def _compare(self, certified: CertifiedManifest) -> None:
        manifest = certified.manifest
        if int(manifest.round) % self._me.spec.state_every or not manifest.commits:
            return
        ours = self.state(self.round)
        wrong = [
            {"round": self.round, "who": c.node.hex(), "claimed": c.state.hex(), "ours": ours.hex()}
            for c in (signed.commit for signed in manifest.commits)
            if c.state != ours
        ]
        self._me.store.set_value(f"agreement/{self.round}", cbor2.dumps(wrong))

    def _apply(self, certified: CertifiedManifest) -> Digest:
        name = certified.manifest.aggregate
        aggregate = b"" if name == NO_DIGEST else self._me.blobs.load(name)
        return self._parameters.apply(self.round, aggregate)

    async def _hold(self, host: Host, names: list[Digest]) -> None:
        """Return once all these blobs are stored here.

        Raises:
            Unavailable: one of them is unavailable.
        """
        limit, missing = trio.CapacityLimiter(FETCHES_AT_ONCE), list[Unavailable]()

        async def fetch(name: Digest) -> None:
            async with limit:
                try:
                    verifiers = self._me.spec.seat_peers
                    others = host.connected() - {*verifiers}  # nodes, whose lines are the slowest
                    body = await fetch_blob(host, name, [*verifiers, *others], FETCH_S, last=others)
                    await trio.to_thread.run_sync(self._me.blobs.put, body)
                except Unavailable as error:
                    missing.append(error)

        async with trio.open_nursery() as nursery:
            for name in names:
                if self._me.blobs.size(name) is None:
                    nursery.start_soon(fetch, name)
        if missing:
            raise missing[0]

    @staticmethod
    def _state_name(round_id: int) -> str:
        return f"state/{round_id}"


def _names(certified: CertifiedManifest) -> list[Digest]:
    """The updates and the aggregate of a manifest, ascending."""
    manifest = certified.manifest
    names = {signed.commit.update for signed in manifest.commits} | {manifest.aggregate}
    return sorted(names - {NO_DIGEST})
