"""Aggregation rules on sparse updates against dense numpy implementations of the same rules.

    python -m benchmarks.aggregation [--nodes 16] [--liars 3] [--parameters 1000000 10000000]

Each figure comes from a process of its own: CPU time (the best of the repeats, one thread), and
in one more pass the peak of what numpy allocates, the result counted and the input not. k = 32
of 4096, uniform indices: hardly any overlap, the costliest case for sparse rules.
Inputs: decoded updates for ours; an (n, d) float32 matrix of the same messages for dense.
Trimming: ours per coefficient among senders, dense with zeros over all n (the sort is the
work, and the same). The decoded-domain rule is compared with dense inverse transforms and a sort.
Names with "clipping" are on a wire with amplitudes, int8 levels, each block clipped to the median norm;
those with "one-bit" on one where every coefficient is sent, a sign and its block's mean size;
"reputation" is what a round costs on top of its rule: one round compared with the eight before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIDE, BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.training.codec.wire import Update
from assay.training.exact import BASIS_BITS, BASIS_SS
from assay.verifier.aggregation import robust
from assay.verifier.aggregation.decoded import trimmed_mean_signs
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.aggregation.registry import rule_of
from assay.verifier.aggregation.reputation import PAST, Reputation, admitted, observe
from benchmarks.machine import machine

K = 32
RULES = (
    "mean", "trimmed-mean", "centered-clip", "nnm+trimmed-mean", "geometric-median", "multi-krum",
    "decoded-trimmed-mean",
    "clipping+mean", "clipping+trimmed-mean", "clipping+centered-clip", "reputation",
    "one-bit+mean", "one-bit+trimmed-mean", "one-bit+reputation",
)  # fmt: skip
ALONE = ("decoded-trimmed-mean", "reputation")  # at 10M: no dense form fits, or there is none
DENSE_MAX = 1_000_000  # for those: n float64 inverse transforms and a sort do not fit a small machine

Rows = NDArray[np.float32]


def main() -> None:
    """Measure every rule at every size, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--liars", type=int, default=3)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(_measure(args.child, args.rules[0], args.nodes, args.liars, args.parameters[0])))
        return
    print(f"machine: {machine()}")
    print("| n | f | d | rule | sparse CPU s | sparse extra MB | dense CPU s | dense extra MB | ratio |")
    print("|---" * 9 + "|")
    for parameters in args.parameters:
        for rule in args.rules:
            ours_s, ours_mb = _ask("sparse", rule, args.nodes, args.liars, parameters)
            dense = "- | - | -"
            if not rule.endswith("reputation") and not (rule in ALONE and parameters > DENSE_MAX):
                dense_s, dense_mb = _ask("dense", rule, args.nodes, args.liars, parameters)
                dense = f"{dense_s:.3f} | {dense_mb:.0f} | {dense_s / ours_s:.1f}"
            size = f"{parameters / 1e6:g}M"
            row = (
                f"| {args.nodes} | {args.liars} | {size} | {rule} | {ours_s:.3f} | {ours_mb:.0f} | {dense} |"
            )
            print(row, flush=True)


def _ask(kind: str, rule: str, nodes: int, liars: int, parameters: int) -> tuple[float, float]:
    command = [
        sys.executable, "-m", "benchmarks.aggregation", "--child", kind, "--rules", rule,
        "--nodes", str(nodes),
        "--liars", str(liars), "--parameters", str(parameters),
    ]  # fmt: skip
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env={**os.environ, **threads}, stdout=subprocess.PIPE, check=True)
    cpu_s, extra_mb = json.loads(done.stdout)
    return cpu_s, extra_mb


def _measure(kind: str, rule: str, nodes: int, liars: int, parameters: int) -> tuple[float, float]:
    """CPU seconds of the best pass, and peak allocation in MB."""
    block_count = parameters // BLOCK_SIZE
    make = _sparse if kind == "sparse" else _dense
    work = make(rule, nodes, liars, block_count)
    times = []
    for _ in range(3 if kind == "sparse" or parameters <= 1_000_000 else 1):
        since_s = time.process_time()
        work()
        times.append(time.process_time() - since_s)
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    return min(times), peak / 1e6


