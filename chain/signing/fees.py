"""Fees: what a transaction pays per gas, when that has become too low, and what takes its place.

Room: chain (pure). Pools take another transaction with the same nonce if both of its fees are 10 % higher
(geth's `txpool.pricebump`). A block takes the chain's base fee and the priority fee, whatever the highest fee
is: so an endpoint that lies about base fees can make an account pay more only by the priority fee, which is
raised `RAISES_MAX` times at most, to 2.6-fold; of a transaction that does nothing (21,000 gas), to 8-fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PRIORITY_FEE_WEI = 10**9
RAISES_MAX = 8  # of one transaction's fees
OFFERS_MAX = 10  # to replace one by nothing; what the account cannot pay is refused before
# The tip of what replaces one: a tenth above all raised ones, and bounded, or an endpoint that keeps what it
# is given would have it grow without end.
NOTHING_TIP_WEI, NOTHING_TIP_MAX_WEI = 4 * PRIORITY_FEE_WEI, 8 * PRIORITY_FEE_WEI
# Blocks that leave out an account's next transaction, although it pays their base fee: its tip is too low.
LATE_BLOCKS = 3
# Until fees that the signer or the endpoint refused are tried again: a person may have to decline each.
REFUSED_S = 60.0
# For so long and so many blocks the account's next transaction, where this process cannot raise its fees, may
# not be mined before one that does nothing takes its place: long enough for another to raise them itself.
STUCK_S, STUCK_BLOCKS = 600.0, 3


@dataclass(slots=True, kw_only=True)
class Pending:
    """What was sent with a nonce, and not seen mined."""

    fields: dict[str, Any]  # as signed last
    hashes: list[bytes]  # of everything that was sent with this nonce; one at most is mined
    raised: int = 0  # times
    retry_s: float = 0.0  # when to raise again what was refused, on the monotonic clock; 0: nothing was
    since_block: int = -1  # the newest when it was first waited for as it is; -1: not yet

    @property
    def is_given_up(self) -> bool:
        """Whether its fees were raised as often as they may be, or the last raise was refused."""
        return self.raised >= RAISES_MAX or self.retry_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """The account's next nonce where another process's transaction has it, or one given up; since when."""

    nonce: int
    since_s: float
    block: int

    def is_over(self, now_s: float, block: int) -> bool:
        """Whether it was not mined for long enough, and not for want of blocks."""
        return now_s > self.since_s + STUCK_S and block >= self.block + STUCK_BLOCKS


def first_fees(base_fee: int) -> dict[str, int]:
    """The fees in wei of a new transaction: enough until the base fee has doubled."""
    return {"maxFeePerGas": 2 * base_fee + PRIORITY_FEE_WEI, "maxPriorityFeePerGas": PRIORITY_FEE_WEI}


def raised_fees(one: Pending, base_fee: int, *, is_late: bool = False) -> dict[str, int] | None:
    """The fees in wei with which a transaction takes its own place; None while it may be mined as it is.

    Args:
        one: The transaction.
        base_fee: The newest block's.
        is_late: Whether `LATE_BLOCKS` left it out, and it is the account's next.
    """
    fee, tip = one.fields["maxFeePerGas"], one.fields["maxPriorityFeePerGas"]
    if (fee >= base_fee + tip and not is_late) or one.raised >= RAISES_MAX:
        return None
    tip = tip * 9 // 8
    return {"maxFeePerGas": max(2 * base_fee + tip, fee * 9 // 8), "maxPriorityFeePerGas": tip}


def nothing(address: str, base_fee: int, ours: Pending | None) -> Iterator[Mapping[str, Any]]:
    """Transfers of nothing to the account itself, each of twice the highest fee, without nonce and chain.

    Args:
        address: The account.
        base_fee: The newest block's, in wei: the one whose place they take may have been sent at any other.
        ours: What has the nonce, as far as this process sent it: the first takes its place.
    """
    fee, tip = 2 * (base_fee + NOTHING_TIP_WEI), NOTHING_TIP_WEI
    if ours is not None:
        fee = max(fee, -(-ours.fields["maxFeePerGas"] * 9 // 8))
        tip = min(max(tip, -(-ours.fields["maxPriorityFeePerGas"] * 9 // 8)), NOTHING_TIP_MAX_WEI)
    for times in (2**doubled for doubled in range(OFFERS_MAX)):
        fees = {"maxFeePerGas": times * fee, "maxPriorityFeePerGas": tip}
        yield {"to": address, "data": "0x", "value": 0, "gas": 21_000, **fees}
