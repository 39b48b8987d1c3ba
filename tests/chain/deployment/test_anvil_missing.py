"""Without the local chain, or without Node to start it, the words say what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.chain.deployment.anvil import find_anvil
from assay.protocol.errors import ConfigError


def test_without_anvil_the_install_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match=r"install Foundry.*npm install --omit=dev"):
        find_anvil(tmp_path)


def test_foundrys_own_anvil_is_taken_from_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "bin" / "anvil"
    binary.parent.mkdir()
    binary.write_text("")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(binary.parent))

    assert find_anvil(tmp_path) == binary


def test_a_launcher_without_node_asks_for_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "node_modules" / ".bin" / "anvil"
    launcher.parent.mkdir(parents=True)
    launcher.write_text("#!/usr/bin/env node\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="Node 20"):
        find_anvil(tmp_path)


def test_the_native_binary_needs_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "node_modules" / "@foundry-rs" / "anvil-linux-amd64" / "bin" / "anvil"
    binary.parent.mkdir(parents=True)
    binary.write_text("")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", "")

    assert find_anvil(tmp_path) == binary
