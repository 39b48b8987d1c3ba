"""Draw: which candidates are the next verifier set, by their stake and by a block's randomness.

Room: chain (pure). Events and the block's number come in as values; who reads them is
participant/wallet/rotation.py. Why it is so: docs/decisions/0075-drawn-sets.md.

    drawn_s - LOCKED_S: no later lock counts
    drawn_s:            no later release counts
    drawn_s + DELAY_S:  the first block since then has the randomness

Every `TERM_S` of Unix time there is one draw, which nobody calls and nobody can move. It puts its candidates
into one order, by Pareto sampling: a candidate's chance of one of the seats is its share of the stake times
the seats, to a few per cent, over however many accounts the stake is spread. The set is the first of the
order that can be seated today. Who leaves after the randomness is known gains nothing: nobody's place depends
on who is still there.

Reference:
    Rosen, "On sampling with probability proportional to size", Journal of Statistical Planning and
    Inference 62 (1997): Pareto sampling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from eth_utils.crypto import keccak

from assay.chain.events import LotLocked, LotReleased
from assay.chain.statements import LOCK_S_MAX, VERIFIER, Address

DAY_S = 86_400
TERM_S = 90 * DAY_S  # between two draws; a seated lot has to last as long
STANDING_S = 60 * DAY_S  # for which a set stood before another is drawn: time to lock for the next one
LOCKED_S = 30 * DAY_S  # for which stake was locked before it counts in a draw
DELAY_S = 3_600  # from the last release that counts to the randomness: more than a proposer sees ahead
LOOK_BACK_S = LOCK_S_MAX - TERM_S  # what was locked before that ends too early, unless it was locked again
_TAG = b"assay/draw/1"
_WHOLE = 1 << 256


def drawn_at(final_s: int) -> int:
    """The time of the last draw whose randomness is known, by the finalised block's time; Unix seconds."""
    return (final_s - DELAY_S) // TERM_S * TERM_S


def next_draw(installed_s: int) -> int:
    """The time of the first draw that replaces a set which was installed at this time; Unix seconds."""
    return -(-(installed_s + STANDING_S) // TERM_S) * TERM_S


def seed_of(deployment_id: bytes, version: int, randomness: bytes) -> bytes:
    """What verifier set `version` of a deployment is drawn by: 32 bytes, of a block's 32 random ones."""
    return keccak(_TAG + deployment_id + version.to_bytes(4, "big") + randomness)


def weights_of(lots: Iterable[LotLocked | LotReleased], drawn_s: int, least: int) -> dict[Address, int]:
    """The candidates of a draw: what each account locked in time and did not release before the draw.

    Args:
        lots: Of one term, in chain order.
        drawn_s: The draw's time.
        least: The least lot that counts, token units.

    Returns:
        Token units, at least `least`, by account.
    """
    found: dict[Address, int] = {}
    for lot in lots:
        if lot.role != VERIFIER or lot.block_time >= drawn_s:
            continue
        if isinstance(lot, LotReleased):
            found.pop(lot.account, None)
        elif lot.block_time < drawn_s - LOCKED_S:
            found[lot.account] = found.get(lot.account, 0) + lot.amount
    return {account: weight for account, weight in found.items() if weight >= least}


def released_since(lots: Iterable[LotLocked | LotReleased], drawn_s: int) -> set[Address]:
    """The accounts that released a lot of this term after the draw, and may have locked it again.

    They stay out: who comes and goes would have each member of the present set sign another list.
    """
    return {
        lot.account
        for lot in lots
        if isinstance(lot, LotReleased) and lot.role == VERIFIER and lot.block_time >= drawn_s
    }


def draw_order(weights: Mapping[Address, int], seats: int, seed: bytes) -> list[Address]:
    """All candidates, in the order in which they are seated.

    The chance of a place among the first `seats` is the share of the weight times `seats`. Who has a seat's
    share or more is certain of one, and of no second; the others share what is left.

    Args:
        weights: By account, whole numbers above 0.
        seats: Of the set, above 0.
        seed: `seed_of`; nobody knew it when the last weight could change.
    """
    left, seats_left = dict(weights), seats
    total = sum(left.values())
    # Taking out one that is certain leaves fewer seats for less weight, which may make another certain.
    while certain := [one for one, weight in left.items() if weight * seats_left >= total]:
        for account in certain:
            total -= left.pop(account)
        seats_left -= len(certain)

    def place(account: Address) -> tuple[Fraction, int]:
        number = int(account, 16)
        if account not in left:
            return Fraction(-1), number
        chance = left[account] * seats_left  # of `total`
        uniform = int.from_bytes(keccak(seed + number.to_bytes(20, "big")), "big")
        return Fraction(uniform * (total - chance), (_WHOLE - uniform) * chance), number

    return sorted(weights, key=place)
