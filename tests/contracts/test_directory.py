"""The directory: everybody announces for itself, and the last announcement is found in one block's logs."""

from __future__ import annotations

import pytest

from assay.chain.client import ALREADY_DONE, UNIT, ChainRefused
from assay.chain.events import LotLocked, RecordAnnounced, RunAnnounced
from assay.chain.reader import NotShown
from assay.chain.statements import OPERATOR
from assay.participant.directory.find import RECORD_BYTES_MAX, RUN_BYTES_MAX
from assay.protocol.errors import Unavailable
from tests.contracts.chain_world import World, view

PEER, OTHER = b"\1" * 32, b"\2" * 32


def test_the_bounds_are_the_contracts(world: World):
    assert view(world, "Directory", "RECORD_BYTES_MAX") == RECORD_BYTES_MAX
    assert view(world, "Directory", "RUN_BYTES_MAX") == RUN_BYTES_MAX


def test_the_last_record_of_each_peer_is_found_and_repeating_sends_nothing(world: World):
    who, account = world.as_(world.bystander), world.bystander.account
    assert world.bank.record_blocks([(account, PEER)]) == [0]

    first = who.announce_record(PEER, b"first")
    assert who.announce_record(PEER, b"first") == ALREADY_DONE
    who.announce_record(OTHER, b"other")
    last = who.announce_record(PEER, b"last")

    blocks = world.bank.record_blocks(
        [(account, PEER), (account, OTHER), (account, b"\3" * 32), (world.buyer.account, PEER)]
    )
    assert first.block_number is not None and blocks[0] == last.block_number > first.block_number
    assert blocks[2:] == [0, 0]
    assert world.bank.announced_record(account, PEER, blocks[0]) == b"last"
    assert world.bank.announced_record(account, OTHER, blocks[1]) == b"other"
    who.announce_record(PEER, b"first")  # what was replaced may come again
    assert world.bank.announced_record(account, PEER, world.bank.block_number()) == b"first"


@pytest.mark.parametrize("answer", [[], [1], [1, 2, 3]])
def test_an_endpoint_that_answers_for_more_or_fewer_records_than_were_asked_for_is_no_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, answer: list[int]
):
    monkeypatch.setattr(world.bank, "_ask", lambda *_: answer)

    with pytest.raises(Unavailable, match="2 asked for"):
        world.bank.record_blocks([(world.buyer.account, PEER), (world.buyer.account, OTHER)])


def test_two_records_of_one_block_are_told_apart_and_the_later_one_counts(world: World):
    who = world.as_(world.bystander)
    world.rpc("evm_setAutomine", False)
    try:
        for peer, record in ((PEER, b"first"), (OTHER, b"other"), (PEER, b"last")):
            who._move("announce", "Directory", "announceRecord", peer, record, wait=False)
    finally:
        world.rpc("evm_mine")
        world.rpc("evm_setAutomine", True)

    account = world.bystander.account
    number, same = world.bank.record_blocks([(account, PEER), (account, OTHER)])
    assert number == same
    assert world.bank.announced_record(account, PEER, number) == b"last"
    assert world.bank.announced_record(account, OTHER, number) == b"other"


def test_a_block_without_the_announcement_is_no_answer_and_it_can_be_announced_again(world: World):
    who, account = world.as_(world.bystander), world.bystander.account
    who.announce_record(PEER, b"first")
    with pytest.raises(NotShown, match="shows no announcement"):
        world.bank.announced_record(account, PEER, world.bank.block_number() - 1)

    who.announced_record = lambda *_: (_ for _ in ()).throw(NotShown("pruned"))  # type: ignore[method-assign]
    assert who.announce_record(PEER, b"first") != ALREADY_DONE


def test_only_the_buyer_of_an_open_run_announces_it(world: World):
    buyer, stranger = world.as_(world.buyer), world.as_(world.bystander)
    with pytest.raises(ChainRefused, match="OnlyBuyer"):
        buyer.announce_run(b"\7" * 32, b"a file")
    with pytest.raises(ChainRefused, match="OnlyBuyer"):
        stranger.announce_run(world.run_id, b"a file")
    assert world.bank.announced_run(world.run_id) is None

    buyer.announce_run(world.run_id, b"a file")

    assert world.bank.announced_run(world.run_id) == b"a file"
    assert buyer.announce_run(world.run_id, b"a file") == ALREADY_DONE
    buyer.announce_run(world.run_id, b"a newer file")
    assert world.bank.announced_run(world.run_id) == b"a newer file"
    with pytest.raises(ChainRefused, match="98305 bytes to announce, expected 1 to 98304"):
        buyer.announce_run(world.run_id, bytes(RUN_BYTES_MAX + 1))


def test_the_newest_runs_come_first_and_a_bound_leaves_out_the_oldest(world: World, monkeypatch):
    monkeypatch.setattr("assay.chain.reader.PAGE", 2)
    ids = [world.a_run(b"run %d" % at, budget=UNIT) for at in range(5)]
    for run_id in ids:
        world.as_(world.buyer).announce_run(run_id, b"a file")

    assert world.bank.newest_runs(10) == (5, ids[::-1])
    assert world.bank.newest_runs(3) == (5, ids[:1:-1])


def test_stakers_are_listed_and_others_are_not(world: World):
    world.as_(world.bystander).announce_record(PEER, b"a record")
    assert world.bank.newest_stakers(10) == (0, [])
    assert world.bank.staker_block(world.bystander.account) == 0

    for person in world.verifiers[:2]:
        world.as_(person).announce_record(PEER, b"a record")

    total, found = world.bank.newest_stakers(10)
    assert (total, found) == (2, [person.account for person in world.verifiers[1::-1]])
    assert world.bank.announced_record(found[0], None, world.bank.staker_block(found[0])) == b"a record"


def test_the_books_read_no_announcement_and_no_lot(world: World):
    world.join(world.operators[0], OPERATOR, 500 * UNIT)
    world.as_(world.bystander).announce_record(PEER, b"a record")
    world.as_(world.buyer).announce_run(world.run_id, b"a file")

    events = world.bank.events(world.deployment.block)

    assert events
    assert not [e for e in events if isinstance(e, RecordAnnounced | RunAnnounced | LotLocked)]


def test_the_lots_of_some_runs_are_found_and_no_others(world: World):
    one, two, three = (world.a_run(name, budget=UNIT) for name in (b"one", b"two", b"three"))
    for person, run_id in zip(world.operators, (one, two, three), strict=True):
        world.as_(person).stake(OPERATOR, 100 * UNIT)
        world.lock(person, 100 * UNIT, commitment=run_id)
    first, last = world.deployment.block, world.bank.block_number()

    found = world.bank.lots_locked([one, two], first, last)

    assert [(lot.account, lot.role, lot.commitment, lot.amount) for lot in found] == [
        (person.account, OPERATOR, run_id, 100 * UNIT)
        for person, run_id in zip(world.operators, (one, two), strict=False)
    ]
    assert world.bank.lots_locked([one], last, last) == []
