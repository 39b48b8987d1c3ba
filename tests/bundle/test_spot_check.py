"""A reader draws steps of a finished run for itself; what it finds is what a replay of each finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.bundle import replay_step
from assay.bundle.read import read
from assay.bundle.replay_step import ReplayReport, replay
from assay.bundle.spot_check import spot_check, spot_lines, step_line
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest


def test_a_draw_is_repeated_by_its_seed_and_each_step_is_replayed(recorded_run: Path) -> None:
    told: list[ReplayReport] = []
    check = spot_check(recorded_run, 0.1, 7, on_step=told.append)

    again = spot_check(recorded_run, 0.1, 7)
    one = check.found[-1]
    assert check == again and tuple(told) == check.found
    assert one == ReplayReport.of(replay(recorded_run, one.round, one.node.hex()))
    assert check.steps == sum(len(link.manifest.commits) for link in read(recorded_run).links)
    assert check.is_ok and f"{len(told)} of {check.steps}" in next(spot_lines(check))
    assert f"round {one.round:>6}" in step_line(one)


def test_other_seeds_draw_other_steps_and_never_none(recorded_run: Path) -> None:
    drawn = {
        tuple((one.round, one.node) for one in spot_check(recorded_run, 1e-9, seed).found)
        for seed in range(4)
    }

    assert all(len(steps) == 1 for steps in drawn) and len(drawn) > 1


def test_a_step_on_another_batch_is_found(recorded_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_step, "batch_root", lambda *_: Digest(bytes(32)))

    check = spot_check(recorded_run, 1e-9, 1)

    assert not check.is_ok and "FAULT batch root" in step_line(check.found[0])
    assert "1 false" in list(spot_lines(check))[1]


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.01])
def test_what_is_no_chance_is_refused(rate: float, recorded_run: Path) -> None:
    with pytest.raises(ConfigError, match="more than 0 and at most 1"):
        spot_check(recorded_run, rate, 1)
