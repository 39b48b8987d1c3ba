"""A node's process is kept up, ended when it is not wanted, and never runs twice in one folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from assay.fleet import children as tested
from assay.fleet.children import Child, Children
from assay.fleet.config import holding
from assay.fleet.seats import LOG, LOG_BYTES_MAX, RUNNING
from assay.protocol.types import Digest

RUN = Digest(bytes([5]) * 32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / RUN.hex()
    made.mkdir()
    return made


def a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """What runs in place of a node."""
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("sys.executable", str(path))


def kept_up(tmp_path: Path, until) -> Child:
    """Want one process until this is true of it; what is known of it then."""

    async def main() -> Child:
        async with trio.open_nursery() as nursery:
            config = SimpleNamespace(seat_folder=lambda run_id: tmp_path / run_id.hex())
            found = Children(config, nursery, lambda: None)
            found.want([RUN])
            with trio.fail_after(20):
                while not until(found.of(RUN)):
                    await trio.sleep(0.01)
            child = found.of(RUN)
            found.want([])
            with trio.fail_after(20):
                while child.pid is not None:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        return child

    return trio.run(main)


def test_a_process_that_ends_well_is_done_and_not_started_again(tmp_path, folder, monkeypatch):
    a_program(tmp_path, monkeypatch, 'echo "$@" >&2')
    child = kept_up(tmp_path, lambda one: one.is_done)

    assert (child.starts, child.fault) == (1, None)
    assert (folder / LOG).read_text().strip() == f"-m assay.cli.main node run {folder}/config.toml --tethered"


def test_a_process_that_dies_is_started_again(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(tested, "FIRST_S", 0.01)
    a_program(tmp_path, monkeypatch, f"echo x >>{tmp_path}/times; [ $(wc -l <{tmp_path}/times) = 3 ]")
    child = kept_up(tmp_path, lambda one: one.is_done)

    assert (child.starts, child.fault) == (3, None)


def test_a_process_that_somebody_has_to_mend_is_told_by_its_last_words(tmp_path, folder, monkeypatch):
    a_program(tmp_path, monkeypatch, 'echo "config.toml: no keys" >&2; exit 2')
    child = kept_up(tmp_path, lambda one: one.fault is not None)

    assert (child.fault, child.is_done, child.starts) == ("config.toml: no keys", False, 1)


def test_a_process_that_is_not_wanted_any_more_is_ended_also_if_it_does_not_listen(
    tmp_path, folder, monkeypatch
):
    monkeypatch.setattr(tested, "STOP_S", 0.2)
    a_program(tmp_path, monkeypatch, f"trap '' TERM; echo $$ >{tmp_path}/pid; while :; do sleep 0.05; done")
    kept_up(tmp_path, lambda one: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())

    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_no_second_process_runs_in_a_folder_whose_first_has_not_ended(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(tested, "FIRST_S", 0.01)
    a_program(tmp_path, monkeypatch, f"touch {tmp_path}/started")
    with holding(folder / RUNNING, "another"):

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                config = SimpleNamespace(seat_folder=lambda run_id: folder)
                Children(config, nursery, lambda: None).want([RUN])
                await trio.sleep(0.3)
                nursery.cancel_scope.cancel()

        trio.run(main)
        assert not (tmp_path / "started").exists()
    assert kept_up(tmp_path, lambda one: one.is_done).starts == 1


def test_a_log_that_has_grown_is_put_aside_at_a_start(tmp_path, folder, monkeypatch):
    (folder / LOG).touch()
    os.truncate(folder / LOG, LOG_BYTES_MAX)
    a_program(tmp_path, monkeypatch, "echo new >&2")
    kept_up(tmp_path, lambda one: one.is_done)
    assert (folder / LOG).stat().st_size == LOG_BYTES_MAX + 4 and not (folder / f"{LOG}.1").exists()

    kept_up(tmp_path, lambda one: one.is_done)
    assert (folder / LOG).read_text() == "new\n"
    assert (folder / f"{LOG}.1").stat().st_size == LOG_BYTES_MAX + 4


def test_a_process_that_dies_at_once_is_started_again_ever_more_slowly(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(tested, "FIRST_S", 0.05)
    monkeypatch.setattr(tested, "MOST_S", 0.3)
    a_program(tmp_path, monkeypatch, "exit 1")
    waits = []
    monkeypatch.setattr(trio, "sleep", noting(waits))
    kept_up(tmp_path, lambda one: one.starts == 6)

    assert waits[:5] == [0.05, 0.1, 0.2, 0.3, 0.3]


def test_a_process_that_had_run_for_a_while_is_started_again_soon(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(tested, "FIRST_S", 0.05)
    monkeypatch.setattr(tested, "MOST_S", 60.0)
    monkeypatch.setattr(tested, "STEADY_S", -1.0)  # as if it had
    a_program(tmp_path, monkeypatch, "exit 1")
    waits = []
    monkeypatch.setattr(trio, "sleep", noting(waits))
    kept_up(tmp_path, lambda one: one.starts == 4)

    assert waits[:3] == [0.05, 0.05, 0.05]


def noting(waits):
    """A sleep that notes how long the keeper waits between two starts."""
    sleep = trio.sleep

    async def noted(seconds: float) -> None:
        if seconds != 0.01:  # the test's own
            waits.append(seconds)
        await sleep(seconds)

    return noted
