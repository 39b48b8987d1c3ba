"""`assay operator` reads what its operator allows, shows what was taken, and refuses what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli.main import app
from assay.cli.operator import fleet_config
from assay.fleet.config import write_state
from assay.fleet.plan import Stage, State
from assay.participant.files.record import OWN_RECORD, Role, write_record
from assay.protocol.errors import ConfigError
from tests.a_network import a_record
from tests.cli.test_process import a_file
from tests.cli.test_unit import settings
from tests.fleet.test_seats import a_log, a_round, a_seat

TABLE = "reserve = 0.25\nlots = 5_000\n"


def an_operator(tmp_path: Path, table: str = TABLE, role: Role = Role.NODE) -> Path:
    (tmp_path / "keys").mkdir(exist_ok=True)
    write_record(tmp_path / "keys" / OWN_RECORD, a_record("nadia", role, port=4005))
    file = a_file(tmp_path, threads="2")
    file.write_text(f"{file.read_text()}[operator]\n{table}")
    return file


def test_what_an_operator_allows_is_in_units_seconds_and_bytes(tmp_path: Path):
    more = "runs = 3\nmemory_gb = 8\ndisk_gb = 0.5\ndays = 9\nhours = 2\ntakes = 4\npatience_s = 60\n"
    more += "wait_s = 50\nabsence_s = 70\n"
    found = fleet_config(an_operator(tmp_path, TABLE + more + 'ports = 4100\ndata = ["sets"]\n'))
    bounds = found.bounds

    assert (bounds.reserve, bounds.lots_most) == (250_000, 5_000_000_000)
    assert (bounds.runs_most, bounds.memory_bytes, bounds.disk_bytes) == (3, 8 * 10**9, 5 * 10**8)
    assert (bounds.days_most, bounds.hours_least, bounds.takes_per_day, bounds.poor_s) == (9, 2, 4, 60)
    assert (bounds.wait_s, bounds.absence_s) == (50, 70)
    assert (found.ports, found.data, found.folder) == (4100, (tmp_path / "sets",), tmp_path / "runs")
    assert dict(found.node_lines)["threads"] == 2
    assert dict(found.node_lines)["replicas"] == 1


def test_what_is_left_out_is_what_the_machine_has(tmp_path: Path):
    found = fleet_config(an_operator(tmp_path))

    assert found.ports == 4005 and found.bounds.runs_most >= 1
    assert found.bounds.memory_bytes > 0 and found.bounds.disk_bytes > 0


@pytest.mark.parametrize(
    ("table", "role", "words"),
    [
        ("lots = 1\n", Role.NODE, "reserve"),
        ("reserve = 0.0000001\nlots = 1\n", Role.NODE, "at most 6 decimals in reserve and lots"),
        (TABLE + "more = 1\n", Role.NODE, "more"),
        (TABLE, Role.VERIFIER, "its keys are a verifier's, expected a node's"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, table: str, role: Role, words: str):
    with pytest.raises(ConfigError, match=words):
        fleet_config(an_operator(tmp_path, table, role))


def test_a_configuration_without_the_table_is_no_operators(tmp_path: Path):
    with pytest.raises(ConfigError, match="no table"):
        fleet_config(a_file(tmp_path))


def test_the_status_has_a_line_for_each_run_and_prints_no_control_characters(tmp_path: Path):
    file, folder = an_operator(tmp_path), tmp_path / "runs"
    seat = a_seat(name="\x1b[2Jbait\n", stage=Stage.RUNNING, pay=1_500_000, is_measured=True)
    write_state(folder, State(seats=(seat,), takes=(1,), avoided={"0x09": 2}))
    a_log(folder / seat.run_id.hex(), a_round(round=7, paid=2_000_000))

    done = CliRunner().invoke(app, ["operator", "show", str(file)])

    assert done.exit_code == 0, done.output
    line, last = done.output.splitlines()
    assert "\x1b" not in line and "?[2Jbait?" in line
    for words in ("running", "round 7", "1.500000 aUSD/h", "earned 2.000000", "lot 0.000100"):
        assert words in line
    assert last == "1 runs; 1 taken in a day; 1 runs and buyers avoided; NOT running"


def test_the_unit_of_an_operator_starts_its_process_and_leaves_it_time_to_leave_its_runs(tmp_path: Path):
    file = an_operator(tmp_path)
    done = CliRunner().invoke(app, ["unit", str(file), "--user", "assay"])

    found = settings(done.stdout)
    assert found["ExecStart"].endswith(f"operator up {file}")
    assert (found["KillMode"], found["TimeoutStopSec"]) == ("mixed", "600")
    assert f"{tmp_path}/runs" in found["ReadWritePaths"].split()
