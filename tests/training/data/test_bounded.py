"""Bounded: what a child process cannot do within its limits is an error here, and nothing else of it is."""

from __future__ import annotations

import gc
import math
import operator
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from assay.protocol.errors import ConfigError
from assay.training.data import bounded as module
from assay.training.data.bounded import BoundedProcess, bounded
from assay.training.data.tokenizer import load_tokenizer


def test_calls_are_answered_one_after_the_other_by_one_process_and_errors_are_raised_here(tmp_path):
    child = BoundedProcess("it")

    with pytest.raises(ValueError, match="could not convert"):
        child.call(float, "x")
    with pytest.raises(ConfigError, match="nowhere: cannot be read"):
        child.call(load_tokenizer, tmp_path / "nowhere")
    assert child.call(os.getpid) == child.call(os.getpid) != os.getpid()


def test_threads_that_call_one_process_have_each_its_own_answers():
    child, numbers = BoundedProcess("it"), range(2_000)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(partial(child.call, operator.neg), numbers)) == [-one for one in numbers]


@pytest.mark.parametrize("limit", ["memory", "time", "neither"])
def test_a_process_beyond_a_limit_ends_and_says_which_it_had(limit, monkeypatch):
    monkeypatch.setattr(module, "CPU_S", 0.5)
    asked = {
        "memory": (operator.mul, "x", 5 << 30),
        "time": (math.factorial, 10**8),
        "neither": (os._exit, 0),
    }
    child = BoundedProcess("the file")

    for call in (asked[limit], (os.getpid,)):  # nor does it answer after that
        with pytest.raises(
            ValueError, match=r"that reads the file ended, which may take 4 GiB of memory and 0\.5 s"
        ):
            child.call(*call)


def test_an_answer_and_a_reason_are_bounded_too():
    child = BoundedProcess("it")
    with pytest.raises(ValueError) as told:
        child.call(float, "x" * 10**6)
    assert len(str(told.value)) == module.REASON_CHARS_MAX

    for call in ((operator.mul, "x", module.ANSWER_BYTES_MAX), (os.getpid,)):
        with pytest.raises(ValueError, match="that reads it ended"):
            child.call(*call)


def test_the_time_is_that_of_one_call(monkeypatch):
    monkeypatch.setattr(module, "CPU_S", 1.0)
    child = BoundedProcess("it")
    spent = 0.0

    while spent < 1.5:
        assert child.call(sum, range(10**6)) == 10**6 * (10**6 - 1) // 2
        spent = child.call(time.process_time)


def test_a_process_that_nobody_has_any_more_ends():
    pid = BoundedProcess("it").call(os.getpid)
    gc.collect()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nothing_is_imported_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "pickle.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)

    assert bounded("it", abs, -1) == 1
