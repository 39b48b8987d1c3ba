"""Accounts: the chart of accounts of a run's books, and whether each is an asset or a liability.

Room: ledger (pure). Assets are the contracts' tokens; every unit of them is owed
by exactly one liability account. Wallets are outside these books.

    asset:escrow   RunEscrow's tokens       <- budget (free), reserved (certified), payable (final)
    asset:vault    StakeVault's tokens      <- stake, held (by a slash order, not yet paid out), casebond,
                                               rewards (of slashes, and returned bonds, until collected)
    asset:bonds    EpochSettlement's tokens <- bond (of proposals and challenges), bondowed (until collected)
Each of them may have a gift account beside these: tokens that a plain transfer left there. Other contracts
hold no money, the courts neither: what somebody sends to one is owed to nobody, and in no books.
A burn needs no account: the tokens leave the asset and the liability together.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

TOKEN = "aUSD"  # minor units of the run's token
ROLES = ("operator", "verifier")  # indexed by the stake contract's role number
NO_EPOCH = -1


class Side(enum.IntEnum):
    """The normal sign of an account's balance: debits are positive, credits negative."""

    DEBIT = 1
    CREDIT = -1


class Kind(enum.Enum):
    """Kind of an account; its value is the prefix of the account's code."""

    ESCROW = "asset:escrow"
    VAULT = "asset:vault"
    BONDS = "asset:bonds"
    BUDGET = "budget"
    RESERVED = "reserved"
    PAYABLE = "payable"
    STAKE = "stake"
    REWARDS = "rewards"
    BOND = "bond"
    BOND_OWED = "bondowed"
    HELD = "held"
    CASE_BOND = "casebond"
    GIFT = "gift"

    @property
    def side(self) -> Side:
        """Assets grow by debits, liabilities by credits."""
        return Side.DEBIT if self.value.startswith("asset:") else Side.CREDIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account. Equal fields are the same account."""

    kind: Kind
    owner: str = ""  # an address, or a run's or case's id in hexadecimal; empty for assets
    role: str = ""  # of stake and pay
    epoch: int = NO_EPOCH
    asset: str = TOKEN
    # A unique name, such as `payable:operator:0x52...:3`.
    code: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        epoch = "" if self.epoch == NO_EPOCH else str(self.epoch)
        parts = (self.kind.value, self.role, self.owner, epoch)
        object.__setattr__(self, "code", ":".join(filter(None, parts)))

    def __hash__(self) -> int:
        return hash(self.code)


ESCROW = Account(kind=Kind.ESCROW)
VAULT = Account(kind=Kind.VAULT)
BONDS = Account(kind=Kind.BONDS)
HOLDERS = {"RunEscrow": ESCROW, "StakeVault": VAULT, "EpochSettlement": BONDS}  # by contract


def budget(run_id: bytes) -> Account:
    """A run's free escrow: the buyer's until an epoch reserves it."""
    return Account(kind=Kind.BUDGET, owner=run_id.hex())


def reserved(run_id: bytes, epoch: int) -> Account:
    """Amount reserved by a certified result; returns to the buyer's budget if it is rejected."""
    return Account(kind=Kind.RESERVED, owner=run_id.hex(), epoch=epoch)


def payable(role: str, account: str, epoch: int) -> Account:
    """Amount that a final result owes one payee for one epoch."""
    return Account(kind=Kind.PAYABLE, owner=account, role=role, epoch=epoch)


def stake(role: int, account: str) -> Account:
    """Active and unbonding stake together: both can be slashed."""
    return Account(kind=Kind.STAKE, owner=account, role=ROLES[role])


def rewards(account: str) -> Account:
    """Uncollected slash rewards in the vault."""
    return Account(kind=Kind.REWARDS, owner=account)


def bond(run_id: bytes, epoch: int) -> Account:
    """The bonds of the proposal of an epoch's result, and of a challenge that is open against it."""
    return Account(kind=Kind.BOND, owner=run_id.hex(), epoch=epoch)


def bond_owed(account: str) -> Account:
    """Bonds and jurors' fees that an account may collect."""
    return Account(kind=Kind.BOND_OWED, owner=account)


def gift(contract: str) -> Account:
    """Tokens that a contract got by a plain transfer: owed to nobody, and there for ever."""
    return Account(kind=Kind.GIFT, owner=contract)


def held(case_id: bytes) -> Account:
    """Amount slashed by a case: returned to the offender on a veto, else paid out and burnt."""
    return Account(kind=Kind.HELD, owner=case_id.hex())


def case_bond(case_id: bytes) -> Account:
    """Bond of the account that opened a case."""
    return Account(kind=Kind.CASE_BOND, owner=case_id.hex())
