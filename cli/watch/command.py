"""Watch: `assay watch` shows one run while it goes on, on a terminal as a page, elsewhere once as lines.

Room: cli (edge).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.result import AsJson, show


def watch(
    what: Annotated[
        Path,
        typer.Argument(metavar="RUN|FILE.toml", help="A local network's folder, or your configuration."),
    ],
    as_json: AsJson = False,
) -> None:
    """Show a run: round, loss, who is drawn, audits, stake, pay, spend against budget, time left, events.

    Round trips are those that the process measures whose folder is read.

    On a terminal a page that follows the run: n, a, v and e show nodes, audits, verifiers and events, q ends
    it. Elsewhere, or with --json, it prints the present state once.

    Example: assay watch runs/quickstart
    """
    from assay.cli.watch.lines import picture_lines
    from assay.cli.watch.source import Source

    source = Source(what)
    if as_json or not sys.stdout.isatty():
        found = source.read()
        show(found, picture_lines(found), as_json=as_json)
        return
    from assay.cli.watch.page import WatchPage

    WatchPage(source.read, what.resolve().name if what.is_dir() else str(what)).run()
