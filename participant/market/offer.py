"""Offer: signs and checks an operator's offer of seats, and says which class of seats a machine has.

Room: participant (pure). An account has one offer: the last that it announced. That the account agrees is
shown by the transaction that announced it; the hot key's signature lets an offer be shown to others.
"""

from __future__ import annotations

import hashlib

from eth_utils.crypto import keccak

from assay.chain.commit_statement import evm_address
from assay.chain.statements import BadSignatureError, recover, sign_digest
from assay.participant.directory.find import RECORD_BYTES_MAX
from assay.participant.keys.keyring import Keys
from assay.protocol.encoding.codec import decode, digest
from assay.protocol.errors import ConfigError, PeerFault
from assay.protocol.identity import peer_of
from assay.protocol.market import (
    DAYS_MAX,
    LOT_MAX,
    MEMORY_MAX,
    PRICE_MAX,
    SEATS_MAX,
    SPEED_MAX,
    SeatClass,
    SeatOffer,
    SignedSeatOffer,
)
from assay.protocol.types import Address, Digest, HotSignature

OFFER_S_MAX = 90 * 86_400  # from an offer's beginning to its end
OFFER_SLOT = hashlib.sha256(SeatOffer.TAG).digest()  # where a record has its peer key; nobody has this one
_HOT_TAG = b"assay/offer-hot/1"


def class_of(*, flop_per_s: int, memory_bytes: int, days: int, lot: int) -> SeatClass:
    """The highest class that a seat of this machine has all of.

    Raises:
        ConfigError: one of them is below 1.
    """
    given = {"operations a second": flop_per_s, "bytes of memory": memory_bytes, "days": days, "lot": lot}
    for name, value in given.items():
        if value < 1:
            raise ConfigError(f"{value} {name} for each seat, expected at least 1")
    return SeatClass(
        speed=min(flop_per_s.bit_length() - 1, SPEED_MAX),
        memory=min(memory_bytes.bit_length() - 1, MEMORY_MAX),
        days=min(days.bit_length() - 1, DAYS_MAX),
        lot=min(lot.bit_length() - 1, LOT_MAX),
    )


def sign_offer(
    keys: Keys,
    deployment_id: bytes,
    seat_class: SeatClass,
    *,
    seats: int,
    least_price: int,
    from_s: int,
    until_s: int,
    before: SeatOffer | None = None,
) -> SignedSeatOffer:
    """An offer of these keys' account.

    Args:
        keys: Whose.
        deployment_id: Of the network.
        seat_class: What each seat is.
        seats: 0 to `SEATS_MAX`; 0 withdraws.
        least_price: For an hour of a seat, token units.
        from_s: Unix time. The sequence number is at least this, so that it rises also where `before` is lost.
        until_s: Unix time, `OFFER_S_MAX` later at most.
        before: The account's last offer, if it is known.

    Raises:
        ConfigError: a number is out of its bounds.
    """
    for name, value, most in (("seats", seats, SEATS_MAX), ("least price", least_price, PRICE_MAX)):
        if not 0 <= value <= most:
            raise ConfigError(f"{name} {value}, expected 0 to {most}")
    if not from_s < until_s <= from_s + OFFER_S_MAX:
        raise ConfigError(f"an offer of {until_s - from_s} s, expected 1 to {OFFER_S_MAX}")
    offer = SeatOffer(
        deployment_id=Digest(deployment_id),
        account=Address(keys.account_address),
        hot=Address(keys.hot_address),
        peer=peer_of(keys.peer),
        seat_class=seat_class,
        seats=seats,
        least_price=least_price,
        from_s=from_s,
        until_s=until_s,
        sequence=max(from_s, 0 if before is None else before.sequence + 1),
    )
    return SignedSeatOffer(offer=offer, by_hot=HotSignature(sign_digest(_hot_digest(offer), keys.hot)))


def offer_in(body: bytes, account: bytes, deployment_id: bytes) -> SeatOffer:
    """The offer in an announcement: of the account that announced it, for this network, signed.

    Raises:
        MalformedMessage, PeerFault: it is not.
    """
    signed = decode(SignedSeatOffer, body, RECORD_BYTES_MAX)
    offer = signed.offer
    if offer.account != account:
        by = evm_address(account)
        raise PeerFault(offer.peer, f"offer of account {evm_address(offer.account)}, announced by {by}")
    if offer.deployment_id != deployment_id:
        named = offer.deployment_id.hex()[:8]
        raise PeerFault(offer.peer, f"offer for deployment {named}, expected {deployment_id.hex()[:8]}")
    if not offer.from_s < offer.until_s <= offer.from_s + OFFER_S_MAX:
        raise PeerFault(offer.peer, f"offer of {offer.until_s - offer.from_s} s, expected 1 to {OFFER_S_MAX}")
    try:
        signer = recover(_hot_digest(offer), signed.by_hot)
    except BadSignatureError as error:
        raise PeerFault(offer.peer, f"offer's hot signature: {error}") from None
    if signer != evm_address(offer.hot):
        raise PeerFault(offer.peer, f"offer signed by hot key {signer}, names {evm_address(offer.hot)}")
    return offer


def _hot_digest(offer: SeatOffer) -> bytes:
    """What the hot key signs: 32 bytes that are the digest of no EIP-712 statement and no transaction."""
    return keccak(_HOT_TAG + digest(offer))
