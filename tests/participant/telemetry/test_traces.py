"""Traces: processes that exchange nothing about tracing add their spans to one trace of a round."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from assay.participant.compute import Apply, Reset
from assay.participant.telemetry.traces import (
    EXPORT_S,
    OFF,
    Traces,
    root_id_of,
    trace_chain,
    trace_id_of,
    traces_of,
)
from assay.protocol.messages import Outcome
from assay.protocol.types import RoundId
from assay.testing.members import NODES, RUN_ID, VERIFIERS
from assay.testing.messages import a_commit
from assay.testing.run import a_start, grow
from assay.verifier.audit.messages import TraceStep
from tests.a_collector import a_collector

exporters = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
FIRST, SECOND = VERIFIERS[:2]


def recorded(me: bytes) -> tuple[Traces, Any]:
    """The traces of a process, and the exporter that has its spans."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter = exporters.InMemorySpanExporter()
    return Traces(RUN_ID, me, SimpleSpanProcessor(exporter)), exporter  # type: ignore[arg-type]


def followed(me: bytes, rounds: int = 8) -> list[Any]:
    """The spans of a process that follows an honest run, a manifest a second."""
    traces, exporter = recorded(me)
    follower: Any = SimpleNamespace(run_state=a_start(rounds=4), settlements={})
    clock = trio.testing.MockClock(autojump_threshold=0)

    async def grown(_round: int) -> None:
        await trio.sleep(1)
        state = follower.run_state
        if int(state.round) == rounds:
            await trio.sleep_forever()
        votes = {step: dict.fromkeys(audit.order, Outcome.MATCH) for step, audit in state.audits.items()}
        follower.run_state = grow(state, 1, votes)
        if int(state.round) == rounds - 1:
            follower.settlements = {0: SimpleNamespace(total=9)}

    follower.grown = grown

    async def whole() -> None:
        with trio.move_on_after(rounds + 5):
            await trace_chain(traces, follower.run_state.spec, me, follower, trio.current_time)  # type: ignore[arg-type]

    trio.run(whole, clock=clock)
    return list(exporter.get_finished_spans())


def test_all_processes_of_a_run_meet_in_the_trace_of_a_round_under_one_root():
    first, second = followed(FIRST), followed(SECOND)
    node, exporter = recorded(NODES[0])
    node.worked(Apply(round=RoundId(2), aggregate=b""), 0.5)
    spans = [*first, *second, *exporter.get_finished_spans()]

    of_two = [span for span in spans if span.context.trace_id == trace_id_of(RUN_ID, 2)]

    assert Counter(span.name for span in of_two) == {"round": 1, "manifest": 2, "audit": 3, "apply": 1}
    (root,) = (span for span in of_two if span.name == "round")
    assert (root.parent, root.context.span_id) == (None, root_id_of(RUN_ID, 2))
    others = [span for span in of_two if span is not root]
    assert {span.parent.span_id for span in others} == {root_id_of(RUN_ID, 2)}
    assert len({span.context.span_id for span in of_two}) == len(of_two)
    assert all(span.attributes["assay.round"] == 2 for span in of_two)


def test_only_the_first_verifier_tells_of_what_follows_from_the_chain():
    assert {span.name for span in followed(SECOND)} == {"manifest"}
    found = followed(FIRST)
    assert {span.name for span in found} == {"round", "manifest", "audit", "settle"}
    settle = next(span for span in found if span.name == "settle")
    assert (settle.attributes["assay.epoch"], settle.attributes["assay.total"]) == (0, 9)
    assert settle.context.trace_id == trace_id_of(RUN_ID, 3)
    audits = [span for span in found if span.name == "audit"]
    assert {span.attributes["assay.status"] for span in audits} == {"passed"}
    assert all(span.end_time > span.start_time for span in audits)


def test_a_workers_call_is_traced_if_it_is_about_a_round():
    traces, exporter = recorded(FIRST)
    traces.worked(TraceStep(commit=a_commit(3, NODES[0])), 0.25)
    traces.worked(Reset(), 0.25)

    (span,) = exporter.get_finished_spans()

    assert (span.name, span.attributes["assay.node"]) == ("tracestep", NODES[0].hex()[:16])
    assert abs(span.end_time - span.start_time - 250_000_000) < 1000
    assert span.context.trace_id == trace_id_of(RUN_ID, 3)


def test_without_a_collector_nothing_is_made():
    assert not OFF.is_on and not traces_of(None, RUN_ID, FIRST).is_on
    OFF.span("round", 1, 0, 1)
    OFF.worked(TraceStep(commit=a_commit(3, NODES[0])), 0.25)
    OFF.close()
    trio.run(trace_chain, OFF, None, FIRST, None)  # returns at once


def test_a_collector_is_sent_the_spans_when_the_process_ends():
    with a_collector() as collector:
        traces = traces_of(collector.address, RUN_ID, FIRST)
        traces.span("round", 5, 10.0, 11.0)
        traces.close()

    assert collector.found == {(trace_id_of(RUN_ID, 5), FIRST.hex()[:16], "round")}


@pytest.mark.slow
def test_a_collector_that_is_not_there_delays_the_end_by_no_more_than_its_time(monkeypatch):
    import time

    traces = traces_of("http://127.0.0.1:9", RUN_ID, FIRST)
    traces.span("round", 5, 10.0, 11.0)
    began = time.monotonic()
    traces.close()
    assert time.monotonic() - began < 2 * EXPORT_S
