"""Stake: an account's stake status, and checks of staking transactions before they are sent.

Room: participant (edge: the chain, in `read_stake_status` alone). The rest is pure: each
transaction is checked by the vault's rules before it costs gas, and refused with a reason.
The contract still decides.

    wallet --add--> free --remove--> a ticket --unbonded--> wallet
                     | ^
                  lock v | release, once the run or term is over, or the node that left it is discharged,
                         | and nothing can be disputed any more
                     a lot: what a slash order reaches
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.chain.state import HotKey, LotState, StakeState, Ticket
from assay.chain.statements import LOCK_S_MAX, OPERATOR, Address, term_of
from assay.chain.text.times import when_text
from assay.chain.text.units import token_text
from assay.participant.wallet.account import ROLE_NAMES, Account
from assay.protocol.errors import ConfigError, NotYet

DAY_S = 86_400
NO_LOT = LotState(amount=0, until=0, cases=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StakeStatus:
    """One account's stake in its role, at one chain time; amounts in token units."""

    account: Address
    role: int
    now: int
    stake: StakeState
    tickets: Mapping[int, Ticket]  # unspent, in any role
    wallet: int  # token units outside the contracts
    rewards: int  # slash rewards to collect
    is_banned: bool
    hot_address: Address
    hot: HotKey | None  # the hot key's delegation
    unbonding_s: int
    commitment: bytes | None  # of an operator the run, if it has one; of a verifier a term in a verifier set
    lot: LotState  # for it
    release_at: int  # chain time from which the lot can be free, by what is known now; 0 without one
    has_begun: bool  # the commitment; before that its owner can release the lot at any time

    @property
    def role_name(self) -> str:
        """Operator or verifier."""
        return ROLE_NAMES[self.role]


def read_stake_status(account: Account, set_version: int | None = None) -> StakeStatus:
    """Read an account's stake status from the chain; of a verifier, with its term in a set (the current one).

    Raises:
        ConfigError: the account has no role in which it stakes.
        Unavailable: the endpoint is gone.
    """
    role, chain = account.role, account.chain
    tickets = chain.tickets_of(account.address)
    seat = None if account.run is None else bytes(account.run_id)
    commitment = seat if role == OPERATOR else term_of(set_version or chain.set_version())
    lot = NO_LOT if commitment is None else chain.lot_of(account.address, role, commitment)
    return StakeStatus(
        account=account.address,
        role=role,
        now=chain.timestamp(),
        stake=chain.stake_of(account.address, role),
        tickets={number: ticket for number, ticket in tickets.items() if not ticket.is_spent},
        wallet=chain.token_balance(),
        rewards=chain.rewards_of(account.address),
        is_banned=chain.is_banned(account.address),
        hot_address=account.hot_address,
        hot=chain.hot_key(account.hot_address),
        unbonding_s=chain.unbonding_delay(),
        commitment=commitment,
        lot=lot,
        release_at=chain.release_at(lot, role, commitment) if commitment and lot.until else 0,
        has_begun=commitment is not None and chain.commitment_end(role, commitment) != 0,
    )


def to_lock(status: StakeStatus, amount: int, days: int, *, to_midnight: bool = False) -> int:
    """Until when to lock, chain time, for a lot of `amount` for `days` from now.

    Args:
        status: Of the account.
        amount: Token units that the lot shall hold.
        days: From now, at most.
        to_midnight: Only until that day begins (UTC), so that the answer is the same all day long.

    Raises:
        ConfigError: the vault would refuse.
    """
    if not 0 < days <= LOCK_S_MAX // DAY_S:
        raise ConfigError(f"{days} days: a lot is locked for 1 to {LOCK_S_MAX // DAY_S}")
    lacking = amount - status.lot.amount
    if lacking > status.stake.free:
        raise ConfigError(
            f"{token_text(lacking)} to lock, but only {token_text(status.stake.free)} are free: "
            "one lot backs one run at a time; see `assay stake add`"
        )
    until = status.now + days * DAY_S
    return max(until - until % DAY_S if to_midnight else until, status.lot.until)


