"""Machine: what a figure was measured on, in one line."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version


def machine() -> str:
    """Processor, cores, load and the libraries that do the work."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux
    load = os.getloadavg()[0]
    libraries = f"Python {platform.python_version()}, torch {version('torch')}, numpy {version('numpy')}"
    return f"{model}, {os.cpu_count()} CPUs, load {load:.1f}, {libraries}"
