"""A proof leads from one leaf, at its place, to the root; nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.encoding import merkle
from assay.protocol.errors import MalformedMessage
from assay.protocol.types import Digest

DOMAIN = bytes(range(32))
SIZES = range(1, 71)
VECTORS = Path(__file__).parents[2] / "vectors" / "merkle.json"


def leaves_of(count: int) -> list[Digest]:
    return [merkle.leaf_hash(DOMAIN, i, b"block %d" % i) for i in range(count)]


def recursive_root(leaves: list[Digest]) -> bytes:
    """RFC 6962, 2.1, as written: split at the largest power of two below n."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return blake3(b"\x01" + recursive_root(leaves[:split]) + recursive_root(leaves[split:])).digest()


@pytest.mark.parametrize("count", SIZES)
def test_the_tree_has_the_shape_of_rfc_6962(count):
    leaves = leaves_of(count)

    assert merkle.root(leaves) == recursive_root(leaves)


@pytest.mark.slow
@pytest.mark.parametrize("count", SIZES)
def test_every_leaf_is_proven_and_only_at_its_own_place(count):
    leaves = leaves_of(count)
    root = merkle.root(leaves)
    for index in range(count):
        path = merkle.proof(leaves, index)
        merkle.check(leaves[index], index, count, path, root)
        for elsewhere in range(count):
            if elsewhere != index:
                with pytest.raises(MalformedMessage):
                    merkle.check(leaves[index], elsewhere, count, path, root)


@pytest.mark.parametrize("count", SIZES)
def test_an_altered_leaf_path_or_root_is_refused(count):
    leaves = leaves_of(count)
    root = merkle.root(leaves)
    for index in {0, count // 2, count - 1}:
        path = merkle.proof(leaves, index)
        changed = [(*path[:i], Digest(bytes(32)), *path[i + 1 :]) for i in range(len(path))]
        longer, shorter = [(*path, leaves[0]), (leaves[0], *path)], [path[:-1], path[1:]] if path else []
        swapped = [tuple(reversed(path))] if len(path) > 1 else []
        for wrong in (*changed, *longer, *shorter, *swapped):
            with pytest.raises(MalformedMessage):
                merkle.check(leaves[index], index, count, wrong, root)
        with pytest.raises(MalformedMessage, match="is not under root"):
            merkle.check(Digest(bytes(32)), index, count, path, root)
        with pytest.raises(MalformedMessage, match="is not under root"):
            merkle.check(leaves[index], index, count, path, Digest(bytes(32)))


@pytest.mark.parametrize("count", [0, *SIZES])
def test_a_kept_tree_proves_what_its_leaves_prove(count):
    leaves = leaves_of(count)
    made = merkle.tree(leaves)

    kept = merkle.Tree(count, made.hashes)

    assert kept.root == merkle.root(leaves)
    assert [kept.leaf(index) for index in range(count)] == leaves
    for index in range(count):
        merkle.check(leaves[index], index, count, kept.proof(index), kept.root)


@pytest.mark.parametrize("length", [0, 32, 6 * 32, 6 * 32 - 1, 8 * 32])
def test_a_kept_tree_of_another_length_is_refused(length):
    with pytest.raises(ValueError, match="tree over 4 leaves"):
        merkle.Tree(4, bytes(length))


def test_an_inner_node_cannot_stand_for_a_leaf():
    leaves = leaves_of(4)
    inner = blake3(b"\x01" + leaves[0] + leaves[1]).digest()
    other = blake3(b"\x01" + leaves[2] + leaves[3]).digest()

    assert merkle.root([Digest(inner), Digest(other)]) == merkle.root(leaves)  # hence the leaf count
    with pytest.raises(MalformedMessage):
        merkle.check(Digest(inner), 0, 4, (Digest(other),), merkle.root(leaves))


@settings(max_examples=50)
@given(st.integers(0, 1000), st.integers(0, 1000), st.binary(max_size=8), st.binary(max_size=8))
def test_a_leaf_binds_its_place_and_its_bytes(here, there, data, other):
    same = merkle.leaf_hash(DOMAIN, here, data) == merkle.leaf_hash(DOMAIN, there, other)

    assert same == ((here, data) == (there, other))


def test_a_leaf_binds_its_domain():
    assert merkle.leaf_hash(DOMAIN, 0, b"x") != merkle.leaf_hash(bytes(32), 0, b"x")


@pytest.mark.parametrize(("index", "count"), [(-1, 4), (4, 4), (0, 0), (0, (1 << 26) + 1)])
def test_a_leaf_that_cannot_exist_is_refused(index, count):
    with pytest.raises(MalformedMessage, match="does not exist"):
        merkle.check(leaves_of(1)[0], index, count, (), leaves_of(1)[0])


def test_a_tree_of_the_most_leaves_has_a_leaf():
    with pytest.raises(MalformedMessage, match="too short"):
        merkle.check(leaves_of(1)[0], 0, 1 << 26, (), leaves_of(1)[0])


def test_the_empty_tree_has_a_root_that_no_leaf_has():
    assert merkle.root([]) == blake3(b"\x02").digest()


def test_roots_are_the_frozen_ones():
    frozen = json.loads(VECTORS.read_text())

    assert frozen == {str(count): merkle.root(leaves_of(count)).hex() for count in (0, 1, 2, 3, 7, 64, 70)}
