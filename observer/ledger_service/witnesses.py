"""Witnesses: has verifiers cosign the ledger's checkpoints, and detects rolled-back books by their answers.

Room: observer (edge: host and log). The service requests from each verifier the newest checkpoint that the
verifier cosigned. The answer carries the ledger service's own signature, so no verifier can invent it: if the
books do not hold it, they were rolled back, and the service stops. Then the verifier gets the newest
checkpoint with the proof from there, and its signature line is stored with the note.
"""

from __future__ import annotations

import logging

import trio

from assay.ledger.journal.log_store import Note
from assay.ledger.log.cosignature import read_cosignature
from assay.ledger.log.note import BadNoteError, Checkpoint, read_checkpoint, read_line, signature_lines
from assay.ledger.log.signer import CheckpointSigner
from assay.network.host import Host, RemoteError
from assay.participant.config import Participant
from assay.protocol.agreement.quorum import quorum
from assay.protocol.errors import MalformedMessage, PeerFault, Unavailable
from assay.protocol.types import PeerId

log = logging.getLogger(__name__)
POLL_S = 1.0
RETRY_S = 5.0  # wait before asking a verifier again that did not cosign
ANSWER_S_MAX = 10.0
LINE_BYTES_MAX = 1_000


class Witnesses:
    """The run's verifiers as witnesses of one ledger's log."""

    def __init__(self, me: Participant, checkpoint_signer: CheckpointSigner) -> None:
        self._me, self._log = me, checkpoint_signer
        self._need = quorum(len(me.spec.judges))
        self._answered: set[PeerId] = set()  # have reported since our start what they cosigned last
        self._unwilling: set[PeerId] = set()  # or that they are no witnesses
        self._changed = trio.Event()

    @property
    def is_compared(self) -> bool:
        """Whether a quorum has reported no checkpoint of ours that our books do not hold."""
        return len(self._answered) >= self._need

    @property
    def is_cosigned(self) -> bool:
        """Whether a quorum cosigned the newest checkpoint; true if there is none."""
        newest = self._log.newest()
        return newest is None or len(newest.cosignatures) >= self._need

    async def run(self, host: Host) -> None:
        """Compare with every verifier and have every checkpoint cosigned; ends only by cancellation.

        Raises:
            LedgerRolledBack: a verifier holds a checkpoint of ours that the books do not.
        """
        async with trio.open_nursery() as nursery:
            for peer in self._me.spec.seat_peers:
                nursery.start_soon(self._keep_asking, host, peer)

    async def compared(self, wait_s: float) -> bool:
        """Wait until a quorum has answered, up to a limit; returns whether one has."""
        with trio.move_on_after(wait_s):
            while not self.is_compared:
                await self._changed.wait()
        return self.is_compared

    async def cosigned(self, wait_s: float) -> bool:
        """Wait until a quorum cosigned the newest checkpoint, or none will; whether one did in time."""
        with trio.move_on_after(wait_s):
            while len(self._me.spec.judges) - len(self._unwilling) >= self._need:
                changed = self._changed  # read first: a change after this must wake us
                if await trio.to_thread.run_sync(lambda: self.is_cosigned):
                    break
                await changed.wait()
        return await trio.to_thread.run_sync(lambda: self.is_cosigned)

    async def _keep_asking(self, host: Host, peer: PeerId) -> None:
        while True:
            try:
                newest = await trio.to_thread.run_sync(self._log.newest)
                if peer not in self._answered or (newest is not None and not _has(newest, peer)):
                    await self._ask(host, peer)
            except (PeerFault, MalformedMessage, Unavailable, BadNoteError) as error:
                log.info("not cosigned", extra={"verifier": peer.hex()[:8], "reason": str(error)})
                await trio.sleep(RETRY_S)
            await trio.sleep(POLL_S)

    async def _ask(self, host: Host, peer: PeerId) -> None:
        """Compare a verifier's newest cosigned checkpoint with our books; then have ours cosigned.

        Raises:
            LedgerRolledBack: it holds a checkpoint of ours that the books do not.
            PeerFault, BadNoteError, Unavailable: it could not or would not answer.
        """
        held = await self._held(host, peer)
        if held is not None:
            await trio.to_thread.run_sync(self._log.check, held, f"verifier {peer.hex()[:8]}")
        self._answered.add(peer)
        self._report()
        newest = await trio.to_thread.run_sync(self._log.newest)
        if newest is None or _has(newest, peer) or (held is not None and held.size > newest.size):
            return
        request = await trio.to_thread.run_sync(self._log.request, 0 if held is None else held.size)
        body = await host.request(peer, "witness", request.encode(), timeout_s=ANSWER_S_MAX)
        if len(body) > LINE_BYTES_MAX or not body.endswith(b"\n"):
            raise PeerFault(peer, f"answers {len(body)} bytes, one signature line expected")
        line = read_line(body[:-1].decode(errors="replace"))
        checkpoint = read_checkpoint(request.note, self._log.origin, self._me.me)
        await trio.to_thread.run_sync(self._log.add_cosignature, checkpoint.size, peer, line)
        log.info("cosigned", extra={"verifier": peer.hex()[:8], "entries": checkpoint.size})
        self._report()

    async def _held(self, host: Host, peer: PeerId) -> Checkpoint | None:
        """The newest checkpoint of ours that a verifier cosigned, with our signature and its own."""
        try:
            body = await host.request(peer, "witnessed", b"", timeout_s=ANSWER_S_MAX)
        except RemoteError as error:  # it is reachable, and no witness
            log.info("no witness", extra={"verifier": peer.hex()[:8], "reason": str(error)})
            self._unwilling.add(peer)
            self._report()
            return None
        self._unwilling.discard(peer)
        if not body:
            return None
        note = body.decode(errors="replace")
        found = read_checkpoint(note, self._log.origin, self._me.me)
        for line in signature_lines(note)[1:]:
            read_cosignature(line, found, peer)
        return found

    def _report(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _has(note: Note, peer: PeerId) -> bool:
    return any(verifier == peer for verifier, _ in note.cosignatures)
