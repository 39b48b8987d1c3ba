"""Scraped: what processes of a running network answer to Prometheus, and the spans they send meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from assay.devnet.machines import free_ports
from tests.a_collector import Collector, a_collector

WAIT_S = 120.0
BEGUN = 3  # a round in which steps of earlier ones count
HELD = {"assay_stake_tokens", "assay_lot_end_timestamp_seconds", "assay_banned"}
COUNTED = "assay_steps_total"  # from the first audit that ends after a start: maybe of none
PINGED = {"assay_peer_latency_seconds"}  # after ten seconds: of a process that started early
# What the processes of a role have, beside what all have.
OWN = {
    "node-1": HELD | {"assay_own_accepted_steps_total"},
    "verifier-1": HELD | {"assay_results", COUNTED},
    "ledger": {"assay_results"},
    "buyer": set[str](),
}


class Scraped:
    """Processes that are told to answer and send when they start the next time; then each is asked once."""

    def __init__(self, participants: Path, collector: Collector, threads: ThreadPoolExecutor) -> None:
        self.spans = collector.found
        self._participants, self._collector, self._threads = participants, collector, threads
        self._ports = dict(zip(OWN, free_ports(len(OWN)), strict=True))
        self._asked: dict[str, Future[dict[str, list[float]]]] = {}

    def tell(self, name: str) -> None:
        """Have a participant answer once it is started again, and ask it, if it is one of `OWN`."""
        if name in OWN:
            with open(self._participants / name / "config.toml", "a") as file:
                file.write(
                    f'metrics = "127.0.0.1:{self._ports[name]}"\ntraces = "{self._collector.address}"\n'
                )
            wanted = OWN[name] | (PINGED if name == "verifier-1" else set())
            self._asked[name] = self._threads.submit(scrape, self._ports[name], wanted)

    def found(self) -> dict[str, dict[str, list[float]]]:
        """Values by name of each that was told; waits for them."""
        return {name: asked.result() for name, asked in self._asked.items()}


@contextmanager
def scraping(participants: Path) -> Iterator[Scraped]:
    """For the participants in a folder."""
    with a_collector() as collector, ThreadPoolExecutor(len(OWN)) as threads:
        yield Scraped(participants, collector, threads)


def scrape(port: int, wanted: set[str]) -> dict[str, list[float]]:
    """Values by name, once the process has all that are wanted, speaks to a peer, and follows the run."""
    end, found = time.monotonic() + WAIT_S, dict[str, list[float]]()
    while time.monotonic() < end:
        time.sleep(0.5)
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
        except (URLError, ConnectionError, TimeoutError):
            continue  # not up yet, or already at its end
        found = {}
        for sample in (sample for family in families for sample in family.samples):
            found.setdefault(sample.name, []).append(sample.value)
        follows = found.get("assay_round", [0.0])[0] >= BEGUN
        speaks = found.get("assay_peers", [0.0])[0] >= 1 and found.get("assay_sent_bytes_total", [0.0])[0] > 0
        if wanted <= set(found) and follows and speaks:
            return found
    raise TimeoutError(f"port {port}: at {found.get('assay_round')}, no {sorted(wanted - set(found))}")
