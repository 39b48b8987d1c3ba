"""The agreement, one rule at a time; tests/sim runs it whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from assay.protocol.agreement.finality import SETTLED, check_certified
from assay.protocol.agreement.quorum import assemble
from assay.protocol.encoding.codec import decode_any, digest, encode
from assay.protocol.errors import Diverged, MalformedMessage, OutOfPhase, PeerFault
from assay.protocol.identity import Domain, peer_of, sign
from assay.protocol.messages import (
    MESSAGES,
    Block,
    CertifiedManifest,
    Proposal,
    SignedBlock,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.types import NO_DIGEST, Digest, Iteration, RoundId
from assay.testing.run import an_empty_manifest
from assay.verifier.consensus.check import authenticate
from assay.verifier.consensus.machine import AHEAD, body, restore, step
from assay.verifier.consensus.types import (
    Accuse,
    BuildProposal,
    Built,
    ConsensusConfig,
    Examine,
    Examined,
    Finalised,
    NeedBlock,
    NeedSync,
    Passed,
    Persist,
    Ready,
    Received,
    Send,
    SignAndPass,
    SignAndSend,
    SignAndSendProposal,
    Synced,
    Tick,
)

RUN, GENESIS = Digest(b"r" * 32), Digest(b"g" * 32)
DOMAIN = Domain(deployment_id=Digest(b"d" * 32), run_id=RUN)
KEYS = sorted((SigningKey(bytes([i]) * 32) for i in range(1, 5)), key=peer_of)
PEERS = tuple(peer_of(key) for key in KEYS)
ME = 3  # leads iterations 3, 7, ...; iteration 1 is led by 1


def a_config(me=ME, **changes):
    return ConsensusConfig(run_id=RUN, genesis=GENESIS, verifiers=PEERS, me=PEERS[me], **changes)


def a_state(me=ME):
    return restore(a_config(me), (), 0)


def a_manifest(number=0, parent=GENESIS, mark=b"a"):
    return an_empty_manifest(RUN, RoundId(number), parent, aggregate=Digest(mark * 32))


def a_proposal(iteration=1, after=None, dummies=(), mark=b"a", leader=None, **changes):
    """The leader's proposal that extends the proposal `after`, or starts the chain."""
    manifest = a_manifest(mark=mark)
    parent, certificates = NO_DIGEST, ()
    if after is not None:
        manifest = a_manifest(after.block.round + 1, digest(after.manifest), mark)
        parent, certificates = digest(after.block), (a_certificate(after),)
    block = Block(
        run_id=RUN,
        iteration=Iteration(iteration),
        round=manifest.round,
        parent=parent,
        manifest=digest(manifest),
    )
    block = replace(block, **changes)
    leader = iteration % 4 if leader is None else leader
    return Proposal(
        block=block, manifest=manifest, parent=certificates,
        dummies=tuple(a_dummy(number) for number in dummies), proposer=PEERS[leader],
        signature=sign(KEYS[leader], DOMAIN, block),
    )  # fmt: skip


def a_pass(iteration=1, leader=None, **changes):
    """What the leader of an iteration says in place of a proposal."""
    block = Block(
        run_id=RUN, iteration=Iteration(iteration), round=RoundId(0), parent=NO_DIGEST, manifest=NO_DIGEST
    )
    block, leader = replace(block, **changes), iteration % 4 if leader is None else leader
    return SignedBlock(block=block, verifier=PEERS[leader], signature=sign(KEYS[leader], DOMAIN, block))


def a_vote(who, iteration, kind, block=NO_DIGEST):
    named = digest(block.block) if isinstance(block, Proposal) else block
    vote = Vote(run_id=RUN, iteration=Iteration(iteration), kind=kind, block=named)
    return SignedVote(vote=vote, verifier=PEERS[who], signature=sign(KEYS[who], DOMAIN, vote))


def a_certificate(proposal, kind=VoteKind.NOTARISE, iteration=None):
    number = proposal.block.iteration if iteration is None else iteration
    return assemble([a_vote(who, number, kind, proposal) for who in range(3)])


def a_dummy(iteration):
    return assemble([a_vote(who, iteration, VoteKind.DUMMY) for who in range(3)])


