"""Messages between a node's two processes: the record of a step, and requests to the trainer.

Room: node (pure).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from assay.participant.compute import PATH_CHARS_MAX, Workplace
from assay.protocol.encoding.codec import INT_MAX, Later, Max
from assay.protocol.messages import NO_OWN_DATA, Commit, OwnData
from assay.protocol.params import KNOWN_ANSWERS_MAX, RunSpec
from assay.protocol.types import Digest, PeerId, RoundId
from assay.protocol.update_rule import SEGMENTS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step as its trainer keeps it: the commit to it, and what that commit binds and does not hold."""

    TAG: ClassVar[bytes] = b"assay/node/step-record/1"
    commit: Commit
    update: Annotated[bytes, Max(INT_MAX)]
    salt: Digest  # of the commitment to the sketches
    sketches: Annotated[tuple[Digest, ...], Max(SEGMENTS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStart:
    """The start of a trainer."""

    TAG: ClassVar[bytes] = b"assay/worker/trainer-start/1"
    spec: RunSpec
    run_id: Digest
    node: PeerId
    salt_key: Digest  # from which it derives the salts of its commitments
    workplace: Workplace
    known_answers: Annotated[tuple[RoundId, ...], Max(KNOWN_ANSWERS_MAX)]  # rounds of its known-answer tasks
    own_data: Annotated[str, Max(PATH_CHARS_MAX), Later()] = ""  # folder of data that only it has, if any
    own: Annotated[OwnData, Later()] = NO_OWN_DATA  # what binds it to them


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeStep:
    """Asks for a round's step, answered by its `StepRecord`; the fields are those of `Trainer.step`."""

    TAG: ClassVar[bytes] = b"assay/worker/take-step/2"
    round: RoundId
    tasks_from: int  # first round whose known-answer task is a false step; 0: none is
    parent: Digest
    base: int
    base_root: Digest
    left_ms: Annotated[int, Later()] = 0
    seat: Annotated[int, Later()] = 0  # that its draws follow from, as its commit says it


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAhead:
    """Asks for the local work of a round to come, see `Trainer.ahead`; answered by `AtRound`."""

    TAG: ClassVar[bytes] = b"assay/worker/work-ahead/2"
    round: RoundId
    tasks_from: int  # likewise
    base: int
    base_root: Digest
    left_ms: Annotated[int, Later()] = 0
    seat: Annotated[int, Later()] = 0  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatStep:
    """Asks to repeat a step whose files are damaged, see `Trainer.repeat`; answered by its `StepRecord`."""

    TAG: ClassVar[bytes] = b"assay/worker/repeat-step/2"
    commit: Commit
    tasks_from: int  # likewise
