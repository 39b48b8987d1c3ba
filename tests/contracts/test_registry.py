"""The registry: what a keeper fixed about its log can be repeated, outgrown, and never changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.chain import ALREADY_DONE, ChainRefused
from ledger.events import LogAnchored
from ledger.store import BookStore
from tests.contracts.chain_world import World

ROOT, OTHER = b"\1" * 32, b"\2" * 32


def test_a_keeper_anchors_its_log_as_it_grows_and_repeating_is_no_error(world: World):
    keeper = world.as_(world.bystander)
    assert world.bank.log_anchor(keeper.address, world.run_id) is None

    keeper.anchor_log(world.run_id, 5, ROOT)
    assert keeper.anchor_log(world.run_id, 5, ROOT) == ALREADY_DONE
    assert world.bank.log_anchor(keeper.address, world.run_id) == (5, ROOT)
    keeper.anchor_log(world.run_id, 6, OTHER)

    assert world.bank.log_anchor(keeper.address, world.run_id) == (6, OTHER)
    told = [e for e in world.bank.events(world.deployment.block) if isinstance(e, LogAnchored)]
    assert [(e.keeper, e.run_id, e.size, e.root) for e in told] == [
        (keeper.address, world.run_id, 5, ROOT),
        (keeper.address, world.run_id, 6, OTHER),
    ]


@pytest.mark.parametrize(("size", "root"), [(5, OTHER), (4, ROOT), (0, ROOT)])
def test_an_anchor_is_neither_changed_nor_taken_back(world: World, size: int, root: bytes):
    keeper = world.as_(world.bystander)
    keeper.anchor_log(world.run_id, 5, ROOT)

    with pytest.raises(ChainRefused, match="LogNotGrown"):
        keeper.anchor_log(world.run_id, size, root)

    assert world.bank.log_anchor(keeper.address, world.run_id) == (5, ROOT)


def test_every_keeper_and_run_has_an_anchor_of_its_own(world: World):
    world.as_(world.bystander).anchor_log(world.run_id, 5, ROOT)
    world.as_(world.buyer).anchor_log(world.run_id, 3, OTHER)
    world.as_(world.bystander).anchor_log(b"\7" * 32, 1, OTHER)

    assert world.bank.log_anchor(world.bystander.account, world.run_id) == (5, ROOT)
    assert world.bank.log_anchor(world.buyer.account, world.run_id) == (3, OTHER)


def test_an_anchor_is_no_entry_in_the_books(world: World, tmp_path: Path):
    world.as_(world.bystander).anchor_log(world.run_id, 5, ROOT)
    books = BookStore(tmp_path / "ledger.db", world.run_id, first_block=world.deployment.block)
    first, head = world.deployment.block, world.bank.block_number()

    books.take_blocks(world.bank.events(first, head), first, head, {})

    assert [type(e) for e in books.events(LogAnchored)] == [LogAnchored]
    assert [account.kind.value for account in books.balances()] == ["asset:escrow", "budget"]
    books.close()
