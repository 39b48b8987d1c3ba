"""What an operator's machine takes, keeps and leaves, rule by rule; no market makes it exceed its bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.fleet.plan import (
    DAY_S,
    FORGET_S,
    RETRY_S,
    SEAT_S,
    TAKE_S,
    Action,
    Bounds,
    Candidate,
    Do,
    Observed,
    Stage,
    State,
    View,
    refusal,
    step,
)
from assay.protocol.types import Digest

NOW = 1_700_000_000
BOUNDS = Bounds(
    reserve=1_000, lots_most=300, runs_most=2, memory_bytes=10, disk_bytes=10, days_most=60, hours_least=1,
    upload_bytes_s=10, wait_s=7_200, absence_s=600, takes_per_day=4, poor_s=1_800,
)  # fmt: skip


def a_run(number: int = 1) -> Digest:
    return Digest(bytes([number]) * 32)


def a_candidate(number: int = 1, **changes: Any) -> Candidate:
    usual = Candidate(
        run_id=a_run(number), name=f"run {number}", buyer=f"buyer {number}", pay=2_000, step_pay_micro=10**6,
        funded_hours=10, lot=100, deadline=NOW + 30 * DAY_S, trains_until=NOW + 29 * DAY_S,
        start_by_s=0, absence_s=600, memory_bytes=4, disk_bytes=4, upload_bytes_s=4, fault=None,
    )  # fmt: skip
    return replace(usual, **changes)


def a_view(*candidates: Candidate, observed: dict | None = None, **changes: Any) -> View:
    usual = View(candidates=candidates, observed=observed or {}, free_stake=1_000)
    return replace(usual, **changes)


def taken(*candidates: Candidate, bounds: Bounds = BOUNDS, **changes: Any) -> State:
    """The state after these were offered."""
    return step(State(), a_view(*candidates, **changes), NOW, bounds)[0]


READY = Observed(is_ready=True, lot=100)
SEATED = replace(READY, is_seated=True)


def after(state: State, observed: Observed, now: int = NOW, *candidates: Candidate, **changes: Any):
    """The next state and actions, where this is observed of every seat."""
    seen = {seat.run_id: observed for seat in state.seats}
    return step(state, a_view(*candidates, observed=seen, **changes), now, BOUNDS)


def running() -> State:
    """One run that is taken and has its seat."""
    return after(after(taken(a_candidate()), READY)[0], SEATED)[0]


def only(state: State):
    (seat,) = state.seats
    return seat


# ---- what is taken


def test_the_runs_that_pay_best_are_taken_as_far_as_there_is_room():
    state = taken(a_candidate(1, pay=2_000), a_candidate(2, pay=4_000), a_candidate(3, pay=3_000))

    assert [seat.run_id for seat in state.seats] == [a_run(2), a_run(3)]
    assert [seat.number for seat in state.seats] == [0, 1]
    assert {seat.stage for seat in state.seats} == {Stage.TAKING}


@pytest.mark.parametrize(
    ("inside", "outside", "reason"),
    [
        ({"pay": 1_000}, {"pay": 999}, "pays less than the reserve"),
        ({"funded_hours": 1}, {"funded_hours": 0}, "too few hours"),
        ({"trains_until": NOW + 3_601}, {"trains_until": NOW + 3_600}, "closes before it has paid"),
        (
            {"start_by_s": NOW + 60, "trains_until": NOW + 3_661},
            {"start_by_s": NOW + 60, "trains_until": NOW + 3_660},
            "closes before it has paid",
        ),
        ({"deadline": NOW + 60 * DAY_S}, {"deadline": NOW + 60 * DAY_S + 1}, "for too long"),
        ({"lot": 300}, {"lot": 301}, "too large a lot"),
        (
            {"start_by_s": NOW + 7_200},
            {"start_by_s": NOW + 7_201},
            "until 2023-11-15 00:13:21 UTC, at most 2023",
        ),
        (
            {"absence_s": 600},
            {"absence_s": 599},
            "slashes once an opening is 599 s overdue, at least 600 s",
        ),
        ({"upload_bytes_s": 10}, {"upload_bytes_s": 11}, "uploads more than this machine's line"),
        ({"fault": None}, {"fault": "its data are not here"}, "its data are not here"),
    ],
)
def test_a_run_is_taken_at_each_bound_and_refused_beyond_it(inside, outside, reason):
    assert taken(a_candidate(**inside)).seats
    assert not taken(a_candidate(**outside)).seats
    assert reason in (refusal(a_candidate(**outside), State(), NOW, BOUNDS) or "")


@pytest.mark.parametrize(
    ("inside", "outside", "changes"),
    [
        ({"memory_bytes": 6}, {"memory_bytes": 7}, {}),
        ({"disk_bytes": 6}, {"disk_bytes": 7}, {}),
        ({"upload_bytes_s": 6}, {"upload_bytes_s": 7}, {}),
        ({"lot": 200}, {"lot": 201}, {}),
        ({"lot": 150}, {"lot": 151}, {"free_stake": 250}),
    ],
)
def test_a_second_run_is_taken_only_if_it_fits_beside_the_first(inside, outside, changes):
    first = a_candidate(1, pay=9_000)

    assert len(taken(first, a_candidate(2, **inside), **changes).seats) == 2
    assert len(taken(first, a_candidate(2, **outside), **changes).seats) == 1


def test_what_does_not_fit_keeps_no_smaller_run_out():
    state = taken(a_candidate(1, pay=9_000, memory_bytes=11), a_candidate(2))

    assert only(state).run_id == a_run(2)


def test_a_lot_that_was_locked_is_not_counted_against_free_stake_again():
    state = taken(a_candidate(1), free_stake=200)
    state, _ = after(state, READY, NOW, a_candidate(2), free_stake=100)

    assert [seat.run_id for seat in state.seats] == [a_run(1), a_run(2)]


@pytest.mark.parametrize("locked", [0, 40, 100, 150])
def test_what_of_a_promised_lot_is_not_locked_yet_counts_to_the_unit(locked):
    state, seen = taken(a_candidate(1)), Observed(lot=locked)
    free = 100 + max(100 - locked, 0)

    for free_stake, seats in ((free, 2), (free - 1, 1)):
        assert len(after(state, seen, NOW, a_candidate(2), free_stake=free_stake)[0].seats) == seats


def test_a_run_that_goes_on_has_its_lot_and_takes_a_place():
    for free_stake, seats in ((100, 2), (99, 1)):
        assert len(after(running(), SEATED, NOW, a_candidate(2), free_stake=free_stake)[0].seats) == seats
    one = replace(BOUNDS, runs_most=1)
    assert len(taken(a_candidate(1), a_candidate(2), bounds=one).seats) == 1


def test_lots_of_runs_that_are_over_count_until_they_are_free():
    state = running()
    ended, _ = after(state, replace(SEATED, is_done=True))
    beside = [a_candidate(2, lot=200), a_candidate(3, lot=100)]

    full, _ = after(ended, SEATED, NOW + 1, *beside)
    assert [seat.lot for seat in full.seats] == [100, 200]
    free, _ = after(ended, replace(SEATED, lot=0), NOW + 1, *beside)
    assert {seat.run_id for seat in free.seats} == {a_run(2), a_run(3)}


def test_takings_have_a_number_a_day():
    state = replace(State(), takes=(NOW - DAY_S + 1,) * 3)

    found, _ = step(state, a_view(a_candidate(1), a_candidate(2)), NOW, BOUNDS)
    assert len(found.seats) == 1
    later, _ = step(replace(state, takes=(NOW - DAY_S,) * 4), a_view(a_candidate(1)), NOW, BOUNDS)
    assert len(later.seats) == 1 and later.takes == (NOW,)


def test_nothing_is_taken_while_the_account_cannot_or_the_operator_ends():
    assert not taken(a_candidate(), fault="its hot key is not delegated").seats
    assert not taken(a_candidate(), is_draining=True).seats


def test_two_runs_that_pay_the_same_are_taken_in_the_order_of_their_ids():
    one = [a_candidate(number) for number in (3, 1, 2)]

    assert [seat.run_id for seat in taken(*one).seats] == [a_run(1), a_run(2)]


# ---- a run that was taken


def test_a_run_begins_once_its_folder_is_there_and_its_lot_is_locked():
    state = taken(a_candidate())
    for lacking in (replace(READY, is_ready=False), replace(READY, lot=99)):
        waits, actions = after(state, lacking)
        assert only(waits).stage is Stage.TAKING and actions == (Action(Do.TAKE, a_run()),)

    found, actions = after(state, READY)

    assert only(found).stage is Stage.RUNNING and only(found).has_process and actions == ()


def test_a_run_whose_lot_cannot_be_locked_is_given_up_and_tried_again_later():
    state = taken(a_candidate())
    for observed, now in ((Observed(), NOW + TAKE_S + 1), (Observed(is_open=False), NOW)):
        found, _ = after(state, observed, now)
        assert only(found).stage is Stage.ENDED
        assert found.avoided == {a_run().hex(): now + RETRY_S}
    assert only(after(state, Observed(), NOW + TAKE_S)[0]).stage is Stage.TAKING


def test_a_lot_that_was_locked_after_the_run_was_given_up_is_released():
    state, _ = after(taken(a_candidate()), Observed(), NOW + TAKE_S + 1)

    assert after(state, Observed(), NOW + TAKE_S + FORGET_S)[0].seats
    late, actions = after(state, replace(READY, can_release=True), NOW + TAKE_S + 30)
    assert actions == (Action(Do.RELEASE, a_run()),) and only(late).lot == 100
    gone, actions = after(late, Observed(), NOW + TAKE_S + 1 + FORGET_S)
    assert gone.seats == () and actions == (Action(Do.FORGET, a_run()),)


def test_a_seat_that_never_comes_is_not_waited_for_for_ever_and_its_buyer_is_avoided():
    state, _ = after(taken(a_candidate()), READY)

    assert only(after(state, READY, NOW + SEAT_S)[0]).stage is Stage.RUNNING
    found, _ = after(state, READY, NOW + SEAT_S + 1)
    assert only(found).stage is Stage.ENDED
    assert found.avoided == {a_run().hex(): NOW + 30 * DAY_S, "buyer 1": NOW + SEAT_S + 1 + DAY_S}


def test_a_run_that_waits_for_nodes_is_waited_for_until_it_must_have_started():
    start = NOW + 5 * SEAT_S
    state, _ = after(taken(a_candidate(start_by_s=start)), READY)

    assert only(after(state, READY, start + SEAT_S)[0]).stage is Stage.RUNNING
    assert only(after(state, READY, start + SEAT_S + 1)[0]).stage is Stage.ENDED


def test_a_process_that_had_a_seat_is_kept_up_whatever_its_log_says_later():
    state = running()
    for observed in (READY, replace(READY, fault="config.toml: unknown key")):
        assert only(after(state, observed, NOW + 10 * SEAT_S)[0]).stage is Stage.RUNNING


def test_a_process_that_cannot_run_and_never_had_a_seat_is_given_up_without_blame():
    state, _ = after(taken(a_candidate()), READY)
    found, _ = after(state, replace(READY, fault="data: shard 3 was altered"))

    assert (only(found).stage, only(found).why) == (Stage.ENDED, "data: shard 3 was altered")
    assert "buyer 1" not in found.avoided


def test_a_run_that_is_done_ends_and_is_never_taken_again():
    found, actions = after(running(), replace(SEATED, is_done=True), NOW + 1, a_candidate(1))

    assert (only(found).stage, only(found).has_process, actions) == (Stage.ENDED, False, ())
    assert "buyer 1" not in found.avoided
    free, _ = after(found, Observed(), NOW + 2, a_candidate(1))
    assert free.seats == ()


def test_a_buyer_that_ends_its_run_early_is_avoided_for_a_day():
    found, _ = after(running(), replace(SEATED, is_done=True, closed_by="buyer"))
    again = a_candidate(2, buyer="buyer 1", pay=10**9)

    assert after(found, SEATED, NOW + DAY_S - 1, again)[0].seat(a_run(2)) is None
    assert after(found, SEATED, NOW + DAY_S, again)[0].seat(a_run(2)) is not None


def test_a_lot_is_released_only_once_the_chain_says_that_it_may_be():
    found, _ = after(running(), replace(SEATED, is_done=True))

    assert after(found, SEATED, NOW + 10**6)[1] == ()
    assert after(found, replace(SEATED, can_release=True), NOW + 1)[1] == (Action(Do.RELEASE, a_run()),)


def test_nothing_is_sent_for_a_lot_that_is_free_already():
    found, _ = after(running(), replace(SEATED, is_done=True))
    free = replace(SEATED, lot=0, has_process=True, can_discharge=True, can_release=True)

    assert after(found, free, NOW + 1)[1] == ()


def test_what_verifiers_signed_for_a_lot_is_sent_although_it_cannot_be_released_yet():
    found, _ = after(running(), replace(SEATED, is_done=True))

    discharged = replace(SEATED, can_discharge=True)
    assert after(found, discharged, NOW + 1)[1] == (Action(Do.DISCHARGE, a_run()),)
    assert after(running(), discharged)[1] == ()


def test_a_run_that_nobody_ends_is_over_when_nothing_about_its_lot_can_be_disputed():
    found, actions = after(running(), replace(SEATED, can_release=True))

    assert only(found).stage is Stage.ENDED and actions == (Action(Do.RELEASE, a_run()),)


def test_the_times_that_a_seat_is_given_are_these():
    tried = taken(a_candidate())
    assert only(after(tried, Observed(), NOW + 600)[0]).stage is Stage.TAKING
    given_up, _ = after(tried, Observed(), NOW + 601)
    assert given_up.avoided == {a_run().hex(): NOW + 601 + 3_600}
    assert after(given_up, Observed(), NOW + 601 + 119)[0].seats
    assert after(given_up, Observed(), NOW + 601 + 120)[0].seats == ()

    ready, _ = after(tried, READY)
    assert only(after(ready, READY, NOW + 900)[0]).stage is Stage.RUNNING
    assert after(ready, READY, NOW + 901)[0].avoided["buyer 1"] == NOW + 901 + 86_400


# ---- what it pays


def test_a_run_is_poor_from_a_tenth_below_the_reserve_on_to_the_unit():
    bounds = replace(BOUNDS, reserve=10**6)
    for pay, is_poor in ((900_000, False), (899_999, True)):
        seen = {a_run(): replace(SEATED, pay=pay)}
        found, _ = step(running(), a_view(observed=seen), NOW + 5, bounds)
        assert only(found).poor_since == (NOW + 5 if is_poor else 0)


def paid(state: State, pay: int, now: int) -> State:
    return after(state, replace(SEATED, pay=pay), now)[0]


def test_a_run_that_pays_too_little_for_long_enough_is_left():
    state = paid(running(), 899, NOW)

    assert only(paid(state, 899, NOW + 1_799)).stage is Stage.RUNNING
    found, actions = after(state, replace(SEATED, pay=899), NOW + 1_800)
    assert only(found).stage is Stage.LEAVING and only(found).has_process
    assert actions == (Action(Do.LEAVE, a_run()),)
    assert found.avoided["buyer 1"] == NOW + 1_800 + DAY_S


def test_a_run_just_below_the_reserve_is_kept_and_one_that_recovers_begins_anew():
    kept = paid(paid(running(), 900, NOW), 900, NOW + 10**6)
    assert only(kept).stage is Stage.RUNNING

    poor = paid(running(), 899, NOW)
    between = paid(poor, 999, NOW + 100)
    assert only(between).poor_since == NOW  # not above the reserve yet
    good = paid(poor, 1_000, NOW + 100)
    assert only(good).poor_since == 0
    assert only(paid(paid(good, 0, NOW + 200), 0, NOW + 1_999)).stage is Stage.RUNNING


def test_what_a_run_promises_is_no_reason_to_leave_it():
    state = running()
    state = replace(state, seats=tuple(replace(seat, pay=0) for seat in state.seats))

    assert only(after(state, SEATED, NOW + 10**6)[0]).stage is Stage.RUNNING


# ---- the operator ends


def test_an_operator_that_ends_leaves_its_seats_and_waits_for_what_they_owe():
    state, actions = after(running(), SEATED, NOW, a_candidate(2), is_draining=True)
    assert only(state).stage is Stage.LEAVING and actions == (Action(Do.LEAVE, a_run()),)

    assert only(after(state, SEATED, NOW + 10**6, is_draining=True)[0]).stage is Stage.LEAVING
    done, _ = after(state, replace(SEATED, is_done=True), NOW + 1, is_draining=True)
    assert only(done).stage is Stage.ENDED and "buyer 1" not in done.avoided


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_operator_that_ends_gives_up_what_has_no_seat(is_begun):
    state = taken(a_candidate())
    if is_begun:
        state, _ = after(state, READY)

    found, _ = after(state, READY if is_begun else Observed(), NOW, is_draining=True)

    assert only(found).stage is Stage.ENDED and "buyer 1" not in found.avoided


# ---- whatever a market does

candidates = st.builds(
    lambda number, buyer, pay, lot, memory, deadline, wait, fault: a_candidate(
        number, buyer=f"buyer {buyer}", pay=pay, lot=lot, memory_bytes=memory,
        deadline=NOW + deadline, start_by_s=NOW + wait, fault=fault,
    ),
    st.integers(1, 40), st.integers(1, 3), st.integers(0, 10**4), st.integers(0, 400), st.integers(0, 12),
    st.integers(0, 70 * DAY_S), st.integers(0, 3 * DAY_S),
    st.sampled_from([None, None, None, "its data are not here"]),
)  # fmt: skip
seen = st.builds(
    Observed,
    is_ready=st.booleans(), can_release=st.booleans(), is_open=st.booleans(), is_seated=st.booleans(),
    is_done=st.booleans(), fault=st.sampled_from([None, "x"]), closed_by=st.sampled_from([None, "buyer"]),
    pay=st.none() | st.integers(0, 10**4),
)  # fmt: skip
looks = st.lists(
    st.tuples(
        st.lists(candidates, max_size=6), st.lists(seen, min_size=8, max_size=8), st.integers(1, DAY_S)
    ),
    max_size=12,
)


@settings(deadline=None)
@given(looks)
def test_no_market_makes_an_operator_exceed_its_bounds_or_forget_a_lot(history):
    state, now, locked = State(), NOW, dict[Digest, int]()
    for offered, views, passed in history:
        now += passed
        observed = {}
        for seat, one in zip(state.seats, views, strict=False):
            if seat.stage is Stage.TAKING and one.is_ready:
                locked[seat.run_id] = seat.lot
            elif one.can_release and seat.stage is Stage.ENDED:
                locked.pop(seat.run_id, None)
            observed[seat.run_id] = replace(one, lot=locked.get(seat.run_id, 0))
        before = state
        state, actions = step(state, a_view(*offered, observed=observed), now, BOUNDS)

        holders = [seat for seat in state.seats if seat.holds_machine]
        new = [seat for seat in state.seats if before.seat(seat.run_id) is None]
        assert len(holders) <= BOUNDS.runs_most
        assert len({seat.number for seat in holders}) == len(holders)
        assert sum(seat.memory_bytes for seat in holders) <= BOUNDS.memory_bytes
        assert sum(max(seat.lot, locked.get(seat.run_id, 0)) for seat in state.seats) <= BOUNDS.lots_most
        assert len([one for one in state.takes if one > now - DAY_S]) <= BOUNDS.takes_per_day
        assert all(seat.pay >= BOUNDS.reserve for seat in new)
        assert all(seat.start_by_s <= now + BOUNDS.wait_s for seat in new)
        assert all(before.avoided.get(seat.run_id.hex(), 0) <= now for seat in new)
        assert all(state.seat(run_id) is not None for run_id, lot in locked.items() if lot)
        assert {one.run_id for one in actions} <= {s.run_id for s in (*before.seats, *state.seats)}
        assert len(state.avoided) <= 2 * 40 + 3
