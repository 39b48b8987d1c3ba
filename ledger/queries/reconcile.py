"""Reconcile: compares every account in the books with its counterpart in the contracts, in token units.

Room: ledger (edge: reads the chain; blocking). A difference names the account. Read the newest
blocks into the store first: contract state is read at the newest block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from assay.chain.commit_statement import evm_address
from assay.chain.events import (
    BondLocked,
    BondReleased,
    BondReturned,
    RewardCollected,
    RunOpened,
    Slashed,
    Staked,
)
from assay.chain.reader import ChainReader
from assay.chain.state import EpochPhase
from assay.ledger.accounts import (
    HOLDERS,
    Account,
    bond_owed,
    budget,
    case_bond,
    held,
    payable,
    rewards,
    stake,
)
from assay.ledger.journal.store import BookStore
from assay.ledger.settlement.payouts import Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One account on which books and chain disagree; token units, each on the account's own side."""

    account: str
    books: int
    chain: int


def reconcile(
    store: BookStore, chain: ChainReader, tables: Mapping[int, Settlement]
) -> tuple[Difference, ...]:
    """Every difference between the books and the contracts; none means they match.

    Tokens that were sent to a contract by a plain transfer are in the books, in a gift account of their own.

    Args:
        store: The books, up to the newest block.
        chain: The contracts.
        tables: Settlements of this run's final epochs, by epoch.

    Raises:
        Unavailable: the chain gave no answer.
    """
    balances = store.balances()
    on_chain = [
        *_assets(chain),
        *_budgets(store, chain),
        *_stakes(store, chain),
        *_waiting(store, chain),
        *_claims(store, chain, tables),
    ]
    seen: dict[Account, int] = {}
    for account, amount in on_chain:
        seen[account] = seen.get(account, 0) + amount
    return tuple(
        Difference(account=account.code, books=booked, chain=amount)
        for account, amount in seen.items()
        if (booked := balances.get(account, 0) * account.kind.side) != amount
    )


def trial_balance(store: BookStore) -> int:
    """The sum over all accounts; anything but zero means that the file was altered."""
    return sum(store.balances().values())


def _assets(chain: ChainReader) -> Iterator[tuple[Account, int]]:
    for contract, account in HOLDERS.items():
        yield account, chain.token_balance(chain.deployment.address(contract))


def _budgets(store: BookStore, chain: ChainReader) -> Iterator[tuple[Account, int]]:
    for event in store.events(RunOpened):
        run = chain.run(event.run_id)
        yield budget(event.run_id), 0 if run is None else run.free


def _stakes(store: BookStore, chain: ChainReader) -> Iterator[tuple[Account, int]]:
    stakers, earners = set(), set()
    for event in store.events(Staked, Slashed, BondReturned, RewardCollected):
        match event:
            case Staked():
                stakers.add((event.role, event.account))
            case Slashed():
                earners |= {event.buyer, event.challenger}
            case BondReturned() | RewardCollected():
                earners.add(event.account)
    for role, account in sorted(stakers):
        state = chain.stake_of(account, role)
        yield stake(role, account), state.active + state.unbonding
    for account in sorted(earners):
        yield rewards(account), chain.rewards_of(account)


def _waiting(store: BookStore, chain: ChainReader) -> Iterator[tuple[Account, int]]:
    """On-chain amounts of slashes not paid out yet, and of bonds not yet returned or burnt."""
    owed = set()
    for event in store.events(Slashed, BondLocked, BondReleased):
        match event:
            case Slashed() if event.payable_at:
                yield held(event.offence_id), chain.pot_of(event.offence_id)
            case BondLocked():
                yield case_bond(event.case_id), chain.case_bond(event.case_id)
            case BondReleased():
                owed.add(event.account)
    for account in sorted(owed):
        yield bond_owed(account), chain.bonds_owed(account)


def _claims(
    store: BookStore, chain: ChainReader, tables: Mapping[int, Settlement]
) -> Iterator[tuple[Account, int]]:
    """Unclaimed amount of each payee of a final epoch, by the contract's `isClaimed`."""
    for epoch, table in tables.items():
        state = chain.epoch_state(store.run_id, epoch)
        if state.phase is not EpochPhase.FINAL:
            continue
        for index, row in enumerate(table.rows):
            is_paid = chain.is_claimed(store.run_id, epoch, index)
            yield payable(row.role, evm_address(row.account), epoch), 0 if is_paid else row.amount
