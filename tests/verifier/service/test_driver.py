"""What one verifier stores, sends and refuses, whoever its peers are and whenever it is stopped."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, trio_test

from assay.network.host import RemoteError
from assay.protocol.agreement.double_votes import check_double_vote, double_vote
from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.errors import MalformedMessage, OutOfPhase, PeerFault, Unavailable
from assay.protocol.messages import (
    BeaconShare,
    BlobPiece,
    Block,
    CertifiedManifest,
    Contradiction,
    DoubleVote,
    ManifestRange,
    Proposal,
    QuorumCertificate,
    SignedBlock,
    SignedInclusionList,
    SignedVote,
    StepRequest,
    VoteKind,
)
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, RoundId
from assay.testing.members import DOMAIN, a_digest, name_of, peer
from assay.testing.signed import (
    NODES,
    a_certified,
    a_chain,
    a_history,
    a_manifest,
    a_reveal,
    a_signed_commit,
    an_inclusion_list,
    inclusion_lists,
)
from assay.verifier.consensus.check import authenticate
from assay.verifier.consensus.machine import AHEAD
from assay.verifier.round.commits import contradiction
from assay.verifier.service.delivery import receivers
from assay.verifier.service.driver import DOUBLE_VOTES, EVIDENCE, RETRY_S
from assay.verifier.service.proposer import Proposer
from tests.verifier.service.a_driver import (
    ME,
    OTHERS,
    TIMING,
    FakeStateSync,
    a_proposal,
    a_quorum,
    a_real_commit,
    a_real_manifest,
    a_vote,
    an_aggregate,
    an_update,
    running,
    settled,
    with_commits,
)

START = a_history()
FIRST = a_real_manifest(NODES)
PROPOSAL = a_proposal(FIRST)  # of the leader of iteration 1
AFTER = advance(START, FIRST)
NOTARISE, FINALISE, DUMMY = VoteKind.NOTARISE, VoteKind.FINALISE, VoteKind.DUMMY
LEADER = OTHERS[0]  # of iteration 1


@pytest.fixture
def clock():
    return MockClock()


def a_twin():
    """Another proposal of the same leader for the same iteration, as good as the first."""
    return a_proposal(a_real_manifest(["nora"]))


async def passes(verifier, clock, duration_ms):
    """Let this time pass, with one tick at its end."""
    clock.jump(duration_ms / 1000)
    verifier.driver.tick()
    await settled()


def is_made_of(manifest, names):
    """Whether this is the first manifest with these nodes' commits, and a quorum of lists."""
    whole = a_real_manifest(names)
    same = replace(manifest, inclusion_lists=whole.inclusion_lists)
    return len(manifest.inclusion_lists) >= 3 and same == whole


async def gives_up(verifier, clock):
    """Let the iteration's time pass."""
    await passes(verifier, clock, TIMING.iteration_ms)


# ---- votes


@trio_test
async def test_a_vote_of_any_kind_is_in_the_store_before_it_is_sent(tmp_path, clock):
    child = a_proposal(a_manifest(AFTER), 2, PROPOSAL)
    async with running(tmp_path) as verifier:
        unstored = []

        def look(message):
            if isinstance(message, SignedVote) and message.vote not in verifier.journal:
                unstored.append(message.vote)

        verifier.host.on_post = look
        await verifier.receive(PROPOSAL, a_quorum(NOTARISE, PROPOSAL))
        await gives_up(verifier, clock)
        await verifier.receive(child, a_quorum(FINALISE, child))

        voted = [(vote.iteration, vote.kind) for vote in verifier.host.votes()]
        assert voted == [(1, NOTARISE), (1, FINALISE), (2, DUMMY), (2, NOTARISE), (0, FINALISE)]
        assert unstored == []


@trio_test
async def test_our_own_vote_counts_for_the_quorum_whose_certificate_is_passed_on(tmp_path, clock):
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL, *(a_vote(name, NOTARISE, PROPOSAL) for name in OTHERS[:2]))
        assert [vote.kind for vote in verifier.host.votes()] == [NOTARISE, FINALISE]

        await passes(verifier, clock, TIMING.resend_ms)
        assert [one.vote.kind for one in verifier.host.broadcast(QuorumCertificate)] == [NOTARISE]


@trio_test
async def test_a_message_that_arrives_while_another_is_worked_on_waits_for_it(tmp_path, clock):
    async with running(tmp_path) as verifier:

        def deliver(message):
            verifier.host.on_post = lambda message: None
            verifier.driver.receive(a_quorum(FINALISE, PROPOSAL))
            assert verifier.follower.run_state == START

        verifier.host.on_post = deliver
        await verifier.receive(PROPOSAL)

        assert verifier.follower.run_state == AFTER


async def sent_unstored(leader, clock, kind):
    """The blocks that it sends in such messages before it has stored them, once all nodes have committed."""
    found = []

    def look(message):
        if isinstance(message, kind) and message.block not in leader.journal:
            found.append(message.block)

    leader.host.on_post = look
    await takes(leader, *NODES)
    await passes(leader, clock, 0)
    return found


