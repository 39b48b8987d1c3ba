"""The payout tree proves its own rows and nothing else. Agreement with the contract: tests/contracts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from assay.chain.proofs.payout_tree import AMOUNT_MAX, EMPTY_ROOT, Payout, leaf, payout_tree, root_of_proof
from assay.chain.statements import Address

RUN = b"run".ljust(32, b"\0")
accounts = st.binary(min_size=20, max_size=20).map(lambda raw: Address("0x" + raw.hex()))
payouts = st.builds(Payout, account=accounts, amount=st.integers(0, AMOUNT_MAX))
tables = st.lists(payouts, min_size=1, max_size=40)


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**64 - 1), st.integers(0, 2**32), payouts)
def test_a_leaf_is_the_hash_of_what_the_contract_encodes(run_id, epoch, index, row):
    types = ["bytes32", "uint64", "uint256", "address", "uint128"]
    expected = keccak(keccak(encode(types, [run_id, epoch, index, row.account, row.amount])))

    assert leaf(run_id, epoch, index, row.account, row.amount) == expected


@pytest.mark.parametrize(("run_id", "account"), [(RUN[1:], "0x" + "00" * 20), (RUN, "0x" + "00" * 19)])
def test_a_leaf_of_something_else_cannot_be_made(run_id, account):
    with pytest.raises(ValueError):
        leaf(run_id, 0, 0, account, 1)


@given(tables, st.data())
def test_every_row_has_a_proof_of_its_own(table, data):
    tree = payout_tree(RUN, 3, table)
    index = data.draw(st.integers(0, len(table) - 1))
    row = table[index]
    assert root_of_proof(leaf(RUN, 3, index, row.account, row.amount), tree.proof(index)) == tree.root
    assert tree.total == sum(one.amount for one in table)


@given(tables, st.data())
def test_a_proof_fits_no_other_claim(table, data):
    tree = payout_tree(RUN, 3, table)
    index = data.draw(st.integers(0, len(table) - 1))
    row, proof = table[index], tree.proof(index)
    forgeries = [
        leaf(RUN, 3, index, row.account, (row.amount + 1) % 2**128),
        leaf(RUN, 4, index, row.account, row.amount),
        leaf(RUN, 3, index + 1, row.account, row.amount),
        leaf(b"other".ljust(32, b"\0"), 3, index, row.account, row.amount),
        *(level[0] for level in tree.levels[1:] if len(level) > 1),  # an inner node is no leaf
    ]
    for forged in forgeries:
        assert root_of_proof(forged, proof) != tree.root


def test_an_odd_row_rises_unchanged_and_is_never_paired_with_itself():
    tree = payout_tree(RUN, 0, [Payout(account=Address("0x" + "11" * 20), amount=n) for n in range(5)])
    last = leaf(RUN, 0, 4, "0x" + "11" * 20, 4)
    assert [level[-1] for level in tree.levels[:3]] == [last] * 3
    assert tree.proof(4) == (tree.levels[2][0],)


@given(tables, st.data())
def test_every_row_is_part_of_the_root(table, data):
    index = data.draw(st.integers(0, len(table) - 1))
    changed = list(table)
    changed[index] = replace(table[index], amount=(table[index].amount + 1) % 2**128)
    assert payout_tree(RUN, 0, table).root != payout_tree(RUN, 0, changed).root


def test_an_empty_table_pays_nobody():
    tree = payout_tree(RUN, 0, [])
    assert (tree.root, tree.total) == (EMPTY_ROOT, 0)
    with pytest.raises(IndexError):
        tree.proof(0)


@pytest.mark.parametrize("amount", [-1, AMOUNT_MAX + 1])
def test_an_amount_the_contract_cannot_hold_is_refused(amount):
    with pytest.raises(ValueError):
        payout_tree(RUN, 0, [Payout(account=Address("0x" + "11" * 20), amount=amount)])


@pytest.mark.parametrize(("index", "amount"), [(1 << 256, 1), (0, 1 << 256), (-1, 1), (0, -1)])
def test_a_number_that_no_word_holds_is_an_error_in_words(index: int, amount: int) -> None:
    with pytest.raises(ValueError, match="does not fit into an unsigned EVM word"):
        leaf(b"r" * 32, 0, index, "0x" + "11" * 20, amount)
