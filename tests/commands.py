"""The command line as a tree of commands: built once, because that takes as long as a test of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from assay.cli.main import app

COMMANDS: Any = get_command(app)


def leaves(command: Any = COMMANDS, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that can be run, by its full name."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, inner in command.commands.items():
        yield from leaves(inner, f"{name} {word}".strip())
