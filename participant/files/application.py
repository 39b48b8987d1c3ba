"""Application: what a node sends to each verifier of a run whose spec does not name it, to get a seat.

Room: participant (pure). The record is signed by both keys of its node, and its account agrees by the lot
that it has locked for this run: nobody can apply for somebody else, and an application can be sent again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from assay.participant.files.record import SignedRecord
from assay.participant.files.track_record import TrackRecord
from assay.protocol.encoding.codec import Later, Max


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A node's request to take part in a run."""

    TAG: ClassVar[bytes] = b"assay/application/1"
    record: SignedRecord
    is_ready: bool  # whether it has the run's present parameters; before, it asks only to be served them
    track_record: Annotated[tuple[TrackRecord, ...], Max(1), Later()] = ()  # of another run, if it has one
