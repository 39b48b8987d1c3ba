"""Verifier: audit runners that commit to verdicts they did not compute, or that reveal none.

Room: devnet (edge).
"""

from __future__ import annotations

import os
from typing import ClassVar

from assay.protocol.auditing.audits import Audit
from assay.protocol.messages import Outcome, SignedVerdict
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, Digest
from assay.verifier.audit.messages import Examined, Finding
from assay.verifier.service.audit_runner import AuditRunner


class PassAll(AuditRunner):
    """Finds MATCH in every step and recomputes none."""

    OUTCOME: ClassVar = Outcome.MATCH

    async def _find(self, audit: Audit) -> SignedVerdict:
        sketch = Digest(os.urandom(32)) if audit.sketch is None else audit.sketch
        found = Finding(self.OUTCOME, sketch, 0, 0, witness=Digest(os.urandom(32)))
        return self._sign(audit, Examined(finding=found, exec_class=audit.commit.exec_class), NO_DIGEST, 0)


class AccuseAll(PassAll):
    """Finds MISMATCH in every step and recomputes none."""

    OUTCOME: ClassVar = Outcome.MISMATCH


class NeverOpen(AuditRunner):
    """Commits to every verdict and reveals none."""

    def _open(self, run_state: RunState, audit: Audit) -> None:
        return


KINDS: dict[str, type[AuditRunner]] = {
    "pass-all": PassAll,
    "accuse-all": AccuseAll,
    "never-open": NeverOpen,
}
