"""Consensus: what a verifier keeps, repeats and waits for, just inside each bound and just outside."""

from __future__ import annotations

import pytest

from assay.protocol.agreement.finality import SETTLED
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError, MalformedMessage, OutOfPhase
from assay.protocol.messages import VoteKind
from assay.protocol.types import Iteration, RoundId
from assay.verifier.consensus.check import authenticate
from assay.verifier.consensus.machine import body, restore, step
from assay.verifier.consensus.types import (
    Built,
    Examined,
    NeedBlock,
    NeedSync,
    Persist,
    Ready,
    Received,
    Send,
    SignAndSendProposal,
    Tick,
)
from tests.verifier.consensus.test_machine import (
    DOMAIN,
    PEERS,
    a_certificate,
    a_config,
    a_dummy,
    a_manifest,
    a_proposal,
    a_state,
    a_vote,
    of,
    run,
    voted,
)

DUMMY, NOTARISE, FINALISE = VoteKind.DUMMY, VoteKind.NOTARISE, VoteKind.FINALISE


def given_up(count):
    """A state in which a quorum gave up the first `count` iterations."""
    return run(a_state(), *(a_dummy(number) for number in range(1, count + 1)))[0]


@pytest.mark.parametrize("iteration", [5, 37])
def test_votes_of_sixteen_iterations_before_and_after_are_kept(iteration):
    state, _ = run(given_up(20), a_vote(0, iteration, DUMMY))

    assert state.iteration == 21
    assert set(state.votes) == {iteration}


@pytest.mark.parametrize("iteration", [4, 38])
def test_votes_of_the_seventeenth_iteration_before_or_after_are_refused(iteration):
    with pytest.raises(OutOfPhase):
        step(given_up(20), Received(a_vote(0, iteration, DUMMY), 0))


def test_votes_are_forgotten_once_their_iteration_is_sixteen_back():
    state, _ = run(a_state(), a_vote(0, 1, DUMMY), a_vote(0, 2, DUMMY))
    dummies = [a_dummy(number) for number in range(1, 18)]

    assert set(run(state, *dummies[:16])[0].votes) == {1, 2}
    assert set(run(state, *dummies[:17])[0].votes) == {2}


def test_an_equivocator_is_remembered_until_its_iteration_is_final():
    first, other = a_proposal(), a_proposal(mark=b"b")
    lies = [a_vote(0, number, NOTARISE, block) for number in (1, 2) for block in (first, other)]
    state, _ = run(a_state(), first, *lies)
    assert state.accused == {(1, PEERS[0]), (2, PEERS[0])}

    state, _ = run(state, a_certificate(first, FINALISE))

    assert state.accused == {(2, PEERS[0])}


@pytest.mark.parametrize(("count", "factor"), [(3, 1), (4, 2), (11, 4), (15, 8), (16, 16), (40, 16)])
def test_deadlines_double_with_each_rotation_of_leaders_up_to_sixteen_times(count, factor):
    state = given_up(count)

    assert voted(state, Tick(60_000 * factor - 1)) == []
    assert [vote.kind for vote in voted(state, Tick(60_000 * factor))] == [DUMMY]


def test_deadlines_count_the_rotations_since_the_last_notarised_block():
    first = a_proposal()
    second = a_proposal(2, after=first)
    blocks = (first, a_certificate(first), second, a_certificate(second))
    for count, factor in ((3, 1), (4, 2), (8, 4)):
        state, _ = run(a_state(), *blocks, *(a_dummy(3 + number) for number in range(count)))
        late_ms = 4_000 + 4_000 * factor  # the short time, after that in which its parent may become final
        kinds = [{vote.kind for vote in voted(state, Tick(at))} for at in (late_ms - 1, late_ms)]
        assert [DUMMY in one for one in kinds] == [False, True]


