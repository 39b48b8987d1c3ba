"""Version: what `assay --version` prints: the release, what it computes with, and this machine's classes.

Room: cli (pure, but for the machine that it describes).
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator

BUILD = ("torch", "numpy", "numba", "libp2p", "web3")  # what decides bits, and what others are spoken to with


def version_lines() -> Iterator[str]:
    """The release; the build; the execution class of each precision, where torch is installed.

    Classes are those of an order's defaults, the whole batch in one pass, and of one thread: `assay order
    check` says which class an order makes of this machine. They take a few seconds.
    """
    yield f"assay {importlib.metadata.version('assay')}"
    found = [f"{name} {version}" for name in BUILD if (version := _installed(name))]
    yield f"build   {', '.join([f'Python {platform.python_version()} on {platform.machine()}', *found])}"
    if _installed("torch") is None:
        yield "class   none: without torch nothing is trained or recomputed here"
        return
    import torch

    from assay.protocol.params import ComputeSpec, Precision
    from assay.training.execution.execution_class import execution_class

    torch.set_num_threads(1)
    for dtype in Precision:
        digest = execution_class(ComputeSpec(dtype=dtype, micro_sequences=0))
        yield f"class   {digest.hex()[:16]} in {dtype.name.lower()}"


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
