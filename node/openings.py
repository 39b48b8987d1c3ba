"""Openings of a node's drawn steps: made, told to auditors, made again where a disk lost something.

Room: node (edge). A step that can neither be opened nor repeated counts as withheld.

    chain asks --> opening (blob) --> notice --> every verifier that may commit to a verdict
                   sketch, known answer -------> every verifier
    files lost --> step repeated by the trainer, at most REPEATS_MAX times --> opening
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import trio

from assay.network.host import Host
from assay.node.messages import RepeatStep, StepRecord
from assay.node.steps import StepFiles
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.following.sync import StateSync
from assay.protocol.auditing import audits
from assay.protocol.auditing.audits import Audit
from assay.protocol.auditing.commitments import check_sketch_opening
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, Diverged, MalformedMessage, Unavailable
from assay.protocol.known_answers import Tasks
from assay.protocol.messages import (
    Commit,
    KnownAnswer,
    OpeningNotice,
    SignedAttendance,
    SketchOpening,
    StepRequest,
)
from assay.protocol.permitted import may_commit_verdict
from assay.protocol.run_state import RunState, StepId
from assay.protocol.types import Digest, PeerId, RoundId
from assay.training.codec.contribution import decode_contribution
from assay.training.data.own_data import OwnStream
from assay.training.layout import layout_of

log = logging.getLogger(__name__)
LOOK_S = 2.0  # between two looks for openings that were found damaged
REPEATS_MAX = 3  # of one step, whose files were damaged; beyond, a disk is not worth the computing
TELL_S = 10.0


class Openings:
    """What a node shows of its drawn steps.

    `host` is asked for when something is sent, as the node has none before it runs; `fetch` gets a blob from
    others. `own` are the data that only this node has, if it trains on such.
    """

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        state_sync: StateSync,
        steps: StepFiles,
        tasks: Tasks,
        *,
        host: Callable[[], Host],
        fetch: Callable[[Digest], Awaitable[bytes]],
        own: OwnStream | None = None,
    ) -> None:
        self.me, self.follower, self.state_sync, self.steps = me, follower, state_sync, steps
        self.tasks, self._host, self._fetch, self._own_data = tasks, host, fetch, own
        self._layout = layout_of(me.spec.model)
        self._opened: dict[StepId, OpeningNotice] = {}
        self._locks = defaultdict[RoundId, trio.Lock](trio.Lock)
        self._repeats = Counter[RoundId]()

    async def run(self) -> None:
        """Send each auditor what it needs, as the chain asks for it; ends only by cancellation."""
        notified: set[tuple[StepId, Digest, PeerId]] = set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reopen_damaged)
            while True:
                run_state = self.follower.run_state
                for step, audit in run_state.audits.items():
                    if audit.node != self.me.me:
                        continue
                    for verifier in run_state.holders:
                        if (
                            may_commit_verdict(run_state, audit, run_state.seat_of(verifier))
                            and (step, audit.pattern, verifier) not in notified
                        ):
                            nursery.start_soon(self._send_opening, verifier, audit, notified)
                    for message in self._due_messages(run_state, audit, nursery):
                        for verifier in run_state.holders:
                            nursery.start_soon(self._send_message, verifier, message)
                for step in [
                    s for s in self._opened if (a := run_state.audits.get(s)) is None or a.has_ended
                ]:
                    self.me.blobs.remove(self._opened.pop(step).opening)
                await self.follower.grown(int(run_state.round))

    async def _reopen_damaged(self) -> None:
        """Make again what auditors found damaged as they read it: the next manifest may wait for that."""
        while True:
            for step, opened in list(self._opened.items()):
                audit = self.follower.run_state.audits.get(step)
                is_damaged = self.me.blobs.size(opened.opening) is None
                if audit is not None and not audit.has_ended and is_damaged:
                    await self._reopen(audit)
            await trio.sleep(LOOK_S)

    async def say(self, message: SignedAttendance) -> None:
        """Tell every holder of a seat, once; who cannot be reached is not told."""
        async with trio.open_nursery() as nursery:
            for verifier in self.follower.run_state.holders:
                nursery.start_soon(self._send_message, verifier, message)

    def _due_messages(
        self, run_state: RunState, audit: Audit, nursery: trio.Nursery
    ) -> Iterator[SketchOpening | KnownAnswer]:
        """The messages that the chain expects from us about a step of ours now."""
        if audits.may_open_sketch(audit, int(run_state.round)):
            try:
                yield self._sketch(audit)
            except (Diverged, MalformedMessage):
                nursery.start_soon(self._mend, audit)
        task = self.tasks.task(run_state, int(audit.round))
        if task is not None and audits.may_show_known_answer(
            run_state.spec.audit, audit, int(run_state.round)
        ):
            yield task

    async def _send_message(
        self, verifier: PeerId, message: SketchOpening | KnownAnswer | SignedAttendance
    ) -> None:
        try:
            await self._host().request(verifier, "shown", encode(message), timeout_s=TELL_S)
        except AssayError as error:
            log.info(
                "message not delivered",
                extra={"kind": type(message).__name__, "verifier": verifier.hex()[:8], "reason": str(error)},
            )

    async def _send_opening(
        self, verifier: PeerId, audit: Audit, notified: set[tuple[StepId, Digest, PeerId]]
    ) -> None:
        key = ((audit.round, audit.node), audit.pattern, verifier)
        notified.add(key)
        try:
            opened = await self.opening(audit)
            await self._host().request(verifier, "opened", encode(opened), timeout_s=TELL_S)
        except AssayError as error:
            notified.discard(key)
            log.warning("opening not delivered", extra={"round": int(audit.round), "reason": str(error)})

    async def opening(self, audit: Audit) -> OpeningNotice:
        """Where the opening of a drawn step of ours can be fetched.

        Raises:
            AssayError: it cannot be made.
        """
        step = (audit.round, audit.node)
        async with self._locks[audit.round]:
            known = self._opened.get(step)
            if known is None or self.me.blobs.size(known.opening) is None:  # damaged since
                try:
                    body = await self._shown(audit)
                except (Diverged, Unavailable) as lost:
                    await self._repeat(audit.commit, lost)
                    body = await self._shown(audit)
                name = self.me.blobs.put(body)
                self._opened[step] = OpeningNotice(round=audit.round, opening=name, opening_bytes=len(body))
            return self._opened[step]

    async def _shown(self, audit: Audit) -> bytes:
        spec, round_id = self.me.spec, int(audit.round)
        update = await self._own(audit.commit.update)
        live = [int(b) for b in decode_contribution(spec, self._layout, round_id, update).blocks_B]
        blocks = opened_blocks(audit.seed, audit.node, spec.audit, audit.rate_ppm, self._layout.blocks, live)

        def opening() -> bytes:
            shown = () if self._own_data is None else self._own_data.shown(audit.commit, audit.segment)
            return self.steps.opening(round_id, list(blocks), audit.segment, shown)

        return await trio.to_thread.run_sync(opening)

    async def _own(self, update: Digest) -> bytes:
        """An update of ours; if our disk has lost it, others have it for as long as it may be opened."""
        try:
            return self.me.blobs.load(update)
        except Unavailable:
            body = await self._fetch(update)
            with suppress(Unavailable):  # a full disk
                self.me.blobs.put(body)
            return body

    async def _repeat(self, commit: Commit, lost: AssayError) -> None:
        """Have the trainer repeat a step that the disk has lost: it cannot be opened otherwise."""
        if self._repeats[commit.round] >= REPEATS_MAX:
            raise lost
        # A trainer that has just started has the parameters of no round yet.
        await self.state_sync.reach(int(self.follower.run_state.round))
        log.warning("step repeated", extra={"round": int(commit.round), "reason": str(lost)})
        try:
            request = RepeatStep(commit=commit, tasks_from=self.tasks.counts_from(self.follower.run_state))
            record = await self.state_sync.child.call(request, StepRecord)
        except Diverged:
            self._repeats[commit.round] = REPEATS_MAX
            raise
        self._repeats[commit.round] += 1
        self.me.blobs.put(record.update)

    async def _mend(self, audit: Audit) -> None:
        """Have a step repeated whose sketch could not be opened; it is opened with the next manifest."""
        async with self._locks[audit.round]:
            try:
                self._sketch(audit)
            except (Diverged, MalformedMessage) as lost:
                try:
                    await self._repeat(audit.commit, lost)
                except AssayError as error:
                    log.warning("sketch not opened", extra={"round": int(audit.round), "reason": str(error)})

    def _sketch(self, audit: Audit) -> SketchOpening:
        """The opening of a step's sketch.

        Raises:
            Diverged, MalformedMessage: its record is gone or damaged.
        """
        opened = self.steps.sketch_openings(audit.commit, audit.segment)
        check_sketch_opening(opened, audit.commit, audit.segment)
        return opened

    async def _reopen(self, audit: Audit) -> None:
        try:
            await self.opening(audit)
        except AssayError as error:
            log.warning("opening not made again", extra={"round": int(audit.round), "reason": str(error)})

    async def answer(self, _peer: PeerId, body: bytes) -> bytes:
        """Where a drawn step's opening is, for a verifier that missed our notice; empty for any other step.

        Raises:
            AssayError: it cannot be made, or the request is none.
        """
        request = decode(StepRequest, body)
        for (round_id, node), audit in self.follower.run_state.audits.items():
            if round_id == request.number and node == self.me.me and audit.is_open:
                return encode(await self.opening(audit))
        return b""
