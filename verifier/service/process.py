"""Verifier process: opens a verifier's parts and answers its peers.

Room: verifier (edge). One trio process owns sockets, store and state machines; torch runs in the audit
worker's child process. Nothing is signed before it is stored. The parts: `driver` runs consensus,
`audit_runner` the audits, `chain_duties` the work for the contracts.
"""

from __future__ import annotations

import logging
import time
from typing import Any
from weakref import WeakValueDictionary

import trio

from assay.chain.penalties import check_absence, check_penalties
from assay.ledger.settlement.funding import check_close_delay, closing_s
from assay.network.host import Handler, Host, Notification
from assay.participant.config import Config, Door, Participant, open_participant
from assay.participant.evidence_server import EvidenceServer
from assay.participant.follower import Follower, fetch_blob
from assay.participant.following.pruning import Pruner, prune
from assay.participant.following.snapshots import SnapshotFinder, SnapshotServer, reach_newest
from assay.participant.following.sync import StateSync
from assay.participant.keys.high_water import HighWater
from assay.participant.opening_keeper import STORE_SHARE, OpeningKeeper, is_undisputable, keep_openings
from assay.participant.pushes import Pushes
from assay.participant.run import participate
from assay.participant.wallet.claims import open_chain
from assay.participant.wallet.delegation import watch_delegation
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode, decode_any, digest, encode
from assay.protocol.errors import ConfigError, MalformedMessage, OutOfPhase, PeerFault, Unavailable
from assay.protocol.identity import sign
from assay.protocol.messages import (
    REASON_CHARS_MAX,
    BeaconShare,
    BlobPiece,
    CertifiedManifest,
    Contradiction,
    DoubleVote,
    KnownAnswer,
    OpeningNotice,
    Proposal,
    QuorumCertificate,
    Receipt,
    Refusal,
    SignedAdmission,
    SignedAppraisal,
    SignedAttendance,
    SignedBlock,
    SignedEvaluation,
    SignedEvaluationCommitment,
    SignedFundingReport,
    SignedInclusionList,
    SignedReceipt,
    SignedRefusal,
    SignedSeatNotice,
    SignedStakeReport,
    SignedVerdict,
    SignedVerdictCommitment,
    SignedVote,
    SketchOpening,
    StepRequest,
    Submission,
)
from assay.protocol.randomness.drand import AHEAD_S, has_begun
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, NO_PEER, Digest, PeerId
from assay.training.codec.contribution import contribution_bytes_max, decode_contribution
from assay.training.fragments import check_fragments
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
from assay.training.optimiser.public_state import THETA
from assay.verifier.aggregation.combine import rounds_behind
from assay.verifier.aggregation.registry import check_aggregation
from assay.verifier.audit.limits import agreed_limits
from assay.verifier.audit.messages import RecomputeStart, longest_opening
from assay.verifier.round import machine as rounds
from assay.verifier.round.commits import Rules
from assay.verifier.round.machine import DrandRound, Round
from assay.verifier.service.accusations import Accusations
from assay.verifier.service.applications import Applications
from assay.verifier.service.appraiser import Appraiser
from assay.verifier.service.audit_runner import AuditRunner
from assay.verifier.service.chain_duties import ChainDuties
from assay.verifier.service.drand_client import DrandClient
from assay.verifier.service.driver import RETRY_S, Driver
from assay.verifier.service.evaluator import Evaluator
from assay.verifier.service.funding_watch import FundingWatch
from assay.verifier.service.proposer import now_ms
from assay.verifier.service.relay import Relay
from assay.verifier.service.stake_watch import StakeWatch
from assay.verifier.service.standby import RESIGN, Standby
from assay.verifier.service.witness import Witness

