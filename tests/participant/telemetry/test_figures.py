"""Figures: they are those of the state and of what was read, and nobody but the run adds a line."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from assay.chain.state import EpochPhase
from assay.ledger.settlement.duties import Look
from assay.network.traffic import Traffic
from assay.participant.telemetry.figures import (
    BY_NAME,
    METRICS,
    Figure,
    Kind,
    chain_figures,
    check_figures,
    network_figures,
    run_figures,
)
from assay.participant.telemetry.readings import Holdings, Readings
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.types import PeerId
from tests.explorer.an_explorer import golden
from tests.ledger.settlement.test_duties import a_look, a_view

ME = PeerId(bytes([1]) * 32)
HELD = Holdings(
    stake=2_000_000_000, lot=1_000_500_000, lot_until=2_000, needed_until=1_900, hot_key_expiry=3_000
)


def by_key(figures: list[Figure]) -> dict[tuple[str, ...], float]:
    found = {(one.name, *one.labels): one.value for one in figures}
    assert len(found) == len(figures), "two figures with the same labels"
    return found


def counted(me: PeerId) -> tuple[Readings, dict[tuple[str, ...], float]]:
    """The readings of one who followed the recorded run, and the figures at its end."""
    run, readings = golden(), Readings()
    for before, after in zip(run.run_states, run.run_states[1:], strict=False):
        readings.grew(before, after, me)
    figures = run_figures(me, run.run_states[-1], len(run.settled), readings)
    return readings, by_key(list(figures))


def liar() -> PeerId:
    (found,) = (peer for peer, record in golden().run_states[-1].nodes.items() if record.banned)
    return found


def test_a_follower_has_the_runs_figures_and_none_of_a_nodes() -> None:
    run, (_, found) = golden(), counted(ME)

    assert found["assay_round",] == len(run.links)
    assert found["assay_training_rounds",] == run.spec.rounds
    assert found["assay_round_timestamp_seconds",] == run.links[-1].manifest.time_s
    assert found["assay_accepted_steps_total",] == sum(len(link.manifest.commits) for link in run.links)
    assert found["assay_settled_epochs",] == found["assay_funded_epochs",] == run.spec.epochs
    assert not any(name.startswith(("assay_own", "assay_banned")) for name, *_ in found)


def test_a_nodes_own_steps_and_audits_are_counted_apart_and_a_ban_is_told() -> None:
    run, node = golden(), liar()
    readings, found = counted(node)
    final = {step: audit for state in run.run_states for step, audit in state.audits.items()}

    assert readings.ended == Counter(audit.ruling for audit in final.values())
    own = [audit.ruling for audit in final.values() if audit.node == node]
    assert {key[1]: value for key, value in found.items() if key[0] == "assay_own_audits_total"} == {
        status.value: own.count(status) for status in AuditStatus
    }
    assert found["assay_own_audits_total", "confirmed"] == found["assay_banned",] == 1
    assert found["assay_own_accepted_steps_total",] == sum(
        signed.commit.node == node for link in run.links for signed in link.manifest.commits
    )


def test_an_audit_is_counted_once_however_often_its_state_is_seen() -> None:
    run, readings = golden(), Readings()
    last = run.run_states[-1]

    readings.grew(last, last, ME)

    assert not readings.ended


def test_a_verifier_at_fault_is_told_so() -> None:
    last, verifier = golden().run_states[-1], golden().spec.verifier_peers[0]
    assert by_key(list(run_figures(verifier, last, 2, Readings())))["assay_banned",] == 0
    record = replace(last.verifiers[verifier], fault_round=3)
    faulty = replace(last, verifiers={**last.verifiers, verifier: record})

    assert by_key(list(run_figures(verifier, faulty, 2, Readings())))["assay_banned",] == 1


def test_a_wrong_result_counts_until_it_is_challenged_and_one_that_nobody_posts_is_due() -> None:
    views = [
        a_view(0, EpochPhase.FINAL),
        a_view(1, EpochPhase.CHALLENGED, is_right=False),
        a_view(2, EpochPhase.PROPOSED, is_right=False),
        a_view(3, EpochPhase.PROPOSED, is_right=None),
        a_view(4, EpochPhase.NONE),
        a_view(5, EpochPhase.NONE, is_ripe=False),
    ]
    look: Look = a_look(*views)

    found = by_key(list(chain_figures(Readings(look=look))))

    assert found["assay_wrong_results",] == 1
    assert found["assay_due_results",] == 1
    assert {key[1]: value for key, value in found.items() if key[0] == "assay_results"} == {
        "proposed": 2, "challenged": 1, "final": 1, "swept": 0,
    }  # fmt: skip


def test_stake_is_told_in_tokens_once_it_is_read() -> None:
    assert list(chain_figures(Readings())) == []

    found = by_key(list(chain_figures(Readings(holdings=HELD))))

    assert (found["assay_stake_tokens",], found["assay_lot_tokens",]) == (2000.0, 1000.5)
    assert found["assay_lot_end_timestamp_seconds",] == 2_000
    assert found["assay_lot_needed_until_timestamp_seconds",] == 1_900
    assert found["assay_hot_key_expiry_timestamp_seconds",] == 3_000


def test_guests_that_come_and_go_add_no_line() -> None:
    members = frozenset(PeerId(bytes([at]) * 32) for at in (1, 2, 3))
    guests = {PeerId(bytes([9, at]) * 16): 0.5 for at in range(100)}
    latencies = {**guests, PeerId(bytes([2]) * 32): 0.25, PeerId(bytes([3]) * 32): 0.125}
    connected = frozenset({*guests, PeerId(bytes([2]) * 32)})

    found = by_key(list(network_figures(ME, members, latencies, connected, Traffic(sent=5, received=7))))

    assert [key for key in found if key[0] == "assay_peer_latency_seconds"] == [
        ("assay_peer_latency_seconds", "02020202")
    ]
    assert (found["assay_peers",], found["assay_known_peers",]) == (101, 2)
    assert (found["assay_sent_bytes_total",], found["assay_received_bytes_total",]) == (5, 7)


def test_answers_of_the_worker_add_up() -> None:
    readings = Readings()
    for seconds in (1.0, 2.5):
        readings.worked("Train", seconds)

    found = by_key(list(run_figures(ME, golden().run_states[-1], 2, readings)))

    assert found["assay_steps_total", "Train"] == 2
    assert found["assay_step_seconds_total", "Train"] == 3.5


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_prometheus_conventions(metric) -> None:
    assert BY_NAME[metric.name] is metric and metric.name.startswith("assay_")
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.text.endswith(".")


def test_each_check_of_the_process_has_a_line_and_there_is_none_before_the_first() -> None:
    assert list(check_figures(Readings())) == []

    found = by_key(list(check_figures(Readings(checks={"gas": None, "clock": "70 s off"}))))

    assert found == {("assay_failed_check", "gas"): 0, ("assay_failed_check", "clock"): 1}