def test_all_that_was_given_up_since_the_last_block_is_repeated_each_time_if_it_is_little():
    block = a_proposal(20, dummies=range(1, 20))
    state, _ = run(given_up(19), block, a_certificate(block), *(a_dummy(n) for n in range(21, 29)))
    for now_ms in (1_000, 2_000):
        state, effects = run(state, Tick(now_ms))
        assert {one.message.vote.iteration for one in of(Send, effects)} == {*range(20, 29)}


def test_the_body_of_a_block_that_we_voted_for_is_kept_after_its_iteration_and_of_any_other_not():
    ours, other = a_proposal(), a_proposal(2, dummies=(1,))
    state, _ = run(a_state(), ours, Examined(digest(ours.block), True), a_dummy(1), other, a_dummy(2))

    assert body(state, digest(ours.block)) == ours
    assert body(state, digest(other.block)) is None


def test_a_proposal_for_the_iteration_of_the_last_final_block_or_before_is_refused():
    first = a_proposal(2, dummies=(1,))
    state, _ = run(a_state(), first, a_certificate(first, FINALISE))
    for late in (first, a_proposal(1)):
        number = late.block.iteration
        with pytest.raises(OutOfPhase, match=f"proposal for iteration {number}, final since"):
            step(state, Received(late, 0))


def test_whoever_votes_for_a_block_is_ready_for_its_round_from_then_on():
    first = a_proposal()
    second = a_proposal(2, after=first)
    state, _ = run(a_state(), Ready(RoundId(0), 500), first, a_certificate(first), Tick(700))
    state, _ = run(state, second, Examined(digest(second.block), True))

    assert state.ready == (1, 700)


@pytest.mark.parametrize(("count", "is_proof"), [(64, True), (63, False)])
def test_a_proof_shows_the_last_64_iterations_that_were_given_up_or_all(count, is_proof):
    last = count + 5
    proposal = a_proposal(last, after=a_proposal(), dummies=range(last - count, last))
    if is_proof:
        authenticate(a_config(), DOMAIN, proposal)
    else:
        with pytest.raises(MalformedMessage, match="do not reach from the parent to it"):
            authenticate(a_config(), DOMAIN, proposal)


def test_a_block_that_more_than_f_voted_for_is_fetched_and_one_that_a_liar_made_up_is_not():
    block = a_proposal()
    one, _ = run(a_state(), a_vote(0, 1, NOTARISE, block))
    two, _ = run(one, a_vote(1, 1, NOTARISE, block))

    assert of(NeedBlock, run(one, Tick(1))[1]) == []
    assert of(NeedBlock, run(two, Tick(1))[1]) == [NeedBlock(digest(block.block))]


def test_certificates_of_a_long_gap_are_repeated_a_few_at_a_time_until_all_were_sent():
    state, sent = given_up(30), []
    for number in range(4):
        state, effects = run(state, Tick(number * 1_000))
        sent.append({one.message.vote.iteration for one in of(Send, effects)})

    assert all(len(once) <= 8 + 1 for once in sent)
    assert set().union(*sent) == set(range(1, 31))


def test_after_a_restart_blocks_are_finalised_in_the_order_of_their_iterations():
    first = a_proposal()
    journal = [a_certificate(first), a_certificate(a_proposal(2, after=first))]

    votes = voted(restore(a_config(), journal, 0), Ready(RoundId(0), 0))

    assert [(vote.iteration, vote.kind) for vote in votes] == [(1, FINALISE), (2, FINALISE)]


def test_readiness_for_a_round_counts_from_its_first_moment_and_for_a_later_round_anew():
    state, _ = run(a_state(), Ready(RoundId(0), 1_000), Ready(RoundId(0), 3_000))
    assert state.ready == (0, 1_000)

    state, _ = run(state, Ready(RoundId(1), 2_000), Ready(RoundId(0), 4_000))
    assert state.ready == (1, 2_000)


