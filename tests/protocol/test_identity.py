"""A signature is for one message of one run of one deployment."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from assay.protocol.encoding.codec import digest
from assay.protocol.errors import PeerFault
from assay.protocol.identity import Domain, peer_of, sign, signed_bytes, verify
from assay.protocol.messages import BeaconShare, Receipt, Vote
from assay.protocol.types import Digest, PeerId, Signature
from tests.protocol.strategies import any_message, sample

KEY = SigningKey(bytes(range(32)))
PEER = peer_of(KEY)
DOMAIN = Domain(deployment_id=Digest(b"d" * 32), run_id=Digest(b"r" * 32))


def test_a_signature_covers_its_message():
    verify(PEER, DOMAIN, sample(Vote), sign(KEY, DOMAIN, sample(Vote)))


@pytest.mark.parametrize(
    "other",
    [
        Domain(deployment_id=Digest(b"e" * 32), run_id=DOMAIN.run_id),
        Domain(deployment_id=DOMAIN.deployment_id, run_id=Digest(b"s" * 32)),
        Domain(deployment_id=DOMAIN.run_id, run_id=DOMAIN.deployment_id),
    ],
    ids=["another deployment", "another run", "swapped"],
)
def test_a_signature_means_nothing_in_another_domain(other):
    with pytest.raises(PeerFault, match="signature does not cover this Vote"):
        verify(PEER, other, sample(Vote), sign(KEY, DOMAIN, sample(Vote)))


@pytest.mark.slow
@given(any_message(), any_message())
def test_no_two_messages_are_signed_as_the_same_bytes(first, second):
    same = signed_bytes(DOMAIN, first) == signed_bytes(DOMAIN, second)

    assert same == (type(first) is type(second) and first == second)


def test_a_signature_does_not_move_to_another_message_type_with_the_same_fields():
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Lookalike:
        TAG = b"assay/lookalike/1"
        run_id: Digest
        round: int

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Original:
        TAG = b"assay/original/1"
        run_id: Digest
        round: int

    one, other = Original(run_id=Digest(bytes(32)), round=1), Lookalike(run_id=Digest(bytes(32)), round=1)
    assert digest(one) != digest(other)

    with pytest.raises(PeerFault):
        verify(PEER, DOMAIN, other, sign(KEY, DOMAIN, one))


@pytest.mark.parametrize("kind", [Vote, Receipt, BeaconShare])
def test_changing_any_field_voids_the_signature(kind):
    message, other = sample(kind), sample(kind, "other")
    signature = sign(KEY, DOMAIN, message)

    for field in dataclasses.fields(message):
        changed = dataclasses.replace(message, **{field.name: getattr(other, field.name)})
        if changed != message:
            with pytest.raises(PeerFault):
                verify(PEER, DOMAIN, changed, signature)


@given(st.integers(0, 511))
def test_one_flipped_bit_of_a_signature_is_noticed(bit):
    signature = bytearray(sign(KEY, DOMAIN, sample(Vote)))
    signature[bit // 8] ^= 1 << bit % 8

    with pytest.raises(PeerFault):
        verify(PEER, DOMAIN, sample(Vote), Signature(bytes(signature)))


def test_another_peers_signature_is_refused_and_the_claimed_signer_is_named():
    other = SigningKey(bytes(32))

    with pytest.raises(PeerFault) as caught:
        verify(PEER, DOMAIN, sample(Vote), sign(other, DOMAIN, sample(Vote)))

    assert caught.value.peer == PEER


@pytest.mark.parametrize("peer", [bytes(32), b"\xff" * 32, b"\x01" + bytes(31), b"short", b""])
@pytest.mark.parametrize("signature", [bytes(64), b"\xff" * 64, b"", bytes(63)])
def test_bytes_that_are_no_key_or_no_signature_are_the_peers_fault(peer, signature):
    with pytest.raises(PeerFault):
        verify(PeerId(peer), DOMAIN, sample(Vote), Signature(signature))


def test_what_is_signed_is_frozen():
    assert signed_bytes(DOMAIN, sample(Vote)) == (
        b"assay/sign/1" + b"\x0cassay/vote/1" + b"d" * 32 + b"r" * 32 + digest(sample(Vote))
    )
