"""Proposal size: how long the largest proposal of a run is, and how long one may be.

Room: protocol (pure). A proposal goes out as one notification, and so does the certified manifest that
follows from it. A run whose leaders would have to propose more stands still: its spec is invalid.
"""

from __future__ import annotations

from assay.protocol.messages import CONTRADICTIONS_MAX

PROPOSAL_BYTES_MAX = 256 * 1024  # as `NOTIFICATION_BYTES_MAX` in network/limits.py
MESSAGES_PER_MANIFEST = 110  # of each kind, oldest first; the rest goes into later manifests
DIGEST_BYTES = 34  # as encoded
COMMIT_BYTES = 560  # signed, beside its inner states
COMMITMENT_BYTES, VERDICT_BYTES = 310, 410  # signed
SKETCH_BYTES, TASK_BYTES = 170, 140  # an opened sketch and a shown task, beside their paths
# Of each verifier: an inclusion list, a share of the beacon, and its part of reports and certificates.
VERIFIER_BYTES = 1024
# For who leaves, returns or joins, stake reports, appraisals, and a link's certificate.
REST_BYTES = 12 * 1024


def proposal_bytes(*, seats: int, verifiers: int, segments: int, tasks: int) -> int:
    """Bytes of the largest proposal of a run; `tasks` are the known-answer tasks of a node."""
    commits = seats + 2 * CONTRADICTIONS_MAX  # a contradiction shows two
    messages = COMMITMENT_BYTES + VERDICT_BYTES + SKETCH_BYTES + DIGEST_BYTES * _path(segments)
    if tasks:
        messages += TASK_BYTES + DIGEST_BYTES * _path(tasks)
    return (
        commits * (COMMIT_BYTES + DIGEST_BYTES * segments)
        + MESSAGES_PER_MANIFEST * messages
        + verifiers * VERIFIER_BYTES
        + REST_BYTES
    )


def _path(leaves: int) -> int:
    """Hashes that lead from one of so many leaves to the root of their Merkle tree."""
    return max(leaves - 1, 0).bit_length()
