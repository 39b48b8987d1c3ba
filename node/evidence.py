"""Evidence: serves what `assay appeal open` wrote about our convicted step to the verifiers that ask.

Room: node (edge: a folder). A juror of the appeal asks us, and nobody else, for it: docs/protocol.md, 7b.
"""

from __future__ import annotations

import logging
from pathlib import Path

import trio

from assay.participant.config import Participant
from assay.participant.files.evidence import evidence_files, evidence_path
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import PeerFault, Unavailable
from assay.protocol.messages import EvidenceNotice, EvidenceRequest
from assay.protocol.types import PeerId

log = logging.getLogger(__name__)
LOOK_S = 30.0  # between two looks whether an appeal has ended


class EvidenceServer:
    """The evidence of our appeals, as blobs."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        self._notices: dict[Path, tuple[int, EvidenceNotice]] = {}  # and when the file was written

    async def answer(self, peer: PeerId, body: bytes) -> bytes:
        """Where a verifier can fetch the evidence that it asks for; empty if there is none.

        Raises:
            PeerFault: it is no verifier of the run. Unavailable: the file cannot be read or kept.
        """
        request = decode(EvidenceRequest, body)
        if peer not in self._me.spec.verifier_peers:
            raise PeerFault(peer, "asks for evidence, which only verifiers judge")
        path = evidence_path(self._me.config.folder, request.case_id, request.operator)
        try:
            written_ns = path.stat().st_mtime_ns
        except FileNotFoundError:
            return b""
        known = self._notices.get(path)
        if known is None or known[0] != written_ns or self._me.blobs.size(known[1].evidence) is None:
            known = written_ns, await trio.to_thread.run_sync(self._kept, path)
            self._notices[path] = known
        log.info("evidence shown", extra={"verifier": peer.hex()[:8], "file": path.name})
        return encode(known[1])

    async def until_judged(self) -> None:
        """Return once no evidence lies here, which `assay appeal open` removes when the appeal has ended."""
        is_told = False
        while found := evidence_files(self._me.config.folder):
            if not is_told:
                log.info("kept up: jurors may ask for evidence of an appeal", extra={"files": len(found)})
                is_told = True
            await trio.sleep(LOOK_S)

    def _kept(self, path: Path) -> EvidenceNotice:
        try:
            body = path.read_bytes()
        except OSError as error:
            raise Unavailable(f"{path.name} cannot be read ({error.strerror})") from None
        return EvidenceNotice(evidence=self._me.blobs.put(body), evidence_bytes=len(body))
