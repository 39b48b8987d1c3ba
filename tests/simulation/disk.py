"""Disk: what a simulated process writes, and where it may be killed: at any of its durable writes.

A process is killed before a write, in the middle of one that is not atomic, or after it; nothing that it does
afterwards counts. SQLite's transactions, blobs, steps and checkpoints are atomic by a commit or a rename; the
high-water mark is two slots, of which the one being written may be torn, as may a status file's last line.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy.engine import Connection

from assay.observer.ledger_service.status import StatusFile
from assay.participant.store import Store
from assay.protocol.types import NO_PEER, PeerId


class Killed(BaseException):
    """A process was killed in a write: no handler of production code may take this for an error."""


@dataclass(eq=False)
class Power:
    """Whether a process runs, and when it is killed."""

    rng: random.Random
    peer: PeerId = NO_PEER
    is_dead: bool = False
    writes: int = 0
    fuse: int = 0  # writes until it is killed; 0: it is not
    is_worker: bool = False  # its worker is at work: it is the worker that writes, and that is killed
    work_s: float = 0.01  # of its worker, for each request
    step_s: float = 0.0  # more, for a step
    ahead_s: float = 0.0  # of its clock, as it was set
    drift_ppm: float = 0.0  # of its clock: how much faster than time it runs
    counts_files: bool = False  # whether it is killed in files that are not there before a rename, too
    told: Callable[[], None] = field(default=lambda: None)

    def write(self, do: Callable[[], Any], torn: Callable[[], Any] = lambda: None) -> Any:
        """A durable write, or what becomes of it if we are killed in it.

        Raises:
            Killed: we are dead, or are killed now.
        """
        if self.is_dead:
            raise Killed
        self.writes += 1
        burns = self.fuse == 1
        self.fuse = max(self.fuse - 1, 0)
        if not burns:
            return do()
        (do if self.rng.random() < 0.5 else torn)()
        if not self.is_worker:
            self.is_dead = True
            self.told()
        raise Killed


HERE: ContextVar[Power | None] = ContextVar("HERE", default=None)


def _killing(real: Callable[..., Any], tear: bool = False) -> Callable[..., Any]:
    def write(*args: Any) -> Any:
        here = HERE.get()
        if here is None:
            return real(*args)
        return here.write(
            lambda: real(*args), (lambda: _torn(real, here.rng, *args)) if tear else lambda: None
        )

    return write


def _writing_files(real: Callable[..., Any]) -> Callable[..., Any]:
    def write(path: Path, body: Any, **fields: Any) -> Any:
        here = HERE.get()
        if here is None or not here.counts_files:
            return real(path, body, **fields)
        return here.write(
            lambda: real(path, body, **fields),
            lambda: real(path, body[: here.rng.randrange(len(body) + 1)], **fields),
        )

    return write


def _half_a_line(file: StatusFile, kind: str, /, **_fields: Any) -> None:
    with open(file._path, "a") as lines:
        lines.write(f'{{"kind": "{kind}", ')


def _writing_lines(real: Callable[..., Any]) -> Callable[..., Any]:
    def write(*args: Any, **fields: Any) -> Any:
        here = HERE.get()
        if here is None:
            return real(*args, **fields)
        return here.write(lambda: real(*args, **fields), lambda: _half_a_line(*args, **fields))

    return write


def _torn(real: Callable[..., Any], rng: random.Random, file: int, body: bytes, offset: int) -> None:
    real(file, body[: rng.randrange(len(body))], offset)


def _nothing(_file: int) -> None:
    """What is written here is gone when the simulation ends."""


@contextmanager
def killing_writes() -> Iterator[None]:
    """While this lasts, processes can be killed in their durable writes; no write waits for a disk."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Store, "_write", _killing(Store._write)))
        stack.enter_context(mock.patch.object(Connection, "_commit_impl", _killing(Connection._commit_impl)))
        stack.enter_context(mock.patch.object(StatusFile, "write", _writing_lines(StatusFile.write)))
        for name in ("write_bytes", "write_text"):
            stack.enter_context(mock.patch.object(Path, name, _writing_files(getattr(Path, name))))
        stack.enter_context(mock.patch.object(os, "replace", _killing(os.replace)))
        stack.enter_context(mock.patch.object(os, "pwrite", _killing(os.pwrite, tear=True)))
        stack.enter_context(mock.patch.object(os, "fsync", _nothing))
        stack.enter_context(mock.patch.object(os, "fdatasync", _nothing))
        yield