@trio_test
async def test_a_leader_stores_its_block_before_it_proposes_it(tmp_path, clock):
    async with running(tmp_path, LEADER) as verifier:
        unstored = await sent_unstored(verifier, clock, Proposal)

        (manifest,) = {one.manifest for one in verifier.host.broadcast(Proposal, LEADER)}
        assert is_made_of(manifest, NODES)
        assert unstored == []


@trio_test
async def test_a_leader_that_lags_stores_its_pass_before_it_sends_it_signed_and_votes_dummy(
    tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(Proposer, "_lags", lambda _: True)
    async with running(tmp_path, LEADER) as verifier:
        unstored = await sent_unstored(verifier, clock, SignedBlock)

        (passed,) = set(verifier.host.broadcast(SignedBlock, LEADER))
        authenticate(verifier.driver._state.config, verifier.me.domain, passed)
        assert [vote.kind for vote in verifier.host.votes(LEADER)] == [VoteKind.DUMMY]
        assert unstored == [] == verifier.host.broadcast(Proposal, LEADER)


@trio_test
async def test_after_a_restart_a_second_proposal_of_the_iteration_gets_no_vote(tmp_path, clock):
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL)
        (first,) = verifier.host.votes()
    async with running(tmp_path) as verifier:
        holds(verifier, "nora")
        await verifier.receive(a_twin())
        await passes(verifier, clock, 0)

        assert verifier.host.votes() == [first]


@trio_test
async def test_the_second_proposal_alone_would_have_got_the_vote(tmp_path, clock):
    """Or the test before this one would prove nothing."""
    async with running(tmp_path) as verifier:
        holds(verifier, "nora")
        await verifier.receive(a_twin())

        assert [vote.block for vote in verifier.host.votes()] == [digest(a_twin().block)]


@trio_test
async def test_after_a_restart_an_iteration_that_was_given_up_is_not_finalised(tmp_path, clock):
    async with running(tmp_path) as verifier:
        await gives_up(verifier, clock)
        assert [vote.kind for vote in verifier.host.votes()] == [DUMMY]
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL, a_quorum(NOTARISE, PROPOSAL))

        assert FINALISE not in [vote.kind for vote in verifier.host.votes()]


@trio_test
async def test_a_leader_waits_for_the_last_node_by_what_the_others_took(tmp_path, clock):
    async with running(tmp_path, LEADER) as verifier:
        await takes(verifier, *NODES[:2])
        await passes(verifier, clock, 0)
        await passes(verifier, clock, TIMING.collect_ms // 3 - 1)
        assert not verifier.host.broadcast(Proposal, LEADER)
        await passes(verifier, clock, 1)

        (proposal,) = verifier.host.broadcast(Proposal, LEADER)
        assert len(proposal.manifest.commits) == 2


@trio_test
async def test_after_a_restart_a_leader_signs_no_second_block(tmp_path, clock):
    async with running(tmp_path, LEADER) as verifier:
        await takes(verifier, *NODES[:2])
        await passes(verifier, clock, 0)
        await passes(verifier, clock, TIMING.collect_ms)
        (first,) = verifier.host.broadcast(Proposal, LEADER)
        assert len(first.manifest.commits) == 2
    async with running(tmp_path, LEADER) as verifier:
        await takes(verifier, *NODES)  # from which another manifest would be made
        await passes(verifier, clock, 0)
        await passes(verifier, clock, TIMING.collect_ms)

        assert {one.block for one in verifier.host.broadcast(Proposal, LEADER)} <= {first.block}


@trio_test
async def test_after_a_restart_a_verifier_goes_on_from_its_last_final_manifest(tmp_path, clock):
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL, a_quorum(FINALISE, PROPOSAL))
        assert not [one for one in verifier.journal if isinstance(one, Block | Proposal)]
    async with running(tmp_path) as verifier:
        assert verifier.driver.round.run_state == AFTER
        for name in NODES:
            verifier.me.blobs.put(an_update(name, AFTER))
        await verifier.receive(a_proposal(a_real_manifest(NODES, AFTER), 2, PROPOSAL))

        assert [(vote.iteration, vote.kind) for vote in verifier.host.votes()] == [(2, NOTARISE)]


# ---- messages that change nothing


@pytest.mark.parametrize("signed", [[NOTARISE], [NOTARISE, FINALISE]])
@trio_test
async def test_a_verifier_whose_store_went_back_contradicts_nothing_that_it_may_have_signed(
    tmp_path, clock, caplog, signed
):
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL, *([a_quorum(NOTARISE, PROPOSAL)] if FINALISE in signed else []))
        assert [vote.kind for vote in verifier.host.votes()] == signed
    for file in tmp_path.glob("store.db*"):
        file.unlink()

    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL)
        await gives_up(verifier, clock)
        assert [vote.kind for vote in verifier.host.votes()] == ([] if FINALISE in signed else [DUMMY])
    assert "lost what was signed" in caplog.text


