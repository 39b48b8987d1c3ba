"""Cosignature: signs and checks witness cosignatures of log checkpoints (C2SP tlog-cosignature).

Room: ledger (pure). Version 1 with Ed25519: the time and the checkpoint's text are signed,
and a line below the note carries both. A cosignature says that the checkpoint is consistent with all
that the witness cosigned before. The first signed line domain-separates it from everything else that a
peer key signs. A witness is a verifier, and its key name contains its peer id.

    cosignature/v1
    time 1700000000
    assay/books/<run id in hexadecimal>
    42
    <root in base64>
"""

from __future__ import annotations

from collections.abc import Collection

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from assay.ledger.log.note import (
    BadNoteError,
    Checkpoint,
    SignatureLine,
    key_hash,
    signature_lines,
)
from assay.protocol.types import PeerId

UNIX_S_MAX = 2**63 - 1
_COSIGNATURE = b"\x04"  # signed-note's name for the algorithm
_TIME_BYTES = 8


def witness_name(peer: PeerId) -> str:
    """The key name of a verifier's cosignatures; a peer key is the key of one cosigner only."""
    return f"assay/witness/{peer.hex()}"


def cosign(checkpoint: Checkpoint, key: SigningKey, unix_s: int) -> SignatureLine:
    """A verifier's cosignature as a signature line of the note.

    Args:
        checkpoint: Proven consistent with what this verifier has cosigned before.
        key: The verifier's peer key.
        unix_s: Now, Unix seconds.
    """
    peer = PeerId(bytes(key.verify_key))
    signed = key.sign(_message(checkpoint, unix_s)).signature
    name = witness_name(peer)
    return SignatureLine(
        name, key_hash(name, _COSIGNATURE, peer), unix_s.to_bytes(_TIME_BYTES, "big") + signed
    )


def read_cosignature(line: SignatureLine, checkpoint: Checkpoint, peer: PeerId) -> int:
    """Time at which this verifier cosigned this checkpoint, Unix seconds.

    Raises:
        BadNoteError: the line is not its cosignature of it.
    """
    name = witness_name(peer)
    what = f"cosignature of {peer.hex()[:8]}"
    if line.name != name or line.key_hash != key_hash(name, _COSIGNATURE, peer):
        raise BadNoteError(f"{what}: the line is of {line.name!r}")
    unix_s = int.from_bytes(line.signature[:_TIME_BYTES], "big")
    if len(line.signature) != _TIME_BYTES + 64 or unix_s > UNIX_S_MAX:
        raise BadNoteError(f"{what}: {len(line.signature)} bytes, a time and a signature expected")
    try:
        VerifyKey(peer).verify(_message(checkpoint, unix_s), line.signature[_TIME_BYTES:])
    except (BadSignatureError, ValueError, TypeError):
        raise BadNoteError(f"{what}: does not cover the checkpoint of {checkpoint.size} entries") from None
    return unix_s


def cosigners(note: str, checkpoint: Checkpoint, witnesses: Collection[PeerId]) -> dict[PeerId, int]:
    """The verifiers among `witnesses` that cosigned a note, and when; other lines are ignored.

    Args:
        note: The whole text.
        checkpoint: The note's checkpoint; see `read_checkpoint`.
        witnesses: The verifiers that count.

    Raises:
        BadNoteError: a line has the name of one of them and is not its cosignature.
    """
    names = {witness_name(peer): peer for peer in witnesses}
    found: dict[PeerId, int] = {}
    for line in signature_lines(note):
        if line.name in names:
            peer = names[line.name]
            found[peer] = max(found.get(peer, 0), read_cosignature(line, checkpoint, peer))
    return found


def _message(checkpoint: Checkpoint, unix_s: int) -> bytes:
    return f"cosignature/v1\ntime {unix_s}\n{checkpoint.text()}".encode()
