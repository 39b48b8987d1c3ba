"""A machine's speed is measured once by a process of its own and kept; what is no speed is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.fleet.speed import SPEED, flop_per_s, kept_flop_per_s
from assay.protocol.errors import ConfigError


def a_config(folder: Path, device: str = "cpu") -> Any:
    return SimpleNamespace(folder=folder, base=SimpleNamespace(device=device, threads=1))


@pytest.mark.slow
def test_it_is_measured_once_and_then_kept(tmp_path: Path) -> None:
    config = a_config(tmp_path / "runs")
    found = trio.run(kept_flop_per_s, config)

    assert 10**7 < found < 10**15  # any processor of one thread: a unit too small or too large is outside
    (config.folder / SPEED).write_text("17\n")
    assert trio.run(kept_flop_per_s, config) == 17


@pytest.mark.slow
def test_a_device_that_is_none_is_named_by_the_process_that_tried_it() -> None:
    with pytest.raises(ConfigError, match=r"speed could not be measured: .*abacus"):
        trio.run(flop_per_s, "abacus", 1)


@pytest.mark.parametrize("text", ["", "0", "-3", "fast", "1.5", "\u0663"])
def test_what_was_kept_and_is_no_speed_is_refused_with_its_mend(tmp_path: Path, text: str) -> None:
    (tmp_path / SPEED).write_text(text)

    with pytest.raises(ConfigError, match="expected a number above 0; delete it to measure again"):
        trio.run(kept_flop_per_s, a_config(tmp_path))