def a_link(proposal, iteration=None):
    certificate = a_certificate(proposal, VoteKind.FINALISE, iteration)
    return CertifiedManifest(manifest=proposal.manifest, block=proposal.block, certificate=certificate)


def run(state, *events):
    """The state after these events, and all effects."""
    said = []
    for event in events:
        if (
            isinstance(event, Proposal | SignedVote | SignedBlock)
            or type(event).__name__ == "QuorumCertificate"
        ):
            event = Received(event, state.now_ms)
        state, effects = step(state, event)
        said += effects
    return state, said


def voted(state, *events):
    """The votes that these events made it sign."""
    return [effect.vote for effect in run(state, *events)[1] if isinstance(effect, SignAndSend)]


def of(kind, effects):
    return [effect for effect in effects if isinstance(effect, kind)]


# ---- one iteration ----


def test_a_proposal_is_examined_before_it_is_voted_for():
    proposal = a_proposal()
    state, effects = step(a_state(), Received(proposal, 5))
    assert effects == (Examine(proposal, ()),)

    state, effects = step(state, Examined(digest(proposal.block), True))

    vote = a_vote(ME, 1, VoteKind.NOTARISE, proposal).vote
    assert effects == (Persist(proposal), Persist(vote), SignAndSend(vote))


def test_a_body_that_fails_gets_no_vote_until_it_holds():
    proposal = a_proposal()
    name = digest(proposal.block)
    assert voted(a_state(), proposal, Examined(name, False)) == []
    assert len(voted(a_state(), proposal, Examined(name, False), Examined(name, True))) == 1


def test_one_iteration_gets_one_notarise_vote():
    proposal, twin = a_proposal(), a_proposal(mark=b"b")
    state, _ = run(a_state(), proposal, Examined(digest(proposal.block), True))
    votes = voted(state, twin, Examined(digest(twin.block), True), Examined(digest(proposal.block), True))
    assert votes == []


def test_a_quorum_of_notarise_ends_the_iteration_with_a_finalise_vote():
    proposal = a_proposal()
    votes = [a_vote(who, 1, VoteKind.NOTARISE, proposal) for who in range(3)]
    state, _ = run(a_state(), *votes[:2])
    assert state.iteration == 1

    state, effects = run(state, votes[2])

    assert state.iteration == 2
    assert [one.vote for one in of(SignAndSend, effects)] == [a_vote(ME, 1, VoteKind.FINALISE, proposal).vote]


def test_who_gave_an_iteration_up_never_finalises_it():
    late = Tick(60_000)
    assert [vote.kind for vote in voted(a_state(), late)] == [VoteKind.DUMMY]
    state, _ = run(a_state(), late)
    assert voted(state, a_certificate(a_proposal())) == []


def test_who_finalised_an_iteration_never_gives_it_up():
    state, _ = run(a_state(), a_certificate(a_proposal()))
    votes = voted(state, Tick(600_000))
    assert {(vote.iteration, vote.kind) for vote in votes} == {(1, VoteKind.FINALISE), (2, VoteKind.DUMMY)}


def test_the_long_deadline_holds_to_the_millisecond_and_readiness_shortens_it():
    assert voted(a_state(), Tick(59_999)) == []
    assert voted(a_state(), Ready(RoundId(0), 1_000), Tick(4_999)) == []
    assert [vote.kind for vote in voted(a_state(), Ready(RoundId(0), 1_000), Tick(5_000))] == [VoteKind.DUMMY]


def test_a_leader_that_is_away_is_given_up_at_once_and_no_other_is():
    leader = a_config().leader(Iteration(1))
    assert leader != PEERS[ME]

    assert [vote.kind for vote in voted(a_state(), Tick(1, away=frozenset({leader})))] == [VoteKind.DUMMY]
    assert voted(a_state(), Tick(1, away=frozenset(PEERS) - {leader})) == []


def test_a_leader_that_is_away_but_proposes_gets_its_vote():
    proposal = a_proposal()
    away = frozenset({proposal.proposer})
    held = voted(a_state(), proposal, Examined(digest(proposal.block), True), Tick(1, away=away))

    assert {vote.kind for vote in held} == {VoteKind.NOTARISE}


