"""A lie that no audit drew is found by a replay, made again by real verifiers, and opened as a case."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.bundle.read import Delivered
from assay.chain.client import CasePhase
from assay.chain.statements import OPERATOR
from assay.cli.account.spending import account_of
from assay.cli.audit import accuse
from assay.cli.process import read_process_file
from assay.ledger.settlement.results import run_id_of
from assay.network.host import PeerAddress
from assay.node.trainer import Trainer
from assay.participant.config import Door, Participant, open_network, open_participant
from assay.participant.files.shown_list import keep_list
from assay.participant.follower import Follower
from assay.participant.wallet import accusation
from assay.participant.wallet.cases import accused_order, is_implied
from assay.protocol.auditing.audits import case_id_of, may_open_sketch
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.identity import Domain
from assay.protocol.known_answers import drawn_tasks
from assay.protocol.messages import Accusation, TaskList
from assay.protocol.run_state import start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Address, Digest
from assay.testing.members import a_digest, peer
from assay.testing.messages import Signed
from assay.testing.signed import NODES, VERIFIERS, a_certified, a_manifest, match_all
from assay.testing.specs import a_data_folder
from assay.training.codec.wire import decode_update, encode_aggregate
from assay.training.model.loss import use_one_thread
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.audit.limits import shipped
from assay.verifier.audit.messages import RecomputeStart
from assay.verifier.service import accusations
from assay.verifier.service.accusations import Accusations, Refused, accused_commit, is_honest
from tests.cli.market import Market, wallet
from tests.conftest import Assay
from tests.forked_commands import forked_workers

pytestmark = pytest.mark.slow
NODE, LIE = NODES[0], 2


class Liar(Trainer):
    """Takes another gradient in one round, and commits to all that follows from it."""

    def _gradient(self, theta_P, tokens):
        loss, slope_P = super()._gradient(theta_P, tokens)
        return loss, slope_P[::-1].copy() if self.parameters.round == LIE else slope_P


class Training:
    """A whole run of one node, certified by verifiers whose audits all say MATCH; tests only read it."""

    def __init__(self, market: Market, root: Path) -> None:
        use_one_thread()
        self.spec = replace(market.spec, audit=replace(market.spec.audit, limits=shipped().digest()))
        self.run_id, self.deployment, self.root = run_id_of(self.spec), market.deployment, root
        for name in ("updates", "aggregates"):
            (self.root / "bundle" / name).mkdir(parents=True)
        a_data_folder(self.root / "data")
        self.links, self.run_states = [], [start(self.spec, self.run_id)]
        self.bodies: dict[Digest, bytes] = {}
        self._train()
        assert self.run_states[-1].is_settled
        self.delivered = Delivered(
            root=self.root, bundle=self.root / "bundle", spec=self.spec, run_id=self.run_id,
            deployment=market.deployment, links=tuple(self.links), run_states=tuple(self.run_states),
            tables={}, settled={}, sizes={}, report=None,
        )  # fmt: skip

    def _train(self) -> None:
        spec = self.spec
        signer = Signed(Domain(spec.deployment_id, self.run_id), self.deployment)
        trainer = Liar(
            spec=spec, run_id=self.run_id, node=peer(NODE), data=self.root / "data",
            folder=self.root / "trainer", salt_key=bytes(32),
        )  # fmt: skip
        base, root, blocks = 0, NO_DIGEST, trainer.layout.blocks
        for number in range(spec.ordered.last_round + 1):
            run_state = self.run_states[-1]
            votes = match_all(run_state)
            shown = tuple(
                trainer.steps.sketch_openings(audit.commit, 0)
                for _, audit in sorted(run_state.audits.items())
                if may_open_sketch(audit, number)
            )
            manifest = a_manifest(run_state, [], votes, signer=signer, sketch_openings=shown)
            if run_state.is_training:
                step = trainer.step(number, run_state.parent, base, root)
                base, root = number + 1, step.commit.momentum_after
                update = decode_update(step.update, blocks, spec.rule.compress.k)
                aggregate = encode_aggregate(mean_over_senders({peer(NODE): update}, blocks), blocks)
                trainer.apply(number, aggregate)
                kept = self._kept("aggregates", aggregate)
                manifest = a_manifest(
                    run_state, [], votes, kept, made=[step.commit], signer=signer, sketch_openings=shown
                )
                self._kept("updates", step.update)
            parent = digest(self.links[-1].block) if self.links else NO_DIGEST
            self.links.append(a_certified(manifest, parent, signer=signer))
            self.run_states.append(advance(run_state, manifest))

    def _kept(self, folder: str, body: bytes) -> Digest:
        name = blob_digest(body)
        (self.root / "bundle" / folder / f"{name.hex()}.bin").write_bytes(body)
        self.bodies[name] = body
        return name


class LyingRun:
    """The run on the market's chain, where it is open, and its verifiers."""

    def __init__(self, market: Market, training: Training) -> None:
        self.market, self.root, self.delivered = market, training.root, training.delivered
        self.links, self.bodies = training.links, training.bodies
        self.spec = market.spec = training.spec
        self.run_id = market.run_id = training.run_id
        market.write_run(self.spec)
        market.join_nodes()
        market.open_run()
        market.lock(NODE)

    def commit(self, round_id: int):
        (signed,) = self.links[round_id].manifest.commits
        return signed.commit

    # ---- verifiers

    def open_verifier(self, name: str) -> tuple[Participant, Accusations]:
        """One that has followed the run."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        data = str(self.root / "data")
        path = self.market.config_of(name, data=data, folder="state", ip="127.0.0.1", port=port)
        me = open_participant(read_process_file(path)[0])
        alone: Any = SimpleNamespace()  # the run has no known-answer tasks: nobody asks for a list
        for link in self.links:
            me.store.add_link(link)
        begin = RecomputeStart(spec=self.spec, workplace=me.workplace, limits="")
        follower = Follower(self.spec, self.run_id, me.store)

        async def archived(digest_of: Digest) -> bytes:
            return b"" if digest_of == NO_DIGEST else self.bodies[digest_of]

        keep = partial(self._keep, me.store)
        return me, Accusations(me, follower, lambda: alone, begin, archived, keep, lambda: 0)

    @staticmethod
    def _keep(store, case_id: Digest, positions: bytes) -> None:
        store.set_value(f"trace/{case_id.hex()}", positions)

    @contextmanager
    def verifiers(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[list[Participant]]:
        """These verifiers as far as accusations go, listening, in a thread."""
        stop, ready = threading.Event(), threading.Event()
        opened = [self.open_verifier(name) for name in names]
        places: dict = {}

        async def serve_one(me: Participant, service: Accusations) -> None:
            door = Door(handlers=service.handlers, is_open=service.is_open, knows=lambda _peer: False)
            async with open_network(me, service.handlers, door) as host, trio.open_nursery() as nursery:
                places[me.me] = PeerAddress(peer=me.me, host="127.0.0.1", port=host.address.port)
                if len(places) == len(names):
                    ready.set()
                nursery.start_soon(service.run)
                while not stop.is_set():
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()

        async def serve() -> None:
            async with trio.open_nursery() as nursery:
                for one in opened:
                    nursery.start_soon(serve_one, *one)

        thread = threading.Thread(target=copy_context().run, args=(trio.run, serve))
        thread.start()
        try:
            assert ready.wait(60)
            monkeypatch.setattr(accusation, "addresses_of", lambda _records: places)
            yield [me for me, _ in opened]
        finally:
            stop.set()
            thread.join()


@pytest.fixture(scope="module")
def training(first_market: Market, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(first_market, tmp_path_factory.mktemp("lying") / "delivered")


@pytest.fixture(autouse=True)
def _forked() -> Iterator[None]:
    with forked_workers():
        yield


@pytest.fixture
def run(market: Market, training: Training, monkeypatch: pytest.MonkeyPatch) -> LyingRun:
    made = LyingRun(market, training)
    monkeypatch.setattr(accuse, "read_any", lambda _root: made.delivered)
    monkeypatch.setattr(accusation, "ASK_AGAIN_S", 0.2)
    monkeypatch.setattr(accusation, "PATIENCE_S", 240)
    monkeypatch.setattr(accusations, "REFUSED_S", 0)
    return made


def step_of(run: LyingRun, round_id: int) -> str:
    return f"{run.root}:{round_id}:{peer(NODE).hex()}"


@pytest.mark.parametrize("name", ["buyer", "stranger"])
def test_who_finds_the_lie_has_it_slashed_and_is_the_challenger(
    run: LyingRun, assay: Assay, monkeypatch: pytest.MonkeyPatch, name: str
):
    market, case_id = run.market, case_id_of(run.commit(LIE))
    config = market.config_of(name)
    if name == "stranger":
        market.as_(name).stake(OPERATOR, market.params.min_operator_stake)

    with run.verifiers(monkeypatch, *VERIFIERS[:3]) as opened:
        # The step of a later round rests on the false one, which is what is accused.
        code, out, err = assay("audit", "accuse", step_of(run, LIE + 2), config)

    assert (code, err) == (0, ""), (out, err)
    assert f"round {LIE} of node {peer(NODE).hex()[:8]} is false" in out
    case = market.bank.case(case_id)
    assert (case.phase, case.offender, case.challenger) == (CasePhase.OPEN, wallet(NODE), wallet(name))
    for me in opened:
        follower = Follower(run.spec, run.run_id, me.store)
        assert is_implied(case, accused_order(me, follower, case_id, case))  # nobody asks for a veto
        assert accused_commit(me.store, case_id) == run.commit(LIE)
        assert me.store.value(f"trace/{case_id.hex()}")  # who signed can defend the order
    again, out, _ = assay("audit", "accuse", step_of(run, LIE), config)
    assert again == 0 and "there is a case about this step" in out

    market.advance(market.params.veto_window_s)
    market.bank.execute_case(case_id)
    market.advance(market.params.payout_delay_s)
    market.bank.pay_out_case(case_id)
    assert market.bank.rewards_of(wallet(name)) > 0
    assert market.bank.rewards_of(wallet("buyer")) > 0


def test_an_honest_step_is_not_accused_by_the_command_and_not_convicted_if_it_is(
    run: LyingRun, assay: Assay, monkeypatch: pytest.MonkeyPatch
):
    market, commit = run.market, run.commit(LIE - 1)
    config = market.config_of("stranger")
    market.as_("stranger").stake(OPERATOR, market.params.min_operator_stake)

    code, out, _ = assay("audit", "accuse", step_of(run, LIE - 1), config)
    assert code == 0 and "nothing that can be accused" in out

    monkeypatch.setattr(accuse, "_false_round", lambda _done: LIE - 1)
    with run.verifiers(monkeypatch, *VERIFIERS[:3]) as opened:
        code, _, err = assay("audit", "accuse", step_of(run, LIE - 1), config)
        assert code and "the step holds" in err
        # Two of four that refuse are enough for nobody to ask the third any more.
        assert sum(is_honest(me.store, case_id_of(commit)) for me in opened) >= 2
        # Whoever accuses an honest step is not heard again, also with a true accusation.
        monkeypatch.setattr(accuse, "_false_round", lambda _done: LIE)
        code, _, err = assay("audit", "accuse", step_of(run, LIE), config)
        assert code and "accused steps of this run from which no order follows: 1" in err
    assert market.bank.case(case_id_of(run.commit(LIE))).phase is CasePhase.NONE


def test_a_later_step_than_the_first_lie_is_not_convicted(
    run: LyingRun, assay: Assay, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(accuse, "_false_round", lambda _done: LIE + 1)
    with run.verifiers(monkeypatch, *VERIFIERS[:3]):
        code, _, err = assay("audit", "accuse", step_of(run, LIE + 1), run.market.config_of("buyer"))
    assert code and "an earlier step of the node is false, which this rests on" in err


def test_accusing_steps_behind_a_lie_is_not_heard_for_long(run: LyingRun, monkeypatch: pytest.MonkeyPatch):
    """Else one account would have a verifier work without end by accusing all that follows its own lie."""
    run.market.as_("stranger").stake(OPERATOR, run.market.params.min_operator_stake)
    me, service = run.open_verifier(VERIFIERS[0])
    looks, look = [], service._look_into

    async def looked_into(commit, accusation) -> None:
        looks.append(int(commit.round))
        await look(commit, accusation)

    monkeypatch.setattr(service, "_look_into", looked_into)

    async def answer(body: bytes) -> bytes:
        while not (signature := await service.handlers["accuse"](peer("whoever"), body)):
            await trio.sleep(0.1)
        return signature

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            with pytest.raises(Refused, match="an earlier step of the node is false"):
                await answer(accusing(run, "stranger", LIE + 1))
            with pytest.raises(Refused, match="from which no order follows: 1"):
                await answer(accusing(run, "stranger", LIE + 2))
            assert await answer(accusing(run, "buyer", LIE))
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert looks == [LIE + 1, LIE]
    assert not is_honest(me.store, case_id_of(run.commit(LIE + 1)))


def test_who_cannot_make_a_step_again_has_not_found_it_honest(run: LyingRun, monkeypatch: pytest.MonkeyPatch):
    """Else it would sign a veto against a right order: two of these and a liar are a quorum."""
    me, service = run.open_verifier(VERIFIERS[0])

    async def made_in_another_class(_child, _commit, _tasks) -> None:
        return None

    monkeypatch.setattr(service, "_make_again", made_in_another_class)

    async def main() -> None:
        ask, body = service.handlers["accuse"], accusing(run, "buyer", LIE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            await ask(peer("whoever"), body)
            while not me.store.values("cleared/"):
                await trio.sleep(0.1)
            with pytest.raises(Refused, match="has not the execution class of the node"):
                await ask(peer("whoever"), body)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert not is_honest(me.store, case_id_of(run.commit(LIE)))


def accusing(run: LyingRun, name: str, round_id: int) -> bytes:
    """An account's accusation, to which it commits on chain."""
    commit = run.commit(round_id)
    salt = run.market.as_(name).commit_to_report(case_id_of(commit))
    account = Address(bytes.fromhex(wallet(name)[2:]))
    return encode(Accusation(round=commit.round, node=commit.node, account=account, salt=Digest(salt)))


