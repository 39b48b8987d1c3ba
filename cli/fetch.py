"""Fetch command: copies a delivered run from web servers, or one that goes on, with progress on a terminal.

Room: cli (edge: the terminal). The work is done by bundle/fetch.py and bundle/observe.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from assay.bundle.fetch import Fetched, Part, Progress, fetch
from assay.bundle.observe import observe
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest

POLL_S = 2.0  # between two looks at a run that goes on


def fetch_run(
    sources: Sequence[str],
    out: Path | None,
    only: str,
    run_id: str | None,
    most: float,
    *,
    openings: bool,
    follow: bool,
) -> Fetched:
    """Fetch a run, as `--follow` says also while it goes on; the words are those of the command line.

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
    expected, bytes_max = _digest(run_id), int(most * 1e9)
    if follow:
        if expected is None:
            raise ConfigError(
                "--follow needs --run-id: before a run is delivered, nothing else tells it from another"
            )
        return _followed(sources, out, part, expected, bytes_max, openings=openings)
    with Bar(BarColumn(), TaskProgressColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
             console=Console(stderr=True), transient=True,
             disable=not sys.stderr.isatty()) as bar:  # fmt: skip
        task = bar.add_task("files", total=None)

        def tell(progress: Progress) -> None:
            bar.update(task, total=progress.files, completed=progress.files_done)

        return fetch(
            sources, out, part=part, openings=openings, run_id=expected, bytes_max=bytes_max, on_progress=tell
        )


def _followed(
    sources: Sequence[str], out: Path | None, part: Part, run_id: Digest, bytes_max: int, *, openings: bool
) -> Fetched:
    with Bar(TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True),
             transient=True, disable=not sys.stderr.isatty()) as bar:  # fmt: skip
        task = bar.add_task("no round yet", total=None)
        return observe(
            sources, run_id, out, part=part, openings=openings, bytes_max=bytes_max,
            pause=lambda: time.sleep(POLL_S),
            on_round=lambda round_id: bar.update(task, description=f"round {round_id:,} is here"),
        )  # fmt: skip


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
