"""Merkle proofs from all leaves of a log: what the proofs that the books read from their nodes must equal."""

from __future__ import annotations

from collections.abc import Sequence

from assay.ledger.merkle_log import consistency_spans, inclusion_spans, root_of


def inclusion_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The siblings from leaf `index` up to the root of all `leaves`; O(n) work.

    Raises:
        IndexError: there is no such leaf.
    """
    spans = inclusion_spans(len(leaves), index)
    return tuple(root_of(leaves[first : first + count]) for first, count in spans)


def consistency_proof(leaves: Sequence[bytes], old_size: int) -> tuple[bytes, ...]:
    """The proof that the log of the first `old_size` leaves is a prefix of the log of all; O(n) work.

    Raises:
        IndexError: the older log is the longer one.
    """
    spans = consistency_spans(len(leaves), old_size)
    return tuple(root_of(leaves[first : first + count]) for first, count in spans)
