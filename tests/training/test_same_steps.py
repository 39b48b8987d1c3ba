"""The reference gradient, and from a gradient to what is sent: the same bits on every processor."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from assay.protocol.params import PPM, ComputeSpec, Family, Precision
from assay.protocol.types import Digest
from assay.testing.specs import a_rule
from assay.training.compiled import OPTIONS, Compiled
from assay.training.exact import initial_parameters
from assay.training.execution.challenge import challenge_tokens
from assay.training.layout import Layout, layout_of
from assay.training.model.presets import gpt_spec, llama_spec
from assay.training.optimiser.inner import fresh, inner_step
from assay.training.reference import product, rows
from assay.training.reference.gradient import reference_loss_and_gradient
from assay.training.transform import blocked_dct as forward
from assay.training.transform import compress, equalise, inverse
from assay.training.transform import dct as cosine
from assay.training.transform import top_k as largest
from assay.training.transform.compress import gradient_blocks, in_basis, transition, work_sketch
from tests.child_process import PYTHONPATH

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VECTOR = ROOT / "tests" / "vectors" / "step.json"
LAYOUT = Layout(("a", "b", "c", "d"), ((130, 576), (128, 192), (37,), (64,)))
VECTOR_OF_5001 = Layout(("a",), ((5001,),))
FUSED_QKV = Layout(("embed", "a.qkv", "a.norm", "a.down"), ((7, 70), (3 * 70, 70), (70,), (70, 131)))
ODD = Layout(("a", "b", "c"), ((37, 201), (100, 67), (5,)))  # neither rows nor columns by the eight
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
MACHINES = {  # beside this one as it is, which the test above them takes
    "no processor's own instructions": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
    "default kernels": {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Prescott"},
    "four threads": dict.fromkeys(THREADS, "4"),
    "numpy without vectors": {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX"},
}
if platform.machine() == "x86_64":
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    if "avx2" in flags:  # the first with fused products
        MACHINES["haswell"] = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}
FUSED = re.compile(r"\b(vfn?m(add|sub)\w*|fn?m(add|sub)|fml[as])\b")
COMPILED = [
    one
    for module in (compress, cosine, equalise, forward, inverse, largest, product, rows)
    for one in vars(module).values()
    if type(one) is Compiled and one.__module__ == module.__name__
]


def numbers(name: str, count: int) -> np.ndarray:
    """Floats of many sizes that every machine draws alike."""
    whole = np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * count), "<i4").astype(np.float64)
    return np.ldexp(whole, -31 - np.arange(count) % 13).astype(np.float32)


def reference_digests() -> dict[str, str]:
    """Of loss and gradient of every family in two groups, in sizes that fit no vector."""
    compute, found = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2), {}
    llama = llama_spec(layers=2, width=60, heads=6, kv_heads=2, hidden=77, context=37, vocabulary=97)
    for model in (
        gpt_spec(layers=2, width=44, heads=4, context=37, vocabulary=101, hidden=75, is_tied=True),
        llama,
        replace(llama, family=Family.QWEN2),
        replace(llama, family=Family.QWEN3, head_width=14),
        replace(llama, family=Family.GEMMA, head_width=14, is_tied=True),
    ):
        layout = layout_of(model)
        theta = initial_parameters(7, layout.names, layout.shapes) * np.float32(4)
        for name, part in layout.views(theta).items():
            if model.family is Family.QWEN2 and name.endswith(".bias"):
                part[:] = numbers(name, len(part))
        loss, gradient = reference_loss_and_gradient(
            model, layout, theta, challenge_tokens(model, 1, 3), compute=compute
        )
        found[f"reference loss, {model.family.name}"] = loss.hex()
        found[f"reference gradient, {model.family.name}"] = hashlib.sha256(gradient.tobytes()).hexdigest()
    return found


def inner_digests() -> dict[str, str]:
    """Of parameters and moments after three clipped steps of AdamW, and of Muon."""
    found, names = {}, ("theta", "mean", "square")
    for name, method, layout in (("adamw", "sparseloco", VECTOR_OF_5001), ("muon", "muloco", FUSED_QKV)):
        local, size = a_rule(method, clip_micro=PPM // 2).local, layout.parameters
        state = fresh(local, numbers("theta", size))
        for step in range(3):
            slope = numbers(f"g{step}", size)
            state = inner_step(local, layout, np.float32(1e-3), state, state.theta_P, slope)
        for part, values in zip(names, (state.theta_P, *state.moments), strict=True):
            found[f"{name}, {part}"] = hashlib.sha256(values.tobytes()).hexdigest()
    return found


def digests() -> dict[str, str]:
    """Of the reference, and of every stage of two steps, gradient clipped and not, and equalised."""
    found = reference_digests() | inner_digests()
    for clip, is_equalised in ((0, False), (PPM, False), (PPM, True)):
        rule = a_rule(clip_micro=clip, equalises=is_equalised)
        error = np.zeros((LAYOUT.blocks, 4096), np.float32)
        for step in range(2):
            x = gradient_blocks(rule, LAYOUT, numbers(f"g{step}", LAYOUT.parameters), np.float32(1e-3))
            moved = transition(rule.compress, error, x)
            error = moved.after_BC
            for name, part in (
                ("x", x),
                ("error", error),
                ("index", moved.sent.index_BK),
                ("value", moved.sent.value_BK),
                ("sketch", np.frombuffer(work_sketch(Digest(bytes(32)), x), "<f8")),
            ):
                found[f"{name} {step} clip {clip}{', equalised' * is_equalised}"] = hashlib.sha256(
                    part.tobytes()
                ).hexdigest()
    rule = a_rule(equalises=True)
    x = gradient_blocks(rule, ODD, numbers("odd", ODD.parameters), np.float32(1e-3))
    found["x of odd shapes, equalised"] = hashlib.sha256(x.tobytes()).hexdigest()
    rows, columns = np.zeros(37), np.zeros(201)
    total = equalise._squares(numbers("odd", 37 * 201).reshape(37, 201), rows, columns)
    sums = np.array([total, *rows, *columns], "<f8")  # in float32 factors another order would seldom show
    found["sums of squares"] = hashlib.sha256(sums.tobytes()).hexdigest()
    return found


def test_the_step_is_the_frozen_one():
    assert digests() == json.loads(VECTOR.read_text())


@pytest.mark.parametrize("machine", MACHINES)
def test_neither_processor_nor_threads_change_a_bit(machine, tmp_path):
    """Each processor that numba compiles for has a folder of its own; other settings use what is compiled."""
    environment = {**os.environ, **dict.fromkeys(THREADS, "1"), **MACHINES[machine], "PYTHONPATH": PYTHONPATH}
    is_compiled = "NUMBA_CPU_NAME" in environment
    if is_compiled:
        environment["NUMBA_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "print"],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=540,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == json.loads(VECTOR.read_text())
    assert is_compiled == bool(list(tmp_path.rglob("*.nbc"))), "nothing was compiled for this setting"


@pytest.mark.parametrize("function", COMPILED, ids=lambda function: function.__name__)
def test_no_compiled_function_fuses_a_product_and_a_sum(function):
    assert not FUSED.search(machine_code(function, OPTIONS))


def test_a_fused_product_and_sum_would_be_seen():
    """Where the processor has them. On one that has not there is nothing to look for."""
    code = machine_code(largest._add_and_choose, {**OPTIONS, "fastmath": True})
    has_fused = platform.machine() == "aarch64" or (
        Path("/proc/cpuinfo").exists() and "fma" in Path("/proc/cpuinfo").read_text().split()
    )

    assert bool(FUSED.search(code)) == has_fused


def machine_code(function, options) -> str:
    """What a compiled function is made of, compiled anew: kept code cannot be looked at."""
    (signature,) = function.code.signatures
    again = njit(signature, **options)(function.code.py_func)
    return "".join(again.inspect_asm().values())


def test_blocks_that_were_cut_out_have_the_bits_of_those_in_their_place():
    flat = numbers("g", 128 * 192)
    layout = Layout(("m",), ((128, 192),))
    blocks = flat.reshape(2, 64, 3, 64).transpose(0, 2, 1, 3).reshape(-1, 64, 64)
    whole = forward.transformed_blocks(layout, flat, 1.0)

    assert np.array_equal(in_basis(a_rule(), blocks), whole)
    assert np.array_equal(in_basis(a_rule(), blocks[[4, 1]]), whole[[4, 1]])


if __name__ == "__main__":
    if sys.argv[1:] == ["print"]:
        print(json.dumps(digests()))
    else:
        VECTOR.write_text(json.dumps(digests(), indent=1) + "\n")
