"""Certificates: enough of the right signers, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nacl.signing import SigningKey

from assay.protocol.agreement.quorum import (
    assemble,
    check_certificate,
    commitment_rounds,
    committee_size,
    faults_tolerated,
    least_audit_rounds,
    least_dispute_rounds,
    quorum,
)
from assay.protocol.errors import MalformedMessage, PeerFault
from assay.protocol.identity import Domain, peer_of, sign
from assay.protocol.messages import QuorumCertificate, SignedVote, Vote
from assay.protocol.types import Digest
from tests.protocol.strategies import sample

DOMAIN = Domain(deployment_id=Digest(b"d" * 32), run_id=Digest(b"r" * 32))
KEYS = sorted((SigningKey(bytes([n]) * 32) for n in range(1, 6)), key=peer_of)
VERIFIERS = [peer_of(key) for key in KEYS[:4]]
VOTE = replace(sample(Vote), run_id=DOMAIN.run_id)


def a_certificate(signers=(0, 1, 2), vote=VOTE, domain=DOMAIN) -> QuorumCertificate:
    return assemble(
        [
            SignedVote(vote=vote, verifier=peer_of(KEYS[n]), signature=sign(KEYS[n], domain, vote))
            for n in signers
        ]
    )


@pytest.mark.parametrize("count", range(1, 65))
def test_two_quorums_share_an_honest_verifier_and_the_honest_alone_are_one(count):
    liars = faults_tolerated(count)

    assert 2 * quorum(count) - count > liars
    assert count - liars >= quorum(count)
    assert count >= 3 * liars + 1
    assert count < 3 * (liars + 1) + 1


@pytest.mark.parametrize(
    ("count", "needed"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (10, 7)]
)
def test_quorums_have_the_sizes_of_the_protocol(count, needed):
    assert quorum(count) == needed


@pytest.mark.parametrize("signers", [(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)])
def test_a_quorum_of_signatures_is_a_certificate(signers):
    check_certificate(a_certificate(signers), DOMAIN, VERIFIERS)


def test_the_order_in_which_votes_came_does_not_matter():
    assert a_certificate((2, 0, 1)) == a_certificate((0, 1, 2))


def test_one_signature_short_is_refused():
    with pytest.raises(MalformedMessage, match="2 signatures, expected 3"):
        check_certificate(a_certificate((0, 1)), DOMAIN, VERIFIERS)


def test_one_signer_twice_does_not_count_twice():
    once = a_certificate((0, 1))
    twice = replace(
        once,
        verifiers=(*once.verifiers, once.verifiers[1]),
        signatures=(*once.signatures, once.signatures[1]),
    )

    with pytest.raises(MalformedMessage, match="must ascend"):
        check_certificate(twice, DOMAIN, VERIFIERS)


def test_a_stranger_does_not_count():
    with pytest.raises(MalformedMessage, match="is not a verifier of this run"):
        check_certificate(a_certificate((0, 1, 4)), DOMAIN, VERIFIERS)


def test_signers_out_of_order_and_signatures_without_signers_are_refused():
    whole = a_certificate()
    for wrong in (
        replace(whole, verifiers=whole.verifiers[::-1], signatures=whole.signatures[::-1]),
        replace(whole, signatures=whole.signatures[:2]),
        replace(whole, verifiers=whole.verifiers[:2]),
    ):
        with pytest.raises(MalformedMessage):
            check_certificate(wrong, DOMAIN, VERIFIERS)


def test_a_certificate_of_another_run_is_refused():
    other = Domain(deployment_id=DOMAIN.deployment_id, run_id=Digest(b"s" * 32))

    with pytest.raises(MalformedMessage, match="another run"):
        check_certificate(a_certificate(), other, VERIFIERS)


def test_signatures_made_for_another_deployment_or_vote_are_refused():
    elsewhere = a_certificate(domain=replace(DOMAIN, deployment_id=Digest(bytes(32))))
    moved = replace(a_certificate(), vote=replace(VOTE, block=Digest(bytes(32))))

    for wrong in (elsewhere, moved):
        with pytest.raises(PeerFault):
            check_certificate(wrong, DOMAIN, VERIFIERS)


@pytest.mark.parametrize("dispute_round", [0, 1])
def test_byzantine_verifiers_are_never_a_quorum_of_a_committee_however_many_verifiers_there_are(
    dispute_round,
):
    for count in range(1, 65):
        size = committee_size(count, dispute_round)
        assert quorum(size) > faults_tolerated(count)
        assert min(count, (5, 15)[dispute_round]) <= size <= count


def test_the_first_committee_has_five_members_where_they_suffice_and_the_second_is_everybody():
    assert [committee_size(count, 0) for count in (4, 5, 12, 13)] == [4, 5, 5, 6]
    assert [committee_size(count, 1) for count in (14, 15, 33, 34)] == [14, 15, 33, 34]


def test_f_lying_leaders_in_a_row_leave_an_honest_one_for_every_message():
    for verifiers in range(1, 32):
        f, dispute = faults_tolerated(verifiers), least_dispute_rounds(verifiers)
        bind = commitment_rounds(dispute)

        assert bind > f and dispute - bind > f
        assert least_audit_rounds(verifiers) - 1 >= 3 * (f + 1)  # from the step's second round on
    assert [least_audit_rounds(n) for n in (1, 4, 7, 16)] == [4, 7, 10, 19]
    assert [least_dispute_rounds(n) for n in (1, 4, 7, 16)] == [2, 4, 7, 16]
