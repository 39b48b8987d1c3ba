"""Openings: which opening of a drawn step the chain names, who keeps it, and what goes where room is short.

Room: participant (pure). Verdicts name what they judged by its digest. An opening stays with whoever judged
it and with the next ones of the audit's order, f + 1 in all: one of them is honest. The order is drawn by the
beacon, so nobody chooses what it keeps, and the load is even. `opening_keeper.py` does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.auditing.audits import Audit
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Commit
from assay.protocol.openings import InnerOpening, Opening
from assay.protocol.params import RunSpec
from assay.protocol.run_state import StepId
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId

KINDS: dict[bytes, type[Opening] | type[InnerOpening]] = {kind.TAG: kind for kind in (Opening, InnerOpening)}

KEPT = "opening/"  # and its digest: keys of the store's records of what is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOpening:
    """An opening of a drawn step. size: bytes."""

    TAG: ClassVar[bytes] = b"assay/kept-opening/1"
    round: RoundId
    node: PeerId
    opening: Digest
    size: int

    @property
    def step(self) -> StepId:
        """The step that it opens."""
        return self.round, self.node


def named_opening(audit: Audit) -> KeptOpening | None:
    """The opening that most of an audit's verifiers judged, of several the first; None if nobody judged one.

    What a commit binds has one encoding, so honest verifiers name the same.
    """
    judged = dict.fromkeys(
        (one.verifier, one.opening, one.opening_bytes) for one in audit.verdicts if one.opening != NO_DIGEST
    )
    votes = Counter((opening, size) for _, opening, size in judged)
    if not votes:
        return None
    (opening, size), _ = votes.most_common(1)[0]
    return KeptOpening(round=audit.round, node=audit.node, opening=opening, size=size)


def named_openings(audits: Iterable[Audit]) -> dict[Digest, KeptOpening]:
    """The openings of those of these audits that have ended, by digest."""
    found = (named_opening(audit) for audit in audits if audit.has_ended)
    return {one.opening: one for one in found if one is not None}


def keepers(spec: RunSpec, audit: Audit, opening: Digest) -> tuple[PeerId, ...]:
    """The verifiers that keep an opening: all that judged it, and f + 1 at least, by the audit's order."""
    judges = {verdict.verifier for verdict in audit.verdicts if verdict.opening == opening}
    first = [verifier for verifier in audit.order if verifier in judges]
    others = [verifier for verifier in audit.order if verifier not in judges]
    return tuple(first + others[: max(faults_tolerated(len(spec.verifiers)) + 1 - len(first), 0)])


def check_step(opened: Opening | InnerOpening, commit: Commit) -> None:
    """Do nothing if this says that it opens the step of this commit; whether it does, an audit checks.

    Raises:
        MalformedMessage: it is another step's.
    """
    opening = opened.opening if isinstance(opened, InnerOpening) else opened
    if (opening.run_id, opening.round, opening.node) != (commit.run_id, commit.round, commit.node):
        raise MalformedMessage(
            f"opening of round {opening.round} of node {opening.node.hex()[:8]}, "
            f"expected round {commit.round} of node {commit.node.hex()[:8]}"
        )


def too_many(kept: Collection[KeptOpening], bytes_max: int, needed: Collection[StepId]) -> list[KeptOpening]:
    """Those that are to go, the oldest first, until the rest takes at most this room.

    Args:
        kept: What is here.
        bytes_max: For all of them.
        needed: Steps whose audits go on: what they need stays, and takes room all the same.
    """
    left, going = sum(one.size for one in kept), list[KeptOpening]()
    for one in sorted(kept, key=lambda one: (one.round, one.node)):
        if left <= bytes_max:
            break
        if one.step not in needed:
            left -= one.size
            going.append(one)
    return going
