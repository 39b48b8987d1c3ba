"""Appeals: what a verifier knows of the steps whose convictions may be appealed.

Room: verifier (edge: store, a folder of evidence; the recompute worker computes). The trace of a convicted
step is computed as soon as the chain convicts, while the parameters are here, and kept: 32 bytes an operator.
A juror asks the accused node itself for evidence, over its authenticated connection: what others would send
could lose the appeal for it. What arrives is checked by the worker before it counts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import trio

from assay.chain.commit_statement import commit_statement
from assay.chain.statements import Statement
from assay.ledger.settlement.duties import DefenceView
from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.files.evidence import evidence_path
from assay.participant.follower import Follower
from assay.participant.following.sync import StateSync
from assay.protocol.errors import AssayError, MalformedMessage
from assay.protocol.messages import Commit, EvidenceRequest
from assay.protocol.types import Digest, PeerId
from assay.training.reference.narrowing import START
from assay.verifier.appeal.fetch import FETCH_S, FETCHES_MAX, ask, keep
from assay.verifier.audit.messages import Judged, JudgeOperator, Traced, TraceStep
from assay.verifier.service.accusations import accused_commit

log = logging.getLogger(__name__)
TRACE = "trace/"  # and the case's id: key of the positions that we found, 32 bytes each
ASK_AGAIN_S = 60.0
ASKED_MAX = 64  # operators at a time
Wanted = tuple[PeerId, EvidenceRequest, Path]  # of whom, what, and where it is kept


class Appeals:
    """Traces and statements of convicted steps, and judgements of operators."""

    def __init__(self, me: Participant, follower: Follower, state_sync: StateSync) -> None:
        self._me, self._follower, self._state_sync = me, follower, state_sync
        self._tried: set[bytes] = set()
        self._asking: set[Path] = set()
        self._fetched: Counter[Path] = Counter()
        # A juror may sit in as many defences as there are signers.
        self._judged: dict[JudgeOperator, bool] = {}
        self._wanted, self._wanting = trio.open_memory_channel[Wanted](ASKED_MAX)

    async def run(self, host: Host) -> None:
        """Trace every step that the chain convicts, and fetch wanted evidence; ends only by cancellation."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fetch_wanted, host, nursery)
            while True:
                now = self._follower.run_state
                for audit in tuple(self._follower.confirmed.values()):
                    if audit.offence_id not in self._tried:
                        self._tried.add(audit.offence_id)
                        await self._trace(audit.offence_id, audit.commit)
                await self._follower.grown(int(now.round))

    async def positions(self, case_id: bytes) -> Sequence[bytes] | None:
        """The positions of the step's trace; None if our chain does not convict it, or we have none."""
        body = self._me.store.value(_trace_name(case_id))
        if self._convicted(case_id) is None or not body:
            return None
        return [body[at : at + 32] for at in range(0, len(body), 32)]

    def statement(self, case_id: bytes) -> tuple[Statement, bytes] | None:
        """The accused's statement about the step, as our chain carries it."""
        commit = self._convicted(case_id)
        if commit is None:
            return None
        for link in self._me.store.links(int(commit.round), 1):
            for signed in link.manifest.commits:
                if signed.commit == commit:
                    return commit_statement(self._me.spec, signed.commit), signed.statement
        return None

    async def is_right(self, case_id: bytes, operators: int, defence: DefenceView) -> bool | None:
        """Whether the operator that is left is right; None if no evidence about it is here.

        Then the accused is asked for it, meanwhile, for whoever asks here again.
        """
        path = evidence_path(self._me.config.folder, case_id, defence.state.first)
        if not path.exists():
            self._want(case_id, defence.state.first, path)
            return None
        request = JudgeOperator(
            case_id=Digest(case_id),
            operators=operators,
            index=defence.state.first,
            start=_start(defence),
            end=Digest(defence.state.end),
            evidence=str(path),
        )
        if request in self._judged:
            return self._judged[request]
        try:
            found = (await self._state_sync.child.call(request, Judged)).is_right
            self._judged[request] = found
            return found
        except MalformedMessage as error:
            log.warning("evidence shows nothing", extra={"file": path.name, "reason": str(error)})
            path.unlink(missing_ok=True)  # the accused may show better
            return None

    def _want(self, case_id: bytes, index: int, path: Path) -> None:
        """Have the accused asked, unless it is being asked already."""
        commit = self._convicted(case_id)
        if commit is None or path in self._asking or self._fetched[path] >= FETCHES_MAX:
            return
        try:
            request = EvidenceRequest(case_id=Digest(case_id), operator=index)
            self._wanted.send_nowait((commit.node, request, path))
        except trio.WouldBlock:  # asked for again with the next look
            return
        self._asking.add(path)

    async def _fetch_wanted(self, host: Host, nursery: trio.Nursery) -> None:
        async for node, request, path in self._wanting:
            nursery.start_soon(self._fetch, host, node, request, path)

    async def _fetch(self, host: Host, node: PeerId, request: EvidenceRequest, path: Path) -> None:
        """Ask the accused for its evidence once, and keep it as a file; nobody waits for this."""
        try:
            shown = await ask(host, node, request, self._me.spec)
            if shown is not None:
                self._fetched[path] += 1
                await keep(host, node, shown, path, FETCH_S)
                log.info("evidence fetched", extra={"node": node.hex()[:8], "file": path.name})
        except (AssayError, OSError) as error:
            log.info("no evidence", extra={"node": node.hex()[:8], "reason": str(error)})
        await trio.sleep(ASK_AGAIN_S)
        self._asking.discard(path)

    def keep(self, case_id: Digest, positions: bytes) -> None:
        """Keep the trace of a step that was made elsewhere."""
        self._me.store.set_value(_trace_name(case_id), positions)

    async def _trace(self, case_id: Digest, commit: Commit) -> None:
        if self._me.store.value(_trace_name(case_id)) is not None:
            return
        try:
            found = await self._state_sync.child.call(TraceStep(commit=commit), Traced)
        except AssayError as error:
            log.error("a convicted step is not traced", extra={"reason": str(error)})
            return
        self.keep(case_id, found.positions)

    def _convicted(self, case_id: bytes) -> Commit | None:
        """The step of a case, if our chain convicts it, or if we signed an order about it ourselves."""
        for audit in self._follower.confirmed.values():
            if audit.offence_id == case_id:
                return audit.commit
        return accused_commit(self._me.store, case_id)


def _trace_name(case_id: bytes) -> str:
    return f"{TRACE}{case_id.hex()}"


def _start(defence: DefenceView) -> Digest:
    """The position before the operator; the contract has none for the first."""
    return START if defence.state.first == 0 else Digest(defence.state.start)
