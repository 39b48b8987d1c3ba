"""Inclusion lists: a bitmap names known nodes only, and what more than f lists name is required."""

from __future__ import annotations

import pytest

from assay.protocol.agreement.inclusion import compatible_lists, listed, nodes_bitmap, required
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import InclusionList
from assay.protocol.types import NO_DIGEST, PeerId, RoundId
from assay.testing.members import VERIFIERS

NINE = tuple(PeerId(bytes([n]) * 32) for n in range(9))


def a_list(verifier: int, *held: int) -> InclusionList:
    names = {NINE[n] for n in held}
    return InclusionList(
        run_id=NO_DIGEST,
        round=RoundId(0),
        parent=NO_DIGEST,
        verifier=VERIFIERS[verifier],
        nodes=nodes_bitmap(NINE, names),
    )


@pytest.mark.parametrize("held", [(), (0,), (7,), (8,), (0, 3, 8), tuple(range(9))])
def test_a_bitmap_names_what_was_held(held):
    names = frozenset(NINE[n] for n in held)
    assert listed(NINE, nodes_bitmap(NINE, names)) == names
    assert nodes_bitmap(NINE, names) == sum(1 << n for n in held).to_bytes(2, "little")


@pytest.mark.parametrize("bitmap", [b"", b"\1", b"\1\0\0", b"\0\2"])
def test_a_bitmap_of_another_length_or_of_a_node_that_is_none_is_refused(bitmap):
    with pytest.raises(MalformedMessage, match="is no bitmap of 9 nodes"):
        listed(NINE, bitmap)


def test_the_last_nodes_bit_of_a_full_byte_is_a_node():
    assert listed(NINE[:8], b"\x80") == {NINE[7]}


def test_a_commit_is_required_if_more_than_f_lists_name_it():
    lists = [a_list(0, 0, 1), a_list(1, 0), a_list(2, 2)]
    assert required(NINE, lists, 4) == {NINE[0]}  # f = 1: one list may lie
    assert required(NINE, lists, 3) == {NINE[0], NINE[1], NINE[2]}  # f = 0


def test_a_leader_leaves_out_the_lists_that_require_what_it_lacks_and_proposes_nothing_without_a_quorum():
    held = {NINE[0]}
    agreeing = [a_list(0, 0), a_list(1, 0)]
    assert compatible_lists(NINE, [*agreeing, a_list(2, 0)], held, 4) == (*agreeing, a_list(2, 0))
    one_more = compatible_lists(NINE, [a_list(3, 0, 1), *agreeing], held, 4)
    assert one_more == (*agreeing, a_list(3, 0, 1))  # one list requires nothing
    two_more = compatible_lists(NINE, [a_list(2, 0, 1), a_list(3, 0, 1), *agreeing], held, 4)
    assert two_more == (*agreeing, a_list(2, 0, 1))
    assert compatible_lists(NINE, agreeing, held, 4) == ()
