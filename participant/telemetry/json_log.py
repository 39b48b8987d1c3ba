"""JSON log: configures logging of every Assay process as JSON lines on standard error.

Room: participant (edge: sets up logging). One object a line: time, level,
package, event, and the event's own fields.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any


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
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("assay").setLevel(logging.INFO)
    logging.getLogger("libp2p").setLevel(logging.ERROR)
