"""Note: writes and parses signed checkpoints of the Merkle log (C2SP signed-note, tlog-checkpoint).

Room: ledger (pure). Origin, size and root each on a line, an empty line, then the log's Ed25519
signature behind the key's name. The origin is the key's name and contains the run's
id; nothing else that a peer key signs begins with it. Lines of other keys
may follow, such as cosignatures (ledger/log/cosignature.py).

    assay/books/<run id in hexadecimal>
    42
    <root in base64>

    — assay/books/<run id in hexadecimal> <4 bytes of key hash and the signature in base64>
    — assay/witness/<peer id in hexadecimal> <4 bytes of key hash, time and signature in base64>
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from assay.ledger.merkle_log import HASH_BYTES, SIZE_MAX
from assay.protocol.errors import AssayError

NOTE_CHARS_MAX = 20_000  # of a note that we read; ours have about 350, and 190 for each cosignature
SIGNATURES_MAX = 1 + 64  # the log's own and those of as many verifiers as a run may have
_ED25519 = b"\x01"  # signed-note's name for the algorithm
_KEY_HASH_BYTES = 4
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_LINE = re.compile(r"— ([!-*,-~]{1,200}) ([0-9A-Za-z+/]+={0,2})")  # a name has no space and no plus


class BadNoteError(AssayError):
    """Not a checkpoint, or not signed by this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Origin, size and root of a log."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        """The signed lines."""
        return f"{self.origin}\n{self.size}\n{_base64(self.root)}\n"


def origin_of(run_id: bytes) -> str:
    """The name of a run's log, and of the key that signs it."""
    return f"assay/books/{run_id.hex()}"


@dataclass(frozen=True, slots=True)
class SignatureLine:
    """One signature line below a note's text: key name and signature."""

    name: str
    key_hash: bytes
    signature: bytes

    def text(self) -> str:
        """The line, without its end."""
        return f"— {self.name} {_base64(self.key_hash + self.signature)}"


def sign_checkpoint(checkpoint: Checkpoint, key: SigningKey) -> str:
    """The whole note. Ed25519 is deterministic: one checkpoint and one key make one note."""
    text = checkpoint.text()
    hashed = key_hash(checkpoint.origin, _ED25519, bytes(key.verify_key))
    return with_lines(
        text + "\n", [SignatureLine(checkpoint.origin, hashed, key.sign(text.encode()).signature)]
    )


def with_lines(note: str, lines: Iterable[SignatureLine]) -> str:
    """A note with more signature lines at its end."""
    return note + "".join(f"{line.text()}\n" for line in lines)


def read_checkpoint(note: str, origin: str, key: bytes) -> Checkpoint:
    """The checkpoint in a note, if this key signed it for this log.

    Args:
        note: The text; notes with extension lines are refused. The log's signature comes first, and other
            lines are not checked.
        origin: The expected log.
        key: Ed25519 public key, 32 bytes.

    Raises:
        BadNoteError: malformed, another log, another key, or the signature does not cover the text.
    """
    lines = note.split("\n") if len(note) <= NOTE_CHARS_MAX else []
    if len(lines) < 6 or lines[3] or lines[-1]:
        raise BadNoteError("not a checkpoint: expected origin, size, root, an empty line, signatures")
    if lines[0] != origin:
        raise BadNoteError(f"a checkpoint of {lines[0]!r}, {origin!r} expected")
    if not _SIZE.fullmatch(lines[1]) or int(lines[1]) > SIZE_MAX:
        raise BadNoteError(f"a checkpoint of size {lines[1]!r}")
    checkpoint = Checkpoint(origin=origin, size=int(lines[1]), root=from_base64(lines[2], HASH_BYTES))
    own, *others = signature_lines(note)
    if own.name != origin or len(own.signature) != 64:
        raise BadNoteError("the checkpoint's first signature does not bear the log's name")
    if any(other.name == origin for other in others):
        raise BadNoteError("two of the checkpoint's signatures bear the log's name")
    if own.key_hash != key_hash(origin, _ED25519, key):
        raise BadNoteError(f"the checkpoint is signed by another key than {key.hex()[:16]}")
    try:
        VerifyKey(key).verify(checkpoint.text().encode(), own.signature)
    except (BadSignatureError, ValueError, TypeError):
        raise BadNoteError("the checkpoint's signature does not cover its text") from None
    return checkpoint


def signature_lines(note: str) -> tuple[SignatureLine, ...]:
    """The signature lines below a note's text, in order; at least one.

    Raises:
        BadNoteError: there are none or too many, or one has another form.
    """
    found = note.rpartition("\n\n")[2].split("\n")[:-1] if len(note) <= NOTE_CHARS_MAX else []
    if not 1 <= len(found) <= SIGNATURES_MAX:
        raise BadNoteError(f"a note with {len(found)} signatures, 1 to {SIGNATURES_MAX} expected")
    return tuple(read_line(line) for line in found)


def read_line(line: str) -> SignatureLine:
    """A signature line from its text, without its end.

    Raises:
        BadNoteError: it has another form.
    """
    match = _LINE.fullmatch(line) if len(line) <= NOTE_CHARS_MAX else None
    if match is None:
        raise BadNoteError(f"not a signature line: {line[:80]!r}")
    signed = from_base64(match[2])
    return SignatureLine(match[1], signed[:_KEY_HASH_BYTES], signed[_KEY_HASH_BYTES:])


def verifier_key(origin: str, key: bytes) -> str:
    """The public key in signed-note's form, for other tools: name+hash+base64."""
    return f"{origin}+{key_hash(origin, _ED25519, key).hex()}+{_base64(_ED25519 + key)}"


def key_hash(name: str, algorithm: bytes, key: bytes) -> bytes:
    """The 4-byte key hash in a signature line."""
    return hashlib.sha256(name.encode() + b"\n" + algorithm + key).digest()[:_KEY_HASH_BYTES]


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def from_base64(text: str, length: int | None = None) -> bytes:
    """Decodes canonical base64, of exactly `length` bytes if given.

    Raises:
        BadNoteError: it is not.
    """
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadNoteError(f"not base64: {text[:80]!r}") from None
    if (length is not None and len(value) != length) or _base64(value) != text:
        raise BadNoteError(f"{len(value)} bytes in base64, {length or 'the canonical form'} expected")
    return value