@trio_test
async def test_a_verifier_whose_store_is_whole_goes_on_at_once(tmp_path, clock, caplog):
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL)
    async with running(tmp_path) as verifier:
        await gives_up(verifier, clock)
        assert verifier.host.votes() != []
    assert "lost what was signed" not in caplog.text


@trio_test
async def test_a_proposal_with_a_bad_signature_raises_and_changes_nothing(tmp_path, clock):
    forged = replace(PROPOSAL, signature=a_twin().signature)
    async with running(tmp_path) as verifier:
        with pytest.raises(PeerFault, match="signature"):
            verifier.driver.receive(forged)
        await settled()

        assert verifier.driver.body(digest(forged.block)) is None
        assert verifier.host.posted == [] and verifier.journal == []
        await verifier.receive(PROPOSAL)
        assert len(verifier.host.votes()) == 1


@trio_test
async def test_a_message_out_of_phase_is_dropped_and_is_nobodys_fault(tmp_path, clock, caplog):
    async with running(tmp_path) as verifier:
        await verifier.receive(a_vote(LEADER, NOTARISE, PROPOSAL, iteration=AHEAD + 2))

        assert verifier.host.posted == [] and verifier.journal == []
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
        await verifier.receive(PROPOSAL)
        assert len(verifier.host.votes()) == 1


@trio_test
async def test_a_signed_message_that_breaks_a_rule_is_logged_as_a_fault_and_dropped(tmp_path, clock, caplog):
    skips_a_round = a_proposal(a_manifest(advance(AFTER, a_manifest(AFTER))), 2, PROPOSAL)
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL, a_quorum(NOTARISE, PROPOSAL), skips_a_round)

        assert "peer fault" in [record.message for record in caplog.records]
        assert verifier.driver.body(digest(skips_a_round.block)) is None


@trio_test
async def test_a_forged_or_old_manifest_does_not_grow_the_chain(tmp_path, clock):
    forged = a_certified(FIRST, signers=OTHERS[:2])
    async with running(tmp_path) as verifier:
        with pytest.raises(MalformedMessage, match="signatures"):
            verifier.driver.synced((forged,))
        assert verifier.follower.run_state == START

        verifier.driver.synced((a_certified(FIRST),))
        verifier.driver.synced((forged,))  # of a round that is final: not even looked at
        await settled()
        assert verifier.driver.round.run_state == verifier.follower.run_state == AFTER


@trio_test
async def test_two_proposals_of_one_leader_are_kept_as_evidence_and_go_to_all_and_into_a_manifest(
    tmp_path, clock
):
    blocks = [
        SignedBlock(block=one.block, verifier=one.proposer, signature=one.signature)
        for one in (PROPOSAL, a_twin())
    ]
    pair = double_vote(*blocks)
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL, a_twin())

        assert list(verifier.me.store.values(DOUBLE_VOTES).values()) == [encode(pair)]
        assert verifier.host.broadcast(DoubleVote) == [pair]
        assert verifier.driver.round.double_votes == {peer(LEADER): pair}
    async with running(tmp_path) as verifier:  # and after a restart it still waits for a manifest
        assert verifier.driver.round.double_votes == {peer(LEADER): pair}


@trio_test
async def test_votes_that_a_liar_split_between_two_verifiers_are_found_in_a_certificate(tmp_path, clock):
    """Nobody was sent both, but the one vote is in a quorum's certificate."""
    liar, twin = OTHERS[1], a_twin()
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL, a_vote(liar, NOTARISE, twin))
        assert verifier.host.broadcast(DoubleVote) == []
        await verifier.receive(a_quorum(NOTARISE, PROPOSAL))

        (pair,) = verifier.host.broadcast(DoubleVote)
        assert pair.verifier == peer(liar)
        check_double_vote(DOMAIN, pair)


@trio_test
async def test_a_commit_that_others_list_is_fetched_and_then_listed(tmp_path, clock):
    missing = a_real_commit(NODES[2], START)

    async def answer(method, body):
        assert (method, decode(StepRequest, body).node) == ("commit", missing.commit.node)
        if len(verifier.host.asked) < 3:  # those asked first list it and send nothing
            await trio.sleep_forever()
        return encode(missing)

    async with running(tmp_path) as verifier:
        await takes(verifier, *NODES[:2])
        for signed in inclusion_lists(START, NODES):
            if signed.inclusion_list.verifier != verifier.me.me:
                verifier.driver.take(signed)
        verifier.host.answer = answer
        await passes(verifier, clock, 0)
        assert verifier.host.asked == []  # it may be on its way
        await passes(verifier, clock, TIMING.resend_ms)

        assert verifier.driver.round.commits[missing.commit.node] == missing
        own = verifier.host.broadcast(SignedInclusionList)[-1]
        assert own == an_inclusion_list(ME, START, NODES)


