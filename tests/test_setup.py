"""Set-up on a machine that lacks something says the one line to type."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("bash", "sh", "dirname", "env", "cat", "sha256sum", "mktemp", "tail", "rm", "ls", "grep")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout and a PATH of nothing but a few tools, for a user who is not root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (folder / tool).symlink_to(found)
    (folder / "id").write_text("#!/bin/sh\necho 1000\n")
    (folder / "id").chmod(0o755)
    shutil.copy(ROOT / "setup.sh", tmp_path)
    return tmp_path


def set_up(machine: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "setup.sh"],
        cwd=machine,
        env={"PATH": str(machine / "bin"), "HOME": str(machine)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_python_it_says_how_to_get_it(machine: Path) -> None:
    done = set_up(machine)

    assert done.returncode == 2
    assert "sudo apt-get install python3" in done.stderr


def test_without_a_compiler_it_says_which_packages_to_install(machine: Path) -> None:
    python = Path(sys.executable).resolve()
    (machine / "bin" / "python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (machine / "bin" / "python3").chmod(0o755)

    done = set_up(machine)

    assert done.returncode == 2
    assert "please run:  sudo apt-get install" in done.stderr
    assert "build-essential" in done.stderr
    assert not (machine / ".venv").exists()
