"""Offer: what an operator's process would serve, as an offer of seats to buyers.

Room: fleet (pure). Every number is one of the bounds by which the process takes runs (plan.py), so a run that
is placed at the offered price is one that the process takes: the class rounds down what the machine has.
"""

from __future__ import annotations

from assay.fleet.plan import DAY_S, Bounds
from assay.participant.keys.keyring import Keys
from assay.participant.market.offer import class_of, sign_offer
from assay.protocol.market import SeatOffer, SignedSeatOffer


def own_offer(
    keys: Keys,
    deployment_id: bytes,
    bounds: Bounds,
    flop_per_s: int,
    now_s: int,
    days: int,
    before: SeatOffer | None = None,
    *,
    taken: int = 0,
) -> SignedSeatOffer:
    """The offer of the seats that an operator allows, each with an equal part of memory and lots.

    Args:
        keys: The operator's.
        deployment_id: Of the network.
        bounds: What it allows.
        flop_per_s: Of a node on this machine, measured.
        now_s: The chain's time, from which the offer counts.
        days: For which it stands.
        before: The account's last offer, if it is known.
        taken: Seats that runs have already.

    Raises:
        ConfigError: there is nothing for a seat, or a number is out of its bounds.
    """
    seat_class = class_of(
        flop_per_s=flop_per_s,
        memory_bytes=bounds.memory_bytes // bounds.runs_most,
        days=bounds.days_most,
        lot=bounds.lots_most // bounds.runs_most,
    )
    return sign_offer(
        keys,
        deployment_id,
        seat_class,
        seats=bounds.runs_most - taken,
        least_price=bounds.reserve,
        from_s=now_s,
        until_s=now_s + days * DAY_S,
        before=before,
    )


def withdrawal(keys: Keys, before: SeatOffer, now_s: int) -> SignedSeatOffer:
    """The offer of nothing that takes the place of an account's last one."""
    return sign_offer(
        keys,
        before.deployment_id,
        before.seat_class,
        seats=0,
        least_price=before.least_price,
        from_s=now_s,
        until_s=now_s + DAY_S,
        before=before,
    )
