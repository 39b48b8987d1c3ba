"""What Python signs is what the contracts judge: every digest, and a rotation and a record end to end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from assay.chain.client import UNIT, ChainRefused
from assay.chain.statements import (
    OPERATOR,
    VERIFIER,
    Delegation,
    Discharge,
    ModelRecord,
    PeerBinding,
    Rotation,
    Supersession,
    Veto,
    term_of,
    values,
)
from tests.contracts.chain_world import MODEL, Person, World, a_person, view

pytestmark = pytest.mark.slow


def test_every_digest_equals_the_contracts(world: World):
    ours, there = world.deployment.digest, world.deployment.deployment_id
    a, b, c = (keccak(bytes([i])) for i in (1, 2, 3))
    who, hot = world.buyer.account, world.buyer.hot_key
    result = world.a_result(world.a_table())
    slash_order = world.a_ruling(world.operators[0])
    said = world.said()
    record = ModelRecord(
        deployment_id=there,
        run_id=a,
        model_hash=b,
        data_inventory_hash=c,
        config_hash=a,
        parent=b,
        last_result=c,
    )
    binding = PeerBinding(deployment_id=there, account=who, peer_key=a, hot_key=hot, expiry=5)
    asked: list[tuple[Any, str, tuple[object, ...]]] = [
        (result, "resultDigest", (values(result),)),
        (slash_order, "slashOrderDigest", (values(slash_order),)),
        (said, "statementDigest", (values(said),)),
        (record, "recordDigest", (values(record),)),
        (binding, "peerBindingDigest", (values(binding),)),
        (
            Supersession(deployment_id=there, record_id=a, new_record_id=b, reason_hash=c),
            "supersessionDigest",
            (a, b, c),
        ),
        (Veto(deployment_id=there, case_id=a, reason_hash=b), "vetoDigest", (a, b)),
        (Discharge(deployment_id=there, run_id=a, account=who), "dischargeDigest", (a, who)),
        (
            Delegation(deployment_id=there, account=who, hot_key=hot, expiry=9),
            "delegationDigest",
            (who, hot, 9),
        ),
        (
            Rotation(deployment_id=there, from_version=1, set_hash=a, from_epoch=2),
            "rotationDigest",
            (1, a, 2),
        ),
    ]
    for statement, function, arguments in asked:
        assert ours(statement) == view(world, statement.CONTRACT, function, *arguments), function


def a_rotation(world: World, newcomers: list[Person]) -> tuple[list[str], Rotation]:
    members = sorted((str(p.account) for p in newcomers), key=lambda account: int(account, 16))
    rotation = Rotation(
        deployment_id=world.deployment.deployment_id,
        from_version=world.bank.set_version(),
        set_hash=keccak(encode(["address[]"], [members])),
        from_epoch=0,
    )
    return members, rotation


def staked(world: World, count: int, amount: int = 100 * UNIT) -> list[Person]:
    people = [a_person() for _ in range(count)]
    world.bank.fund_many([p.account for p in people], token_amount=amount, amount_wei=10**18)
    for person in people:
        world.join(person, VERIFIER, amount)
        world.lock(person, amount, VERIFIER, term_of(2))
    return people


def test_the_verifiers_hand_over_by_their_own_quorum_and_a_run_keeps_its_judges(world: World):
    run_id = world.run_id
    members, rotation = a_rotation(world, staked(world, 4))
    with pytest.raises(ChainRefused, match="QuorumNotReached"):
        world.bank.rotate_verifiers(members, 0, world.cert(rotation, 2))
    shuffled = list(reversed(members))
    other = replace(rotation, set_hash=keccak(encode(["address[]"], [shuffled])))
    with pytest.raises(ChainRefused, match="MembersNotAscending"):
        world.bank.rotate_verifiers(shuffled, 0, world.cert(other))

    world.bank.rotate_verifiers(members, 0, world.cert(rotation))

    assert world.bank.set_version() == 2
    assert world.bank.verifier_set() == tuple(members)
    with pytest.raises(ChainRefused):  # a spent certificate rotates nothing again
        world.bank.rotate_verifiers(members, 0, world.cert(rotation))
    result = world.a_result(world.a_table())
    assert result.run_id == run_id
    world.bank.propose(result, world.cert(result))  # the run's own set, number 1


def test_verifiers_who_left_judge_no_new_run(world: World):
    """Their stake may be gone and their keys sold; a run of theirs could slash anybody for a reward."""
    members, rotation = a_rotation(world, staked(world, 1))
    world.bank.rotate_verifiers(members, 0, world.cert(rotation))
    buyer, deadline = world.as_(world.buyer), world.bank.timestamp() + 30 * 86_400

    with pytest.raises(ChainRefused, match="BadRun"):
        buyer.open_run(bytes(32), budget=UNIT, epoch_cap=UNIT, epochs=1, deadline=deadline, set_version=1)

    buyer.open_run(bytes(32), budget=UNIT, epoch_cap=UNIT, epochs=1, deadline=deadline, set_version=2)


def test_a_new_verifier_has_stake_and_a_hot_key_that_can_be_held_to_its_word(world: World):
    stranger, pauper = a_person(), a_person()
    world.bank.fund_many([stranger.account, pauper.account], token_amount=200 * UNIT, amount_wei=10**18)
    world.as_(stranger).stake(VERIFIER, 100 * UNIT)  # its hot key was never delegated
    world.join(pauper, OPERATOR, 100 * UNIT)  # stake, but in the other role
    for newcomer in (stranger, pauper):
        members, rotation = a_rotation(world, [newcomer])
        with pytest.raises(ChainRefused, match="NotStaked"):
            world.bank.rotate_verifiers(members, 0, world.cert(rotation))


def test_a_model_goes_on_record_only_with_its_final_result(world: World):
    result = world.a_result(world.a_table())
    record = ModelRecord(
        deployment_id=world.deployment.deployment_id,
        run_id=world.run_id,
        model_hash=MODEL,
        data_inventory_hash=bytes(32),
        config_hash=bytes(32),
        parent=bytes(32),
        last_result=world.deployment.digest(result),
    )
    with pytest.raises(ChainRefused, match="NotAFinalResult"):
        world.bank.register_model(record, world.cert(record))
    world.settle()
    for wrong in (replace(record, model_hash=b"\1" * 32), replace(record, last_result=b"\1" * 32)):
        with pytest.raises(ChainRefused, match="NotAFinalResult"):
            world.bank.register_model(wrong, world.cert(wrong))
    orphan = replace(record, parent=b"\1" * 32)
    with pytest.raises(ChainRefused, match="UnknownParent"):
        world.bank.register_model(orphan, world.cert(orphan))

    record_id = world.bank.register_model(record, world.cert(record))

    assert (
        world.bank.register_model(record, world.cert(record)) == record_id == world.deployment.digest(record)
    )
    child = replace(record, parent=record_id)
    world.bank.register_model(child, world.cert(child))