def to_add(status: StakeStatus, *, amount: int | None = None, to: int | None = None) -> int:
    """Amount to stake: `amount`, or what active stake lacks to reach `to`; 0 if none.

    Raises:
        ConfigError: neither or both were given, or the vault would refuse.
    """
    active = status.stake.active
    added = one_of(amount, to, max((to or 0) - active, 0))
    if not added:
        return 0
    if status.is_banned:
        raise ConfigError(f"{status.account} equivocated and can never stake again")
    if added > status.wallet:
        raise ConfigError(
            f"{token_text(added)} to stake, but {status.account} holds only {token_text(status.wallet)}"
        )
    if active + added < status.stake.minimum:
        raise ConfigError(
            f"{token_text(active + added)} would be active; the least in the role of {status.role_name} "
            f"is {token_text(status.stake.minimum)}"
        )
    return added


def to_remove(status: StakeStatus, *, amount: int | None = None, to: int | None = None) -> int:
    """Amount to unstake: `amount`, or active stake above `to`; 0 if none.

    Raises:
        ConfigError: neither or both were given, or the vault would refuse.
    """
    active, minimum = status.stake.active, status.stake.minimum
    removed = one_of(amount, to, max(active - (to or 0), 0))
    if removed > status.stake.free:
        raise ConfigError(
            f"{token_text(removed)} to remove, but only {token_text(status.stake.free)} are free "
            f"of {token_text(active)}"
        )
    if removed and 0 < active - removed < minimum:
        raise ConfigError(
            f"{token_text(active - removed)} would stay active; expected nothing (--to 0), "
            f"or at least {token_text(minimum)}"
        )
    return removed


def ripe(status: StakeStatus) -> dict[int, Ticket]:
    """The tickets of non-zero value that can be withdrawn now."""
    return {
        number: ticket
        for number, ticket in status.tickets.items()
        if ticket.amount and ticket.ready_at <= status.now
    }


def check_own(status: StakeStatus, number: int, ticket: Ticket) -> None:
    """Do nothing if the ticket is this account's.

    Raises:
        ConfigError: it is another account's or does not exist.
    """
    if not int(ticket.account, 16):
        raise ConfigError(f"there is no ticket {number}")
    if ticket.account != status.account:
        raise ConfigError(f"ticket {number} belongs to {ticket.account}, not to {status.account}")


def check_ripe(status: StakeStatus, number: int, ticket: Ticket) -> None:
    """Do nothing if the ticket is this account's, and either spent or withdrawable.

    Raises:
        ConfigError: it is another account's or does not exist.
        NotYet: it cannot be withdrawn yet.
    """
    check_own(status, number, ticket)
    if not ticket.is_spent and ticket.ready_at > status.now:
        raise NotYet(f"ticket {number}: {waits_for(status, ticket)}")


def check_release(status: StakeStatus) -> None:
    """Do nothing unless the lot can still be disputed, or its run goes on.

    Raises:
        NotYet: so it is; from when it can be released.
    """
    if status.has_begun and status.release_at > status.now:
        raise NotYet(
            f"the lot can be released from {when_text(status.release_at, status.now)}; sooner if its run "
            "closes before, or once the node has left and is discharged"
        )


def waits_for(status: StakeStatus, ticket: Ticket) -> str:
    """When a ticket can be withdrawn."""
    return f"can be withdrawn from {when_text(ticket.ready_at, status.now)}"


def one_of(amount: int | None, to: int | None, lacking: int) -> int:
    """The amount to move: `amount`, or with `to` what is lacking to it.

    Raises:
        ConfigError: neither or both were given, or an amount of zero.
    """
    if (amount is None) == (to is None):
        raise ConfigError("expected either AMOUNT or --to AMOUNT")
    if amount == 0:
        raise ConfigError("nothing to move: AMOUNT is 0")
    return lacking if amount is None else amount
