"""Appeals: what a verifier knows of the steps whose convictions may be appealed.

Room: verifier (edge: store, a folder of evidence; the recompute worker computes). The trace of a convicted
step is computed as soon as the chain convicts, while the parameters are here, and kept: 32 bytes an operator.
Evidence of accused nodes is put into the folder by hand, as `assay appeal open` wrote it.

    folder/appeals/CASE-OPERATOR.evidence
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from assay.chain.commit_statement import commit_statement
from assay.chain.statements import Statement
from assay.ledger.settlement.duties import DefenceView
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.sync import StateSync
from assay.protocol.audits import Audit
from assay.protocol.errors import AssayError, MalformedMessage
from assay.protocol.types import Digest
from assay.training.reference.narrowing import START
from assay.verifier.audit.messages import Judged, JudgeOperator, Traced, TraceStep

log = logging.getLogger(__name__)
FOLDER = "appeals"
TRACE = "trace/"  # and the case's id: key of the positions that we found, 32 bytes each


def evidence_path(folder: Path, case_id: bytes, index: int) -> Path:
    """Where the evidence about one operator of a case lies."""
    return folder / FOLDER / f"{case_id.hex()}-{index}.evidence"


class Appeals:
    """Traces and statements of convicted steps, and judgements of operators."""

    def __init__(self, me: Participant, follower: Follower, state_sync: StateSync) -> None:
        self._me, self._follower, self._state_sync = me, follower, state_sync
        self._tried: set[bytes] = set()

    async def run(self) -> None:
        """Trace every step that the chain convicts; ends only by cancellation."""
        while True:
            now = self._follower.run_state
            for audit in tuple(self._follower.confirmed.values()):
                if audit.offence_id not in self._tried:
                    self._tried.add(audit.offence_id)
                    await self._trace(audit)
            await self._follower.grown(int(now.round))

    async def positions(self, case_id: bytes) -> Sequence[bytes] | None:
        """The positions of the step's trace; None if our chain does not convict it, or we have none."""
        body = self._me.store.value(_name(case_id))
        if self._convicted(case_id) is None or not body:
            return None
        return [body[at : at + 32] for at in range(0, len(body), 32)]

    def statement(self, case_id: bytes) -> tuple[Statement, bytes] | None:
        """The accused's statement about the step, as our chain carries it."""
        audit = self._convicted(case_id)
        if audit is None:
            return None
        for link in self._me.store.links(int(audit.round), 1):
            for signed in link.manifest.commits:
                if signed.commit == audit.commit:
                    return commit_statement(self._me.spec, signed.commit), signed.statement
        return None

    async def is_right(self, case_id: bytes, operators: int, defence: DefenceView) -> bool | None:
        """Whether the operator that is left is right; None if no evidence about it is here."""
        path = evidence_path(self._me.config.folder, case_id, defence.state.first)
        if not path.exists():
            return None
        request = JudgeOperator(
            case_id=Digest(case_id),
            operators=operators,
            index=defence.state.first,
            start=_start(defence),
            end=Digest(defence.state.end),
            evidence=str(path),
        )
        try:
            return (await self._state_sync.child.call(request, Judged)).is_right
        except MalformedMessage as error:
            log.warning("evidence shows nothing", extra={"file": path.name, "reason": str(error)})
            return None

    async def _trace(self, audit: Audit) -> None:
        if self._me.store.value(_name(audit.offence_id)) is not None:
            return
        try:
            found = await self._state_sync.child.call(TraceStep(commit=audit.commit), Traced)
        except AssayError as error:
            log.error("a convicted step is not traced", extra={"reason": str(error)})
            return
        self._me.store.set_value(_name(audit.offence_id), found.positions)

    def _convicted(self, case_id: bytes) -> Audit | None:
        return next((one for one in self._follower.confirmed.values() if one.offence_id == case_id), None)


def _name(case_id: bytes) -> str:
    return f"{TRACE}{case_id.hex()}"


def _start(defence: DefenceView) -> Digest:
    """The position before the operator; the contract has none for the first."""
    return START if defence.state.first == 0 else Digest(defence.state.start)