log = logging.getLogger(__name__)
TICK_S = 0.1
SUBMIT_WAIT_S = 30.0  # how long a commit for the next round may wait for our own round to end
FETCH_S = 60.0
SIGNED_MARK = "signed.mark"
FACTS = {
    kind.TAG: kind
    for kind in (
        SignedVote,
        SignedBlock,
        Proposal,
        QuorumCertificate,
        BeaconShare,
        SignedVerdictCommitment,
        SignedVerdict,
        Contradiction,
        DoubleVote,
        SignedAppraisal,
        SignedStakeReport,
        SignedEvaluation,
        SignedEvaluationCommitment,
        SignedFundingReport,
        SignedInclusionList,
        SignedAdmission,
        SignedSeatNotice,
        CertifiedManifest,
        BlobPiece,
    )
}
OPENED: dict[bytes, type[SketchOpening] | type[KnownAnswer] | type[SignedAttendance]] = {
    SignedAttendance.TAG: SignedAttendance,
    SketchOpening.TAG: SketchOpening,
    KnownAnswer.TAG: KnownAnswer,
}


async def run_verifier(config: Config, audit_runner: type[AuditRunner] = AuditRunner) -> None:
    """Take part in a run as a verifier until cancelled.

    Args:
        config: The operator's.
        audit_runner: What does its audits.

    Raises:
        ConfigError: the operator can fix it.
        Diverged: our state is not the one we signed for; stop rather than sign a wrong one.
    """
    me = open_participant(config)
    me.keys.check_unattended("a verifier")
    try:
        check_aggregation(me.spec.rule)
        check_fragments(layout_of(me.spec.model), me.spec.rule.fragments)
        agreed_limits(me.spec, me.config.limits)
    except ValueError as fault:
        raise ConfigError(f"this run cannot be verified by us: {fault}") from None
    if me.spec.audit.drand.is_used and not me.config.drand:
        raise ConfigError("this run draws by a drand network too: say in the file where to ask it, as drand")
    if not has_begun(me.spec.audit.drand, int(time.time())):
        raise ConfigError(
            f"the drand network of this run begins at {me.spec.audit.drand.genesis_s} (Unix time), "
            f"expected no later than {AHEAD_S} s from now: no manifest could name a round of it"
        )
    await trio.to_thread.run_sync(_check_contracts, me)
    await Service(me, audit_runner).run()


def _check_contracts(me: Participant) -> None:
    """Refuse a run whose rules the contracts would not carry out; without an endpoint, only say so.

    Of a run that we have manifests of, only say so as well: others depend on us, and it was not refused then.
    """
    try:
        chain = open_chain(me)
        check_penalties(me.spec.money, chain.case_ppm_max())
        check_absence(me.spec.audit, chain.evidence_window())
        final = chain.final_escrow(me.run_id)
        spec = me.spec
        need_s = closing_s(spec.audit, spec.timing, len(spec.verifiers), spec.money.epoch_rounds)
        check_close_delay(need_s, chain.close_delay(), final.newest_s - final.time_s)
    except ConfigError as error:
        if not any(me.store.link_bodies(0, 1)):
            raise
        log.warning("the contracts may not carry this run's rules out", extra={"reason": str(error)})
    except Unavailable as error:
        log.warning("rules not compared with the contracts", extra={"reason": str(error)})


