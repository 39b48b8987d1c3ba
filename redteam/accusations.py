"""Accusations: attacks on how a lie that no audit drew is punished after the run (docs/protocol.md, 7c).

Room: redteam (edge: a temporary folder, an event loop). The service is the production verifier's, with its
store. In place of the worker that computes stands one that knows which steps are false, and counts.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import MockClock

import assay.verifier.service.accusations
from assay.chain.commit_statement import evm_address
from assay.participant.compute import Apply, State, Workplace
from assay.participant.links import check_place
from assay.participant.store import Store
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import NotYet
from assay.protocol.identity import sign
from assay.protocol.membership import bound_by
from assay.protocol.messages import (
    Accusation,
    Attendance,
    AttendanceKind,
    CertifiedManifest,
    SignedAttendance,
)
from assay.protocol.state_transition import RunState, StepId, advance
from assay.protocol.types import Address, Digest, RoundId
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.members import one_act
from assay.testing import members, signed
from assay.testing.members import DOMAIN, RUN_ID, a_deployment, a_digest, a_hot_key, a_peer_key, name_of, peer
from assay.testing.run import a_network
from assay.verifier.audit.messages import RecomputeStart, Remade, RemakeStep, Traced
from assay.verifier.audit.remake import lineage
from assay.verifier.service.accusations import WRONG_MAX, Accusations, Refused

ACCUSATION_ATTACKS = Attacks(Where.CHAIN)
LIVES = 40  # of nodes that lie once and leave
ROUNDS, LIE = 20, 9  # of a run; the round of the one false step
NEAR = 6  # steps that are made again for one accusation, where that is tried
NODE = signed.NODES[0]
REPORT_S = 60  # for which a commitment to report counts
FRIEND, FINDER, POOR, SILENT = (Address(bytes(19) + bytes([n])) for n in range(1, 5))


@functools.lru_cache(maxsize=4)
def a_past_run(seed: int) -> tuple[RunState, tuple[CertifiedManifest, ...], RunState]:
    """A run of one active node before its first manifest, all its links, and the state after them."""
    began = signed.a_history(rounds=ROUNDS, seed=seed)
    links = tuple(signed.a_chain(began, began.calendar.last_round + 1, [NODE]))
    return began, links, functools.reduce(lambda state, link: advance(state, link.manifest), links, began)


@dataclass(slots=True)
class KnowingWorker:
    """Answers as the recompute worker does, by a list of false steps."""

    false: Collection[int]  # rounds
    made: list[int] = field(default_factory=list)  # rounds of the steps that were made again
    _is_behind: bool = False

    def started(self, *_: Any) -> KnowingWorker:
        """The same worker for another accusation."""
        return self

    async def call(self, request: Any, _answer: type) -> Any:
        """The answer to a request: whether a false step leads to the compared one, or it is false itself."""
        match request:
            case RemakeStep(commit=commit):
                is_false, is_behind = (
                    int(commit.round) in self.false,
                    self._is_behind and not request.is_first,
                )
                self._is_behind = is_behind or is_false
                self.made.append(int(commit.round))
                differs = "root" if request.is_compared and (is_behind or is_false) else ""
                return Remade(differs=differs, is_behind=is_behind, exec_class=commit.exec_class)
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

    def is_punished(self, _case: Digest) -> bool:
        """Whether there is a case."""
        return False

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


def answered(
    seed: int, accused: Sequence[tuple[Address, int]], *, false: Collection[int] = (), is_over: bool = True,
    convicted: Collection[StepId] = (), apart_s: int = 0, reset: int = ROUNDS,
) -> Answered:  # fmt: skip
    """A verifier's answers to these accounts' accusations of these rounds, one after the other.

    false: rounds in which the node's step is false. is_over: whether the run is settled. convicted: what its
    audits found false. apart_s: chain time between two accusations. reset: rounds until blocks began anew.
    """
    court = Court()
    began, links, ended = a_past_run(seed)
    worker, found = KnowingWorker(false), Answered([], [])

    async def aggregate(_name: Digest) -> bytes:
        return b""

    async def main(service: Accusations) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            for account, number in accused:
                before = len(worker.made)
                found.answers.append(await _answer(service, account, number))
                found.made.append(len(worker.made) - before)
                court.now += apart_s
            nursery.cancel_scope.cancel()

    with tempfile.TemporaryDirectory(prefix="assay-redteam-") as folder, ExitStack() as patches:
        module = assay.verifier.service.accusations
        quiet = SimpleNamespace(info=lambda *_, **__: None, warning=lambda *_, **__: None)
        patches.enter_context(without(module, "log", quiet))
        patches.enter_context(without(module, "open_chain", lambda _me: court))
        patches.enter_context(without(module, "WorkerProcess", worker.started))
        store = Store(Path(folder) / "store")
        for link in links:
            store.add_link(link)
        rule = began.spec.rule
        rule = replace(rule, compress=replace(rule.compress, reset_rounds=reset))
        spec = replace(began.spec, rule=rule)
        me: Any = SimpleNamespace(
            config=SimpleNamespace(folder=Path(folder)), store=store, spec=spec, run_id=RUN_ID,
            deployment=a_deployment(), keys=SimpleNamespace(hot=a_hot_key(signed.VERIFIERS[0])), worked=None,
        )  # fmt: skip
        follower: Any = SimpleNamespace(run_state=ended if is_over else began, confirmed=set(convicted))
        place = Workplace(data="", folder=folder, base="", device="cpu", threads=1)
        start = RecomputeStart(spec=began.spec, workplace=place, limits="")
        service = Accusations(me, follower, start, aggregate, lambda _case, _positions: None)
        trio.run(main, service, clock=MockClock(autojump_threshold=0))
    return found


async def _answer(service: Accusations, account: Address, number: int) -> bytes | str:
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
    harm = f"none: {sum(found.made)} steps are made again; undefended, no later step can be accused"
    return one_act(len(answer) == 65, is_safe, 0.0, harm)


@ACCUSATION_ATTACKS.attack(
    "lie unseen, leave, and be discharged", 34, "none: accusations are heard after the run", has_off=False
)
def _discharged(is_defended: bool, seed: int) -> Outcome:
    """A trusted node lies in one step and leaves by the next manifest; each of these is one life of it."""
    free = banned = waited = 0
    for life in range(LIVES):
        network = a_network(seed=seed * LIVES + life, rounds=200, probation=1, floor_ppm=50_000)
        known = {node: replace(one, clean=10**6) for node, one in network.run_state.nodes.items()}
        network.run_state = replace(network.run_state, nodes=known)
        node, lie = members.NODES[0], RoundId(5)
        network.false = {(lie, node)}
        network.grow(int(lie) + 1)
        leave = Attendance(run_id=RUN_ID, round=network.run_state.round, node=node, kind=AttendanceKind.LEAVE)
        signed_leave = SignedAttendance(
            attendance=leave, signature=sign(a_peer_key(name_of(node)), DOMAIN, leave)
        )
        manifest = network.manifest(attendance=(signed_leave,))
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
    harm = (
        f"{free} of {LIVES} such lies are behind no lot {waited} rounds and an evidence window later, while "
        f"accusations wait for the run's end; {banned} drawn and banned"
    )
    return one_act(False, free > 0, 0.0, harm)
