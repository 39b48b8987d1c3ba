"""Appeal commands: a convicted node appeals from its own files, jurors vote by the evidence it wrote."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import pytest
import trio

from assay.chain.client import CasePhase, ChainRefused
from assay.chain.commit_statement import commit_statement
from assay.chain.state import AppealPhase, DefencePhase
from assay.chain.statements import OPERATOR, VERIFIER, SlashOrder, certificate, sign_digest
from assay.cli.process import read_process_file
from assay.devnet.machines import free_ports
from assay.ledger.settlement.results import run_id_of
from assay.node.trainer import Trainer
from assay.observer.watchtower import watch
from assay.participant import evidence_server
from assay.participant.config import Door, open_network, open_participant
from assay.participant.directory.find import announce_record
from assay.participant.files.record import Role
from assay.protocol.auditing.audits import case_id_of
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import RuleSpec
from assay.testing.members import a_hot_key, peer
from assay.testing.signed import NODES, VERIFIERS
from assay.testing.specs import a_data_folder, a_rule
from assay.training.codec.contribution import decode_contribution
from assay.training.execution.execution_class import execution_class
from assay.training.model.loss import use_one_thread
from assay.training.optimiser.aggregate import encode_round
from assay.training.optimiser.public_state import THETA
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.appeal import accused, juror
from assay.verifier.audit.limits import Limits, shipped
from tests.a_network import NOW, a_record
from tests.cli.market import Market, wallet
from tests.conftest import Assay
from tests.verifier.audit.test_displacement import measured_class

pytestmark = pytest.mark.slow
NODE, ROUND = NODES[0], 2
JURORS = (*NODES[1:], "stranger")


class Trial:
    """A node of the market that trained and was convicted by three verifiers of four."""

    def __init__(self, market: Market, rule: RuleSpec | None = None, limits: Limits | None = None) -> None:
        """rule: in place of the market's. limits: in place of those shipped."""
        use_one_thread()
        self.market = market
        spec, agreed = replace(market.spec, rule=rule or market.spec.rule), limits or shipped()
        self.spec = replace(spec, audit=replace(spec.audit, limits=agreed.digest()))
        market.spec, market.run_id = self.spec, run_id_of(self.spec)
        market.write_run(self.spec)
        market.join_nodes()
        market.open_run()
        market.lock(NODE)
        self.data = str(a_data_folder(market.folder / "data"))
        self.config = market.config_of(NODE, data=self.data, folder="state")
        if limits is not None:
            (market.folder / "limits.json").write_bytes(limits.encode())
            self.config = market.config_of(
                NODE, data=self.data, folder="state", limits=str(market.folder / "limits.json")
            )
        commit = self._trained()
        self.case_id, statement = case_id_of(commit), commit_statement(self.spec, commit)
        self.statement = statement, self._signed(statement, NODE)
        order = SlashOrder(
            deployment_id=market.deployment.deployment_id, run_id=market.run_id, epoch=0,
            offender=wallet(NODE), role=OPERATOR, ppm=market.params.case_ppm_max,
            offence_id=self.case_id, evidence_hash=bytes(32), challenger=wallet(VERIFIERS[0]),
        )  # fmt: skip
        signed = [self._signed(order, name) for name in VERIFIERS[:3]]
        market.bank.open_case(order, certificate(market.deployment.digest(order), signed))

    def _signed(self, statement, name: str) -> bytes:
        return sign_digest(self.market.deployment.digest(statement), a_hot_key(name))

    def _trained(self):
        folder = self.market.folder / NODE / "state"
        trainer = Trainer(
            spec=self.spec, run_id=self.market.run_id, node=peer(NODE), data=self.market.folder / "data",
            folder=folder, salt_key=bytes(32),
        )  # fmt: skip
        base, root, blocks = 0, NO_DIGEST, trainer.layout.blocks
        for number in range(ROUND + 1):
            parent = Digest(hashlib.sha256(b"manifest %d" % number).digest())
            step = trainer.step(number, parent, base, root)
            base, root = number + 1, step.commit.momentum_after
            update = decode_contribution(self.spec, trainer.layout, number, step.update)
            mean = mean_over_senders({peer(NODE): update}, blocks)
            trainer.apply(number, encode_round(self.spec.rule, mean, blocks))
        trainer.parameters.hold([ROUND])  # as a banned node's process does
        return step.commit

    def enlist(self) -> None:
        for name in JURORS:
            self.market.as_(name).stake(VERIFIER, self.market.params.min_verifier_stake)
            self.market.as_(name).enlist()
        self.market.rpc("anvil_mine", "0x2")


