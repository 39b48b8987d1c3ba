"""Replicas: passes of one batch that are computed side by side, with the bits of one after another.

Room: training (edge: threads, devices). Data parallelism: each replica takes whole groups of a batch, so its
kernels see what they would see without it, and results come in the groups' order, in which they are added.
On CUDA a replica is a device, on the CPU a thread that computes with `use_threads`' number of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from assay.protocol.errors import ConfigError

T = TypeVar("T")

_most = [1]


def use_replicas(count: int, device: str) -> None:
    """Set how many groups of a batch this process computes side by side, at most.

    Raises:
        ConfigError: this machine has fewer such devices, or they differ.
    """
    check_devices("replicas", count, device)
    _most[0] = count


def check_devices(setting: str, count: int, device: str) -> None:
    """Do nothing if this machine has so many devices of one kind; a CPU is as many as one likes.

    Raises:
        ConfigError: it has fewer, or they differ.
    """
    if device == "cuda" and count > 1:
        names = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())][:count]
        if len(names) < count or len(set(names)) > 1:
            raise ConfigError(f"{setting} = {count}: expected as many devices of one kind, found {names}")


def places(device: str, groups: int) -> list[str]:
    """The device of each replica that a batch of this many groups has work for; at least one."""
    count = max(min(_most[0], groups), 1)
    return [f"cuda:{at}" for at in range(count)] if device == "cuda" and count > 1 else [device] * count


def in_order(work: Callable[[int], T], count: int, replicas: int) -> Iterator[T]:
    """Yield work(0), work(1), ... of `count`, of which as many as there are replicas are in memory at most.

    The i-th begins after the one `replicas` before it was taken. An error of one is raised at its place.
    """
    ahead = deque[Future[T]]()
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(replicas, "replica", torch.set_num_threads, (threads,)) as pool:
        for at in range(count):
            if len(ahead) == replicas:
                yield ahead.popleft().result()
            ahead.append(pool.submit(work, at))
        while ahead:
            yield ahead.popleft().result()