@trio_test
async def test_commits_of_a_round_that_is_final_are_not_fetched(tmp_path, clock):
    """A verifier whose parameters lag is still in that round, and its next manifest brings them."""
    async with running(tmp_path, state_sync=lagging()) as verifier:
        await takes(verifier, *NODES[:2])
        for signed in inclusion_lists(START, NODES):
            if signed.inclusion_list.verifier != verifier.me.me:
                verifier.driver.take(signed)
        verifier.driver.synced((a_certified(FIRST),))
        await settled()
        assert verifier.follower.run_state.round == 1 and verifier.driver.round.run_state == START

        await passes(verifier, clock, 0)
        await passes(verifier, clock, TIMING.resend_ms)
        assert [method for _, method in verifier.host.asked if method == "commit"] == []


# ---- commits


def holds(verifier, *names):
    """These nodes' updates of round 0 are here."""
    for name in names:
        verifier.me.blobs.put(an_update(name, START))


async def takes(verifier, *names):
    """These nodes' commits arrive, each with its update, and the other verifiers list them."""
    for name in names:
        signed = a_real_commit(name, START)
        verifier.driver.admit(signed)
        holds(verifier, name)
        verifier.driver.take(signed)
    held = [name_of(node) for node in verifier.driver.round.commits]
    for one in inclusion_lists(START, held):
        if one.inclusion_list.verifier != verifier.me.me:
            verifier.driver.take(one)
    await settled()


def evidence(verifier):
    return [decode(Contradiction, body) for body in verifier.me.store.values(EVIDENCE).values()]


@trio_test
async def test_an_admitted_commit_enters_the_round_and_wakes_the_proposer(tmp_path, clock):
    async with running(tmp_path, LEADER) as verifier:
        verifier.driver.tick()
        await takes(verifier, *NODES[:2])
        assert verifier.host.broadcast(Proposal, LEADER) == []

        await takes(verifier, NODES[2])  # no tick after it

        assert set(verifier.driver.round.commits) == {peer(name) for name in NODES}
        (proposal,) = verifier.host.broadcast(Proposal, LEADER)
        assert is_made_of(proposal.manifest, NODES)
        assert [vote.block for vote in verifier.host.votes(LEADER)] == [digest(proposal.block)]


@trio_test
async def test_a_commit_that_breaks_a_rule_or_is_forged_is_not_admitted(tmp_path, clock):
    async with running(tmp_path) as verifier:
        with pytest.raises(PeerFault, match="signature"):
            verifier.driver.admit(a_signed_commit("nora", START, peer_key="nils"))
        with pytest.raises(PeerFault, match="tokens"):
            verifier.driver.admit(a_signed_commit("nora", START, tokens=1))


@trio_test
async def test_what_a_node_did_not_sign_for_this_round_or_the_last_is_no_sign_of_life(tmp_path, clock):
    async with running(tmp_path) as verifier:
        for refused in (
            a_signed_commit("nora", START, peer_key="nils"),
            a_signed_commit("nora", START, round=RoundId(7)),
            a_signed_commit("nora", START, run_id=a_digest("other run")),
        ):
            with pytest.raises((PeerFault, OutOfPhase)):
                verifier.driver.admit(refused)
            assert peer("nora") not in verifier.driver.round.heard

        with pytest.raises(PeerFault, match="tokens"):
            verifier.driver.admit(a_signed_commit("nora", START, tokens=1))
        assert verifier.driver.round.heard == {peer("nora"): 0}


@trio_test
async def test_a_second_commit_is_refused_and_the_pair_is_kept_and_broadcast_once(tmp_path, clock):
    first = a_real_commit("mallory", START)
    others = [a_real_commit("mallory", START, loss_micro=number) for number in (1, 2)]
    async with running(tmp_path) as verifier:
        await takes(verifier, "mallory")
        for other in (*others, *others):
            with pytest.raises(PeerFault, match="two commits for round 0"):
                verifier.driver.admit(other)

        pair = contradiction(first, others[0])
        assert verifier.driver.round.commits == {peer("mallory"): first}
        assert evidence(verifier) == [pair]
        assert verifier.host.broadcast(Contradiction) == [pair]


@trio_test
async def test_a_pair_from_a_peer_is_kept_and_passed_on_once(tmp_path, clock):
    pair = contradiction(a_real_commit("mallory", START), a_real_commit("mallory", START, loss_micro=1))
    async with running(tmp_path) as verifier:
        verifier.driver.take(pair)
        verifier.driver.take(pair)

        assert evidence(verifier) == [pair]
        assert verifier.host.broadcast(Contradiction) == [pair]


@trio_test
async def test_the_same_commit_again_is_no_evidence(tmp_path, clock):
    async with running(tmp_path) as verifier:
        await takes(verifier, "mallory", "mallory")

        assert evidence(verifier) == [] and verifier.host.broadcast(Contradiction) == []


