"""Reference gradient, CPU time against torch's, one core.

    python -m benchmarks.reference_step [--repeats 5] [--tokens 1024]

Forward and backward pass on the same parameters and tokens, in turns, so that what else runs on the machine
meets both: each figure is the median of the repeats, with the least and the most. `traced` is the reference
pass with the digest of every operator's output. The import is timed in processes of their own, once without
and once with code that was kept.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np

from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.loss import FLOAT32_WHOLE, loss_and_gradient, use_one_thread
from assay.training.model.presets import PRESETS
from assay.training.reference.gradient import reference_loss_and_gradient
from assay.training.reference.operators import operators, sources
from assay.training.reference.trace import traced
from benchmarks.machine import machine
from benchmarks.timing import cpu_ms, spread

MODELS = ("gpt-1m", "llama-1m", "gpt-15m", "llama-15m", "gpt-125m")
_IMPORT = """
import time
import numpy, numba, blake3, assay.protocol.params
since = time.process_time()
import assay.training.reference.trace
print(time.process_time() - since)
"""


def main() -> None:
    """Time both on the same batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=PRESETS)
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}")
    with tempfile.TemporaryDirectory() as folder:
        cold_s, kept_s = (_import_s(folder) for _ in range(2))
    print(f"import: {cold_s:.1f} s CPU when compiled, {kept_s:.2f} s with code that was kept")
    print("| model | tokens | torch, ms | reference, ms | ratio | traced, ms | operators | distance |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.models:
        model = PRESETS[name]
        layout = layout_of(model)
        theta_P = initial_parameters(0, layout.names, layout.shapes)
        shape = max(args.tokens // model.context, 1), model.context + 1
        tokens = np.random.default_rng(0).integers(0, model.vocabulary, shape)
        batch = model, layout, theta_P, tokens
        program, arrays = operators(model, len(tokens), FLOAT32_WHOLE), sources(layout, theta_P, tokens)
        works = (
            lambda batch=batch: loss_and_gradient(*batch, compute=FLOAT32_WHOLE)[1],
            lambda batch=batch: reference_loss_and_gradient(*batch, compute=FLOAT32_WHOLE)[1],
            lambda program=program, arrays=arrays: traced(program, arrays)[1],
        )
        gradients = [work() for work in works]
        away = np.linalg.norm(gradients[0] - gradients[1]) / np.linalg.norm(gradients[0])
        turns = [[cpu_ms(work) for work in works] for _ in range(args.repeats)]
        torch_ms, ours_ms, traced_ms = zip(*turns, strict=True)
        ratios = [ours / theirs for theirs, ours, _ in turns]
        print(
            f"| {name} | {tokens[:, 1:].size} | {spread(torch_ms)} | {spread(ours_ms)} | "
            f"{spread(ratios, 2)} | {spread(traced_ms)} | {len(program)} | {away:.1e} |"
        )


def _import_s(folder: str) -> float:
    environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    main()