def _sparse(rule: str, nodes: int, liars: int, block_count: int) -> Callable[[], object]:
    updates = {PeerId(n.to_bytes(32, "big")): _update(n, block_count, rule) for n in range(nodes)}
    if rule.endswith("reputation"):
        # One set of updates in every past round: the work is the same, and eight sets need not be drawn.
        before = Reputation(past=observe(Reputation(), updates, block_count).past * PAST)
        return lambda: admitted(observe(before, updates, block_count), f=liars)
    if "+" in rule:
        named = rule_of(rule.removeprefix("one-bit+"), liars, b"public")
        return lambda: named(updates, block_count)
    calls: dict[str, Callable[[], object]] = {
        "mean": lambda: mean_over_senders(updates, block_count),
        "trimmed-mean": lambda: robust.trimmed_mean(updates, block_count, f=liars),
        "centered-clip": lambda: robust.centered_clip(updates, block_count, f=liars),
        "geometric-median": lambda: robust.geometric_median(updates, block_count, f=liars),
        "multi-krum": lambda: robust.multi_krum(updates, block_count, f=liars),
        "decoded-trimmed-mean": lambda: trimmed_mean_signs(updates, block_count, f=liars),
    }
    return calls[rule]


def _dense(rule: str, nodes: int, liars: int, block_count: int) -> Callable[[], object]:
    rows = np.zeros((nodes, block_count * BLOCK_SIZE), np.float32)
    for node in range(nodes):
        update = _update(node, block_count, rule)
        where = (update.blocks_B[:, None] * BLOCK_SIZE + update.index_BK).reshape(-1)
        rows[node, where] = update.value_BK.reshape(-1)
    if rule.startswith("clipping"):
        inner = _dense_rule(rule.removeprefix("clipping+"), rows, liars)
        return lambda: (_dense_scale(rows), inner())
    return _dense_rule(rule.removeprefix("one-bit+"), rows, liars)


