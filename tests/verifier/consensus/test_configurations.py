"""A seat changes hands: the old configuration stops, closes its last round, and the next one begins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nacl.signing import SigningKey

from assay.protocol.agreement.configurations import FIRST, Configuration, before_first, number_of
from assay.protocol.agreement.double_votes import check_double_vote, double_vote
from assay.protocol.agreement.finality import SETTLED, check_certified
from assay.protocol.agreement.quorum import assemble
from assay.protocol.encoding.codec import digest, encode
from assay.protocol.errors import ConfigError, MalformedMessage, OutOfPhase, PeerFault
from assay.protocol.identity import peer_of, sign
from assay.protocol.messages import CertifiedManifest, HandOver, Proposal, SignedVote, Vote, VoteKind
from assay.protocol.types import NO_DIGEST, Digest, Iteration
from assay.verifier.consensus.check import authenticate, heard, heard_links
from assay.verifier.consensus.machine import restore, step
from assay.verifier.consensus.types import (
    BuildProposal,
    Built,
    Examine,
    Examined,
    Finalised,
    NeedSync,
    Overtaken,
    Received,
    Send,
    SignAndSend,
    SignAndSendProposal,
    Synced,
    Tick,
)
from tests.verifier.consensus.test_machine import DOMAIN, KEYS, PEERS, RUN, a_config, a_manifest, run
from tests.verifier.consensus.test_machine import a_proposal as an_ordinary_proposal

RESERVE = SigningKey(bytes([9]) * 32)
GONE = 0  # the seat that is handed over; it leads iterations 4, 8, ... of every configuration
TO_RESERVE = HandOver(seat=PEERS[GONE], holder=peer_of(RESERVE))
SECOND = FIRST.after((TO_RESERVE,))
START = before_first(1)


def config_of(me, configuration=FIRST):
    """What a verifier, by its place, or the reserve (`None`) knows."""
    name = peer_of(RESERVE) if me is None else PEERS[me]
    return replace(a_config(), me=name, reserves=(peer_of(RESERVE),), configuration=configuration)


def key_of(seat, iteration):
    return RESERVE if seat == GONE and number_of(Iteration(iteration)) else KEYS[seat]


def a_vote(who, iteration, kind, block=NO_DIGEST, key=None, configuration=0):
    vote = Vote(run_id=RUN, iteration=Iteration(iteration), kind=kind, block=block)
    signer = key or key_of(who, before_first(configuration) or iteration)
    return SignedVote(vote=vote, verifier=PEERS[who], signature=sign(signer, DOMAIN, vote))


def a_certificate(iteration, kind, block=NO_DIGEST, configuration=0):
    return assemble([a_vote(who, iteration, kind, block, configuration=configuration) for who in range(3)])


def signed(proposal, **changes):
    """The proposal with another block or body, signed by whoever leads its iteration."""
    changed = replace(proposal, **changes)
    leader = changed.block.iteration % 4
    key = key_of(leader, changed.block.iteration)
    return replace(changed, proposer=PEERS[leader], signature=sign(key, DOMAIN, changed.block))


def the_last(hand_over=(TO_RESERVE,)):
    """Round 0, which ends configuration 0, proposed in its iteration 1."""
    first = an_ordinary_proposal()
    manifest = replace(first.manifest, hand_over=hand_over)
    return signed(first, manifest=manifest, block=replace(first.block, manifest=digest(manifest)))


def closing(last, iteration=2):
    """The closing block on it."""
    block = replace(last.block, iteration=Iteration(iteration), parent=digest(last.block), is_closing=True)
    proof = (a_certificate(1, VoteKind.NOTARISE, digest(last.block)),)
    return signed(last, block=block, parent=proof)


def after(last, iteration=START + 1, **changes):
    """Round 1 on it, in the next configuration."""
    first = an_ordinary_proposal()
    manifest = a_manifest(1, digest(last.manifest))
    block = replace(
        first.block, iteration=Iteration(iteration), round=manifest.round, parent=digest(last.block),
        manifest=digest(manifest),
    )  # fmt: skip
    return signed(first, manifest=manifest, block=block, **changes)


def link_of(proposal, iteration=None):
    number = proposal.block.iteration if iteration is None else iteration
    of = number_of(proposal.block.iteration)
    certificate = a_certificate(number, VoteKind.FINALISE, digest(proposal.block), of)
    return CertifiedManifest(manifest=proposal.manifest, block=proposal.block, certificate=certificate)


def votes_in(said):
    return [one.vote for one in said if isinstance(one, SignAndSend)]


def stopped(me):
    """A verifier that holds the last round as notarised and gave its iteration up: it cannot finalise it."""
    state = restore(config_of(me), (), 0)
    last = the_last()
    state, _ = run(state, Tick(1 << 40), last)
    state, said = run(state, a_certificate(1, VoteKind.NOTARISE, digest(last.block)))
    assert state.iteration == 2 and not votes_in(said)
    return state, last


def test_without_a_hand_over_every_block_and_manifest_keeps_its_bytes():
    proposal = an_ordinary_proposal()
    assert len(encode(proposal.block)) < len(encode(replace(proposal.block, is_closing=True)))
    assert len(encode(proposal.manifest)) < len(encode(the_last().manifest))
    assert FIRST.after(()) is FIRST and before_first(0) == SETTLED


def test_a_seat_has_the_key_of_its_last_holder_and_an_earlier_configuration_those_of_its_own():
    assert SECOND.number == 1 and SECOND.key(PEERS[GONE]) == peer_of(RESERVE)
    assert SECOND.key(PEERS[1]) == PEERS[1]
    assert SECOND.of(Iteration(START)) == SECOND and SECOND.of(Iteration(START - 1)) == FIRST
    with pytest.raises(MalformedMessage, match="of configuration 1, expected 0 at most"):
        FIRST.of(Iteration(START))
    third = SECOND.after((HandOver(seat=PEERS[GONE], holder=PEERS[2]),))
    assert third.key(PEERS[GONE]) == PEERS[2] and third.of(Iteration(START + 5)) == SECOND


def test_on_the_last_round_of_a_configuration_nobody_votes_for_another():
    state, last = stopped(me=3)
    ordinary = signed(closing(last), manifest=a_manifest(1, digest(last.manifest)))
    manifest = ordinary.manifest
    block = replace(ordinary.block, round=manifest.round, manifest=digest(manifest), is_closing=False)
    with pytest.raises(PeerFault, match="hands a seat over, expected a closing block"):
        run(state, signed(ordinary, block=block))


@pytest.mark.parametrize("changes", [{"round": 1}, {"manifest": Digest(b"m" * 32)}])
def test_a_closing_block_repeats_its_parents_round_and_manifest(changes):
    state, last = stopped(me=3)
    with pytest.raises(PeerFault, match="expected its parent's round and manifest"):
        run(state, signed(closing(last), block=replace(closing(last).block, **changes)))


def test_a_closing_block_where_nothing_is_handed_over_is_examined_for_the_run_may_end_there():
    first = an_ordinary_proposal()
    state, _ = run(restore(config_of(3), (), 0), Tick(1 << 40), first)
    state, _ = run(state, a_certificate(1, VoteKind.NOTARISE, digest(first.block)))
    state, said = run(state, closing(first))
    assert any(isinstance(one, Examine) for one in said) and votes_in(said) == []
    _, said = run(state, Examined(digest(closing(first).block), False))
    assert votes_in(said) == []
    _, said = run(state, Examined(digest(closing(first).block), True))
    assert [vote.kind for vote in votes_in(said)] == [VoteKind.NOTARISE]


def test_the_leader_closes_without_asking_for_a_manifest_and_the_others_vote_without_examining_one():
    state, last = stopped(me=2)  # it leads iteration 2
    state, said = run(state, Tick(2 << 40))
    proposed = state.drafts[Iteration(2)]
    assert proposed.is_closing and proposed == closing(last).block
    assert not any(isinstance(one, BuildProposal) for one in said)

    state, last = stopped(me=3)
    state, said = run(state, closing(last))
    assert [vote.kind for vote in votes_in(said)] == [VoteKind.NOTARISE]
    assert not any(isinstance(one, Examine) for one in said)


def test_a_final_closing_block_makes_the_round_final_and_the_next_configuration_begins():
    state, last = stopped(me=3)
    named, close = digest(last.block), closing(last)
    state, said = run(state, close, a_certificate(2, VoteKind.FINALISE, digest(close.block)))
    assert votes_in(said)[-1] == Vote(run_id=RUN, iteration=SETTLED, kind=VoteKind.FINALISE, block=named)

    state, said = run(state, *(a_vote(who, SETTLED, VoteKind.FINALISE, named) for who in range(3)))

    finals = [one.certified for one in said if isinstance(one, Finalised)]
    assert [one.block for one in finals] == [last.block]  # the closing block is in no chain
    assert state.config.configuration == SECOND and state.iteration == START + 1
    assert not (state.own or state.bodies or state.certificates or state.votes)
    check_certified(finals[0], DOMAIN, PEERS)


@pytest.mark.parametrize(("me", "is_holder"), [(GONE, True), (None, False)])
def test_holders_settle_the_round_that_closing_blocks_make_final_and_none_of_these(me, is_holder):
    state, last = stopped(me)
    one = closing(last)
    block = replace(one.block, iteration=Iteration(3), parent=digest(one.block))
    two = signed(one, block=block, parent=(a_certificate(2, VoteKind.NOTARISE, digest(one.block)),))

    state, said = run(state, one, two, a_certificate(3, VoteKind.FINALISE, digest(two.block)))

    settling = [vote.block for vote in votes_in(said) if vote.iteration == SETTLED]
    assert settling == ([digest(last.block)] if is_holder else [])


@pytest.mark.parametrize(("me", "signs"), [(GONE, (True, False)), (None, (False, True)), (3, (True, True))])
def test_the_reserve_signs_from_the_hand_over_on_and_the_outgoing_holder_until_it(me, signs):
    last, named = the_last(), digest(after(the_last()).block)
    state, _ = run(restore(config_of(me), (), 0), last)
    _, given_up = run(state, Tick(1 << 40))

    state, _ = run(state, Synced((link_of(last),), 0), after(last))
    state, said = run(state, a_certificate(START + 1, VoteKind.NOTARISE, named, 1), Tick(1 << 41))

    kinds = {(vote.iteration, vote.kind) for vote in votes_in(said)}
    expected = {(START + 1, VoteKind.FINALISE), (START + 2, VoteKind.DUMMY)}
    assert (bool(votes_in(given_up)), kinds) == (signs[0], expected if signs[1] else set())


def test_the_next_configuration_begins_on_the_final_block_without_a_certificate_of_the_one_before():
    last = the_last()
    for me in (3, None):
        state, _ = run(restore(config_of(me), (), 0), Synced((link_of(last),), 0))
        authenticate(state.config, DOMAIN, after(last))
        state, said = run(state, after(last))
        assert [type(one) for one in said if isinstance(one, Examine)] == [Examine]

    state, said = run(restore(config_of(1), (), 0), Synced((link_of(last),), 0))  # it leads START + 1
    (asked,) = [one for one in said if isinstance(one, BuildProposal)]
    assert (asked.iteration, asked.round, asked.parent) == (START + 1, 1, digest(last.block))
    state, said = run(state, Built(asked.iteration, a_manifest(1, digest(last.manifest))))
    (made,) = [one for one in said if isinstance(one, SignAndSendProposal)]
    assert made.parent == () == made.dummies and made.block == after(last).block


def test_a_block_without_its_parents_certificate_is_refused_on_every_later_block():
    last = the_last()
    state, _ = run(restore(config_of(3), (), 0), Synced((link_of(last),), 0), after(last))
    one = after(last)
    manifest = a_manifest(2, digest(one.manifest))
    block = replace(
        one.block, iteration=Iteration(START + 2), round=manifest.round, parent=digest(one.block),
        manifest=digest(manifest),
    )  # fmt: skip
    dummies = (a_certificate(START + 1, VoteKind.DUMMY, configuration=1),)
    child = signed(one, block=block, manifest=manifest, dummies=dummies)
    authenticate(state.config, DOMAIN, child)  # alone it looks like a first block
    with pytest.raises(PeerFault, match="without its parent's certificate"):
        run(state, child)
    with pytest.raises(MalformedMessage, match="no certificate for its parent"):
        authenticate(config_of(3), DOMAIN, signed(closing(last), parent=()))


def test_only_the_holder_of_a_configuration_signs_in_it():
    before, now = config_of(3), config_of(3, SECOND)
    old, new = KEYS[GONE], RESERVE
    kind = VoteKind.DUMMY
    authenticate(before, DOMAIN, a_vote(GONE, 5, kind, key=old))
    authenticate(now, DOMAIN, a_vote(GONE, START + 5, kind, key=new))
    for config, iteration, key in ((before, 5, new), (now, START + 5, old)):
        with pytest.raises(PeerFault, match="signature does not cover"):
            authenticate(config, DOMAIN, a_vote(GONE, iteration, kind, key=key))
    for config, iteration in ((before, START + 5), (now, 5)):
        with pytest.raises(PeerFault, match="expected configuration"):
            authenticate(config, DOMAIN, a_vote(1, iteration, kind))
        with pytest.raises(MalformedMessage, match="expected configuration"):
            authenticate(config, DOMAIN, a_certificate(iteration, kind))
    for iteration in (START, 1):
        with pytest.raises(PeerFault, match="expected configuration 1"):
            authenticate(now, DOMAIN, after(the_last(), iteration))
    authenticate(now, DOMAIN, after(the_last()))


def test_a_message_of_another_configuration_is_a_hint_or_of_no_use_and_one_that_cannot_be_is_a_fault():
    kind, last = VoteKind.DUMMY, the_last()
    for message in (a_vote(1, START + 5, kind), a_certificate(START + 5, kind), after(last)):
        assert heard(config_of(3), DOMAIN, message, 7) == Overtaken()
    for message in (a_vote(1, 5, kind), a_certificate(5, kind), closing(last)):
        assert heard(config_of(3, SECOND), DOMAIN, message, 7) is None
        assert heard(config_of(3), DOMAIN, message, 7) == Received(message, 7)
    settles = a_vote(GONE, SETTLED, VoteKind.FINALISE, digest(last.block))
    assert heard(config_of(3), DOMAIN, settles, 7) == Received(settles, 7)
    assert heard(config_of(3, SECOND), DOMAIN, settles, 7) is None
    with pytest.raises(PeerFault, match="expected configuration 0"):  # no reserve, no configuration 1
        heard(a_config(), DOMAIN, a_vote(1, START + 5, kind), 7)
    with pytest.raises(PeerFault, match="expected configuration 0"):
        heard(config_of(3), DOMAIN, a_vote(1, before_first(2) + 5, kind), 7)


def test_links_are_checked_by_the_keys_to_which_those_before_them_lead():
    last = the_last()
    first, second = link_of(last), link_of(after(last))
    assert heard_links(config_of(3), DOMAIN, (first, second), 7) == Synced((first, second), 7)
    assert heard_links(config_of(3, SECOND), DOMAIN, (second,), 7) == Synced((second,), 7)
    assert heard_links(config_of(3), DOMAIN, (second,), 7) == Overtaken()
    with pytest.raises(MalformedMessage, match="configuration 1, expected 0"):
        heard_links(a_config(), DOMAIN, (second,), 7)
    wrong = link_of(the_last((HandOver(seat=PEERS[1], holder=peer_of(RESERVE)),)))
    with pytest.raises(MalformedMessage, match="signature"):
        heard_links(config_of(3), DOMAIN, (wrong, second), 7)


def test_keys_that_gave_their_seats_away_make_no_link_after_the_last_of_their_configuration():
    last = the_last()
    state, _ = run(restore(config_of(3), (), 0), Synced((link_of(last),), 0))
    forged = after(last, 2)
    link = link_of(forged)
    with pytest.raises(MalformedMessage, match="configuration 0, expected 1"):  # a quorum of then signed it
        heard_links(state.config, DOMAIN, (link,), 0)
    with pytest.raises(MalformedMessage, match="in iteration 2, expected one after 4294967296"):
        run(state, Synced((link,), 0))
    state, _ = run(state, Synced((link_of(after(last)),), 0))
    assert state.tip.round == 1


def test_who_signs_does_so_in_the_name_of_the_seat_that_it_holds_or_held():
    assert config_of(GONE).name == config_of(GONE, SECOND).name == PEERS[GONE]
    assert config_of(None).name is None and config_of(None, SECOND).name == PEERS[GONE]
    third = SECOND.after((HandOver(seat=PEERS[GONE], holder=PEERS[2]),))
    assert config_of(None, third).seat is None and config_of(None, third).name == PEERS[GONE]


def test_a_vote_that_settles_and_is_not_signed_by_the_present_holder_is_late_or_early_and_no_fault():
    named = digest(the_last().block)
    now = config_of(3, SECOND)
    authenticate(now, DOMAIN, a_vote(GONE, SETTLED, VoteKind.FINALISE, named, key=RESERVE))
    late = a_vote(GONE, SETTLED, VoteKind.FINALISE, named)
    for message in (late, a_certificate(SETTLED, VoteKind.FINALISE, named)):
        with pytest.raises(OutOfPhase):
            authenticate(now, DOMAIN, message)
    with pytest.raises(PeerFault):
        authenticate(replace(now, reserves=(), me=PEERS[3]), DOMAIN, late)


def test_a_certified_manifest_is_checked_by_the_keys_of_its_own_configuration():
    last = the_last()
    for link in (link_of(last), link_of(last, SETTLED)):
        check_certified(link, DOMAIN, PEERS)
        with pytest.raises(MalformedMessage, match="configuration 0, expected 1"):
            check_certified(link, DOMAIN, PEERS, SECOND)
    check_certified(link_of(after(last)), DOMAIN, PEERS, SECOND)
    with pytest.raises(MalformedMessage, match="configuration 1, expected 0"):
        check_certified(link_of(after(last)), DOMAIN, PEERS)
    wrong = Configuration((HandOver(seat=PEERS[1], holder=peer_of(RESERVE)),))
    with pytest.raises(PeerFault):
        check_certified(link_of(after(last)), DOMAIN, PEERS, wrong)


def test_a_closing_block_is_no_block_of_a_certified_manifest():
    state, last = stopped(me=3)
    with pytest.raises(MalformedMessage, match="closing"):
        authenticate(state.config, DOMAIN, link_of(closing(last)))


@pytest.mark.parametrize(
    "hand_over",
    [
        HandOver(seat=PEERS[GONE], holder=PEERS[1]),
        HandOver(seat=PEERS[GONE], holder=peer_of(SigningKey(bytes([8]) * 32))),
        HandOver(seat=peer_of(RESERVE), holder=peer_of(RESERVE)),
    ],
)
def test_a_seat_goes_to_a_reserve(hand_over):
    authenticate(config_of(3), DOMAIN, the_last())
    with pytest.raises(PeerFault, match="expected a verifier's to a reserve without one"):
        authenticate(config_of(3), DOMAIN, the_last((hand_over,)))


def test_a_reserve_takes_one_seat_only():
    assert config_of(3).may_hand_over(TO_RESERVE)
    assert not config_of(3, SECOND).may_hand_over(replace(TO_RESERVE, seat=PEERS[1]))
    with pytest.raises(ConfigError, match="a reserve of this run is a verifier of it"):
        replace(a_config(), reserves=(PEERS[1],))


def test_a_double_vote_is_checked_by_the_key_of_its_iteration():
    block = digest(the_last().block)
    for iteration, right, wrong in ((5, KEYS[GONE], RESERVE), (START + 5, RESERVE, KEYS[GONE])):
        for key in (right, wrong):
            pair = double_vote(
                a_vote(GONE, iteration, VoteKind.DUMMY, key=key),
                a_vote(GONE, iteration, VoteKind.FINALISE, block, key=key),
            )
            if key is right:
                check_double_vote(DOMAIN, pair, SECOND)
                continue
            with pytest.raises(MalformedMessage, match="signature"):
                check_double_vote(DOMAIN, pair, SECOND)


def test_after_a_restart_the_next_configuration_goes_on_and_one_that_lost_its_chain_signs_nothing():
    last = the_last()
    state, said = run(restore(config_of(3), (), 0), Synced((link_of(last),), 0), Tick(1 << 40))
    mine = votes_in(said)
    assert [vote.iteration for vote in mine] == [START + 1]

    again = restore(config_of(3, SECOND), mine, 0, link_of(last))
    assert again.iteration == START + 1 and again.tip == state.tip and again.own == state.own

    lost = restore(config_of(3), mine, 0)
    lost, said = run(lost, Tick(1 << 40))
    assert lost.iteration == 1 and not votes_in(said)
    lost, said = run(lost, Synced((link_of(last),), 0), Tick(1 << 41))
    assert lost.iteration == START + 1 and not votes_in(said)


def test_whoever_hears_of_a_later_configuration_asks_for_manifests_once_a_resend():
    state = restore(config_of(3), (), 0)
    state, said = run(state, Overtaken(), Overtaken(), Tick(1_000), Tick(1_100), Tick(2_000))
    assert [one.round for one in said if isinstance(one, NeedSync)] == [0]


def test_who_holds_a_manifest_that_hands_over_asks_whether_it_is_final_since_the_outgoing_holder_is_silent():
    state, _ = stopped(me=3)
    _, said = run(state, Tick(2 << 40))
    assert [one.round for one in said if isinstance(one, NeedSync)] == [0]

    state, _ = run(restore(config_of(3), (), 0), Tick(1 << 40), an_ordinary_proposal())
    _, said = run(state, Tick(2 << 40))
    assert not any(isinstance(one, NeedSync) for one in said)


def test_a_proposal_holds_what_everybody_needs_to_know_that_the_configuration_ends():
    last = the_last()
    authenticate(config_of(3), DOMAIN, closing(last))
    assert isinstance(closing(last), Proposal) and closing(last).manifest.hand_over == (TO_RESERVE,)
    _, said = step(restore(config_of(3), (), 0), Received(closing(last), 0))
    kinds = {vote.kind for vote in votes_in(said)}
    assert VoteKind.NOTARISE not in kinds  # its parent's body is not held: nobody votes on what it cannot see


def test_the_run_goes_on_when_a_dead_holders_seat_is_handed_over():
    keys = {0: RESERVE, **{place: KEYS[place] for place in (1, 2, 3)}}  # the first holder of seat 0 is dead
    states = {place: restore(config_of(place or None), (), 0) for place in keys}
    chains = {place: [] for place in keys}
    wire, now = [], 0

    def happen(place, *events):
        todo = list(events)
        while todo:
            try:
                states[place], said = step(states[place], todo.pop(0))
            except PeerFault:
                continue
            for effect in said:
                match effect:
                    case SignAndSend(vote):
                        signature = sign(keys[place], DOMAIN, vote)
                        wire.append(SignedVote(vote=vote, verifier=PEERS[place], signature=signature))
                    case SignAndSendProposal(block, manifest, parent, dummies):
                        signature = sign(keys[place], DOMAIN, block)
                        wire.append(
                            Proposal(
                                block=block, manifest=manifest, parent=parent, dummies=dummies,
                                proposer=PEERS[place], signature=signature,
                            )
                        )  # fmt: skip
                    case Send(message):
                        wire.append(message)
                    case BuildProposal() if effect.round < 9:
                        manifest = a_manifest(effect.round, effect.parent_manifest, bytes([place]))
                        is_time = effect.round == 1
                        manifest = replace(manifest, hand_over=(TO_RESERVE,) if is_time else ())
                        todo.append(Built(effect.iteration, manifest))
                    case Examine(proposal, _):
                        todo.append(Examined(digest(proposal.block), True))
                    case NeedSync(number):
                        known = max(chains.values(), key=len)[number:]
                        todo.append(Synced(tuple(known[:1]), now))
                    case Finalised(certified):
                        chains[place].append(certified)

    for turn in range(120):
        now = turn * 4_000
        for place in keys:
            happen(place, Tick(now))
        while wire:
            message = wire.pop(0)
            for place in keys:
                event = heard(states[place].config, DOMAIN, message, now)
                if event is not None:
                    happen(place, event)
        if min(map(len, chains.values())) > 6:
            break

    for place, chain in chains.items():
        assert len(chain) > 6 and chain[:6] == chains[1][:6], place
    assert all(state.config.configuration == SECOND for state in states.values())
    signers = {peer for link in chains[1][2:] for peer in link.certificate.verifiers}
    assert PEERS[GONE] in signers
    assert any(link.block.iteration % 4 == GONE for link in chains[1][2:])  # the reserve leads too
