"""Where anvil is not installed npm fetches it, once and whole."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from assay.devnet.anvil_binary import CONTRACTS, anvil_binary
from assay.protocol.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As an installed wheel has it: the package's files, and nothing that npm installed."""
    found = tmp_path / "contracts"
    found.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(CONTRACTS / name, found / name)
    return found


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of its own, empty at first."""
    found = tmp_path / "bin"
    found.mkdir()
    monkeypatch.setenv("PATH", str(found))
    return found


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with npm and node, and nothing else."""
    found = tmp_path / "bin"
    found.mkdir()
    for name in ("npm", "node"):
        where = shutil.which(name)
        if where is None:
            pytest.skip(f"{name} is not on PATH")
        (found / name).symlink_to(where)
    monkeypatch.setenv("PATH", str(found))
    return found / "npm"


@pytest.mark.slow
def test_an_anvil_with_another_hash_than_the_locks_is_not_kept(folder: Path, tmp_path: Path, npm: Path):
    lock = folder / "package-lock.json"
    packages = json.loads(lock.read_text())["packages"]
    known = packages["node_modules/@foundry-rs/anvil-linux-amd64"]["integrity"]
    lock.write_text(lock.read_text().replace(known, f"sha512-{'A' * 86}=="))

    with pytest.raises(ConfigError, match="fits this machine and the package lock"):
        anvil_binary(folder, tmp_path / "cache")

    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_a_missing_anvil_is_fetched_once_and_runs(folder: Path, tmp_path: Path, npm: Path):
    binary = anvil_binary(folder, tmp_path / "cache")

    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    assert "anvil" in said.stdout
    assert [one.name for one in (tmp_path / "cache").iterdir()] == [binary.parents[4].name]
    npm.unlink()
    npm.write_text("#!/bin/sh\nexit 9\n")
    npm.chmod(0o755)
    assert anvil_binary(folder, tmp_path / "cache") == binary  # it is not asked again


def test_without_npm_and_pip_the_words_say_what_to_install(folder: Path, tmp_path: Path, path: Path):
    with pytest.raises(ConfigError, match=r"there is no npm, and pip fetched none; .*install Foundry"):
        anvil_binary(folder, tmp_path / "cache", python=shutil.which("false", path="/bin:/usr/bin") or "")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_without_npm_pip_fetches_one_for_the_time_being(folder: Path, tmp_path: Path, path: Path):
    binary = anvil_binary(folder, tmp_path / "cache")

    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    (home,) = (tmp_path / "cache").iterdir()
    assert "anvil" in said.stdout and not (home / "node").exists()


@pytest.mark.parametrize(("script", "error"), [("exit 9", "status 9"), ("exit 0", "fits this machine")])
def test_what_was_not_fetched_whole_is_not_kept(
    folder: Path, tmp_path: Path, path: Path, script: str, error: str
):
    (path / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (path / "npm").chmod(0o755)
    with pytest.raises(ConfigError, match=error):
        anvil_binary(folder, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_named(folder: Path, tmp_path: Path, path: Path):
    (path / "npm").write_text("#!/bin/sh\n")
    (path / "npm").chmod(0o755)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be kept in"):
        anvil_binary(folder, tmp_path / "cache")
