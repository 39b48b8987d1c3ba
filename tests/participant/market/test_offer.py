"""An offer is its account's, for one network, signed, and of bounded length; its class rounds down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from assay.participant.directory.find import RECORD_BYTES_MAX, last_record
from assay.participant.market.offer import OFFER_S_MAX, class_of, offer_in, sign_offer
from assay.participant.market.standing import says_the_same
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import ConfigError, MalformedMessage, PeerFault
from assay.protocol.market import PRICE_MAX, SEATS_MAX, SeatClass, SignedSeatOffer
from assay.protocol.types import Address, Digest, HotSignature, PeerId
from tests.a_network import NOW, keys_of

NETWORK = Digest(b"n" * 32)
CLASS = SeatClass(speed=38, memory=33, days=5, lot=30)


def an_offer(name: str = "nadia", **changes: Any) -> SignedSeatOffer:
    given = {"seats": 4, "least_price": 250_000, "from_s": NOW, "until_s": NOW + 86_400, **changes}
    return sign_offer(keys_of(name), NETWORK, CLASS, **given)


def account_of(name: str) -> bytes:
    return keys_of(name).account_address


def test_an_offer_is_read_by_whoever_knows_who_announced_it():
    signed = an_offer()

    assert offer_in(encode(signed), account_of("nadia"), NETWORK) == signed.offer


@pytest.mark.parametrize(
    "change",
    [
        {"seats": 5}, {"least_price": 1}, {"until_s": NOW + 90_000}, {"sequence": 9**9},
        {"peer": PeerId(b"\7" * 32)}, {"seat_class": replace(CLASS, speed=60)},
        {"hot": Address(keys_of("vera").hot_address)},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_not_a_field_of_it_can_be_changed(change: dict[str, Any]):
    signed = an_offer()
    forged = replace(signed, offer=replace(signed.offer, **change))

    with pytest.raises(PeerFault, match="signed by hot key"):
        offer_in(encode(forged), account_of("nadia"), NETWORK)


def test_an_offer_of_another_account_or_network_is_refused_also_if_it_is_signed():
    body = encode(an_offer())

    with pytest.raises(PeerFault, match="announced by"):
        offer_in(body, account_of("vera"), NETWORK)
    with pytest.raises(PeerFault, match="for deployment 6e6e6e6e, expected 6d6d6d6d"):
        offer_in(body, account_of("nadia"), b"m" * 32)


def test_what_is_no_offer_is_refused():
    signed = an_offer()
    for body in (b"", b"\x1b[2J", encode(signed.offer), encode(signed)[:-1], bytes(RECORD_BYTES_MAX + 1)):
        with pytest.raises(MalformedMessage):
            offer_in(body, account_of("nadia"), NETWORK)
    with pytest.raises(PeerFault, match="hot signature"):
        offer_in(encode(replace(signed, by_hot=HotSignature(bytes(65)))), account_of("nadia"), NETWORK)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seats": SEATS_MAX + 1}, "seats 1025, expected 0 to 1024"),
        ({"least_price": PRICE_MAX + 1}, "least price"),
        ({"until_s": NOW}, "an offer of 0 s"),
        ({"until_s": NOW + OFFER_S_MAX + 1}, "expected 1 to 7776000"),
    ],
)
def test_what_is_out_of_bounds_is_not_signed(change: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        an_offer(**change)


def test_an_offer_without_end_is_not_believed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("assay.participant.market.offer.OFFER_S_MAX", 2**62)
    body = encode(an_offer(until_s=NOW + OFFER_S_MAX + 1))
    assert offer_in(body, account_of("nadia"), NETWORK).seats == 4
    monkeypatch.undo()

    with pytest.raises(PeerFault, match="expected 1 to 7776000"):
        offer_in(body, account_of("nadia"), NETWORK)


def test_the_number_rises_although_the_clock_goes_back():
    first = an_offer()
    assert an_offer(before=first.offer).offer.sequence == first.offer.sequence + 1
    assert an_offer(from_s=NOW - 99, before=first.offer).offer.sequence == first.offer.sequence + 1


def test_an_offer_is_renewed_when_half_of_its_time_is_over_or_anything_else_changes():
    old = an_offer(until_s=NOW + 100).offer
    again = an_offer(from_s=NOW + 50, until_s=NOW + 150, before=old).offer

    assert says_the_same(old, again, NOW + 50)
    assert not says_the_same(old, again, NOW + 51)
    assert not says_the_same(old, replace(again, least_price=1), NOW)
    assert not says_the_same(old, replace(again, hot=Address(bytes(20))), NOW)


def test_a_class_is_what_a_seat_has_all_of():
    found = class_of(flop_per_s=2**38 + 5, memory_bytes=2**34 - 1, days=60, lot=2**30)

    assert found == SeatClass(speed=38, memory=33, days=5, lot=30)
    assert class_of(flop_per_s=2**90, memory_bytes=2**60, days=999, lot=2**70) == SeatClass(
        speed=80, memory=50, days=8, lot=63
    )
    with pytest.raises(ConfigError, match="0 lot for each seat, expected at least 1"):
        class_of(flop_per_s=1, memory_bytes=1, days=1, lot=0)


class Announced:
    """An endpoint on which an account's last announcement is its offer."""

    def __init__(self, body: bytes, record: bytes | None) -> None:
        self.body, self.record = body, record

    def staker_block(self, account: str) -> int:
        return 7

    def record_blocks(self, whose: Any) -> list[int]:
        return [0 if self.record is None else 5]

    def announced_record(self, account: str, peer: bytes | None, number: int) -> bytes:
        if peer is None:
            return self.body
        assert self.record is not None and number == 5
        return self.record


def test_an_offer_does_not_hide_the_record_of_who_announces_it():
    from assay.chain.commit_statement import evm_address
    from tests.a_network import a_record

    record, where = a_record("nadia"), evm_address(account_of("nadia"))
    chain: Any = Announced(encode(an_offer()), encode(record))
    assert last_record(chain, where, NOW) == record
    chain = Announced(encode(an_offer()), None)
    assert last_record(chain, where, NOW) is None
    chain = Announced(encode(an_offer()), encode(a_record("vera")))  # whose peer the offer names
    with pytest.raises(PeerFault, match="record of another account"):
        last_record(chain, where, NOW)
    chain = Announced(encode(an_offer())[:-1], None)
    with pytest.raises(MalformedMessage):
        last_record(chain, where, NOW)
