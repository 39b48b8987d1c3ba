"""Witness: the request for a cosignature (C2SP tlog-witness), and the witness's consistency check.

Room: ledger (pure). Request bodies as in tlog-witness, without HTTP: the size the
witness knows, the proof from there, an empty line, the note. A witness stores the newest
checkpoint it cosigned, and cosigns only one that is consistent with it; a signed checkpoint that is not
is evidence of a rollback or a split view.

    old 20
    <hash in base64>

    <the note>
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from assay.ledger.log.note import NOTE_CHARS_MAX, BadNoteError, Checkpoint, from_base64, read_checkpoint
from assay.ledger.merkle_log import EMPTY_ROOT, HASH_BYTES, SIZE_MAX, ProofError, verify_consistency
from assay.protocol.errors import AssayError, MalformedMessage

PROOF_HASHES_MAX = 63
REQUEST_BYTES_MAX = 2 * NOTE_CHARS_MAX + 50 * (PROOF_HASHES_MAX + 1)
_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})")


class RolledBackError(AssayError):
    """The log's own key signed a checkpoint that is inconsistent with a cosigned one."""


class OtherSizeError(AssayError):
    """The proof does not start at the witness's size: request that size, and prove from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A checkpoint to cosign, and its consistency proof from `old_size` entries."""

    old_size: int
    proof: tuple[bytes, ...]
    note: str

    def encode(self) -> bytes:
        """The body that is sent."""
        lines = [f"old {self.old_size}", *(base64.b64encode(one).decode() for one in self.proof), "", ""]
        return ("\n".join(lines) + self.note).encode()


def read_request(body: bytes) -> Request:
    """Inverts `Request.encode`.

    Raises:
        MalformedMessage: malformed, or beyond the bounds above.
    """
    try:
        if len(body) > REQUEST_BYTES_MAX:
            raise BadNoteError(f"{len(body)} bytes, at most {REQUEST_BYTES_MAX} expected")
        head, end, note = body.decode().partition("\n\n")
        old, *proof = head.split("\n")
        match = _OLD.fullmatch(old)
        if match is None or not end or int(match[1]) > SIZE_MAX or len(proof) > PROOF_HASHES_MAX:
            raise BadNoteError(f"{old[:40]!r} and {len(proof)} hashes, a size and a proof expected")
        hashes = tuple(from_base64(one, HASH_BYTES) for one in proof)
    except (UnicodeDecodeError, BadNoteError) as error:
        raise MalformedMessage(f"request to a witness: {error}") from None
    return Request(old_size=int(match[1]), proof=hashes, note=note)


def continued(held: Checkpoint | None, request: Request, origin: str, key: bytes) -> Checkpoint:
    """The requested checkpoint, if it is signed by the log and consistent with the one we hold.

    Args:
        held: The newest that this witness cosigned; None if it never did.
        request: The request.
        origin: The log's name.
        key: The log's Ed25519 key.

    Raises:
        BadNoteError: not a checkpoint of this log, signed by its key.
        OtherSizeError: the proof starts at another size; the log is not at fault.
        RolledBackError: the key signed a checkpoint inconsistent with the one we hold.
    """
    shown = read_checkpoint(request.note, origin, key)
    size, root = (held.size, held.root) if held is not None else (0, EMPTY_ROOT)
    if shown.size < size:
        raise RolledBackError(
            f"a checkpoint of {shown.size} entries arrived, one of {size} was cosigned before"
        )
    if shown.size == size and shown.root != root:
        raise RolledBackError(
            f"two checkpoints of {size} entries: root {shown.root.hex()[:16]} arrived, "
            f"root {root.hex()[:16]} was cosigned before"
        )
    if request.old_size != size:
        raise OtherSizeError(f"a proof from {request.old_size} entries, from {size} expected")
    try:
        verify_consistency(size, root, shown.size, shown.root, request.proof)
    except ProofError as error:
        raise RolledBackError(f"the log does not continue the one that was cosigned: {error}") from None
    return shown
