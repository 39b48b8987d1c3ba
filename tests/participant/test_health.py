"""Health: a process checks itself at its start and hourly, says each change once, survives a broken check."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from assay.participant.checks import Check, free_memory
from assay.participant.config import Participant
from assay.participant.health import CHECK_S, watch_health
from assay.participant.telemetry.readings import Readings
from assay.protocol.errors import Unavailable

GOOD = Check(name="gas", fault=None, found="1.0 of the chain's coin", mend="send it more")
POOR = Check(name="gas", fault="0xab holds 5 wei", found="0.0", mend="send it more")
POORER = Check(name="gas", fault="0xab holds 4 wei", found="0.0", mend="send it more")


def said_after(
    found: list[list[Check] | Exception], caplog: pytest.LogCaptureFixture
) -> tuple[list[tuple[str, str]], Readings, list[float]]:
    """What a process logs that finds these one after another, its readings, and its times in seconds."""
    me: Any = SimpleNamespace(config=None, readings=Readings())
    times: list[float] = []
    waiting = iter(found)

    async def an_hour_each() -> None:
        start = trio.current_time()

        def look(config: object) -> list[Check]:
            times.append(round(trio.from_thread.run_sync(trio.current_time) - start))
            one = next(waiting)
            if isinstance(one, Exception):
                raise one
            return one

        with trio.move_on_after(CHECK_S * (len(found) - 0.5)):
            await watch_health(participant(me), look)

    with caplog.at_level(logging.INFO, logger="assay.participant.health"):
        trio.run(an_hour_each, clock=trio.testing.MockClock(autojump_threshold=0.05))
    lines = [(one.getMessage(), one.levelname) for one in caplog.records]
    return lines, me.readings, times


def participant(fake: Any) -> Participant:
    found: Participant = fake
    return found


def test_a_fault_is_said_once_until_it_is_good_again(caplog: pytest.LogCaptureFixture) -> None:
    lines, readings, times = said_after([[GOOD], [POOR], [POORER], [GOOD], [POOR]], caplog)

    assert lines == [("check failed", "WARNING"), ("check good again", "INFO"), ("check failed", "WARNING")]
    assert readings.checks == {"gas": "0xab holds 5 wei"}
    assert times == [0, 3600, 7200, 10800, 14400]
    first = caplog.records[0].__dict__
    assert (first["check"], first["reason"], first["mend"]) == ("gas", "0xab holds 5 wei", "send it more")


@pytest.mark.parametrize("broken", [Unavailable("no answer from the chain"), OSError(5, "disk gone")])
def test_checks_that_cannot_be_made_end_nothing_and_are_said_once(
    broken: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    lines, readings, _ = said_after([[POOR], broken, broken, [POOR], broken], caplog)

    assert [line for line, _ in lines] == ["check failed", "checks not made", "checks not made"]
    assert readings.checks == {"gas": "0xab holds 5 wei"}, "what was last known stays"


def test_memory_counts_what_the_disk_cache_would_give_back(tmp_path: Path) -> None:
    table = tmp_path / "meminfo"
    table.write_text("MemTotal: 8000 kB\nMemFree:   10 kB\nMemAvailable:    4096 kB\n")

    assert free_memory(table) == 4 << 20
    assert free_memory(tmp_path / "missing") > 0
