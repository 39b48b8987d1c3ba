"""Node service: a node's process, which trains, commits, opens drawn steps and claims its pay.

Room: node (edge). One trio process owns sockets and store; torch runs in the trainer's child process. A
commit is stored before it is sent, and no other commit is ever signed for the same round, whatever happens in
between.

    final round r-1 --> step (durable) --> commit (durable) --> every verifier --> final round r
                        update, if large --> two verifiers --> the others
                        drawn? --> opening --> the assigned auditors
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace

import trio

from assay.chain.commit_statement import sign_commit
from assay.chain.text.units import UNIT, money_text
from assay.ledger.settlement.ending import ending_of
from assay.network.host import Host
from assay.node.attestation import attester_of, keep_attested
from assay.node.messages import StepRecord, TakeStep, TrainerStart, WorkAhead
from assay.node.openings import Openings
from assay.node.progress import report_rounds
from assay.node.seat import (
    announce_data,
    announce_tasks,
    drained,
    leave_when_asked,
    return_when_overdue,
    take_seat,
)
from assay.node.steps import StepFiles
from assay.participant.batch_size import planned_ms
from assay.participant.compute import AtRound, Hold
from assay.participant.config import Config, Door, Participant, open_participant
from assay.participant.evidence_server import EvidenceServer
from assay.participant.follower import Follower, fetch_blob
from assay.participant.following.pruning import Pruner, prune
from assay.participant.following.snapshots import SnapshotFinder, reach_newest
from assay.participant.following.sync import StateSync
from assay.participant.pushes import Pushes, push
from assay.participant.run import participate
from assay.participant.task_lists import show_list
from assay.participant.wallet.claims import claim_everything
from assay.participant.wallet.delegation import watch_delegation
from assay.participant.wallet.discharge import discharge
from assay.participant.wallet.track_records import keep_track_record
from assay.protocol.agreement.quorum import quorum
from assay.protocol.auditing.commitments import derived_salt
from assay.protocol.encoding.codec import Message, decode, decode_any, digest, encode
from assay.protocol.errors import (
    AssayError,
    ConfigError,
    Diverged,
    MalformedMessage,
    PeerFault,
    Unavailable,
)
from assay.protocol.identity import sign, verify
from assay.protocol.known_answers import drawn_tasks, task_secret
from assay.protocol.membership import bound_by
from assay.protocol.messages import (
    FIRST_HAND,
    INLINE_UPDATE_BYTES,
    NO_OWN_DATA,
    Commit,
    OwnData,
    SignedCommit,
    SignedReceipt,
    SignedRefusal,
    Submission,
    TaskList,
)
from assay.protocol.params import MoneySpec
from assay.protocol.run_state import RunState
from assay.protocol.types import Digest, PeerId, RoundId
from assay.training.codec.contribution import aggregate_bytes_max
from assay.training.data.own_data import OwnStream, read_own_data
from assay.training.layout import layout_of
from assay.training.optimiser.public_state import kept_rounds

log = logging.getLogger(__name__)
RETRY_S = 1.0
RESUBMIT_S = 15.0
SUBMIT_S = 40.0
HELD_S, HELD_BYTES_PER_S = 2.0, 1_000_000  # for the first verifiers to acknowledge that they hold an update
NEXT_S = 0.25  # for the second, once the first has; half of what the first took, if that is more
FETCH_S = 60.0
ANSWERS: dict[bytes, type[SignedReceipt] | type[SignedRefusal]] = {
    SignedReceipt.TAG: SignedReceipt,
    SignedRefusal.TAG: SignedRefusal,
}


async def run_node(config: Config) -> None:
    """Take part in a run as a node until cancelled.

    Raises:
        ConfigError: the operator can fix it.
    """
    me = open_participant(config)
    check_price(me.spec.money, config.least_price)
    await Service(me).run()


def own_data_of(me: Participant) -> OwnStream | None:
    """The data that only this node has, which it trains on in this run; None if it trains on the run's.

    Raises:
        ConfigError: the run asks for them, and the configuration names none that fit it.
    """
    if not me.spec.brings_data(me.me):
        return None
    if me.config.own_data is None:
        raise ConfigError(
            "own_data: our seat in this run trains on data that only we have: name the folder of their tokens"
        )
    secret = derived_salt(bytes(me.keys.peer), b"own data", me.run_id)
    return read_own_data(me.config.own_data, me.spec, me.run_id, secret)


def check_bound(run_state: RunState, node: PeerId, own: OwnData) -> None:
    """Do nothing unless a node has bound itself to other data than it has now.

    Raises:
        ConfigError: it has; whatever it would train on now is a lie.
    """
    bound = run_state.nodes[node].own
    if bound not in (own, NO_OWN_DATA):
        raise ConfigError(
            f"own_data: {own.windows} windows under root {own.root.hex()[:8]}, and this node bound itself to "
            f"{bound.windows} under {bound.root.hex()[:8]}: name the folder as it was then"
        )


def check_price(money: MoneySpec, least: int) -> None:
    """Do nothing if a run pays a node at least its operator's reserve price, whatever the model becomes.

    Raises:
        ConfigError: both prices.
    """
    if money.sure_operator_price < least:
        paid, wanted = money_text(money.sure_operator_price), money_text(least)
        sure = " where the model misses its milestones" if money.accept.share_ppm else ""
        raise ConfigError(
            f"this run pays a node {paid} {UNIT} per 10^6 tokens{sure}; least_price asks for {wanted} {UNIT}"
        )


@dataclass(slots=True)
class Sent:
    """When a step was first sent, and which verifiers acknowledged it; delivered once `wanted` have.

    `first_hand` get the update from the node, the others from those of them that hold it.
    """

    at_s: float
    wanted: int
    first_hand: Sequence[PeerId]
    receipts: set[PeerId] = field(default_factory=set)
    news: trio.Event = field(default_factory=trio.Event)

    @property
    def held_by(self) -> tuple[PeerId, ...]:
        """Which of `first_hand` hold the update by their receipts."""
        return tuple(verifier for verifier in self.first_hand if verifier in self.receipts)

    def acknowledged(self, verifier: PeerId) -> None:
        """Note a verifier's receipt."""
        self.receipts.add(verifier)
        self.news.set()
        self.news = trio.Event()

    async def held(self, update_bytes: int) -> None:
        """Return once all of `first_hand` hold the update, or those that do not are not waited for.

        One alone may lie and serve nobody, so the other is waited for as well, if it is about as fast.
        """
        limit_s = HELD_S + FIRST_HAND * update_bytes / HELD_BYTES_PER_S
        with trio.move_on_at(self.at_s + limit_s) as scope:
            while len(self.held_by) < len(self.first_hand):
                await self.news.wait()
                if self.held_by:
                    next_s = max((trio.current_time() - self.at_s) / 2, NEXT_S)
                    scope.deadline = min(scope.deadline, trio.current_time() + next_s)


