"""Books check on a real chain: filled from its events, the books say what the contracts hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.chain.client import UNIT
from assay.chain.events import Claimed, Refunded, Slashed
from assay.chain.statements import OPERATOR, VERIFIER, Veto
from assay.ledger.journal.store import BookStore
from assay.ledger.queries.reconcile import Difference, reconcile, trial_balance
from assay.ledger.queries.report import money
from assay.ledger.settlement.payouts import Settlement
from assay.protocol.types import Address, Digest
from tests.chain.moves import transfer_token
from tests.contracts.chain_world import BUDGET, World
from tests.ledger.a_run import a_settlement

pytestmark = pytest.mark.slow


@pytest.fixture
def books(world: World, tmp_path: Path) -> Iterator[BookStore]:
    store = BookStore(tmp_path / "ledger.db", world.run_id, first_block=world.deployment.block)
    yield store
    store.close()


def a_table(world: World, epoch: int = 0) -> Settlement:
    """Operators and verifiers of this world, paid something."""
    paper = a_settlement(epoch)
    people = [*world.operators, *world.verifiers, world.bystander]
    rows = tuple(
        replace(row, account=Address(bytes.fromhex(person.account[2:])))
        for row, person in zip(paper.rows, people, strict=True)
    )
    return replace(paper, run_id=Digest(world.run_id), rows=rows)


def settle(world: World, table: Settlement) -> None:
    tree = table.tree()
    result = world.a_result(tree, table.epoch, table_hash=table.table_hash)
    world.bank.propose(result, world.cert(result))
    world.advance(world.params.challenge_window_s)
    world.bank.finalize(world.run_id, table.epoch)


def read(world: World, books: BookStore, table: Settlement) -> None:
    """All of the chain, as the keeper's first look."""
    head, first = world.bank.block_number(), world.deployment.block
    books.take_blocks(world.bank.events(first, head), first, head, {table.epoch: table})


def slash(world: World, **changes: Any) -> bytes:
    """A case from its opening to the slash, which is not paid out yet; its id."""
    ruling = world.a_ruling(world.operators[0], **changes)
    world.bank.open_case(ruling, world.cert(ruling))
    world.advance(world.params.veto_window_s)
    world.bank.execute_case(ruling.offence_id)
    return ruling.offence_id


def test_after_a_whole_life_books_and_contracts_agree(world: World, books: BookStore):
    world.join(world.operators[0], OPERATOR, 500 * UNIT)
    world.as_(world.verifiers[0]).stake(VERIFIER, 300 * UNIT)
    table = a_table(world)
    settle(world, table)
    case_id = slash(world)
    world.advance(world.params.payout_delay_s)
    world.bank.pay_out_case(case_id)
    world.bank.collect(world.buyer.account)
    world.as_(world.operators[0]).stake(OPERATOR, 100 * UNIT)
    world.as_(world.operators[0]).request_unstake(OPERATOR, 100 * UNIT)
    world.bank.claim_all(world.run_id, 0, table.tree())
    buyer = world.as_(world.buyer)
    buyer.request_close(world.run_id)
    world.advance(world.params.close_delay_s)
    buyer.refund(world.run_id)

    read(world, books, table)

    assert reconcile(books, world.bank, {0: table}) == ()
    assert trial_balance(books) == 0
    told = money(books)
    assert told.funded == BUDGET
    assert told.funded == told.paid_operators + told.paid_verifiers + told.fees + told.refunded
    assert told.paid_operators == table.paid("operator")
    assert told.slashed == told.burnt + told.to_buyer + told.to_challengers == 125 * UNIT


def test_in_the_middle_of_a_run_they_agree_as_well(world: World, books: BookStore):
    world.join(world.operators[0], OPERATOR, 500 * UNIT)
    table = a_table(world)
    read(world, books, table)
    assert reconcile(books, world.bank, {}) == ()

    settle(world, table)
    world.bank.claim(world.run_id, 0, table.tree(), 1)
    slash(world)
    read(world, books, table)

    assert reconcile(books, world.bank, {0: table}) == ()


def test_a_challenge_holds_a_bond_that_the_books_see(world: World, books: BookStore):
    table = a_table(world)
    result = world.a_result(table.tree(), table_hash=table.table_hash)
    world.bank.propose(result, world.cert(result))
    world.as_(world.bystander).challenge(world.run_id, 0, bytes(32))
    read(world, books, table)
    assert reconcile(books, world.bank, {}) == ()

    world.advance(world.params.resolve_window_s)
    world.bank.timeout_challenge(world.run_id, 0)
    read(world, books, table)
    assert reconcile(books, world.bank, {}) == ()
    assert balance_of(books, f"bondowed:{world.bystander.account}") == world.params.challenge_bond // 2
    world.advance(world.params.challenge_window_s)
    world.bank.finalize(world.run_id, 0)
    world.as_(world.bystander).collect_bond()
    world.bank.collect_bond()
    read(world, books, table)

    assert reconcile(books, world.bank, {0: table}) == ()
    assert balance_of(books, "asset:bonds") == 0


