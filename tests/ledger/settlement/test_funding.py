"""What a verifier reads in an escrow: how many epochs are paid for, and whether it is closing."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.chain.commit_statement import evm_address
from assay.chain.state import EscrowState, FinalEscrow
from assay.ledger.settlement.funding import UNPOSTED_MAX, Reading, check_close_delay, closing_s, reading_of
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError
from assay.protocol.messages import Closing
from assay.protocol.params import closing_rounds
from assay.protocol.randomness.drand import QUICKNET, named_at, released_s
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule

SPEC = a_spec(rounds=8)
PRICE = SPEC.epoch_price(0)
LAST = SPEC.epoch_price(SPEC.epochs - 1)
DEADLINE, DELAY = 10_000, 300
JUDGES = tuple(evm_address(member.account) for member in SPEC.verifiers)


def an_escrow(**changes) -> EscrowState:
    whole = {
        "buyer": "0x1", "epochs": SPEC.epochs, "set_version": 1, "pending": 0, "deadline": DEADLINE,
        "closes_at": DEADLINE, "budget": 2 * PRICE + LAST, "epoch_cap": PRICE, "reserved": 0, "paid": 0,
        "returned": 0, "spec_hash": digest(SPEC), "holds": False, "lot": 1,
    }  # fmt: skip
    return EscrowState(**{**whole, **changes})


POSTED = 2**40  # as many results as nobody needs


def final(now_s: int = 0, judges: tuple[str, ...] = JUDGES, **changes) -> FinalEscrow:
    return FinalEscrow(block=7, time_s=now_s, newest_s=now_s, escrow=an_escrow(**changes), judges=judges)


def funded(now_s: int = 0, **changes) -> int:
    return reading_of(SPEC, final(now_s, **changes), DELAY, POSTED).epochs


def test_the_run_has_two_whole_epochs_and_a_shorter_one():
    assert SPEC.epochs == 3 and 0 < LAST < PRICE


@pytest.mark.parametrize(
    ("budget", "epochs"),
    [
        (2 * PRICE + LAST, 3),
        (2 * PRICE + LAST - 1, 2),
        (2 * PRICE, 2),
        (2 * PRICE - 1, 1),
        (PRICE, 1),
        (PRICE - 1, 0),
        (1 << 100, 3),
    ],
)
def test_an_epoch_is_funded_if_the_budget_covers_it_and_all_before_to_the_unit(budget, epochs):
    assert funded(budget=budget) == epochs


def test_what_is_reserved_and_paid_for_earlier_epochs_takes_nothing_from_later_ones():
    assert funded(reserved=PRICE - 5, paid=PRICE) == 3


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ({"epoch_cap": PRICE - 1}, 0),
        ({"epochs": 1}, 1),
        ({"epochs": 99}, 3),
        ({"spec_hash": bytes(32)}, 0),
        ({"set_version": 2}, 3),
        ({"judges": JUDGES[1:]}, 0),
        ({"judges": (*JUDGES, "0x1")}, 0),
    ],
)
def test_a_cap_an_epoch_count_a_spec_and_a_verifier_set_that_cannot_pay_fund_nothing(changes, epochs):
    assert funded(**changes) == epochs


def test_where_nodes_may_train_more_an_epoch_is_funded_if_the_largest_steps_of_all_are():
    """Else some node would work for nothing: nobody knows beforehand which steps will be large."""
    sized = a_spec(
        rounds=8,
        rule=a_rule(sequences=2, sequences_max=6),
        compute=replace(SPEC.compute, micro_sequences=2),
    )

    def epochs(**changes) -> int:
        escrow = final(spec_hash=digest(sized), epoch_cap=3 * PRICE, **changes)
        return reading_of(sized, escrow, DELAY, POSTED).epochs

    assert sized.epoch_price(0) == 3 * PRICE
    assert [epochs(budget=budget) for budget in (PRICE, 3 * PRICE - 1, 3 * PRICE, 9 * PRICE)] == [0, 0, 1, 3]


@given(
    rounds=st.integers(1, 40),
    epoch_rounds=st.integers(1, 7),
    price=st.sampled_from([0, 1, 10**6, 10**9]),
    escrow_epochs=st.integers(0, 12),
    budget=st.integers(0, 4 * PRICE),
    epoch_cap=st.integers(0, 2 * PRICE),
)
def test_the_epochs_funded_are_those_that_paying_one_after_another_gives(
    rounds, epoch_rounds, price, escrow_epochs, budget, epoch_cap
):
    money = replace(SPEC.money, epoch_rounds=epoch_rounds, price_per_mtoken=price)
    spec = replace(SPEC, rounds=rounds, money=money)
    escrow = final(epochs=escrow_epochs, budget=budget, epoch_cap=epoch_cap, spec_hash=digest(spec))

    left, epochs = budget, 0
    for epoch in range(min(spec.epochs, escrow_epochs)):
        if spec.epoch_price(epoch) > min(left, epoch_cap):
            break
        left, epochs = left - spec.epoch_price(epoch), epoch + 1

    assert reading_of(spec, escrow, DELAY, POSTED).epochs == epochs
    assert spec.price == sum(map(spec.epoch_price, range(spec.epochs)))


@pytest.mark.parametrize("price", [0, 10**9])
def test_reading_an_escrow_takes_no_longer_for_more_epochs(price):
    money = replace(SPEC.money, epoch_rounds=1, price_per_mtoken=price)
    spec, epochs = replace(SPEC, rounds=2**60, money=money), 2**32 - 1
    whole = {"budget": 10**30, "epoch_cap": 10**30, "spec_hash": digest(spec)}
    begun = time.process_time()

    assert reading_of(spec, final(epochs=epochs, **whole), DELAY, POSTED).epochs == epochs
    assert spec.price == 2**60 * spec.epoch_price(0)
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize("epoch_rounds", [1, 4, 1000])
def test_training_waits_where_more_results_than_may_lack_are_not_posted(epoch_rounds: int):
    money = replace(SPEC.money, epoch_rounds=epoch_rounds, price_per_mtoken=0)
    spec = replace(SPEC, rounds=10**6, money=money)
    whole = final(epochs=10**6, epoch_cap=10**30, spec_hash=digest(spec))
    for posted in (0, 7):
        funded = reading_of(spec, whole, DELAY, posted).epochs
        began = funded * epoch_rounds  # the first round that waits
        ripe = sum(spec.ordered.settled_at(epoch) < began for epoch in range(funded))
        assert ripe - posted > UNPOSTED_MAX
        ripe = sum(spec.ordered.settled_at(epoch) < began - 1 for epoch in range(funded))
        assert ripe - posted <= UNPOSTED_MAX + 1
        assert reading_of(spec, whole, DELAY, posted + 1).epochs == funded + 1


def test_a_run_that_nobody_opened_is_not_funded_and_not_closing():
    nobodys = FinalEscrow(block=7, time_s=5, newest_s=5, escrow=None, judges=())
    assert reading_of(SPEC, nobodys, DELAY, POSTED) == Reading(epochs=0, closing=Closing.NO)


@pytest.mark.parametrize(
    ("closes_at", "now_s", "closing"),
    [
        (DEADLINE, DEADLINE - DELAY - 1, Closing.NO),
        (DEADLINE, DEADLINE - DELAY, Closing.BY_DEADLINE),
        (DEADLINE, DEADLINE + 1, Closing.BY_DEADLINE),
        (DEADLINE - 1, DEADLINE - DELAY - 2, Closing.NO),
        (1_000, 1_000 - DELAY, Closing.BY_BUYER),
    ],
)
def test_a_run_is_closing_when_only_the_close_delay_is_left(closes_at, now_s, closing):
    assert reading_of(SPEC, final(now_s, closes_at=closes_at), DELAY, POSTED).closing is closing


def test_an_epochs_price_is_what_it_costs_if_every_step_counts():
    steps = SPEC.money.epoch_rounds * len(SPEC.nodes)
    assert steps * SPEC.tokens_per_step * SPEC.money.price_per_mtoken // 10**6 == PRICE
    assert sum(SPEC.epoch_price(e) for e in range(SPEC.epochs)) <= (
        SPEC.rounds * len(SPEC.nodes) * SPEC.tokens_per_step * SPEC.money.price_per_mtoken // 10**6
    )


def test_rounds_that_wait_for_drand_last_as_long_as_it_takes():
    timing = replace(SPEC.timing, collect_ms=100, iteration_ms=17_100)
    drawn = replace(SPEC.audit, drand=QUICKNET)
    rounds = closing_rounds(drawn, 3) + 1
    now_s = begun_s = 1_800_000_000
    for _ in range(rounds):
        now_s = released_s(QUICKNET, named_at(QUICKNET, now_s))
    assert closing_s(SPEC.audit, timing, 3, 10) < now_s - begun_s <= closing_s(drawn, timing, 3, 10)


def test_a_run_that_closes_needs_its_closing_rounds_with_f_silent_leaders():
    timing = replace(SPEC.timing, collect_ms=10_000, iteration_ms=60_000)
    rounds = SPEC.closing_rounds + 1
    need = closing_s(SPEC.audit, timing, 4, 10)
    assert need >= 10 * rounds + 60 * (rounds // 3)
    assert closing_s(SPEC.audit, timing, 3, 10) < need  # nobody may be silent

    check_close_delay(need, need)
    with pytest.raises(ConfigError, match="the escrow of this deployment waits"):
        check_close_delay(need, need - 1)
    with pytest.raises(ConfigError, match="the escrow of this deployment waits"):
        check_close_delay(need, need + 9, finality_s=10)


@pytest.mark.parametrize(
    ("verifiers", "audit_rounds", "collect_ms", "epoch_rounds", "need_s"),
    [
        (3, 6, 9_000, 9, 9 * 9 + 2 * 10),  # nobody may be silent; to post a result takes ten seconds
        (3, 6, 9_001, 9, 9 * 9 + 1 + 2 * 10),
        (3, 6, 9_000, 8, 9 * 9 + 3 * 10),
        (3, 6, 9_000, 1, 9 * 9 + 10 * 10),
        (4, 6, 9_000, 9, 9 * 9 + (3 + 1) * 60 + 2 * 10),  # one of three successive leaders, and one more
        (4, 7, 9_000, 10, 10 * 9 + (4 + 1) * 60 + 2 * 10),
    ],
)
def test_closing_takes_the_rounds_of_an_audit_and_its_dispute_and_the_one_in_which_it_is_agreed(
    verifiers, audit_rounds, collect_ms, epoch_rounds, need_s
):
    audit = replace(SPEC.audit, audit_rounds=audit_rounds, dispute_rounds=2)
    timing = replace(SPEC.timing, collect_ms=collect_ms, iteration_ms=60_000)
    assert closing_s(audit, timing, verifiers, epoch_rounds) == need_s
