"""Farm: replays steps of a finished run on a Ray cluster, several at a time.

Room: bundle (edge: a cluster). Every machine of the cluster needs this version of Assay and the run's folder
at the same path, and is trusted as the reader's own: its results are not checked again.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.bundle.follow import read_any
from assay.bundle.read import Delivered
from assay.bundle.replay.step import ReplayReport, replay_of
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.types import PeerId

_ANSWER_S = 10.0  # for a connection to a cluster
LOCAL = "local"  # in place of an address: a cluster on this machine alone, for as long as the command runs


class Replayer:
    """What one worker of the cluster holds: the run, read and checked once."""

    def __init__(self, run: Path, *, from_start: bool, threads: int) -> None:
        self._delivered: Delivered = read_any(run)
        self._from_start, self._threads = from_start, threads

    def replay(self, step: tuple[int, PeerId]) -> ReplayReport:
        """The report of one step."""
        round_id, peer = step
        done = replay_of(self._delivered, peer, round_id, from_start=self._from_start, threads=self._threads)
        return ReplayReport.of(done)


def replay_on_ray(
    address: str, run: Path, steps: Sequence[tuple[int, PeerId]], *, from_start: bool, threads: int
) -> Iterator[ReplayReport]:
    """The reports of these steps, in their order, by as many workers as the cluster has room for.

    Args:
        address: Of the cluster's head, `host:port`; `LOCAL` for one on this machine.
        run: The run's folder, at this path on every machine of the cluster.
        steps: Rounds and nodes of accepted steps.
        from_start: See `replay`.
        threads: Of each worker.

    Raises:
        ConfigError: Ray is not installed.
        Unavailable: no cluster answers at this address, it has no such core free, or a worker was lost.
        AssayError: what a replay raises.
    """
    with _cluster(address) as ray:
        cores = int(ray.cluster_resources().get("CPU", 0))
        workers = min(cores // threads, len(steps))
        if not workers:
            raise Unavailable(f"Ray at {address}: {cores} cores, a worker needs {threads}")
        actor = ray.remote(num_cpus=threads)(Replayer)
        pool = ray.util.ActorPool(
            [actor.remote(run, from_start=from_start, threads=threads) for _ in range(workers)]
        )
        try:
            yield from pool.map(lambda one, step: one.replay.remote(step), list(steps))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise Unavailable(f"Ray at {address}: a worker was lost: {error}") from None


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray would tell its makers of every cluster
    try:
        import ray
        import ray.util
    except ImportError:
        raise ConfigError("--ray needs Ray: pip install 'assay[ray]'") from None
    own: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    if address != LOCAL:
        own = {}
        _expect_answer(address)  # Ray itself goes on asking for minutes
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise Unavailable(f"Ray at {address}: {str(error).splitlines()[0]}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _expect_answer(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except ValueError:
        raise ConfigError(f'--ray {address!r}: expected "{LOCAL}" or HOST:PORT') from None
    except OSError as error:
        raise Unavailable(f"Ray at {address}: {error.strerror or error}") from None
