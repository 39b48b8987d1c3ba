"""Accusations: makes steps again that somebody found false outside the audits, and signs orders about them.

Room: verifier (edge: the chain in threads, a folder; a worker of its own computes). After a run's last round
the whole of it is public, and whoever replays it may find a step that no audit drew. Of a node that left
steps are heard of as soon as its lot may be discharged, for the lot may be gone at the run's end. A verifier
believes nobody: it makes the node's state again by the steps that lead to it, in its own execution class.
Work that anybody could order would be a weapon: only the buyer and accounts with stake may accuse, one
accusation is looked into at a time, and an account that accused a step that holds, or one behind a lie, is
not heard again.

A step that may be a known-answer task, false on order, is not looked into before its node has shown its list,
which it does at the end, or has let the time for that pass. Who takes a list passes it on to the other
verifiers, and who has none asks them before it looks: a list that some have would split the verifiers. What
was found without it is open again once it comes.

    accused --queued--> made again --differs at the step--> order signed, for the first accuser
                                   '--otherwise--> the reason, for everybody

Once the first accuser's commitment on chain has run out without a case, the order is signed for others, too:
else the cheat's own friend would accuse first, and open none.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeVar

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.statements import OPERATOR, VERIFIER, sign_digest
from assay.ledger.settlement.results import accused_order_of
from assay.network.host import Handler, Host
from assay.participant.compute import Apply, State
from assay.participant.config import Participant
from assay.participant.files.shown_list import keep_list, kept_lists, kept_secret
from assay.participant.follower import Follower
from assay.participant.store import Store
from assay.participant.task_lists import ASK, SHOW, find_list, show_list
from assay.participant.wallet.claims import open_chain
from assay.participant.worker import WorkerProcess
from assay.protocol.auditing.audits import case_id_of
from assay.protocol.encoding.codec import Message, decode, encode
from assay.protocol.errors import AssayError, Diverged, NotYet, Unavailable
from assay.protocol.known_answers import false_rounds, is_announced
from assay.protocol.membership import bound_by, is_drained
from assay.protocol.messages import Accusation, CertifiedManifest, Commit, TaskList
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, Address, Digest, PeerId
from assay.verifier.audit.messages import RecomputeStart, Remade, RemakeStep, Traced, TraceStep
from assay.verifier.audit.remake import STEPS_MAX, lineage

log = logging.getLogger(__name__)
A = TypeVar("A", bound=Message)
ACCUSED, CLEARED, HONEST, ALONE = "accused/", "cleared/", "honest/", "alone/"  # keys: what is known of a case
WRONG, BEHIND = "wrong/", "behind/"  # keys: of an account; of a case that a list may open again, by its node
FOLDER = "accusations"  # of the worker, in the verifier's
WAITING_MAX = 4  # accusations that wait while another is looked into
WRONG_MAX = {True: 8, False: 1}  # that no order follows from, until the buyer, or another, is not heard
LIST_S = 3600  # after the run, by agreed time, for which a node may show its list; no less than `absence_s`
LOOKS_MAX = 3  # that could not be finished, until a case is not looked into again
_BEHIND = "an earlier step of the node is false, which this rests on"
_TASK_HOLDS = "the step holds: a known-answer task, false on order"
REST = 3  # times what a step or an aggregate took, after it, while the run goes on
REFUSED_S = 0.5  # after each one that the chain does not bear out, as for applications


class Refused(AssayError):
    """We do not sign an order about this step: whoever asks need not ask again."""


class Accusations:
    """One verifier's: the handler, and the task that looks into what was accused."""

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        host: Callable[[], Host],
        start: RecomputeStart,
        aggregate: Callable[[Digest], Awaitable[bytes]],
        keep_trace: Callable[[Digest, bytes], None],
        now_s: Callable[[], int],
    ) -> None:
        """
        Args:
            me: The verifier.
            follower: Its chain of manifests.
            host: To reach the other verifiers by.
            start: Of its recompute worker; ours works in a folder of its own.
            aggregate: Finds the bytes of an aggregate; raises Unavailable.
            keep_trace: Keeps the trace of a step that an order is signed about, for its appeal.
            now_s: Unix time.
        """
        self._me, self._follower, self._aggregate, self._keep_trace = me, follower, aggregate, keep_trace
        self._host = host
        self._folder = me.config.folder / FOLDER
        self._start = replace(start, workplace=replace(start.workplace, folder=str(self._folder)))
        self._accused: dict[Digest, Accusation] = {}  # by case: queued, or being looked into
        self._queue, self._queued = trio.open_memory_channel[tuple[Commit, Accusation]](WAITING_MAX)
        self._failed = Counter[Digest]()  # by case: looks that could not be finished
        self._pass_on, self._passed_on = trio.open_memory_channel[TaskList](math.inf)
        self._asking, self._now_s = trio.Lock(), now_s
        self.handlers: Mapping[str, Handler] = {
            "accuse": self._accuse,
            SHOW: self._take_list,
            ASK: self._give_list,
        }

    def is_open(self) -> bool:
        """Whether strangers may connect: once the run's last round is over, or a node has left."""
        run_state = self._follower.run_state
        return run_state.is_settled or any(record.has_left for record in run_state.nodes.values())

    async def run(self) -> None:
        """Look into one accusation after the other, and pass lists on; ends only by cancellation."""
        for shown in kept_lists(self._me.store, self._me.run_id):
            self._pass_on.send_nowait(shown)  # we may have been ended before others had it
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            async for shown in self._passed_on:
                nursery.start_soon(show_list, self._host(), self._others(), shown)

    def _others(self) -> list[PeerId]:
        return [one for one in self._follower.run_state.holders if one != self._me.me]

    async def _look(self) -> None:
        async for commit, accusation in self._queued:
            case_id = case_id_of(commit)
            fields = {"round": int(commit.round), "node": commit.node.hex()[:8]}
            try:
                await self._look_into(commit, accusation)
            except (AssayError, OSError) as error:  # it may be accused again
                log.warning("accusation not looked into", extra={"reason": str(error), **fields})
                self._failed[case_id] += 1
                if self._failed[case_id] >= LOOKS_MAX:
                    self._clear(case_id, f"this verifier cannot make the step again: {error}")
            finally:
                del self._accused[case_id]
                shutil.rmtree(self._folder, ignore_errors=True)

    async def _accuse(self, _peer: PeerId, body: bytes) -> bytes:
        """Our hot key's signature on the slash order; empty while we look into it.

        Raises:
            NotYet: the run goes on and the node is bound to it, or too many ask at once.
            Refused: we do not sign, with the reason.
        """
        accusation = decode(Accusation, body)
        run_state = self._follower.run_state
        if self._me.spec.brings_data(accusation.node):
            raise Refused("its node trains on data that only it has: nobody else can make its steps again")
        bound = None if run_state.is_settled else bound_by(run_state, accusation.node)
        if bound is not None:
            raise NotYet(f"the run is not over: its own audits go on, and the node is bound to it: {bound}")
        if (accusation.round, accusation.node) in self._follower.confirmed:
            raise Refused("the run's own audit convicted this step")
        self._tasks(accusation.node)  # NotYet, as long as it may show them
        commit = self._commit(int(accusation.round), accusation.node)
        case_id = case_id_of(commit)
        cleared = self._me.store.value(f"{CLEARED}{case_id.hex()}")
        if cleared is not None:
            raise Refused(cleared.decode())
        signed = self._me.store.value(f"{ACCUSED}{case_id.hex()}")
        first = self._accused.get(case_id) if signed is None else decode(Accusation, signed)
        if first is not None and first.account != accusation.account:
            if signed is None:
                raise Refused("another account accused this step first, and it is looked into")
            if self._asking.statistics().tasks_waiting >= WAITING_MAX:
                raise NotYet("others ask: ask again")
            await self._ask_chain(partial(self._fault_of_another, case_id, accusation))
        if signed is not None:
            return self._signature(commit, accusation.account)
        if first is None:
            await self._enqueue(commit, accusation)
        return b""

    async def _take_list(self, _peer: PeerId, body: bytes) -> bytes:
        """Keep a node's list of known-answer tasks.

        Raises:
            NotYet: a step of the node may yet be drawn or judged.
            Refused: it is not the list that the node announced.
        """
        shown, run_state = decode(TaskList, body), self._follower.run_state
        if kept_secret(self._me.store, shown.node) == shown.secret:
            return b"\x01"
        if not is_announced(shown, run_state):
            raise Refused(f"node {shown.node.hex()[:8]} announced another list, or none")
        if not is_drained(run_state, shown.node):
            raise NotYet("a step of the node may yet be drawn or judged")
        self._keep(shown)
        return b"\x01"

    async def _give_list(self, _peer: PeerId, body: bytes) -> bytes:
        """The list of a node, if it has shown it.

        Raises:
            Unavailable: it has not.
        """
        node = PeerId(body)
        secret = kept_secret(self._me.store, node)
        if secret is None:
            raise Unavailable(f"node {node.hex()[:8]} has shown no list of known-answer tasks here")
        return encode(TaskList(run_id=self._me.run_id, node=node, secret=secret))

    def _keep(self, shown: TaskList) -> None:
        """Open again what was found without a new list, keep it, and pass it on.

        It is kept last: who is ended, or has no room, before that takes the list anew.
        """
        store, name = self._me.store, f"{BEHIND}{shown.node.hex()}/"
        for key, body in store.values(ACCUSED).items():  # it may have been a task
            if decode(Accusation, body).node == shown.node:
                store.drop_values(key, set())
        for key, account in store.values(name).items():
            store.drop_values(f"{CLEARED}{key.removeprefix(name)}", set())
            wrong = f"{WRONG}{account.hex()}"
            store.set_value(wrong, (store.value(wrong) or b"")[1:])
        store.drop_values(name, set())
        keep_list(store, shown)
        self._pass_on.send_nowait(shown)

    def _tasks(self, node: PeerId) -> frozenset[int]:
        """The rounds of which a node's steps were false on order.

        Raises:
            NotYet: it may yet show its list.
        """
        run_state = self._follower.run_state
        record = run_state.nodes.get(node)
        if record is None or record.tasks == NO_DIGEST:
            return frozenset()
        secret = kept_secret(self._me.store, node)
        if secret is not None:
            return false_rounds(secret, self._me.spec, int(record.tasks_from))
        shows_s = max(LIST_S, self._me.spec.audit.absence_s)
        if not run_state.is_settled or self._now_s() < run_state.time_s + shows_s:
            raise NotYet("its node may yet show which of its steps were false on order")
        return frozenset()

    async def _enqueue(self, commit: Commit, accusation: Accusation) -> None:
        """Queue an accusation that may be heard, if there is room.

        Raises:
            Refused: it may not.
            Unavailable: the chain is.
        """
        if self._asking.statistics().tasks_waiting >= WAITING_MAX:
            return  # whoever asks again is queued then
        case_id = case_id_of(commit)
        await self._ask_chain(partial(self._fault, case_id, accusation))
        alone_until = await trio.to_thread.run_sync(self._report_ends_at, case_id, accusation)
        if case_id in self._accused:
            return  # meanwhile; whose it is will be told to who asks again
        try:
            self._queue.send_nowait((commit, accusation))
        except trio.WouldBlock:
            return
        self._accused[case_id] = accusation
        self._me.store.set_value(f"{ALONE}{case_id.hex()}", str(alone_until).encode())
        log.info("accused", extra={"round": int(commit.round), "node": commit.node.hex()[:8]})

    async def _ask_chain(self, fault: Callable[[], str | None]) -> None:
        """Ask the chain, one accusation at a time.

        Raises:
            Refused: what it says against this one.
            Unavailable: the chain is.
        """
        async with self._asking:
            found = await trio.to_thread.run_sync(fault)
            if found is not None:
                await trio.sleep(REFUSED_S)
                raise Refused(found)

    def _fault_of_another(self, case_id: Digest, accusation: Accusation) -> str | None:
        """Why an order that was signed for another account is not signed for this one; None if it is."""
        alone_until = int(self._me.store.value(f"{ALONE}{case_id.hex()}") or 0)
        if open_chain(self._me).timestamp() < alone_until:
            return f"another account accused this step first, and may open the case alone until {alone_until}"
        return self._fault(case_id, accusation)

    def _fault(self, case_id: Digest, accusation: Accusation) -> str | None:
        """Why the chain does not let this account be heard; None if it does."""
        chain, account = open_chain(self._me), evm_address(accusation.account)
        is_buyer = accusation.account == self._me.spec.buyer
        wrong = len(self._me.store.value(f"{WRONG}{accusation.account.hex()}") or b"")
        if wrong >= WRONG_MAX[is_buyer]:
            return f"{account} accused steps of this run from which no order follows: {wrong}"
        if chain.is_punished(case_id):
            return "there is a case about this step"
        ends_at = chain.report_ends_at(account, case_id, accusation.salt)
        if ends_at <= chain.timestamp():
            return f"{account} has not committed to this report with the slash court"
        stakes = [chain.stake_of(account, role) for role in (OPERATOR, VERIFIER)]
        if not is_buyer and not any(stake.active >= stake.minimum for stake in stakes):
            return f"{account} is not the run's buyer, and has no stake"
        return None

    async def _look_into(self, commit: Commit, accusation: Accusation) -> None:
        """Make the step again, and note what follows.

        Raises:
            AssayError: we cannot, now or ever.
        """
        case_id, number = case_id_of(commit), int(commit.round)
        if not has_shown_list(self._me.store, self._follower.run_state, commit.node):
            others, run_state = self._others(), self._follower.run_state
            found = await find_list(self._host(), others, run_state, commit.node)
            if found is not None:
                self._keep(found)
        tasks = self._tasks(commit.node)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        log_path = self._me.config.folder / "accusation-worker.log"
        module = "assay.verifier.audit.worker"
        child = WorkerProcess(module, self._start, log_path, lambda _round: None, self._me.worked)
        try:
            made, traced = await self._make_again(child, commit, tasks), None
            if made is not None and made.differs and not made.is_behind:
                traced = await child.call(TraceStep(commit=commit), Traced)
            if self._tasks(commit.node) != tasks:
                log.info("not looked into: the list of its node came meanwhile", extra={"round": number})
            elif made is None:
                self._clear(case_id, "this verifier has not the execution class of the node")
            elif traced is not None:
                self._keep_trace(case_id, traced.positions)
                self._me.store.set_value(f"{ACCUSED}{case_id.hex()}", encode(accusation))
                log.info("the accused step is false", extra={"round": number, "differs": made.differs})
            else:
                name = f"{WRONG}{accusation.account.hex()}"
                self._me.store.set_value(name, (self._me.store.value(name) or b"") + b"x")
                if not made.is_behind:
                    self._me.store.set_value(f"{HONEST}{case_id.hex()}", b"")
                elif not has_shown_list(self._me.store, self._follower.run_state, commit.node):
                    behind = f"{BEHIND}{commit.node.hex()}/{case_id.hex()}"
                    self._me.store.set_value(behind, accusation.account)
                holds = _TASK_HOLDS if number in tasks else "the step holds"
                self._clear(case_id, _BEHIND if made.is_behind else holds)
        finally:
            await child.close()

    def _report_ends_at(self, case_id: Digest, accusation: Accusation) -> int:
        account = evm_address(accusation.account)
        return open_chain(self._me).report_ends_at(account, case_id, accusation.salt)

    async def _make_again(
        self, child: WorkerProcess, commit: Commit, tasks: Collection[int]
    ) -> Remade | None:
        """What making the step again shows; None if not all that leads to it is of our execution class."""
        commits, number = self._lineage(commit, tasks), int(commit.round)
        for at in range(number + 1):
            if at in commits:
                is_first, is_compared = at == min(commits), at == number
                asked = RemakeStep(
                    commit=commits[at], is_task=at in tasks, is_first=is_first, is_compared=is_compared
                )
                made = await self._paced(child, asked, Remade)
                if made.exec_class != commits[at].exec_class:
                    return None
                if is_compared:
                    return made
            link = self._link(at)
            body = await self._aggregate(link.manifest.aggregate)
            apply = Apply(round=link.manifest.round, aggregate=body)
            applied = await self._paced(child, apply, State)
            named = {one.commit.state for one in self._link(at + 1).manifest.commits} - {NO_DIGEST}
            if named and applied.digest not in named:
                raise Diverged(f"our parameters of round {at + 1} are not the certified ones")
        raise AssertionError("the accused step is in its own lineage")

    async def _paced(self, child: WorkerProcess, request: Message, answer: type[A]) -> A:
        """What the worker answers; then, while the run goes on, a rest in which audits have the machine."""
        began = trio.current_time()
        found = await child.call(request, answer)
        if not self._follower.run_state.is_settled:
            await trio.sleep(REST * (trio.current_time() - began))
        return found

    def _lineage(self, commit: Commit, tasks: Collection[int]) -> dict[int, Commit]:
        """The steps that lead to the accused one and itself, by round.

        Raises:
            Refused: they are too many, or begin with no fresh state.
        """
        steps = lineage(commit, lambda at: self._commit(at, commit.node), self._me.spec.rule, tasks)
        found = list(islice(steps, STEPS_MAX + 1))
        if len(found) > STEPS_MAX:
            raise Refused(f"more than {STEPS_MAX} steps lead to the node's state")
        return {int(one.round): one for one in found}

    def _commit(self, round_id: int, node: PeerId) -> Commit:
        for signed in self._link(round_id).manifest.commits:
            if signed.commit.node == node:
                return signed.commit
        raise Refused(f"no accepted step of node {node.hex()[:8]} in round {round_id}")

    def _link(self, round_id: int) -> CertifiedManifest:
        link = next(iter(self._me.store.links(round_id, 1)), None)
        if link is None or link.manifest.round != round_id:
            raise Refused(f"no manifest of round {round_id} here")
        return link

    def _clear(self, case_id: Digest, reason: str) -> None:
        self._me.store.set_value(f"{CLEARED}{case_id.hex()}", reason.encode())
        log.info("accusation refused", extra={"case": case_id.hex()[:8], "reason": reason})

    def _signature(self, commit: Commit, account: Address) -> bytes:
        offender = self._follower.run_state.nodes[commit.node].member.account
        order = accused_order_of(self._me.spec, self._me.run_id, commit, offender, account)
        return sign_digest(self._me.deployment.digest(order), self._me.keys.hot)


def is_honest(store: Store, case_id: bytes) -> bool:
    """Whether we looked into an accusation, and found the step honest; not if we could not make it again."""
    return store.value(f"{HONEST}{case_id.hex()}") is not None


def accused_commit(store: Store, case_id: bytes) -> Commit | None:
    """The step of a case whose order we sign; None if there is no such case."""
    body = store.value(f"{ACCUSED}{case_id.hex()}")
    if body is None:
        return None
    accusation = decode(Accusation, body)
    for link in store.links(int(accusation.round), 1):
        for signed in link.manifest.commits:
            if signed.commit.node == accusation.node:
                return signed.commit
    return None


def has_shown_list(store: Store, run_state: RunState, node: PeerId) -> bool:
    """Whether nothing of a node's known-answer tasks is unknown: it announced none, or has shown its list."""
    record = run_state.nodes[node]
    return record.tasks == NO_DIGEST or kept_secret(store, node) is not None
