"""Workers: trainers and recompute workers in the process that asks them, with a gradient of plain arithmetic.

They are the production workers behind the production pipe: only the child process is not there, and the
model's gradient is drawn from the tokens in place of torch's. Steps, states, openings and comparisons are
real.
"""

from __future__ import annotations

import importlib
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO
from unittest import mock

import numpy as np
import trio
from numpy.typing import NDArray

from assay.node.messages import TakeStep
from assay.participant.worker import answering
from assay.protocol.types import Digest
from assay.testing.members import a_digest
from tests.simulation.disk import HERE, Killed

_LENGTH = struct.Struct(">I")
SEQUENCE_S = 0.3  # of a trainer's clock, for each sequence
CLASS = Digest(a_digest("execution class of the simulation"))


def a_gradient(
    _model: Any, _layout: Any, theta_P: NDArray[np.float32], tokens: NDArray[np.int64], **_more: Any
) -> tuple[float, NDArray[np.float32]]:
    """A loss and a slope that depend on all tokens and parameters, with equal bits on every machine."""
    _CLOCK.passed_s += len(tokens) * SEQUENCE_S
    rng = np.random.default_rng(np.ascontiguousarray(tokens).view(np.uint32).ravel())
    pull_P = rng.standard_normal(len(theta_P), np.float32)
    return 5.0, pull_P + theta_P * np.float32(0.25)


@dataclass
class _Clock:
    """What trainers measure their work with: it goes on by that alone."""

    passed_s: float = 0.0

    def monotonic(self) -> float:
        """In seconds."""
        return self.passed_s


_CLOCK = _Clock()


def a_class(*_machine: object) -> Digest:
    """The execution class of every machine."""
    return CLASS


class Child:
    """A worker's process as `WorkerProcess` sees it: it answers when it is read from."""

    def __init__(self, module: str, work_s: float, step_s: float) -> None:
        found = importlib.import_module(module)
        self._answer: Callable[[bytes], bytes] = answering(found.START, found.open_worker)
        self._work_s, self._step_s = work_s, step_s
        self._asked, self._said = bytearray(), bytearray()
        self._is_dead = False

    stdin = stdout = property(lambda self: self)

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        return 1 if self._is_dead else None

    def send_signal(self, _sig: signal.Signals) -> None:
        """Any signal ends it."""
        self._is_dead = True

    async def wait(self) -> int:
        """Its exit status."""
        return 1

    async def send_all(self, data: bytes) -> None:
        """A pipe that holds everything."""
        await trio.lowlevel.checkpoint()
        self._asked += data

    async def receive_some(self, count: int) -> bytes:
        """The next bytes of its answer; none once it is dead."""
        if not self._said and not self._is_dead:
            is_step = TakeStep.TAG in self._asked[:64]
            await trio.sleep(self._work_s + self._step_s * is_step)
            (length,) = _LENGTH.unpack_from(self._asked)
            body = bytes(self._asked[_LENGTH.size : _LENGTH.size + length])
            del self._asked[: _LENGTH.size + length]
            here = HERE.get()
            assert here is not None
            here.is_worker = True
            try:
                answer = self._answer(body)
            except Killed:
                self._is_dead = True
                if here.is_dead:
                    raise
            else:
                self._said += _LENGTH.pack(len(answer)) + answer
            finally:
                here.is_worker = False
        found = bytes(self._said[:count])
        del self._said[:count]
        return found


async def start(module: str, _log_file: BinaryIO) -> Child:
    """In place of `participant.worker`'s own starter."""
    await trio.lowlevel.checkpoint()
    here = HERE.get()
    assert here is not None
    return Child(module, here.work_s, here.step_s)


@contextmanager
def arithmetic() -> Iterator[None]:
    """While this lasts, no gradient needs torch, and all machines are of one class."""
    with (
        mock.patch("assay.node.trainer.loss_and_gradient", a_gradient),
        mock.patch("assay.verifier.audit.worker.loss_and_gradient", a_gradient),
        mock.patch("assay.node.trainer.execution_class", a_class),
        mock.patch("assay.node.trainer.time", _CLOCK),
        mock.patch("assay.verifier.audit.worker.execution_class", a_class),
    ):
        yield
