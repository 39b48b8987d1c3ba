"""Every rule gives the same bytes on whatever kernels and threads a machine has, and in any order."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found]

from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.training.codec.wire import Update, encode_aggregate
from assay.verifier.aggregation.names import RULE_NAMES
from assay.verifier.aggregation.registry import DECODED, decoded_rule_of, rule_of
from assay.verifier.aggregation.reputation import Reputation, observe, scores_of
from tests.child_process import PYTHONPATH

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
BLOCKS, K, NODES = 70, 32, 7
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
MACHINES = {
    "four threads": dict.fromkeys(THREADS, "4"),
    "default kernels": {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "Haswell"},
    "numpy without vectors": {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX"},
}

if __cpu_features__["AVX512_SKX"]:
    MACHINES["avx512"] = {"ATEN_CPU_CAPABILITY": "avx512", "OPENBLAS_CORETYPE": "SkylakeX"}


def an_update(seed: int, *, has_amplitude: bool) -> Update:
    rng = np.random.default_rng(seed)
    blocks = np.flatnonzero(rng.random(BLOCKS) < 0.95)
    index = np.array([np.sort(rng.choice(300, K, replace=False)) for _ in blocks], np.int64)
    if not has_amplitude:
        return Update(blocks, index, rng.choice(np.array([-1, 1], np.int8), index.shape))
    value = np.rint(rng.standard_normal(index.shape) * 2**18).astype(np.int32)
    return Update(blocks, index, value, rng.integers(-44, -38, len(blocks)), np.full(len(blocks), 128))


def fingerprint(order_seed: int) -> str:
    """Digest of what all rules make of the same updates, on both kinds of wire."""
    whole = hashlib.sha256()
    for has_amplitude in (False, True):
        items = [(PeerId(bytes([n]) * 32), an_update(n, has_amplitude=has_amplitude)) for n in range(NODES)]
        random.Random(order_seed).shuffle(items)
        updates = dict(items)
        for name in RULE_NAMES:
            if name != "trimmed-mean-implied":  # these updates are too sparse for it: it refuses
                result = rule_of(name, 1, b"public")(updates, BLOCKS)
                whole.update(encode_aggregate(result, BLOCKS, has_scale=has_amplitude))
        for name in DECODED:
            whole.update(decoded_rule_of(name, 1)(updates, BLOCKS).tobytes())
        reputation = Reputation()
        for _ in range(3):
            reputation = observe(reputation, updates, BLOCKS)
        whole.update(repr(scores_of(reputation)).encode())
    return whole.hexdigest()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_arrival_order_does_not_change_a_byte(order):
    assert fingerprint(order) == fingerprint(0)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_threads_and_kernels_do_not_change_a_byte(machine):
    environment = {**os.environ, **dict.fromkeys(THREADS, "1"), **MACHINES[machine], "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=540
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == fingerprint(0)


def test_updates_fit_their_blocks():
    """The fingerprint is of updates that a decoder would let through."""
    one = an_update(0, has_amplitude=True)

    assert np.all(np.diff(one.index_BK, axis=1) > 0)
    assert one.index_BK.max() < BLOCK_SIZE
    assert np.abs(one.value_BK).max() * 2.0 ** one.exponent_B.max() < 16


if __name__ == "__main__":
    print(fingerprint(0))