@pytest.mark.parametrize("ends", ["paid", "vetoed", "vetoed before", "expired"])
def test_the_books_see_where_a_cases_slash_and_bond_are(world: World, books: BookStore, ends: str):
    offender, opener = world.operators[0], world.as_(world.bystander)
    world.join(offender, OPERATOR, 400 * UNIT)
    ruling = world.a_ruling(offender)  # a quarter
    case_id, reason, bond = ruling.offence_id, b"\1" * 32, world.params.case_bond
    veto = Veto(deployment_id=ruling.deployment_id, case_id=case_id, reason_hash=reason)
    sunk = world.sunk()
    opener.open_case(ruling, world.cert(ruling))
    read(world, books, a_table(world))
    assert reconcile(books, world.bank, {}) == ()
    assert balance_of(books, f"casebond:{case_id.hex()}") == bond

    world.advance(world.params.veto_window_s)
    if ends in ("paid", "vetoed"):
        opener.execute_case(case_id)
        read(world, books, a_table(world))
        assert reconcile(books, world.bank, {}) == ()
        assert balance_of(books, f"held:{case_id.hex()}") == 100 * UNIT
        assert money(books).slashed == 100 * UNIT
    if ends == "paid":
        world.advance(world.params.payout_delay_s)
        opener.pay_out_case(case_id)
    elif ends == "expired":
        world.advance(world.params.execute_window_s)
        opener.expire_case(case_id)
    else:
        opener.veto_case(case_id, reason, world.cert(veto))
    read(world, books, a_table(world))

    assert reconcile(books, world.bank, {}) == ()
    assert trial_balance(books) == 0
    told = money(books)
    assert told.slashed == told.burnt + told.to_buyer + told.to_challengers
    assert told.slashed == (100 * UNIT if ends == "paid" else 0)
    assert balance_of(books, f"stake:operator:{offender.account}") == 400 * UNIT - told.slashed
    assert balance_of(books, f"rewards:{opener.address}") == (bond if ends == "paid" else 0)
    assert world.sunk() - sunk == (told.burnt if ends == "paid" else bond)


def balance_of(books: BookStore, code: str) -> int:
    """An account's balance, on its own side."""
    found = {account.code: balance * account.kind.side for account, balance in books.balances().items()}
    return found.get(code, 0)


def test_an_event_the_books_missed_names_the_account_it_was_about(world: World, books: BookStore):
    table = a_table(world)
    settle(world, table)
    world.bank.claim(world.run_id, 0, table.tree(), 1)
    head, first = world.bank.block_number(), world.deployment.block
    events = [event for event in world.bank.events(first, head) if not isinstance(event, Claimed)]
    books.take_blocks(events, first, head, {0: table})

    amount, payee = table.rows[1].amount, table.tree().payouts[1].account
    assert reconcile(books, world.bank, {0: table}) == (
        Difference(account="asset:escrow", books=BUDGET, chain=BUDGET - amount),
        Difference(account=f"payable:operator:{payee}:0", books=amount, chain=0),
    )


@pytest.mark.parametrize("contract", ["StakeVault", "RunEscrow", "EpochSettlement"])
def test_a_gift_is_in_an_account_of_its_own_and_turns_no_books_red(
    world: World, books: BookStore, contract: str
):
    transfer_token(world.as_(world.bystander), world.deployment.address(contract), 3)
    table = a_table(world)
    settle(world, table)
    transfer_token(world.bank, world.deployment.address(contract), 4)
    read(world, books, table)

    assert reconcile(books, world.bank, {0: table}) == ()
    assert balance_of(books, f"gift:{contract}") == 7
    assert trial_balance(books) == 0


@pytest.mark.parametrize("contract", ["SlashCourt", "AppealCourt"])
def test_courts_hold_no_money_and_a_gift_to_one_is_in_no_books(world: World, books: BookStore, contract: str):
    """Bonds of cases and appeals lie in the vault: there is nothing of a court's to count."""
    transfer_token(world.as_(world.bystander), world.deployment.address(contract), 1)
    world.join(world.operators[0], OPERATOR, 500 * UNIT)
    table = a_table(world)
    settle(world, table)
    case_id = slash(world)
    world.advance(world.params.payout_delay_s)
    world.bank.pay_out_case(case_id)
    read(world, books, table)

    assert reconcile(books, world.bank, {0: table}) == ()
    assert trial_balance(books) == 0
    assert not any(account.code.startswith("gift") for account in books.balances())
    assert world.held(contract) == 1  # the gift, and nothing that is owed to anybody


def test_of_two_runs_on_one_deployment_each_has_its_own_slashes_in_its_books(world: World, tmp_path: Path):
    """One operator has a lot in both; every balance is in both books, the slashes of a run in one."""
    offender, other = world.operators[0], world.a_run(b"another spec")
    world.join(offender, OPERATOR, 700 * UNIT)
    world.as_(offender).stake(OPERATOR, 300 * UNIT)
    world.lock(offender, 300 * UNIT, commitment=other)
    slashed = {world.run_id: slash(world), other: slash(world, run_id=other, ppm=100_000)}
    head, first = world.bank.block_number(), world.deployment.block

    told = {}
    for run_id in slashed:
        books = BookStore(tmp_path / f"{run_id.hex()[:8]}.db", run_id, first_block=first)
        books.take_blocks(world.bank.events(first, head), first, head, {})
        assert reconcile(books, world.bank, {}) == () and trial_balance(books) == 0
        assert {event.offence_id for event in books.events(Slashed)} == set(slashed.values())
        told[run_id] = money(books).slashed
        books.close()
    assert told == {world.run_id: 175 * UNIT, other: 30 * UNIT}


def test_a_chain_that_went_back_takes_the_books_with_it(world: World, books: BookStore):
    table = a_table(world)
    settle(world, table)
    before = world.rpc("evm_snapshot")
    world.bank.claim_all(world.run_id, 0, table.tree())
    buyer = world.as_(world.buyer)
    buyer.request_close(world.run_id)
    world.advance(world.params.close_delay_s)
    buyer.refund(world.run_id)
    read(world, books, table)
    assert world.rpc("evm_revert", before)

    world.bank.claim(world.run_id, 0, table.tree(), 2)
    read(world, books, table)

    assert reconcile(books, world.bank, {0: table}) == ()
    assert (len(books.events(Claimed)), len(books.events(Refunded))) == (1, 0)