@trio_test
async def test_a_final_manifest_that_contradicts_a_commit_here_makes_evidence(tmp_path, clock):
    held, other = a_real_commit("mallory", START), a_real_commit("mallory", START, loss_micro=1)
    honest = a_real_commit("nora", START)
    commits = sorted((honest, other), key=lambda signed: signed.commit.node)
    final = with_commits(FIRST, START, commits, NO_DIGEST)
    async with running(tmp_path) as verifier:
        await takes(verifier, "mallory", "nora")
        verifier.driver.synced((a_certified(final),))

        pair = contradiction(held, other)
        assert evidence(verifier) == [pair]
        assert verifier.host.broadcast(Contradiction) == [pair]
        assert verifier.driver.round.contradictions == {peer("mallory"): pair}


@trio_test
async def test_evidence_that_a_final_manifest_carries_is_kept(tmp_path, clock):
    pair = contradiction(a_real_commit("mallory", START), a_real_commit("mallory", START, loss_micro=1))
    async with running(tmp_path) as verifier:
        verifier.driver.synced((a_certified(a_manifest(START, contradictions=(pair,))),))

        assert evidence(verifier) == [pair]


@trio_test
async def test_a_manifest_of_a_later_round_contradicts_no_commit_of_this_one(tmp_path, clock):
    async with running(tmp_path, state_sync=lagging()) as verifier:
        await takes(verifier, *NODES)
        verifier.driver.synced(tuple(a_chain(START, 2, ())))
        run_state = verifier.follower.run_state
        verifier.driver.synced(
            (a_certified(a_manifest(run_state, NODES), digest(list(verifier.me.store.links())[-1].block)),)
        )

        assert verifier.follower.run_state.round == 3 and verifier.driver.round.run_state == START
        assert evidence(verifier) == []


@trio_test
async def test_the_first_pair_of_a_node_is_the_one_that_is_kept(tmp_path, clock):
    first, *others = [a_real_commit("mallory", START, loss_micro=number) for number in (0, 1, 2)]
    pair, another = [contradiction(first, other) for other in others]
    async with running(tmp_path) as verifier:
        verifier.driver.take(pair)
        verifier.driver.synced((a_certified(a_manifest(START, contradictions=(another,))),))

        assert evidence(verifier) == [pair]


@trio_test
async def test_a_final_commit_that_its_node_never_signed_ends_nothing(tmp_path, clock):
    """Only a quorum of liars can make it final; the chain and its beacon go on all the same."""
    forged = a_real_commit("mallory", START, loss_micro=1, peer_key="nora")
    async with running(tmp_path) as verifier:
        await takes(verifier, "mallory")
        verifier.driver.synced((a_certified(with_commits(FIRST, START, [forged], NO_DIGEST)),))

        assert verifier.follower.run_state.round == 1 and verifier.driver.round.contradictions == {}
        assert len(verifier.host.broadcast(BeaconShare)) == 1


# ---- final manifests


@trio_test
async def test_a_final_manifest_that_is_too_long_for_a_frame_ends_no_verifier(tmp_path, clock):
    def post(message):
        if isinstance(message, CertifiedManifest):
            raise ValueError("NOTIFICATION of 262145 bytes, at most 262144 allowed")

    async with running(tmp_path) as verifier:
        verifier.host.members.append(peer("nora"))
        verifier.host.on_post = post
        await verifier.receive(PROPOSAL, a_quorum(FINALISE, PROPOSAL))

        assert verifier.follower.run_state.round == 1
        assert not verifier.host.posted_to(peer("nora"), CertifiedManifest)


@trio_test
async def test_a_final_manifest_goes_to_everybody_connected_who_is_no_verifier(tmp_path, clock):
    async with running(tmp_path) as verifier:
        verifier.host.members = [peer("nora"), peer(LEADER)]
        await verifier.receive(PROPOSAL, a_quorum(FINALISE, PROPOSAL))

        (sent,) = verifier.host.posted_to(peer("nora"), CertifiedManifest)
        assert (sent.manifest, sent.block) == (FIRST, PROPOSAL.block)
        assert [to for to, one in verifier.host.posted if isinstance(one, CertifiedManifest)] == [
            peer("nora")
        ]
        assert list(verifier.me.store.links()) == [sent]


@pytest.mark.parametrize("certified", [NOTARISE, FINALISE])
@trio_test
async def test_an_aggregate_goes_to_the_nodes_we_serve_as_soon_as_its_block_is_notarised(
    tmp_path, clock, certified
):
    right = a_proposal(a_real_manifest(NODES))
    async with running(tmp_path) as verifier:
        holds(verifier, *NODES)
        await verifier.receive(right)
        assert pieces(verifier) == []

        await verifier.receive(a_quorum(certified, right))
        assert [node for node, _ in pieces(verifier)] == receivers(START, peer(ME)) != []
        assert {piece.piece for _, piece in pieces(verifier)} == {an_aggregate(NODES, START)}

        await verifier.receive(a_quorum(FINALISE, right))
        assert len(pieces(verifier)) == len(receivers(START, peer(ME)))  # once


