"""State: the contracts' structs as Python values.

Room: chain (pure). Field names are the Solidity struct's, in snake case; a
contract's `state` is a `phase` here. Money in token units, times in Unix seconds
of chain time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, TypeVar

from assay.chain.statements import Address


class EpochPhase(IntEnum):
    """EpochSettlement.State."""

    NONE = 0
    PROPOSED = 1
    CHALLENGED = 2
    FINAL = 3
    SWEPT = 4


class CasePhase(IntEnum):
    """SlashCourt.State."""

    NONE = 0
    OPEN = 1
    VETOED = 2
    EXECUTED = 3  # slashed, not yet paid out: a veto still reverses it
    EXPIRED = 4
    PAID = 5
    APPEALED = 6  # stopped until the appeal has ended

    @property
    def is_over(self) -> bool:
        """Whether the case is closed."""
        return self in (CasePhase.VETOED, CasePhase.EXPIRED, CasePhase.PAID)


class AppealPhase(IntEnum):
    """AppealCourt.State."""

    NONE = 0
    OPEN = 1
    WON = 2
    LOST = 3
    LAPSED = 4


class DefencePhase(IntEnum):
    """AppealCourt.Phase."""

    NONE = 0
    CUT = 1
    CHOOSE = 2
    JURY = 3
    ENDED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StakeState:
    """Stake of one account in one role, token units."""

    active: int  # free, or locked in lots
    free: int
    unbonding: int
    minimum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LotState:
    """What one account has locked for one run, or for one term as a verifier; all zero if nothing."""

    amount: int
    until: int  # the account is bound to nothing that ends later
    cases: int  # open ones, each of which keeps the lot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """An unstake request."""

    account: Address
    role: int
    ready_at: int
    is_spent: bool
    amount: int  # its present value


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """The account that a hot key signs for, the expiry, and whether another key took its place."""

    account: Address
    expiry: int
    is_replaced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EscrowState:
    """A run's escrow: budget == reserved + paid + returned + free."""

    buyer: Address
    epochs: int
    set_version: int
    pending: int
    deadline: int
    closes_at: int
    budget: int
    epoch_cap: int
    reserved: int
    paid: int
    returned: int
    spec_hash: bytes
    holds: bool  # the lots of its verifier set, until a refund ends the run
    lot: int  # of each operator

    @property
    def free(self) -> int:
        """Token units that no epoch has reserved."""
        return self.budget - self.reserved - self.paid - self.returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A block, as it is named and when it was made."""

    number: int
    hash: bytes
    time_s: int  # Unix


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalEscrow:
    """A run's escrow at the chain's finalised block."""

    block: int
    time_s: int  # of that block
    newest_s: int  # of the chain's newest block
    escrow: EscrowState | None  # None: nobody has opened the run
    judges: tuple[Address, ...]  # the verifier set that it was opened with


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochState:
    """The settlement of one (run, epoch)."""

    phase: EpochPhase
    until: int  # end of this phase's window
    total: int
    claimed: int
    challenger: Address
    digest: bytes
    prev_result: bytes
    root: bytes
    model_hash: bytes
    proposer: Address
    bond: int  # token units of the next proposal or challenge; of an open challenge, its own
    draw_from: int  # block from which the jury of a challenge can be drawn; zero once it is
    jury: tuple[Address, ...]  # the account of each seat
    voted: int  # bitmap of seats


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseState:
    """A court case."""

    phase: CasePhase
    role: int
    ppm: int
    veto_ends_at: int
    execute_by: int
    payable_at: int  # zero before the slash
    offender: Address
    signers: int  # bitmap of the members of the run's set that signed the order
    challenger: Address
    opener: Address  # owner of the bond
    run_id: bytes
    evidence_hash: bytes
    lot: bytes  # the commitment of the offender's lot: the run's id, or the set's number


@dataclass(frozen=True, slots=True, kw_only=True)
class AppealState:
    """The appeal of one case."""

    phase: AppealPhase
    answer_by: int
    operators: int
    playing: int  # defences that have not ended
    signers: int
    version: int
    accused: Address
    opener: Address
    run_id: bytes
    positions: bytes  # hash of the claimed positions
    bond_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DefenceState:
    """One member's defence of an order that is appealed."""

    phase: DefencePhase
    until: int  # end of the time for the next move
    first: int
    last: int
    asked: int  # block in which its jury was asked for
    entries: int
    start: bytes  # the position at `first`, agreed on
    end: bytes  # the position at `last`, rejected
    positions: bytes
    bond_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JuryState:
    """The jury of a defence; bitmaps of seats."""

    seats: tuple[Address, ...]
    right: int
    wrong: int


S = TypeVar("S", EscrowState, EpochState, CaseState, AppealState, DefenceState, JuryState)
_PHASES: dict[type, type[IntEnum]] = {
    EpochState: EpochPhase,
    CaseState: CasePhase,
    AppealState: AppealPhase,
}


def state_of(kind: type[S], struct: Any) -> S:
    """A contract's struct, decoded by web3 as a named tuple, as a value of `kind`.

    Raises:
        TypeError: the struct's fields are not this kind's.
    """
    fields: dict[str, Any] = {snake(name): value for name, value in struct._asdict().items()}
    if kind is DefenceState:
        fields["phase"] = DefencePhase(fields["phase"])
    if kind in _PHASES:
        fields["phase"] = _PHASES[kind](fields.pop("state"))
    return kind(**fields)


def snake(camel: str) -> str:
    """`claimEndsAt` as `claim_ends_at`."""
    return re.sub(r"(?<!^)([A-Z])", lambda found: "_" + found.group(1).lower(), camel)


def field_names(kind: type) -> list[str]:
    """A state's or event's own field names, in declaration order."""
    return [field.name for field in fields(kind)]
