"""A Ray cluster of two machines replays steps, and says what one process says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.bundle.replay.spot_check import spot_check
from assay.protocol.errors import ConfigError, Unavailable

cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two nodes of one core each, on this machine."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()
    patch.undo()


def test_a_cluster_finds_what_this_process_finds_in_the_same_order(recorded_run: Path, address: str) -> None:
    here = spot_check(recorded_run, 0.2, 3)

    there = spot_check(recorded_run, 0.2, 3, ray=address)

    assert len(here.found) > 3
    assert here == there


def test_a_worker_that_needs_more_cores_than_there_are_is_refused(recorded_run: Path, address: str) -> None:
    with pytest.raises(Unavailable, match="2 cores, a worker needs 3"):
        spot_check(recorded_run, 0.2, 3, ray=address, threads=3)


def test_an_address_where_nobody_answers_is_named(recorded_run: Path) -> None:
    with pytest.raises(Unavailable, match=r"Ray at 127\.0\.0\.1:9: Connection refused"):
        spot_check(recorded_run, 0.2, 3, ray="127.0.0.1:9")


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "127.0.0.1"])
def test_what_is_no_address_is_refused(recorded_run: Path, address: str) -> None:
    with pytest.raises(ConfigError, match='expected "local" or HOST:PORT'):
        spot_check(recorded_run, 0.2, 3, ray=address)
