"""Help: every command is in the panel of the people it is for, shows an example, and fits its terminal."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import CliRunner
from rich.markup import render
from typer.main import get_command

from assay.cli.main import AUDITOR, BUYER, DEVELOPER, OPERATOR
from tests.commands import COMMANDS, leaves
from tests.test_guides import parsed

ROOT = Path(__file__).parents[2]
PANELS = {OPERATOR, AUDITOR, BUYER, DEVELOPER}
COLOUR = re.compile(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;)[0-9;]*m")


def lacking(root: Any) -> list[str]:
    """What the help of a command tree lacks: one line for each command without a panel or an example."""
    found = [
        f"{name}: no panel"
        for name, command in root.commands.items()
        if not command.hidden and command.rich_help_panel not in PANELS
    ]
    for name, command in leaves(root):
        if f"Example: assay {name}" not in (command.help or ""):
            found.append(f"{name}: no example")
    return found


def test_every_command_has_a_panel_and_an_example():
    assert lacking(COMMANDS) == []


def test_a_command_without_them_is_noticed():
    other = typer.Typer()
    other.command("bare")(lambda: None)
    other.command("full", help="Do it.\n\nExample: assay full", rich_help_panel=BUYER)(lambda: None)

    assert lacking(get_command(other)) == ["bare: no panel", "bare: no example"]


@pytest.mark.parametrize("name", [name for name, _ in leaves()])
def test_no_word_of_a_help_is_taken_for_markup(name: str):
    (command,) = [command for other, command in leaves() if other == name]
    texts = [command.help, *(one.help for one in command.params)]

    assert [render(text).plain for text in texts if text] == [text for text in texts if text]


@pytest.mark.parametrize("name", [name for name, _ in leaves()])
def test_an_example_is_a_command_that_the_command_line_takes(name: str):
    (command,) = [command for other, command in leaves() if other == name]
    (example,) = re.findall(r"Example: assay (.*)", command.help, re.DOTALL)
    words = shlex.split(example)

    assert parsed(words) == name
    assert [word for word in words if word.startswith("examples/") and not (ROOT / word).exists()] == []


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("name", ["", *(name for name, _ in leaves())])
def test_help_fits_a_narrow_terminal(name: str, width: int):
    terminal = {"COLUMNS": str(width), "NO_COLOR": "1"}
    found = CliRunner().invoke(COMMANDS, [*name.split(), "--help"], env=terminal)

    assert found.exit_code == 0
    assert max(map(len, found.output.splitlines())) <= width
    assert not COLOUR.search(found.output)


def on_a_terminal(*words: str, columns: int, **environment: str) -> str:
    """What a command writes to a terminal of its own."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "assay.cli.main", *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65_536):
            said += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    return said.decode()


@pytest.mark.slow
def test_colours_are_for_terminals_whose_owner_wants_them():
    coloured = on_a_terminal("stake", "--help", columns=40)
    plain = on_a_terminal("stake", "--help", columns=40, NO_COLOR="1")

    assert COLOUR.search(coloured)
    assert not COLOUR.search(plain)
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in plain.splitlines()) <= 40


@pytest.mark.slow
def test_a_table_folds_on_a_narrow_terminal_and_a_pipe_gets_plain_text():
    narrow = on_a_terminal("audit", "odds", columns=40, NO_COLOR="1")
    piped = subprocess.run(
        [sys.executable, "-m", "assay.cli.main", "audit", "odds"], capture_output=True, text=True, check=True
    ).stdout

    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in narrow.splitlines()) <= 40
    assert "\x1b" not in piped and "detected within the run" in piped