@pytest.fixture
def trial(market: Market) -> Trial:
    return Trial(market)


@contextmanager
def node_that_shows(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The accused's node as far as its evidence goes, found by the record that it announced; in a thread."""
    (port,) = free_ports(1)
    monkeypatch.setattr(evidence_server, "LOOK_S", 0.3)
    announce_record(trial.market.as_(NODE), a_record(NODE, port=port, now_s=NOW + 1))
    config, _ = read_process_file(trial.market.config_of(NODE, data=trial.data, folder="state", port=port))
    me, stop = open_participant(config), threading.Event()
    server = evidence_server.EvidenceServer(me)
    door = Door(handlers={}, is_open=lambda: False, knows=server.knows)

    async def serve() -> None:
        async with (
            open_network(me, {"evidence": server.answer}, door),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(server.follow_jurors)
            while not stop.is_set():
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def watch_until_voted(trial: Trial, name: str, defender: str) -> None:
    """A juror's watchtower, with nothing done by hand, until its vote is on chain."""
    config = trial.market.config_of(name, data=trial.data, folder="tower", port=free_ports(1)[0])
    me = open_participant(read_process_file(config)[0])

    def has_voted() -> bool:
        state, jury = trial.market.bank.defence(trial.case_id, defender)
        voted = jury.right | jury.wrong
        return state.phase is DefencePhase.ENDED or any(
            who == wallet(name) and voted >> at & 1 for at, who in enumerate(jury.seats)
        )

    async def whole() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, me, 600.0)
                while not await trio.to_thread.run_sync(has_voted):
                    await trio.sleep(0.5)
                nursery.cancel_scope.cancel()

    trio.run(whole)


@pytest.mark.parametrize("way", ["by a file", "by the accused's node", "by a watchtower"])
def test_a_node_appeals_and_wins_by_its_jurors_votes(
    trial: Trial, assay: Assay, monkeypatch: pytest.MonkeyPatch, way: str
):
    market, jury = trial.market, []
    is_fetched = way != "by a file"
    monkeypatch.setattr(juror, "ASK_AGAIN_S", 0.5)
    trial.enlist()
    if is_fetched:
        for name in JURORS:
            announce_record(market.as_(name), a_record(name, Role.VERIFIER))
    evidence = market.folder / NODE / "state" / "appeals"

    def wait(_seconds: float) -> None:
        """The first verifier defends as a liar does; jurors vote once they have evidence; hours pass."""
        chain = market.as_(VERIFIERS[0])
        state, drawn = chain.defence(trial.case_id, chain.address)
        if not state.phase:
            told = chain.appeal_positions(trial.case_id, market.deployment.block)
            chain.defend_order(trial.case_id, 0, told, *trial.statement)
        elif state.phase is DefencePhase.CHOOSE:
            cut = chain.cut_positions(trial.case_id, chain.address, market.deployment.block)
            chain.choose_part(trial.case_id, 0, cut)
        elif state.phase is DefencePhase.JURY and not drawn.seats:
            market.rpc("anvil_mine", "0x10")
            with suppress(ChainRefused):  # too few by this block's randomness; settlers try again, too
                chain.draw_appeal_jury(trial.case_id, chain.address)
        elif drawn.seats and not jury:
            jury.extend(evidence.iterdir())
        market.advance(market.params.appeal_move_s // 3)

    conduct = accused.conduct
    votes = []

    def voting(seconds: float) -> None:
        wait(seconds)
        if jury and not votes:
            if way == "by a watchtower":
                _, drawn = market.bank.defence(trial.case_id, wallet(VERIFIERS[0]))
                by_itself = next(name for name in reversed(JURORS) if wallet(name) in drawn.seats)
                watch_until_voted(trial, by_itself, wallet(VERIFIERS[0]))
                _, drawn = market.bank.defence(trial.case_id, wallet(VERIFIERS[0]))
                assert not drawn.wrong
            for name in JURORS:
                config = market.config_of(name, data=trial.data, folder="state")
                shown = trial.case_id.hex() if is_fetched else jury[0]
                votes.append(assay("appeal", "vote", config, shown))
                if trial.market.bank.appeal(trial.case_id).playing == 0:
                    break

    monkeypatch.setattr(accused, "conduct", lambda chain, step, save: conduct(chain, step, save, voting))
    with node_that_shows(trial, monkeypatch) if is_fetched else nullcontext():
        code, out, err = assay("appeal", "open", trial.config, ROUND)

    assert (code, err) == (0, ""), (out, err)
    assert out.splitlines()[-1] == "the appeal has ended: WON"
    assert [code for code, _, _ in votes] == [0] * len(votes)
    assert way == "by a watchtower" or any("is right" in out for _, out, _ in votes)
    assert market.bank.case(trial.case_id).phase is CasePhase.VETOED


def test_nothing_is_sent_by_a_dry_run_and_no_vote_is_given_without_a_seat(trial: Trial, assay: Assay):
    code, out, err = assay("appeal", "open", trial.config, ROUND, "--dry-run", "--json")
    assert (code, err) == (0, "") and trial.case_id.hex() in json.loads(out)["steps"][0]["text"]
    assert trial.market.bank.appeal(trial.case_id).phase is AppealPhase.NONE

    for words, reason in (
        (("open", trial.config, ROUND + 1), "not on this disk"),
        (("vote", trial.config, trial.market.folder / "none"), "cannot be read"),
        (("vote", trial.config, trial.config), "shorter|canonical|CBOR|bytes|TAG|array"),
    ):
        code, out, err = assay("appeal", *words)
        assert code and len(err.splitlines()) == 1
        assert re.search(reason, err), err


@pytest.mark.parametrize(
    ("method", "keeps_moments"), [("muloco", False), ("muloco", True), ("diloco", True), ("diloco", False)]
)
def test_a_node_with_inner_steps_appeals_by_the_states_on_its_disk(
    market: Market, assay: Assay, method: str, keeps_moments: bool
):
    use_one_thread()  # the class that the node trains in
    rule = a_rule(method, steps=2, segment=1, sequences=1, keeps_moments=keeps_moments)
    limits = measured_class(execution_class(market.spec.compute, "cpu"), steps=2)
    trial = Trial(market, rule, limits)

    code, out, err = assay("appeal", "open", trial.config, ROUND, "--dry-run")
    assert (code, err) == (0, ""), err
    assert "the step holds" in out and trial.case_id.hex() in out

    held = market.folder / NODE / "state" / THETA / f"held-{ROUND:08d}.rest"
    assert held.exists() == (method == "diloco")
    if method == "diloco":  # the velocity, which its commit names with the parameters
        rest = held.read_bytes()
        held.write_bytes(bytes(len(rest)))
        code, out, err = assay("appeal", "open", trial.config, ROUND, "--dry-run")
        assert code and "the parameters of that round are not on this disk" in err
        held.write_bytes(rest)

    for path in (market.folder / NODE / "state" / "steps").glob(f"inner-{ROUND:08d}-00*"):
        path.unlink()
    code, out, err = assay("appeal", "open", trial.config, ROUND, "--dry-run")
    assert code and f"the inner steps of round {ROUND} are not on this disk" in err
