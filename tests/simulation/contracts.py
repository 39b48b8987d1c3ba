"""Contracts: what verifiers and nodes read of the chain in a simulation, and what they send to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assay.chain.commit_statement import evm_address
from assay.chain.state import EscrowState, FinalEscrow, LotState
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import Unavailable
from assay.protocol.params import RunSpec
from tests.simulation.one_thread import now_s

FOREVER_S = 1 << 40
CLOSE_DELAY_S = 3600
BLOCK_S = 2


@dataclass
class Contracts:
    """The state that all processes see. funded_s: when the run's escrow is funded. closes_s: its end."""

    spec: RunSpec
    funded_s: float = 0.0
    closes_s: float = FOREVER_S
    cases: list[Any] = field(default_factory=list)  # slash orders that were opened
    reported: list[Any] = field(default_factory=list)  # pairs of commits

    def client(self, _rpc_url: str, _deployment: Any, _signer: Any) -> Client:
        """In place of `chain.client.Chain`."""
        return Client(self)


class Client:
    """One process's client of the contracts. What it does not have is unavailable."""

    def __init__(self, contracts: Contracts) -> None:
        self._contracts = contracts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_args: Any, **_more: Any) -> Any:
            raise Unavailable(f"{name} is no part of the simulated chain")

        return absent

    def check_deployment(self) -> None:
        """It is this run's."""

    def timestamp(self) -> int:
        """Of the newest block."""
        return int(now_s())

    def block_number(self) -> int:
        """Of the newest block."""
        return int(now_s()) // BLOCK_S

    def close_delay(self) -> int:
        """Of the escrow."""
        return CLOSE_DELAY_S

    def set_version_of(self, _run_id: bytes) -> int:
        """The only set."""
        return 1

    def hot_key_of(self, account: str) -> str:
        """The hot key that the spec names."""
        (found,) = [one.hot for one in self._contracts.spec.judges if evm_address(one.account) == account]
        return evm_address(found)

    def run(self, _run_id: bytes) -> EscrowState | None:
        """The escrow, once it is there."""
        spec, chain = self._contracts.spec, self._contracts
        if now_s() < chain.funded_s:
            return None
        budget = sum(spec.epoch_price(epoch) for epoch in range(spec.epochs))
        return EscrowState(
            buyer=evm_address(spec.buyer), epochs=spec.epochs, set_version=1, pending=0, deadline=FOREVER_S,
            closes_at=int(chain.closes_s), budget=budget, epoch_cap=budget, reserved=0, paid=0, returned=0,
            spec_hash=digest(spec), holds=True, lot=1,
        )  # fmt: skip

    def final_escrow(self, run_id: bytes) -> FinalEscrow:
        """The escrow of the newest block, which is final here."""
        judges = tuple(evm_address(one.account) for one in self._contracts.spec.judges)
        at = self.timestamp()
        return FinalEscrow(
            block=self.block_number(), time_s=at, newest_s=at, escrow=self.run(run_id), judges=judges
        )

    def lot_of(self, _account: str, _role: int, _commitment: bytes) -> LotState:
        """Every lot is whole."""
        return LotState(amount=1, until=FOREVER_S, cases=0)

    def is_punished(self, offence_id: bytes) -> bool:
        """Whether a case of this offence was opened."""
        return any(order.offence_id == offence_id for order in self._contracts.cases)

    def is_beyond_cap(self, _order: Any) -> bool:
        """No case is."""
        return False

    def open_case(self, order: Any, _signatures: Any) -> None:
        """Open the case of a slash order, which a quorum has signed."""
        self._contracts.cases.append(order)

    def report_equivocation(self, first: Any, _one: bytes, second: Any, _other: bytes) -> None:
        """Report two commits."""
        self._contracts.reported.append((first, second))