@trio_test
async def test_an_aggregate_is_not_pushed_before_a_quorum_wants_it(tmp_path, clock):
    right = a_proposal(a_real_manifest(NODES))
    async with running(tmp_path) as verifier:
        holds(verifier, *NODES)
        await verifier.receive(right, a_vote(LEADER, NOTARISE, right))

        assert pieces(verifier) == []


def pieces(verifier):
    return [(to, one) for to, one in verifier.host.posted if isinstance(one, BlobPiece)]


@trio_test
async def test_a_verifier_of_a_complete_run_says_nothing_more(tmp_path, clock):
    async with running(tmp_path) as verifier:
        verifier.driver.synced(tuple(a_chain(START, START.spec.ordered.last_round + 1, ())))
        assert verifier.follower.run_state.is_complete
        said = len(verifier.host.posted)
        await gives_up(verifier, clock)

        assert len(verifier.host.posted) == said


def lagging():
    state_sync = FakeStateSync()
    state_sync.lags = True
    return state_sync


@trio_test
async def test_a_round_opens_when_its_parameters_are_there_and_not_before(tmp_path, clock):
    async with running(tmp_path, state_sync=lagging()) as verifier:
        opened = []

        async def listen():
            await verifier.driver.round_opened()
            opened.append(verifier.driver.round.run_state)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await verifier.receive(PROPOSAL, a_quorum(FINALISE, PROPOSAL))
            assert verifier.follower.run_state == AFTER
            clock.jump(RETRY_S)
            await settled()
            assert verifier.driver.round.run_state == START and opened == []

            verifier.state_sync.lags = False
            clock.jump(RETRY_S)
            await settled()
        assert opened == [AFTER]


# ---- the beacon


@trio_test
async def test_our_beacon_share_is_sent_once_when_the_block_is_notarised(tmp_path, clock):
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL)
        assert verifier.host.broadcast(BeaconShare) == []

        await verifier.receive(a_quorum(NOTARISE, PROPOSAL))
        await verifier.receive(a_vote(LEADER, FINALISE, PROPOSAL))
        clock.jump(2 * TIMING.resend_ms / 1000)
        verifier.driver.tick()

        share = a_reveal(ME, AFTER)
        assert verifier.host.broadcast(BeaconShare) == [share]
        assert verifier.driver.round.beacon_shares == {peer(ME): (share,)}


@trio_test
async def test_our_beacon_share_for_the_last_final_block_is_sent_again_after_resend_ms(tmp_path, clock):
    async with running(tmp_path) as verifier:
        verifier.driver.tick()
        await verifier.receive(PROPOSAL, a_quorum(FINALISE, PROPOSAL))
        sent = len(verifier.host.broadcast(BeaconShare))
        counts = []
        for wait_ms in (TIMING.resend_ms - 1, 1, TIMING.resend_ms - 1, 1):
            clock.jump(wait_ms / 1000)
            verifier.driver.tick()
            counts.append(len(verifier.host.broadcast(BeaconShare)) - sent)

        assert sent > 0 and counts == [0, 1, 1, 2]
        assert set(verifier.host.broadcast(BeaconShare)) == {a_reveal(ME, AFTER)}


@trio_test
async def test_a_leader_that_does_not_propose_is_sent_the_shares_of_others_once(tmp_path, clock):
    """A liar sends its share to all but the leader, which must not propose without it."""
    next_leader = peer(OTHERS[1])
    shares = {name: a_reveal(name, AFTER) for name in OTHERS}

    async def resends(verifier):
        clock.jump(TIMING.resend_ms / 1000)
        verifier.driver.tick()
        sent = {to: verifier.host.posted_to(to, BeaconShare) for to in map(peer, OTHERS)}
        return {to: [one for one in found if one.verifier != peer(ME)] for to, found in sent.items()}

    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL, a_quorum(NOTARISE, PROPOSAL), a_quorum(FINALISE, PROPOSAL))
        await settled()
        for name in OTHERS:
            verifier.driver.take(shares[name])
        assert not any((await resends(verifier)).values())  # it may wait for commits

        clock.jump(TIMING.collect_ms / 1000)
        for _ in range(3):
            passed_on = await resends(verifier)
        others = [name for name in sorted(OTHERS, key=peer) if peer(name) != next_leader]
        assert passed_on.pop(next_leader) == [shares[name] for name in others]
        assert not any(passed_on.values())


@trio_test
async def test_a_share_that_is_passed_on_is_pooled_if_it_is_valid_now(tmp_path, clock):
    share, by = a_reveal(OTHERS[0], AFTER), peer(OTHERS[1])
    async with running(tmp_path) as verifier:
        with pytest.raises(OutOfPhase, match="of round 0 at 0"):
            verifier.driver.take_passed_on(share, by)
        await verifier.receive(PROPOSAL, a_quorum(FINALISE, PROPOSAL))
        await settled()
        forged = replace(share, proof=a_reveal(OTHERS[1], AFTER).proof)
        for false in (forged, replace(share, verifier=peer("a stranger"))):
            with pytest.raises(PeerFault, match="did not make") as caught:
                verifier.driver.take_passed_on(false, by)
            assert caught.value.peer == by

        verifier.driver.take_passed_on(share, by)
        assert verifier.driver.round.beacon_shares[share.verifier] == (share,)


