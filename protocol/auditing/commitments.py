"""Commitments: hash commitments to sketches, verdicts and known-answer tasks, and how each is opened.

Room: protocol (pure). Three commit-reveal schemes keep an audit honest. A node's commit binds sketches of its
work, which only recomputing the work yields. An auditor commits to its whole verdict, its own sketch
included, before the node opens its sketch. A node commits to a list of its own steps that will be false on
purpose (known-answer tasks) before it takes the first of them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from assay.protocol.encoding import merkle
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Commit, KnownAnswer, SketchOpening
from assay.protocol.types import Digest, PeerId, RoundId

_SKETCHES = hashlib.sha256(b"assay/sketches/1").digest()
_KNOWN_ANSWERS = hashlib.sha256(b"assay/canaries/1").digest()


def derived_salt(secret: bytes, purpose: bytes, *parts: bytes) -> Digest:
    """A commitment's salt: unknown without `secret`, and the same again after a restart from a backup.

    A random salt would make the second commit for a repeated step another commit, which is equivocation.

    Args:
        secret: 32 bytes: a peer's secret key, or a salt derived from it.
        purpose: What is salted; part of the domain separation.
        parts: What identifies the commitment, each of a fixed length.
    """
    return Digest(hmac.digest(secret, b"assay/salt/1/" + purpose + b"|" + b"".join(parts), "sha256"))


def sketch_digest(sketch: bytes) -> Digest:
    """SHA-256 of a sketch, as verdicts and commitments contain it."""
    return Digest(hashlib.sha256(sketch).digest())


def commitment_of(salt: Digest, sketches: Sequence[Digest]) -> Digest:
    """Commitment to the sketch digests of a step's segments, in order; to one digest if the rule has none."""
    return Digest(hashlib.sha256(b"assay/seal/2" + salt + merkle.root(_leaves(sketches))).digest())


def open_commitment(commit: Commit, salt: Digest, sketches: Sequence[Digest], segment: int) -> SketchOpening:
    """The node's opening of `commit.commitment` at the drawn segment."""
    return SketchOpening(
        run_id=commit.run_id,
        round=commit.round,
        node=commit.node,
        salt=salt,
        sketch=sketches[segment],
        path=merkle.proof(_leaves(sketches), segment),
    )


def check_sketch_opening(sketch_openings: SketchOpening, commit: Commit, segment: int) -> None:
    """Do nothing if this opens the commitment of `commit` at the drawn segment.

    Raises:
        MalformedMessage: it is for another step, or does not lead to the commitment.
    """
    if (sketch_openings.run_id, sketch_openings.round, sketch_openings.node) != (
        commit.run_id,
        commit.round,
        commit.node,
    ):
        raise MalformedMessage("sketch opening: of another step")
    count = max(len(commit.inner), 1)
    leaf = merkle.leaf_hash(_SKETCHES, segment, sketch_openings.sketch)
    root = merkle.root_of_path(leaf, segment, count, sketch_openings.path)
    if hashlib.sha256(b"assay/seal/2" + sketch_openings.salt + root).digest() != commit.commitment:
        raise MalformedMessage("sketch opening: salt and sketch do not open the commitment")


def witness_pattern(alarm: Digest, round_id: RoundId, node: PeerId) -> Digest:
    """Seed of a committee's sketches: unknown before the dispute, so earlier work cannot supply them.

    Args:
        alarm: Digest of the manifest that opened the dispute.
        round_id, node: The step.
    """
    step = round_id.to_bytes(8, "big") + node
    return Digest(hashlib.sha256(b"assay/witness/1" + alarm + step).digest())


def known_answer_root(faults: Sequence[tuple[Digest, RoundId, PeerId]]) -> Digest:
    """`Attendance.tasks`: Merkle root of a list of (salt, round, node)."""
    return merkle.root(_known_answer_leaves(faults))


def known_answer_proofs(
    run_id: Digest, faults: Sequence[tuple[Digest, RoundId, PeerId]]
) -> list[KnownAnswer]:
    """For each entry of the list the proof that it is a known-answer task."""
    tree = merkle.tree(_known_answer_leaves(faults))
    return [
        KnownAnswer(run_id=run_id, round=at, node=node, index=index, salt=salt, path=tree.proof(index))
        for index, (salt, at, node) in enumerate(faults)
    ]


def shown_root(shown: KnownAnswer, count: int) -> Digest:
    """The root of the list of `count` known-answer tasks that this step is on.

    Raises:
        MalformedMessage: its index or path is of no such list.
    """
    leaf = _known_answer_leaf(shown.index, shown.salt, shown.round, shown.node)
    return merkle.root_of_path(leaf, shown.index, count, shown.path)


def _leaves(sketches: Sequence[Digest]) -> list[Digest]:
    return [merkle.leaf_hash(_SKETCHES, i, sketch) for i, sketch in enumerate(sketches)]


def _known_answer_leaves(faults: Sequence[tuple[Digest, RoundId, PeerId]]) -> list[Digest]:
    return [_known_answer_leaf(index, *fault) for index, fault in enumerate(faults)]


def _known_answer_leaf(index: int, salt: Digest, round_id: RoundId, node: PeerId) -> Digest:
    return merkle.leaf_hash(_KNOWN_ANSWERS, index, salt + round_id.to_bytes(8, "big") + node)
