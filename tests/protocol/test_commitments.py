"""Commitments: only the committed sketch, of the committed step and segment, opens a node's commitment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.commitments import check_sketch_opening, commitment_of, open_commitment
from assay.protocol.errors import MalformedMessage
from assay.protocol.types import NO_DIGEST, Digest, RoundId
from tests.protocol.chains import NODE_SALT, NODES, a_commit

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


def test_a_step_without_segments_has_one_sketch():
    commit = replace(COMMIT, inner=(), commitment=commitment_of(NODE_SALT, SKETCHES[:1]))

    check_sketch_opening(open_commitment(commit, NODE_SALT, SKETCHES[:1], 0), commit, 0)
    with pytest.raises(MalformedMessage):
        check_sketch_opening(open_commitment(COMMIT, NODE_SALT, SKETCHES, 0), commit, 0)
