"""Examples: what is installed is what the repository has, and orders load where they are written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from assay.orders.check import check_order
from assay.orders.examples import write_examples
from assay.orders.load import load_order
from assay.orders.toml import tomllib
from assay.protocol.errors import ConfigError
from tests.test_packaging import ROOT, configuration


def tracked() -> dict[str, Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT / "examples", capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return {name: ROOT / "examples" / name for name in listed}


def test_all_examples_are_written_as_they_are(tmp_path: Path) -> None:
    found = write_examples(tmp_path / "new" / "examples")

    assert set(tracked()) <= set(found.files)
    for name, path in tracked().items():
        assert (tmp_path / "new" / "examples" / name).read_bytes() == path.read_bytes()
    assert load_order(tmp_path / "new" / "examples" / "quickstart.toml").run.name == "quickstart"


def test_all_of_them_train_on_what_is_there_wherever_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "diary.txt").write_text("nobody's business\n" * 10_000)
    folder = tmp_path / "examples"
    written = write_examples(folder).files
    orders = [folder / name for name in written if name.endswith(".toml") and "scenario" not in name]

    for path in orders:
        named = tomllib.loads(path.read_text())
        sources = [one["source"] for one in named.get("data", [])]
        assert all(source == "stdlib" or source in written for source in sources), path.name
        if path.parent == folder and "base" not in named.get("model", {}):
            check_order(path)


def test_all_of_them_are_in_the_wheel() -> None:
    patterns = configuration()["tool"]["setuptools"]["package-data"]["assay.examples"]  # type: ignore[index]
    packed = {path for pattern in patterns for path in (ROOT / "examples").glob(pattern)}

    assert set(tracked().values()) <= packed


def test_nothing_is_written_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("x")
    with pytest.raises(ConfigError, match="has something in it"):
        write_examples(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_examples(tmp_path / "mine.toml" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
