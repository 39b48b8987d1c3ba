"""After the gradient every machine holds the same bits: here against big integers, and across settings."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.params import ModelSpec
from assay.testing.specs import a_rule
from assay.training.exact import (
    BASIS_BITS,
    BASIS_SS,
    apply_signs,
    initial_parameters,
)
from assay.training.layout import layout_of
from assay.training.model.presets import gpt_spec
from assay.training.optimiser.public_state import state_digest
from assay.training.optimiser.schedule import rate
from tests.child_process import PYTHONPATH
from tests.training.optimiser.test_outer import many_states
from tests.training.test_inverse import inverse_of, values

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "vectors" / "exact.json"
RULE = a_rule(warmup_rounds=5, lr_nano=2_000_000, floor_ppm=100_000, k=32)
TINY = gpt_spec(layers=1, width=64, heads=2, context=16)
QUICKSTART = gpt_spec(layers=4, width=128, heads=4, context=128)


def test_the_integer_basis_is_the_orthonormal_dct():
    scaled = BASIS_SS / (1 << BASIS_BITS)

    assert np.abs(scaled @ scaled.T - np.eye(64)).max() < 1e-3


def test_the_update_is_two_separately_rounded_operations():
    rng = np.random.default_rng(1)
    theta = rng.standard_normal(1000).astype(np.float32)
    signs = rng.integers(-1, 2, 1000).astype(np.int8)
    lr = np.float32(0.0017)

    moved = apply_signs(theta, signs, lr)

    by_hand = [np.float32(t) - np.float32(np.float32(s) * lr) for t, s in zip(theta, signs, strict=True)]
    assert moved.dtype == np.float32
    assert np.array_equal(moved.view(np.uint32), np.array(by_hand, np.float32).view(np.uint32))


# ---- frozen ----


def vectors() -> dict:
    """Everything that must never change, from integers alone."""
    dense = values(5, 4, 0.01)
    return {
        "learning_rate": [
            rate(RULE.outer.schedule, 60, r).tobytes().hex() for r in (0, 1, 4, 5, 6, 20, 32, 59, 60)
        ],
        "initial_parameters": {
            name: state_digest(initial_parameters(20261120, *_shapes(model))).hex()
            for name, model in (("tiny", TINY), ("quickstart", QUICKSTART))
        },
        "inverse_signs": hashlib.sha256(inverse_of(dense).tobytes()).hexdigest(),
        "applied": hashlib.sha256(
            apply_signs(
                np.arange(4096 * 4, dtype=np.float32) / 7, inverse_of(dense).reshape(-1), np.float32(0.002)
            )
        ).hexdigest(),
    }


def _shapes(model: ModelSpec):
    layout = layout_of(model)
    return layout.names, layout.shapes


def test_learning_rates_starting_points_and_transforms_are_the_frozen_ones():
    assert vectors() == json.loads(VECTORS.read_text())


def test_the_starting_point_is_what_it_says():
    layout = layout_of(QUICKSTART)
    theta = initial_parameters(1, layout.names, layout.shapes)

    assert theta.shape == (layout.parameters,) == (870_656,)
    for name, (at, shape) in layout.offsets().items():
        part = theta[at : at + math.prod(shape)]
        if len(shape) == 1:
            assert set(part.tolist()) == {1.0 if name.endswith("weight") else 0.0}, name
        else:
            assert abs(part.std() - 0.02) < 0.001, name
            assert abs(part.mean()) < 0.001, name
    assert not np.array_equal(theta, initial_parameters(2, layout.names, layout.shapes))


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_parts_of_the_starting_point_do_not_repeat(seed):
    layout = layout_of(TINY)
    theta = initial_parameters(seed, layout.names, layout.shapes)
    offsets = layout.offsets()
    (a, _), (b, _) = offsets["embed"], offsets["head"]

    assert not np.array_equal(theta[a : a + 4096], theta[b : b + 4096])


# ---- the same bytes whatever the machine is told to do ----

PROGRAM = """
import hashlib, sys, torch
import numpy as np
torch.set_num_threads(int(sys.argv[1]))
from tests.training.test_exact import RULE, vectors
from assay.training.transform.compress import transition
rng = np.random.default_rng(3)
before, spectrum = (rng.standard_normal((24, 4096)).astype(np.float32) for _ in range(2))
step = transition(RULE.compress, before, spectrum * np.float32(0.002))
parts = (step.after_BC, step.sent.index_BK, step.sent.value_BK, step.sent.blocks_B)
from tests.training.test_inverse import inverse_of, values
many = inverse_of(values(9, 200, 0.05))
print(vectors(), *(hashlib.sha256(part.tobytes()).hexdigest() for part in (*parts, many)))
from tests.training.optimiser.test_outer import many_states
print(many_states())
"""
SETTINGS = [
    {"threads": "1", "ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Prescott"},
    {"threads": "4", "ATEN_CPU_CAPABILITY": "avx2", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"},
    {"threads": "4", "ATEN_CPU_CAPABILITY": "avx512", "OPENBLAS_CORETYPE": "Sandybridge"},
]


@pytest.mark.slow
def test_the_same_bytes_under_any_threads_and_instruction_set():
    """Of a node's step, of the inverse transform, and of every kind of outer step."""
    outputs = set()
    for chosen in SETTINGS:
        threads = chosen["threads"]
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads), **chosen, "PYTHONPATH": PYTHONPATH}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, threads],
            env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        outputs.add(done.stdout)

    assert len(outputs) == 1
    assert outputs.pop().splitlines()[-1] == many_states()  # the outer steps, as here


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n")