def test_a_leader_that_lacks_shares_is_given_up_at_once_only_if_it_follows_its_parent():
    held_up = Tick(1, is_held_up=True)
    assert [vote.kind for vote in voted(a_state(), held_up)] == [VoteKind.DUMMY]

    skipped = a_dummy(1)
    assert voted(a_state(), skipped, held_up) == []


def test_a_leader_that_passes_is_given_up_at_once_and_its_block_gets_no_vote():
    assert [vote.kind for vote in voted(a_state(), a_pass(), Tick(1))] == [VoteKind.DUMMY]
    assert voted(a_state(), a_pass(5), Tick(1)) == []  # a turn to come

    _, effects = run(a_state(), a_pass(), a_proposal())
    assert of(Examine, effects) == []


def test_a_pass_after_the_proposal_gives_nothing_up():
    proposal = a_proposal()
    held = voted(a_state(), proposal, Examined(digest(proposal.block), True), a_pass(), Tick(1))
    assert {vote.kind for vote in held} == {VoteKind.NOTARISE}


def test_a_leader_that_cannot_propose_says_so_gives_its_turn_up_and_proposes_nothing_in_it():
    state, asked = run(a_state(1), Tick(1))
    assert len(of(BuildProposal, asked)) == 1

    state, effects = run(state, Passed(Iteration(1)), Passed(Iteration(1)))

    block, dummy = a_pass().block, a_vote(1, 1, VoteKind.DUMMY).vote
    assert effects == [Persist(block), SignAndPass(block), Persist(dummy), SignAndSend(dummy)]
    assert of(SignAndSendProposal, run(state, Built(Iteration(1), a_manifest()))[1]) == []

    again = restore(a_config(1), (block, dummy), 0)
    _, effects = run(again, Tick(1), Passed(Iteration(1)), Built(Iteration(1), a_manifest()))
    assert of(BuildProposal, effects) == of(SignAndSendProposal, effects) == []
    assert of(SignAndPass, effects) == [SignAndPass(block)]  # as everything that may have been lost


def test_a_leader_passes_no_turn_but_its_present_one():
    assert run(a_state(1), Tick(1), Passed(Iteration(5)))[1] == run(a_state(1), Tick(1))[1]
    assert of(SignAndPass, run(a_state(2), Tick(1), Passed(Iteration(1)))[1]) == []


def test_after_f_leaders_without_a_block_the_next_does_not_pass():
    assert of(SignAndPass, run(a_state(2), a_dummy(1), Passed(Iteration(2)))[1]) == []

    proposal = a_proposal()
    _, effects = run(a_state(2), proposal, a_certificate(proposal), Passed(Iteration(2)))
    (passed,) = of(SignAndPass, effects)
    assert (passed.block.round, passed.block.parent) == (1, digest(proposal.block))


def test_while_there_is_nothing_to_propose_no_leader_is_late_and_afterwards_it_has_its_whole_time():
    idle = [Tick(now_ms, is_idle=True) for now_ms in range(0, 300_000, 200)]
    assert voted(a_state(), *idle) == []
    assert voted(a_state(), *idle, Tick(299_800 + 59_999)) == []
    late = voted(a_state(), *idle, Tick(299_800 + 60_000))
    assert [vote.kind for vote in late] == [VoteKind.DUMMY]


def test_a_leader_on_a_parent_that_is_not_final_waits_for_it_and_then_has_only_the_short_time():
    first = a_proposal()
    state, _ = run(a_state(), first, a_certificate(first))
    assert not any(vote.kind is VoteKind.DUMMY for vote in voted(state, Tick(7_999)))
    votes = voted(state, Tick(8_000))
    assert (2, VoteKind.DUMMY) in {(vote.iteration, vote.kind) for vote in votes}


def test_deadlines_grow_while_no_leader_gets_a_block_through():
    state, _ = run(a_state(), *(a_dummy(number) for number in range(1, 5)))
    assert state.iteration == 5
    assert voted(state, Tick(119_999)) == []
    assert len(voted(state, Tick(120_000))) == 1


# ---- leading ----


