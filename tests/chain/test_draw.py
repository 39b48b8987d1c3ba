"""A set is drawn by stake, by numbers that nobody knew while stakes could change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest

from assay.chain.draw import (
    DELAY_S,
    LOCKED_S,
    STANDING_S,
    TERM_S,
    draw_order,
    drawn_at,
    next_draw,
    released_since,
    seed_of,
    weights_of,
)
from assay.chain.events import LotLocked, LotReleased
from assay.chain.statements import OPERATOR, VERIFIER, Address, term_of
from assay.participant.wallet.rotation import Candidate, DrawnSet
from assay.protocol.errors import ConfigError

DRAWN = 232 * TERM_S
DRAWS = 2_000
LEAST = 100


def an_account(number: int) -> Address:
    return Address(f"0x{number:040x}")


def a_seed(number: int) -> bytes:
    return seed_of(bytes(32), 2, number.to_bytes(32, "big"))


def stakes(*amounts: int) -> dict[Address, int]:
    return {an_account(at + 1): amount for at, amount in enumerate(amounts)}


def seated(weights: Mapping[Address, int], seats: int) -> Counter[Address]:
    """In how many of the draws each candidate has a seat."""
    found: Counter[Address] = Counter()
    for number in range(DRAWS):
        found.update(draw_order(weights, seats, a_seed(number))[:seats])
    return found


def at(event: type[LotLocked | LotReleased], time_s: int, account: int = 1, **changes: Any) -> Any:
    given = {"role": VERIFIER, "commitment": term_of(2), "amount": LEAST, **changes}
    if event is LotLocked:
        given["until"] = time_s + 2 * TERM_S
    place = {"block_number": 1, "block_hash": bytes(32), "tx_hash": bytes(32), "log_index": 0}
    return event(**place, block_time=time_s, account=an_account(account), **given)


# ---- who is drawn


@pytest.mark.parametrize(
    ("amounts", "seats"),
    [
        ((100,) * 12, 4),
        (tuple(range(100, 1_300, 100)), 4),
        ((1_000,) * 6 + (100,) * 30, 7),
        ((600, 500, 400, 300, 200, 100), 3),
    ],
)
def test_seats_follow_stake(amounts: Sequence[int], seats: int):
    weights = stakes(*amounts)
    found, total = seated(weights, seats), sum(amounts)

    chances = {account: weight * seats / total for account, weight in weights.items()}
    distance = sum(
        (found[account] - DRAWS * chance) ** 2 / (DRAWS * chance * (1 - chance))
        for account, chance in chances.items()
        if chance < 1
    )
    # Chi-square of so many degrees of freedom, five standard deviations above its mean.
    freedom = len(chances) - 1
    assert distance < freedom + 5 * (2 * freedom) ** 0.5
    assert all(found[account] == DRAWS for account, chance in chances.items() if chance == 1)


@pytest.mark.parametrize("pieces", [3, 10, 30])
def test_who_spreads_its_stake_over_more_accounts_has_no_more_seats(pieces: int):
    others = (1_000,) * 6
    found = seated(stakes(*others, *(3_000 // pieces,) * pieces), 7)
    own = sum(found[an_account(number)] for number in range(7, 7 + pieces))
    assert own / DRAWS == pytest.approx(7 * 3_000 / 9_000, rel=0.02)


def test_who_has_a_seats_share_or_more_is_certain_of_one_and_the_rest_is_shared():
    found = seated(stakes(10_000, 400, 300, 300, 200), 3)
    assert found[an_account(1)] == DRAWS
    for number, amount in enumerate((400, 300, 300, 200), start=2):
        assert found[an_account(number)] / DRAWS == pytest.approx(2 * amount / 1_200, rel=0.05)


def test_leaving_after_the_draw_never_seats_more_of_ones_own():
    rng = random.Random(1)
    for number in range(60):
        weights = stakes(*(rng.randrange(100, 1_000) for _ in range(9)))
        own = [an_account(which) for which in (2, 4, 5, 8)]
        order = draw_order(weights, 4, a_seed(number))

        def seats_of_own(gone: Sequence[Address], order: Sequence[Address] = order, own: Any = own) -> int:
            lacks = [Candidate(account=one, locked=1, lacks="left" if one in gone else None) for one in order]
            made = DrawnSet(
                version=2, seats=4, drawn_s=DRAWN, block=1, randomness=bytes(32), candidates=tuple(lacks)
            )
            return len(set(made.members) & set(own))

        everybody = seats_of_own(())
        for count in range(1, 5):
            assert all(seats_of_own(gone) <= everybody for gone in combinations(own, count))


def test_too_few_that_can_be_seated_are_no_set():
    candidates = [
        Candidate(account=an_account(n), locked=1, lacks=None if n < 4 else "left") for n in range(6)
    ]
    for seats, is_set in ((4, True), (5, False)):
        made = DrawnSet(
            version=2, seats=seats, drawn_s=DRAWN, block=1, randomness=bytes(32), candidates=tuple(candidates)
        )
        if is_set:
            assert len(made.members) == seats
        else:
            with pytest.raises(ConfigError, match="4 of 6 candidates"):
                _ = made.members


def test_the_order_does_not_depend_on_that_in_which_candidates_are_given():
    weights = stakes(*range(100, 2_000, 100))
    for number in range(20):
        shuffled = list(weights.items())
        random.Random(number).shuffle(shuffled)
        assert draw_order(dict(shuffled), 5, a_seed(number)) == draw_order(weights, 5, a_seed(number))


def test_deployment_set_and_block_each_draw_another_order():
    seeds = {
        seed_of(bytes([1]) * 32, 2, bytes(32)),
        seed_of(bytes(32), 3, bytes(32)),
        seed_of(bytes(32), 2, bytes([1]) * 32),
        seed_of(bytes(32), 2, bytes(32)),
    }
    assert len(seeds) == 4
    assert len({tuple(draw_order(stakes(*(100,) * 20), 4, seed)) for seed in seeds}) == 4


def test_vector():
    seed = seed_of(bytes(range(32)), 7, bytes(range(32, 64)))
    assert seed.hex() == "8080ec303733142343357026c4749ac7eb0a7aac928d61e71588d445cc730f69"
    found = draw_order(stakes(100, 250, 3_000, 100, 700, 400, 120, 900), 4, seed)
    assert [int(account, 16) for account in found] == [3, 8, 5, 2, 1, 6, 4, 7]


# ---- what counts


def test_what_was_locked_a_month_before_counts_and_what_came_later_does_not():
    in_time, late = DRAWN - LOCKED_S - 1, DRAWN - LOCKED_S
    lots = [at(LotLocked, in_time), at(LotLocked, in_time, 2), at(LotLocked, late, 2), at(LotLocked, late, 3)]
    assert weights_of(lots, DRAWN, LEAST) == {an_account(1): 100, an_account(2): 100}


def test_a_lot_that_was_released_before_the_draw_counts_nothing_however_often_it_was_locked():
    early = DRAWN - 2 * LOCKED_S
    lock, release = at(LotLocked, early), at(LotReleased, early)
    assert weights_of([lock, release] * 9, DRAWN, LEAST) == {}
    assert weights_of([*[lock, release] * 9, lock], DRAWN, LEAST) == {an_account(1): 100}
    assert weights_of([lock, at(LotReleased, DRAWN - 1), at(LotLocked, DRAWN - 1)], DRAWN, LEAST) == {}


def test_a_release_after_the_draw_changes_no_weight():
    lots = [at(LotLocked, DRAWN - 2 * LOCKED_S), at(LotReleased, DRAWN)]
    assert weights_of(lots, DRAWN, LEAST) == {an_account(1): 100}


def test_who_released_its_lot_after_the_draw_is_gone_also_if_it_locked_it_again():
    late = at(LotReleased, DRAWN, 2)
    lots = [
        at(LotReleased, DRAWN - 1),
        late,
        at(LotLocked, DRAWN + 1, 2),
        at(LotReleased, DRAWN, 3, role=OPERATOR),
    ]
    assert released_since(lots, DRAWN) == {an_account(2)}


def test_small_lots_and_those_of_operators_count_nothing():
    early = DRAWN - 2 * LOCKED_S
    half = at(LotLocked, early, amount=50)
    assert weights_of([half, at(LotLocked, early, 2, role=OPERATOR)], DRAWN, LEAST) == {}
    assert weights_of([half, half], DRAWN, LEAST) == {an_account(1): 100}


# ---- when


def test_a_draw_is_known_once_its_randomness_is():
    assert drawn_at(DRAWN + DELAY_S - 1) == DRAWN - TERM_S
    assert drawn_at(DRAWN + DELAY_S) == DRAWN
    assert drawn_at(DRAWN + TERM_S) == DRAWN


def test_a_set_stands_for_two_months_before_it_is_replaced_by_a_draw():
    assert next_draw(DRAWN - STANDING_S) == DRAWN
    assert next_draw(DRAWN - STANDING_S + 1) == DRAWN + TERM_S
