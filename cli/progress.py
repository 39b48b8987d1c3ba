"""Progress: a bar on standard error while a command works for longer than a moment.

Room: cli (edge: standard error). To a pipe or a file nothing is written, so what is read by programs stays as
it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

Tell = Callable[[int, int], None]  # how much is done, and of how much


@contextmanager
def progress(what: str) -> Iterator[Tell]:
    """Show how far a command has got, how fast it goes and how long it will take.

    Args:
        what: The things that are counted, such as "rounds".
    """
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    ) as bar:  # fmt: skip
        task = bar.add_task(what, total=None)

        def tell(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)

        yield tell


class _Rate(ProgressColumn):
    """How many a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.3g}/s")
