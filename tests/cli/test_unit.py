"""`assay unit`: a unit that systemd takes, which starts the right process and may write where it must."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli.main import app
from assay.cli.unit import COMMANDS, unit_text
from assay.participant.files.record import OWN_RECORD, Role, write_record
from assay.protocol.errors import ConfigError
from tests.a_network import a_record
from tests.cli.test_process import a_file

HOME = Path("/srv/assay")


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


@pytest.mark.parametrize("role", COMMANDS)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit_of_every_role(tmp_path, role):
    folder = tmp_path / "my node, 100%"
    folder.mkdir()
    file = tmp_path / f"assay-{role.lower()}.service"
    file.write_text(unit_text(folder / "config.toml", role, getpass.getuser(), [folder], is_on_gpu=False))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    mine = [line for line in done.stderr.splitlines() if file.name in line]
    assert mine == [], done.stderr


def test_a_broken_unit_is_noticed(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    file = tmp_path / "assay-broken.service"
    file.write_text(
        unit_text(HOME / "c.toml", "NODE", "root", [HOME], is_on_gpu=False).replace("Type=exec", "Typ=x")
    )

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    assert "Typ" in done.stderr


@pytest.mark.parametrize(("role", "words"), COMMANDS.items())
def test_a_unit_starts_the_process_of_its_role_and_not_again_where_a_person_has_to_mend(role, words):
    found = settings(unit_text(HOME / "c.toml", role, "assay", [HOME], is_on_gpu=False))

    assert found["ExecStart"].endswith(f"-m assay.cli.main {words} {HOME}/c.toml")
    assert (found["User"], found["Restart"], found["RestartPreventExitStatus"]) == (
        "assay",
        "on-failure",
        "2",
    )


def test_a_unit_writes_to_its_folders_once_each_and_sees_devices_only_if_it_needs_them():
    given = [HOME, Path("/mnt/other disk"), HOME]
    found = settings(unit_text(HOME / "c.toml", "VERIFIER", "assay", given, is_on_gpu=False))
    assert found["ReadWritePaths"] == f'{HOME} "/mnt/other disk"'
    assert found["ProtectSystem"] == "strict" and found["PrivateDevices"] == "yes"
    assert "PrivateDevices" not in unit_text(HOME / "c.toml", "NODE", "assay", given, is_on_gpu=True)


@pytest.mark.parametrize("name", ['a"b', "a$b", "a\\b", "a\nExecStart=/bin/sh"])
def test_a_name_that_would_end_its_line_or_word_is_refused(name):
    with pytest.raises(ConfigError, match="fit into no unit"):
        unit_text(HOME / name, "NODE", "assay", [HOME], is_on_gpu=False)
    with pytest.raises(ConfigError, match="fit into no unit"):
        unit_text(HOME / "c.toml", "NODE", name, [HOME], is_on_gpu=False)


def test_a_watcher_has_no_process_of_its_own():
    with pytest.raises(ConfigError, match="JUROR"):
        unit_text(HOME / "c.toml", "JUROR", "assay", [HOME], is_on_gpu=False)


def test_the_command_takes_role_and_folders_from_the_participants_own_files(tmp_path):
    (tmp_path / "keys").mkdir()
    record = a_record("vera", Role.VERIFIER, host="127.0.0.1")
    write_record(tmp_path / "keys" / OWN_RECORD, record)
    file = a_file(tmp_path, signed_mark='"/mnt/disk/signed.mark"')
    file.write_text(file.read_text() + 'folder = "state"\n')

    done = CliRunner().invoke(app, ["unit", str(file), "--user", "assay"])

    found = settings(done.stdout)
    assert found["ExecStart"].endswith(f"verifier run {file}")
    assert found["ReadWritePaths"] == f"{tmp_path}/state /mnt/disk"