def test_a_leader_is_asked_once_and_signs_one_block():
    first = a_proposal()
    state, effects = run(a_state(2), first, a_certificate(first))
    expected = BuildProposal(
        Iteration(2), RoundId(1), digest(first.block), digest(first.manifest), (first.manifest,), True
    )
    assert of(BuildProposal, effects) == [expected]
    _, effects = run(a_state(3), first, a_certificate(first), a_dummy(2))
    assert [asked.follows for asked in of(BuildProposal, effects)] == [False]

    manifest = a_manifest(1, digest(first.manifest))
    state, effects = run(state, Tick(1), Built(Iteration(2), manifest), Built(Iteration(2), manifest))

    (sent,) = of(SignAndSendProposal, effects)
    assert of(BuildProposal, effects) == []
    assert effects.index(Persist(sent.block)) < effects.index(sent)
    again, effects = run(state, Built(Iteration(2), a_manifest(1, digest(first.manifest), b"b")))
    assert of(SignAndSendProposal, effects) == [] and again == state


def test_a_leader_proves_that_it_may_skip_what_was_given_up():
    state, _ = run(a_state(3), a_dummy(1), a_dummy(2))
    _, effects = run(state, Built(Iteration(3), a_manifest()))
    (sent,) = of(SignAndSendProposal, effects)
    assert [one.vote.iteration for one in sent.dummies] == [1, 2]
    assert sent.block.round == 0


def test_a_leader_that_lacks_a_certificate_waits_for_it():
    state, effects = run(a_state(3), a_dummy(2))
    assert state.iteration == 3 and of(BuildProposal, effects) == []
    assert len(of(BuildProposal, run(state, a_dummy(1))[1])) == 1


def test_an_answer_for_an_iteration_that_passed_is_dropped():
    state, _ = run(a_state(3), a_dummy(1), a_dummy(2), a_dummy(3))
    assert run(state, Built(Iteration(3), a_manifest())) == (state, [])


# ---- finality ----


def test_a_quorum_of_finalise_hands_the_block_out_once():
    proposal = a_proposal()
    votes = [a_vote(who, 1, VoteKind.FINALISE, proposal) for who in range(3)]
    state, effects = run(a_state(), proposal, a_certificate(proposal), *votes)
    assert of(Finalised, effects) == [Finalised(a_link(proposal))]
    assert of(Finalised, run(state, Tick(1_000), a_certificate(proposal, VoteKind.FINALISE))[1]) == []


def test_an_ancestor_of_a_final_block_is_settled_with_a_certificate_of_its_own():
    first = a_proposal()
    second = a_proposal(2, after=first)
    state, effects = run(a_state(), Tick(60_000), first, second, a_certificate(second, VoteKind.FINALISE))
    settling = a_vote(ME, SETTLED, VoteKind.FINALISE, first)
    assert settling.vote in [one.vote for one in of(SignAndSend, effects)]
    assert of(Finalised, effects) == []

    state, effects = run(state, *(a_vote(who, SETTLED, VoteKind.FINALISE, first) for who in (0, 1)), settling)

    links = [one.certified for one in of(Finalised, effects)]
    assert [link.block for link in links] == [first.block, second.block]
    for link in links:
        check_certified(link, DOMAIN, PEERS)


def test_a_vote_for_an_ancestor_is_resent_until_its_block_is_settled():
    first = a_proposal()
    second = a_proposal(2, after=first)
    third = a_proposal(3, after=second)
    notarised = (first, a_certificate(first), second, a_certificate(second), third)
    votes = [a_vote(0, SETTLED, VoteKind.FINALISE, one).vote for one in (first, second)]
    state, _ = run(a_state(0), *notarised, a_certificate(third, VoteKind.FINALISE))

    state, effects = run(state, Tick(60_000))
    assert {one.vote for one in of(SignAndSend, effects)} >= set(votes)
    state, _ = run(state, a_certificate(second, VoteKind.FINALISE, SETTLED))
    _, effects = run(state, Tick(120_000))
    assert [one.vote for one in of(SignAndSend, effects) if one.vote in votes] == votes[:1]


def test_a_settled_block_may_have_a_dummy_certificate_beside_it():
    first = a_proposal()
    second = a_proposal(2, after=first)
    settled = a_certificate(first, VoteKind.FINALISE, SETTLED)
    events = first, a_certificate(first), second, a_certificate(second, VoteKind.FINALISE), settled
    for at in range(2, len(events) + 1):
        state, _ = run(a_state(), *events[:at], a_dummy(1), *events[at:])
        assert state.tip.round == 1


