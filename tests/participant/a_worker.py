"""A worker for tests of `participant.worker`: it fails in every way on demand, also while it starts."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from assay.participant.compute import AtRound, ComputeWorker
from assay.protocol import errors
from assay.protocol.encoding.codec import INT_MAX, Max, Message
from assay.protocol.types import PeerId, RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A start: one that waits for the file `wait_for`, and is refused until there is a file `needs`."""

    TAG: ClassVar[bytes] = b"test/start/1"
    wait_for: Annotated[str, Max(4096)] = ""
    needs: Annotated[str, Max(4096)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    TAG: ClassVar[bytes] = b"test/echo/1"
    value: Annotated[bytes, Max(INT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GetPid:
    TAG: ClassVar[bytes] = b"test/get-pid/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pid:
    TAG: ClassVar[bytes] = b"test/pid/1"
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    TAG: ClassVar[bytes] = b"test/raise/1"
    kind: Annotated[str, Max(64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shout:
    TAG: ClassVar[bytes] = b"test/shout/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    TAG: ClassVar[bytes] = b"test/crash/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    TAG: ClassVar[bytes] = b"test/kill/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFor:
    TAG: ClassVar[bytes] = b"test/wait-for/1"
    path: Annotated[str, Max(4096)]


print("a library greets whoever imports it")  # to the log, or the frames are spoiled


class AWorker(ComputeWorker):
    REQUESTS: ClassVar = (*ComputeWorker.REQUESTS, Echo, GetPid, Raise, Shout, Crash, Kill, WaitFor)

    def __init__(self) -> None:
        """It has no parameters."""

    def answer(self, request: Message) -> Message:
        match request:
            case Echo():
                return request
            case GetPid():
                return Pid(pid=os.getpid())
            case Raise():
                fault = getattr(errors, request.kind)
                if issubclass(fault, errors.PeerFault):
                    raise fault(PeerId(bytes(32)), "these words")
                raise fault("these words")
            case Shout():
                print("a library prints")
                os.write(1, b"and so does its C part\n" * 1000)
                sys.stdout.flush()
            case Crash():
                raise RuntimeError("a bug")
            case Kill():
                os.kill(os.getpid(), signal.SIGKILL)
            case WaitFor():
                wait_for(request.path)
        return AtRound(round=RoundId(7))


def wait_for(path: str) -> None:
    Path(f"{path}.begun").touch()
    while not Path(path).exists():
        time.sleep(0.01)


def open_worker(start: Start) -> AWorker:
    if start.wait_for:
        wait_for(start.wait_for)
    if start.needs and not Path(start.needs).exists():
        raise errors.ConfigError("no data")
    return AWorker()


START = Start
