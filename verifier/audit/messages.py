"""Messages between a verifier's two processes: requests to the recompute worker, and what it found.

Room: verifier (pure).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from assay.participant.compute import PATH_CHARS_MAX, Workplace
from assay.protocol.encoding.codec import INT_MAX, Max
from assay.protocol.messages import Commit
from assay.protocol.openings import OPENED_BLOCKS_MAX
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest
from assay.verifier.audit.exact import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeStart:
    """The start of a recompute worker."""

    TAG: ClassVar[bytes] = b"assay/worker/recompute-start/1"
    spec: RunSpec
    workplace: Workplace
    limits: Annotated[str, Max(PATH_CHARS_MAX)]  # calibration that the spec names; empty: none at hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Examine:
    """Asks to recompute the drawn part of a step; the fields are those of `RecomputeWorker.examine`."""

    TAG: ClassVar[bytes] = b"assay/worker/examine/1"
    commit: Commit
    update: Annotated[bytes, Max(INT_MAX)]
    opening: Annotated[str, Max(PATH_CHARS_MAX)]  # the file that holds it
    blocks: Annotated[tuple[int, ...], Max(OPENED_BLOCKS_MAX)]
    segment: int
    committed: Digest
    pattern: Digest
    in_reference: bool  # although the step may be of this machine's own class


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A finding, and the execution class of the machine that recomputed."""

    TAG: ClassVar[bytes] = b"assay/worker/examined/1"
    finding: Finding
    exec_class: Digest