def test_a_dummy_certificate_beside_a_finalised_one_stops_us():
    state, _ = run(a_state(), a_certificate(a_proposal(), VoteKind.FINALISE))
    with pytest.raises(Diverged):
        run(state, a_dummy(1))


@pytest.mark.parametrize(
    ("second", "reason"),
    [(VoteKind.NOTARISE, "two NOTARISE certificates in"), (VoteKind.FINALISE, "exclude each other")],
)
def test_certificates_for_two_blocks_of_one_iteration_stop_us(second, reason):
    state, _ = run(a_state(), a_certificate(a_proposal()))
    with pytest.raises(Diverged, match=reason):
        run(state, a_certificate(a_proposal(mark=b"b"), second))


def test_a_certificate_beside_the_last_final_block_stops_us():
    first = a_proposal()
    state, _ = run(a_state(), first, a_certificate(first, VoteKind.FINALISE))
    with pytest.raises(Diverged, match="certificates of iteration 1 exclude each other"):
        run(state, a_certificate(a_proposal(mark=b"b")))


def test_a_block_that_was_settled_before_its_parent_waits_for_it_through_later_iterations():
    first = a_proposal()
    second = a_proposal(2, after=first)
    settled = [a_certificate(one, VoteKind.FINALISE, SETTLED) for one in (first, second)]
    notarised = (first, a_certificate(first), second, a_certificate(second))

    state, effects = run(a_state(), *notarised, settled[1], a_dummy(3), a_dummy(4))
    assert of(Finalised, effects) == []

    _, effects = run(state, settled[0])
    assert [one.certified.block for one in of(Finalised, effects)] == [first.block, second.block]


def test_a_laggard_asks_for_the_chain_and_follows_it():
    first = a_proposal()
    second = a_proposal(2, after=first)
    state, effects = run(a_state(), a_certificate(second, VoteKind.FINALISE), Tick(1_000))
    assert of(NeedSync, effects) == [NeedSync(RoundId(0))]
    assert of(NeedBlock, effects) == [NeedBlock(digest(second.block))]

    links = (a_link(first, SETTLED), a_link(second))
    state, effects = run(state, Synced(links, 1_000))

    assert [one.certified for one in of(Finalised, effects)] == list(links)
    assert state.iteration == 3 and state.tip.block == digest(second.block)


def test_links_with_a_hole_or_from_another_chain_are_refused():
    first = a_proposal()
    second = a_proposal(2, after=first)
    with pytest.raises(MalformedMessage):
        run(a_state(), Synced((a_link(second),), 1))
    stranger = a_proposal(2, after=a_proposal(mark=b"b"))
    with pytest.raises(Diverged):
        run(a_state(), Synced((a_link(first), a_link(stranger)), 1))


def test_a_missing_body_is_asked_for_and_then_served():
    first = a_proposal()
    state, effects = run(a_state(), a_certificate(first), Tick(1_000))
    assert of(NeedBlock, effects) == [NeedBlock(digest(first.block))]
    state, _ = run(state, first)
    assert body(state, digest(first.block)) == first


# ---- liars ----


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            a_vote(0, 1, VoteKind.NOTARISE, a_proposal()),
            a_vote(0, 1, VoteKind.NOTARISE, a_proposal(mark=b"b")),
        ),
        (
            a_vote(0, 1, VoteKind.FINALISE, a_proposal()),
            a_vote(0, 1, VoteKind.FINALISE, a_proposal(mark=b"b")),
        ),
        (a_vote(0, 1, VoteKind.DUMMY), a_vote(0, 1, VoteKind.FINALISE, a_proposal())),
        (a_proposal(), a_proposal(mark=b"b")),
        (a_proposal(), a_pass()),
        (a_pass(), a_pass(round=RoundId(1))),
    ],
)
def test_two_words_of_which_an_honest_verifier_says_one_are_evidence_once(first, second):
    for one, other in ((first, second), (second, first)):
        _, effects = run(a_state(), one, other, other)
        assert of(Accuse, effects) == [Accuse(one, other)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (a_vote(0, 1, VoteKind.NOTARISE, a_proposal()), a_vote(0, 1, VoteKind.DUMMY)),
        (
            a_vote(0, 1, VoteKind.NOTARISE, a_proposal()),
            a_vote(0, 1, VoteKind.FINALISE, a_proposal(mark=b"b")),
        ),
    ],
)
def test_what_an_honest_verifier_may_say_is_no_evidence(first, second):
    assert of(Accuse, run(a_state(), first, second)[1]) == []


