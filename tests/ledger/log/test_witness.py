"""Cosignatures and witnesses: bytes of the open format, and no word on a log that does not continue."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace

import pytest
from nacl.signing import SigningKey, VerifyKey

from assay.ledger.log.cosignature import cosign, cosigners, read_cosignature, witness_name
from assay.ledger.log.note import (
    BadNoteError,
    Checkpoint,
    SignatureLine,
    origin_of,
    read_checkpoint,
    read_line,
    sign_checkpoint,
    signature_lines,
    with_lines,
)
from assay.ledger.log.witness import (
    PROOF_HASHES_MAX,
    REQUEST_BYTES_MAX,
    OtherSizeError,
    Request,
    RolledBackError,
    continued,
    read_request,
)
from assay.ledger.merkle_log import leaf_hash, root_of
from assay.protocol.errors import MalformedMessage
from assay.protocol.types import PeerId
from tests.ledger.merkle_proofs import consistency_proof

KEY, OTHER = SigningKey(b"k" * 32), SigningKey(b"m" * 32)
PUBLIC = bytes(KEY.verify_key)
WITNESSES = [SigningKey(bytes([n]) * 32) for n in range(1, 5)]
PEERS = [PeerId(bytes(key.verify_key)) for key in WITNESSES]
ORIGIN = origin_of(b"\x11" * 32)
LEAVES = [leaf_hash(bytes([n])) for n in range(20)]
TIME = 1_700_000_000


def a_checkpoint(size: int, leaves: list[bytes] = LEAVES) -> Checkpoint:
    return Checkpoint(origin=ORIGIN, size=size, root=root_of(leaves[:size]))


def a_request(size: int, old: int, leaves: list[bytes] = LEAVES, key: SigningKey = KEY) -> Request:
    proof = consistency_proof(leaves[:size], old)
    return Request(old_size=old, proof=proof, note=sign_checkpoint(a_checkpoint(size, leaves), key))


# ---- cosignatures


def test_what_is_signed_and_sent_is_as_the_format_says():
    """Spelled out from the C2SP text, without our functions."""
    checkpoint = a_checkpoint(3)
    line = cosign(checkpoint, WITNESSES[0], TIME).text()

    mark, name, told = line.split(" ")
    body = base64.b64decode(told)
    assert (mark, name) == ("—", f"assay/witness/{PEERS[0].hex()}")
    assert body[:4] == hashlib.sha256(name.encode() + b"\n\x04" + PEERS[0]).digest()[:4]
    assert body[4:12] == TIME.to_bytes(8, "big")
    root = base64.b64encode(checkpoint.root).decode()
    signed = f"cosignature/v1\ntime {TIME}\n{ORIGIN}\n3\n{root}\n"
    VerifyKey(PEERS[0]).verify(signed.encode(), body[12:])


def test_a_note_carries_cosignatures_and_is_still_the_logs_own():
    checkpoint = a_checkpoint(7)
    lines = [cosign(checkpoint, key, TIME + n) for n, key in enumerate(WITNESSES)]
    note = with_lines(sign_checkpoint(checkpoint, KEY), lines)

    assert read_checkpoint(note, ORIGIN, PUBLIC) == checkpoint
    assert signature_lines(note)[1:] == tuple(lines)
    assert cosigners(note, checkpoint, PEERS) == {peer: TIME + n for n, peer in enumerate(PEERS)}
    assert cosigners(note, checkpoint, PEERS[:1]) == {PEERS[0]: TIME}


def test_a_strangers_line_counts_nothing_and_harms_nothing():
    checkpoint = a_checkpoint(7)
    stranger = SignatureLine("witness.example/w1", b"1234", b"whatever")
    note = with_lines(sign_checkpoint(checkpoint, KEY), [stranger, cosign(checkpoint, WITNESSES[0], TIME)])

    assert read_checkpoint(note, ORIGIN, PUBLIC) == checkpoint
    assert cosigners(note, checkpoint, PEERS) == {PEERS[0]: TIME}


@pytest.mark.parametrize("changed", ["time", "signature", "checkpoint", "hash", "length", "peer", "name"])
def test_no_part_of_a_cosignature_may_change(changed: str):
    checkpoint, peer = a_checkpoint(7), PEERS[0]
    line = cosign(checkpoint, WITNESSES[0], TIME)
    assert read_cosignature(line, checkpoint, peer) == TIME
    body = line.signature
    match changed:
        case "time":
            line = replace(line, signature=(TIME + 1).to_bytes(8, "big") + body[8:])
        case "signature":
            line = replace(line, signature=body[:-1] + bytes([body[-1] ^ 1]))
        case "checkpoint":
            checkpoint = a_checkpoint(8)
        case "hash":
            line = replace(line, key_hash=b"0000")
        case "length":
            line = replace(line, signature=body + b"0")
        case "peer":
            peer = PEERS[1]
        case "name":
            line = replace(line, name=witness_name(PEERS[1]))

    with pytest.raises(BadNoteError):
        read_cosignature(line, checkpoint, peer)


def test_a_time_beyond_63_bits_is_none():
    checkpoint = a_checkpoint(7)
    assert read_cosignature(cosign(checkpoint, WITNESSES[0], 2**63 - 1), checkpoint, PEERS[0]) == 2**63 - 1
    with pytest.raises(BadNoteError, match="a time"):
        read_cosignature(cosign(checkpoint, WITNESSES[0], 2**63), checkpoint, PEERS[0])


def test_a_bad_line_in_a_verifiers_name_spoils_the_note():
    checkpoint = a_checkpoint(7)
    forged = replace(cosign(checkpoint, OTHER, TIME), name=witness_name(PEERS[0]))
    note = with_lines(sign_checkpoint(checkpoint, KEY), [forged])

    with pytest.raises(BadNoteError, match="cosignature of"):
        cosigners(note, checkpoint, PEERS)


@pytest.mark.parametrize(
    "altered",
    [
        "— a b",
        "- name YWJjZGVm",
        "—  YWJjZGVm",
        "— na me YWJjZGVm",
        "— na+me YWJjZGVm",
        "— name YWJjZGV",
        "— name YWJjZGVm ",
        "— name ",
        "— n\u00e4me YWJjZGVm",
        "— " + "n" * 300 + " YWJjZGVm",
        "— name " + "YWJj" * 10_000,
    ],
)
def test_a_signature_line_has_one_form(altered: str):
    assert read_line("— name YWJjZGVm").signature == b"ef"
    with pytest.raises(BadNoteError):
        read_line(altered)


def test_a_note_has_no_more_lines_than_a_run_has_verifiers_and_one_signature_of_its_own():
    checkpoint = a_checkpoint(3)
    note, line = sign_checkpoint(checkpoint, KEY), cosign(checkpoint, WITNESSES[0], TIME)

    assert read_checkpoint(with_lines(note, [line] * 64), ORIGIN, PUBLIC) == checkpoint
    for lines in ([line] * 65, [signature_lines(note)[0]]):
        with pytest.raises(BadNoteError):
            read_checkpoint(with_lines(note, lines), ORIGIN, PUBLIC)


# ---- what a witness is asked


def test_a_request_is_read_back_and_has_the_form_of_tlog_witness():
    asked = a_request(11, 6)
    old, *proof, empty, origin = asked.encode().decode().split("\n")[: len(asked.proof) + 3]

    assert (old, empty, origin) == ("old 6", "", ORIGIN)
    assert [base64.b64decode(one) for one in proof] == list(asked.proof)
    assert read_request(asked.encode()) == asked
    assert read_request(a_request(3, 0).encode()) == a_request(3, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"old 6",
        b"old 06\n\nnote",
        b"old -1\n\nnote",
        b"old 9999999999999999999\n\nnote",
        b"OLD 6\n\nnote",
        b"old 6\nAA==\n\nnote",
        b"old 6\n" + b"\n".join([base64.b64encode(bytes(32))] * (PROOF_HASHES_MAX + 1)) + b"\n\nnote",
        b"old 6\n\n" + bytes([255]),
        b"old 6\n\n" + b"n" * REQUEST_BYTES_MAX,
    ],
)
def test_what_is_no_request_is_refused(body: bytes):
    with pytest.raises(MalformedMessage):
        read_request(body)


# ---- when it cosigns


@pytest.mark.parametrize(("old", "new"), [(0, 1), (0, 20), (1, 2), (6, 6), (6, 7), (8, 20), (19, 20)])
def test_whatever_continues_is_cosigned(old: int, new: int):
    held = a_checkpoint(old) if old else None

    assert continued(held, a_request(new, old), ORIGIN, PUBLIC) == a_checkpoint(new)


def test_a_smaller_log_is_one_that_was_rolled_back():
    with pytest.raises(RolledBackError, match="of 6 entries arrived, one of 7 was cosigned"):
        continued(a_checkpoint(7), a_request(6, 6), ORIGIN, PUBLIC)


def test_two_logs_of_one_size_are_one_too_many():
    other = [*LEAVES[:6], leaf_hash(b"x")]

    with pytest.raises(RolledBackError, match="two checkpoints of 7 entries"):
        continued(a_checkpoint(7), a_request(7, 7, other), ORIGIN, PUBLIC)


@pytest.mark.parametrize("size", [8, 9, 16, 20])
def test_a_longer_log_with_another_beginning_is_refused_whatever_its_proof(size: int):
    other = [leaf_hash(b"x"), *LEAVES[1:]]
    for proof in (consistency_proof(other[:size], 7), consistency_proof(LEAVES[:size], 7), ()):
        asked = replace(a_request(size, 7, other), proof=proof)
        with pytest.raises(RolledBackError, match="does not continue the one that was cosigned"):
            continued(a_checkpoint(7), asked, ORIGIN, PUBLIC)


@pytest.mark.parametrize("old", [0, 6, 8])
def test_a_proof_from_elsewhere_is_no_evidence_and_gets_no_cosignature(old: int):
    with pytest.raises(OtherSizeError, match=f"from {old} entries, from 7 expected"):
        continued(a_checkpoint(7), a_request(9, old), ORIGIN, PUBLIC)


def test_an_empty_log_may_not_replace_a_cosigned_one():
    with pytest.raises(RolledBackError):
        continued(a_checkpoint(7), a_request(0, 0), ORIGIN, PUBLIC)


def test_only_the_logs_own_key_and_name_count():
    with pytest.raises(BadNoteError, match="another key"):
        continued(None, a_request(3, 0, key=OTHER), ORIGIN, PUBLIC)
    with pytest.raises(BadNoteError, match="expected"):
        continued(None, a_request(3, 0), origin_of(b"\x12" * 32), PUBLIC)
