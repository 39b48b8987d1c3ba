"""Metrics: real processes of a running network answer Prometheus, each with the figures of its role."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from assay.devnet.machines import free_ports
from assay.participant.telemetry.figures import BY_NAME
from tests.a_collector import a_collector
from tests.e2e.nets import kill, localnet, need_anvil, summary_of, wait_for_start, write_order

pytestmark = pytest.mark.slow
WAIT_S = 120.0
BEGUN = 3  # a round in which steps of earlier ones count
HELD = {"assay_stake_tokens", "assay_lot_end_timestamp_seconds", "assay_banned", "assay_steps_total"}
# What the processes of a role have, beside what all have.
OWN = {
    "node-0": HELD | {"assay_own_accepted_steps_total"},
    "verifier-0": HELD | {"assay_results"},
    "ledger": {"assay_results"},
    "buyer": set[str](),
}


def scrape(port: int, wanted: set[str]) -> dict[str, list[float]]:
    """Values by name, once the process has all that are wanted, has pinged a peer, and follows the run."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
        except (URLError, ConnectionError, TimeoutError):
            families = []
        found: dict[str, list[float]] = {}
        for sample in (sample for family in families for sample in family.samples):
            found.setdefault(sample.name, []).append(sample.value)
        is_at = found.get("assay_round", [0.0])[0]
        if wanted | {"assay_peer_latency_seconds"} <= set(found) and is_at >= BEGUN:
            return found
        time.sleep(0.5)
    raise TimeoutError(f"port {port}: round {is_at}, no {sorted(wanted - set(found))}")


def test_processes_that_are_asked_for_metrics_answer_with_those_of_their_role(tmp_path: Path) -> None:
    need_anvil()
    ports = dict(zip(OWN, free_ports(len(OWN)), strict=True))
    with a_collector() as traces, localnet(tmp_path, write_order(tmp_path, rounds=13)) as process:
        for name, port in ports.items():
            wait_for_start(process, tmp_path / "run", name, 1)
            with open(tmp_path / "run" / "participants" / name / "config.toml", "a") as file:
                file.write(f'metrics = "127.0.0.1:{port}"\ntraces = "{traces.address}"\n')
            kill(tmp_path / "run", name)  # it is started again, with the new file
        found = {name: scrape(port, OWN[name]) for name, port in ports.items()}
        summary = summary_of(process)

    assert summary["rounds_finalised"] == 13  # nothing that metrics do stops a run
    for name, values in found.items():
        assert {one for one in values if one.startswith("assay_")} <= set(BY_NAME), name
        assert values["assay_training_rounds"] == [13.0]
        assert values["assay_peers"][0] >= 1 and values["assay_sent_bytes_total"][0] > 0
        others = set[str]().union(*OWN.values()) - OWN[name]
        assert not others & set(values), name
    for name in ("node-0", "verifier-0"):
        assert found[name]["assay_stake_tokens"][0] > 0 and found[name]["assay_banned"] == [0.0]
        assert found[name]["assay_lot_end_timestamp_seconds"][0] > time.time()
        assert sum(found[name]["assay_steps_total"]) > 0
    assert len(found["ledger"]["assay_results"]) == 4
    assert_one_trace_a_round(traces.found)


def assert_one_trace_a_round(found: set[tuple[int, str, str]]) -> None:
    """Processes that were started again add to the same traces: their work, and what became of it."""
    processes = {trace: {process for other, process, _ in found if other == trace} for trace, _, _ in found}

    assert max(map(len, processes.values())) == len(OWN)
    assert {"manifest", "apply", "takestep", "claim"} <= {name for _, _, name in found}, {
        n for _, _, n in found
    }