def test_a_double_vote_counts_once():
    good, bad = a_proposal(), a_proposal(mark=b"b")
    votes = [a_vote(0, 1, VoteKind.NOTARISE, bad), a_vote(0, 1, VoteKind.NOTARISE, good)]
    state, _ = run(
        a_state(), *votes, a_vote(1, 1, VoteKind.NOTARISE, good), a_vote(2, 1, VoteKind.NOTARISE, bad)
    )
    assert state.iteration == 1


def test_a_second_process_with_our_key_stops_us():
    with pytest.raises(Diverged):
        run(a_state(), a_vote(ME, 1, VoteKind.DUMMY))
    with pytest.raises(Diverged):
        run(a_state(1), a_proposal())
    with pytest.raises(Diverged):
        run(a_state(1), a_pass())


def test_votes_and_passes_far_ahead_are_refused_and_leave_the_state_alone():
    state, _ = run(a_state(), a_vote(0, 1 + AHEAD, VoteKind.DUMMY), a_pass(1 + AHEAD))
    for late in (a_vote(0, 2 + AHEAD, VoteKind.DUMMY), a_pass(2 + AHEAD)):
        with pytest.raises(OutOfPhase):
            step(state, Received(late, 1))


def test_passes_are_forgotten_with_their_iterations():
    state, _ = run(a_state(), a_pass(1), a_pass(2))
    assert set(state.passes) == {1, 2}

    proposal = a_proposal()
    assert set(run(state, Synced((a_link(proposal),), 1))[0].passes) == {2}
    dummies = [a_dummy(number) for number in range(1, 18)]
    assert set(run(state, *dummies)[0].passes) == {2}


def test_a_liar_cannot_grow_the_state():
    state = a_state()
    for mark in range(200):
        liar_block = a_proposal(mark=bytes([mark]))
        for message in (
            liar_block,
            a_pass(round=RoundId(mark)),
            *(a_vote(1, 1, kind, liar_block) for kind in (VoteKind.NOTARISE, VoteKind.FINALISE)),
        ):
            state, _ = run(state, message)
    held = state.bodies, state.proposals, state.passes, state.votes[1]
    assert [len(one) for one in held] == [1, 1, 1, 2]


def test_a_block_of_the_wrong_round_is_its_leaders_fault():
    first = a_proposal()
    state, _ = run(a_state(), first)
    wrong = a_proposal(2, after=first, round=RoundId(5))
    with pytest.raises(PeerFault):
        run(state, wrong)


# ---- authenticate ----


def test_honest_messages_are_authentic():
    first = a_proposal(2, dummies=(1,))
    for message in (
        first, a_proposal(4, after=first, dummies=(3,)), a_vote(0, 3, VoteKind.DUMMY), a_dummy(9), a_pass(),
        a_vote(0, SETTLED, VoteKind.FINALISE, first), a_link(first), a_link(first, SETTLED),
    ):  # fmt: skip
        authenticate(a_config(), DOMAIN, message)


