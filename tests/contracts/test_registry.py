"""The registry: records that are superseded and never erased, anchors that grow and never change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from assay.chain.client import ALREADY_DONE, ChainRefused
from assay.chain.events import LogAnchored, ModelSuperseded
from assay.chain.statements import ModelRecord, Supersession, certificate
from assay.ledger.journal.store import BookStore
from tests.contracts.chain_world import MODEL, Person, World, view
from tests.contracts.test_digests import a_rotation, staked

ROOT, OTHER = b"\1" * 32, b"\2" * 32


def test_a_keeper_anchors_its_log_as_it_grows_and_repeating_is_no_error(world: World):
    ledger_service = world.as_(world.bystander)
    assert world.bank.log_anchor(ledger_service.address, world.run_id) is None

    ledger_service.anchor_log(world.run_id, 5, ROOT)
    assert ledger_service.anchor_log(world.run_id, 5, ROOT) == ALREADY_DONE
    assert world.bank.log_anchor(ledger_service.address, world.run_id) == (5, ROOT)
    ledger_service.anchor_log(world.run_id, 6, OTHER)

    assert world.bank.log_anchor(ledger_service.address, world.run_id) == (6, OTHER)
    told = [e for e in world.bank.events(world.deployment.block) if isinstance(e, LogAnchored)]
    assert [(e.ledger_service, e.run_id, e.size, e.root) for e in told] == [
        (ledger_service.address, world.run_id, 5, ROOT),
        (ledger_service.address, world.run_id, 6, OTHER),
    ]


@pytest.mark.parametrize(("size", "root"), [(5, OTHER), (4, ROOT), (0, ROOT)])
def test_an_anchor_is_neither_changed_nor_taken_back(world: World, size: int, root: bytes):
    ledger_service = world.as_(world.bystander)
    ledger_service.anchor_log(world.run_id, 5, ROOT)

    with pytest.raises(ChainRefused, match="LogNotGrown"):
        ledger_service.anchor_log(world.run_id, size, root)

    assert world.bank.log_anchor(ledger_service.address, world.run_id) == (5, ROOT)


def test_every_keeper_and_run_has_an_anchor_of_its_own(world: World):
    world.as_(world.bystander).anchor_log(world.run_id, 5, ROOT)
    world.as_(world.buyer).anchor_log(world.run_id, 3, OTHER)
    world.as_(world.bystander).anchor_log(b"\7" * 32, 1, OTHER)

    assert world.bank.log_anchor(world.bystander.account, world.run_id) == (5, ROOT)
    assert world.bank.log_anchor(world.buyer.account, world.run_id) == (3, OTHER)


def test_an_anchor_is_no_entry_in_the_books(world: World, tmp_path: Path):
    world.as_(world.bystander).anchor_log(world.run_id, 5, ROOT)
    books = BookStore(tmp_path / "ledger.db", world.run_id, first_block=world.ready_block)
    first, head = world.ready_block, world.bank.block_number()

    books.take_blocks(world.bank.events(first, head), first, head, {})

    assert [type(e) for e in books.events(LogAnchored)] == [LogAnchored]
    assert [account.kind.value for account in books.balances()] == ["asset:escrow", "budget"]
    books.close()


WITHDRAWN, REASON = bytes(32), b"\4" * 32


def on_record(world: World, count: int) -> list[bytes]:
    """Records of one final result, told apart by their data."""
    world.settle()
    found = []
    for at in range(count):
        record = ModelRecord(
            deployment_id=world.deployment.deployment_id,
            run_id=world.run_id,
            model_hash=MODEL,
            data_inventory_hash=bytes([at]) * 32,
            config_hash=bytes(32),
            parent=bytes(32),
            last_result=world.bank.epoch_state(world.run_id, 0).digest,
        )
        found.append(world.bank.register_model(record, world.cert(record)))
    return found


def supersede(
    world: World, old: bytes, new: bytes, signatures: int = 3, by: Sequence[Person] | None = None
) -> None:
    """by: who signs, in place of the first verifiers."""
    said = Supersession(
        deployment_id=world.deployment.deployment_id, record_id=old, new_record_id=new, reason_hash=REASON
    )
    given = [world.signed(said, person.hot) for person in (by or world.verifiers)[:signatures]]
    world.bank.supersede_model(said, certificate(world.deployment.digest(said), given))


def test_a_record_gives_way_to_another_or_to_none_and_stays_readable(world: World):
    first, second, third = on_record(world, 3)
    assert world.bank.successor_of(first) is None

    supersede(world, first, second)
    supersede(world, first, second)  # told again: nothing more
    supersede(world, third, WITHDRAWN)

    assert world.bank.successor_of(first) == second
    assert world.bank.successor_of(third) == WITHDRAWN
    assert world.bank.successor_of(second) is None
    assert view(world, "ModelRegistry", "entries", first)[1] == MODEL
    told = [e for e in world.bank.events(world.deployment.block) if isinstance(e, ModelSuperseded)]
    assert [(e.record_id, e.new_record_id, e.reason_hash) for e in told] == [
        (first, second, REASON),
        (third, WITHDRAWN, REASON),
    ]


def test_succession_is_said_once_by_a_quorum_and_never_in_a_circle(world: World):
    first, second, third = on_record(world, 3)
    with pytest.raises(ChainRefused, match="QuorumNotReached"):
        supersede(world, first, second, signatures=2)
    for wrong in (b"\7" * 32, first):
        with pytest.raises(ChainRefused, match=r"UnknownRecord|NotStanding"):
            supersede(world, first, wrong)
    with pytest.raises(ChainRefused, match="UnknownRecord"):
        supersede(world, b"\7" * 32, first)
    supersede(world, first, second)

    for old, new in ((first, third), (first, WITHDRAWN), (second, first)):
        with pytest.raises(ChainRefused, match="NotStanding"):
            supersede(world, old, new)

    supersede(world, second, third)
    assert world.bank.successor_of(second) == third


def test_after_a_hand_over_the_present_set_says_what_succeeds_and_the_runs_own_set_no_more(world: World):
    first, second = on_record(world, 2)
    newcomers = staked(world, 4)
    members, rotation = a_rotation(world, newcomers)
    world.bank.rotate_verifiers(members, 0, world.cert(rotation))

    with pytest.raises(ChainRefused, match="NotAMember"):
        supersede(world, first, second)
    assert world.bank.successor_of(first) is None
    supersede(world, first, second, by=newcomers)

    assert world.bank.successor_of(first) == second