def test_of_iterations_up_to_the_last_final_block_only_its_own_certificates_are_kept():
    first = a_proposal(4, dummies=(1, 2, 3))
    state, _ = run(given_up(3), first, Examined(digest(first.block), True), Tick(60_000))
    state, _ = run(state, *(a_vote(who, 4, NOTARISE, first) for who in range(3)))
    assert {*state.own, *state.votes, *state.proposals, *state.bodies}

    state, _ = run(state, a_certificate(first, FINALISE))

    assert not {*state.own, *state.drafts, *state.votes, *state.proposals, *state.bodies}
    assert set(state.certificates) == {(4, NOTARISE), (4, FINALISE)}


def test_our_draft_is_forgotten_with_its_iteration():
    state, effects = run(a_state(1), Tick(1), Built(Iteration(1), a_manifest()))
    (sent,) = of(SignAndSendProposal, effects)
    ours = a_proposal()
    assert (state.drafts, sent.block) == ({1: ours.block}, ours.block)

    assert run(state, ours, a_certificate(ours, FINALISE))[0].drafts == {}


def test_the_chain_is_asked_for_while_a_later_block_is_final_and_not_otherwise():
    first = a_proposal(5, dummies=(1, 2, 3, 4))
    state, _ = run(given_up(4), first, a_certificate(first, FINALISE))
    assert of(NeedSync, run(state, Tick(1_000))[1]) == []

    state, _ = run(state, a_certificate(a_proposal(6, after=first), FINALISE))
    assert of(NeedSync, run(state, Tick(1_000))[1]) == [NeedSync(RoundId(1))]


def test_words_that_settle_a_block_which_we_lack_or_have_settled_are_not_kept():
    first = a_proposal()
    second = a_proposal(2, after=first)
    settled = a_certificate(second, FINALISE, SETTLED)
    vote = Received(a_vote(0, SETTLED, FINALISE, second), 0)
    assert run(a_state(), settled)[0].settled == {}
    with pytest.raises(OutOfPhase, match="a block that is not waiting for it"):
        step(a_state(), vote)

    state, _ = run(a_state(), first, a_certificate(first), second, a_certificate(second))
    assert set(step(state, vote)[0].settling) == {digest(second.block)}
    state, _ = run(state, settled)
    with pytest.raises(OutOfPhase, match="a block that is not waiting for it"):
        step(state, vote)
    assert of(Persist, run(state, settled)[1]) == []


@pytest.mark.parametrize("name", ["iteration_timeout_ms", "ready_timeout_ms", "resend_ms"])
def test_a_time_out_is_at_least_a_millisecond(name):
    a_config(**{name: 1})
    with pytest.raises(ConfigError, match="timeout"):
        a_config(**{name: 0})


def test_a_proof_does_not_give_up_the_iteration_of_the_block_that_it_extends():
    proposal = a_proposal(65, after=a_proposal(), dummies=range(1, 65))
    with pytest.raises(MalformedMessage, match="do not reach from the parent to it"):
        authenticate(a_config(), DOMAIN, proposal)


def test_a_vote_for_the_iteration_of_the_last_final_block_is_refused_and_for_the_next_taken():
    first = a_proposal(2, dummies=(1,))
    state, _ = run(given_up(1), first, a_certificate(first, FINALISE))
    for iteration in (1, 2):
        with pytest.raises(OutOfPhase, match=f"vote for iteration {iteration} during 3"):
            step(state, Received(a_vote(0, iteration, DUMMY), 0))
    assert set(step(state, Received(a_vote(0, 3, DUMMY), 0))[0].votes) == {3}


@pytest.mark.parametrize(("count", "is_repeated"), [(15, True), (16, False)])
def test_a_finalise_vote_is_repeated_for_sixteen_iterations_and_other_votes_only_in_their_own(
    count, is_repeated
):
    first = a_proposal()
    state, _ = run(a_state(), first, Examined(digest(first.block), True), a_certificate(first))
    state, _ = run(state, *(a_dummy(2 + number) for number in range(count)))
    assert state.iteration == count + 2

    votes = [vote for vote in voted(state, Tick(1_000)) if vote.iteration == 1]
    assert [vote.kind for vote in votes] == ([FINALISE] if is_repeated else [])