@trio_test
async def test_a_manifest_that_came_by_sync_gets_our_beacon_share_too(tmp_path, clock):
    async with running(tmp_path) as verifier:
        verifier.driver.synced((a_certified(FIRST),))

        assert verifier.host.broadcast(BeaconShare) == [a_reveal(ME, AFTER)]


# ---- sync


class Answers:
    """Answers requests by turns, whoever is asked; the last answer is repeated."""

    def __init__(self, *answers):
        self.answers, self.bodies = list(answers), []

    async def __call__(self, method, body):
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def a_range(*links):
    return encode(ManifestRange(links=links))


@trio_test
async def test_sync_asks_peers_in_turn_until_the_chain_grows(tmp_path, clock):
    async with running(tmp_path) as verifier:
        verifier.host.answer = answers = Answers(a_range(), a_range(a_certified(FIRST)))
        await verifier.driver.sync()

        assert verifier.follower.run_state == AFTER
        assert len({to for to, _ in verifier.host.asked}) == len(verifier.host.asked) == 2
        assert [decode(StepRequest, body).number for body in answers.bodies] == [0, 0]


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("busy"),
        RemoteError(peer(LEADER), "no"),
        b"nonsense",
        a_range(a_certified(FIRST, signers=OTHERS[:2])),
        a_range(*a_chain(START, 2)[1:]),
    ],
    ids=["unavailable", "error", "nonsense", "forged", "gap"],
)
def test_sync_skips_a_peer_that_fails(tmp_path, clock, failure):
    async def main():
        async with running(tmp_path) as verifier:
            verifier.host.answer = Answers(failure, failure, a_range(a_certified(FIRST)))
            await verifier.driver.sync()

            assert verifier.follower.run_state == AFTER
            assert len({to for to, _ in verifier.host.asked}) == 3

    trio.run(main, clock=clock)


@trio_test
async def test_sync_asks_every_connected_verifier_once_and_nobody_else(tmp_path, clock):
    async with running(tmp_path) as verifier:
        verifier.host.members = [peer("nora"), *(peer(name) for name in OTHERS[:2])]
        verifier.host.answer = Answers(a_range())
        await verifier.driver.sync()

        assert sorted(to for to, _ in verifier.host.asked) == [peer(name) for name in OTHERS[:2]]


@trio_test
async def test_sync_never_runs_twice_at_once_and_runs_again_later(tmp_path, clock):
    gate = trio.Event()

    async def answer(method, body):
        await gate.wait()
        return a_range(a_certified(FIRST))

    async with running(tmp_path) as verifier:
        verifier.host.answer = answer
        async with trio.open_nursery() as nursery:
            nursery.start_soon(verifier.driver.sync)
            nursery.start_soon(verifier.driver.sync)
            await settled()
            assert len(verifier.host.asked) == 1
            gate.set()

        verifier.host.answer = Answers(a_range())
        await verifier.driver.sync()
        assert len(verifier.host.asked) == 4


@trio_test
async def test_a_verifier_that_lacks_a_final_block_asks_for_manifests_by_itself(tmp_path, clock):
    async with running(tmp_path) as verifier:
        verifier.host.answer = Answers(a_range(a_certified(FIRST)))
        await verifier.receive(a_quorum(FINALISE, PROPOSAL))
        await passes(verifier, clock, TIMING.resend_ms)

        assert verifier.follower.run_state == AFTER


# ---- proposals that others hold


@trio_test
async def test_a_notarised_block_is_fetched_from_one_peer_after_another(tmp_path, clock):
    async with running(tmp_path) as verifier:
        verifier.host.answer = answers = Answers(Unavailable("not here"), b"nonsense", encode(PROPOSAL))
        await verifier.receive(a_quorum(NOTARISE, PROPOSAL))
        await passes(verifier, clock, TIMING.resend_ms)

        assert verifier.driver.body(digest(PROPOSAL.block)) == PROPOSAL
        assert sorted(verifier.host.asked) == [(peer(name), "proposal") for name in OTHERS]
        assert answers.bodies == [digest(PROPOSAL.block)] * 3
        assert verifier.host.broadcast(BeaconShare) == [a_reveal(ME, AFTER)]


@trio_test
@pytest.mark.parametrize("other", ["another block", "an older block", "another proof of the block"])
async def test_a_peer_that_answers_with_another_proposal_does_not_end_the_search_for_a_block(
    tmp_path, clock, other
):
    second = a_proposal(a_real_manifest(NODES, AFTER), 2, PROPOSAL)
    false = {
        "another block": a_twin(),
        "an older block": PROPOSAL,
        "another proof of the block": replace(second, dummies=second.parent),
    }
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL, a_quorum(NOTARISE, PROPOSAL))
        verifier.host.answer = Answers(encode(false[other]), encode(false[other]), encode(second))
        await verifier.receive(a_quorum(NOTARISE, second))
        await passes(verifier, clock, TIMING.resend_ms)

        assert verifier.driver.body(digest(second.block)) == second
        assert len({to for to, method in verifier.host.asked if method == "proposal"}) == 3


