"""Audit runner: fetches openings, recomputes drawn steps, commits to verdicts and reveals them.

Room: verifier (edge). The chain determines which verifier must judge which step. A verdict is stored before
its commitment is sent, and stays secret until the chain reveals all verdicts at once.

    may commit --> opening --> recompute --> store --> commitment --final--> all commitments in --> verdict
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import trio

from assay.network.host import Host
from assay.participant.compute import HELD_MAX, AtRound, Hold
from assay.participant.config import Participant
from assay.participant.follower import Follower, fetch_blob
from assay.participant.following.sync import StateSync
from assay.participant.opening_keeper import OpeningKeeper
from assay.protocol.auditing.audits import (
    RECOMPUTED,
    REFERENCE,
    Audit,
    AuditStatus,
    judges_in_reference,
    last_commitment,
)
from assay.protocol.auditing.commitments import derived_salt
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.errors import AssayError, MalformedMessage, OutOfPhase, PeerFault, Unavailable
from assay.protocol.identity import sign
from assay.protocol.messages import (
    Commit,
    OpeningNotice,
    Outcome,
    SignedVerdict,
    SignedVerdictCommitment,
    StepRequest,
    Verdict,
    VerdictCommitment,
)
from assay.protocol.params import AuditSpec
from assay.protocol.permitted import may_commit_verdict, may_open_verdict
from assay.protocol.run_state import RunState, StepId
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.training.codec.contribution import decode_contribution
from assay.training.layout import layout_of
from assay.verifier.audit.messages import Examine, Examined, Finding, opening_bytes_max, shown_bytes_max
from assay.verifier.service.driver import Driver
from assay.verifier.service.proposer import GetUpdate

log = logging.getLogger(__name__)
ASK_AFTER_S = 3.0  # a node pushes its opening unasked; we ask when a restart may have lost it
SKETCH_POLL_S = 0.1
OPENINGS_TRIED_MAX = 3  # per audit: bounds the work that announcers of invalid openings cause


WITHHELD = Examined(finding=Finding(Outcome.WITHHELD, NO_DIGEST, 0, 0), exec_class=NO_DIGEST)


def is_due(rules: AuditSpec, audit: Audit, verifier: PeerId, at: int, arrived: Collection[PeerId]) -> bool:
    """Whether a verifier that may commit to a verdict should recompute the step now.

    A second auditor is wanted rounds after the first, when more than one may commit already, and all of these
    would recompute for the one that counts. So those before it in the order are given `takeover_rounds` each
    from when a commitment was first wanted of them, and nobody works while all that are wanted have arrived.
    In the last f + 1 manifests in which a missing commitment can arrive, nobody waits for anybody.

    Args:
        rules: Of the run.
        audit: One in which `may_commit_verdict` holds for the verifier.
        verifier: The one that asks.
        at: The next manifest.
        arrived: Verifiers whose commitments are here, also those that no manifest has carried yet.
    """
    last = last_commitment(rules, audit)
    if audit.ruling is AuditStatus.DISPUTED:
        return True
    given = {*arrived, *(commitment.verifier for commitment in audit.commitments)} - {verifier}
    missing = audit.wanted - len(given)
    if missing <= 0:
        return at >= last
    # The beacon that asks for one more is in the manifest after the last commitment's.
    since = 2 + max((commitment.round for commitment in audit.commitments), default=int(audit.round))
    before = sum(one not in given for one in audit.order[: audit.order.index(verifier)])
    is_late = at >= last - audit.f
    return is_late or at - since >= max(before - missing + 1, 0) * rules.takeover_rounds


class AuditRunner:
    """Audits in progress, by step."""

    def __init__(
        self,
        me: Participant,
        host: Host,
        follower: Follower,
        state_sync: StateSync,
        nursery: trio.Nursery,
        driver: Driver,
        get_update: GetUpdate,
        keeper: OpeningKeeper,
    ) -> None:
        self._me, self._host, self._follower, self._state_sync = me, host, follower, state_sync
        self._nursery, self._driver, self._get_update = nursery, driver, get_update
        self._keeper = keeper
        self._layout = layout_of(me.spec.model)
        self._openings: dict[StepId, OpeningNotice] = {}
        self._held: tuple[RoundId, ...] = ()
        self._announced = trio.Event()
        # Openings that accusers name, while they are fetched: their steps, and what was tried of these.
        self._fetching: dict[trio.CancelScope, tuple[StepId, set[Digest]]] = {}
        self._busy: set[str] = set()
        self._is_slow = False  # as was said

    def opened(self, node: PeerId, opened: OpeningNotice) -> None:
        """A node announces where its opening of a recent step can be fetched; the newest notice counts.

        Raises:
            PeerFault: it is no node of this run, or the step is not one that can be drawn now.
        """
        now = int(self._follower.run_state.round)
        if node not in self._follower.run_state.nodes:
            raise PeerFault(node, "opens a step, but is no node of this run")
        audit = self._follower.run_state.audits.get((opened.round, node))
        is_recent = now - self._me.spec.closing_rounds - 2 <= opened.round <= now
        if not is_recent and (audit is None or audit.has_ended):
            raise PeerFault(node, f"opens a step of round {opened.round} before round {now}")
        self._openings[(opened.round, node)] = opened
        for scope, (step, tried) in self._fetching.items():
            if step == (opened.round, node) and self._own(step, tried) is not None:
                scope.cancel()
        self._announced.set()
        self._announced = trio.Event()

    async def run(self) -> None:
        """Commit to verdicts and reveal them as the chain asks for them; ends only by cancellation."""
        while True:
            run_state = self._follower.run_state
            late = sorted({audit.round for audit in run_state.audits.values() if audit.is_late})
            if late[:HELD_MAX] != list(self._held):
                self._nursery.start_soon(self._hold, tuple(late[:HELD_MAX]))
            for audit in run_state.audits.values():
                if may_commit_verdict(run_state, audit, run_state.seat_of(self._me.me)):
                    if not self._is_due(run_state, audit):
                        continue
                    if (task := _name(audit)) not in self._busy:
                        self._busy.add(task)
                        self._nursery.start_soon(self._bind, audit, task)
                elif audit.committed_by(run_state.seat_of(self._me.me)) is not None:
                    self._open(run_state, audit)
            self._forget_closed(run_state)
            await self._follower.grown(int(run_state.round))

    def _is_due(self, run_state: RunState, audit: Audit) -> bool:
        """Whether to judge this audit now, or to leave it to those before us for a while: see `is_due`."""
        pooled = self._driver.round.commitments
        arrived = {
            verifier
            for verifier in audit.order
            if (signed := pooled.get((audit.round, audit.node, verifier))) is not None
            and signed.commitment.pattern == audit.pattern
        }
        seat = run_state.seat_of(self._me.me)
        return is_due(self._me.spec.audit, audit, seat, int(run_state.round), arrived)

    async def _hold(self, rounds: tuple[RoundId, ...]) -> None:
        """Keep the parameters of steps whose openings are overdue: they may be judged hours later."""
        try:
            await self._state_sync.child.call(Hold(rounds=rounds), AtRound)
            self._held = rounds
        except AssayError as error:  # the next manifest tries again
            log.error("parameters of overdue steps are not kept", extra={"reason": str(error)})

    def _forget_closed(self, run_state: RunState) -> None:
        """Forget what nodes announced about closed audits; `OpeningKeeper` deletes what was stored."""
        for step in list(self._openings):
            audit = run_state.audits.get(step)
            if (audit is None and step[0] + 2 < run_state.round) or (audit is not None and audit.has_ended):
                del self._openings[step]

    async def _bind(self, audit: Audit, task: str) -> None:
        """Judge an audit and send the commitment to the verdict, repeatedly until the chain has it."""
        try:
            while True:  # a leader may be waiting for this commitment, so do not wait for the next round
                try:
                    signed = self._kept(audit) or await self._find(audit)
                    self._me.store.set_value(task, encode(signed))
                    if not self._is_wanted(audit, task):
                        return  # a dispute opened meanwhile; its round has another pattern
                    self._publish(self._commitment(signed.verdict, audit))
                except OutOfPhase:
                    return  # our own round has to follow first; `run` comes back to it
                except AssayError as error:
                    if self._is_wanted(audit, task):  # else its opening may be deleted, as it has ended
                        log.warning("audit not done", extra={"round": int(audit.round), "reason": str(error)})
                await trio.sleep(1)
                if not self._is_wanted(audit, task):
                    return
        finally:
            self._busy.discard(task)

    def _is_wanted(self, audit: Audit, task: str) -> bool:
        """Whether the chain still accepts our commitment for this audit in its dispute round."""
        run_state = self._follower.run_state
        current = run_state.audits.get((audit.round, audit.node))
        return (
            current is not None
            and _name(current) == task
            and may_commit_verdict(run_state, current, run_state.seat_of(self._me.me))
        )

    def _open(self, run_state: RunState, audit: Audit) -> None:
        """Reveal the verdict that we committed to, if the chain accepts it now."""
        signed = self._kept(audit)
        if signed is None or not may_open_verdict(run_state, audit, signed.verdict):
            return
        try:
            self._publish(signed)
        except AssayError as error:
            log.warning("verdict not revealed", extra={"round": int(audit.round), "reason": str(error)})
            return
        log.info(
            "verdict",
            extra={
                "round": int(audit.round),
                "node": audit.node.hex()[:8],
                "outcome": signed.verdict.outcome.name,
                "distance_ppb": signed.verdict.distance_ppb,
            },
        )

    def _publish(self, signed: SignedVerdictCommitment | SignedVerdict) -> None:
        self._driver.broadcast(encode(signed))
        self._driver.take(signed)

    def _kept(self, audit: Audit) -> SignedVerdict | None:
        body = self._me.store.value(_name(audit))
        return None if body is None else decode(SignedVerdict, body)

    async def _find(self, audit: Audit) -> SignedVerdict:
        """Our verdict on a step: recomputed from its opening, or that nobody opened it."""
        commit = audit.commit
        update = await self._get_update(int(commit.round), commit.update, self._me.verifiers)
        run_state = self._follower.run_state
        await self._state_sync.reach(min(int(run_state.round), run_state.training_rounds))
        spec, layout = self._me.spec, self._layout
        live = [int(b) for b in decode_contribution(spec, layout, int(commit.round), update).blocks_B]
        blocks = opened_blocks(audit.seed, audit.node, spec.audit, audit.rate_ppm, layout.blocks, live)
        deadline = trio.current_time() + spec.timing.opening_ms / 1000
        tried: set[Digest] = set()
        while True:
            opened = await self._next_opening(audit, tried, deadline)
            if opened is None:
                return self._sign(audit, WITHHELD, NO_DIGEST, 0)
            tried.add(opened.opening)
            sketch = await self._sketch(audit, deadline)
            if sketch is None:
                return self._sign(audit, WITHHELD, NO_DIGEST, 0)
            is_fetched = False
            try:
                is_fetched = await self._fetch_opening(audit, opened, len(blocks), deadline, tried)
                request = Examine(
                    commit=commit,
                    update=update,
                    opening=str(self._me.blobs.path(opened.opening)),
                    blocks=blocks,
                    segment=audit.segment,
                    committed=sketch,
                    pattern=audit.pattern,
                    drawn_by=audit.seed,
                    in_reference=self._in_reference(audit),
                    own=run_state.nodes[audit.node].own,
                )
                began = trio.current_time()
                examined = await self._state_sync.child.call(request, Examined)
                self._tell_pace(commit, trio.current_time() - began)
            except (PeerFault, MalformedMessage) as fault:
                log.warning("opening discarded", extra={"node": audit.node.hex()[:8], "reason": str(fault)})
                if is_fetched:
                    self._keeper.discard(opened.opening)
                continue
            # A committee may ask for it, and readers. What was here and not looked into may be an aggregate.
            if is_fetched or examined.finding.outcome is not Outcome.INCONCLUSIVE:
                self._keeper.judged(commit, opened.opening)
            return self._sign(audit, examined, opened.opening, self._me.blobs.size(opened.opening) or 0)

    def _tell_pace(self, commit: Commit, took_s: float) -> None:
        """Say once if an audit of the largest step takes longer here than the last leader waits for it."""
        spec = self._me.spec
        most_s, waited_s = took_s * spec.most_tokens_per_step / commit.tokens, spec.timing.collect_ms / 1000
        if most_s > waited_s and not self._is_slow:
            self._is_slow = True
            reason = "honest steps may go unjudged, and unpaid, where no other verifier is faster"
            fields = {"seconds": round(most_s, 1), "waited_for": waited_s, "reason": reason}
            log.warning("audits of the largest steps take too long on this machine", extra=fields)

    async def _next_opening(self, audit: Audit, tried: set[Digest], deadline: float) -> OpeningNotice | None:
        """The next opening not tried: the node's own, or with half the time gone one that an accuser names.

        Nobody may serve what an accuser names, and the node's own opening must have its time.
        """
        step = (audit.round, audit.node)
        left_s = deadline - trio.current_time()
        accusers_at = trio.current_time() + (0.0 if tried else left_s / 2)
        # Early enough for the answer to count.
        ask_at = trio.current_time() + min(left_s / (4 if self._named(step, tried) else 2), ASK_AFTER_S)
        has_asked = False
        while True:
            if (mine := self._own(step, tried)) is not None:
                return mine
            now, named = trio.current_time(), self._named(step, tried)
            if named and now >= accusers_at:
                return named[0]
            if now >= deadline:
                return None
            if not has_asked and now >= ask_at:
                has_asked = True
                self._nursery.start_soon(self._ask, audit, deadline)  # it may push it meanwhile
            times = [deadline, *([] if has_asked else [ask_at]), *([accusers_at] if named else [])]
            with trio.move_on_at(min(times)):
                await self._announced.wait()

    def _own(self, step: StepId, tried: set[Digest]) -> OpeningNotice | None:
        """What the node itself announced last, unless it was tried, or enough others of it were."""
        mine = self._openings.get(step)
        # Byzantine auditors must not use up its tries
        others = {verdict.opening for verdict in self._adverse(step)}
        is_new = mine is not None and mine.opening not in tried and len(tried - others) < OPENINGS_TRIED_MAX
        return mine if is_new else None

    def _named(self, step: StepId, tried: set[Digest]) -> list[OpeningNotice]:
        """The openings that accusing verdicts name and that were not tried yet, each once."""
        sizes = {verdict.opening: verdict.opening_bytes for verdict in self._adverse(step)}
        return [
            OpeningNotice(round=step[0], opening=opening, opening_bytes=size)
            for opening, size in sizes.items()
            if opening != NO_DIGEST and opening not in tried
        ]

    async def _sketch(self, audit: Audit, deadline: float) -> Digest | None:
        """The node's own sketch; zero before a dispute, None if a dispute's deadline passes without it."""
        step = (audit.round, audit.node)
        while audit.ruling is AuditStatus.DISPUTED:
            known = self._follower.run_state.audits.get(step, audit).sketch
            if known is not None:
                return known
            shown = self._driver.round.sketch_openings.get(step)
            if shown is not None:
                return shown.sketch
            if trio.current_time() >= deadline:
                return None
            await trio.sleep(SKETCH_POLL_S)
        return NO_DIGEST

    def _in_reference(self, audit: Audit) -> bool:
        """Whether to judge in the reference class although the step may be of our own."""
        now = self._follower.run_state.audits.get((audit.round, audit.node), audit)
        return self._me.spec.audit.limits != NO_DIGEST and judges_in_reference(now)

    def _adverse(self, step: StepId) -> tuple[Verdict, ...]:
        """The chain's verdicts against an audit in dispute."""
        audit = self._follower.run_state.audits.get(step)
        return audit.adverse if audit is not None and audit.ruling is AuditStatus.DISPUTED else ()

    async def _ask(self, audit: Audit, deadline: float) -> None:
        try:
            request = StepRequest(number=int(audit.round), node=self._me.me)
            left_s = max(deadline - trio.current_time(), 0.0)  # nothing, where the event loop was late
            body = await self._host.request(audit.node, "open", encode(request), timeout_s=left_s)
            if body:
                self.opened(audit.node, decode(OpeningNotice, body))
        except (PeerFault, MalformedMessage, Unavailable) as error:
            log.info("node sends no opening", extra={"node": audit.node.hex()[:8], "reason": str(error)})

    async def _fetch_opening(
        self, audit: Audit, opened: OpeningNotice, block_count: int, deadline: float, tried: set[Digest]
    ) -> bool:
        """Have the opening in the store; whether it was fetched for this.

        In a dispute the node's own has `opening_ms`, or up to half of that after the deadline, which leaders
        still wait for. What an accuser names has its share of what is left, until the node announces its own.
        """
        blobs, spec = self._me.blobs, self._me.spec
        size_max = opening_bytes_max(spec.rule, self._layout, block_count) + shown_bytes_max(spec)
        if opened.opening_bytes > size_max:
            raise PeerFault(
                audit.node, f"an opening of {opened.opening_bytes} bytes, at most {size_max} expected"
            )
        if blobs.size(opened.opening) is not None:
            await trio.to_thread.run_sync(blobs.load, opened.opening)  # damaged ones are fetched again
            return False
        accusers = [v.verifier for v in audit.adverse if v.opening == opened.opening]
        holders = (audit.node, *accusers, *self._me.verifiers)
        step, left = (audit.round, audit.node), deadline - trio.current_time()
        is_own = self._openings.get(step) == opened
        if not is_own:
            left = max(left, 1.0) / (1 + len(self._named(step, tried)))
        elif audit.ruling is AuditStatus.DISPUTED:
            opening_s = spec.timing.opening_ms / 1000
            left = max(min(opening_s, left + opening_s / 2), 1.0)
        else:
            left = max(left, 1.0)
        with trio.CancelScope() as scope:
            if not is_own:
                self._fetching[scope] = (step, tried)
                if self._own(step, tried) is not None:
                    scope.cancel()
            try:
                first = audit.node if is_own else None  # who is sure to have it
                body = await fetch_blob(self._host, opened.opening, holders, left, size_max, first)
            except Unavailable as error:
                mine, now = self._openings.get(step), trio.current_time()
                is_since = not is_own and mine is not None and mine.opening == opened.opening
                if is_since and now < deadline + spec.timing.opening_ms / 2000:
                    tried.discard(opened.opening)  # the node has announced it since: it has its own time
                raise MalformedMessage(f"opening that nobody serves: {error}") from None
            finally:
                self._fetching.pop(scope, None)
        if scope.cancelled_caught:
            tried.discard(opened.opening)  # its turn comes again, should the node's own be none
            raise MalformedMessage("set aside: the node announces its own")
        await self._keeper.put(audit.commit, body)  # a full disk is ours: no verdict then
        return True

    def _sign(self, audit: Audit, examined: Examined, opening: Digest, size: int) -> SignedVerdict:
        """A verdict with the result of a recompute."""
        found = examined.finding
        verdict = Verdict(
            run_id=self._me.run_id,
            round=audit.round,
            node=audit.node,
            verifier=self._follower.run_state.seat_of(self._me.me),
            salt=derived_salt(
                bytes(self._me.keys.peer),
                b"verdict",
                self._me.run_id + audit.round.to_bytes(8, "big") + audit.node + audit.pattern,
            ),
            outcome=found.outcome,
            exec_class=examined.exec_class,
            recomputed=found.recomputed,
            witness=found.witness,
            is_biased=found.is_biased,
            opening=opening,
            opening_bytes=size,
            distance_ppb=found.distance_ppb,
            block=found.block,
        )
        return SignedVerdict(verdict=verdict, signature=sign(self._me.keys.peer, self._me.domain, verdict))

    def _commitment(self, verdict: Verdict, audit: Audit) -> SignedVerdictCommitment:
        has_worked = verdict.outcome in RECOMPUTED
        commitment = VerdictCommitment(
            run_id=verdict.run_id,
            round=verdict.round,
            node=verdict.node,
            verifier=verdict.verifier,
            pattern=audit.pattern,
            verdict=digest(verdict),
            in_reference=verdict.exec_class == REFERENCE if has_worked else self._in_reference(audit),
        )
        return SignedVerdictCommitment(
            commitment=commitment, signature=sign(self._me.keys.peer, self._me.domain, commitment)
        )


def _name(audit: Audit) -> str:
    """Key under which the store keeps our verdict of this dispute round."""
    return f"verdict/{int(audit.round)}/{audit.node.hex()}/{audit.pattern.hex()[:16]}"
