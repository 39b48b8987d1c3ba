"""Status: a service's report file, one JSON object per line, for displays and summaries, and its reader.

Room: observer (edge: one file). A line is written by one call and read by others at any time. Lines that
report an event carry its `id`, so a service that was killed does not report it twice; a half-written last
line is cut off at the next start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from assay.ledger.queries.report import RoundFigures, SettledFigures
from assay.ledger.settlement.ending import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashReport:
    """A slash was executed. node: its peer in hexadecimal, or an account that the spec does not name."""

    node: str
    amount: int
    burnt: int
    buyer: int
    challenger: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """The result of an epoch reached a phase on chain."""

    epoch: int
    phase: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundReport:
    """The rest of the escrow returned to the buyer."""

    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A commit or settled result that names other parameters than the buyer computed."""

    round: int  # before whose step
    who: str  # the node's peer id in hexadecimal, or the part of an epoch
    claimed: str
    ours: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementReport:
    """Whether commits and settled results name the parameters that the buyer computed."""

    ok: bool
    rounds: int
    mismatches: tuple[Mismatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundDue:
    """The buyer has nothing left to do before the rest of the escrow returns, at this second of the chain."""

    at_s: int


Report = (
    RoundFigures
    | Ending
    | SlashReport
    | EpochReport
    | RefundReport
    | SettledFigures
    | AgreementReport
    | RefundDue
)
LEDGER_SERVICE: dict[str, type[Report]] = {
    "round": RoundFigures,
    "closed": Ending,
    "slashed": SlashReport,
    "epoch": EpochReport,
    "refunded": RefundReport,
    "settled": SettledFigures,
}
BUYER: dict[str, type[Report]] = {"agreement": AgreementReport, "refund-due": RefundDue}


def read_report(line: bytes, kinds: Mapping[str, type[Report]]) -> Report | None:
    """One line as the report of its kind; None if the kind is not among these.

    Raises:
        ValueError: it is not a line of a status file.
    """
    fields = json.loads(line)
    kind = kinds.get(fields["kind"])
    return None if kind is None else TypeAdapter(kind).validate_python(fields)


class Tail:
    """The lines another process appends to a file, as they come."""

    def __init__(self, path: Path, kinds: Mapping[str, type[Report]]) -> None:
        self._path, self._kinds, self._at, self._rest = path, kinds, 0, b""

    def news(self) -> Iterator[Report | None]:
        """Complete lines since the last call; None for one of another kind than `kinds`."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._at)
            fresh = file.read()
        self._at += len(fresh)
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        for line in lines:
            yield read_report(line, self._kinds)


class StatusFile:
    """The file, and the ids of the events in it."""

    def __init__(self, path: Path) -> None:
        """Open or create, and read what is there."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.read_bytes() if path.exists() else b""
        kept = whole[: whole.rfind(b"\n") + 1]
        if kept != whole:
            os.truncate(path, len(kept))
        lines = [json.loads(line) for line in kept.splitlines()]
        self._written = {line["id"] for line in lines if "id" in line}

    def write(self, kind: str, /, **fields: Any) -> None:
        """Append a line."""
        body = (json.dumps({"kind": kind, **fields}) + "\n").encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, body)
        finally:
            os.close(descriptor)

    def write_once(self, kind: str, name: str, /, **fields: Any) -> None:
        """Append a line about an event, unless the file has it.

        Args:
            kind: The line's kind.
            name: Identifies the event among those of its kind.
            fields: The rest of the line.
        """
        event_id = f"{kind}/{name}" if name else kind
        if event_id not in self._written:
            self.write(kind, **fields, id=event_id)
            self._written.add(event_id)

    def has(self, kind: str, name: str = "") -> bool:
        """Whether this event is in the file."""
        return (f"{kind}/{name}" if name else kind) in self._written
