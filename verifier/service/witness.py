"""Witness: cosigns the ledger's checkpoints for one verifier, each only if it extends the one before.

Room: verifier (edge: the store). The rules are in ledger/log/witness.py. A cosigned checkpoint is on disk
before the cosignature leaves, and nothing is awaited in between, so no two requests and no kill can make this
verifier cosign two histories. A signed checkpoint that forks or rolls back the log is kept, with the one it
contradicts: a ledger restored from an old backup signs the proof of it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping

import cbor2

from assay.ledger.log.cosignature import cosign
from assay.ledger.log.note import BadNoteError, Checkpoint, origin_of, read_checkpoint, with_lines
from assay.ledger.log.witness import OtherSizeError, RolledBackError, continued, read_request
from assay.network.host import Handler
from assay.participant.config import Participant
from assay.protocol.errors import MalformedMessage, PeerFault, Unavailable
from assay.protocol.types import PeerId

log = logging.getLogger(__name__)
NEWEST = "witness/newest"  # the note that we cosigned last, with our signature line
EVIDENCE = "witness/evidence/"  # a checkpoint that rolls back, and the one it contradicts
EVIDENCE_MAX = 16  # one is proof enough; each is at most 40 KB


class Witness:
    """One verifier's cosignatures of one ledger service's log: handlers `witness` and `witnessed`."""

    def __init__(self, me: Participant, unix_s: Callable[[], int]) -> None:
        """The ledger service is the one in the verifier's configuration; without one, nothing is cosigned.

        Args:
            me: The verifier.
            unix_s: The clock, Unix seconds.
        """
        self._me, self._unix_s = me, unix_s
        self._origin = origin_of(me.run_id)
        self.handlers: Mapping[str, Handler] = {"witness": self._witness, "witnessed": self._witnessed}

    async def _witness(self, peer: PeerId, body: bytes) -> bytes:
        """A checkpoint and its proof in, our signature line out.

        Raises:
            PeerFault: the sender is not the ledger service, or its log rolls back.
            MalformedMessage: not a request, or not a checkpoint of this run's ledger.
            Unavailable: no ledger service is named here, or the proof does not start at our newest
                checkpoint.
        """
        ledger_service = self._me.ledger_service
        if ledger_service is None:
            raise Unavailable("this verifier's file names no ledger service, so it cosigns no ledger")
        if peer != ledger_service:
            raise PeerFault(peer, f"asks to cosign a ledger that {ledger_service.hex()[:8]} keeps")
        request, held = read_request(body), self._held(ledger_service)
        try:
            shown = continued(held, request, self._origin, ledger_service)
        except BadNoteError as error:
            raise MalformedMessage(str(error)) from None
        except OtherSizeError as error:
            raise Unavailable(str(error)) from None
        except RolledBackError as error:
            self._keep_evidence(_own(request.note), str(error))
            raise PeerFault(peer, str(error)) from None
        line = cosign(shown, self._me.keys.peer, self._unix_s())
        self._me.store.set_value(NEWEST, with_lines(_own(request.note), [line]).encode())
        log.info("ledger cosigned", extra={"entries": shown.size, "root": shown.root.hex()[:16]})
        return f"{line.text()}\n".encode()

    async def _witnessed(self, _peer: PeerId, _body: bytes) -> bytes:
        """The newest note that we cosigned, with our line; nothing if there is none."""
        return self._me.store.value(NEWEST) or b""

    def _held(self, ledger_service: PeerId) -> Checkpoint | None:
        note = self._me.store.value(NEWEST)
        return None if note is None else read_checkpoint(note.decode(), self._origin, ledger_service)

    def _keep_evidence(self, shown: str, reason: str) -> None:
        log.warning("ledger rolled back", extra={"reason": reason})
        name = EVIDENCE + hashlib.sha256(shown.encode()).hexdigest()[:16]
        if len(self._me.store.values(EVIDENCE)) < EVIDENCE_MAX:
            held = self._me.store.value(NEWEST) or b""
            self._me.store.set_value(
                name, cbor2.dumps({"shown": shown, "held": held.decode(), "why": reason})
            )


def _own(note: str) -> str:
    """A checkpoint's text and the ledger service's signature, without other signature lines."""
    return "\n".join(note.split("\n")[:5]) + "\n"