class Service:
    """A verifier's parts, and the handlers that peers can call."""

    def __init__(self, me: Participant, audit_runner: type[AuditRunner]) -> None:
        self.me, self._audit_runner_type = me, audit_runner
        self.follower = Follower(me.spec, me.run_id, me.store)
        self.high_water = HighWater(me.config.signed_mark or me.config.folder / SIGNED_MARK)
        self.layout = layout_of(me.spec.model)
        self.pushes = Pushes(contribution_bytes_max(me.spec.rule, self.layout.blocks))
        self._start = RecomputeStart(
            spec=me.spec,
            workplace=me.workplace,
            limits="" if me.config.limits is None else str(me.config.limits),
        )
        self.state_sync = StateSync(
            module="assay.verifier.audit.worker",
            start=self._start,
            log_path=me.config.folder / "recompute-worker.log",
            store=me.store,
            blobs=me.blobs,
            fetch=self._fetch,
            snapshots=SnapshotFinder(
                me.spec, me.store, me.config.folder, me.spec.seat_peers, lambda: self._host
            ),
            worked=me.worked,
        )
        self.keeper = OpeningKeeper(
            me.store,
            me.blobs,
            bytes_max=lambda: me.blobs.bytes_max // STORE_SHARE,
            opening_bytes_max=longest_opening(me.spec),
        )
        self._drand = DrandClient(me.spec.audit.drand, me.config.drand, self._released)
        self._submitting = WeakValueDictionary[PeerId, trio.Lock]()  # by node, while it submits
        self.relay = Relay(me.spec.seat_peers, contribution_bytes_max(me.spec.rule, self.layout.blocks))
        self._host: Host
        self.driver: Driver
        self.audit_runner: AuditRunner

    async def run(self) -> None:
        """Serve until cancelled."""
        chain_duties = ChainDuties(self.me, self.follower, self.state_sync)
        applications = Applications(self.me, self.follower, self._report, lambda: int(time.time()))
        accusations = Accusations(
            self.me,
            self.follower,
            lambda: self._host,
            self._start,
            self._archived,
            chain_duties.appeals.keep,
            lambda: int(time.time()),
        )
        evidence = EvidenceServer(self.me)
        door = Door(
            handlers={**applications.handlers, **accusations.handlers},
            is_open=lambda: applications.is_open() or accusations.is_open(),
            knows=lambda peer: applications.knows(peer) or evidence.knows(peer),
        )
        appraiser = Appraiser(
            self.me,
            self.follower,
            self._publish,
            lambda: int(time.time()),
            lambda peer, *work: self._host.in_thread(peer, *work),
        )
        handlers: dict[str, Handler] = {
            "submit": self._on_submit,
            "proposal": self._on_proposal_request,
            "commit": self._on_commit_request,
            "opened": self._on_opened,
            "shown": self._on_shown,
            "attest": appraiser.answer,
            "evidence": evidence.answer,
            "snapshot": SnapshotServer(self.me.config.folder / THETA, self.me.blobs, self.me.store).answer,
            **chain_duties.handlers,
            **accusations.handlers,
            **Witness(self.me, lambda: int(time.time())).handlers,
        }
        ready = trio.Event()

        async with participate(self.me, self.follower, handlers, self._take_notification, ready, door) as (
            host,
            nursery,
        ):
            self._host = host
            first, state = await self._begin(host)
            rules = Rules(
                deployment=self.me.deployment,
                domain=self.me.domain,
                zero_momentum=zero_root(self.me.run_id, self.me.spec.rule, self.layout.blocks),
                block_count=self.layout.blocks,
            )
            opening = Round(rules=rules, run_state=first, state=state, opened_ms=now_ms())
            self.driver = Driver(
                self.me,
                host,
                self.follower,
                self.state_sync,
                nursery,
                opening,
                self._update,
                self._drand.want,
                self.high_water,
            )
            self.audit_runner = self._audit_runner_type(
                self.me, host, self.follower, self.state_sync, nursery, self.driver, self._update, self.keeper
            )
            ready.set()
            log.info("verifier is up", extra={"round": int(first.round), "peer": self.me.me.hex()[:8]})
            nursery.start_soon(appraiser.run)
            nursery.start_soon(self._drand.run)
            nursery.start_soon(watch_delegation, self.me)
            standby = Standby(
                self.me,
                self.follower,
                opened=lambda: self.driver.round.run_state.round,
                resigns=(self.me.config.folder / RESIGN).exists,
                broadcast=self._report,
            )
            nursery.start_soon(standby.run)
            nursery.start_soon(StakeWatch(self.me, self.follower, self._report).run)
            nursery.start_soon(FundingWatch(self.me, self.follower, self._report_funding).run)
            nursery.start_soon(Evaluator(self.me, self.follower, self.state_sync, self._report).run)
            nursery.start_soon(self._tick)
            nursery.start_soon(self.driver.follow_parameters)
            nursery.start_soon(self.audit_runner.run)
            nursery.start_soon(chain_duties.run, host)
            nursery.start_soon(chain_duties.settler().run, host)
            nursery.start_soon(accusations.run)
            nursery.start_soon(evidence.follow_jurors)
            nursery.start_soon(self._poll_when_stuck)
            nursery.start_soon(prune, self.follower, self._pruner())
            nursery.start_soon(self._keep_openings)
            await trio.sleep_forever()

    async def _begin(self, host: Host) -> tuple[RunState, Digest]:
        """The newest round whose parameters are here, and their digest.

        If many rounds of our own chain are missing, others' snapshots may be of later ones than it has: so it
        grows meanwhile.
        """
        await self.state_sync.come_near(lambda: 0)
        async with trio.open_nursery() as nursery:
            if self._is_far():
                nursery.start_soon(self.follower.poll, host, self.me.verifiers)
            while True:
                try:
                    if self._is_far():
                        await reach_newest(self.follower, self.state_sync)
                    run_state = self.follower.run_state
                    state = await self.state_sync.reach(min(int(run_state.round), run_state.training_rounds))
                    nursery.cancel_scope.cancel()
                    return run_state, state
                except Unavailable as error:
                    at = int(self.follower.run_state.round)
                    log.warning("no parameters yet", extra={"round": at, "reason": str(error)})
                    await trio.sleep(RETRY_S)

    def _is_far(self) -> bool:
        run_state = self.follower.run_state
        return self.state_sync.is_far(min(int(run_state.round), run_state.training_rounds))

    async def _keep_openings(self) -> None:
        await keep_openings(
            self.keeper,
            self._host,
            self.follower,
            me=self.me.me,
            is_over=lambda: is_undisputable(self.me.readings, self.follower.run_state),
        )

    def _pruner(self) -> Pruner:
        # Audits reach back this far, and a restart rebuilds the nodes' reputation from this many rounds.
        kept = self.me.spec.closing_rounds + 2 + 2 * rounds_behind(self.me.spec)
        return Pruner(self.me.spec, self.me.store, self.me.blobs, kept)

    def _take_notification(self, notification: Notification) -> None:
        message: Any = decode_any(FACTS, notification.payload)
        if isinstance(message, BlobPiece):
            if notification.peer in self.follower.run_state.nodes:
                self.pushes.take(notification.peer, message)
            return
        if not isinstance(message, CertifiedManifest) and notification.peer not in self.me.spec.seat_peers:
            raise PeerFault(notification.peer, f"sends a {type(message).__name__}, which only verifiers do")
        match message:
            case SignedVote() | SignedBlock() | Proposal() | QuorumCertificate():
                self.driver.receive(message)
            case CertifiedManifest():
                self.driver.synced((message,))
            case Contradiction() | DoubleVote():  # evidence: any verifier may pass it on
                self.driver.take(message)
            case SignedSeatNotice(notice=notice) if notification.peer == notice.holder:
                self.driver.take(message)
            case _:
                said, seat = rounds.said_in(message), self.follower.run_state.seat_of(notification.peer)
                if seat == NO_PEER:  # it held one a moment ago, or will: one of us has not heard of it yet
                    raise OutOfPhase(notification.peer, f"{type(message).__name__} without a seat")
                if isinstance(message, BeaconShare) and seat != said.verifier:  # it authenticates itself
                    self.driver.take_passed_on(message, notification.peer)
                    return
                if isinstance(message, SignedSeatNotice) or seat != said.verifier:
                    raise PeerFault(
                        notification.peer, f"passes on another verifier's {type(message).__name__}"
                    )
                try:
                    self.driver.take(message)
                except PeerFault:
                    if self.driver.round.run_state.key(seat) == notification.peer:
                        raise
                    reason = f"{type(message).__name__} before our round has heard of its seat"
                    raise OutOfPhase(notification.peer, reason) from None

    async def _tick(self) -> None:
        while True:
            self.driver.tick()
            await trio.sleep(TICK_S)

    async def _poll_when_stuck(self) -> None:
        """Poll for missed manifests when the chain stands still, even if no peer reports that we lag."""
        while True:
            before = self.follower.run_state.round
            await trio.sleep(5)
            if self.follower.run_state.round == before and not self.follower.run_state.is_complete:
                await self.driver.sync()

    async def _on_submit(self, peer: PeerId, body: bytes) -> bytes:
        """A node's commit and update in, a signed receipt or a signed refusal out."""
        submission = decode(Submission, body)
        commit = submission.signed.commit
        if commit.node != peer:
            raise PeerFault(peer, f"submits a commit of {commit.node.hex()[:8]}")
        seat = self.follower.run_state.seat_of(self.me.me)
        if seat == NO_PEER:
            raise Unavailable("holds no seat of a verifier now")
        try:
            await self._take(submission, peer)
        except OutOfPhase:
            raise  # of another round: no fault in itself
        except (PeerFault, MalformedMessage) as fault:
            log.warning("commit refused", extra={"node": peer.hex()[:8], "reason": str(fault)})
            refusal = Refusal(
                run_id=self.me.run_id,
                round=commit.round,
                node=peer,
                commit=digest(commit),
                verifier=seat,
                reason=str(fault)[:REASON_CHARS_MAX],
            )
            signature = sign(self.me.keys.peer, self.me.domain, refusal)
            return encode(SignedRefusal(refusal=refusal, signature=signature))
        receipt = Receipt(
            run_id=self.me.run_id, round=commit.round, node=peer, commit=digest(commit), verifier=seat
        )
        signature = sign(self.me.keys.peer, self.me.domain, receipt)
        return encode(SignedReceipt(receipt=receipt, signature=signature))

    async def _take(self, submission: Submission, peer: PeerId) -> None:
        """Hold a commit with its update for the manifest to come.

        Raises:
            OutOfPhase, PeerFault, MalformedMessage, Unavailable: why it is not taken.
        """
        commit = submission.signed.commit
        with trio.move_on_after(SUBMIT_WAIT_S):
            # One round ahead of us: the node learned of the last manifest first. Anything further is a fault.
            while self.driver.round.run_state.round < commit.round <= self.follower.run_state.round + 1:
                await self.driver.round_opened()
        async with self._submitting.setdefault(peer, trio.Lock()):  # an update takes memory and a thread
            self.driver.admit(submission.signed)  # before we store anything for a peer
            if commit.node in self.driver.round.commits:
                return
            await self._hold_update(submission)
            self.driver.take(submission.signed)

    async def _hold_update(self, submission: Submission) -> None:
        """Store the update of a commit, complete and decodable; one already stored is checked alike."""
        commit, blobs, data = submission.signed.commit, self.me.blobs, submission.update
        name, node = commit.update, commit.node
        is_here = blobs.size(name) is not None
        if not is_here and not data:
            data = (
                await self.relay.update(self._host, commit, submission.held_by)
                or await self.pushes.whole(name)
                or await fetch_blob(self._host, name, (node,), FETCH_S, max(commit.update_bytes, 1))
            )

        def keep() -> None:
            body = blobs.load(name) if is_here else data
            if blob_digest(body) != name or len(body) != commit.update_bytes:
                raise PeerFault(node, f"update of {len(body)} bytes is not the one committed to")
            decode_contribution(self.me.spec, self.layout, int(commit.round), body)
            if not is_here:
                blobs.put(body)

        await self._host.in_thread(node, keep)  # hashing, decoding and the disk must not hold up votes

    async def _on_proposal_request(self, peer: PeerId, body: bytes) -> bytes:
        if peer not in self.me.spec.seat_peers:  # only verifiers see commits before their round is final
            raise PeerFault(peer, "asks for a proposal, which only verifiers may")
        found = self.driver.body(Digest(body))
        if found is None:
            raise Unavailable("no such proposal here")
        return encode(found)

    async def _on_commit_request(self, peer: PeerId, body: bytes) -> bytes:
        if peer not in self.me.spec.seat_peers:  # as above
            raise PeerFault(peer, "asks for a commit, which only verifiers may")
        request = decode(StepRequest, body)
        found = self.driver.commit_of(request.number, request.node)
        if found is None:
            raise Unavailable(f"no commit of {request.node.hex()[:8]} for round {request.number} here")
        return encode(found)

    async def _on_opened(self, peer: PeerId, body: bytes) -> bytes:
        self.audit_runner.opened(peer, decode(OpeningNotice, body))
        return b""

    async def _on_shown(self, peer: PeerId, body: bytes) -> bytes:
        """A drawn node opens its sketch commitment, proves a known-answer task, or speaks of itself."""
        message: SketchOpening | KnownAnswer | SignedAttendance = decode_any(OPENED, body)
        node = message.attendance.node if isinstance(message, SignedAttendance) else message.node
        if node != peer:
            raise PeerFault(peer, f"sends a {type(message).__name__} of {node.hex()[:8]}")
        self.driver.take(message)
        return b""

    async def _publish(self, signed: SignedAppraisal) -> None:
        """Pass our own appraisal to our round, once it has come so far, and to all verifiers."""
        while self.driver.round.run_state.round <= signed.appraised.round:
            await self.driver.round_opened()
        self.driver.take(signed)
        self.driver.broadcast(encode(signed))

    def _report(
        self,
        signed: SignedStakeReport
        | SignedAdmission
        | SignedEvaluation
        | SignedEvaluationCommitment
        | SignedSeatNotice,
    ) -> None:
        """Pass what we found to our round, and to all verifiers."""
        self._take_own(signed)
        self.driver.broadcast(encode(signed))

    def _report_funding(self, signed: SignedFundingReport) -> None:
        """Pass our own reading of the escrow to our round, to all verifiers and to whoever follows us."""
        self._take_own(signed)
        self.driver.post(self._host.connected(), encode(signed))

    def _take_own(self, signed: rounds.Event) -> None:
        """Give our round what we found, if it is time for that.

        Our round opens some time after the manifest that gave us our seat is final; until then it takes
        statements of the seat for the former holder's, and ours come again.
        """
        try:
            self.driver.take(signed)
        except (OutOfPhase, PeerFault) as late:
            log.debug("report out of phase", extra={"reason": str(late)})

    def _released(self, number: int, signature: bytes) -> None:
        self.driver.take(DrandRound(number, signature))

    async def _update(self, round_id: int, name: Digest, holders: tuple[PeerId, ...]) -> bytes:
        """An update's bytes, ours or fetched; decodable, or the sender is at fault.

        Raises:
            Unavailable, MalformedMessage.
        """
        if self.me.blobs.size(name) is None:
            size_max = contribution_bytes_max(self.me.spec.rule, self.layout.blocks)
            data = await fetch_blob(self._host, name, holders, FETCH_S, size_max)
            decode_contribution(self.me.spec, self.layout, round_id, data)
            self.me.blobs.put(data)
        return self.me.blobs.load(name)

    async def _fetch(self, name: Digest) -> bytes:
        """An aggregate from another verifier, or from whoever keeps what verifiers have deleted."""
        members = tuple(self.me.addresses)
        others = self.me.addresses.keys() - set(self.me.verifiers)
        return await fetch_blob(self._host, name, members, FETCH_S, last=others)

    async def _archived(self, name: Digest) -> bytes:
        """An aggregate of any round; empty if there was none."""
        if name == NO_DIGEST or self.me.blobs.size(name) is not None:
            return b"" if name == NO_DIGEST else self.me.blobs.load(name)
        return await self._fetch(name)
