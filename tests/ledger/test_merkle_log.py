"""Merkle log: the roots and proofs of Certificate Transparency, and no proof of what is not so."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.ledger.merkle_log import (
    EMPTY_ROOT,
    Edge,
    ProofError,
    append,
    leaf_hash,
    node_hash,
    root_of,
    verify_consistency,
    verify_inclusion,
)
from tests.ledger.merkle_proofs import consistency_proof, inclusion_proof

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "ct_merkle.json").read_text())
CT_LEAVES = [leaf_hash(bytes.fromhex(data)) for data in VECTORS["leaf_inputs"]]
CT_ROOTS = {int(size): bytes.fromhex(root) for size, root in VECTORS["roots"].items()}
SIZE_MAX = 70
LEAVES = [leaf_hash(n.to_bytes(2, "big")) for n in range(SIZE_MAX)]


def mth(leaves: list[bytes]) -> bytes:
    """RFC 6962, 2.1, word for word; slow, and nothing like the code under test."""
    if len(leaves) <= 1:
        return leaves[0] if leaves else hashlib.sha256().digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return node_hash(mth(leaves[:k]), mth(leaves[k:]))


ROOTS = [mth(LEAVES[:size]) for size in range(SIZE_MAX + 1)]
sizes = st.integers(1, SIZE_MAX)


def flipped(value: bytes, bit: int) -> bytes:
    return (int.from_bytes(value, "big") ^ 1 << bit % 256).to_bytes(32, "big")


def altered(proof: tuple[bytes, ...], bit: int) -> list[tuple[bytes, ...]]:
    """Every proof that is one step away: a bit, a hash less, a hash more, two hashes swapped."""
    found = [(*proof, bytes(32)), (bytes(32), *proof), (*proof, *proof[-1:])] if proof else [(bytes(32),)]
    for at in range(len(proof)):
        found.append((*proof[:at], flipped(proof[at], bit), *proof[at + 1 :]))
        found.append((*proof[:at], *proof[at + 1 :]))
        if at:
            found.append((*proof[: at - 1], proof[at], proof[at - 1], *proof[at + 1 :]))
    return found


# ---- the standard


@pytest.mark.parametrize("size", range(9))
def test_the_roots_are_those_of_certificate_transparency(size: int):
    assert root_of(CT_LEAVES[:size]) == CT_ROOTS[size]


@pytest.mark.parametrize("case", VECTORS["inclusion"], ids=lambda case: f"{case['index']}-of-{case['size']}")
def test_the_inclusion_proofs_are_those_of_certificate_transparency(case: dict[str, Any]):
    made = inclusion_proof(CT_LEAVES[: case["size"]], case["index"])

    assert [one.hex() for one in made] == case["proof"]
    verify_inclusion(CT_LEAVES[case["index"]], case["index"], case["size"], made, CT_ROOTS[case["size"]])


@pytest.mark.parametrize("case", VECTORS["consistency"], ids=lambda case: f"{case['old']}-to-{case['new']}")
def test_the_consistency_proofs_are_those_of_certificate_transparency(case: dict[str, Any]):
    made = consistency_proof(CT_LEAVES[: case["new"]], case["old"])

    assert [one.hex() for one in made] == case["proof"]
    verify_consistency(case["old"], CT_ROOTS[case["old"]], case["new"], CT_ROOTS[case["new"]], made)


def test_a_leaf_is_never_a_node():
    assert leaf_hash(LEAVES[0] + LEAVES[1]) != node_hash(LEAVES[0], LEAVES[1])


# ---- growing


@given(sizes, st.integers(0, SIZE_MAX))
def test_portions_of_any_size_grow_the_same_log(size: int, cut: int):
    cut = min(cut, size)
    first = append(Edge(), LEAVES[:cut])
    whole = append(first, LEAVES[cut:size])

    assert (first.root, whole.root, whole.size) == (ROOTS[cut], ROOTS[size], size)
    assert len(whole.roots) == size.bit_count()


def test_an_empty_log_has_the_hash_of_nothing_as_root():
    assert Edge().root == EMPTY_ROOT == hashlib.sha256(b"").digest()


@pytest.mark.parametrize(
    ("size", "roots"),
    [(3, (bytes(32),)), (0, (bytes(32),)), (-1, ()), (1, (bytes(31),)), (2**63, (bytes(32),))],
)
def test_an_edge_that_does_not_fit_its_size_cannot_be_made(size: int, roots: tuple[bytes, ...]):
    with pytest.raises(ValueError):
        Edge(size, roots)


# ---- proofs


def test_every_leaf_of_every_size_is_shown_to_be_there():
    for size in range(1, SIZE_MAX + 1):
        for index in range(size):
            proof = inclusion_proof(LEAVES[:size], index)
            verify_inclusion(LEAVES[index], index, size, proof, ROOTS[size])
            assert len(proof) <= (size - 1).bit_length()


def test_every_size_is_shown_to_begin_with_every_smaller_one():
    for new in range(SIZE_MAX + 1):
        for old in range(new + 1):
            proof = consistency_proof(LEAVES[:new], old)
            verify_consistency(old, ROOTS[old], new, ROOTS[new], proof)
            assert len(proof) <= new.bit_length() + 1


@settings(max_examples=150, deadline=None)
@given(sizes, st.data(), st.integers(0, 255))
def test_no_altered_inclusion_proof_is_taken(size: int, data: st.DataObject, bit: int):
    index = data.draw(st.integers(0, size - 1))
    proof = inclusion_proof(LEAVES[:size], index)
    lies = [(LEAVES[index], index, one, ROOTS[size]) for one in altered(proof, bit)]
    lies += [(LEAVES[index], other, proof, ROOTS[size]) for other in range(-1, size + 1) if other != index]
    lies.append((flipped(LEAVES[index], bit), index, proof, ROOTS[size]))
    lies.append((LEAVES[index], index, proof, flipped(ROOTS[size], bit)))
    lies += [(LEAVES[index], index, proof, ROOTS[other]) for other in range(SIZE_MAX + 1) if other != size]

    for leaf, at, path, root in lies:
        with pytest.raises(ProofError):
            verify_inclusion(leaf, at, size, path, root)


@settings(max_examples=150, deadline=None)
@given(sizes, st.data(), st.integers(0, 255))
def test_no_altered_consistency_proof_is_taken(new: int, data: st.DataObject, bit: int):
    old = data.draw(st.integers(1, new))
    proof = consistency_proof(LEAVES[:new], old)
    lies = [(ROOTS[old], one, ROOTS[new]) for one in altered(proof, bit)]
    lies.append((flipped(ROOTS[old], bit), proof, ROOTS[new]))
    lies.append((ROOTS[old], proof, flipped(ROOTS[new], bit)))
    lies += [(ROOTS[other], proof, ROOTS[new]) for other in range(SIZE_MAX + 1) if other != old]
    lies += [(ROOTS[old], proof, ROOTS[other]) for other in range(SIZE_MAX + 1) if other != new]

    for old_root, path, new_root in lies:
        with pytest.raises(ProofError):
            verify_consistency(old, old_root, new, new_root, path)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, SIZE_MAX), st.data())
def test_a_log_that_rewrote_its_past_is_not_consistent_by_its_own_proof(new: int, data: st.DataObject):
    old = data.draw(st.integers(1, new - 1))
    changed = data.draw(st.integers(0, old - 1))
    leaves = [*LEAVES[:changed], leaf_hash(b"rewritten"), *LEAVES[changed + 1 : new]]

    with pytest.raises(ProofError):
        verify_consistency(old, ROOTS[old], new, root_of(leaves), consistency_proof(leaves, old))


def test_a_proof_for_a_smaller_log_says_nothing_about_a_larger_one():
    with pytest.raises(ProofError):
        verify_consistency(2, ROOTS[2], 8, ROOTS[4], consistency_proof(LEAVES[:4], 2))
    with pytest.raises(ProofError, match="too short"):
        verify_inclusion(LEAVES[0], 0, 8, inclusion_proof(LEAVES[:4], 0), ROOTS[4])


def test_what_is_not_in_the_log_has_no_proof():
    for index in (-1, 3):
        with pytest.raises(IndexError):
            inclusion_proof(LEAVES[:3], index)
    for old in (-1, 4):
        with pytest.raises(IndexError):
            consistency_proof(LEAVES[:3], old)


def test_a_log_does_not_shrink():
    with pytest.raises(ProofError, match="cannot grow"):
        verify_consistency(4, ROOTS[4], 3, ROOTS[3], ())
    with pytest.raises(ProofError):
        verify_consistency(0, ROOTS[1], 1, ROOTS[1], ())
    with pytest.raises(ProofError):
        verify_consistency(3, ROOTS[3], 5, ROOTS[5], ())
