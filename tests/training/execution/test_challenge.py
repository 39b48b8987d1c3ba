"""The challenge: one class has one fingerprint in every process, other kernels have others."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.protocol.params import ComputeSpec, Precision
from assay.training.execution.challenge import challenge_tokens, fingerprint
from assay.training.model.loss import FLOAT32_WHOLE, use_one_thread
from assay.training.model.presets import gpt_spec

pytestmark = pytest.mark.slow

FIRST = [255, 2, 235, 224, 231, 233, 234, 235]
ROOT = Path(__file__).parents[3]
CHILD = """
import sys, torch
from assay.protocol.params import ComputeSpec, Precision
from assay.training.execution.challenge import fingerprint
from assay.training.model.loss import use_threads
use_threads(int(sys.argv[2]))
if sys.argv[3] == "off":
    torch.backends.mkldnn.set_flags(False)
compute = ComputeSpec(dtype=Precision[sys.argv[1]], micro_sequences=0)
print(torch.backends.cpu.get_cpu_capability(), fingerprint(compute).hex())
"""


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


@functools.cache
def elsewhere(
    *, dtype: str = "FLOAT32", threads: int = 1, onednn: str = "on", **environment: str
) -> list[str]:
    """Capability and fingerprint of another process, asked once; nothing where the CPU cannot do it."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, dtype, str(threads), onednn],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return child.stdout.split() if child.returncode == 0 else []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [Precision.FLOAT32, Precision.BFLOAT16])
def test_two_processes_of_one_class_have_one_fingerprint(dtype):
    here = fingerprint(ComputeSpec(dtype=dtype, micro_sequences=0))

    assert here == fingerprint(ComputeSpec(dtype=dtype, micro_sequences=0))
    assert elsewhere(dtype=dtype.name)[1] == here.hex()


@pytest.mark.slow
def test_every_instruction_set_that_the_cpu_has_is_another_fingerprint():
    found = [elsewhere(ATEN_CPU_CAPABILITY=name) for name in ("default", "avx2", "avx512")]
    by_capability = {one[0]: one[1] for one in found if one}

    assert len(by_capability) >= 2, "this CPU has a single path"
    assert len(set(by_capability.values())) == len(by_capability)
    capability, here = elsewhere(dtype="FLOAT32")
    assert by_capability.get(capability) in {None, here}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["FLOAT32", "BFLOAT16"])
def test_without_onednn_it_is_another_fingerprint(dtype):
    if dtype == "BFLOAT16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN computes nothing in bfloat16 on this CPU, so leaving it out changes nothing")
    assert elsewhere(dtype=dtype, onednn="off")[1] != elsewhere(dtype=dtype)[1]


def test_precision_and_groups_are_other_fingerprints():
    variants = [
        FLOAT32_WHOLE,
        replace(FLOAT32_WHOLE, micro_sequences=4),
        ComputeSpec(dtype=Precision.BFLOAT16, micro_sequences=0),
        ComputeSpec(dtype=Precision.BFLOAT16, micro_sequences=4),
    ]

    assert len({fingerprint(compute) for compute in variants}) == len(variants)


def test_the_tokens_are_everywhere_the_same():
    tokens = challenge_tokens(gpt_spec(layers=1, width=64, heads=2, context=16), 3)

    assert tokens.shape == (8, 17) and tokens.dtype == np.int64
    assert tokens.min() >= 0 and tokens.max() < 256
    assert tokens[0, :8].tolist() == FIRST
    assert not np.array_equal(tokens, challenge_tokens(gpt_spec(layers=1, width=64, heads=2, context=16), 4))
