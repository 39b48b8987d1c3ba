"""Serve: Prometheus' own parser reads what is served, and the server ends with its block."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from assay.devnet.machines import free_ports
from assay.network.traffic import Traffic
from assay.participant.metrics import serving_metrics
from assay.participant.telemetry.figures import BY_NAME
from assay.participant.telemetry.readings import Readings
from assay.protocol.errors import ConfigError
from assay.protocol.run_state import RunState
from assay.protocol.types import PeerId
from tests.explorer.an_explorer import golden

ME, PEER = PeerId(bytes([1]) * 32), PeerId(bytes([2]) * 32)


@dataclass
class AFollower:
    """The recorded run from its first round to its last, in two steps."""

    run_state: RunState = field(default_factory=lambda: golden().run_states[0])
    settlements: dict[int, Any] = field(default_factory=dict)
    has_grown: trio.Event = field(default_factory=trio.Event)

    async def grown(self, round_id: int) -> RunState:
        while int(self.run_state.round) <= round_id:
            await self.has_grown.wait()
            if int(self.run_state.round) <= round_id:
                await trio.sleep_forever()
        return self.run_state


@dataclass
class AHost:
    """A host with one peer."""

    def connected(self) -> frozenset[PeerId]:
        return frozenset((PEER,))

    def latencies(self) -> dict[PeerId, float]:
        return {PEER: 0.25}

    def traffic(self) -> Traffic:
        return Traffic(sent=10, received=20)


def a_participant(folder: Path, port: int | None) -> Any:
    run = golden()
    return SimpleNamespace(
        config=SimpleNamespace(metrics=None if port is None else ("127.0.0.1", port), folder=folder),
        addresses={PEER: None},
        spec=run.spec,
        run_id=run.run_id,
        me=ME,
        readings=Readings(),
    )


def scrape(port: int) -> dict[tuple[str, ...], float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def served(me: Any, follower: Any, host: Any) -> dict[tuple[str, ...], float]:
    async with serving_metrics(me, follower, host):
        follower.run_state = golden().run_states[-1]
        follower.has_grown.set()
        await trio.testing.wait_all_tasks_blocked(0.1)
        log = logging.getLogger("assay.participant.run")
        log.warning("peer fault", extra={"peer": "02020202"})
        log.error("update not pushed")
        log.info("round final")
        return await trio.to_thread.run_sync(scrape, me.config.metrics[1])


def test_a_scrape_has_the_newest_figures_the_process_and_its_log(tmp_path: Path) -> None:
    (port,) = free_ports(1)

    found = trio.run(served, a_participant(tmp_path, port), AFollower(), AHost())

    (info,) = (key for key in found if key[0] == "assay_info")
    assert golden().run_id.hex()[:16] in info
    assert found["assay_round",] == len(golden().links)
    assert found["assay_peer_latency_seconds", "02020202"] == 0.25
    assert found["assay_sent_bytes_total",] == 10
    assert 0 < found["assay_disk_free_bytes",] < found["assay_disk_bytes",]
    assert found["assay_log_events_total", "warning"] == 1
    assert found["assay_log_events_total", "error"] == 1
    assert found["assay_peer_faults_total",] == 1
    assert found["process_resident_memory_bytes",] > 10**6
    assert {name for name, *_ in found if name.startswith("assay_")} <= set(BY_NAME)


def test_nothing_listens_after_the_block_and_nothing_at_all_without_an_address(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    trio.run(served, a_participant(tmp_path, port), AFollower(), AHost())

    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        pass

    async def quiet() -> None:
        before = logging.getLogger("assay").handlers[:]
        async with serving_metrics(a_participant(tmp_path, None), AFollower(), AHost()):  # type: ignore[arg-type]
            assert logging.getLogger("assay").handlers == before

    trio.run(quiet)


def test_an_address_that_is_taken_is_the_operators_to_change(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^metrics: 127\.0\.0\.1:{port} cannot be listened on \("):
            trio.run(served, a_participant(tmp_path, port), AFollower(), AHost())
