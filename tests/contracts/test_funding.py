"""What a verifier reads in a real escrow, from before it is opened until it has closed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from assay.chain.commit_statement import evm_address
from assay.ledger.settlement.funding import Reading, reading_of
from assay.ledger.settlement.results import run_id_of
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import Closing
from assay.protocol.params import RunSpec
from assay.protocol.types import Address, Digest
from assay.testing.signed import a_spec
from tests.contracts.chain_world import World

DAY_S = 86_400
DEADLINE_S = 30 * DAY_S


def the_spec(world: World) -> RunSpec:
    """A run of three epochs whose buyer and deployment are the world's."""
    buyer = Address(bytes.fromhex(world.buyer.account[2:]))
    deployment_id = Digest(world.deployment.deployment_id)
    made = replace(a_spec(rounds=8), buyer=buyer, deployment_id=deployment_id)
    accounts = [Address(bytes.fromhex(p.account[2:])) for p in world.verifiers]
    verifiers = tuple(
        replace(one, account=account) for one, account in zip(made.verifiers, accounts, strict=True)
    )
    return replace(made, verifiers=verifiers)


def reading(world: World, spec: RunSpec) -> Reading:
    """Of the finalised block, once all that has happened is in it."""
    world.rpc("anvil_mine", "0x4")
    final = world.bank.final_escrow(run_id_of(spec))
    assert final.block <= world.bank.block_number()
    posted = world.bank.posted_epochs(run_id_of(spec))
    return reading_of(spec, final, world.bank.close_delay(), posted)


def opened(world: World, spec: RunSpec, budget: int, **changes: Any) -> bytes:
    run = {
        "budget": budget, "epoch_cap": spec.epoch_price(0), "epochs": spec.epochs,
        "deadline": world.bank.timestamp() + DEADLINE_S, **changes,
    }  # fmt: skip
    return world.as_(world.buyer).open_run(digest(spec), **run)


def test_a_run_is_funded_by_what_is_paid_in_and_closing_once_its_buyer_asks(world: World) -> None:
    spec = the_spec(world)
    first, last = spec.epoch_price(0), spec.epoch_price(2)
    assert evm_address(spec.buyer) == world.buyer.account
    assert reading(world, spec) == Reading(epochs=0, closing=Closing.NO)

    run_id = opened(world, spec, first)
    assert run_id == run_id_of(spec)
    assert reading(world, spec) == Reading(epochs=1, closing=Closing.NO)

    world.as_(world.bystander).top_up(run_id, first + last - 1)
    assert reading(world, spec).epochs == 2
    world.as_(world.bystander).top_up(run_id, 1)
    assert reading(world, spec) == Reading(epochs=3, closing=Closing.NO)

    world.as_(world.buyer).request_close(run_id)
    assert reading(world, spec) == Reading(epochs=3, closing=Closing.BY_BUYER)


def test_a_run_is_closing_when_only_the_close_delay_is_left_to_its_deadline(world: World) -> None:
    spec = the_spec(world)
    opened(world, spec, 3 * spec.epoch_price(0))
    world.advance(DEADLINE_S - world.params.close_delay_s - 60)
    assert reading(world, spec).closing is Closing.NO
    world.advance(60)
    assert reading(world, spec) == Reading(epochs=3, closing=Closing.BY_DEADLINE)


def test_what_is_not_final_yet_is_not_read(world: World) -> None:
    spec = the_spec(world)
    opened(world, spec, 3 * spec.epoch_price(0))
    final = world.bank.final_escrow(run_id_of(spec))
    assert final.escrow is None and final.block < world.bank.block_number()


def test_a_cap_below_an_epochs_price_funds_nothing(world: World) -> None:
    spec = the_spec(world)
    opened(world, spec, 3 * spec.epoch_price(0), epoch_cap=spec.epoch_price(0) - 1)
    assert reading(world, spec).epochs == 0
