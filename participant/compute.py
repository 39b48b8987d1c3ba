"""Compute: what trainer and recompute worker have in common: the run's parameters, and requests about them.

Room: participant (pure, but for the checkpoints of the parameters). The parent's side of these calls is
`participant.following.sync`; the process around a worker is `participant.worker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from assay.protocol.encoding.codec import INT_MAX, Max, Message
from assay.protocol.types import Digest, RoundId
from assay.training.frozen import Frozen
from assay.training.optimiser.public_state import PublicState

PATH_CHARS_MAX = 4096
HELD_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where and on what a worker computes. An empty path names no file."""

    TAG: ClassVar[bytes] = b"assay/worker/workplace/1"
    data: Annotated[str, Max(PATH_CHARS_MAX)]  # a data set's folder
    folder: Annotated[str, Max(PATH_CHARS_MAX)]  # the participant's
    base: Annotated[str, Max(PATH_CHARS_MAX)]  # imported starting parameters
    device: Annotated[str, Max(64)]
    threads: int
    replicas: int = 1  # groups of a batch that are computed side by side
    processes: int = 1  # that a model is divided among
    is_checkpointing: bool = False  # whether layers are computed again in backward passes

    @property
    def base_path(self) -> Path | None:
        """The file of imported starting parameters, if there is one."""
        return Path(self.base) if self.base else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRound:
    """Asks for the round that the parameters are at."""

    TAG: ClassVar[bytes] = b"assay/worker/get-round/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetState:
    """Asks for the digest of the parameters."""

    TAG: ClassVar[bytes] = b"assay/worker/get-state/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Asks to step the parameters of this round by its aggregate; answered by the new `State`."""

    TAG: ClassVar[bytes] = b"assay/worker/apply/1"
    round: RoundId
    aggregate: Annotated[bytes, Max(INT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Asks to discard the parameters and start from round 0; answered by `AtRound`."""

    TAG: ClassVar[bytes] = b"assay/worker/reset/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Asks to go on from a snapshot with this certified digest; answered by `AtRound`."""

    TAG: ClassVar[bytes] = b"assay/worker/restore/1"
    round: RoundId
    path: Annotated[str, Max(PATH_CHARS_MAX)]
    state: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Asks to keep the parameters of these rounds, and of no other old ones; answered by `AtRound`."""

    TAG: ClassVar[bytes] = b"assay/worker/hold/1"
    rounds: Annotated[tuple[RoundId, ...], Max(HELD_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRound:
    """The round that the parameters are at: the answer to a start too."""

    TAG: ClassVar[bytes] = b"assay/worker/at-round/1"
    round: RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The digest of the parameters."""

    TAG: ClassVar[bytes] = b"assay/worker/state/1"
    digest: Digest


class ComputeWorker:
    """A worker that holds a run's parameters, trained and frozen; subclasses add requests of their own."""

    REQUESTS: ClassVar[tuple[type[Message], ...]] = (GetRound, GetState, Apply, Reset, Restore, Hold)

    def __init__(self, parameters: PublicState, frozen: Frozen) -> None:
        self.parameters, self.frozen = parameters, frozen

    def apply(self, round_id: int, aggregate: bytes) -> Digest:
        """Step the parameters; see `PublicState.apply`."""
        return self.parameters.apply(round_id, aggregate)

    def reset(self) -> None:
        """Discard the parameters."""
        self.parameters.reset()

    def answer(self, request: Message) -> Message:
        """Do what one of `REQUESTS` asks for.

        Raises:
            AssayError: see the method that does it.
        """
        match request:
            case GetState():
                return State(digest=self.parameters.digest())
            case Apply():
                return State(digest=self.apply(request.round, request.aggregate))
            case Reset():
                self.reset()
            case Restore():
                self.parameters.restore(request.round, Path(request.path), request.state)
            case Hold():
                self.parameters.hold(request.rounds)
        return AtRound(round=RoundId(self.parameters.round))
