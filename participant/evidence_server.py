"""Evidence server: shows evidence of appeals to verifiers and jurors that ask (docs/protocol.md, 7b).

Room: participant (edge: a folder, the chain). An accused node shows what `assay appeal open` wrote, and signs
for it; a verifier of the run shows what it got from the node, with the node's signature. Jurors outside the
run are admitted by their records in the directory, which are looked up now and then while there is something
to show: a stranger that asks costs no call of the chain.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from assay.chain.state import DefencePhase
from assay.participant.config import Participant
from assay.participant.directory.find import last_record
from assay.participant.files.evidence import cases_shown, evidence_files, evidence_path, notice_path
from assay.participant.wallet.claims import open_chain
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, MalformedMessage, PeerFault, Unavailable
from assay.protocol.identity import sign
from assay.protocol.messages import EvidenceNotice, EvidenceRequest, SignedEvidenceNotice
from assay.protocol.types import PeerId

if TYPE_CHECKING:
    from assay.chain.reader import ChainReader

log = logging.getLogger(__name__)
LOOK_S = 30.0  # between two looks whether an appeal has ended, or has jurors


class EvidenceServer:
    """The evidence in our folder, as blobs."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        self._notices: dict[Path, tuple[int, SignedEvidenceNotice]] = {}  # and when the file was written
        self._jurors: Mapping[PeerId, Collection[bytes]] = {}  # and the cases that they judge

    def knows(self, peer: PeerId) -> bool:
        """Whether a peer is a juror of a case that we can show evidence about."""
        return peer in self._jurors

    async def answer(self, peer: PeerId, body: bytes) -> bytes:
        """The notice by which a verifier, or a juror of the case, can fetch what it asks for; or nothing.

        Raises:
            PeerFault: it is neither. Unavailable: the file cannot be read or kept.
        """
        request = decode(EvidenceRequest, body)
        if peer not in self._me.spec.seat_peers and request.case_id not in self._jurors.get(peer, ()):
            raise PeerFault(peer, "asks for evidence, which only verifiers of the run and jurors judge")
        path = evidence_path(self._me.config.folder, request.case_id, request.operator)
        try:
            written_ns = path.stat().st_mtime_ns
        except FileNotFoundError:
            return b""
        known = self._notices.get(path)
        if known is None or known[0] != written_ns or self._me.blobs.size(known[1].notice.evidence) is None:
            known = written_ns, await trio.to_thread.run_sync(self._kept, request, path, written_ns)
            self._notices[path] = known
        log.info("evidence shown", extra={"juror": peer.hex()[:8], "file": path.name})
        return encode(known[1])

    async def follow_jurors(self) -> None:
        """Keep up with who sits on the juries of the appeals; ends only by cancellation."""
        reason = ""
        while True:
            cases = cases_shown(self._me.config.folder)
            try:
                self._jurors = await trio.to_thread.run_sync(self._read_jurors, cases) if cases else {}
                reason = ""
            except AssayError as error:  # jurors that we knew stay
                if reason != str(error):  # once, not every time
                    reason = str(error)
                    log.warning("juries not read", extra={"reason": reason})
            await trio.sleep(LOOK_S)

    def _read_jurors(self, cases: Collection[bytes]) -> Mapping[PeerId, Collection[bytes]]:
        return jurors_of(open_chain(self._me), cases, int(time.time()))

    async def until_judged(self) -> None:
        """Return once no evidence lies here, which `assay appeal open` removes when the appeal has ended."""
        is_told = False
        while found := evidence_files(self._me.config.folder):
            if not is_told:
                log.info("kept up: jurors may ask for evidence of an appeal", extra={"files": len(found)})
                is_told = True
            await trio.sleep(LOOK_S)

    def _kept(self, request: EvidenceRequest, path: Path, written_ns: int) -> SignedEvidenceNotice:
        try:
            evidence = self._me.blobs.put(body := path.read_bytes())
            kept = notice_path(path)
            if kept.exists():  # as its node signed it
                return decode(SignedEvidenceNotice, kept.read_bytes())
        except (OSError, MalformedMessage) as error:
            raise Unavailable(f"{path.name} cannot be read ({error})") from None
        notice = EvidenceNotice(
            case_id=request.case_id,
            operator=request.operator,
            evidence=evidence,
            evidence_bytes=len(body),
            written_ns=written_ns,
        )
        return SignedEvidenceNotice(
            notice=notice, signature=sign(self._me.keys.peer, self._me.domain, notice)
        )


def jurors_of(chain: ChainReader, cases: Collection[bytes], now_s: int) -> Mapping[PeerId, Collection[bytes]]:
    """The jurors of these cases, as the peers of the records that they announced last, and their cases.

    An account that announced no record that verifies is left out: it needs the file from somebody.

    Raises:
        Unavailable: the endpoint is gone.
    """
    from assay.chain.reader import NotShown  # web3 takes a second to import

    found = defaultdict[PeerId, set[bytes]](set)
    for case_id in cases:
        juries = [jury for _, state, jury in chain.defences(case_id) if state.phase is DefencePhase.JURY]
        for account in {seat for jury in juries for seat in jury.seats}:
            try:
                signed = last_record(chain, account, now_s)
            except (MalformedMessage, PeerFault, NotShown) as fault:
                log.info("juror not found", extra={"account": account, "reason": str(fault)})
                continue
            if signed is not None:
                found[signed.record.peer].add(case_id)
    return dict(found)