@pytest.mark.parametrize(
    "message",
    [
        a_proposal(3, dummies=(1,)),  # a hole
        a_proposal(3, dummies=(2,)),
        a_proposal(4, dummies=(1, 3)),
        replace(a_proposal(2, after=a_proposal()), parent=(a_certificate(a_proposal(mark=b"z")),)),
        replace(a_proposal(2, after=a_proposal()), parent=(a_dummy(1),)),
        replace(
            a_proposal(2, after=a_proposal()),
            parent=(a_certificate(a_proposal(), VoteKind.FINALISE, SETTLED),),
        ),
        a_proposal(3, after=a_proposal(), dummies=(1, 2)),  # over its parent
        replace(a_proposal(2, after=a_proposal()), parent=()),
        replace(a_proposal(), manifest=a_manifest(mark=b"z")),
        replace(a_dummy(1), verifiers=PEERS[:2], signatures=a_dummy(1).signatures[:2]),
        replace(a_dummy(1), vote=a_dummy(2).vote),
        a_link(a_proposal(), 7),
        replace(a_link(a_proposal()), certificate=a_certificate(a_proposal())),
        a_pass(manifest=a_proposal().block.manifest),
    ],
)
def test_what_a_sender_put_together_wrongly_is_malformed(message):
    with pytest.raises(MalformedMessage):
        authenticate(a_config(), DOMAIN, message)


@pytest.mark.parametrize(
    "message",
    [
        replace(a_proposal(), proposer=PEERS[2]),
        a_proposal(1, leader=2),  # it leads another iteration
        replace(a_pass(), verifier=PEERS[2]),
        a_pass(1, leader=2),
        a_pass(1, run_id=GENESIS),
        a_proposal(0),
        a_proposal(1, round=RoundId(1)),
        replace(a_vote(0, 1, VoteKind.DUMMY), verifier=PEERS[1]),
        a_vote(0, 1, VoteKind.DUMMY, Digest(b"x" * 32)),
        a_vote(0, SETTLED, VoteKind.NOTARISE, a_proposal()),
    ],
)
def test_what_a_verifier_signed_wrongly_is_its_fault(message):
    with pytest.raises(PeerFault):
        authenticate(a_config(), DOMAIN, message)


# ---- restart ----


# ---- a leader that lacks shares


def test_shares_that_the_last_round_lacked_hold_up_no_leader_on_a_parent_that_is_not_final():
    proposal = a_proposal()
    notarised = (proposal, Examined(digest(proposal.block), True), a_certificate(proposal))
    votes = voted(a_state(), *notarised, Tick(1, is_held_up=True))

    assert (2, VoteKind.DUMMY) not in {(vote.iteration, vote.kind) for vote in votes}


def test_nor_on_a_parent_whose_body_never_came():
    votes = voted(a_state(), a_certificate(a_proposal()), Tick(1, is_held_up=True))

    assert VoteKind.DUMMY not in {vote.kind for vote in votes}


# ---- a journal that has lost something


def test_nothing_is_signed_up_to_where_the_journal_may_have_lost_something():
    proposal = a_proposal()
    events = (proposal, Examined(digest(proposal.block), True), a_certificate(proposal), Tick(600_000))
    assert {vote.iteration for vote in voted(a_state(), *events)} == {1, 2}

    silent = restore(a_config(ME), (), 0, lost=(2, 2))
    assert voted(silent, *events) == []


def test_a_leader_is_given_up_where_no_vote_to_finalise_can_be_lost():
    proposal = a_proposal()
    events = (proposal, Examined(digest(proposal.block), True), a_certificate(proposal), Tick(600_000))
    votes = voted(restore(a_config(ME), (), 0, lost=(2, 1)), *events)
    assert [(vote.iteration, vote.kind) for vote in votes] == [(2, VoteKind.DUMMY)]


def test_a_leader_proposes_nothing_where_it_may_have_proposed_before():
    for silent_through, count in ((2, 1), (3, 0)):
        state = restore(a_config(ME), (), 0, lost=(silent_through, silent_through))
        assert len(of(BuildProposal, run(state, a_dummy(1), a_dummy(2))[1])) == count


def test_a_forgotten_statement_of_ours_that_comes_back_ends_nothing():
    state = restore(a_config(ME), (), 0, lost=(3, 3))
    state, _ = run(state, a_vote(ME, 1, VoteKind.DUMMY), a_dummy(1), a_dummy(2))
    state, _ = run(state, a_proposal(3, dummies=(1, 2), leader=ME))
    with pytest.raises(Diverged, match="not from us"):
        run(state, a_vote(ME, 4, VoteKind.DUMMY))


def test_after_the_silence_everything_is_signed_again():
    state = restore(a_config(ME), (), 0, lost=(2, 2))
    votes = voted(state, a_dummy(1), a_dummy(2), Tick(600_000))
    assert [(vote.iteration, vote.kind) for vote in votes] == [(3, VoteKind.DUMMY)]


