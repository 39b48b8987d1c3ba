"""Seat: how a node takes a free seat in a run, returns to it after an outage, and leaves it for good.

Room: node (edge). What verifiers and chain make of it is `protocol.membership`. As soon as it has its seat it
announces its known-answer tasks, if the run orders any, and what binds it to its own data, if it brings some.

    application --> guest: catches up --> application, ready --> admitted by a quorum --> trains
    `assay node leave` --> leave, in a manifest --> opens what is drawn of it --> discharged, ends
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace

import trio

from assay.chain.text.times import time_text
from assay.ledger.settlement.ending import ending_of
from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.files.application import Application
from assay.participant.files.record import OWN_RECORD, read_record
from assay.participant.files.track_record import best_track_record
from assay.participant.follower import CONNECT_S, Follower
from assay.participant.following.snapshots import reach_newest
from assay.participant.following.sync import StateSync
from assay.protocol.auditing.audits import Audit
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import AssayError, Unavailable
from assay.protocol.identity import sign
from assay.protocol.membership import is_drained, may_announce
from assay.protocol.messages import NO_OWN_DATA, Attendance, AttendanceKind, OwnData, SignedAttendance
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, Digest, PeerId

log = logging.getLogger(__name__)
APPLY_S = 2.0  # between two applications to the same verifier
ATTEND_S = 3.0  # between two attempts to say that we are back, or leave, or what binds us
LOOK_S = 1.0
TOLD_S = 300  # after the time by which a run had to start, until which we may learn what became of it
LEAVE = "leave"  # in the node's folder: a file by which its operator asks it to leave

Say = Callable[[SignedAttendance], Awaitable[None]]


@dataclass(slots=True)
class _Asking:
    """What we ask verifiers for: to be served while we catch up, then a seat."""

    application: Application
    ready: trio.Event = field(default_factory=trio.Event)

    def turn(self, is_ready: bool) -> None:
        """Note whether we hold the present parameters."""
        if is_ready != self.application.is_ready:
            self.application = replace(self.application, is_ready=is_ready)
            if is_ready:
                self.ready.set()
            else:
                self.ready = trio.Event()


async def take_seat(me: Participant, follower: Follower, state_sync: StateSync, host: Host) -> bool:
    """Whether we have a seat, once we have, or the run's training is over.

    Each verifier is asked by itself while we catch up, so that none that is silent keeps us waiting.

    Raises:
        ConfigError: our own record is missing or damaged.
        Unavailable: the run had to start by now, and no verifier has shown us whether it did.
    """
    if me.me in follower.run_state.nodes:
        return True
    record = read_record(me.config.keys / OWN_RECORD, int(time.time()))
    shown = best_track_record([me.config.keys], record.record.account)
    track_record = () if shown is None else (shown,)
    asking = _Asking(Application(record=record, is_ready=False, track_record=track_record))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stay_ready, follower, state_sync, asking)
        for verifier in me.spec.seat_peers:
            nursery.start_soon(_apply, follower, host, verifier, asking)
        while me.me not in follower.run_state.nodes and follower.run_state.is_training:
            if _is_untold(follower.run_state, int(time.time())):
                break
            with trio.move_on_after(LOOK_S):
                await follower.grown(int(follower.run_state.round))
        nursery.cancel_scope.cancel()
    if me.me in follower.run_state.nodes:
        log.info("seat taken", extra={"round": follower.run_state.nodes[me.me].joined_round})
        return True
    check_told(follower.run_state, int(time.time()))
    log.warning("no seat: training is over", extra=asdict(ending_of(follower.run_state)))
    return False


async def _stay_ready(follower: Follower, state_sync: StateSync, asking: _Asking) -> None:
    """Hold the newest parameters, from the time on when we know which these are."""
    await follower.level()
    while True:
        try:
            at = await reach_newest(follower, state_sync)
        except AssayError as error:
            log.info("catching up", extra={"round": int(follower.run_state.round), "reason": str(error)})
            asking.turn(False)
            await trio.sleep(APPLY_S)
        else:
            asking.turn(True)
            await follower.grown(at)


async def _apply(follower: Follower, host: Host, verifier: PeerId, asking: _Asking) -> None:
    """Ask one verifier again and again, at once when it is connected and when we turn ready."""
    name, refused = verifier.hex()[:8], ""
    while True:
        with trio.move_on_after(APPLY_S):
            while verifier not in host.connected():
                await trio.sleep(CONNECT_S)
        application = asking.application
        try:
            await host.request(verifier, "apply", encode(application), timeout_s=20)
            refused = ""
            if not application.is_ready:
                follower.look()  # as a guest we are answered
        except AssayError as error:
            if refused != str(error):  # once, not every two seconds
                refused = str(error)
                log.warning("no seat yet", extra={"verifier": name, "reason": refused})
        with trio.move_on_after(APPLY_S):
            if application.is_ready:
                await trio.sleep_forever()
            await asking.ready.wait()


def check_told(run_state: RunState, now_s: int) -> None:
    """Do nothing unless a run that waited for nodes is long decided, and we have not learnt how.

    Whoever was no guest by then is a stranger to a run that never started, and nobody answers it any more.

    Raises:
        Unavailable: so it is.
    """
    if _is_untold(run_state, now_s):
        by = time_text(run_state.spec.start_by_s)
        raise Unavailable(f"the run had to start by {by}, and no verifier has shown us that it did")


def _is_untold(run_state: RunState, now_s: int) -> bool:
    return run_state.awaits_nodes and now_s > run_state.spec.start_by_s + TOLD_S


async def return_when_overdue(
    me: Participant, follower: Follower, open_step: Callable[[Audit], Awaitable[object]], say: Say
) -> None:
    """Say that we are back while an opening of ours is overdue and `open_step` can make it.

    A known-answer task that was found false while we were away needs no return: it is shown.
    """
    logged = ""
    while True:
        run_state = follower.run_state
        overdue = [a for a in run_state.audits.values() if a.node == me.me and a.is_late]
        if any(audit.awaits_return for audit in overdue):
            try:
                for audit in overdue:
                    await open_step(audit)
            except AssayError as error:
                if logged != str(error):  # once, not every three seconds
                    logged = str(error)
                    log.error("overdue opening cannot be made", extra={"reason": logged})
            else:
                await say(_signed(me, run_state, AttendanceKind.RETURN))
        await trio.sleep(ATTEND_S)


async def leave_when_asked(me: Participant, follower: Follower, say: Say) -> None:
    """Wait until our operator asks us to leave, and say so until the chain has it."""
    while not (me.config.folder / LEAVE).exists():
        await trio.sleep(LOOK_S)
    while True:
        run_state = follower.run_state
        record = run_state.nodes.get(me.me)
        if not run_state.is_training or (record is not None and not record.is_seated):
            return
        if record is not None:
            await say(_signed(me, run_state, AttendanceKind.LEAVE))
        await trio.sleep(ATTEND_S)


async def announce_tasks(me: Participant, follower: Follower, root: Digest, say: Say) -> None:
    """Announce our list of known-answer tasks, if the run orders any, until the chain has it.

    root: Of the list; zero if there is none.
    """
    while root != NO_DIGEST:
        run_state = follower.run_state
        record = run_state.nodes.get(me.me)
        if not run_state.is_training or (record is not None and not may_announce(run_state, record)):
            return
        if record is not None:
            await say(_signed(me, run_state, AttendanceKind.TASKS, root))
        await trio.sleep(ATTEND_S)


async def announce_data(me: Participant, follower: Follower, own: OwnData, say: Say) -> None:
    """Bind ourselves to data that only we have, until the chain has it; at once if we bring none."""
    while me.me in follower.run_state.unannounced and follower.run_state.is_training:
        await say(_signed(me, follower.run_state, AttendanceKind.DATA, own=own))
        await trio.sleep(ATTEND_S)


async def drained(me: Participant, follower: Follower) -> None:
    """Wait until no step of ours can be drawn or judged any more."""
    while not follower.run_state.is_complete and not is_drained(follower.run_state, me.me):
        await follower.grown(int(follower.run_state.round))


def _signed(
    me: Participant,
    run_state: RunState,
    kind: AttendanceKind,
    tasks: Digest = NO_DIGEST,
    own: OwnData = NO_OWN_DATA,
) -> SignedAttendance:
    attendance = Attendance(
        run_id=me.run_id, round=run_state.round, node=me.me, kind=kind, tasks=tasks, own=own
    )
    return SignedAttendance(attendance=attendance, signature=sign(me.keys.peer, me.domain, attendance))
