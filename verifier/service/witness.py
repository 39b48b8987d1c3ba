"""Witness: a verifier cosigns the ledger's checkpoints, each only if it continues the one before.

Room: verifier (edge: the store). The rules are ledger/log/witness.py's. What was cosigned is
on disk before the cosignature leaves, and nothing is awaited in between, so no two requests
and no kill can make this verifier vouch for two histories. A signed checkpoint that goes back is
kept, with what it contradicts: whoever restores an old ledger signs the proof of it.
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
NEWEST = "witness/newest"  # the note that we cosigned last, with our line
EVIDENCE = "witness/evidence/"  # a checkpoint that goes back, and the one it contradicts
EVIDENCE_MAX = 16  # one is proof enough; each is at most 40 KB


class Witness:
    """One verifier's word on one keeper's ledger: handlers `witness` and `witnessed`."""

    def __init__(self, me: Participant, unix_s: Callable[[], int]) -> None:
        """The keeper is the one that the verifier's own file names; without one, nothing is cosigned.

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
            PeerFault: the asker is not the keeper, or its ledger goes back.
            MalformedMessage: not a request, or not a checkpoint of this run's ledger.
            Unavailable: no keeper is named here, or the proof starts elsewhere than where we stand.
        """
        ledger_service = self._me.config.ledger_service
        if ledger_service is None:
            raise Unavailable("this verifier's file names no keeper, so it cosigns no ledger")
        if peer != ledger_service:
            raise PeerFault(peer, f"asks to cosign a ledger that {ledger_service.hex()[:8]} keeps")
        asked, held = read_request(body), self._held(ledger_service)
        try:
            shown = continued(held, asked, self._origin, ledger_service)
        except BadNoteError as error:
            raise MalformedMessage(str(error)) from None
        except OtherSizeError as error:
            raise Unavailable(str(error)) from None
        except RolledBackError as error:
            self._keep_evidence(_own(asked.note), str(error))
            raise PeerFault(peer, str(error)) from None
        line = cosign(shown, self._me.keys.peer, self._unix_s())
        self._me.store.set_value(NEWEST, with_lines(_own(asked.note), [line]).encode())
        log.info("ledger cosigned", extra={"entries": shown.size, "root": shown.root.hex()[:16]})
        return f"{line.text()}\n".encode()

    async def _witnessed(self, _peer: PeerId, _body: bytes) -> bytes:
        """The newest note that we cosigned, with our line; nothing if there is none."""
        return self._me.store.value(NEWEST) or b""

    def _held(self, ledger_service: PeerId) -> Checkpoint | None:
        note = self._me.store.value(NEWEST)
        return None if note is None else read_checkpoint(note.decode(), self._origin, ledger_service)

    def _keep_evidence(self, shown: str, reason: str) -> None:
        log.warning("the ledger goes back", extra={"reason": reason})
        name = EVIDENCE + hashlib.sha256(shown.encode()).hexdigest()[:16]
        if len(self._me.store.values(EVIDENCE)) < EVIDENCE_MAX:
            held = self._me.store.value(NEWEST) or b""
            self._me.store.set_value(
                name, cbor2.dumps({"shown": shown, "held": held.decode(), "why": reason})
            )


def _own(note: str) -> str:
    """A checkpoint's text and the keeper's signature; lines of others are not ours to keep."""
    return "\n".join(note.split("\n")[:5]) + "\n"
