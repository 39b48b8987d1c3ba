"""Run: what every participant's process does beside its own tasks: stay connected, and follow the chain.

Room: participant (edge). The caller starts its tasks in the nursery; all of them end with the block.
Peers that moved are found by refresh.py.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from assay.network.host import Handler, Host, Notification
from assay.participant.config import Door, Participant, open_network
from assay.participant.follower import Follower
from assay.participant.health import watch_health
from assay.participant.metrics import serving_metrics
from assay.participant.pushes import Pushes
from assay.participant.refresh import ASK, Records, own_record, refresh_records
from assay.participant.telemetry.round_trips import FILE, write_round_trips
from assay.participant.telemetry.traces import trace_chain, tracing
from assay.protocol.encoding.codec import decode_any
from assay.protocol.errors import MalformedMessage, OutOfPhase, PeerFault
from assay.protocol.messages import BlobPiece, CertifiedManifest, SignedFundingReport
from assay.protocol.types import PeerId

log = logging.getLogger(__name__)
FACTS: dict[bytes, type[CertifiedManifest] | type[SignedFundingReport] | type[BlobPiece]] = {
    BlobPiece.TAG: BlobPiece,
    CertifiedManifest.TAG: CertifiedManifest,
    SignedFundingReport.TAG: SignedFundingReport,
}


@asynccontextmanager
async def participate(
    me: Participant,
    follower: Follower,
    handlers: Mapping[str, Handler] | None = None,
    take: Callable[[Notification], None] | None = None,
    ready: trio.Event | None = None,
    door: Door | None = None,
    pushes: Pushes | None = None,
) -> AsyncIterator[tuple[Host, trio.Nursery]]:
    """Open the participant's host, and serve the certified chain to its peers, and its metrics.

    Args:
        me: The participant.
        follower: Its chain.
        handlers: Requests that it answers besides `links` and `records`, by method.
        take: Takes each notification and raises what is wrong with it; by default certified manifests are
            taken into the chain, funding reports beside it, and peers are asked when no manifest comes.
        ready: If given, `handlers` and `take` are not called before it is set; peers' messages wait.
        door: For peers that the run file does not name.
        pushes: Takes what verifiers push to us, where `take` is not given.
    """
    is_ready = trio.Event() if ready is None else ready
    if ready is None:
        is_ready.set()

    def follow(notification: Notification) -> None:
        message: CertifiedManifest | SignedFundingReport | BlobPiece = decode_any(FACTS, notification.payload)
        match message:
            case SignedFundingReport():
                follower.hear(notification.peer, message)
            case CertifiedManifest():
                follower.take(message)
            case BlobPiece() if pushes is not None and notification.peer in me.spec.seat_peers:
                pushes.take(notification.peer, message)

    def after_ready(handler: Handler) -> Handler:
        async def answer(peer: PeerId, body: bytes) -> bytes:
            await is_ready.wait()
            return await handler(peer, body)

        return answer

    waiting = {name: after_ready(handler) for name, handler in (handlers or {}).items()}
    if door is not None:
        door = replace(door, handlers={name: after_ready(one) for name, one in door.handlers.items()})
    records = Records(me.records, me.config.records, own_record(me), me.me)
    answers = {"links": follower.answer_links, ASK: records.answer, **waiting}
    async with (
        open_network(me, answers, door) as host,
        serving_metrics(me, follower, host),
        tracing(me.traces),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(trace_chain, me.traces, me.spec, me.me, follower)
        nursery.start_soon(host.keep_connected, list(me.addresses.values()))
        nursery.start_soon(refresh_records, me, host, records)
        nursery.start_soon(watch_health, me)
        members = frozenset((*me.addresses, *me.spec.seat_peers))
        nursery.start_soon(write_round_trips, me.config.folder / FILE, members, host)
        nursery.start_soon(_read_notifications, host, take or follow, is_ready)
        if take is None:
            nursery.start_soon(follower.poll, host, me.spec.seat_peers)
        yield host, nursery
        nursery.cancel_scope.cancel()


async def _read_notifications(host: Host, take: Callable[[Notification], None], is_ready: trio.Event) -> None:
    await is_ready.wait()
    async for notification in host.notifications:
        try:
            with host.metered(notification.peer):
                take(notification)
        except OutOfPhase as late:
            log.debug("out of phase", extra={"reason": str(late)})
        except (PeerFault, MalformedMessage) as fault:
            log.warning("peer fault", extra={"peer": notification.peer.hex()[:8], "reason": str(fault)})