def a_history():
    """Events of a busy life: rounds, a dummy, a settled ancestor, a turn as leader."""
    first = a_proposal()
    second = a_proposal(2, after=first)
    name = digest(second.block)
    return [
        Tick(10), Received(first, 20), Examined(digest(first.block), True), Tick(5_000),
        Received(a_certificate(first), 5_100), Received(second, 5_200), Examined(name, True),
        Received(a_certificate(second), 5_300), Built(Iteration(3), a_manifest(2, digest(second.manifest))),
        Tick(9_000), Received(a_certificate(second, VoteKind.FINALISE), 9_100), Tick(10_000),
        Received(a_certificate(first, VoteKind.FINALISE, SETTLED), 10_100), Received(a_dummy(3), 10_200),
        Tick(11_000),
    ]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_a_crash_between_any_two_effects_never_leads_to_two_conflicting_words(first_cut, second_cut, prunes):
    journal, last, words, rounds = [], None, {}, []
    cuts = [first_cut, second_cut]
    state, count = restore(a_config(), journal, 0), 0
    events = a_history()
    while events:
        try:
            state, effects = step(state, events.pop(0))
        except OutOfPhase:
            continue
        for effect in effects:
            count += 1
            if cuts and count > cuts[0]:  # kill -9 here; the rest of the effects never happens
                cuts.pop(0)
                count = 0
                journal = [decode_any(MESSAGES, encode(record)) for record in journal]
                state = restore(a_config(), journal, state.now_ms, last)
                events = a_history() if prunes else events
                break
            match effect:
                case Persist(record):
                    journal.append(record)
                case SignAndSend(vote):
                    assert vote in journal
                    if vote.iteration != SETTLED:
                        assert words.setdefault((vote.iteration, vote.kind), vote) == vote
                case SignAndSendProposal(block):
                    assert block in journal
                    assert words.setdefault(("block", block.iteration), block) == block
                case Finalised(certified):
                    last = certified
                    rounds.append(certified.block.round)
    given_up = {number for number, kind in words if kind is VoteKind.DUMMY}
    finalised = {number for number, kind in words if kind is VoteKind.FINALISE}
    assert not given_up & finalised
    assert rounds == list(range(len(rounds)))


def test_a_restart_says_its_old_words_again_and_no_others():
    proposal = a_proposal()
    _, effects = run(a_state(), proposal, Examined(digest(proposal.block), True), Tick(60_000))
    journal = [one.record for one in of(Persist, effects)]

    state = restore(a_config(), journal, 99)

    assert {vote.kind for vote in voted(state, Tick(99))} == {VoteKind.NOTARISE, VoteKind.DUMMY}
    assert voted(state, a_certificate(proposal)) == []


def test_a_restart_resumes_after_the_last_durable_round():
    first = a_proposal()
    state = restore(a_config(), (), 0, a_link(first))
    assert (state.iteration, state.tip.round) == (2, 0)
    second = a_proposal(2, after=first)
    _, effects = run(state, second)
    assert of(Examine, effects) == [Examine(second, ())]


def test_what_the_crash_cut_off_comes_out_of_the_first_tick():
    proposal = a_proposal()
    events = proposal, Examined(digest(proposal.block), True), a_certificate(proposal, VoteKind.FINALISE)
    _, effects = run(a_state(), *events)
    journal = [one.record for one in of(Persist, effects)]

    _, effects = run(restore(a_config(), journal, 9), Tick(9))

    assert of(Finalised, effects) == [Finalised(a_link(proposal))]


def test_resending_repeats_what_brings_a_laggard_here():
    first = a_proposal()
    state, _ = run(a_state(), first, a_certificate(first, VoteKind.FINALISE), a_dummy(2), a_dummy(3))
    _, effects = run(state, Tick(1_000))
    sent = {(one.message.vote.iteration, one.message.vote.kind) for one in of(Send, effects)}
    assert sent == {(1, VoteKind.FINALISE), (2, VoteKind.DUMMY), (3, VoteKind.DUMMY)}
    assert of(Send, run(state, Tick(1_000), Tick(1_999))[1]) == of(Send, effects)
