"""Rotation: hands over from the present verifier set to the next, by the signatures of the present one.

Room: participant (edge: the chain). Each member signs for itself; whoever has a quorum's signatures sends it.
The next set is named by its members' records, or drawn (chain/draw.py): whoever asks computes the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from assay.chain.commit_statement import evm_address
from assay.chain.draw import (
    DELAY_S,
    LOOK_BACK_S,
    STANDING_S,
    TERM_S,
    draw_order,
    drawn_at,
    next_draw,
    released_since,
    seed_of,
    weights_of,
)
from assay.chain.statements import VERIFIER, Address, Rotation, certificate, sign_digest, term_of
from assay.chain.text.times import span_text, time_text
from assay.participant.files.record import Role, SignedRecord
from assay.participant.wallet.account import Account
from assay.protocol.errors import ConfigError, NotYet

if TYPE_CHECKING:  # web3 takes a second to import
    from assay.chain.client import Sent
    from assay.chain.reader import ChainReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An account that had a lot for the next term when that was drawn."""

    account: Address
    locked: int  # token units that count
    lacks: str | None  # why it cannot be seated today


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSet:
    """The next verifier set as the chain's randomness says, and how."""

    version: int
    seats: int
    drawn_s: int  # Unix time
    block: int
    randomness: bytes
    candidates: tuple[Candidate, ...]  # in the order of the draw

    @property
    def members(self) -> tuple[Address, ...]:
        """The first that can be seated.

        Raises:
            ConfigError: they are fewer than there are seats.
        """
        found = [one.account for one in self.candidates if one.lacks is None]
        if len(found) < self.seats:
            raise ConfigError(
                f"{len(found)} of {len(self.candidates)} candidates can be seated in verifier set "
                f"{self.version}, which has {self.seats} seats: hand over to records that you agree on"
            )
        return tuple(found[: self.seats])


def named_members(records: Sequence[SignedRecord]) -> tuple[Address, ...]:
    """The accounts of verifiers' records.

    Raises:
        ConfigError: a record is of another role, or two have one account.
    """
    for signed in records:
        if signed.record.role is not Role.VERIFIER:
            raise ConfigError(f"a record of a {signed.record.role.name.lower()} among the next verifiers")
    accounts = {Address(evm_address(signed.record.account)) for signed in records}
    if len(accounts) != len(records):
        raise ConfigError("two of the next verifiers have one account")
    return tuple(accounts)


def draw_set(chain: ChainReader) -> DrawnSet:
    """The set that follows the present one by the last draw, as this chain's finalised blocks have it.

    Raises:
        NotYet: the present set has not stood long enough for that draw.
        ConfigError: this chain's blocks have no randomness.
        Unavailable: the endpoint is gone.
    """
    version, final = chain.set_version(), chain.head("finalized")
    drawn_s = drawn_at(final.time_s)
    since = chain.first_since(drawn_s - STANDING_S + 1, final.number)
    installed_s = chain.installed_s(version, since)
    if installed_s is not None:
        raise NotYet(
            f"verifier set {version} is there since {time_text(installed_s)}; a draw replaces it after "
            f"{span_text(STANDING_S)} at the earliest: that of {time_text(next_draw(installed_s))}"
        )
    last = chain.first_since(drawn_s, final.number) - 1
    block = chain.first_since(drawn_s + DELAY_S, final.number)
    randomness = chain.randomness(block)
    if randomness == chain.randomness(last):
        raise ConfigError(f"blocks {last} and {block} have the same randomness: sets cannot be drawn here")
    first = chain.first_since(drawn_s - LOOK_BACK_S, final.number)
    lots = chain.lots_of_term(version + 1, first, chain.block_number())
    gone = released_since(lots, drawn_s)
    weights = weights_of(lots, drawn_s, chain.minimum_stake(VERIFIER))
    seats = len(chain.verifier_set(version))
    order = draw_order(weights, seats, seed_of(chain.deployment.deployment_id, version + 1, randomness))
    return DrawnSet(
        version=version + 1,
        seats=seats,
        drawn_s=drawn_s,
        block=block,
        randomness=randomness,
        candidates=tuple(
            Candidate(
                account=account,
                locked=weights[account],
                lacks="it released its lot after the draw"
                if account in gone
                else _lacks(chain, account, version + 1, weights[account], drawn_s + TERM_S),
            )
            for account in order
        ),
    )


def sign_rotation(account: Account, members: Iterable[Address]) -> bytes:
    """This verifier's signature on handing over to these accounts.

    Raises:
        ConfigError: one of them cannot be seated.
        Unavailable: the endpoint is gone.
    """
    _, rotation = _next_set(account.chain, members)
    return sign_digest(account.chain.deployment.digest(rotation), account.keys.hot)


def rotate(account: Account, members: Iterable[Address], signatures: Sequence[bytes]) -> Sent:
    """Install these accounts as the next set.

    Raises:
        ConfigError: as `sign_rotation`. ChainRefused: the signatures are not a quorum of the present set.
    """
    ascending, rotation = _next_set(account.chain, members)
    cert = certificate(account.chain.deployment.digest(rotation), signatures)
    return account.chain.rotate_verifiers(ascending, rotation.from_epoch, cert)


def _lacks(chain: ChainReader, account: Address, version: int, locked: int, ends_s: int) -> str | None:
    """Why a candidate cannot be seated today: each of these is its own doing."""
    lot = chain.lot_of(account, VERIFIER, term_of(version))
    if lot.amount < locked:
        return "its lot is smaller now"
    if lot.until < ends_s:
        return f"its lot ends before {time_text(ends_s)}"
    if not int(chain.hot_key_of(account), 16):
        return "it delegated to no hot key"
    if not chain.staker_block(account):
        return "it announced no record"
    return None


def _next_set(chain: ChainReader, members: Iterable[Address]) -> tuple[list[Address], Rotation]:
    version, now = chain.set_version(), chain.timestamp()
    ascending = sorted(members, key=lambda account: int(account, 16))
    for account in ascending:
        lot = chain.lot_of(account, VERIFIER, term_of(version + 1))
        if lot.amount < chain.minimum_stake(VERIFIER) or lot.until < now:
            raise ConfigError(
                f"{account} has no lot for set {version + 1} that lasts beyond {time_text(now)}: "
                f"assay stake lock --set {version + 1}"
            )
    rotation = Rotation(
        deployment_id=chain.deployment.deployment_id,
        from_version=version,
        set_hash=keccak(encode(["address[]"], [ascending])),
        from_epoch=0,
    )
    return ascending, rotation
