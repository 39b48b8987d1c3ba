"""Log note: checkpoints in the format of other transparency logs, and nothing else taken for one."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from nacl.signing import SigningKey, VerifyKey

from assay.ledger.log.note import (
    BadNoteError,
    Checkpoint,
    origin_of,
    read_checkpoint,
    sign_checkpoint,
    verifier_key,
)
from assay.ledger.merkle_log import leaf_hash, root_of

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "ct_note.json").read_text())
KEY = SigningKey(b"k" * 32)
PUBLIC = bytes(KEY.verify_key)
RUN_ID = b"\x11" * 32
ORIGIN = origin_of(RUN_ID)
CHECKPOINT = Checkpoint(origin=ORIGIN, size=3, root=root_of([leaf_hash(b"")] * 3))
NOTE = sign_checkpoint(CHECKPOINT, KEY)


def test_a_key_is_named_as_in_the_example_of_the_format():
    name, hash_, key = VECTORS["example_key"].split("+", 2)
    public = base64.b64decode(key)[1:]

    assert verifier_key(name, public) == VECTORS["example_key"]
    signed = base64.b64decode(VECTORS["example_signature"])
    assert signed[:4].hex() == hash_
    VerifyKey(public).verify(VECTORS["example_text"].encode(), signed[4:])


def test_a_checkpoint_has_the_frozen_bytes():
    assert VECTORS["checkpoint"] == NOTE
    assert verifier_key(ORIGIN, PUBLIC) == VECTORS["checkpoint_key"]


def test_what_was_signed_is_read_back():
    assert read_checkpoint(NOTE, ORIGIN, PUBLIC) == CHECKPOINT


def test_no_character_of_a_note_may_change():
    for at, character in enumerate(NOTE):
        other = "A" if character != "A" else "B"
        for altered in (NOTE[:at] + other + NOTE[at + 1 :], NOTE[:at] + NOTE[at + 1 :], NOTE[:at]):
            with pytest.raises(BadNoteError):
                read_checkpoint(altered, ORIGIN, PUBLIC)


@pytest.mark.parametrize(
    "altered",
    [
        NOTE + "\n",
        NOTE.replace("\n3\n", "\n03\n"),
        NOTE.replace("\n3\n", "\n+3\n"),
        NOTE.replace("\n3\n", "\n\u0663\n"),  # a digit, but not in ASCII
        NOTE.replace("\n3\n", "\n9999999999999999999\n"),
        NOTE.replace("\n\n", "\nan extension\n\n"),
        NOTE + NOTE.splitlines()[-1] + "\n",
        NOTE.replace("\n", "\r\n"),
        "x" * 10_000_000,
        "",
    ],
)
def test_a_note_has_one_form(altered: str):
    with pytest.raises(BadNoteError):
        read_checkpoint(altered, ORIGIN, PUBLIC)


def test_base64_has_one_spelling():
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    at = NOTE.index("=\n") - 1  # two bits of this character are beyond the root's last byte
    same = NOTE[:at] + alphabet[alphabet.index(NOTE[at]) ^ 1] + NOTE[at + 1 :]
    assert base64.b64decode(same.split("\n")[2]) == CHECKPOINT.root

    with pytest.raises(BadNoteError, match="32 expected"):
        read_checkpoint(same, ORIGIN, PUBLIC)


def test_a_checkpoint_of_another_log_is_refused():
    with pytest.raises(BadNoteError, match="expected"):
        read_checkpoint(NOTE, origin_of(b"\x12" * 32), PUBLIC)


def test_a_checkpoint_by_another_key_is_refused():
    forged = sign_checkpoint(CHECKPOINT, SigningKey(b"m" * 32))

    with pytest.raises(BadNoteError, match="another key"):
        read_checkpoint(forged, ORIGIN, PUBLIC)


def test_a_signature_of_one_checkpoint_does_not_fit_the_next():
    next_note = sign_checkpoint(Checkpoint(origin=ORIGIN, size=4, root=CHECKPOINT.root), KEY)
    mixed = NOTE.rsplit("\n", 2)[0] + "\n" + next_note.split("\n")[4] + "\n"

    with pytest.raises(BadNoteError, match="does not cover"):
        read_checkpoint(mixed, ORIGIN, PUBLIC)
