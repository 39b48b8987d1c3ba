"""Two statements that exclude each other, both signed, put a verifier at fault, and nothing else does."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from assay.ledger.settlement.payouts import settle
from assay.ledger.settlement.results import double_vote_order_of
from assay.participant.links import check_place
from assay.protocol.agreement.double_votes import check_double_vote, double_vote
from assay.protocol.errors import MalformedMessage
from assay.protocol.identity import sign
from assay.protocol.messages import Block, SignedBlock, SignedVote, Vote, VoteKind
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Iteration, RoundId
from assay.testing.members import DOMAIN, RUN_ID, a_digest, a_peer_key, peer
from assay.testing.signed import NODES, VERIFIERS, a_history, a_manifest
from tests.verifier.round.test_machine import grown

ONE, OTHER = a_digest("one block"), a_digest("another block")


def a_vote(kind, block=ONE, iteration=5, name="vera", run_id=RUN_ID):
    vote = Vote(run_id=run_id, iteration=Iteration(iteration), kind=kind, block=block)
    return SignedVote(vote=vote, verifier=peer(name), signature=sign(a_peer_key(name), DOMAIN, vote))


def a_block(manifest, iteration=5, name="vera"):
    block = Block(
        run_id=RUN_ID, iteration=Iteration(iteration), round=RoundId(2), parent=ONE, manifest=manifest
    )
    return SignedBlock(block=block, verifier=peer(name), signature=sign(a_peer_key(name), DOMAIN, block))


def is_proof(first, second):
    try:
        check_double_vote(DOMAIN, double_vote(first, second))
    except MalformedMessage:
        return False
    return True


def test_what_an_honest_verifier_may_sign_in_an_iteration_is_no_double_vote_and_all_else_is():
    notarise, finalise, dummy = VoteKind.NOTARISE, VoteKind.FINALISE, VoteKind.DUMMY
    votes = [a_vote(kind, block) for kind in (notarise, finalise) for block in (ONE, OTHER)]
    votes.append(a_vote(dummy, NO_DIGEST))
    proofs = {
        frozenset((a.vote.kind, b.vote.kind)) for a, b in itertools.combinations(votes, 2) if is_proof(a, b)
    }
    assert proofs == {frozenset({notarise}), frozenset({finalise}), frozenset({finalise, dummy})}
    assert is_proof(a_block(ONE), a_block(OTHER))
    assert not is_proof(a_block(ONE), a_vote(notarise))
    assert not is_proof(a_block(ONE), a_block(OTHER, iteration=6))
    assert not is_proof(a_vote(notarise), a_vote(notarise, OTHER, iteration=6))
    settled = [a_vote(finalise, block, iteration=0) for block in (ONE, OTHER)]
    assert not is_proof(*settled)  # each says that a block after this one is final


def test_a_pair_proves_nothing_if_a_signature_the_run_or_the_order_is_not_right():
    first, second = a_vote(VoteKind.NOTARISE), a_vote(VoteKind.NOTARISE, OTHER)
    pair = double_vote(first, second)
    assert pair == double_vote(second, first)
    by_two = replace(second, signature=a_vote(VoteKind.NOTARISE, OTHER, name="vito").signature)
    elsewhere = [a_vote(VoteKind.NOTARISE, block, run_id=a_digest("another run")) for block in (ONE, OTHER)]
    turned = replace(
        pair, first=pair.second, second=pair.first,
        first_signature=pair.second_signature, second_signature=pair.first_signature,
    )  # fmt: skip
    named = f"double vote of {peer('vera').hex()[:8]}: its two statements"
    with pytest.raises(MalformedMessage, match=named):
        check_double_vote(DOMAIN, turned)
    for false in (
        double_vote(first, by_two),
        double_vote(*elsewhere),
        turned,
        replace(pair, second=pair.first, second_signature=pair.first_signature),
        replace(pair, verifier=peer("vito")),
        replace(pair, first=b"\x80"),
    ):
        with pytest.raises(MalformedMessage):
            check_double_vote(DOMAIN, false)


def test_a_verifier_that_double_signs_is_disqualified_unpaid_and_slashed_once():
    run_state = grown(a_history(), 2)
    pair = double_vote(a_vote(VoteKind.NOTARISE), a_vote(VoteKind.NOTARISE, OTHER))
    manifest = a_manifest(run_state, NODES, double_votes=(pair,))
    check_place(run_state, manifest)
    after = advance(run_state, manifest)

    record = after.verifiers[peer("vera")]
    assert after.disqualified == (peer("vera"),) and record.fault_round == 2
    order = double_vote_order_of(after.spec, RUN_ID, peer("vera"), record)
    member = next(one for one in after.spec.verifiers if one.peer == peer("vera"))
    assert bytes.fromhex(order.offender[2:]) == member.account
    assert order.ppm == after.spec.money.verifier_slash_ppm
    with pytest.raises(MalformedMessage, match="at fault for one already"):
        check_place(after, a_manifest(after, NODES, double_votes=(pair,)))

    while int(after.round) <= after.calendar.settled_at(0):
        after = advance(after, a_manifest(after, NODES if after.is_training else ()))
    assert peer("vera") not in {row.peer for row in settle(after, 0).rows}
    assert {row.peer for row in settle(after, 0).rows} >= {peer(name) for name in VERIFIERS[1:3]} - {
        peer("vera")
    }


def test_a_manifest_names_no_stranger_and_nobody_twice():
    run_state = a_history()
    votes = [a_vote(VoteKind.NOTARISE, block, name="nora") for block in (ONE, OTHER)]
    with pytest.raises(MalformedMessage, match="no verifier of this run"):
        check_place(run_state, a_manifest(run_state, NODES, double_votes=(double_vote(*votes),)))
    pair = double_vote(a_vote(VoteKind.NOTARISE), a_vote(VoteKind.NOTARISE, OTHER))
    with pytest.raises(MalformedMessage, match="ascend by verifier"):
        check_place(run_state, a_manifest(run_state, NODES, double_votes=(pair, pair)))
