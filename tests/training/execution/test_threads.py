"""Threads: chosen by the clock, once, and kept, because the class of every audit depends on them."""

from __future__ import annotations

import json
import logging
import time

import pytest
import torch

from assay.protocol.errors import ConfigError
from assay.training.execution import threads
from assay.training.execution.threads import AUTO, counts_to_try, fastest, prepare, time_threads

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _one_thread():
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({1: 1.0, 2: 8.0}, 1),  # shared cores
        ({1: 1.0, 2: 0.95}, 1),  # not worth another class
        ({1: 1.0, 2: 0.6, 4: 0.55}, 2),
        ({1: 1.0, 2: 0.6, 4: 0.4, 8: 0.2}, 8),
        ({1: 1.0, 2: 1.5, 4: 0.5}, 4),
        ({1: 1.0}, 1),
    ],
)
def test_more_threads_are_taken_only_where_they_save_a_tenth(seconds, chosen):
    assert fastest(seconds) == chosen


def test_powers_of_two_and_all_cores_are_tried():
    assert [counts_to_try(n) for n in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]


def test_each_count_is_timed_while_it_is_set():
    """Work that is slow with two threads, as on shared cores."""
    found = time_threads((1, 2), work=lambda: time.sleep(0.002 * torch.get_num_threads() ** 3))

    assert fastest(found) == 1
    assert found[2] > 4 * found[1]


def test_a_choice_is_logged_with_its_reason_kept_and_not_made_again(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "assay.training")
    monkeypatch.setattr(threads, "time_threads", lambda counts: {1: 1.0, 2: 0.5})

    assert prepare(tmp_path / "node", device="cpu", threads=AUTO) == 2

    assert torch.get_num_threads() == 2
    chosen = next(record for record in caplog.records if record.message == "threads chosen")
    assert chosen.threads == 2
    assert chosen.ms == {1: 1000.0, 2: 500.0}
    monkeypatch.setattr(threads, "time_threads", lambda counts: pytest.fail("measured again"))
    assert prepare(tmp_path / "node", device="cpu", threads=AUTO) == 2
    assert prepare(tmp_path / "node", device="cpu", threads=1) == 1  # a number that is written comes first


def test_a_real_probe_ends_and_chooses_among_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "PROBE_S", 0.05)

    assert prepare(tmp_path, device="cpu", threads=AUTO) in counts_to_try(threads.cores())
    assert json.loads((tmp_path / "threads.json").read_text())["threads"] == torch.get_num_threads()


@pytest.mark.parametrize("body", ["", "{}", '{"threads": 0}', '{"threads": "many"}', '{"threads": 99999}'])
def test_a_kept_choice_that_cannot_be_read_is_not_guessed(tmp_path, body):
    (tmp_path / "threads.json").write_text(body)

    with pytest.raises(ConfigError, match=r"threads.json: .*delete it to choose again"):
        prepare(tmp_path, device="cpu", threads=AUTO)
