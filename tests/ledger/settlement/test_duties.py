"""Duties: every state of the contracts is ended by somebody, and every lie on chain is challenged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from assay.chain.state import (
    AppealPhase,
    AppealState,
    CasePhase,
    CaseState,
    DefencePhase,
    DefenceState,
    EpochPhase,
    EpochState,
    EscrowState,
    JuryState,
)
from assay.chain.statements import Address
from assay.ledger.settlement.duties import (
    NEWS_S,
    AppealView,
    CaseView,
    Challenge,
    Choose,
    ClearOrphan,
    CollectBond,
    CollectReward,
    CollectShare,
    ConcludeAppeal,
    DefenceView,
    Defend,
    DrawAppealJury,
    DrawJury,
    Effect,
    Enlist,
    EpochView,
    Execute,
    Expire,
    Finalize,
    LapseDefence,
    Look,
    PayOut,
    Propose,
    Refund,
    Sweep,
    TimeOut,
    Veto,
    Vote,
    VoteOnDefence,
    Watch,
    is_settled,
    step,
)

ME, OTHER = Address("0x" + "11" * 20), Address("0x" + "22" * 20)
NOW, WINDOW_S = 100_000, 86_400
CASE = b"c" * 32


def an_escrow(**changes: Any) -> EscrowState:
    whole: dict[str, Any] = {
        "buyer": OTHER, "epochs": 4, "set_version": 1, "pending": 0, "deadline": 2 * NOW,
        "closes_at": 2 * NOW, "budget": 10, "epoch_cap": 10, "reserved": 0, "paid": 0, "returned": 0,
        "spec_hash": bytes(32), "holds": False, "lot": 1,
    }  # fmt: skip
    return EscrowState(**{**whole, **changes})


def a_view(epoch: int, phase: EpochPhase, **changes: Any) -> EpochView:
    """An epoch whose result is ours, chained to the one before."""
    opinions = {name: changes.pop(name) for name in ("is_ripe", "is_right") if name in changes}
    digest = bytes([epoch + 1]) * 32
    whole: dict[str, Any] = {
        "phase": phase, "until": NOW + WINDOW_S, "total": 10, "claimed": 0, "challenger": OTHER,
        "digest": bytes(32) if phase is EpochPhase.NONE else digest,
        "prev_result": bytes([epoch]) * 32, "root": bytes(32), "model_hash": bytes(32),
        "proposer": OTHER, "bond": 5, "draw_from": 0, "jury": (), "voted": 0,
    }  # fmt: skip
    state = EpochState(**{**whole, **changes})
    return EpochView(epoch=epoch, state=state, **{"is_ripe": True, "is_right": True, **opinions})


def a_case(phase: CasePhase, *, is_implied: bool, **changes: Any) -> CaseView:
    whole: dict[str, Any] = {
        "phase": phase, "role": 0, "ppm": 1, "veto_ends_at": NOW + 10, "execute_by": NOW + 20,
        "payable_at": 0, "offender": OTHER, "challenger": OTHER, "opener": OTHER,
        "run_id": bytes(32), "evidence_hash": bytes(32), "lot": bytes(32), "signers": 0b111,
    }  # fmt: skip
    return CaseView(case_id=CASE, state=CaseState(**{**whole, **changes}), is_implied=is_implied)


def a_look(*epochs: EpochView, **changes: Any) -> Look:
    whole: dict[str, Any] = {
        "at_s": 0.0, "now": NOW, "block": 7, "me": ME, "challenge_window_s": WINDOW_S,
        "resolve_window_s": WINDOW_S,
        "escrow": an_escrow(), "epochs": epochs,
    }  # fmt: skip
    return Look(**{**whole, **changes})


def due(look: Look, patience_s: float = 0.0) -> tuple[Effect, ...]:
    return step(Watch(patience_s=patience_s), look)[1]


def due_later(look: Look, seconds: float = NEWS_S) -> tuple[Effect, ...]:
    """What is due if the same is seen after so long again, and was not at first."""
    watch, first = step(Watch(patience_s=0.0), look)
    assert first == ()
    return step(watch, replace(look, at_s=look.at_s + seconds))[1]


NONE, PROPOSED, CHALLENGED = EpochPhase.NONE, EpochPhase.PROPOSED, EpochPhase.CHALLENGED
FINAL = EpochPhase.FINAL


def test_the_first_ripe_epoch_without_a_result_is_proposed_and_no_later_one():
    assert due(a_look(a_view(0, FINAL), a_view(1, NONE), a_view(2, NONE))) == (Propose(epoch=1),)
    assert due(a_look(a_view(0, NONE, is_ripe=False))) == ()


def test_nothing_is_proposed_to_an_escrow_that_is_closed_or_was_never_opened():
    for escrow in (None, an_escrow(closes_at=NOW, budget=0)):
        assert due(a_look(a_view(0, NONE), escrow=escrow)) == ()


def test_a_result_that_is_not_ours_is_challenged_in_its_window_and_not_made_final_while_the_run_is_open():
    wrong = a_view(0, PROPOSED, is_right=False)
    assert due(a_look(wrong)) == (Challenge(epoch=0),)
    assert due(a_look(wrong, a_view(1, NONE))) == (Challenge(epoch=0),)  # nothing is built on it
    assert due(a_look(wrong, now=wrong.state.until)) == ()


def test_a_wrong_result_that_stood_its_window_is_made_final_once_the_run_is_over_so_the_rest_returns():
    """The buyer's rest and the operators' lots wait for it, and its author may never come to finish it."""
    wrong = a_view(0, PROPOSED, is_right=False, until=NOW)
    assert due(a_look(wrong, escrow=an_escrow(closes_at=NOW + 1, pending=1))) == ()
    assert due(a_look(wrong, escrow=an_escrow(closes_at=NOW, pending=1))) == (Finalize(epoch=0),)
    standing = replace(wrong, state=replace(wrong.state, until=NOW + 1))
    assert due(a_look(standing, escrow=an_escrow(closes_at=NOW, pending=1))) == (Challenge(epoch=0),)


def test_a_result_that_nobody_can_have_computed_is_challenged_before_its_window_ends():
    """A quorum that posts all epochs on the first day would else be believed by everybody who is honest."""
    premature = a_view(0, PROPOSED, is_ripe=False, is_right=None)
    late = premature.state.until - WINDOW_S // 4
    assert due_later(a_look(premature, now=late)) == ()
    assert due_later(a_look(premature, now=late + 1)) == (Challenge(epoch=0, is_premature=True),)
    assert due_later(a_look(premature, now=late + 1, challenge_window_s=3)) == ()  # a local chain's


def test_who_comes_back_after_a_day_has_time_to_catch_up_before_it_challenges_what_it_cannot_judge():
    """Each of these results may be right, and each challenge locks a bond."""
    away = a_look(*(a_view(at, PROPOSED, is_ripe=False, is_right=None, until=NOW + 1) for at in range(5)))
    assert due_later(away, NEWS_S - 1) == ()


def test_a_ripe_result_that_we_cannot_compute_now_is_not_challenged():
    """A verifier whose disk is full would lose bond after bond to results that are right."""
    unknown = a_view(0, PROPOSED, is_ripe=True, is_right=None)
    assert due(a_look(unknown, now=unknown.state.until - 1)) == ()


def test_a_juror_finds_a_result_wrong_that_its_manifests_do_not_reach_in_three_quarters_of_the_time():
    """Else a quorum could post epochs that a run which waits for money never trains, and ruin challengers."""
    changes = {"until": NOW + WINDOW_S, "jury": (OTHER, ME, ME), "is_right": None}
    premature = a_view(0, CHALLENGED, is_ripe=False, **changes)
    late = premature.state.until - WINDOW_S // 4
    assert due_later(a_look(premature, now=late)) == ()
    assert due_later(a_look(premature, now=late + 1)) == (
        Vote(epoch=0, digest=premature.state.digest, is_right=False, is_premature=True),
    )
    assert due_later(a_look(premature, now=late + 1, resolve_window_s=10)) == ()  # a local chain's
    unknown = a_view(0, CHALLENGED, is_ripe=True, **changes)  # whose parameters we have not computed yet
    assert due(a_look(unknown, now=late + 1)) == ()


def test_results_become_final_in_order():
    first, second = a_view(0, PROPOSED, until=NOW), a_view(1, PROPOSED, until=NOW)
    assert due(a_look(first, second)) == (Finalize(epoch=0),)
    assert due(a_look(a_view(0, FINAL), second)) == (Finalize(epoch=1),)
    assert due(a_look(a_view(0, PROPOSED, until=NOW + 1))) == ()


def test_a_challenge_is_drawn_voted_on_by_its_jurors_once_and_timed_out():
    waiting = a_view(0, CHALLENGED, draw_from=8)
    assert due(a_look(waiting)) == ()
    assert due(a_look(waiting, block=8)) == (DrawJury(epoch=0),)
    drawn = a_view(0, CHALLENGED, jury=(OTHER, ME, ME), is_right=False)
    assert due(a_look(drawn)) == (Vote(epoch=0, digest=drawn.state.digest, is_right=False),)
    assert due(a_look(a_view(0, CHALLENGED, jury=(OTHER, ME, ME), voted=0b110))) == ()
    assert due(a_look(a_view(0, CHALLENGED, jury=(OTHER,)))) == ()
    assert due(a_look(a_view(0, CHALLENGED, jury=(ME,), is_right=None))) == ()
    assert due(a_look(drawn, now=drawn.state.until)) == (TimeOut(epoch=0),)


def test_an_orphan_waits_for_its_predecessor_as_long_as_that_can_come_back():
    orphan = a_view(1, PROPOSED, prev_result=b"x" * 32)
    gone = a_view(0, NONE)
    assert due(a_look(gone, orphan)) == (Propose(epoch=0),)
    assert due(a_look(gone, orphan, escrow=an_escrow(closes_at=NOW, pending=1))) == (ClearOrphan(epoch=1),)
    assert due(a_look(a_view(0, PROPOSED), orphan)) == (ClearOrphan(epoch=1),)


def test_what_nobody_claimed_is_swept_after_its_time():
    assert due(a_look(a_view(0, FINAL, until=NOW))) == (Sweep(epoch=0),)
    assert due(a_look(a_view(0, FINAL, until=NOW, claimed=10))) == ()
    assert due(a_look(a_view(0, FINAL, until=NOW + 1))) == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (Refund(),)),
        ({"budget": 0}, ()),
        ({"budget": 0, "holds": True}, (Refund(),)),  # the verifiers' stake waits for it
        ({"pending": 1}, ()),
        ({"closes_at": NOW + 1}, ()),
    ],
)
def test_a_run_that_is_over_is_ended(changes: dict[str, Any], expected: tuple[Effect, ...]):
    assert due(a_look(escrow=an_escrow(**{"closes_at": NOW, **changes}))) == expected


def test_what_is_ours_is_fetched_and_our_stake_listed_without_patience():
    look = a_look(bonds_owed=1, rewards_owed=1, entries_lacking=1)
    assert set(due(look, patience_s=60)) == {CollectBond(), CollectReward(), Enlist()}


def test_a_buyers_share_is_sent_to_it_once_nobody_else_has_done_so():
    look = a_look(share_owed=1)
    watch, effects = step(Watch(patience_s=60), look)
    assert effects == ()
    _, effects = step(watch, replace(look, at_s=look.at_s + 60))
    assert effects == (CollectShare(),)


def test_a_case_that_our_manifests_do_not_imply_is_vetoed_to_its_last_second():
    opened = a_case(CasePhase.OPEN, is_implied=False)
    executed = a_case(CasePhase.EXECUTED, is_implied=False, payable_at=NOW + 30)
    assert due(a_look(cases=(opened,), now=NOW + 19)) == (Veto(case_id=CASE),)
    assert due(a_look(cases=(opened,), now=NOW + 20)) == (Expire(case_id=CASE),)
    assert due(a_look(cases=(executed,), now=NOW + 29)) == (Veto(case_id=CASE),)
    assert due(a_look(cases=(executed,), now=NOW + 30)) == (PayOut(case_id=CASE),)


def test_a_case_that_our_manifests_imply_is_seen_through():
    opened = a_case(CasePhase.OPEN, is_implied=True)
    assert due(a_look(cases=(opened,))) == ()
    assert due(a_look(cases=(opened,), now=NOW + 10)) == (Execute(case_id=CASE),)
    assert due(a_look(cases=(opened,), now=NOW + 20)) == (Expire(case_id=CASE),)
    executed = a_case(CasePhase.EXECUTED, is_implied=True, payable_at=NOW + 30)
    assert due(a_look(cases=(executed,), now=NOW + 30)) == (PayOut(case_id=CASE),)
    assert due(a_look(cases=(a_case(CasePhase.PAID, is_implied=True),))) == ()


def test_what_anybody_may_do_is_left_to_others_for_the_patience_and_then_done():
    watch, look = Watch(patience_s=60), a_look(a_view(0, PROPOSED, until=NOW))
    watch, first = step(watch, look)
    watch, second = step(watch, replace(look, at_s=59.0))
    watch, third = step(watch, replace(look, at_s=60.0))
    assert (first, second, third) == ((), (), (Finalize(epoch=0),))


def test_a_case_that_lapses_before_the_patience_ends_is_left_to_nobody():
    look = a_look(cases=(a_case(CasePhase.OPEN, is_implied=True),), now=NOW + 10)  # until NOW + 20

    assert due(look, patience_s=10) == (Execute(case_id=CASE),)
    assert due(look, patience_s=9.9) == ()


def test_who_waited_once_posts_every_result_that_lacks():
    look = a_look(a_view(0, NONE), a_view(1, NONE), escrow=an_escrow(closes_at=NOW + 1000))
    watch, _ = step(Watch(patience_s=60), look)
    watch, first = step(watch, replace(look, at_s=60.0))
    posted = replace(look, epochs=(a_view(0, PROPOSED, is_right=True), a_view(1, NONE)))
    watch, second = step(watch, replace(posted, at_s=61.0))
    assert (first, second) == ((Propose(epoch=0),), (Propose(epoch=1),))

    all_posted = replace(look, epochs=(a_view(0, PROPOSED, is_right=True),))
    watch, _ = step(watch, replace(all_posted, at_s=62.0))
    assert step(watch, replace(posted, at_s=63.0))[1] == ()


def test_a_result_is_posted_at_once_where_the_escrow_closes_within_the_patience():
    look = a_look(a_view(0, NONE), escrow=an_escrow(closes_at=NOW + 60))
    assert due(look, patience_s=60) == (Propose(epoch=0),)
    assert due(look, patience_s=59) == ()


def test_patience_begins_anew_when_a_thing_was_not_wanted_in_between():
    watch, look = Watch(patience_s=60), a_look(a_view(0, PROPOSED, until=NOW))
    watch, _ = step(watch, look)
    watch, _ = step(watch, replace(look, at_s=50.0, epochs=(a_view(0, FINAL),)))
    assert step(watch, replace(look, at_s=61.0))[1] == ()


def test_an_effect_that_did_not_come_about_is_repeated_after_five_seconds_and_not_before():
    watch, look = Watch(patience_s=0), a_look(a_view(0, NONE))
    watch, first = step(watch, look)
    watch, second = step(watch, replace(look, at_s=4.9))
    watch, third = step(watch, replace(look, at_s=5.0))
    assert (first, second, third) == ((Propose(epoch=0),), (), (Propose(epoch=0),))


def test_a_run_is_settled_when_every_epoch_in_view_is_final():
    assert is_settled(a_look(a_view(0, FINAL), a_view(1, EpochPhase.SWEPT)))
    assert not is_settled(a_look(a_view(0, FINAL), a_view(1, PROPOSED)))


def an_appeal(
    *defences: DefenceView, phase: AppealPhase = AppealPhase.OPEN, answer_by: int = NOW + 10, **known: bool
) -> AppealView:
    ended = (DefencePhase.NONE, DefencePhase.ENDED)
    state = AppealState(
        phase=phase, answer_by=answer_by, operators=100, signers=0b111, version=1, accused=OTHER,
        playing=sum(one.state.phase not in ended for one in defences), opener=OTHER, run_id=bytes(32),
        positions=bytes(32), bond_id=bytes(32),
    )  # fmt: skip
    return AppealView(case_id=CASE, state=state, defences=defences, **known)


def a_defence(
    phase: DefencePhase,
    *,
    by: Address = OTHER,
    jury: tuple[Address, ...] = (),
    voted: int = 0,
    **known: Any,
) -> DefenceView:
    state = DefenceState(
        phase=phase, until=NOW + 40, first=3, last=4, asked=5, entries=9, start=bytes(32), end=b"e" * 32,
        positions=bytes(32), bond_id=bytes(32),
    )  # fmt: skip
    seats = JuryState(seats=jury, right=voted, wrong=0)
    return DefenceView(defender=by, state=state, jury=seats, **known)


def of_appeal(*defences: DefenceView, now: int = NOW, block: int = 7, **changes: Any) -> tuple[Effect, ...]:
    view = an_appeal(*defences, **changes)
    return due(a_look(appeals=(view,), now=now, block=block, draw_delay=3, vote_window_s=40))


CUT, CHOOSE, JURY = DefencePhase.CUT, DefencePhase.CHOOSE, DefencePhase.JURY


def test_an_order_that_we_signed_and_can_check_is_defended_once_in_the_answer_window():
    assert of_appeal(may_defend=True) == (Defend(case_id=CASE),)
    assert of_appeal(may_defend=False) == ()
    assert of_appeal(a_defence(CUT, by=ME), may_defend=True) == ()
    assert of_appeal(a_defence(DefencePhase.ENDED, by=ME), may_defend=True) == ()
    assert of_appeal(a_defence(CUT), may_defend=True) == (Defend(case_id=CASE),)  # a friend may defend badly
    assert of_appeal(may_defend=True, now=NOW + 9) == (Defend(case_id=CASE),)
    assert Defend(case_id=CASE) not in of_appeal(may_defend=True, now=NOW + 10)


def test_our_own_cut_is_chosen_from_and_nobody_elses():
    assert of_appeal(a_defence(CHOOSE, by=ME), may_defend=True) == (Choose(case_id=CASE),)
    assert of_appeal(a_defence(CHOOSE), may_defend=False) == ()


def test_an_appeal_without_a_defence_left_is_concluded_after_the_answer_window_and_not_before():
    assert of_appeal(now=NOW + 9) == ()
    assert of_appeal(now=NOW + 10) == (ConcludeAppeal(case_id=CASE),)
    assert of_appeal(a_defence(DefencePhase.ENDED), now=NOW + 10) == (ConcludeAppeal(case_id=CASE),)
    assert of_appeal(a_defence(CUT), now=NOW + 10) == ()


def test_a_defence_lapses_when_its_time_is_over_or_its_appeal_has_ended():
    lapse = LapseDefence(case_id=CASE, defender=OTHER)
    for phase in (CUT, CHOOSE, JURY):
        assert of_appeal(a_defence(phase, jury=(OTHER,)), now=NOW + 39) == ()
        assert of_appeal(a_defence(phase, jury=(OTHER,)), now=NOW + 40) == (lapse,)
        assert of_appeal(a_defence(phase), phase=AppealPhase.LOST) == (lapse,)
    assert of_appeal(a_defence(DefencePhase.ENDED), phase=AppealPhase.LOST) == ()


def test_the_jury_of_a_defence_is_drawn_and_votes_by_what_it_knows():
    assert of_appeal(a_defence(JURY)) == ()
    assert of_appeal(a_defence(JURY), block=8) == (DrawAppealJury(case_id=CASE, defender=OTHER),)
    for is_right in (True, False):
        vote = VoteOnDefence(case_id=CASE, defender=OTHER, end=b"e" * 32, is_right=is_right)
        assert of_appeal(a_defence(JURY, jury=(OTHER, ME), is_right=is_right)) == (vote,)
        assert of_appeal(a_defence(JURY, jury=(OTHER, ME), voted=0b10, is_right=is_right)) == ()
        assert of_appeal(a_defence(JURY, jury=(OTHER,), is_right=is_right)) == ()


def test_what_is_not_shown_in_three_quarters_of_the_time_is_wrong_to_who_could_judge_it():
    unknown = a_defence(JURY, jury=(ME,))
    wrong = VoteOnDefence(case_id=CASE, defender=OTHER, end=b"e" * 32, is_right=False)
    assert of_appeal(unknown, may_judge=True, now=NOW + 30) == ()
    assert of_appeal(unknown, may_judge=True, now=NOW + 31) == (wrong,)
    assert of_appeal(unknown, now=NOW + 31) == ()


def test_a_case_that_is_appealed_is_left_alone():
    for is_implied in (True, False):
        view = a_case(CasePhase.APPEALED, is_implied=is_implied)
        assert due(a_look(cases=(view,), now=view.state.execute_by)) == ()
