"""Standing: the offers of a network that count as of one block, whoever reads them.

Room: participant (edge: the chain). All is read as it was after that block, so all readers find the same.
Accounts that had stake when they announced are looked at, the newest `ACCOUNTS_MAX`; each that offers
anything costs a look at the log and four calls, and what does not verify is counted and left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.chain.reader import ChainReader, NotShown
from assay.chain.state import Head
from assay.chain.statements import OPERATOR, Address
from assay.participant.directory.listing import ACCOUNTS_MAX
from assay.participant.market.offer import OFFER_SLOT, offer_in
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import MalformedMessage, PeerFault
from assay.protocol.market import SeatClass, SeatOffer, SignedSeatOffer

if TYPE_CHECKING:
    from assay.chain.client import Chain, Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingOffer:
    """An offer as of a block, and what of it counts there."""

    offer: SeatOffer
    seats: int  # that count: each has a free lot behind it
    free_stake: int  # token units


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A network's offers as of a block, dearer ones later."""

    block: int
    block_hash: bytes
    as_of: int  # the block's time, Unix seconds
    announced: int  # accounts in the directory; the newest `ACCOUNTS_MAX` were looked at
    unreadable: int  # of these: what they announced as an offer is none, or is not shown
    offers: tuple[StandingOffer, ...]

    def by_class(self) -> Mapping[SeatClass, list[SeatOffer]]:
        """The offers that count in a batch of each class, with the seats that count."""
        found = defaultdict[SeatClass, list[SeatOffer]](list)
        for one in self.offers:
            if one.seats:
                found[one.offer.seat_class].append(replace(one.offer, seats=one.seats))
        return found


def read_standing(chain: ChainReader, head: Head | None = None) -> Standing:
    """The offers of a network as of a block.

    Args:
        chain: Of the network.
        head: The block; by default the newest one.

    Raises:
        Unavailable: the endpoint is gone, or does not keep that block's state.
    """
    head = head or chain.head()
    then = chain.as_of(head.number)
    total, accounts = then.newest_stakers(ACCOUNTS_MAX)
    blocks = then.record_blocks([(account, OFFER_SLOT) for account in accounts])
    offers, unreadable = list[StandingOffer](), 0
    for account, number in zip(accounts, blocks, strict=True):
        try:
            offers += _standing(then, account, number, head.time_s) if number else ()
        except (MalformedMessage, PeerFault, NotShown):
            unreadable += 1
    return Standing(
        block=head.number,
        block_hash=head.hash,
        as_of=head.time_s,
        announced=total,
        unreadable=unreadable,
        offers=tuple(sorted(offers, key=lambda one: (one.offer.least_price, one.offer.account))),
    )


def last_offer(chain: ChainReader, account: Address) -> SeatOffer | None:
    """What an account announced last as its offer, also if it counts nothing; None if there is no offer.

    Raises:
        Unavailable: the endpoint is gone.
    """
    (number,) = chain.record_blocks([(account, OFFER_SLOT)])
    try:
        return _announced(chain, account, number) if number else None
    except (MalformedMessage, PeerFault, NotShown):
        return None


def says_the_same(before: SeatOffer, offer: SeatOffer, now_s: int) -> bool:
    """Whether an account's last offer differs in nothing but its times, of which half is left."""
    same = replace(before, from_s=offer.from_s, until_s=offer.until_s, sequence=offer.sequence) == offer
    return same and 2 * (before.until_s - now_s) >= before.until_s - before.from_s


def announce_offer(chain: Chain, signed: SignedSeatOffer) -> Sent:
    """Announce our own offer, unless it is the last that we announced.

    Raises:
        ChainRefused, Unavailable: of the transaction.
    """
    return chain.announce_record(OFFER_SLOT, encode(signed))


def _announced(chain: ChainReader, account: Address, number: int) -> SeatOffer:
    body = chain.announced_record(account, OFFER_SLOT, number)
    return offer_in(body, bytes.fromhex(account[2:]), chain.deployment.deployment_id)


def _standing(chain: ChainReader, account: Address, number: int, now_s: int) -> Iterator[StandingOffer]:
    """The offer, if it has seats and its time has come and is not over."""
    offer = _announced(chain, account, number)
    if not offer.seats or not offer.from_s <= now_s < offer.until_s:
        return
    stake = chain.stake_of(account, OPERATOR)
    is_able = stake.active >= stake.minimum and not chain.is_banned(account)
    seats = min(offer.seats, stake.free >> offer.seat_class.lot) if is_able else 0
    yield StandingOffer(offer=offer, seats=seats, free_stake=stake.free)
