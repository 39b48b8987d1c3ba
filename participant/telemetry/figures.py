"""Figures: what a process tells Prometheus, as values computed from what it already holds.

Room: participant (pure). `METRICS` is the whole list, from which docs/metrics.md is made. Labels have few
values whatever peers send: outcomes and phases are enums, and only peers that the run names have a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from assay.chain.state import EpochPhase
from assay.network.traffic import Traffic
from assay.participant.telemetry.readings import Readings
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.funding import funded_epochs
from assay.protocol.run_state import RunState
from assay.protocol.types import PeerId

PEER_CHARS = 8  # of a peer's id in a label
MICRO = 10**6
LEVELS = ("warning", "error")


class Kind(str, Enum):
    """How Prometheus reads a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. who: the processes that have it."""

    name: str
    kind: Kind
    text: str
    who: str = "all"
    labels: tuple[str, ...] = ()


def _gauge(name: str, text: str, *labels: str, who: str = "all") -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, text=text, who=who, labels=labels)


def _counter(name: str, text: str, *labels: str, who: str = "all") -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, text=text, who=who, labels=labels)


SETTLERS, MEMBERS = "verifier, ledger, watchtower", "node, verifier"
METRICS = (
    _gauge("assay_info", "Always 1; the version of the program and the run's id.", "version", "run"),
    _gauge("assay_round", "Rounds whose manifest is final."),
    _gauge("assay_training_rounds", "Rounds of training that the run has in all, by what is agreed so far."),
    _gauge("assay_round_timestamp_seconds", "Agreed time of the newest final manifest, Unix seconds."),
    _gauge("assay_active_nodes", "Nodes that may contribute to the next round."),
    _gauge("assay_open_audits", "Steps that were drawn and are not decided."),
    _counter("assay_accepted_steps_total", "Steps accepted of all nodes; of a node's own: assay_own_*."),
    _counter("assay_audits_total", "Audits of the run that ended since the process started.", "outcome"),
    _counter("assay_own_accepted_steps_total", "Steps of this node that were accepted.", who="node"),
    _counter(
        "assay_own_audits_total",
        "Audits of this node's steps that ended since it started.",
        "outcome",
        who="node",
    ),
    _gauge("assay_banned", "1 if a fault of this node or verifier is proved.", who=MEMBERS),
    _gauge("assay_funded_epochs", "Epochs that the escrow pays for, by the verifiers' reports."),
    _gauge("assay_settled_epochs", "Epochs whose payout table is computed."),
    _gauge(
        "assay_results",
        "Results of epochs on chain, by the state of their settlement.",
        "phase",
        who=SETTLERS,
    ),
    _gauge("assay_wrong_results", "Posted results other than ours that nobody has challenged.", who=SETTLERS),
    _gauge("assay_due_results", "Epochs whose result can be posted and is not on chain.", who=SETTLERS),
    _gauge(
        "assay_stake_tokens",
        "Stake of the account in its role, locked or free; read every hour.",
        who=MEMBERS,
    ),
    _gauge(
        "assay_lot_tokens", "What of it is locked for this run, or as a verifier for its term.", who=MEMBERS
    ),
    _gauge("assay_lot_end_timestamp_seconds", "Until when the lot is bound; 0 without one.", who=MEMBERS),
    _gauge(
        "assay_lot_needed_until_timestamp_seconds",
        "The escrow's deadline, until which a lot is needed.",
        who=MEMBERS,
    ),
    _gauge(
        "assay_hot_key_expiry_timestamp_seconds",
        "End of the hot key's delegation; 0 without one.",
        who=MEMBERS,
    ),
    _gauge(
        "assay_failed_check", "1 if this check of `assay doctor` found a fault; made every hour.", "check"
    ),
    _gauge("assay_peers", "Peers that are connected."),
    _gauge("assay_known_peers", "Peers that the run names, without this one."),
    _gauge("assay_peer_latency_seconds", "Round trip of the newest answered ping, by peer.", "peer"),
    _counter("assay_sent_bytes_total", "Bytes of messages and blobs sent to peers."),
    _counter("assay_received_bytes_total", "Bytes of messages and blobs read from peers."),
    _counter(
        "assay_steps_total", "Requests that the compute worker answered, by kind.", "request", who=MEMBERS
    ),
    _counter(
        "assay_step_seconds_total", "Time that the compute worker took for them.", "request", who=MEMBERS
    ),
    _gauge("assay_disk_free_bytes", "Free on the disk with the process's folder."),
    _gauge("assay_disk_bytes", "Size of that disk."),
    _counter("assay_log_events_total", "Lines of log since the process started.", "level"),
    _counter("assay_peer_faults_total", "Messages of peers that broke a rule since the process started."),
)
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of a scrape."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


def run_figures(me: PeerId, run_state: RunState, settlements: int, readings: Readings) -> Iterator[Figure]:
    """The figures of the chain that a process follows.

    Args:
        me: Whose process it is.
        run_state: After the newest final manifest.
        settlements: How many payout tables are computed.
        readings: Of the process.
    """
    yield _figure("assay_round", int(run_state.round))
    yield _figure("assay_training_rounds", run_state.training_rounds)
    yield _figure("assay_round_timestamp_seconds", run_state.time_s)
    yield _figure("assay_active_nodes", len(run_state.active))
    yield _figure("assay_open_audits", sum(not audit.has_ended for audit in run_state.audits.values()))
    yield _figure("assay_accepted_steps_total", sum(one.accepted for one in run_state.nodes.values()))
    funded = funded_epochs(run_state.funding_reports, run_state.spec.verifier_peers)
    yield _figure("assay_funded_epochs", funded)
    yield _figure("assay_settled_epochs", settlements)
    for status in AuditStatus:
        yield _figure("assay_audits_total", readings.ended[status], status.value)
    if (node := run_state.nodes.get(me)) is not None:
        yield _figure("assay_own_accepted_steps_total", node.accepted)
        yield _figure("assay_banned", node.banned)
        for status in AuditStatus:
            yield _figure("assay_own_audits_total", readings.own_ended[status], status.value)
    if (verifier := run_state.verifiers.get(me)) is not None:
        yield _figure("assay_banned", verifier.is_disqualified)
    for request, (count, seconds) in sorted(readings.work.items()):
        yield _figure("assay_steps_total", count, request)
        yield _figure("assay_step_seconds_total", seconds, request)


def chain_figures(readings: Readings) -> Iterator[Figure]:
    """The figures of what the process has read from the contracts."""
    if (look := readings.look) is not None:
        phases = Counter(view.state.phase for view in look.epochs)
        for phase in EpochPhase:
            if phase is not EpochPhase.NONE:
                yield _figure("assay_results", phases[phase], phase.name.lower())
        posted = [view for view in look.epochs if view.state.phase is EpochPhase.PROPOSED]
        yield _figure("assay_wrong_results", sum(view.is_right is False for view in posted))
        due = (view.is_ripe and view.state.phase is EpochPhase.NONE for view in look.epochs)
        yield _figure("assay_due_results", sum(due))
    if (held := readings.holdings) is not None:
        yield _figure("assay_stake_tokens", held.stake / MICRO)
        yield _figure("assay_lot_tokens", held.lot / MICRO)
        yield _figure("assay_lot_end_timestamp_seconds", held.lot_until)
        yield _figure("assay_lot_needed_until_timestamp_seconds", held.needed_until)
        yield _figure("assay_hot_key_expiry_timestamp_seconds", held.hot_key_expiry)


def check_figures(readings: Readings) -> Iterator[Figure]:
    """The figures of the process's checks of itself; none before the first."""
    for name, fault in readings.checks.items():
        yield _figure("assay_failed_check", fault is not None, name)


def network_figures(
    me: PeerId,
    members: frozenset[PeerId],
    latencies: Mapping[PeerId, float],
    connected: frozenset[PeerId],
    traffic: Traffic,
) -> Iterator[Figure]:
    """The figures of the process's host.

    Args:
        me: Whose process it is.
        members: Peers that the run names; a guest has no line of its own.
        latencies: Seconds of the newest answered ping, by peer.
        connected: Peers with a live connection.
        traffic: Bytes sent and received.
    """
    yield _figure("assay_peers", len(connected))
    yield _figure("assay_known_peers", len(members - {me}))
    for peer in sorted(members & connected):
        if peer in latencies:
            yield _figure("assay_peer_latency_seconds", latencies[peer], peer.hex()[:PEER_CHARS])
    yield _figure("assay_sent_bytes_total", traffic.sent)
    yield _figure("assay_received_bytes_total", traffic.received)


def _figure(name: str, value: float, *labels: str) -> Figure:
    assert len(labels) == len(BY_NAME[name].labels)
    return Figure(name=name, value=float(value), labels=labels)
