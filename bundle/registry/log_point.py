"""Log point: reads a cosigned checkpoint of the ledger from a bundle.

Room: bundle (pure).
"""

from __future__ import annotations

from assay.bundle.finished import LogPoint
from assay.ledger.log.cosignature import cosigners
from assay.ledger.log.note import BadNoteError, origin_of, read_checkpoint
from assay.protocol.agreement.quorum import quorum
from assay.protocol.types import Digest, PeerId


def read_point(note: str, run_id: Digest, ledger_service: PeerId, verifiers: tuple[PeerId, ...]) -> LogPoint:
    """A checkpoint that a quorum cosigned.

    Raises:
        BadNoteError: not the ledger service's checkpoint of this run, or fewer than a quorum cosigned it.
    """
    checkpoint = read_checkpoint(note, origin_of(run_id), ledger_service)
    signers = cosigners(note, checkpoint, verifiers)
    if len(signers) < quorum(len(verifiers)):
        raise BadNoteError(f"{len(signers)} cosignatures, {quorum(len(verifiers))} expected")
    return LogPoint(
        note=note,
        ledger_service=ledger_service,
        size=checkpoint.size,
        root=checkpoint.root,
        cosigners=tuple(sorted(signers)),
    )
