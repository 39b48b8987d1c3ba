"""High-water mark: how far a verifier's signatures have come, kept apart from its store.

Room: participant (edge: one small file). A store can go back without an error: one wrong bit in SQLite's
write-ahead log drops every later write, and so does a folder restored from a backup. A verifier that signs
again what it does not remember contradicts itself, and is slashed for it. So the mark names the last
statement that was journalled before its signature; a store that neither holds it nor is past it lost some.
It also says how far our votes to finalise have come: giving up a later iteration contradicts nothing.

    slot = u64 count | u64 highest iteration | u64 the last statement's | u64 silent through
           | u64 highest iteration of a vote to finalise
           | 32 byte SHA-256 of the last statement | 32 byte SHA-256 of all that
    file = two slots, written in turn: a write that is cut off leaves the one before it whole; it is there
           with a first slot, or not at all
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from assay.protocol.errors import ConfigError, Unavailable
from assay.training.optimiser.public_state import durably

_BODY, _SUM_BYTES = struct.Struct(">QQQQQ32s"), 32
_SLOT_BYTES = _BODY.size + _SUM_BYTES


@dataclass(frozen=True, slots=True)
class _Mark:
    count: int = 0
    highest: int = 0
    last: int = 0
    silent_through: int = 0  # found lost once: it stays so until a final block is past it
    finalised: int = 0
    statement: bytes = bytes(32)

    def encode(self) -> bytes:
        body = _BODY.pack(*astuple(self))
        return body + hashlib.sha256(body).digest()


class HighWater:
    """The mark of one verifier in one run. One process opens it at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file, or begin one.

        Raises:
            ConfigError: it cannot be opened, or is damaged.
        """
        self._path = path
        try:
            if not path.exists() or not path.stat().st_size:
                with durably(path) as begun:
                    os.fchmod(begun.fileno(), 0o600)
                    begun.write(_Mark().encode())
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            body = os.pread(self._file, 2 * _SLOT_BYTES, 0)
        except OSError as error:
            reason = f"{path}: the mark of what was signed cannot be opened ({error.strerror})"
            raise ConfigError(reason) from None
        slots = (body[:_SLOT_BYTES], body[_SLOT_BYTES:])
        whole = [mark for slot in slots if (mark := _decoded(slot)) is not None]
        if not whole:
            raise ConfigError(
                f"{path}: the mark of what was signed is damaged; without it this verifier could sign twice. "
                "Where the store beside it is surely whole, remove the mark"
            )
        self._mark = max(whole, key=lambda mark: mark.count)

    def close(self) -> None:
        """Release the file."""
        os.close(self._file)

    def note(self, iteration: int, statement: bytes, *, finalises: bool) -> None:
        """Note a journalled statement, durably, before it is signed.

        Args:
            iteration: Of the statement.
            statement: As it was journalled.
            finalises: Whether it is a vote to finalise.

        Raises:
            Unavailable: it cannot be written; then nothing may be signed.
        """
        highest = max(iteration, self._mark.highest)
        name = hashlib.sha256(statement).digest()
        finalised = max(iteration, self._mark.finalised) if finalises else self._mark.finalised
        self._write(replace(self._mark, highest=highest, last=iteration, finalised=finalised, statement=name))

    def _write(self, changed: _Mark) -> None:
        mark = replace(changed, count=self._mark.count + 1)
        try:
            os.pwrite(self._file, mark.encode(), (mark.count % 2) * _SLOT_BYTES)
            os.fdatasync(self._file)
        except OSError as error:
            raise Unavailable(f"{self._path}: cannot be written ({error.strerror})") from None
        self._mark = mark

    def lost_through(self, journal: Iterable[bytes], final_iteration: int) -> tuple[int, int]:
        """The iterations up to which statements, and votes to finalise, were signed that a store has lost.

        Both are 0 if it has lost none.

        Args:
            journal: The records that the store holds, which loses the latest ones first.
            final_iteration: Of the last final block in the store; records up to it are dropped.

        Raises:
            Unavailable: the finding cannot be written.
        """
        mark = self._mark
        if final_iteration >= mark.highest:
            return 0, 0
        if mark.silent_through <= final_iteration:
            is_held = any(hashlib.sha256(body).digest() == mark.statement for body in journal)
            if is_held or final_iteration >= mark.last:
                return 0, 0
            self._write(replace(mark, silent_through=mark.highest))
        return self._mark.silent_through, self._mark.finalised


def _decoded(slot: bytes) -> _Mark | None:
    """The mark in a slot, or None if it holds none."""
    if len(slot) != _SLOT_BYTES:
        return None
    mark = _Mark(*_BODY.unpack(slot[: _BODY.size]))
    return mark if mark.encode() == slot else None
