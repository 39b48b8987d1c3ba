"""A worker for tests of `participant.worker` and `participant.sync`: it fails in every way on demand."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from assay.protocol import errors
from assay.protocol.types import PeerId


def methods() -> Mapping[str, Callable[..., Any]]:
    print("a library greets whoever imports it")  # to the log, or the frames are spoiled
    held: dict[str, Any] = {}

    def open_(**given: Any) -> str:
        held.update(given)
        return "opened"

    def raise_(kind: str, words: str) -> None:
        fault = getattr(errors, kind)
        if issubclass(fault, errors.PeerFault):
            raise fault(PeerId(bytes(32)), words)
        raise fault(words)

    def crash() -> None:
        raise RuntimeError("a bug")

    def shout() -> str:
        print("a library prints")
        os.write(1, b"and so does its C part\n" * 1000)
        sys.stdout.flush()
        return "heard"

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait_for(path: str) -> str:
        Path(f"{path}.begun").touch()
        while not Path(path).exists():
            time.sleep(0.01)
        return "waited"

    return {
        "open": open_,
        "echo": lambda value: value,
        "held": lambda: dict(held),
        "pid": os.getpid,
        "raise": raise_,
        "crash": crash,
        "shout": shout,
        "kill": kill,
        "wait_for": wait_for,
    }
