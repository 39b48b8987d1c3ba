"""Plain JSON: `json.loads` for files that others wrote, which may be nested to break the reader.

Room: training (pure). py_ecc, which every chain client imports, raises Python's recursion limit
so far that json's C code overflows the stack before it raises RecursionError: the process would
die without a word.
"""

from __future__ import annotations

import json
import re
from typing import Any

DEPTH_MAX = 200
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def parse_json(body: bytes) -> Any:
    """The value that these bytes spell.

    Raises:
        ValueError: they are not JSON, or nested deeper than `DEPTH_MAX`.
    """
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX:  # only then can it be; most lines are not looked at
        depth = 0
        for byte in _STRING.sub(b"", body):
            depth += _STEPS.get(byte, 0)
            if depth > DEPTH_MAX:
                raise ValueError(f"nested deeper than {DEPTH_MAX}")
    return json.loads(body)
