"""An operator offers the seats that it has room for, each a fair part of its bounds, for the days it says."""

from __future__ import annotations

from assay.fleet.offer import own_offer, withdrawal
from assay.fleet.plan import DAY_S, Bounds
from assay.participant.market.offer import class_of
from assay.protocol.types import Digest
from tests.a_network import NOW, keys_of

NETWORK = Digest(b"n" * 32)
BOUNDS = Bounds(
    reserve=250_000,
    lots_most=3_000 * 10**6,
    runs_most=3,
    memory_bytes=24 << 30,
    disk_bytes=1 << 40,
    upload_bytes_s=10**7,
    days_most=30,
    hours_least=1,
    wait_s=DAY_S,
    absence_s=3600,
    takes_per_day=2,
    poor_s=3600,
)


def test_an_offer_is_of_what_is_left_and_stands_for_its_days() -> None:
    offer = own_offer(keys_of("nadia"), NETWORK, BOUNDS, 10**12, NOW, 7, None, taken=1).offer

    assert (offer.seats, offer.least_price) == (2, 250_000)
    assert (offer.from_s, offer.until_s) == (NOW, NOW + 7 * DAY_S)
    assert offer.seat_class == class_of(flop_per_s=10**12, memory_bytes=8 << 30, days=30, lot=1_000 * 10**6)


def test_a_withdrawal_takes_the_place_of_the_last_offer_and_offers_nothing() -> None:
    keys = keys_of("nadia")
    before = own_offer(keys, NETWORK, BOUNDS, 10**12, NOW, 7, None, taken=0).offer
    after = withdrawal(keys, before, NOW + 5).offer

    assert (after.seats, after.from_s, after.until_s) == (0, NOW + 5, NOW + 5 + DAY_S)
    assert after.sequence > before.sequence and after.deployment_id == NETWORK
    assert (after.seat_class, after.least_price) == (before.seat_class, before.least_price)
