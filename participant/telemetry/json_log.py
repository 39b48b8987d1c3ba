"""JSON log: configures logging of every Assay process as JSON lines on standard error.

Room: participant (edge: sets up logging). One object a line: time, level, package, event, and the event's own
fields. What peers cause is bounded, so that none can fill a disk: of one event about one peer, `BURST` lines
are written at once and then one each second; `left_out` in the next line counts those between.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

BURST = 100
KINDS_MAX = 1024  # of events and peers remembered; the oldest is forgotten first
_PEERS = ("peer", "node", "verifier", "stranger")  # fields that name who caused an event


@dataclass(slots=True)
class _Lines:
    """Lines that may be written now, as of a time, and those left out since the last one."""

    left: float
    at_s: float
    left_out: int = 0


class BoundedByPeer(logging.Filter):
    """Leaves out what peers cause too often. A stranger's name costs nothing, so all of them count as one."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: OrderedDict[tuple[str, str], _Lines] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        field = next((name for name in _PEERS if hasattr(record, name)), None)
        if field is None:
            return True
        key = (record.msg, "" if field == "stranger" else str(getattr(record, field)))
        lines = self._lines.setdefault(key, _Lines(BURST, record.created))
        if len(self._lines) > KINDS_MAX:
            self._lines.popitem(last=False)
        lines.left = min(BURST, lines.left + max(0.0, record.created - lines.at_s))
        lines.at_s = record.created
        if lines.left < 1:
            lines.left_out += 1
            return False
        lines.left -= 1
        if lines.left_out:
            record.left_out, lines.left_out = lines.left_out, 0
        return True


class _JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: time (UTC), level, event, and the event's own fields."""

    converter = staticmethod(time.gmtime)
    _ORDINARY = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "t": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "room": record.name,
            "event": record.getMessage(),
        }
        fields |= {key: value for key, value in vars(record).items() if key not in self._ORDINARY}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def log_as_json() -> None:
    """Log Assay's packages to standard error as JSON; libraries from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    handler.addFilter(BoundedByPeer())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("assay").setLevel(logging.INFO)
    logging.getLogger("libp2p").setLevel(logging.ERROR)
