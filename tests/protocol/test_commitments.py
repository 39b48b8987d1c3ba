"""Commitments: only the committed sketch, of the committed step and segment, opens a node's commitment."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from assay.protocol.auditing.commitments import (
    check_sketch_opening,
    commitment_of,
    known_answer_root,
    open_commitment,
    witness_pattern,
)
from assay.protocol.encoding import merkle
from assay.protocol.errors import MalformedMessage
from assay.protocol.types import NO_DIGEST, Digest, RoundId
from assay.testing.members import NODES
from assay.testing.messages import NODE_SALT, a_commit

SKETCHES = [Digest(bytes([n]) * 32) for n in range(1, 4)]
COMMIT = a_commit(5, NODES[0], inner=(NO_DIGEST,) * 3, commitment=commitment_of(NODE_SALT, SKETCHES))


@pytest.mark.parametrize("segment", range(3))
def test_a_commitment_opens_at_the_drawn_segment_and_at_no_other(segment):
    opening = open_commitment(COMMIT, NODE_SALT, SKETCHES, segment)

    for drawn in range(3):
        if drawn == segment:
            check_sketch_opening(opening, COMMIT, drawn)
        else:
            with pytest.raises(MalformedMessage):
                check_sketch_opening(opening, COMMIT, drawn)


@pytest.mark.parametrize(
    "lie", [{"run_id": Digest(b"r" * 32)}, {"round": RoundId(6)}, {"node": NODES[1]}], ids=str
)
def test_an_opening_of_another_run_round_or_node_is_refused(lie):
    opening = replace(open_commitment(COMMIT, NODE_SALT, SKETCHES, 0), **lie)

    with pytest.raises(MalformedMessage, match="another step"):
        check_sketch_opening(opening, COMMIT, 0)


def test_what_is_hashed_is_as_the_protocol_says():
    def sha(*parts: bytes) -> bytes:
        return hashlib.sha256(b"".join(parts)).digest()

    alarm, node, root = Digest(b"a" * 32), NODES[0], Digest(b"k" * 32)
    step = (258).to_bytes(8, "big") + node
    assert witness_pattern(alarm, RoundId(258), node) == sha(b"assay/witness/1", alarm, step)

    def leaf(context: bytes, index: int, body: bytes) -> Digest:
        return merkle.leaf_hash(sha(context), index, body)

    sketch_leaf, answer_leaf = b"assay/sketches/1", b"assay/canaries/1"
    leaves = [leaf(sketch_leaf, index, sketch) for index, sketch in enumerate(SKETCHES)]
    assert commitment_of(NODE_SALT, SKETCHES) == sha(b"assay/seal/2", NODE_SALT, merkle.root(leaves))
    assert known_answer_root([(root, RoundId(258), node)]) == leaf(answer_leaf, 0, root + step)


def test_a_step_without_segments_has_one_sketch():
    commit = replace(COMMIT, inner=(), commitment=commitment_of(NODE_SALT, SKETCHES[:1]))

    check_sketch_opening(open_commitment(commit, NODE_SALT, SKETCHES[:1], 0), commit, 0)
    with pytest.raises(MalformedMessage):
        check_sketch_opening(open_commitment(COMMIT, NODE_SALT, SKETCHES, 0), commit, 0)
