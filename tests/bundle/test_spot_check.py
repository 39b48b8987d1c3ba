"""A reader draws steps of a run for itself; what it finds is what a replay of each finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.bundle.follow import BLOBS
from assay.bundle.read import read
from assay.bundle.replay import step as replay_step
from assay.bundle.replay.spot_check import spot_check, spot_lines, step_line
from assay.bundle.replay.step import ReplayReport, replay
from assay.participant.files.index import IntegrityError
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest
from tests.bundle.a_participant import a_participant


def test_a_draw_is_repeated_by_its_seed_and_each_step_is_replayed(recorded_run: Path) -> None:
    told: list[tuple[ReplayReport, int, int]] = []
    check = spot_check(recorded_run, 0.1, 7, on_step=lambda *step: told.append(step))

    again = spot_check(recorded_run, 0.1, 7)
    one = check.found[-1]
    assert check == again
    assert told == [(one, at + 1, len(check.found)) for at, one in enumerate(check.found)]
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


def test_a_run_that_goes_on_is_checked_as_far_as_its_parameters_are_here(
    recorded_run: Path, tmp_path: Path
) -> None:
    delivered, folder = read(recorded_run), a_participant(recorded_run, tmp_path, rounds=4)
    commits = [link.manifest.commits for link in delivered.links]

    check = spot_check(folder, 1.0, 7)

    # Of the newest round it is not decided yet who is audited.
    assert check.steps == sum(map(len, commits[:4])) and check.steps_here == sum(map(len, commits[:3]))
    assert [(one.round, one.node) for one in check.found] == [
        (at, one.commit.node) for at in range(3) for one in commits[at]
    ]
    last = check.found[-1]
    at_end = ReplayReport.of(replay(recorded_run, last.round, last.node.hex()))
    assert (last.verdict, last.faults, last.cosine) == (at_end.verdict, at_end.faults, at_end.cosine)
    assert f"; {len(commits[3])} could not be drawn" in next(spot_lines(check))

    (missing,) = blobs_of(folder, delivered.links[0].manifest.aggregate)
    missing.unlink()
    late = spot_check(folder, 1.0, 7)
    assert {one.round for one in late.found} == {0} and late.steps == check.steps

    (altered,) = blobs_of(folder, commits[0][0].commit.update)
    altered.write_bytes(b"another update")
    with pytest.raises(IntegrityError, match=r"\.blob: altered"):
        spot_check(folder, 1.0, 7)


def test_without_updates_or_before_a_second_round_there_is_nothing_to_draw(
    recorded_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="accepted steps none can be recomputed"):
        spot_check(a_participant(recorded_run, tmp_path / "early", rounds=1), 1.0, 1)

    bare = a_participant(recorded_run, tmp_path / "bare", rounds=6)
    for blob in (bare / BLOBS).iterdir():
        blob.unlink()
    with pytest.raises(ConfigError, match="accepted steps none can be recomputed"):
        spot_check(bare, 1.0, 1)


def test_the_newest_step_is_not_replayed_before_its_draw(recorded_run: Path, tmp_path: Path) -> None:
    folder = a_participant(recorded_run, tmp_path, rounds=6)
    node = read(recorded_run).links[5].manifest.commits[0].commit.node.hex()

    assert replay(folder, 4, node).commit.round == 4
    with pytest.raises(ConfigError, match="round 5 is the newest"):
        replay(folder, 5, node)


def blobs_of(folder: Path, name: Digest) -> list[Path]:
    """The file of a participant's blob."""
    return list((folder / BLOBS).glob(f"{name.hex()}.*"))
