"""Round trips: a process writes those to its connected members, and a reader takes no old or damaged file."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from assay.network.host import Host
from assay.participant.telemetry.round_trips import (
    EVERY_S,
    FILE,
    FORMAT,
    STALE_S,
    RoundTrips,
    read_round_trips,
    write_round_trips,
)
from assay.protocol.types import PeerId

NEAR, FAR, GONE, GUEST = (PeerId(bytes([at]) * 32) for at in range(4))
MEMBERS = frozenset({NEAR, FAR, GONE})


class AHost:
    """What a process measures of its peers."""

    def connected(self) -> frozenset[PeerId]:
        return frozenset({NEAR, FAR, GUEST})

    def latencies(self) -> dict[PeerId, float]:
        return {NEAR: 0.0012, FAR: 0.1, GONE: 0.5, GUEST: 0.7}


def write_for(path: Path, seconds: float) -> None:
    host: Any = AHost()

    async def some_time() -> None:
        with trio.move_on_after(seconds):
            await write_round_trips(path, MEMBERS, host_of(host))

    trio.run(some_time, clock=trio.testing.MockClock(autojump_threshold=0.05))


def host_of(fake: Any) -> Host:
    host: Host = fake
    return host


def test_a_reader_gets_what_the_process_measured_of_its_connected_members(tmp_path: Path) -> None:
    write_for(tmp_path / FILE, 1)

    found = read_round_trips(tmp_path / FILE, time.time())

    assert found is not None and found.us == {NEAR: 1200, FAR: 100_000}
    assert found.median_us == 50_600


def test_without_a_peer_there_is_no_median() -> None:
    assert RoundTrips(format=FORMAT, at_s=0, us={}).median_us is None


@pytest.mark.parametrize(
    ("age_s", "is_read"), [(0, True), (STALE_S, True), (STALE_S + 1, False), (-1, False)]
)
def test_what_an_ended_process_or_another_clock_left_is_not_shown(
    tmp_path: Path, age_s: int, is_read: bool
) -> None:
    (tmp_path / FILE).write_text(json.dumps({"format": FORMAT, "at_s": 1000, "us": {NEAR.hex(): 5}}))

    assert (read_round_trips(tmp_path / FILE, 1000 + age_s) is not None) == is_read


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"format": "assay/round-trips/2", "at_s": 1000, "us": {}}',
        '{"format": "assay/round-trips/1", "at_s": 1000, "us": {"00": "5"}}',
        '{"format": "assay/round-trips/1", "at_s": 1000}',
        '{"format": "assay/round-trips/1", "at_s": 1000, "us": {"00": -1}}',
        '{"format": "assay/round-trips/1", "at_s": 1000, "us": {"00": 1' + 400 * "0" + "}}",
    ],
)
def test_a_file_of_another_kind_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)

    assert read_round_trips(tmp_path / FILE, 1000) is None
    assert read_round_trips(tmp_path / "none", 1000) is None


def test_a_disk_that_takes_nothing_is_said_once_and_ends_no_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()

    with caplog.at_level(logging.WARNING):
        write_for(tmp_path / FILE, 3.5 * EVERY_S)

    assert [one.getMessage() for one in caplog.records] == ["round trips not written"]
    (tmp_path / FILE).rmdir()
    write_for(tmp_path / FILE, 1)
    assert (tmp_path / FILE).is_file()
