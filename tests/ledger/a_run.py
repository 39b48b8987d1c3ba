"""Builders for runs on paper: specs, histories, tables and events, filled with what a test is not about."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from assay.chain.commit_statement import evm_address
from assay.chain.events import (
    ChainEvent,
    Claimed,
    Refunded,
    ResultFinalized,
    ResultProposed,
    RewardCollected,
    RunOpened,
    Slashed,
    Staked,
)
from assay.ledger.settlement.payouts import Settlement, settle
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.messages import Outcome
from assay.protocol.params import Member, RunSpec
from assay.protocol.run_state import RunState, StepId, start
from assay.protocol.types import NO_DIGEST, Address, Digest, PeerId, RoundId
from assay.testing import specs
from assay.testing.messages import a_commit, a_verdict

RUN = Digest(hashlib.sha256(b"run").digest())
TREASURY = Address(b"T" * 20)
BUYER = evm_address(b"B" * 20)
BUDGET = 10_000_000


def peer(name: str) -> PeerId:
    return PeerId(name.encode().ljust(32, b"\1"))


def account(name: str) -> Address:
    return Address(hashlib.sha256(name.encode()).digest()[:20])


def wallet(name: str) -> str:
    return evm_address(account(name))


def a_member(name: str) -> Member:
    return Member(peer=peer(name), account=account(name), hot=Address(account(name + " hot")))


def a_spec(nodes: int = 3, verifiers: int = 4, rounds: int = 8, epoch_rounds: int = 4) -> RunSpec:
    """A run whose price and shares leave remainders everywhere."""
    money = specs.a_money_spec(
        price_per_mtoken=1_000_003, operators_ppm=800_000, verifiers_ppm=150_000, treasury=TREASURY,
        slash_ppm=200_000, withheld_ppm=150_000, verifier_slash_ppm=50_000, epoch_rounds=epoch_rounds,
    )  # fmt: skip
    return specs.a_spec(
        name="paper",
        rounds=rounds,
        state_every=2,
        audit=specs.an_audit_spec(probation=1, floor_ppm=1, dispute_rounds=2),
        money=money,
        buyer=Address(b"B" * 20),
        nodes=tuple(a_member(f"node-{i}") for i in range(nodes)),
        verifiers=tuple(a_member(f"verifier-{i}") for i in range(verifiers)),
    )


def an_audit(
    node: str,
    round_id: int,
    ruling: AuditStatus = AuditStatus.PASSED,
    alarm: bool = False,
    **verdicts: Outcome,
) -> Audit:
    """`verdicts` by verifier: `v0=Outcome.MATCH`."""
    audit = Audit(
        round=RoundId(round_id),
        node=peer(node),
        commit=a_commit(round_id, peer(node), run_id=RUN, tokens=1_000),
        seed=NO_DIGEST,
        order=tuple(peer(f"verifier-{i}") for i in range(4)),
        ruling=ruling,
        dispute_opened_round=round_id + 1 if alarm else -1,
        closed_round=round_id + 2,
    )
    names = ((name.replace("v", "verifier-"), outcome) for name, outcome in verdicts.items())
    return replace(audit, verdicts=tuple(a_verdict(audit, peer(name), outcome) for name, outcome in names))


def a_history(
    spec: RunSpec,
    tokens: Mapping[tuple[int, str], int],
    audits: Iterable[Audit] = (),
    beacon_shares: Mapping[int, Iterable[str]] | None = None,
    epoch: int = 0,
) -> RunState:
    """The fold just when `epoch` is ripe, with these accepted steps by (round, node)."""
    steps: dict[StepId, int] = {(RoundId(r), peer(node)): count for (r, node), count in tokens.items()}
    return replace(
        start(spec, RUN),
        round=RoundId(spec.ordered.settled_at(epoch) + 1),
        steps=steps,
        audits={(audit.round, audit.node): audit for audit in audits},
        beacon_shares={r: tuple(map(peer, names)) for r, names in (beacon_shares or {}).items()},
    )


def a_settlement(epoch: int = 0, spec: RunSpec | None = None, tokens: int = 1_000) -> Settlement:
    """Three nodes with one step each, and verifiers paid for one round's beacon."""
    spec = spec or a_spec()
    first = epoch * spec.money.epoch_rounds
    steps = {(first, f"node-{i}"): tokens + i for i in range(3)}
    beacon_shares = {first: [f"verifier-{i}" for i in range(4)]}
    return settle(a_history(spec, steps, beacon_shares=beacon_shares, epoch=epoch), epoch)


