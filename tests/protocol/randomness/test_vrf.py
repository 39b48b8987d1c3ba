"""The VRF is RFC 9381's, and no bit of a proof can change unnoticed."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl import bindings

from assay.protocol.errors import AssayError, MalformedMessage, PeerFault
from assay.protocol.randomness.vrf import proof_to_hash, prove, verify
from assay.protocol.types import PeerId

ORDER = 2**252 + 27742317777372353535851937790883648493
PRIME = 2**255 - 19

# RFC 9381, appendix B.3, examples 16 to 18: seed, public key, alpha, proof, output.
EXAMPLES = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "8657106690b5526245a92b003bb079ccd1a92130477671f6fc01ad16f26f723f26f8a57ccaed74ee1b190bed1f479d97"
        "27d2d0f9b005a6e456a35d4fb0daab1268a1b0db10836d9826a528ca76567805",
        "90cf1df3b703cce59e2a35b925d411164068269d7b2d29f3301c03dd757876ff"
        "66b71dda49d2de59d03450451af026798e8f81cd2e333de5cdf4f3e140fdd8ae",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "f3141cd382dc42909d19ec5110469e4feae18300e94f304590abdced48aed5933bf0864a62558b3ed7f2fea45c92a465"
        "301b3bbf5e3e54ddf2d935be3b67926da3ef39226bbc355bdc9850112c8f4b02",
        "eb4440665d3891d668e7e0fcaf587f1b4bd7fbfe99d0eb2211ccec90496310eb"
        "5e33821bc613efb94db5e5b54c70a848a0bef4553a41befc57663b56373a5031",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "9bc0f79119cc5604bf02d23b4caede71393cedfbb191434dd016d30177ccbf8096bb474e53895c362d8628ee9f9ea3c0"
        "e52c7a5c691b6c18c9979866568add7a2d41b00b05081ed0f58ee5e31b3a970e",
        "645427e5d00c62a23fb703732fa5d892940935942101e456ecca7bb217c61c45"
        "2118fec1219202a0edcf038bb6373241578be7217ba85a2687f7a0310b2df19f",
    ),
]

# Every encoding of a point whose order divides 8 that is canonical, and two that are not.
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def a_key(number: int = 0) -> tuple[bytes, PeerId]:
    seed = hashlib.sha256(b"vrf key %d" % number).digest()
    return seed, PeerId(bindings.crypto_sign_seed_keypair(seed)[0])


@pytest.mark.parametrize(("seed", "public", "alpha", "proof", "output"), EXAMPLES)
def test_the_examples_of_the_rfc_come_out_bit_for_bit(seed, public, alpha, proof, output):
    assert prove(bytes.fromhex(seed), bytes.fromhex(alpha)).hex() == proof
    assert verify(PeerId(bytes.fromhex(public)), bytes.fromhex(alpha), bytes.fromhex(proof)).hex() == output
    assert proof_to_hash(bytes.fromhex(proof)).hex() == output


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200))
def test_what_a_key_proves_verifies_under_that_key(seed, alpha):
    public = PeerId(bindings.crypto_sign_seed_keypair(seed)[0])

    proof = prove(seed, alpha)

    assert verify(public, alpha, proof) == proof_to_hash(proof)
    assert prove(seed, alpha) == proof


@pytest.mark.slow
def test_no_single_bit_of_a_proof_can_be_flipped():
    seed, public = a_key()
    proof = prove(seed, b"round 7")
    for bit in range(len(proof) * 8):
        flipped = bytearray(proof)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(AssayError):
            verify(public, b"round 7", bytes(flipped))


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=80, max_size=80))
def test_random_bytes_are_never_a_proof_and_never_anything_but_our_errors(proof):
    with pytest.raises(AssayError):
        verify(a_key()[1], b"round 7", proof)


def test_a_proof_holds_for_no_other_input_and_no_other_key():
    seed, public = a_key()
    proof = prove(seed, b"round 7")
    with pytest.raises(PeerFault):
        verify(public, b"round 8", proof)
    with pytest.raises(PeerFault):
        verify(a_key(1)[1], b"round 7", proof)


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_a_key_of_small_order_is_refused(key):
    proof = prove(a_key()[0], b"round 7")
    with pytest.raises(PeerFault):
        verify(PeerId(bytes.fromhex(key)), b"round 7", proof)


def test_a_key_of_mixed_order_is_refused():
    _, public = a_key()
    mixed = bindings.crypto_core_ed25519_add(public, bytes.fromhex(SMALL_ORDER[4]))
    with pytest.raises(PeerFault):
        verify(PeerId(mixed), b"round 7", prove(a_key()[0], b"round 7"))


def test_a_gamma_moved_by_a_small_order_point_is_refused_or_has_the_same_output():
    # The cofactor clears such a point, so even a lucky challenge cannot make a second output.
    seed, public = a_key()
    proof = prove(seed, b"round 7")
    for small in SMALL_ORDER[1:8]:
        moved = bindings.crypto_core_ed25519_add(proof[:32], bytes.fromhex(small)) + proof[32:]
        assert proof_to_hash(moved) == proof_to_hash(proof)
        with pytest.raises(PeerFault):
            verify(public, b"round 7", moved)


def test_the_scalar_must_be_reduced():
    seed, public = a_key()
    proof = prove(seed, b"round 7")
    raised = int.from_bytes(proof[48:], "little") + ORDER
    with pytest.raises(MalformedMessage):
        verify(public, b"round 7", proof[:48] + raised.to_bytes(32, "little"))


@pytest.mark.parametrize("y", [PRIME, PRIME + 1, 2**255 - 1, 1 | 1 << 255, PRIME - 1 | 1 << 255])
def test_a_point_must_come_in_its_one_encoding(y):
    proof = prove(a_key()[0], b"round 7")
    with pytest.raises(MalformedMessage):
        proof_to_hash(y.to_bytes(32, "little") + proof[32:])


@pytest.mark.parametrize("length", [0, 79, 81])
def test_a_proof_has_eighty_bytes(length):
    with pytest.raises(MalformedMessage):
        proof_to_hash(bytes(length))
