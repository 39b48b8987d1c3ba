"""Log note: a checkpoint of the Merkle log as signed text that other tools can read.

Room: ledger (pure). The C2SP formats signed-note and tlog-checkpoint with one
Ed25519 signature: origin, size and root each on a line, an empty line, then the
signature behind the key's name. The origin is the key's name and holds the run's
id; it cannot be the beginning of anything else that a peer key signs.

    assay/books/<run id in hexadecimal>
    42
    <root in base64>

    — assay/books/<run id in hexadecimal> <4 bytes of key hash and the signature in base64>
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from ledger.merkle_log import HASH_BYTES, SIZE_MAX
from protocol.errors import AssayError

NOTE_CHARS_MAX = 2000  # of a note that we read; ours have some 350
_ED25519 = b"\x01"  # signed-note's name for the algorithm
_KEY_HASH_BYTES = 4
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")


class BadNoteError(AssayError):
    """Not a checkpoint, or not one that this key signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a log held when it was signed."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        """The signed lines."""
        return f"{self.origin}\n{self.size}\n{_base64(self.root)}\n"


def origin_of(run_id: bytes) -> str:
    """The name of a run's log, and of the key that signs it."""
    return f"assay/books/{run_id.hex()}"


def sign_checkpoint(checkpoint: Checkpoint, key: SigningKey) -> str:
    """The whole note. Ed25519 is deterministic: one checkpoint and one key make one note."""
    text = checkpoint.text()
    signature = key.sign(text.encode()).signature
    signed = _base64(_key_hash(checkpoint.origin, bytes(key.verify_key)) + signature)
    return f"{text}\n— {checkpoint.origin} {signed}\n"


def read_checkpoint(note: str, origin: str, key: bytes) -> Checkpoint:
    """The checkpoint in a note, if this key signed it for this log.

    Args:
        note: The text; notes with more than one signature or with extension lines are refused.
        origin: Whose log it must be of.
        key: Ed25519 public key, 32 bytes.

    Raises:
        BadNoteError: another form, another log, another key, or the signature does not cover the text.
    """
    lines = note.split("\n") if len(note) <= NOTE_CHARS_MAX else []
    if len(lines) != 6 or lines[3] or lines[5]:
        raise BadNoteError("not a checkpoint: expected origin, size, root, an empty line, one signature")
    if lines[0] != origin:
        raise BadNoteError(f"a checkpoint of {lines[0]!r}, {origin!r} expected")
    if not _SIZE.fullmatch(lines[1]) or int(lines[1]) > SIZE_MAX:
        raise BadNoteError(f"a checkpoint of size {lines[1]!r}")
    checkpoint = Checkpoint(origin=origin, size=int(lines[1]), root=_bytes(lines[2], HASH_BYTES))
    head = f"— {origin} "
    if not lines[4].startswith(head):
        raise BadNoteError("the checkpoint's signature is not by the log's own name")
    signed = _bytes(lines[4][len(head) :], _KEY_HASH_BYTES + 64)
    if signed[:_KEY_HASH_BYTES] != _key_hash(origin, key):
        raise BadNoteError(f"the checkpoint is signed by another key than {key.hex()[:16]}")
    try:
        VerifyKey(key).verify(checkpoint.text().encode(), signed[_KEY_HASH_BYTES:])
    except (BadSignatureError, ValueError, TypeError):
        raise BadNoteError("the checkpoint's signature does not cover its text") from None
    return checkpoint


def verifier_key(origin: str, key: bytes) -> str:
    """The public key in signed-note's form, for other tools: name+hash+base64."""
    return f"{origin}+{_key_hash(origin, key).hex()}+{_base64(_ED25519 + key)}"


def _key_hash(origin: str, key: bytes) -> bytes:
    return hashlib.sha256(origin.encode() + b"\n" + _ED25519 + key).digest()[:_KEY_HASH_BYTES]


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: str, length: int) -> bytes:
    """Base64 of exactly so many bytes, in its one spelling."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadNoteError(f"not base64: {text[:80]!r}") from None
    if len(value) != length or _base64(value) != text:
        raise BadNoteError(f"{len(value)} bytes in base64, {length} expected")
    return value
