"""Registry commands: show the registry entry of a delivered model, for people and for programs.

Room: cli (edge). They read without verifying: `assay run verify` checks the entry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.result import AsJson

registry_app = typer.Typer(no_args_is_help=True, help="Show the registry entry of a delivered model.")


@registry_app.callback()
def registry() -> None:
    """Show the registry entry of a delivered model."""


@registry_app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its bundle.")],
    as_json: AsJson = False,
) -> None:
    """Print the registry entry of a model: data, work, energy, participants, audits, payments, record.

    Example: assay registry show runs/quickstart
    """
    from assay.bundle.registry.lines import entry_lines, find_entry

    text, entry = find_entry(run)
    if as_json:
        typer.echo(text, nl=False)
        return
    for line in entry_lines(entry):
        typer.echo(line)