@trio_test
async def test_peers_that_do_not_answer_hold_up_a_block_for_a_second_each(tmp_path, clock):
    async def nobody_but_the_last(method, body):
        if len(verifier.host.asked) < len(OTHERS):
            await trio.sleep_forever()
        return encode(PROPOSAL)

    async with running(tmp_path) as verifier:
        verifier.host.answer = nobody_but_the_last
        await verifier.receive(a_quorum(NOTARISE, PROPOSAL))
        await passes(verifier, clock, TIMING.resend_ms)
        for _ in OTHERS[1:]:
            assert verifier.driver.body(digest(PROPOSAL.block)) is None
            await passes(verifier, clock, 1000 * RETRY_S)

        assert verifier.driver.body(digest(PROPOSAL.block)) == PROPOSAL


@trio_test
async def test_a_block_is_not_fetched_twice_at_once(tmp_path, clock):
    async def never(method, body):
        await trio.sleep_forever()

    async with running(tmp_path) as verifier:
        verifier.host.answer = never
        await verifier.receive(a_quorum(NOTARISE, PROPOSAL))
        for _ in range(9):
            await passes(verifier, clock, TIMING.resend_ms)

        assert len(verifier.host.asked) == len(OTHERS)


@trio_test
async def test_a_block_that_nobody_had_is_asked_for_again(tmp_path, clock):
    async with running(tmp_path) as verifier:
        await verifier.receive(a_quorum(NOTARISE, PROPOSAL))
        await passes(verifier, clock, TIMING.resend_ms)
        assert verifier.driver.body(digest(PROPOSAL.block)) is None

        verifier.host.answer = Answers(encode(PROPOSAL))
        await passes(verifier, clock, TIMING.resend_ms)
        assert verifier.driver.body(digest(PROPOSAL.block)) == PROPOSAL


# ---- the proposer at work


@trio_test
async def test_a_proposal_with_a_wrong_aggregate_gets_no_vote(tmp_path, clock):
    wrong = a_proposal(a_real_manifest(NODES, aggregate=a_digest("another aggregate")))
    async with running(tmp_path) as verifier:
        holds(verifier, *NODES)
        await verifier.receive(wrong)

        assert verifier.host.votes() == []


@trio_test
async def test_a_proposal_with_the_aggregate_of_its_commits_gets_our_vote(tmp_path, clock):
    right = a_proposal(a_real_manifest(NODES))
    async with running(tmp_path) as verifier:
        holds(verifier, *NODES)
        await verifier.receive(right)

        assert [vote.block for vote in verifier.host.votes()] == [digest(right.block)]
        assert verifier.me.blobs.load(right.manifest.aggregate) == an_aggregate(NODES, START)


async def never_comes(round_id, name, holders):
    await trio.sleep_forever()


async def unavailable(round_id, name, holders):
    raise Unavailable("nobody has it")


@pytest.mark.parametrize("get_update", [never_comes, unavailable])
def test_a_missing_update_of_a_proposal_does_not_stall_the_driver(tmp_path, clock, get_update):
    async def main():
        async with running(tmp_path, get_update=get_update) as verifier:
            await verifier.receive(a_proposal(a_real_manifest(NODES)))
            assert verifier.host.votes() == []

            await verifier.receive(a_quorum(NOTARISE, PROPOSAL))
            await gives_up(verifier, clock)
            voted = [(vote.iteration, vote.kind) for vote in verifier.host.votes()]
            assert voted == [(1, FINALISE), (2, DUMMY)]

    trio.run(main, clock=clock)


# ---- what does not fit


@trio_test
async def test_a_notification_that_is_too_large_ends_nothing(tmp_path, clock):
    def refuse(message):
        raise ValueError("too large")

    async with running(tmp_path) as verifier:
        verifier.host.on_post = refuse
        await verifier.receive(PROPOSAL)
        assert verifier.host.posted == []

        verifier.host.on_post = lambda message: None
        clock.jump(TIMING.resend_ms / 1000)
        verifier.driver.tick()
        assert len(verifier.host.votes()) == 1


@trio_test
async def test_a_commit_for_another_round_is_late_and_nobodys_lie(tmp_path, clock):
    async with running(tmp_path) as verifier:
        with pytest.raises(OutOfPhase):
            verifier.driver.admit(a_signed_commit("nora", AFTER))


@trio_test
async def test_the_certificate_of_a_block_is_stored_once(tmp_path, clock):
    async with running(tmp_path) as verifier:
        await verifier.receive(PROPOSAL, a_quorum(NOTARISE, PROPOSAL), a_quorum(NOTARISE, PROPOSAL))

        assert len([one for one in verifier.journal if isinstance(one, QuorumCertificate)]) == 1
