"""The wheel holds every package of every room, and nothing else installs a package named `assay`."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
NOT_SHIPPED = {"tests", "benchmarks"}


def packages_in_tree() -> set[str]:
    """Every folder with a tracked Python file, as it is imported."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    folders = {Path(name).parent for name in names if (ROOT / name).exists()}
    return {"assay." + ".".join(folder.parts) for folder in folders if folder.parts[0] not in NOT_SHIPPED}


def configuration() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file))


def test_every_package_of_the_tree_is_in_the_wheel() -> None:
    listed = set(configuration()["tool"]["setuptools"]["packages"])  # type: ignore[index]

    assert (
        listed - {"assay.contracts.artefacts", "assay.examples"} == packages_in_tree()
    )  # these have no code


def test_every_room_is_held_by_the_import_contracts() -> None:
    held = set(configuration()["tool"]["importlinter"]["root_packages"])  # type: ignore[index]

    assert held == {".".join(name.split(".")[:2]) for name in packages_in_tree()}


def test_every_room_says_that_it_is_typed() -> None:
    shipped = configuration()["tool"]["setuptools"]["package-data"]["*"]  # type: ignore[index]

    assert shipped == ["py.typed"]
    assert all((ROOT / name.split(".")[1] / "py.typed").exists() for name in packages_in_tree())


@pytest.mark.slow
def test_no_other_distribution_installs_a_package_named_assay() -> None:
    owners = {
        distribution.metadata["Name"]
        for distribution in importlib.metadata.distributions()
        if any(Path(str(file)).parts[0] == "assay" for file in distribution.files or ())
    }

    assert owners <= {"assay"}
