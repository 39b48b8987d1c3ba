"""Traces: one OpenTelemetry trace a round, to which every process of a run adds what it did.

Room: participant (edge: a collector). Off unless the configuration names one. Trace ids follow from run and
round, so processes that exchange nothing but the protocol's messages meet in one trace: work, the manifest
that carries it, its audits, the settlement of its epoch, and the claim. Nothing waits for a collector.

    first verifier: round -------------------------------------------------- (the trace's root)
    every process:    manifest     train, apply, examine: the compute worker's calls
    first verifier:   audit ....  settle ....                       payees: claim ....
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from assay.participant.telemetry.readings import ended_between
from assay.protocol.encoding.codec import Message
from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest, PeerId

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from assay.participant.follower import (
        Follower,  # libp2p comes with it, which readers of books need not
    )

EXPORT_S = 5.0  # for a collector to answer, also at the end of the process
TIMES_KEPT = 4096  # rounds whose times are remembered, for audits and settlements that end later


def trace_id_of(run_id: Digest, round_id: int) -> int:
    """The id of a round's trace."""
    return int.from_bytes(_hash(b"trace", run_id, round_id)[:16], "big")


def root_id_of(run_id: Digest, round_id: int) -> int:
    """The id of its root span."""
    return int.from_bytes(_hash(b"root", run_id, round_id)[:8], "big")


def _hash(what: bytes, run_id: Digest, round_id: int) -> bytes:
    return hashlib.sha256(b"assay/" + what + b"/1" + run_id + round_id.to_bytes(8, "big")).digest()


class Traces:
    """Spans of one process. Without a processor nothing is made, and OpenTelemetry is not imported."""

    def __init__(self, run_id: Digest, me: PeerId, processor: SpanProcessor | None = None) -> None:
        self._run_id, self._provider = run_id, None
        if processor is None:
            return
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        names = {"service.name": "assay", "service.instance.id": me.hex()[:16], "assay.run": run_id.hex()}
        self._ids = _ids()
        self._provider = TracerProvider(
            resource=Resource.create(names), id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("assay")

    @property
    def is_on(self) -> bool:
        """Whether spans go anywhere."""
        return self._provider is not None

    def span(self, name: str, round_id: int, begin_s: float, end_s: float, **attributes: str | int) -> None:
        """Add what was done about a round, in Unix seconds; the name `round` is the trace's root."""
        if self._provider is None:
            return
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        trace_id, root_id = trace_id_of(self._run_id, round_id), root_id_of(self._run_id, round_id)
        if name == "round":
            context, self._ids.next = Context(), (trace_id, root_id)
        else:
            root = SpanContext(trace_id, root_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
            context = set_span_in_context(NonRecordingSpan(root))
        named = {f"assay.{key}": value for key, value in attributes.items()}
        span = self._tracer.start_span(
            name, context, attributes={"assay.round": round_id, **named}, start_time=int(begin_s * 1e9)
        )
        span.end(int(end_s * 1e9))

    def worked(self, request: Message, seconds: float) -> None:
        """Add an answered call of the compute worker, if it was about a round."""
        about: Any = getattr(request, "commit", request)
        round_id = getattr(about, "round", None)
        if round_id is not None and self._provider is not None:
            now_s = time.time()
            node = {"node": about.node.hex()[:16]} if hasattr(about, "node") else {}
            self.span(type(request).__name__.lower(), int(round_id), now_s - seconds, now_s, **node)

    def close(self) -> None:
        """Send what is left, or give up after `EXPORT_S`."""
        if self._provider is not None:
            self._provider.shutdown()


OFF = Traces(NO_DIGEST, PeerId(NO_DIGEST))


def traces_of(endpoint: str | None, run_id: Digest, me: PeerId) -> Traces:
    """The traces of a process whose configuration names this OTLP endpoint; None: it names none.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if endpoint is None:
        return Traces(run_id, me)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError("traces need OpenTelemetry: pip install 'assay[traces]'") from None
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_S)
    return Traces(run_id, me, BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_S * 1000))


@asynccontextmanager
async def tracing(traces: Traces) -> AsyncIterator[None]:
    """Send what is left when the block ends."""
    try:
        yield
    finally:
        traces.close()


async def trace_chain(
    traces: Traces, spec: RunSpec, me: PeerId, follower: Follower, clock: Callable[[], float] = time.time
) -> None:
    """Add every manifest, and as the run's first verifier what follows from them; ends only by cancellation.

    clock: Unix time.
    """
    if not traces.is_on:
        return
    times = dict[int, float]()
    settled = set(follower.settlements)
    state, at_s = follower.run_state, clock()
    while True:
        await follower.grown(int(state.round))
        before, state, now_s = state, follower.run_state, clock()
        is_first = me == state.key(spec.verifier_peers[0])
        for round_id in range(int(before.round), int(state.round)):
            times[round_id] = now_s
            traces.span("manifest", round_id, at_s, now_s)
            if is_first:
                traces.span("round", round_id, at_s, now_s)
        at_s = now_s
        if not is_first:
            continue
        for audit in ended_between(before, state):
            begin_s, found = times.get(int(audit.round), now_s), audit.ruling.value
            traces.span("audit", int(audit.round), begin_s, now_s, node=audit.node.hex()[:16], status=found)
        for epoch in set(follower.settlements) - settled:
            last = state.calendar.epoch_end(epoch) - 1
            total = follower.settlements[epoch].total
            traces.span("settle", last, times.get(last, now_s), now_s, epoch=epoch, total=total)
        settled |= set(follower.settlements)
        for old in [one for one in times if one < int(state.round) - TIMES_KEPT]:
            del times[old]


def _ids() -> Any:
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        """Random ids, but for a root span's."""

        next: tuple[int, int] | None = None

        def generate_trace_id(self) -> int:
            return super().generate_trace_id() if self.next is None else self.next[0]

        def generate_span_id(self) -> int:
            if self.next is None:
                return super().generate_span_id()
            (_, span_id), self.next = self.next, None
            return span_id

    return Ids()
