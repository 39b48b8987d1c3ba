"""Statement: one party's part of a run's books over some days, as income and expense.

Room: ledger (pure). A party is an address. Its accounts are its stakes, what final results and slashes
owe it, and its returned bonds; of a run's buyer also the run's escrow. What a party paid into its
accounts is no income and what it took out no expense:

    opening + paid in + bonds + income - expense - taken out == closing

Bonds are the party's from the day they may be collected, jurors' fees and won bonds among them: while one
is locked, the books do not say whose it is. Tokens that others did not claim in time go from them to
the buyer and out of the escrow in one entry: income, and taken out.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from assay.chain.events import (
    BondCollected,
    BondReleased,
    BondReturned,
    Claimed,
    Refunded,
    RewardCollected,
    RunOpened,
    RunToppedUp,
    Staked,
    Swept,
    Withdrawn,
)
from assay.ledger.accounts import NO_EPOCH, Account, Kind
from assay.ledger.books import Entry
from assay.ledger.journal.leaf import Written
from assay.ledger.queries.export import happened_at
from assay.protocol.types import Digest

_OWN = (Kind.PAYABLE, Kind.STAKE, Kind.REWARDS, Kind.BOND_OWED)  # their owner is an address
_ESCROW = (Kind.BUDGET, Kind.RESERVED)  # their owner is a run


class Movement(enum.Enum):
    """What one line does to a party's balance, and by which sign."""

    PAID_IN = "paid in"
    BONDS = "bonds"
    INCOME = "income"
    EXPENSE = "expense"
    TAKEN_OUT = "taken out"

    @property
    def sign(self) -> int:
        """One where the line adds to the balance."""
        return -1 if self in (Movement.EXPENSE, Movement.TAKEN_OUT) else 1


_BY_KIND = {
    **dict.fromkeys((one.__name__ for one in (RunOpened, RunToppedUp, Staked)), Movement.PAID_IN),
    **dict.fromkeys((one.__name__ for one in (BondReleased, BondReturned)), Movement.BONDS),
    **dict.fromkeys(
        (one.__name__ for one in (Claimed, Withdrawn, RewardCollected, BondCollected, Refunded)),
        Movement.TAKEN_OUT,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Whose statement. run_id: of the books, if the party is its buyer; None for everybody else."""

    address: str
    run_id: Digest | None = None

    def owns(self, account: Account) -> bool:
        """Whether the account's balance is the party's."""
        if account.kind in _OWN:
            return account.owner.lower() == self.address.lower()
        return self.run_id is not None and account.kind in _ESCROW and account.owner == self.run_id.hex()


@dataclass(frozen=True, slots=True)
class AccountBalance:
    """One account that is not at zero, on its own side; token units."""

    account: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """One movement.

    entry: its number in the journal. time: of its block, in Unix seconds. amount: token units in the
    movement's own direction; negative where the entry reverses another. balance: of all the party's
    accounts, after the line.
    """

    entry: int
    time: int
    kind: str
    epoch: int | None
    movement: Movement
    amount: int
    balance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A party's movements between two days, both included; amounts in token units.

    since, until: in ISO 8601; None where the statement has no bound. accounts: those not at zero at its end.
    """

    address: str
    is_buyer: bool
    since: str | None
    until: str | None
    opening: int
    lines: tuple[StatementLine, ...]
    closing: int
    accounts: tuple[AccountBalance, ...]

    def total(self, movement: Movement) -> int:
        """Sum of one movement, in its own direction."""
        return sum(line.amount for line in self.lines if line.movement is movement)


def statement_of(
    party: Party, journal: Iterable[Written], since: date | None = None, until: date | None = None
) -> Statement:
    """The statement of a party.

    Entries count on the UTC day of their block: an entry that was written late still belongs to its day.

    Args:
        party: Whose.
        journal: All entries, oldest first.
        since: First day; None begins with the first entry.
        until: Last day; None ends with the last entry.
    """
    opening = balance = 0
    lines: list[StatementLine] = []
    accounts: dict[str, int] = {}
    for one in sorted(journal, key=lambda one: (happened_at(one), one.number)):
        at = happened_at(one)
        if until is not None and at.date() > until:
            break
        for posting in one.entry.postings:
            if party.owns(posting.account):
                code = posting.account.code
                accounts[code] = accounts.get(code, 0) - posting.amount
        is_before = since is not None and at.date() < since
        for movement, amount in _movements(party, one.entry):
            balance += movement.sign * amount
            if is_before:
                continue
            lines.append(
                StatementLine(
                    entry=one.number,
                    time=int(at.timestamp()),
                    kind=one.entry.kind,
                    epoch=None if one.entry.epoch == NO_EPOCH else one.entry.epoch,
                    movement=movement,
                    amount=amount,
                    balance=balance,
                )
            )
        opening = balance if is_before else opening
    return Statement(
        address=party.address,
        is_buyer=party.run_id is not None,
        since=None if since is None else since.isoformat(),
        until=None if until is None else until.isoformat(),
        opening=opening,
        lines=tuple(lines),
        closing=balance,
        accounts=tuple(AccountBalance(code, accounts[code]) for code in sorted(accounts) if accounts[code]),
    )


def _movements(party: Party, entry: Entry) -> Iterator[tuple[Movement, int]]:
    """What the entry does to the party, one amount for each movement."""
    direction = -1 if entry.reverses else 1  # a reversal takes back what it reverses
    is_sweep = entry.kind == Swept.__name__ and party.run_id is not None
    sums: dict[Movement | None, int] = {}  # None: by the sign of what is left
    for posting in entry.postings:
        gained = -posting.amount * direction
        if party.owns(posting.account):
            movement = Movement.TAKEN_OUT if is_sweep else _movement(entry.kind, posting.account)
            sums[movement] = sums.get(movement, 0) + gained
        elif is_sweep and posting.account.kind is Kind.PAYABLE:  # what others leave goes to the buyer
            sums[None] = sums.get(None, 0) - gained
            sums[Movement.TAKEN_OUT] = sums.get(Movement.TAKEN_OUT, 0) + gained
    for movement, gained in sums.items():
        found = movement or (Movement.INCOME if gained > 0 else Movement.EXPENSE)
        if gained:
            yield found, gained * found.sign * direction


def _movement(kind: str, account: Account) -> Movement | None:
    """The kind of entry decides; None: income or expense, as where others are paid from an escrow."""
    return None if kind == Claimed.__name__ and account.kind in _ESCROW else _BY_KIND.get(kind)
