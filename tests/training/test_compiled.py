"""Compiled functions work where nothing can be kept, and take only what they were made for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest

from assay.training.compiled import FILL_1, FLOAT, OPTIONS, READ_1, compile_all, compiled, floats
from tests.child_process import PYTHONPATH

ARRAYS = np.ones(4, np.float32), np.float32(2), np.zeros(4, np.float32)


def doubled(array_X, factor, out_X):
    for i in range(len(array_X)):
        out_X[i] = array_X[i] * factor


def test_without_a_folder_to_keep_code_in_it_is_compiled_all_the_same(monkeypatch):
    asked = []

    def njit(*signature, cache=False, **options):
        if OPTIONS.items() <= options.items():  # numba's own functions are compiled too
            asked.append(cache)
            if cache:
                raise RuntimeError("cannot cache function 'doubled': no locator available for file 'x.py'")
        return really(*signature, **options)

    really = numba.njit
    monkeypatch.setattr(numba, "njit", njit)
    made, out = compiled(None, READ_1, FLOAT, FILL_1)(doubled), np.zeros(3, np.float32)
    made(np.arange(3, dtype=np.float32), np.float32(2), out)

    assert asked == [True, False] and out.tolist() == [0, 2, 4]


def test_any_other_fault_of_the_compiler_is_heard(monkeypatch):
    def njit(*_, **__):
        raise RuntimeError("something else")

    monkeypatch.setattr(numba, "njit", njit)

    with pytest.raises(RuntimeError, match="something else"):
        compiled(None, READ_1, FLOAT, FILL_1)(doubled)(*ARRAYS)


@pytest.mark.parametrize(
    ("array", "out"),
    [
        (np.zeros(4, np.float64), np.zeros(4, np.float32)),
        (np.zeros(8, np.float32)[::2], np.zeros(4, np.float32)),
        (np.zeros(4, np.float32), np.zeros(8, np.float32)[::2]),
        (np.zeros(4, np.float32), np.zeros(4, np.float64)),
        (np.zeros((2, 2), np.float32), np.zeros(4, np.float32)),
    ],
)
def test_arrays_of_another_kind_are_refused(array, out):
    made = compiled(None, READ_1, FLOAT, FILL_1)(doubled)

    with pytest.raises(TypeError):
        made(array, np.float32(1), out)


def test_what_nobody_may_write_is_read_and_never_written():
    made, array = compiled(None, READ_1, FLOAT, FILL_1)(doubled), np.ones(4, np.float32)
    array.flags.writeable = False
    out = np.zeros(4, np.float32)

    made(array, np.float32(3), out)

    assert out.tolist() == [3, 3, 3, 3]
    with pytest.raises(TypeError):
        made(out, np.float32(3), array)


def test_floats_copies_only_what_cannot_be_read_as_it_is():
    fine = np.ones((2, 4), np.float32)

    assert floats(fine) is fine
    assert floats(fine[:, ::2]).flags.c_contiguous and floats(fine.astype(np.float64)).dtype == np.float32


@compiled(FLOAT, FLOAT)
def twice(number):
    return number + number


@compiled(FLOAT, FLOAT)
def four_times(number):
    return twice(twice(number))


def test_what_a_function_calls_is_compiled_with_it_and_by_whoever_asks_for_everything():
    assert four_times(np.float32(3)) == 12
    assert four_times.code.nopython_signatures and twice._code is not None

    once = compiled(FLOAT, FLOAT)(lambda number: number)
    assert once._code is None
    compile_all()
    assert once._code is not None


def test_threads_that_call_first_at_the_same_time_compile_once(monkeypatch):
    made, really, asked = compiled(FLOAT, FLOAT)(lambda number: number + 1), numba.njit, []

    def njit(*arguments, **options):
        asked.append(OPTIONS.items() <= options.items())
        return really(*arguments, **options)

    monkeypatch.setattr(numba, "njit", njit)
    start = threading.Barrier(4)

    def call():
        start.wait()
        assert made(np.float32(1)) == 2

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(call) for _ in range(4)]:
            done.result()

    assert sum(asked) == 1


def is_imported(package, *modules):
    """Whether a process that imports the modules has imported the package."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {', '.join(modules)}; print({package!r} in sys.modules)"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
    assert done.stdout in ("True\n", "False\n"), done.stderr
    return done.stdout == "True\n"


@pytest.mark.slow
def test_participants_import_no_compiler():
    services = ("assay.verifier.service.process", "assay.node.service", "assay.observer.watchtower")
    assert not is_imported("numba", *services)


@pytest.mark.slow
def test_processes_without_chain_or_keystore_do_not_import_py_ecc():
    # web3 imports it through eth_account, eth_keyfile does for keystores of BLS keys: 0.65 s of CPU.
    modules = ("cli.main", "participant.keys.keyring", "fleet.speed", "node.trainer", "verifier.audit.worker")

    assert not is_imported("py_ecc", *(f"assay.{module}" for module in modules))
