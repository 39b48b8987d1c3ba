"""Clocks that differ: every Python process with this folder in its path adds its participant's seconds.

Room: tests (edge). CLOCK_SKEWS = {"node-1": 7.5}, in JSON, says how far the clocks of participants are ahead.
A process is a participant's if its arguments name a file in its folder: they are looked at with each call,
because a forked process has others than its parent.
"""

import json
import os
import sys
import time

_SKEWS: dict[str, float] = json.loads(os.environ.get("CLOCK_SKEWS", "{}"))
_true, _true_ns = time.time, time.time_ns


def _ahead_s() -> float:
    parts = {part for argument in getattr(sys, "argv", ()) for part in argument.split("/")}
    return sum(seconds for name, seconds in _SKEWS.items() if name in parts)


time.time = lambda: _true() + _ahead_s()
time.time_ns = lambda: _true_ns() + int(_ahead_s() * 1e9)
