"""One fresh deployment on a real local chain, with people on it: what the contract tests start from.

Windows are days long and the chain's clock is moved by hand, so no test depends on speed.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

from assay.chain.client import (
    MAINNET,
    UNIT,
    Chain,
    ChainParams,
    ChainRefused,
    Deployment,
    EpochPhase,
    deploy,
)
from assay.chain.deployment.coin import SINK
from assay.chain.proofs.payout_tree import Payout, PayoutTree, payout_tree
from assay.chain.rpc import artefact
from assay.chain.statements import (
    OPERATOR,
    VERIFIER,
    Address,
    Delegation,
    EpochResult,
    Signable,
    SlashOrder,
    Statement,
    address_of,
    certificate,
    sign_digest,
    term_of,
)
from assay.protocol.offences import offence_id

WINDOWS = replace(
    MAINNET,
    min_operator_stake=100 * UNIT,
    min_verifier_stake=100 * UNIT,
    draw_delay_blocks=1,
    jury_seats=5,
    challenge_bond=480 * UNIT,  # divisible among any number of seats
)
PURSE = 10_000 * UNIT
BUDGET = 3_000 * UNIT
MODEL = b"model".ljust(32, b"\0")


@dataclass(frozen=True)
class Person:
    """An account and its hot key."""

    key: bytes
    hot: bytes

    @cached_property
    def account(self) -> Address:
        return address_of(self.key)

    @cached_property
    def hot_key(self) -> Address:
        return address_of(self.hot)


def a_person(name: str | None = None) -> Person:
    """Somebody new; or, by a name, always the same."""
    if name is None:
        return Person(secrets.token_bytes(32), secrets.token_bytes(32))
    return Person(sha256(name.encode()).digest(), sha256(f"{name}, hot".encode()).digest())


class World:
    """Verifiers (signing in any order), three operators, a buyer and a bystander; by a name, the same."""

    def __init__(
        self,
        rpc_url: str,
        bank_key: bytes,
        params: ChainParams = WINDOWS,
        *,
        verifier_count: int = 4,
        name: str | None = None,
    ) -> None:
        def person(who: str) -> Person:
            return a_person(None if name is None else f"{name}, {who}")

        self.rpc_url, self.bank_key, self.params = rpc_url, bank_key, params
        self.verifiers = [person(f"verifier {at}") for at in range(verifier_count)]
        self.operators = [person(f"operator {at}") for at in range(3)]
        self.buyer, self.bystander = person("buyer"), person("bystander")
        self.deployment: Deployment = deploy(
            rpc_url,
            bank_key,
            params,
            secrets.token_bytes(32) if name is None else sha256(name.encode()).digest(),
            [p.account for p in self.verifiers],
        )
        self.bank = Chain(rpc_url, self.deployment, bank_key)
        everyone = [*self.verifiers, *self.operators, self.buyer, self.bystander]
        self.jurors = [person(f"juror {at}") for at in range(4)]  # staked, in no set
        judges = [*self.verifiers, *self.jurors]
        everyone += self.jurors
        self.bank.fund_many([p.account for p in everyone], token_amount=PURSE, amount_wei=10**18)
        self.bank.fund_many([p.account for p in judges], token_amount=params.min_verifier_stake, amount_wei=0)
        for judge in judges:
            self.join(judge, VERIFIER, params.min_verifier_stake)
        for verifier in self.verifiers:
            self.lock(verifier, params.min_verifier_stake, VERIFIER, term_of(1))
        for juror in self.jurors:
            self.as_(juror).enlist()
        self.ready_block = self.bank.block_number() + 1
        self.judges_stake = len(judges) * params.min_verifier_stake

    # ---- people and time

    def as_(self, person: Person) -> Chain:
        return Chain(self.rpc_url, self.deployment, person.key)

    def rpc(self, method: str, *arguments: Any) -> Any:
        answer = self.bank._rpc.web3.provider.make_request(method, list(arguments))  # type: ignore[arg-type]
        assert "error" not in answer, answer
        return answer["result"]

    def advance(self, seconds: int) -> None:
        self.rpc("evm_increaseTime", seconds)
        self.rpc("evm_mine")

    def raw(self, person: Person, contract: str, function: str, *arguments: Any) -> None:
        """One contract call without the client's idempotence."""
        self.as_(person)._move(function, contract, function, *arguments)

    def sunk(self) -> int:
        """Tokens that slashes and lost bonds have burnt."""
        return self.bank.token_balance(SINK)

    def held(self, contract: str) -> int:
        """Tokens in a contract, but for the verifiers' and jurors' stake."""
        found = self.bank.token_balance(self.deployment.address(contract))
        return found - self.judges_stake if contract == "StakeVault" else found

    # ---- stake

    def join(self, person: Person, role: int, amount: int) -> None:
        """Stakes and delegates; an operator locks all of it for the world's run."""
        self.as_(person).stake(role, amount)
        self.delegate(person)
        if role == OPERATOR:
            self.lock(person, amount)

    def lock(
        self, person: Person, amount: int, role: int = OPERATOR, commitment: bytes | None = None
    ) -> None:
        """Locks staked tokens, for 100 days; as an operator in the world's run by default."""
        chain, until = self.as_(person), self.bank.timestamp() + 100 * 86_400
        chain.ensure_lot(role, commitment or self.run_id, amount, until)

    def lot_of(self, person: Person) -> int:
        """What an operator of the world's run has locked for it."""
        return self.bank.lot_of(person.account, OPERATOR, self.run_id).amount

    def delegate(self, person: Person, expiry: int = 2**40) -> None:
        consent = Delegation(
            deployment_id=self.deployment.deployment_id,
            account=person.account,
            hot_key=person.hot_key,
            expiry=expiry,
        )
        self.as_(person).delegate(person.hot_key, expiry, self.signed(consent, person.hot))

    # ---- runs and results

    @cached_property
    def run_id(self) -> bytes:
        return self.a_run()

    def a_run(self, spec: bytes = b"spec", budget: int = BUDGET, epochs: int = 5) -> bytes:
        return self.as_(self.buyer).open_run(
            spec.ljust(32, b"\0"),
            budget=budget,
            epoch_cap=1_000 * UNIT,
            epochs=epochs,
            deadline=self.bank.timestamp() + 30 * 86_400,
        )

    def a_table(self, epoch: int = 0) -> PayoutTree:
        """101, 202 and 303 units to the three operators."""
        rows = [Payout(account=p.account, amount=101 * (1 + at)) for at, p in enumerate(self.operators)]
        return payout_tree(self.run_id, epoch, rows)

    def a_result(self, tree: PayoutTree, epoch: int = 0, **changes: Any) -> EpochResult:
        previous = self.bank.epoch_state(self.run_id, epoch - 1).digest if epoch else bytes(32)
        result = EpochResult(
            deployment_id=self.deployment.deployment_id,
            run_id=self.run_id,
            epoch=epoch,
            set_version=1,
            prev_result=previous,
            root=tree.root,
            table_hash=b"table".ljust(32, b"\0"),
            model_hash=MODEL,
            total=tree.total,
        )
        return replace(result, **changes)

    def settle(self, epoch: int = 0, **changes: Any) -> PayoutTree:
        """Proposes and finalises one epoch; claims are left to the test."""
        tree = self.a_table(epoch)
        result = self.a_result(tree, epoch, **changes)
        self.bank.propose(result, self.cert(result))
        self.advance(self.params.challenge_window_s)
        self.bank.finalize(self.run_id, epoch)
        return tree

    # ---- juries

    def judge(self, run_id: bytes, epoch: int, is_right: bool) -> None:
        """A jury is drawn, and all of it says the same."""
        people = {p.account: p for p in [*self.jurors, *self.verifiers]}
        state = self.bank.epoch_state(run_id, epoch)
        while state.draw_from:
            self.rpc("evm_mine")
            try:
                self.bank.draw_jury(run_id, epoch)
            except ChainRefused as refused:  # too few different accounts this time
                if refused.name != "NoJury":
                    raise
            state = self.bank.epoch_state(run_id, epoch)
        for juror in dict.fromkeys(state.jury) or [self.bystander.account]:
            if self.bank.epoch_state(run_id, epoch).digest != state.digest:
                return
            self.as_(people.get(juror, self.bystander)).vote(run_id, epoch, state.digest, is_right)
            if self.bank.epoch_state(run_id, epoch).phase is not EpochPhase.CHALLENGED:
                return

    # ---- signatures

    def signed(self, statement: Signable, key: bytes) -> bytes:
        return sign_digest(self.deployment.digest(statement), key)

    def cert(self, statement: Signable, count: int = 3) -> bytes:
        digest = self.deployment.digest(statement)
        return certificate(digest, [sign_digest(digest, p.hot) for p in self.verifiers[:count]])

    def said(self, **changes: Any) -> Statement:
        statement = Statement(
            deployment_id=self.deployment.deployment_id,
            run_id=self.run_id,
            epoch=1,
            kind=1,
            slot=b"slot".ljust(32, b"\0"),
            value=b"one".ljust(32, b"\0"),
        )
        return replace(statement, **changes)

    def a_ruling(self, offender: Person, **changes: Any) -> SlashOrder:
        slash_order = SlashOrder(
            deployment_id=self.deployment.deployment_id,
            run_id=self.run_id,
            epoch=1,
            offender=offender.account,
            role=OPERATOR,
            ppm=250_000,
            offence_id=offence_id(changes.get("run_id", self.run_id), secrets.token_bytes(32)),
            evidence_hash=bytes(32),
            challenger=self.verifiers[0].account,
        )
        return replace(slash_order, **changes)


def view(world: World, contract: str, function: str, *arguments: Any) -> Any:
    """Any view function of a contract."""
    eth = world.bank._rpc.web3.eth
    made: Any = eth.contract(address=world.deployment.address(contract), abi=artefact(contract)["abi"])  # type: ignore[arg-type]
    return made.functions[function](*arguments).call()
