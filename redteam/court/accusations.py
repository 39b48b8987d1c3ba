"""Accusations: attacks on how a lie that no audit drew is punished after the run (docs/protocol.md, 7c).

Room: redteam (edge: a temporary folder, an event loop). The service is the production verifier's, with its
store. In place of the worker that computes stands one that knows which steps are false, and counts.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import MockClock

import assay.participant.wallet.cases
import assay.verifier.service.accusations
import assay.verifier.service.chain_duties
from assay.chain.commit_statement import evm_address
from assay.ledger.settlement.results import accused_order_of
from assay.participant.compute import Apply, State, Workplace
from assay.participant.links import check_place
from assay.participant.store import Store
from assay.participant.task_lists import SHOW, SHOW_S
from assay.protocol.agreement.quorum import quorum
from assay.protocol.auditing.audits import case_id_of
from assay.protocol.encoding.codec import digest, encode
from assay.protocol.errors import Diverged, NotYet, Unavailable
from assay.protocol.known_answers import drawn_tasks, trained_as
from assay.protocol.membership import bound_by
from assay.protocol.messages import (
    Accusation,
    AttendanceKind,
    CertifiedManifest,
    Manifest,
    TaskList,
)
from assay.protocol.run_state import RunState, StepId
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Address, Digest, PeerId, RoundId
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.members import one_act
from assay.testing import members, signed
from assay.testing.members import RUN_ID, a_deployment, a_digest, a_hot_key, peer
from assay.testing.run import a_network, an_attendance
from assay.testing.steps import ANode
from assay.testing.steps import T as STEPS_T
from assay.verifier.audit.messages import RecomputeStart, Remade, RemakeStep, Traced
from assay.verifier.audit.remake import Remake, lineage
from assay.verifier.service.accusations import LIST_S, LOOKS_MAX, WRONG_MAX, Accusations, Refused
from assay.verifier.service.chain_duties import ChainDuties

Past = tuple[RunState, tuple[CertifiedManifest, ...], RunState]
ACCUSATION_ATTACKS = Attacks(Where.CHAIN)
LIVES = 40  # of nodes that lie once and leave
ROUNDS, LIE = 20, 9  # of a run; the round of the one false step
NEAR = 6  # steps that are made again for one accusation, where that is tried
NODE = signed.NODES[0]
REPORT_S = 60  # for which a commitment to report counts
FRIEND, FINDER, POOR, SILENT = (Address(bytes(19) + bytes([n])) for n in range(1, 5))


@functools.lru_cache(maxsize=4)
def a_past_run(seed: int) -> Past:
    """A run of one active node before its first manifest, all its links, and the state after them."""
    began = signed.a_history(rounds=ROUNDS, seed=seed)
    links = tuple(signed.a_chain(began, began.calendar.last_round + 1, [NODE]))
    return began, links, functools.reduce(lambda state, link: advance(state, link.manifest), links, began)


def a_listed_run(seed: int, secret: Digest) -> tuple[Past, frozenset[int]]:
    """The same of a run whose node has a list of known-answer tasks; the rounds of these."""
    began, links, ended = a_past_run(seed)
    spec = replace(began.spec, audit=replace(began.spec.audit, known_answer_count=1))
    tasks = drawn_tasks(secret, spec, RUN_ID, peer(NODE))
    record = replace(ended.nodes[peer(NODE)], tasks=tasks.root)
    listed = replace(ended, spec=spec, nodes={**ended.nodes, peer(NODE): record})
    return (replace(began, spec=spec), links, listed), frozenset(tasks.shown)


@functools.lru_cache(maxsize=4)
def a_left_run(seed: int) -> Past:
    """The same of a run that goes on: its node has left, and its verifiers may discharge it."""
    began = run_state = signed.a_history(rounds=1_000, seed=seed)
    links: list[CertifiedManifest] = []

    def grow(manifest: Manifest) -> RunState:
        links.append(signed.a_certified(manifest, digest(links[-1].block) if links else NO_DIGEST))
        return advance(run_state, manifest)

    for _ in range(ROUNDS):
        run_state = grow(signed.a_manifest(run_state, [NODE], signed.match_all(run_state)))
    leaves = (an_attendance(run_state, peer(NODE), AttendanceKind.LEAVE),)
    run_state = grow(signed.a_manifest(run_state, [], signed.match_all(run_state), attendance=leaves))
    while bound_by(run_state, peer(NODE)) is not None:
        run_state = grow(signed.a_manifest(run_state, [], signed.match_all(run_state)))
    assert run_state.is_training
    return began, tuple(links), run_state


@dataclass(slots=True)
class KnowingWorker:
    """Answers as the recompute worker does, by a list of false steps."""

    false: Collection[int]  # rounds
    made: list[int] = field(default_factory=list)  # rounds of the steps that were made again
    fails: bool = False  # it can finish nothing
    is_other: bool = False  # it has not the node's execution class
    tasks: Collection[int] = ()  # rounds of honest steps that were false on order
    _is_behind: bool = False

    async def call(self, request: Any, _answer: type) -> Any:
        """The answer to a request: whether a false step leads to the compared one, or it is false itself."""
        match request:
            case RemakeStep(commit=commit):
                if self.fails:
                    raise Diverged("its disk is full")
                at = int(commit.round)
                is_false = at in self.false or (at in self.tasks and not request.is_task)
                is_behind = self._is_behind and not request.is_first
                self._is_behind = is_behind or is_false
                self.made.append(int(commit.round))
                differs = "root" if request.is_compared and (is_behind or is_false) else ""
                exec_class = a_digest("another class") if self.is_other else commit.exec_class
                return Remade(differs=differs, is_behind=is_behind, exec_class=exec_class)
            case Apply():
                return State(digest=signed.STATE)
            case _:
                return Traced(positions=b"")

    async def close(self) -> None:
        """Nothing to end."""


@dataclass(slots=True)
class Court:
    """What the chain says of accusers: all but POOR have stake, all but SILENT just made a commitment."""

    now: int = 1
    opened: Any = None  # a case

    def case(self, _case: Digest) -> Any:
        """The case that was opened."""
        return self.opened

    def is_punished(self, _case: Digest) -> bool:
        """Whether there is a case."""
        return False

    def veto_window(self) -> int:
        """The case was opened long ago."""
        return 0

    def timestamp(self) -> int:
        """The chain's time."""
        return self.now

    def report_ends_at(self, account: str, _case: Digest, _salt: Digest) -> int:
        """Until when the account's commitment holds; 0 without one."""
        return 0 if account == evm_address(SILENT) else self.now + REPORT_S

    def stake_of(self, account: str, _role: int) -> Any:
        """Its stake."""
        return SimpleNamespace(active=int(account != evm_address(POOR)), minimum=1)


