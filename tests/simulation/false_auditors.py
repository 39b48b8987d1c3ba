"""False auditors: verifiers that keep every rule of agreement, and lie in their verdicts.

Some recompute nothing, some recompute and say the opposite, one is the accomplice of the lying node: it knows
the node's sealed sketch, and calls its steps true. One invents sketches, and where it leads, the chain takes
no more of a dispute than its own verdict and one other: whoever is refuted by one sketch may be honest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from assay.devnet.faults.verifier import KINDS as DEVNET_KINDS
from assay.node.messages import StepRecord
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.encoding.codec import INT_MAX, decode
from assay.protocol.messages import Manifest, Outcome, SignedVerdict
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.verifier.audit.messages import Examined, Finding
from assay.verifier.round import leader
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


class Inventor(AuditRunner):
    """Finds every step true, each time with a sketch that nobody else has."""

    async def _find(self, audit: Audit) -> SignedVerdict:
        sketch, witness = (Digest(random.randbytes(32)) for _ in range(2))
        found = Finding(Outcome.MATCH, sketch, 0, 0, witness=witness)
        return self._sign(audit, Examined(finding=found, exec_class=audit.commit.exec_class), NO_DIGEST, 0)


@contextmanager
def few_verdicts(leads: Callable[[], PeerId]) -> Iterator[None]:
    """While this lasts, an inventor that leads proposes of each step its own verdict and one other.

    leads: the inventor whose process runs now; `NO_PEER` if it is anybody else's.
    """
    sound = leader.manifest_of

    def manifest_of(*given: Any, **named: Any) -> Manifest:
        manifest = sound(*given, **named)
        return replace(manifest, verdicts=tuple(_few(manifest.verdicts, leads())))

    with mock.patch.object(leader, "manifest_of", manifest_of):
        yield


def _few(verdicts: Sequence[SignedVerdict], inventor: PeerId) -> Iterator[SignedVerdict]:
    judged = {(one.verdict.round, one.verdict.node) for one in verdicts if one.verdict.verifier == inventor}
    has_other: set[tuple[int, PeerId]] = set()
    for signed in verdicts:
        step = signed.verdict.round, signed.verdict.node
        is_other = signed.verdict.verifier != inventor and step in judged
        if not (is_other and step in has_other):
            yield signed
        has_other |= {step} if is_other else set()


KINDS: dict[str, type[AuditRunner]] = {
    **DEVNET_KINDS,
    "withhold-all": WithholdAll,
    "cannot-tell": CannotTell,
    "opposite": Opposite,
    "accomplice": Accomplice,
    "inventor": Inventor,
}


def runner_of(behaviour: str, conspiracy: Conspiracy) -> type[AuditRunner]:
    """The audit runner of a verifier's behaviour; the honest one where it lies elsewhere or not at all."""
    kind = KINDS.get(behaviour, AuditRunner)
    if kind is not Accomplice:
        return kind
    return type("Accomplice", (Accomplice,), {"conspiracy": conspiracy})
