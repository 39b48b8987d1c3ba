"""The page on installing says what pyproject.toml says, and its light installation does what it promises."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_golden_run import golden_run  # noqa: F401  a fixture
from tests.test_packaging import ROOT, configuration

PAGE = (ROOT / "docs/install.md").read_text()
LIGHT = PAGE.partition("## Only to check")[2]
WITHOUT = """import sys
sys.modules.update(dict.fromkeys({absent!r}))
sys.argv = ["assay", *{words!r}]
from assay.cli.main import run
run()"""


def test_page_metadata_and_set_up_name_the_same_pythons():
    project = configuration()["project"]
    told = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))

    assert re.findall(r"^\| (3\.\d+)", PAGE, re.MULTILINE) == told
    assert project["requires-python"] == f">={told[0]}"
    assert re.findall(r"python(3\.\d+)", (ROOT / "setup.sh").read_text()) == told[::-1]


@cache
def absent() -> list[str]:
    """Modules of this environment that the page's light installation does not bring."""
    (line,) = re.findall(r"^pip install (blake3 .*)$", LIGHT, re.MULTILINE)
    brought, left = set(), line.split()
    while left:
        name = canonicalize_name(left.pop())
        if name in brought:
            continue
        brought.add(name)
        try:
            needed = map(Requirement, requires(name) or ())
        except PackageNotFoundError:  # of another Python or system
            continue
        left += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [
        module
        for module, owners in packages_distributions().items()
        if module != "assay" and not {canonicalize_name(owner) for owner in owners} & brought
    ]


def without(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process that cannot import what the light installation lacks."""
    script = WITHOUT.format(absent=absent(), words=words)
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("line", re.findall(r"^assay (.*?)(?: +#.*)?$", LIGHT, re.MULTILINE))
def test_a_light_installation_runs_the_commands_of_the_page(golden_run: Path, line: str):  # noqa: F811
    words = shlex.split(line.replace("runs/quickstart", "."))

    done = without(words, golden_run)

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_command_that_needs_more_says_which_package(golden_run: Path):  # noqa: F811
    done = without(["run", "verify", "."], golden_run)

    assert done.returncode == 2
    assert re.fullmatch(r"assay: the package .* is not installed, .*\n", done.stderr)
