"""Appeals: what a verifier knows of the steps whose convictions may be appealed.

Room: verifier (edge: store; the recompute worker computes). The trace of a convicted step is computed as soon
as the chain convicts, while the parameters are here, and kept: 32 bytes an operator.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from assay.chain.commit_statement import commit_statement
from assay.chain.statements import Statement
from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.following.sync import StateSync
from assay.protocol.errors import AssayError
from assay.protocol.messages import Commit
from assay.protocol.types import Digest
from assay.verifier.appeal.juror import Juror
from assay.verifier.audit.messages import Judged, JudgeOperator, Traced, TraceStep
from assay.verifier.service.accusations import accused_commit

log = logging.getLogger(__name__)
TRACE = "trace/"  # and the case's id: key of the positions that we found, 32 bytes each


class Appeals:
    """Traces and statements of convicted steps; and our juror, which has the recompute worker judge."""

    def __init__(self, me: Participant, follower: Follower, state_sync: StateSync) -> None:
        self._me, self._follower, self._state_sync = me, follower, state_sync
        self._tried: set[bytes] = set()
        self.juror = Juror(me, follower, self._recompute)

    async def run(self, host: Host) -> None:
        """Trace every step that the chain convicts, and fetch wanted evidence; ends only by cancellation."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.juror.run, host)
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

    async def _recompute(self, request: JudgeOperator) -> bool:
        return (await self._state_sync.child.call(request, Judged)).is_right

    def keep(self, case_id: Digest, positions: bytes) -> None:
        """Keep the trace of a step that was made elsewhere."""
        self._me.store.set_value(_trace_name(case_id), positions)

    async def _trace(self, case_id: Digest, commit: Commit) -> None:
        if self._me.store.value(_trace_name(case_id)):
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