def _dense_scale(rows: Rows) -> Rows:
    """Every node's blocks cut to the median norm."""
    blocks = rows.reshape(len(rows), -1, BLOCK_SIZE)
    norm = np.sqrt(np.einsum("nbc,nbc->nb", blocks, blocks))
    radius = np.sort(norm, axis=0)[(len(rows) - 1) // 2]
    clipped: Rows = blocks * np.minimum(1, radius / np.maximum(norm, 1e-12))[:, :, None]
    return clipped


def _dense_rule(rule: str, rows: Rows, liars: int) -> Callable[[], object]:
    nodes = len(rows)
    calls: dict[str, Callable[[], object]] = {
        "mean": lambda: rows.sum(axis=0) / np.maximum((rows != 0).sum(axis=0), 1),
        "trimmed-mean": lambda: np.sort(rows, axis=0)[liars : nodes - liars].mean(axis=0),
        "centered-clip": lambda: _dense_clip(rows),
        "nnm+trimmed-mean": lambda: _dense_rule("trimmed-mean", _dense_mixed(rows, liars), liars)(),
        "geometric-median": lambda: _dense_median(rows),
        "multi-krum": lambda: _dense_multi_krum(rows, liars),
        "decoded-trimmed-mean": lambda: _dense_decoded(rows, liars),
    }
    return calls[rule]


def _update(seed: int, block_count: int, rule: str) -> Update:
    """k uniform places in every block, with signs or with int8 levels; or a bit for every place."""
    rng = np.random.default_rng(seed)
    if rule.startswith("one-bit"):
        places_BC = np.broadcast_to(np.arange(BLOCK_SIZE), (block_count, BLOCK_SIZE))
        mantissa_B = rng.integers(128, 256, block_count, np.int16)
        value_BC = (rng.integers(0, 2, places_BC.shape, np.int16) * 2 - 1) * mantissa_B[:, None]
        scales = rng.integers(-40, -36, block_count), mantissa_B.astype(np.int64)
        return Update(np.arange(block_count), places_BC, value_BC, *scales)
    index_BK = np.empty((block_count, K), np.int64)
    for start in range(
        0, block_count, 256
    ):  # a few blocks at a time: their random numbers need not all be held
        part = rng.random((min(256, block_count - start), BLOCK_SIZE), np.float32)
        index_BK[start : start + len(part)] = np.sort(np.argpartition(part, K, axis=1)[:, :K], axis=1)
    if rule.startswith("clipping"):
        value_BK = rng.integers(-127, 128, index_BK.shape, np.int32) * 128
        exponent_B, mantissa_B = rng.integers(-40, -36, block_count), np.full(block_count, 128)
        return Update(np.arange(block_count), index_BK, value_BK, exponent_B, mantissa_B)
    signs = rng.integers(0, 2, index_BK.shape, np.int8) * 2 - 1
    return Update(np.arange(block_count), index_BK, signs.astype(np.int8))


def _dense_clip(rows: Rows) -> Rows:
    """Centered clipping per block, median radius, three steps from zero."""
    blocks = rows.reshape(len(rows), -1, BLOCK_SIZE)
    center = np.zeros(blocks.shape[1:], np.float32)
    for _ in range(3):
        offset = blocks - center
        length = np.sqrt(np.einsum("nbc,nbc->nb", offset, offset))
        radius = np.sort(length, axis=0)[(len(rows) - 1) // 2]
        offset *= np.minimum(1, radius / np.maximum(length, 1e-12))[:, :, None]
        center += offset.mean(axis=0)
    return center


def _dense_median(rows: Rows) -> Rows:
    """Geometric median per block: three smoothed Weiszfeld steps from the mean."""
    blocks = rows.reshape(len(rows), -1, BLOCK_SIZE)
    center: Rows = blocks.mean(axis=0)
    for _ in range(3):
        offset = blocks - center
        near = 1 / np.maximum(np.sqrt(np.einsum("nbc,nbc->nb", offset, offset)), 0.1)
        center = np.einsum("nb,nbc->bc", near / near.sum(axis=0), blocks)
    return center


def _dense_mixed(rows: Rows, liars: int) -> Rows:
    """Each message replaced by the mean of its nearest, by distances of whole messages."""
    gram = rows @ rows.T
    norm = np.diag(gram)
    near = np.argsort(norm[:, None] + norm[None] - 2 * gram, axis=1, kind="stable")[:, : len(rows) - liars]
    return np.stack([rows[some].mean(axis=0) for some in near])


def _dense_multi_krum(rows: Rows, liars: int) -> Rows:
    """MultiKrum over whole messages, distances from one matrix product."""
    gram = rows @ rows.T
    norm = np.diag(gram)
    nearest = np.sort(norm[:, None] + norm[None] - 2 * gram, axis=1)[:, : len(rows) - liars - 1]
    best = np.argsort(nearest.sum(axis=1), kind="stable")[: len(rows) - liars]
    mean: Rows = rows[np.sort(best)].mean(axis=0)
    return mean


def _dense_decoded(rows: Rows, liars: int) -> NDArray[np.float32]:
    """Inverse transform of every message in float32, a sort, and the sign of the trimmed sum."""
    basis = (BASIS_SS / (1 << BASIS_BITS)).astype(np.float32)
    decoded = basis.T @ rows.reshape(len(rows), -1, BLOCK_SIDE, BLOCK_SIDE) @ basis
    signs: NDArray[np.float32] = np.sign(np.sort(decoded, axis=0)[liars : len(rows) - liars].sum(axis=0))
    return signs


if __name__ == "__main__":
    main()