def test_who_risks_nothing_and_who_made_no_commitment_is_not_heard(
    run: LyingRun, assay: Assay, monkeypatch: pytest.MonkeyPatch
):
    market = run.market
    with run.verifiers(monkeypatch, *VERIFIERS[:3]) as opened:
        code, _, err = assay("audit", "accuse", step_of(run, LIE), market.config_of("stranger"))
        assert code and "is not the run's buyer, and has no stake" in err
        monkeypatch.setattr("assay.chain.client.Chain.commit_to_report", lambda _self, _offence: bytes(32))
        code, _, err = assay("audit", "accuse", step_of(run, LIE), market.config_of("buyer"))
        assert code and "has not committed to this report with the slash court" in err
        assert not any(me.store.values("accused/") or me.store.values("cleared/") for me in opened)


def test_the_first_account_that_is_heard_opens_the_case_alone_while_its_commitment_lasts(
    run: LyingRun, monkeypatch: pytest.MonkeyPatch
):
    """Else a cheat's friend would accuse first, and open no case: nobody else could."""
    market = run.market
    market.as_("stranger").stake(OPERATOR, market.params.min_operator_stake)
    me, service = run.open_verifier(VERIFIERS[0])
    answers: list[object] = []

    async def main() -> None:
        ask, first = service.handlers["accuse"], accusing(run, "buyer", LIE)
        answers.append(await ask(peer("whoever"), first))
        with pytest.raises(Refused, match="another account accused this step first, and it is looked into"):
            await ask(peer("whoever"), accusing(run, "stranger", LIE))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            while not (signature := await ask(peer("whoever"), first)):
                await trio.sleep(0.1)
            answers.append(signature)
            with pytest.raises(Refused, match="accused this step first, and may open the case alone until"):
                await ask(peer("whoever"), accusing(run, "stranger", LIE))
            market.advance(market.params.report_window_s + 1)
            nobodys = decode(Accusation, accusing(run, "stranger", LIE))
            with pytest.raises(Refused, match="has not committed to this report"):
                await ask(peer("whoever"), encode(replace(nobodys, salt=Digest(bytes(32)))))
            answers.append(await ask(peer("whoever"), encode(nobodys)))
            answers.append(await ask(peer("whoever"), first))
            nursery.cancel_scope.cancel()

    trio.run(main)
    queued, first_signed, other_signed, again = answers
    assert queued == b"" and len(first_signed) == len(other_signed) == 65  # type: ignore[arg-type]
    assert first_signed == again != other_signed
    assert not Path(me.config.folder / "accusations").exists()


def test_an_accuser_asks_the_verifiers_for_the_list_of_a_node_that_has_shown_it(
    run: LyingRun, monkeypatch: pytest.MonkeyPatch
):
    """One verifier of three has it: to the others it was not shown."""
    state, node, secret = run.delivered.run_states[-1], peer(NODE), a_digest("secret")
    spec = replace(run.spec, rounds=40, audit=replace(run.spec.audit, known_answer_count=2))
    root = drawn_tasks(secret, spec, run.run_id, node).root
    record = replace(state.nodes[node], tasks=root)
    announced = replace(state, spec=spec, nodes={**state.nodes, node: record})
    shown = TaskList(run_id=run.run_id, node=node, secret=secret)
    account = account_of(run.market.config_of("buyer"))

    with run.verifiers(monkeypatch, *VERIFIERS[:3]) as opened:
        assert accusation.list_of(account, announced, node) is None
        keep_list(opened[1].store, shown)
        assert accusation.list_of(account, announced, node) == shown
        assert accusation.list_of(account, state, node) is None  # it announced none
