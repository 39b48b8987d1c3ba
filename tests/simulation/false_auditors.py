"""False auditors: verifiers that keep every rule of agreement, and lie in their verdicts.

Some recompute nothing, some recompute and say the opposite, one is the accomplice of the lying node: it knows
the node's sealed sketch, and calls its steps true.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from assay.devnet.faults.verifier import KINDS as DEVNET_KINDS
from assay.node.messages import StepRecord
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.encoding.codec import INT_MAX, decode
from assay.protocol.messages import Outcome, SignedVerdict
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.verifier.audit.messages import Examined, Finding
from assay.verifier.service.audit_runner import WITHHELD, AuditRunner

CANNOT_TELL = Examined(finding=Finding(Outcome.INCONCLUSIVE, NO_DIGEST, 0, 0), exec_class=NO_DIGEST)
OPPOSITE = {Outcome.MATCH: Outcome.MISMATCH, Outcome.MISMATCH: Outcome.MATCH}


@dataclass
class Conspiracy:
    """What the accomplice knows: who lies, and where its steps are."""

    node: PeerId
    folder: Path


class WithholdAll(AuditRunner):
    """Finds WITHHELD in every step and asks for none."""

    async def _find(self, audit: Audit) -> SignedVerdict:
        return self._sign(audit, WITHHELD, NO_DIGEST, 0)


class CannotTell(AuditRunner):
    """Is never able to judge."""

    async def _find(self, audit: Audit) -> SignedVerdict:
        return self._sign(audit, CANNOT_TELL, NO_DIGEST, 0)


class Opposite(AuditRunner):
    """Recomputes every step, and says the opposite of what it found."""

    def _sign(self, audit: Audit, examined: Examined, opening: Digest, size: int) -> SignedVerdict:
        found = examined.finding
        said = replace(found, outcome=OPPOSITE.get(found.outcome, found.outcome))
        return super()._sign(audit, replace(examined, finding=said), opening, size)


class Accomplice(AuditRunner):
    """Finds the lying node's steps true with the sketch that the node has sealed, and judges others rightly.

    In a dispute it goes on lying, or says what is true: it cannot know the witness of the false work.
    """

    conspiracy: Conspiracy

    async def _find(self, audit: Audit) -> SignedVerdict:
        is_over = audit.ruling is AuditStatus.DISPUTED and int(audit.round) % 2
        if audit.node != self.conspiracy.node or is_over:
            return await super()._find(audit)
        path = self.conspiracy.folder / "steps" / f"{int(audit.round):08d}.cbor"
        sketch = Digest(random.randbytes(32))
        if path.exists():
            sketch = decode(StepRecord, path.read_bytes(), INT_MAX).sketches[audit.segment]
        found = Finding(Outcome.MATCH, sketch, 0, 0, witness=Digest(random.randbytes(32)))
        return self._sign(audit, Examined(finding=found, exec_class=audit.commit.exec_class), NO_DIGEST, 0)


KINDS: dict[str, type[AuditRunner]] = {
    **DEVNET_KINDS,
    "withhold-all": WithholdAll,
    "cannot-tell": CannotTell,
    "opposite": Opposite,
    "accomplice": Accomplice,
}


def runner_of(behaviour: str, conspiracy: Conspiracy) -> type[AuditRunner]:
    """The audit runner of a verifier's behaviour; the honest one where it lies elsewhere or not at all."""
    kind = KINDS.get(behaviour, AuditRunner)
    if kind is not Accomplice:
        return kind
    return type("Accomplice", (Accomplice,), {"conspiracy": conspiracy})
