"""Notifications: a statement is taken from its author alone, evidence and certificates from others too."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from assay.network.host import Notification
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import OutOfPhase, PeerFault
from assay.protocol.messages import (
    BeaconShare,
    BlobPiece,
    CertifiedManifest,
    Contradiction,
    DoubleVote,
    Proposal,
    QuorumCertificate,
    SignedBlock,
    SignedEvaluationCommitment,
    SignedFundingReport,
    SignedSeatNotice,
    SignedVote,
)
from assay.protocol.types import NO_PEER, PeerId
from assay.verifier.round.machine import said_in
from assay.verifier.service.process import FACTS, Service
from tests.protocol.strategies import sample

STRANGER, OTHER = PeerId(bytes(32)), PeerId(b"\x01" * 32)
CONSENSUS = (SignedVote, SignedBlock, Proposal, QuorumCertificate)
EVIDENCE = (Contradiction, DoubleVote)
ELSEWHERE = (BlobPiece, CertifiedManifest, *CONSENSUS, *EVIDENCE)
STATEMENTS = [kind for kind in FACTS.values() if kind not in (*ELSEWHERE, SignedSeatNotice)]


def taken(
    message: Any,
    peer: PeerId,
    *verifiers: PeerId,
    reserves: tuple[PeerId, ...] = (),
    former: PeerId | None = None,
    refuses: bool = False,
) -> list[Any]:
    """What the driver gets of a message that this peer sends.

    former: Who holds the peer's seat for the driver, where this is a manifest behind. refuses: Whether the
    driver finds that the statement is not its author's.
    """
    got: list[Any] = []
    opened = SimpleNamespace(run_state=SimpleNamespace(key=lambda seat: former or seat))

    def take(message: Any) -> None:
        if refuses:
            raise PeerFault(peer, "signature does not cover this")
        got.append(message)

    def take_passed_on(share: Any, by: PeerId) -> None:
        assert by == peer != share.verifier
        got.append(share)

    driver = SimpleNamespace(
        take=take, take_passed_on=take_passed_on, receive=got.append, synced=got.extend, round=opened
    )
    service: Any = SimpleNamespace(
        driver=driver,
        follower=SimpleNamespace(
            run_state=SimpleNamespace(nodes=(), seat_of=lambda one: one if one in verifiers else NO_PEER)
        ),
        me=SimpleNamespace(spec=SimpleNamespace(seat_peers=(*verifiers, *reserves))),
    )
    Service._take_notification(service, Notification(peer=peer, payload=encode(message)))
    return got


@pytest.mark.parametrize(
    "kind", [kind for kind in STATEMENTS if kind is not BeaconShare], ids=lambda kind: kind.__name__
)
def test_a_statement_is_taken_from_its_author_alone(kind):
    message = sample(kind)
    author = said_in(message).verifier

    assert taken(message, author, author, OTHER) == [message]
    with pytest.raises(PeerFault, match="passes on another verifier's"):
        taken(message, OTHER, author, OTHER)


def test_a_share_of_the_beacon_is_taken_from_every_seat():
    share = sample(BeaconShare)

    assert taken(share, share.verifier, share.verifier) == taken(share, OTHER, OTHER) == [share]
    with pytest.raises(OutOfPhase, match="without a seat"):
        taken(share, OTHER, share.verifier, reserves=(OTHER,))


@pytest.mark.parametrize("kind", STATEMENTS, ids=lambda kind: kind.__name__)
def test_a_statement_of_a_peer_without_a_seat_is_not_taken_and_no_fault(kind):
    message = sample(kind)
    author = said_in(message).verifier

    with pytest.raises(OutOfPhase, match="without a seat"):
        taken(message, author, OTHER, reserves=(author,))


@pytest.mark.parametrize("kind", STATEMENTS, ids=lambda kind: kind.__name__)
def test_a_statement_of_a_seats_new_holder_is_early_where_the_round_before_is_open(kind):
    message = sample(kind)
    author = said_in(message).verifier

    with pytest.raises(OutOfPhase, match="before our round has heard of its seat"):
        taken(message, author, author, OTHER, former=OTHER, refuses=True)
    with pytest.raises(PeerFault, match="signature"):
        taken(message, author, author, OTHER, refuses=True)
    assert taken(message, author, author, OTHER, former=OTHER) == [message]  # as shares of the beacon


def test_a_seat_notice_is_taken_from_its_holder_alone_who_may_be_a_reserve():
    message = sample(SignedSeatNotice)
    holder = message.notice.holder

    assert taken(message, holder, OTHER, reserves=(holder,)) == [message]
    with pytest.raises(PeerFault, match="passes on another verifier's"):
        taken(message, OTHER, OTHER, reserves=(holder,))


@pytest.mark.parametrize("kind", [*EVIDENCE, *CONSENSUS], ids=lambda kind: kind.__name__)
def test_evidence_and_what_carries_its_own_proof_is_taken_from_every_verifier(kind):
    assert taken(sample(kind), OTHER, OTHER) == [sample(kind)]


@pytest.mark.parametrize("kind", [*STATEMENTS, *EVIDENCE, *CONSENSUS], ids=lambda kind: kind.__name__)
def test_only_verifiers_send_them(kind):
    with pytest.raises(PeerFault, match="which only verifiers do"):
        taken(sample(kind), STRANGER, OTHER)


def test_certified_manifests_are_taken_from_everybody_and_pieces_from_nodes():
    assert taken(sample(CertifiedManifest), STRANGER, OTHER) == [sample(CertifiedManifest)]
    assert not taken(sample(BlobPiece), STRANGER, OTHER)


@pytest.mark.parametrize("late", [OutOfPhase(OTHER, "later"), PeerFault(OTHER, "not its key")], ids=str)
@pytest.mark.parametrize(
    "kind", [SignedEvaluationCommitment, SignedFundingReport], ids=lambda kind: kind.__name__
)
def test_what_our_own_round_is_not_ready_for_is_said_to_others_and_ends_nothing(kind, late):
    said: list[bytes] = []

    def take(_message: Any) -> None:
        raise late

    driver = SimpleNamespace(take=take, broadcast=said.append, post=lambda _peers, body: said.append(body))
    host = SimpleNamespace(connected=lambda: (OTHER,))
    service: Any = SimpleNamespace(driver=driver, _host=host)
    service._take_own = partial(Service._take_own, service)
    say = Service._report_funding if kind is SignedFundingReport else Service._report
    say(service, sample(kind))

    assert said == [encode(sample(kind))]