@dataclass(frozen=True, slots=True)
class Answered:
    """What a verifier answered to each accusation, and the steps that it made again before the next one."""

    answers: list[bytes | str]
    made: list[int]


@dataclass(frozen=True, slots=True)
class Lines:
    """Connections between verifiers that hear accusations, in place of a host."""

    services: dict[PeerId, Accusations] = field(default_factory=dict)  # who can be reached

    async def request(self, verifier: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        """What a verifier answers within this time; Unavailable from who is not there."""
        if verifier not in self.services:
            raise Unavailable("not connected")
        with trio.fail_after(timeout_s):
            return await self.services[verifier].handlers[method](peer(NODE), body)


@contextmanager
def a_verifier(
    seed: int, worker: KnowingWorker, court: Court, *,
    name: str = signed.VERIFIERS[0], lines: Lines | None = None,
    past: Past | None = None, is_over: bool = True, convicted: Collection[StepId] = (), reset: int = ROUNDS,
    now_s: int = 0,
) -> Iterator[tuple[Accusations, ChainDuties]]:  # fmt: skip
    """What of a verifier hears accusations, and what signs vetoes; arguments as `answered`'s."""
    began, links, ended = past or a_past_run(seed)

    async def aggregate(_name: Digest) -> bytes:
        return b""

    with tempfile.TemporaryDirectory(prefix="assay-redteam-") as folder, ExitStack() as patches:
        module = assay.verifier.service.accusations
        quiet = SimpleNamespace(info=lambda *_, **__: None, warning=lambda *_, **__: None)
        patches.enter_context(without(module, "log", quiet))
        for asking in (module, assay.participant.wallet.cases, assay.verifier.service.chain_duties):
            patches.enter_context(without(asking, "open_chain", lambda _me: court))
        patches.enter_context(without(module, "WorkerProcess", lambda *_: worker))
        store = Store(Path(folder) / "store")
        for link in links:
            store.add_link(link)
        compress = replace(began.spec.rule.compress, reset_rounds=reset)
        spec = replace(began.spec, rule=replace(began.spec.rule, compress=compress))
        me: Any = SimpleNamespace(
            config=SimpleNamespace(folder=Path(folder)), store=store, spec=spec, run_id=RUN_ID, me=peer(name),
            deployment=a_deployment(), keys=SimpleNamespace(hot=a_hot_key(name)), worked=None,
        )  # fmt: skip
        host: Any = lines or Lines()
        follower: Any = SimpleNamespace(
            run_state=ended if is_over else began, confirmed=dict.fromkeys(convicted), failed={}
        )
        place = Workplace(data="", folder=folder, base="", device="cpu", threads=1)
        start = RecomputeStart(spec=began.spec, workplace=place, limits="")
        state_sync: Any = None
        yield (
            Accusations(
                me, follower, lambda: host, start, aggregate, lambda _case, _positions: None, lambda: now_s
            ),
            ChainDuties(me, follower, state_sync),
        )


def answered(
    seed: int, accused: Sequence[tuple[Address, int]], *, false: Collection[int] = (),
    tasks: Collection[int] = (), shown: TaskList | None = None, apart_s: int = 0, **others: Any,
) -> Answered:  # fmt: skip
    """A verifier's answers to these accounts' accusations of these rounds, one after the other.

    Args:
        seed: Of the run.
        accused: Who accuses, and the round.
        false: Rounds in which the node's step is false.
        tasks: Those in which it is a known-answer task.
        shown: The list that the node shows first.
        apart_s: Chain time between two accusations.
        others: past: the run; else one that is over. is_over: whether it is known to be settled. convicted:
            what its audits found false. reset: rounds until blocks begin anew. now_s: Unix time.
    """
    court, worker, found = Court(), KnowingWorker(false, tasks=tasks), Answered([], [])

    async def main(service: Accusations) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            if shown is not None:
                await service.handlers["list"](shown.node, encode(shown))
            for account, number in accused:
                before = len(worker.made)
                found.answers.append(await answer_of(service, account, number))
                found.made.append(len(worker.made) - before)
                court.now += apart_s
            nursery.cancel_scope.cancel()

    with a_verifier(seed, worker, court, **others) as (service, _duties):
        trio.run(main, service, clock=MockClock(autojump_threshold=0))
    return found


def vetoed(seed: int, number: int, worker: KnowingWorker) -> bool:
    """Whether a verifier that was asked to make this step again signs a veto against the case about it."""
    court = Court()

    async def main(service: Accusations, duties: ChainDuties) -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            for _ in range(LOOKS_MAX):
                await answer_of(service, FINDER, number)
            nursery.cancel_scope.cancel()
        try:
            return bool(await duties.handlers["sign-veto"](peer(NODE), case_id_of(commit)))
        except Unavailable:
            return False

    (commit,) = (one.commit for one in a_past_run(seed)[1][number].manifest.commits)
    with a_verifier(seed, worker, court) as (service, duties):
        offender = a_past_run(seed)[2].nodes[commit.node].member.account
        order = accused_order_of(a_past_run(seed)[0].spec, RUN_ID, commit, offender, FINDER)
        names = ("run_id", "offender", "role", "ppm", "evidence_hash", "challenger")
        court.opened = SimpleNamespace(veto_ends_at=0, **{name: getattr(order, name) for name in names})
        return trio.run(main, service, duties, clock=MockClock(autojump_threshold=0))


async def answer_of(service: Accusations, account: Address, number: int) -> bytes | str:
    """The signature on an order, or the reason why there is none."""
    one = Accusation(round=RoundId(number), node=peer(NODE), account=account, salt=a_digest("salt", account))
    while True:
        try:
            body = await service.handlers["accuse"](peer("whoever"), encode(one))
        except (Refused, NotYet) as refusal:
            return str(refusal)
        if body:
            return body
        await trio.sleep(1)


@ACCUSATION_ATTACKS.attack(
    "accuse what may not be accused (8 ways)", 39, "stake, a commitment on chain, one wrong accusation"
)
def _idle_accusations(is_defended: bool, seed: int) -> Outcome:
    """Somebody has verifiers make steps again for nothing; undefended, nobody is asked who it is.

    An honest step twice, another one, a false one after them; before the run's end, without stake or a
    commitment; a step that was convicted, and one that is not there.
    """
    step: StepId = (RoundId(3), peer(NODE))
    with without(Accusations, "_fault", lambda *_: None, unless=is_defended):
        again = answered(seed, [(FRIEND, 5), (FRIEND, 5), (FRIEND, 6), (FRIEND, LIE)], false={LIE}).made[1:]
        looked = [
            *again,
            *answered(seed, [(FRIEND, 5)], is_over=False).made,
            *answered(seed, [(POOR, 5), (SILENT, 5)]).made,
            *answered(seed, [(FRIEND, 3)], convicted={step}).made,
            *answered(seed, [(FRIEND, ROUNDS + 1)]).made,
        ]
    harm = f"one look for each account with stake, {WRONG_MAX[True]} for the buyer"
    return tallied(len(looked), looked.count(0), 0.0, harm)


@ACCUSATION_ATTACKS.attack(
    "accuse oneself first and open no case", 39, "the first place ends with the accuser's commitment"
)
def _shielded(is_defended: bool, seed: int) -> Outcome:
    """A cheat's friend with stake accuses its false step once the run is over, and opens no case.

    Whoever replays the run later, and accuses the step, is the second; undefended, it is refused for good.
    """
    with without(Accusations, "_fault_of_another", lambda *_: "another was first", unless=is_defended):
        found = answered(seed, [(FRIEND, LIE), (FINDER, LIE)], false={LIE}, apart_s=REPORT_S)
    is_signed, second = len(found.answers[0]) == 65, found.answers[1]
    is_shielded = is_signed and isinstance(second, str)
    harm = "undefended, every verifier refuses whoever finds the lie; the friend's stake is not at risk"
    return one_act(is_signed and not is_shielded, is_shielded, 0.0, harm)


@ACCUSATION_ATTACKS.attack(
    "crowd accusations out by steps behind a lie", 39, "whoever accuses one is not heard again"
)
def _crowded_out(is_defended: bool, seed: int) -> Outcome:
    """One account accuses each step that rests on its own node's false one: all are made again each time."""
    later = range(LIE + 1, ROUNDS)
    endless = without(assay.verifier.service.accusations, "WRONG_MAX", {False: ROUNDS}, unless=is_defended)
    with endless:
        found = answered(seed, [(FRIEND, number) for number in later], false={LIE})
    looks = sum(count > 0 for count in found.made)
    harm = f"{looks} of {len(later)} accusations of one account have {sum(found.made)} steps made again"
    return one_act(looks <= 1, looks == len(later), 0.0, harm)


@ACCUSATION_ATTACKS.attack(
    "lie after 1,024 steps in a row", 39, "steps of some rounds lead to a node's state from any other"
)
def _too_far(is_defended: bool, seed: int) -> Outcome:
    """A node never begins afresh, as honest ones do not, and lies after as many steps as are made again.

    Here these are `NEAR`; a state is renewed in fewer. Undefended, states are made from fresh ones.
    """
    module = assay.verifier.service.accusations
    since_fresh = without(module, "lineage", lambda *given: lineage(*given[:2]), unless=is_defended)
    with without(module, "STEPS_MAX", NEAR), since_fresh:
        found = answered(seed, [(FINDER, LIE)], false={LIE}, reset=NEAR - 1)
    (answer,) = found.answers
    is_safe = isinstance(answer, str) and f"more than {NEAR} steps" in answer and not sum(found.made)
    harm = (
        f"none: {sum(found.made)} of {LIE + 1} steps show it, {NEAR} may be made; undefended, nobody is heard"
    )
    return one_act(len(answer) == 65, is_safe, 0.0, harm)


@ACCUSATION_ATTACKS.attack(
    "ask those for a veto who could not make the step again (3 ways)", 39, "who has found it honest signs one"
)
def _vetoed(is_defended: bool, seed: int) -> Outcome:
    """A case about a false step is opened, and its node asks verifiers whose own look led to nothing.

    One has not its execution class, one cannot finish, one was asked of a step that rests on it. Undefended,
    whoever refused to sign the order signs the veto.
    """

    def refused(store: Store, case_id: bytes) -> bool:
        return store.value(f"{assay.verifier.service.accusations.CLEARED}{case_id.hex()}") is not None

    assert vetoed(seed, LIE - 1, KnowingWorker(())), "an honest step's case is vetoed"
    with without(assay.verifier.service.chain_duties, "is_honest", refused, unless=is_defended):
        signs = [
            vetoed(seed, LIE, KnowingWorker({LIE}, fails=True)),
            vetoed(seed, LIE, KnowingWorker({LIE}, is_other=True)),
            vetoed(seed, LIE + 1, KnowingWorker({LIE})),
        ]
    harm = "none: no signature; undefended, two liars of four and one of these veto a right order"
    return tallied(len(signs), signs.count(False), 0.0, harm)


@ACCUSATION_ATTACKS.attack(
    "lie unseen, leave, and be discharged", 34, "who may be discharged can be accused while the run goes on"
)
def _discharged(is_defended: bool, seed: int) -> Outcome:
    """A trusted node lies in one step and leaves by the next manifest; each of these is one life of it.

    Whoever replays its steps accuses it once its verifiers may discharge it: the lot has an evidence window
    then. Undefended, nobody is heard before the run's end.
    """
    free = banned = waited = 0
    for life in range(LIVES):
        network = a_network(seed=seed * LIVES + life, rounds=200, probation=1, floor_ppm=50_000).trust()
        node, lie = members.NODES[0], RoundId(5)
        network.false = {(lie, node)}
        network.grow(int(lie) + 1)
        manifest = network.manifest(
            attendance=(an_attendance(network.run_state, node, AttendanceKind.LEAVE),)
        )
        check_place(network.run_state, manifest)
        network.run_state = advance(network.run_state, manifest)
        while network.run_state.is_training and bound_by(network.run_state, node) is not None:
            network.grow()
            if network.run_state.nodes[node].banned:
                break
        banned += network.run_state.nodes[node].banned
        is_free = bound_by(network.run_state, node) is None and not network.run_state.is_settled
        free += is_free
        waited = int(network.run_state.round) - int(lie) if is_free else waited
    none_left = without(
        assay.verifier.service.accusations, "bound_by", lambda *_: "it has not left", unless=is_defended
    )
    with none_left:
        (answer,) = answered(seed, [(FINDER, LIE)], false={LIE}, past=a_left_run(seed)).answers
    harm = (
        f"{free} of {LIVES} such lies may be discharged {waited} rounds later, and are behind a lot for an "
        f"evidence window more, in which they are heard of; {banned} drawn and banned"
    )
    return one_act(len(answer) == 65, free > 0 and isinstance(answer, str), 0.0, harm)


@ACCUSATION_ATTACKS.attack(
    "lie unseen where a list of known-answer tasks counts (2 ways)", 34, "nodes show their lists at the end"
)
def _among_tasks(is_defended: bool, seed: int) -> Outcome:
    """A node lies in a step that no audit draws, near a task of its own; it shows its list, or keeps it.

    Who keeps it has its task taken for a lie. Undefended, no step that may be a task is looked into.
    """

    def refused(_service: Accusations, _node: PeerId) -> frozenset[int]:
        raise Refused("it may be a known-answer task")

    secret, caught = a_digest("secret", seed), 0
    past, tasks = a_listed_run(seed, secret)
    shown = TaskList(run_id=RUN_ID, node=peer(NODE), secret=secret)
    lie = next(at for at in range(LIE, ROUNDS) if at not in tasks)
    with without(Accusations, "_tasks", refused, unless=is_defended):
        for at, said, now_s in ((lie, shown, 0), (min(lie, *tasks), None, past[2].time_s + LIST_S)):
            found = answered(
                seed, [(FINDER, at)], false={lie}, tasks=tasks, shown=said, past=past, now_s=now_s
            )
            caught += len(found.answers[0]) == 65
    return tallied(2, caught, 0.0, "none: an order is signed, of who keeps its list an hour after the run")


def signatures(
    seed: int, at: int, shown: TaskList, to: int, *,
    false: Collection[int], is_late: bool = False, **others: Any,
) -> int:  # fmt: skip
    """How many of four verifiers sign an order about this round's step, if its node shows its list to some.

    Args:
        seed: Of the run.
        at: The accused step's round.
        shown: The node's list.
        to: How many verifiers the node shows it to.
        false: Rounds in which the step is false.
        is_late: Whether it shows it after the others were asked once.
        others: As `answered`'s.
    """
    court, worker, lines = Court(), KnowingWorker(false, tasks=others.pop("tasks")), Lines()

    async def main() -> int:
        async with trio.open_nursery() as nursery:
            for service in lines.services.values():
                nursery.start_soon(service.run)
            for service in list(lines.services.values())[to:] if is_late else ():
                await answer_of(service, FINDER, at)
            for service in list(lines.services.values())[:to]:
                await service.handlers[SHOW](shown.node, encode(shown))
            await trio.sleep(SHOW_S)
            answers = [await answer_of(service, FINDER, at) for service in lines.services.values()]
            nursery.cancel_scope.cancel()
        return sum(len(one) == 65 for one in answers)

    with ExitStack() as verifiers:
        for name in signed.VERIFIERS:
            one = a_verifier(seed, worker, court, name=name, lines=lines, **others)
            lines.services[peer(name)], _ = verifiers.enter_context(one)
        return trio.run(main, clock=MockClock(autojump_threshold=0))


@ACCUSATION_ATTACKS.attack(
    "show a list of known-answer tasks to some verifiers only (2 ways)", 34, "who takes a list passes it on"
)
def _shown_to_some(is_defended: bool, seed: int) -> Outcome:
    """A node lies behind a task of its own, and shows its list to half of the verifiers, at once or late.

    For these the task holds; the others find it false, and the lie behind it. Undefended: no quorum signs.
    """
    module, secret = assay.verifier.service.accusations, a_digest("secret", seed)
    past, tasks = a_listed_run(seed, secret)
    shown = TaskList(run_id=RUN_ID, node=peer(NODE), secret=secret)
    least = quorum(len(signed.VERIFIERS))
    lie, late_s = max(tasks) + 1, past[2].time_s + LIST_S

    async def nobody(*_: Any) -> None:
        """Neither passes a list on nor asks for one."""

    with (
        without(module, "show_list", nobody, unless=is_defended),
        without(module, "find_list", nobody, unless=is_defended),
    ):
        found = [
            signatures(seed, lie, shown, 2, false={lie}, tasks=tasks, past=past, now_s=late_s, is_late=late)
            for late in (False, True)
        ]
    harm = f"none: {found} of four sign; undefended half of them, and the accuser is not heard again"
    return tallied(2, sum(count >= least for count in found), 0.0, harm)


@ACCUSATION_ATTACKS.attack(
    "train a known-answer task as any other, and lie behind it",
    34,
    "a listed task is made again in both ways",
)
def _behind_a_task(is_defended: bool, seed: int) -> Outcome:
    """A node trains a step on its list as any other, which is no lie, and lies a few steps later, undrawn.

    Undefended, whoever makes its steps again has the task as ordered, and all that follows is behind it.
    """
    lie = 5 * STEPS_T + seed % STEPS_T
    node = ANode("demo", range(lie + 1), listed=[lie - 1 - seed % (STEPS_T - 1)], work_lies=[lie])

    def as_ordered(remake: Remake, number: int) -> tuple[int, ...]:
        return (trained_as(node.spec, number),)

    with without(Remake, "_readings", as_ordered, unless=is_defended):
        remade = node.remade(lie)
    is_seen = bool(remade.differs) and not remade.is_behind
    harm = "none: the lie differs by itself; undefended, no lie within the lineage of a task can be accused"
    return one_act(is_seen, remade.is_behind, 0.0, harm)