class EventStream:
    """Chain events one after another, each in a block of its own; `fork` names another history."""

    def __init__(self, fork: str = "main", height: int = 0) -> None:
        self.events: list[Any] = []  # of ChainEvent
        self.fork, self.height = fork, height

    def emit(self, kind: type[ChainEvent], **fields: Any) -> ChainEvent:
        self.height += 1
        place = f"{self.fork} {self.height}".encode()
        event = kind(
            block_number=self.height,
            block_hash=hashlib.sha256(place).digest(),
            block_time=1_700_000_000 + 12 * self.height,
            tx_hash=hashlib.sha256(b"tx" + place).digest(),
            log_index=0,
            **fields,
        )
        self.events.append(event)
        return event

    def opened(self, budget: int = BUDGET, run_id: bytes = RUN) -> None:
        self.emit(
            RunOpened,
            run_id=run_id,
            buyer=BUYER,
            spec_hash=NO_DIGEST,
            budget=budget,
            epoch_cap=budget,
            epochs=2,
            deadline=10**9,
            set_version=1,
        )

    def staked(self, name: str, amount: int, role: int = 0) -> None:
        self.emit(Staked, account=wallet(name), role=role, amount=amount)

    def slashed(
        self,
        name: str,
        amount: int,
        challenger: str = "verifier-0",
        payable_at: int = 0,
        offence_id: bytes = NO_DIGEST,
    ) -> None:
        to_buyer, to_challenger = amount // 5, 3 * amount // 10
        self.emit(
            Slashed,
            account=wallet(name),
            role=0,
            offence_id=offence_id,
            amount=amount,
            burnt=amount - to_buyer - to_challenger,
            buyer=BUYER,
            buyer_amount=to_buyer,
            challenger=wallet(challenger),
            challenger_amount=to_challenger,
            payable_at=payable_at,
        )

    def collected(self, account: str, amount: int) -> None:
        self.emit(RewardCollected, account=account, amount=amount)

    def proposed(self, table: Settlement, bond: int = 0) -> None:
        self.emit(
            ResultProposed,
            run_id=table.run_id,
            epoch=table.epoch,
            digest=_result(table),
            root=table.tree().root,
            table_hash=table.table_hash,
            model_hash=NO_DIGEST,
            total=table.total,
            window_ends_at=0,
            proposer=wallet("ledger"),
            bond=bond,
        )

    def final(self, table: Settlement) -> None:
        self.emit(
            ResultFinalized,
            run_id=table.run_id,
            epoch=table.epoch,
            digest=_result(table),
            total=table.total,
            claim_ends_at=0,
        )

    def claimed(self, table: Settlement, index: int) -> None:
        row = table.rows[index]
        self.emit(
            Claimed,
            run_id=table.run_id,
            epoch=table.epoch,
            index=index,
            account=evm_address(row.account),
            amount=row.amount,
        )

    def refunded(self, amount: int) -> None:
        self.emit(Refunded, run_id=RUN, buyer=BUYER, amount=amount)

    def settled(self, table: Settlement) -> None:
        """An epoch's whole road, every row claimed."""
        self.proposed(table)
        self.final(table)
        for index in range(len(table.rows)):
            self.claimed(table, index)


def _result(table: Settlement) -> bytes:
    return hashlib.sha256(b"result" + table.table_hash).digest()