def first_hand(verifiers: Sequence[PeerId], connected: Collection[PeerId]) -> list[PeerId]:
    """To whom a node sends a large update itself: two at random in each round, connected ones first."""
    drawn = random.sample(verifiers, len(verifiers))
    return sorted(drawn, key=lambda verifier: verifier not in connected)[:FIRST_HAND]


class Service:
    """A node's parts and tasks."""

    def __init__(self, me: Participant) -> None:
        self.me = me
        self._task_secret = task_secret(bytes(me.keys.peer), me.run_id)
        self.tasks = drawn_tasks(self._task_secret, me.spec, me.run_id, me.me)
        self.own_data = own_data_of(me)
        self.own = NO_OWN_DATA if self.own_data is None else self.own_data.bound
        self.follower = Follower(me.spec, me.run_id, me.store)
        self.layout = layout_of(me.spec.model)
        self.pushes = Pushes(aggregate_bytes_max(me.spec, self.layout.blocks))
        module, start = self._trainer()
        self.state_sync = StateSync(
            module=module,
            start=start,
            log_path=me.config.folder / "trainer.log",
            store=me.store,
            blobs=me.blobs,
            fetch=self._fetch,
            snapshots=SnapshotFinder(
                me.spec, me.store, me.config.folder, me.spec.seat_peers, lambda: self._host
            ),
            pushes=self.pushes,
            worked=me.worked,
        )
        self.steps = StepFiles(
            me.config.folder,
            run_id=me.run_id,
            node=me.me,
            rule=me.spec.rule,
            layout=self.layout,
            keep=kept_rounds(me.spec),
        )
        self.attester = attester_of(me.config, me)
        self.openings = self._openings()
        self._host: Host
        self._began_s = self._sending_s = 0.0  # when the round began here; what sending the last step took

    def _openings(self, kind: type[Openings] = Openings) -> Openings:
        return kind(
            self.me,
            self.follower,
            self.state_sync,
            self.steps,
            self.tasks,
            host=lambda: self._host,
            fetch=self._fetch,
            own=self.own_data,
        )

    def _trainer(self) -> tuple[str, Message]:
        """The module of our trainer and its start, see `WorkerProcess`."""
        config = self.me.config
        is_alone = config.processes == 1  # then the whole gradient is where it was computed
        on_device = config.device == "cuda" and is_alone
        return "assay.node.device_trainer" if on_device else "assay.node.trainer", TrainerStart(
            spec=self.me.spec,
            run_id=self.me.run_id,
            node=self.me.me,
            salt_key=derived_salt(bytes(self.me.keys.peer), b"trainer", self.me.run_id),
            workplace=self.me.workplace,
            known_answers=tuple(sorted(map(RoundId, self.tasks.shown))),
            own_data="" if self.own_data is None else str(self.me.config.own_data),
            own=self.own,
        )

    async def run(self) -> None:
        """Serve until cancelled, or until nothing is left to train, to open and to claim."""
        evidence = EvidenceServer(self.me)
        handlers = {"open": self.openings.answer, "evidence": evidence.answer}
        door = Door(handlers={}, is_open=lambda: False, knows=evidence.knows)
        async with participate(self.me, self.follower, handlers, door=door, pushes=self.pushes) as (
            host,
            nursery,
        ):
            self._host = host
            nursery.start_soon(self.openings.run)
            nursery.start_soon(
                return_when_overdue, self.me, self.follower, self.openings.opening, self.openings.say
            )
            nursery.start_soon(leave_when_asked, self.me, self.follower, self.openings.say)
            nursery.start_soon(announce_tasks, self.me, self.follower, self.tasks.root, self.openings.say)
            nursery.start_soon(self._claim, claimed := trio.Event())
            nursery.start_soon(report_rounds, self.me, self.follower)
            nursery.start_soon(watch_delegation, self.me)
            if self.attester is not None:
                nursery.start_soon(keep_attested, self.me, host, self.follower, self.attester)
            log.info("node is up", extra={"peer": self.me.me.hex()[:8]})
            if not await take_seat(self.me, self.follower, self.state_sync, host):
                return
            check_bound(self.follower.run_state, self.me.me, self.own)
            nursery.start_soon(announce_data, self.me, self.follower, self.own, self.openings.say)
            nursery.start_soon(self._fetch_ahead)
            pruner = Pruner(self.me.spec, self.me.store, self.me.blobs, kept_rounds(self.me.spec))
            nursery.start_soon(prune, self.follower, pruner)
            nursery.start_soon(self._keep_for_appeal)
            nursery.start_soon(evidence.follow_jurors)
            await self._train()
            await drained(self.me, self.follower)
            if self.tasks.counts_from(self.follower.run_state):
                shown = TaskList(run_id=self.me.run_id, node=self.me.me, secret=self._task_secret)
                await show_list(host, self.follower.run_state.holders, shown)
            await keep_track_record(self.me, host, self.follower.run_state)
            ending = asdict(ending_of(self.follower.run_state))
            if self._has_left():  # whoever leaves need not wait for its pay: others claim for it
                reason = bound_by(self.follower.run_state, self.me.me)
                ending["lot"] = f"bound: {reason}" if reason else await discharge(self.me, host)
            else:
                await claimed.wait()
                await evidence.until_judged()
            log.info("ended: no step of ours can be drawn any more", extra=ending)

    async def _claim(self, claimed: trio.Event) -> None:
        await claim_everything(self.me, self.follower)
        claimed.set()

    # ---- training ----

    def _has_left(self) -> bool:
        return self.follower.run_state.nodes[self.me.me].has_left

    async def _train(self) -> None:
        while self.follower.run_state.is_training:
            run_state = self.follower.run_state
            if self._has_left():
                log.info("our seat is given up", extra={"round": int(run_state.round)})
                return
            if run_state.nodes[self.me.me].banned:
                log.warning("banned from training", extra={"round": int(run_state.round)})
                return
            if self.me.me in run_state.late:
                log.warning(
                    "not training: an opening of ours is overdue", extra={"round": int(run_state.round)}
                )
                await self.follower.grown(int(run_state.round))
                continue
            if run_state.awaits_nodes:
                log.info(
                    "waiting for other nodes: the run has not started",
                    extra={"needed": self.me.spec.least_nodes, "until_s": self.me.spec.start_by_s},
                )
                await self.follower.grown(int(run_state.round))
                continue
            if self.me.me in run_state.unannounced:
                log.info(
                    "waiting: the chain has not bound us to our data yet",
                    extra={"windows": self.own.windows, "root": self.own.root.hex()[:16]},
                )
                await self.follower.grown(int(run_state.round))
                continue
            if self.state_sync.is_far(int(run_state.round)):
                await self._come_near()
                continue
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._contribute, run_state)
                    await self.follower.grown(int(run_state.round))
                    scope.cancel()
        log.info("training is over", extra=asdict(ending_of(self.follower.run_state)))

    async def _come_near(self) -> None:
        """Bring the parameters to the newest round, also if more rounds end before they are there."""
        try:
            await reach_newest(self.follower, self.state_sync)
        except (Unavailable, Diverged) as error:
            at = int(self.follower.run_state.round)
            log.warning("no parameters yet", extra={"round": at, "reason": str(error)})
            await trio.sleep(RETRY_S)

    async def _keep_for_appeal(self) -> None:
        """Keep the parameters that a convicted step started from, which its appeal needs; ends with that."""
        while not self._is_banned:
            await self.follower.grown(int(self.follower.run_state.round))
        wanted = RoundId(self.follower.run_state.nodes[self.me.me].fault_round)
        try:
            await self.state_sync.child.call(Hold(rounds=(wanted,)), AtRound)
        except AssayError as error:
            log.error("no appeal is possible: the step's parameters are gone", extra={"reason": str(error)})

    @property
    def _is_banned(self) -> bool:
        record = self.follower.run_state.nodes.get(self.me.me)
        return record is not None and record.banned

    async def _contribute(self, run_state: RunState) -> None:
        """Send this round's commit to every verifier, repeatedly until the round is final.

        A large update goes to two of them, and the commit to the others once these hold it.
        """
        submission, self._began_s = None, trio.current_time()
        while submission is None:
            try:
                await self.state_sync.reach(int(run_state.round))
                await self._funded(run_state)
                submission = await self._submission(run_state)
            except (Unavailable, Diverged) as error:
                log.warning("no step yet", extra={"round": int(run_state.round), "reason": str(error)})
                await trio.sleep(RETRY_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hand_in, run_state.holders, submission)
            if self.me.spec.rule.read_lag and run_state.is_paid_for(run_state.round + 1):
                nursery.start_soon(self._work_ahead, submission.signed.commit)

    async def _hand_in(self, verifiers: Sequence[PeerId], submission: Submission) -> None:
        """Send a commit to all these verifiers until cancelled, first to those that get its update here."""
        first = verifiers if submission.update else first_hand(verifiers, self._host.connected())
        sent = Sent(trio.current_time(), quorum(len(verifiers)), first)
        async with trio.open_nursery() as nursery:
            for verifier in first:
                nursery.start_soon(self._submit, verifier, submission, sent)
            if len(first) < len(verifiers):
                await sent.held(submission.signed.commit.update_bytes)
            for verifier in verifiers:
                if verifier not in first:
                    nursery.start_soon(self._submit, verifier, submission, sent)

    async def _fetch_ahead(self) -> None:
        """Have each new aggregate here before the trainer, which may still be at work, can take it."""
        while True:
            run_state = await self.follower.grown(int(self.follower.run_state.round))
            last = next(iter(self.me.store.links(int(run_state.round) - 1, 1)))
            try:
                await self.state_sync.aggregate(last.manifest.aggregate)
            except Unavailable as error:
                log.info("aggregate not fetched yet", extra={"reason": str(error)})

    async def _funded(self, run_state: RunState) -> None:
        """Wait until a quorum of verifiers finds the round paid for: what is not paid for is not begun."""
        if not self.follower.is_funded:
            epoch = run_state.epoch_of(int(run_state.round))
            log.warning(
                "waiting: no quorum of verifiers finds the epoch funded in the escrow",
                extra={"round": int(run_state.round), "epoch": epoch},
            )
            await self.follower.funded()
            log.info("epoch is funded", extra={"round": int(run_state.round), "epoch": epoch})

    async def _work_ahead(self, commit: Commit) -> None:
        """Do the next round's local work during consensus on this one; it ends before the round begins."""
        try:
            ahead = RoundId(commit.round + 1)
            request = WorkAhead(
                round=ahead,
                tasks_from=self.tasks.counts_from(self.follower.run_state),
                base=commit.round + 1,
                base_root=commit.momentum_after,
                left_ms=self._left_ms(0.0),
                seat=commit.seat,
            )
            await self.state_sync.child.call(request, AtRound)
        except (Unavailable, Diverged) as error:
            log.info("no work ahead", extra={"round": int(commit.round) + 1, "reason": str(error)})

    async def _submission(self, run_state: RunState) -> Submission:
        """The one commit for this round: the stored one, or a new one, stored before it is returned."""
        name = f"commit/{int(run_state.round)}"
        kept = self.me.store.value(name)
        if kept is not None:
            return decode(Submission, kept)
        record = await self._step(run_state)
        self.me.blobs.put(record.update)
        inline = record.update if len(record.update) <= INLINE_UPDATE_BYTES else b""
        submission = Submission(signed=self._signed(record.commit), update=inline)
        self.me.store.set_value(name, encode(submission))
        self.me.store.drop_values(
            "commit/", {f"commit/{r}" for r in range(int(run_state.round) - 2, int(run_state.round) + 1)}
        )
        return submission

    def _signed(self, commit: Commit) -> SignedCommit:
        return SignedCommit(
            commit=commit,
            signature=sign(self.me.keys.peer, self.me.domain, commit),
            statement=sign_commit(self.me.spec, self.me.deployment, commit, self.me.keys.hot),
        )

    async def _step(self, run_state: RunState) -> StepRecord:
        """The trainer's step, starting from our last accepted momentum."""
        accepted = run_state.nodes[self.me.me]
        request = TakeStep(
            round=run_state.round,
            tasks_from=self.tasks.counts_from(run_state),
            parent=run_state.parent,
            base=accepted.base,
            base_root=accepted.momentum,
            left_ms=self._left_ms(trio.current_time() - self._began_s),
            seat=run_state.drawing_seat(self.me.me),
        )
        return await self.state_sync.child.call(request, StepRecord)

    def _left_ms(self, passed_s: float) -> int:
        """How long a step may take, `passed_s` into its round; 0 where all steps are of one size."""
        if self.me.spec.tokens_per_step == self.me.spec.most_tokens_per_step:
            return 0
        return max(planned_ms(self.me.spec.timing) - int((passed_s + self._sending_s) * 1000), 0)

    async def _submit(self, verifier: PeerId, submission: Submission, sent: Sent) -> None:
        """Send the commit to one verifier until cancelled: a restarted verifier has lost it."""
        commit = submission.signed.commit
        refused = ""
        is_first = verifier in sent.first_hand
        if is_first and not submission.update:
            await self._push_update(verifier, commit)
        while True:
            try:
                told = submission if is_first else replace(submission, held_by=sent.held_by)
                body = await self._host.request(verifier, "submit", encode(told), timeout_s=SUBMIT_S)
                answer: SignedReceipt | SignedRefusal = decode_any(ANSWERS, body)
                if isinstance(answer, SignedRefusal):
                    raise self._refused(verifier, commit, answer)
                receipt = answer
                verify(verifier, self.me.domain, receipt.receipt, receipt.signature)
                seat = self.follower.run_state.seat_of(verifier)
                if receipt.receipt.commit != digest(commit) or receipt.receipt.verifier != seat:
                    raise PeerFault(verifier, "receipt for another commit")
                self.me.store.set_value(f"receipt/{int(commit.round)}/{verifier.hex()[:8]}", body)
                if verifier not in sent.receipts:
                    sent.acknowledged(verifier)
                    if len(sent.receipts) == sent.wanted:
                        self._sending_s = trio.current_time() - sent.at_s
                await trio.sleep(RESUBMIT_S)
            except Unavailable:
                await trio.sleep(RETRY_S)
            except (PeerFault, MalformedMessage) as fault:
                if str(fault) != refused:  # once, not every second
                    refused = str(fault)
                    log.warning("commit refused", extra={"verifier": verifier.hex()[:8], "reason": refused})
                await trio.sleep(RETRY_S)

    async def _push_update(self, verifier: PeerId, commit: Commit) -> None:
        """Send an update that does not fit beside its commit ahead of it, so that nobody has to pull it."""
        try:
            body = await trio.to_thread.run_sync(self.me.blobs.load, commit.update)
        except Unavailable as error:  # damaged on our disk
            log.error("update not pushed", extra={"round": int(commit.round), "reason": str(error)})
        else:
            await push(self._host, verifier, commit.update, body)

    def _refused(self, verifier: PeerId, commit: Commit, signed: SignedRefusal) -> PeerFault:
        """Store a verifier's signed refusal: with commit and update anybody can check its reason."""
        refusal = signed.refusal
        verify(verifier, self.me.domain, refusal, signed.signature)
        if refusal.commit != digest(commit) or refusal.verifier != self.follower.run_state.seat_of(verifier):
            return PeerFault(verifier, "refuses another commit")
        self.me.store.set_value(f"refusal/{int(commit.round)}/{verifier.hex()[:8]}", encode(signed))
        return PeerFault(verifier, f"refuses: {refusal.reason}")

    # ---- the network ----

    async def _fetch(self, name: Digest) -> bytes:
        return await fetch_blob(self._host, name, self.me.spec.seat_peers, FETCH_S)
