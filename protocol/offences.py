"""Offences: the ids under which verifiers and `SlashCourt` know what is slashed; docs/protocol.md, section 6.

Room: protocol (pure). An id begins with its run's: no quorum uses up another run's in a run of its own.
"""

from __future__ import annotations

import hashlib

from assay.protocol.types import Digest

RUN_BYTES = 12  # of the run's id; the other 20 of the id are the offence's, as in an account's address


def offence_id(run_id: Digest, offence: bytes) -> Digest:
    """The id of an offence in a run, by the bytes that only that offence has: the same whoever reports it."""
    return Digest(run_id[:RUN_BYTES] + hashlib.sha256(offence).digest()[RUN_BYTES:])
