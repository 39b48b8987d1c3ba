"""Containers: the image's file is linted, pins what set-up pins, and every service runs without rights.

No daemon builds the image here. `make lint-containers` installs hadolint in an environment of its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "container"
OWN = ROOT / "build" / "hadolint" / "bin" / "hadolint"
FILE = (FOLDER / "Containerfile").read_text()


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return found


def last_stage() -> str:
    return FILE[FILE.rindex("\nFROM ") :]


def test_hadolint_finds_nothing_unexplained() -> None:
    hadolint = str(OWN) if OWN.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint: run 'make lint-containers'")

    done = subprocess.run([hadolint, FOLDER / "Containerfile"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_the_torch_and_compiles_the_step_that_set_up_does() -> None:
    set_up = (ROOT / "setup.sh").read_text()
    (torch,) = re.findall(r"^TORCH=(\S+)", set_up, re.MULTILINE)
    (compiled,) = re.findall(r"python\" -c '(import torch.*)'", set_up)

    assert re.findall(r"torch==\S+", FILE) == [torch]
    assert f"-c '{compiled}'" in FILE
    assert "-r requirements.lock" in FILE


def test_the_last_stage_has_no_compiler_and_its_user_is_the_one_of_every_service() -> None:
    (user,) = re.findall(r"^USER (\S+)$", last_stage(), re.MULTILINE)

    assert "gcc" in FILE and "gcc" not in last_stage()
    assert user.split(":")[0] not in ("0", "root")
    assert {one["user"] for one in services().values()} == {user}


def test_every_service_writes_to_its_folder_alone_and_has_no_rights() -> None:
    for name, one in services().items():
        assert one["read_only"] is True, name
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in one and "cap_add" not in one, name
        assert [volume.split(":")[1] for volume in one["volumes"]] == ["/state"], name


def test_each_process_is_started_as_the_command_line_has_it() -> None:
    from typer.testing import CliRunner

    from assay.cli.main import app

    for name, one in services().items():
        said = CliRunner().invoke(app, [*one["command"][:2], "--help"])
        assert said.exit_code == 0, (name, said.output)
