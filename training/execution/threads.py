"""Threads: measures once how many threads a process computes with, and keeps the choice.

Room: training (edge: a clock, one file). More threads are not always faster: where
cores are shared, two can take eight times as long as one. The number is part of the
execution class, and audits compare bits only within a class, so a process keeps its
choice for as long as it keeps its folder.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError
from assay.training.exact import initial_parameters
from assay.training.execution.processes import start
from assay.training.layout import layout_of
from assay.training.model.checkpointing import use_checkpointing
from assay.training.model.loss import FLOAT32_WHOLE, check_device, loss_and_gradient, use_threads
from assay.training.model.presets import PRESETS
from assay.training.model.replicas import use_replicas

log = logging.getLogger(__name__)
AUTO = 0
THREADS_MAX = 1024
MARGIN = 0.9  # more threads must take at most this share of the time that fewer take
PROBE_S = 0.4  # per count, after one pass to warm up
KEPT = "threads.json"
SMALL = PRESETS["llama-1m"]
SMALL_TOKENS = 4 * SMALL.context


def prepare(
    folder: Path,
    *,
    device: str,
    threads: int,
    replicas: int = 1,
    processes: int = 1,
    is_checkpointing: bool = False,
) -> int:
    """Set this process up to compute; returns its thread count. Call once, before any work.

    Args:
        folder: The participant's; a measured choice is kept there.
        device: "cpu" or "cuda".
        threads: A number, or `AUTO` to probe at the first start. Of each replica.
        replicas: How many groups of a batch are computed side by side.
        processes: How many processes the model is divided among, this one included.
        is_checkpointing: Whether layers are computed again in backward passes.

    Raises:
        ConfigError: the devices cannot be used, processes are asked for beside replicas or checkpointing, or
            the kept choice cannot be read.
    """
    use_threads(max(threads, 1))
    check_device(device)
    if threads == AUTO:
        threads = _kept(folder / KEPT) or _probe(folder / KEPT)
        use_threads(threads)
    if replicas > 1 and processes > 1:
        raise ConfigError(f"replicas = {replicas} and processes = {processes}: expected one of them to be 1")
    if is_checkpointing and processes > 1:
        raise ConfigError(f"gradient_checkpointing with processes = {processes}: expected one process")
    use_replicas(replicas, device)
    use_checkpointing(is_checkpointing)
    if processes > 1:
        start(processes, device, threads)
    log.info(
        "computing",
        extra={
            "device": device,
            "threads": threads,
            "replicas": replicas,
            "processes": processes,
            "gradient_checkpointing": is_checkpointing,
            "cores": cores(),
        },
    )
    return threads


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def counts_to_try(available: int) -> tuple[int, ...]:
    """1, 2, 4, ... and all."""
    powers = [1 << i for i in range(available.bit_length()) if 1 << i <= available]
    return tuple(sorted({*powers, available}))


def fastest(seconds: Mapping[int, float]) -> int:
    """The thread count to use: more only where they save at least a tenth of the time."""
    best, *others = sorted(seconds)
    for count in others:
        if seconds[count] < seconds[best] * MARGIN:
            best = count
    return best


def time_threads(counts: tuple[int, ...], *, work: Callable[[], object] | None = None) -> dict[int, float]:
    """Seconds of one small forward and backward pass at each count: the median over `PROBE_S`."""
    run = work or small_step()
    found = {}
    for count in counts:
        torch.set_num_threads(count)
        run()
        taken: list[float] = []
        until = time.perf_counter() + PROBE_S
        while not taken or time.perf_counter() < until:
            since = time.perf_counter()
            run()
            taken.append(time.perf_counter() - since)
        found[count] = float(np.median(taken))
    return found


def small_step(device: str = "cpu") -> Callable[[], object]:
    """A forward and backward pass of `SMALL_TOKENS` tokens through the model `SMALL`."""
    layout = layout_of(SMALL)
    theta_P = initial_parameters(0, layout.names, layout.shapes)
    sequences = SMALL_TOKENS // SMALL.context
    tokens = np.random.default_rng(0).integers(0, SMALL.vocabulary, (sequences, SMALL.context + 1))
    return lambda: loss_and_gradient(SMALL, layout, theta_P, tokens, compute=FLOAT32_WHOLE, device=device)


def _probe(path: Path) -> int:
    seconds = time_threads(counts_to_try(cores()))
    chosen = fastest(seconds)
    log.info(
        "threads chosen",
        extra={
            "threads": chosen,
            "why": "fastest forward and backward pass; more threads only if they save a tenth",
            "ms": {count: round(taken * 1000, 1) for count, taken in seconds.items()},
        },
    )
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text(json.dumps({"threads": chosen, "seconds": seconds}) + "\n")
    os.replace(partial, path)
    return chosen


def _kept(path: Path) -> int | None:
    try:
        threads = int(parse_json(path.read_bytes())["threads"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise ConfigError(f"{path}: cannot be read ({cause}); delete it to choose again") from None
    if not 1 <= threads <= THREADS_MAX:
        raise ConfigError(
            f"{path}: {threads} threads, expected 1 to {THREADS_MAX}; delete it to choose again"
        )
    return threads
