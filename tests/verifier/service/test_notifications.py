"""Notifications: a statement is taken from its author alone, evidence and certificates from others too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from assay.network.host import Notification
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import PeerFault
from assay.protocol.messages import (
    BlobPiece,
    CertifiedManifest,
    Contradiction,
    DoubleVote,
    Proposal,
    QuorumCertificate,
    SignedVote,
)
from assay.protocol.types import PeerId
from assay.verifier.round.machine import said_in
from assay.verifier.service.process import FACTS, Service
from tests.protocol.strategies import sample

STRANGER, OTHER = PeerId(bytes(32)), PeerId(b"\x01" * 32)
CONSENSUS = (SignedVote, Proposal, QuorumCertificate)
EVIDENCE = (Contradiction, DoubleVote)
ELSEWHERE = (BlobPiece, CertifiedManifest, *CONSENSUS, *EVIDENCE)
STATEMENTS = [kind for kind in FACTS.values() if kind not in ELSEWHERE]


def taken(message: Any, peer: PeerId, *verifiers: PeerId) -> list[Any]:
    """What the driver gets of a message that this peer sends."""
    got: list[Any] = []
    driver = SimpleNamespace(take=got.append, receive=got.append, synced=got.extend)
    service: Any = SimpleNamespace(
        driver=driver,
        follower=SimpleNamespace(run_state=SimpleNamespace(nodes=())),
        me=SimpleNamespace(spec=SimpleNamespace(verifier_peers=verifiers)),
    )
    Service._take_notification(service, Notification(peer=peer, payload=encode(message)))
    return got


@pytest.mark.parametrize("kind", STATEMENTS, ids=lambda kind: kind.__name__)
def test_a_statement_is_taken_from_its_author_alone(kind):
    message = sample(kind)
    author = said_in(message).verifier

    assert taken(message, author, author, OTHER) == [message]
    with pytest.raises(PeerFault, match="passes on another verifier's"):
        taken(message, OTHER, author, OTHER)


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
