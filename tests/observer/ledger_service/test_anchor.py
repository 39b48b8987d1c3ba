"""The anchor: what is on chain is in the books, or the keeper stops; on a real local chain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from assay.bundle.finished import Anchored
from assay.ledger.journal.log_store import read_root
from assay.ledger.journal.store import BookStore
from assay.ledger.log.signer import CheckpointSigner, LedgerRolledBack
from assay.observer.ledger_service.anchor import anchor_newest, compare_with_anchor
from assay.protocol.encoding.json_text import parse_json, read_plain
from assay.protocol.types import Digest
from tests.contracts.chain_world import World
from tests.ledger.test_books import an_entry

KEY = SigningKey(b"k" * 32)


class Rig:
    """A keeper's books and log, by the account of the world's bystander."""

    def __init__(self, folder: Path, on: World) -> None:
        self.folder, self.world = folder, on
        self.run_id = Digest(on.run_id)
        self.chain = on.as_(on.bystander)
        self.again("first")

    def again(self, name: str) -> None:
        self.books = BookStore(self.folder / f"{name}.db", self.run_id, now_ms=lambda: 1)
        self.log = CheckpointSigner(self.books, KEY, self.folder / name)

    def enter(self, *keys: str, is_signed: bool = True) -> None:
        self.books.add_entries([an_entry(1, -1, key=key) for key in keys])
        if is_signed:
            self.log.sign_last()

    def anchor(self) -> int:
        return anchor_newest(self.chain, self.log, self.run_id)

    def compare(self) -> int:
        return compare_with_anchor(self.chain, self.log, self.run_id)

    def on_chain(self) -> tuple[int, bytes] | None:
        return self.chain.log_anchor(self.chain.address, self.run_id)


@pytest.fixture
def rig(tmp_path: Path, world: World) -> Iterator[Rig]:
    made = Rig(tmp_path, world)
    yield made
    made.books.close()


def test_the_newest_checkpoint_is_anchored_once_and_only_what_is_signed(rig: Rig):
    assert (rig.anchor(), rig.compare(), rig.on_chain()) == (0, 0, None)
    rig.enter("a", "b")
    rig.enter("c", is_signed=False)
    before = rig.world.bank.block_number()

    assert [rig.anchor() for _ in range(3)] == [2, 2, 2]
    with rig.books.reading() as db:
        assert rig.on_chain() == (2, read_root(db, 2))
    assert rig.world.bank.block_number() == before + 1
    rig.log.sign_last()
    assert (rig.anchor(), rig.compare()) == (3, 3)


def test_books_put_back_behind_the_anchor_are_refused(rig: Rig):
    rig.enter("a", "b")
    rig.anchor()
    rig.books.close()
    rig.again("put back")
    rig.enter("a", is_signed=False)

    for attempt in (rig.compare, rig.anchor):
        with pytest.raises(
            LedgerRolledBack, match="the chain has a checkpoint of 2 entries: the books were rolled back"
        ):
            attempt()


def test_other_books_are_refused_however_long(rig: Rig):
    rig.enter("a", "b")
    rig.anchor()
    rig.books.close()
    rig.again("other")
    rig.enter("a", "x", "c", is_signed=False)

    with pytest.raises(LedgerRolledBack, match="the chain has a checkpoint of 2 entries with root"):
        rig.compare()


def test_a_chain_that_went_back_is_anchored_again(rig: Rig):
    rig.enter("a")
    rig.anchor()
    snapshot = rig.world.rpc("evm_snapshot")
    rig.enter("b")
    rig.anchor()
    assert rig.world.rpc("evm_revert", snapshot)

    assert rig.compare() == 1
    assert rig.anchor() == 2


def test_an_anchor_of_somebody_else_says_nothing_of_our_books(rig: Rig):
    rig.world.as_(rig.world.buyer).anchor_log(rig.run_id, 7, b"\7" * 32)
    rig.enter("a")

    assert rig.anchor() == 1


# ---- in the bundle

ANCHOR = Anchored(
    ledger_service="0x" + "1" * 40,
    size=3,
    root=b"r" * 32,
    block_number=9,
    block_hash=b"b" * 32,
    tx_hash=b"t" * 32,
)
TEXT = (
    '{"ledger_service": "0x' + "1" * 40 + '", "size": 3, "root": "' + "72" * 32 + '", "block_number": 9, '
    '"block_hash": "' + "62" * 32 + '", "tx_hash": "' + "74" * 32 + '"}'
)


def test_an_anchor_is_read_back_from_the_bundle():
    assert read_plain(Anchored, parse_json(TEXT)) == ANCHOR
    assert read_plain(Anchored, parse_json(TEXT)) != replace(ANCHOR, size=4)


@pytest.mark.parametrize(
    "altered",
    ["", "[]", "{}", TEXT.replace("9", '"9"'), TEXT.replace("72", "zz"), TEXT.replace("3", "true"),
     TEXT.replace("size", "sizes"), TEXT[:-1] + ', "more": 1}'],
)  # fmt: skip
def test_what_is_no_anchor_is_refused(altered: str):
    with pytest.raises(ValueError):
        read_plain(Anchored, parse_json(altered))
