"""Processes: starts those that a node's model is divided among, and ends them with the one that started them.

Room: training (edge: processes, loopback sockets). The process that calls is rank 0, the trainer or recompute
worker that others know; each other one computes on a device of its own what it is told over a pipe, and ends
when that closes. They find each other by a file in a folder that no other user can read.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
import torch.distributed as dist

from assay.training.model.loss import sharded_pass, use_threads
from assay.training.model.replicas import check_devices
from assay.training.model.sharded import Sharded, become

_WAIT = timedelta(minutes=5)  # for another process: to start, or to compute a layer
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
_started: list[SpawnProcess] = []


def start(count: int, device: str, threads: int) -> None:
    """Divide models among this process and `count` - 1 new ones from now on.

    Args:
        count: How many processes, at least 2.
        device: "cpu", or "cuda": each process computes on the device of its number.
        threads: Of each process.

    Raises:
        ConfigError: this machine has fewer such devices, or they differ.
    """
    check_devices("processes", count, device)
    os.environ.update(_LOOPBACK)
    folder = Path(tempfile.mkdtemp(prefix="assay-processes-"))
    try:
        pipes = [get_context("spawn").Pipe() for _ in range(count - 1)]
        for rank, (_, far) in enumerate(pipes, 1):
            given = rank, count, device, threads, folder / "store", far
            process = get_context("spawn").Process(target=_serve, args=given, daemon=True)
            process.start()
            far.close()
            _started.append(process)
        become(_joined(0, count, device, folder / "store", tuple(near for near, _ in pipes)))
    finally:
        shutil.rmtree(folder)


def stop(whole: Sharded) -> None:
    """End the other processes."""
    become(None)
    for other in whole.others:
        other.close()
    while _started:
        _started.pop().join()
    dist.destroy_process_group()


def _joined(rank: int, count: int, device: str, store: Path, others: tuple[Connection, ...] = ()) -> Sharded:
    """This process's place, once all are there."""
    place = f"cuda:{rank}" if device == "cuda" else device
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=dist.FileStore(str(store), count),  # type: ignore[attr-defined]  # exported without saying so
        rank=rank,
        world_size=count,
        timeout=_WAIT,
    )
    dist.barrier()
    return Sharded(rank, place, others)


def _serve(rank: int, count: int, device: str, threads: int, store: Path, told: Connection) -> None:
    """Compute this process's share of every pass that it is told of."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    use_threads(threads)
    parts = _joined(rank, count, device, store)
    while True:
        try:
            model, layout, tokens, compute = told.recv()
        except EOFError:
            break
        sharded_pass(parts, model, layout, tokens, compute)
    dist.destroy_process_group()
