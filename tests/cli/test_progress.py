"""Progress: a person's terminal shows how far a long command has got, and a pipe gets nothing of it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_golden_run import ARCHIVE

SCRIPT = """
import sys, time
from assay.cli.progress import progress
with progress("rounds") as tell:
    for done in range(1, 31):
        time.sleep(0.05)
        tell(done, 60)
print("result")
"""


def terminal(command: list[str]) -> str:
    """What a command writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}):
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    return shown.decode()


@pytest.mark.slow
def test_a_terminal_shows_count_rate_and_time_left_and_only_the_result_in_the_end():
    shown = terminal([sys.executable, "-c", SCRIPT])

    assert "rounds" in shown and "30/60" in shown
    assert "/s" in shown and "0:00:0" in shown  # under ten seconds are left
    assert shown.rstrip().endswith("result")
    assert "\x1b[2K" in shown.rpartition("30/60")[2]  # the bar's line is cleared


def test_a_pipe_gets_the_result_alone():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("result\n", "")


@pytest.mark.slow
def test_a_long_command_shows_it(tmp_path: Path):
    subprocess.run(["tar", "xf", ARCHIVE, "-C", tmp_path], check=True)
    shown = terminal([sys.executable, "-m", "assay.cli.main", "run", "verify", str(tmp_path)])
    assert "rounds" in shown and re.search(r"m(\d+)/\1\x1b", shown) and "anchor" in shown


@pytest.mark.slow
def test_checking_an_order_shows_how_much_of_its_data_is_read(tmp_path: Path):
    (tmp_path / "text.txt").write_text("some words of a corpus\n" * 200_000)
    (tmp_path / "run.toml").write_text('[[data]]\nsource = "text.txt"\nlicence = "CC0-1.0"\n')
    shown = terminal([sys.executable, "-m", "assay.cli.main", "order", "check", str(tmp_path / "run.toml")])
    assert "bytes" in shown and "/4600000" in shown and "price" in shown
