"""Leaf: the canonical bytes of one journal entry that the Merkle log commits to.

Room: ledger (pure). Deterministic CBOR of the whole entry and the time it was written;
only its number is left out, because it is the leaf's position, counted from 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import cbor2

from assay.ledger.books import Entry
from assay.ledger.merkle_log import leaf_hash

TAG = "assay/leaf/3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An entry as recorded in the journal."""

    number: int  # from 1; leaf `number - 1` of the log
    entry: Entry
    recorded_ms: int  # Unix time
    leaf: bytes  # made from the rows


def leaf_bytes(entry: bytes, recorded_ms: int) -> bytes:
    """The canonical CBOR of an entry and of its time.

    Args:
        entry: The bytes of what was posted.
        recorded_ms: When it was written, Unix time in milliseconds.
    """
    return cbor2.dumps([TAG, entry, recorded_ms], canonical=True)


def leaf_of(entry: bytes, recorded_ms: int) -> bytes:
    """The hash of `leaf_bytes` as a leaf of the log."""
    return leaf_hash(leaf_bytes(entry, recorded_ms))
