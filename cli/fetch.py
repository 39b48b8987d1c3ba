"""Fetch command: copies a delivered run from web servers, with progress on a terminal.

Room: cli (edge: the terminal). The work is done by bundle/fetch.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskProgressColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from assay.bundle.fetch import Fetched, Part, Progress, fetch
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest


def fetch_run(
    sources: Sequence[str], out: Path | None, only: str, run_id: str | None, most: float
) -> Fetched:
    """Fetch a run; the words are those of the command line.

    Raises:
        ConfigError: one of them is not what it should be.
        IntegrityError, Unavailable: see `fetch`.
    """
    try:
        part = Part(only)
    except ValueError:
        raise ConfigError(
            f"--only {only!r}: expected one of {', '.join(one.value for one in Part)}"
        ) from None
    expected = _digest(run_id)
    with Bar(BarColumn(), TaskProgressColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
             console=Console(stderr=True), transient=True,
             disable=not sys.stderr.isatty()) as bar:  # fmt: skip
        task = bar.add_task("files", total=None)

        def tell(progress: Progress) -> None:
            bar.update(task, total=progress.files, completed=progress.files_done)

        return fetch(sources, out, part=part, run_id=expected, bytes_max=int(most * 1e9), on_progress=tell)


def fetched_lines(fetched: Fetched) -> Iterator[str]:
    """What was fetched, and what to do next."""
    yield f"run {fetched.run_id.hex()}, as its buyer {fetched.buyer} signed it: compare both with the chain's"
    found = f"{fetched.files} files ({fetched.part.value}), of which {fetched.files_kept} were there"
    yield f"{fetched.folder}: {found}; {fetched.bytes_fetched:,} bytes fetched"
    part = "" if fetched.part is Part.ALL else " --only proof"
    yield f"check it: assay run verify {fetched.folder}{part}"


def _digest(text: str | None) -> Digest | None:
    try:
        found = None if text is None else bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        found = b""
    if found is not None and len(found) != 32:
        raise ConfigError(f"--run-id {text!r}: expected 64 hexadecimal digits")
    return None if found is None else Digest(found)
