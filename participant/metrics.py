"""Metrics: answers Prometheus over HTTP with the newest figures of one process.

Room: participant (edge: a port, the disk, the log). The figures are computed in the trio thread, every
`EVERY_S`; the server's threads only write them out. It has no access control and says nothing secret:
an address that strangers reach is the operator's own choice.
"""

from __future__ import annotations

import importlib.metadata
import logging
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.telemetry.figures import (
    BY_NAME,
    LEVELS,
    Figure,
    Kind,
    chain_figures,
    check_figures,
    network_figures,
    run_figures,
)
from assay.protocol.errors import ConfigError

EVERY_S = 5.0
PEER_FAULT = "peer fault"  # the event that every process logs for one


class _Events(logging.Handler):
    """Counts lines of log by level, and the faults of peers among them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.levels: Counter[str] = Counter()
        self.faults = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.levels["error" if record.levelno >= logging.ERROR else "warning"] += 1
        self.faults += record.msg == PEER_FAULT

    def figures(self) -> Iterator[Figure]:
        for level in LEVELS:
            yield Figure(name="assay_log_events_total", value=self.levels[level], labels=(level,))
        yield Figure(name="assay_peer_faults_total", value=self.faults)


class _Newest(Collector):
    """The figures of one process as Prometheus' client wants them."""

    def __init__(self, folder: Path, events: _Events) -> None:
        self._folder, self._events = folder, events
        self.figures: tuple[Figure, ...] = ()

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for figure in (*self.figures, *self._events.figures(), *_disk(self._folder)):
            if figure.name not in families:
                metric = BY_NAME[figure.name]
                family = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
                families[figure.name] = family(metric.name, metric.text, labels=metric.labels)
            families[figure.name].add_metric(figure.labels, figure.value)
        yield from families.values()


def _disk(folder: Path) -> Iterator[Figure]:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return
    yield Figure(name="assay_disk_free_bytes", value=usage.free)
    yield Figure(name="assay_disk_bytes", value=usage.total)


@asynccontextmanager
async def serving_metrics(me: Participant, follower: Follower, host: Host) -> AsyncIterator[None]:
    """Serve the process's metrics while the block lasts, if its configuration has an address for them.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    address = me.config.metrics
    if address is None:
        yield
        return
    events = _Events()
    newest = _Newest(me.config.folder, events)
    registry = CollectorRegistry()
    for collector in (PlatformCollector, ProcessCollector, GCCollector):
        collector(registry=registry)
    registry.register(newest)
    try:
        server, thread = start_http_server(address[1], address[0], registry)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"metrics: {address[0]}:{address[1]} cannot be listened on ({reason})") from None
    logger = logging.getLogger("assay")
    logger.addHandler(events)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_count, me, follower)
            nursery.start_soon(_keep, me, follower, host, newest)
            yield
            nursery.cancel_scope.cancel()
    finally:
        logger.removeHandler(events)
        await trio.to_thread.run_sync(server.shutdown)
        server.server_close()
        thread.join()


async def _keep(me: Participant, follower: Follower, host: Host, newest: _Newest) -> None:
    """Compute the figures again and again."""
    members = frozenset((*me.addresses, *me.spec.seat_peers))
    info = Figure(
        name="assay_info",
        value=1,
        labels=(importlib.metadata.version("assay"), me.run_id.hex()[:16]),
    )
    while True:
        run_state = follower.run_state
        newest.figures = (
            info,
            *run_figures(me.me, run_state, len(follower.settlements), me.readings),
            *chain_figures(me.readings),
            *check_figures(me.readings),
            *network_figures(me.me, members, host.latencies(), host.connected(), host.traffic()),
        )
        await trio.sleep(EVERY_S)


async def _count(me: Participant, follower: Follower) -> None:
    """Count the audits that end from now on."""
    known = follower.run_state
    while True:
        run_state = await follower.grown(int(known.round))
        me.readings.grew(known, run_state, me.me)
        known = run_state
