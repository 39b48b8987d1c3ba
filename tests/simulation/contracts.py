"""Contracts: the escrow, the settlement and the court of a simulated run, as far as its processes use them.

A result that a quorum signed is proposed, final after a window, and paid by rows; a case opens on a slash
order that a quorum signed. Nobody challenges or vetoes here: what is false is a `Violation` elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.proofs.payout_tree import PayoutTree
from assay.chain.state import EpochPhase, EpochState, EscrowState, FinalEscrow, HotKey, LotState
from assay.chain.statements import EpochResult, SlashOrder, signers
from assay.protocol.agreement.quorum import quorum
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import Unavailable
from assay.protocol.params import RunSpec
from assay.protocol.types import Address
from tests.simulation.judgement import dearest
from tests.simulation.one_thread import now_s

FOREVER_S = 1 << 40
CLOSE_DELAY_S = 3600
BLOCK_S = 2
WINDOW_S = 10
NOBODY = evm_address(Address(bytes(20)))


@dataclass
class Posted:
    """A result on chain."""

    result: EpochResult
    digest: bytes
    until_s: float
    is_final: bool = False
    paid: set[str] = field(default_factory=set)  # accounts of which a row was claimed


@dataclass
class Contracts:
    """The state that all processes see.

    funded_s: When the run's escrow is funded, with what the first epoch costs at most and one unit less than
    the second costs. topped_s: With the rest. cancelled_s: When its buyer closes it.
    """

    spec: RunSpec
    funded_s: float = 0.0
    topped_s: float = 0.0
    cancelled_s: float = float(FOREVER_S)
    hot_keys: dict[str, HotKey] = field(default_factory=dict)
    results: dict[int, Posted] = field(default_factory=dict)
    cases: list[SlashOrder] = field(default_factory=list)
    reported: list[Any] = field(default_factory=list)  # commits of whoever signed two for one round

    def client(self, _rpc_url: str, deployment: Deployment, signer: Any) -> Client:
        """In place of `chain.client.Chain`."""
        return Client(self, deployment, signer.address)

    @property
    def funded_epochs(self) -> int:
        """How many epochs the escrow has the money for now."""
        if now_s() < self.funded_s:
            return 0
        return len(dearest(self.spec)) if now_s() >= self.topped_s else 1

    @property
    def budget(self) -> int:
        """What the escrow has been paid so far."""
        prices, count = dearest(self.spec), self.funded_epochs
        return sum(prices[:count]) + (prices[count] - 1 if 0 < count < len(prices) else 0)

    @property
    def reserved(self) -> int:
        """What its results bind, paid or not."""
        return sum(posted.result.total for posted in self.results.values())

    def check(self, message: bytes, certificate: bytes) -> None:
        """Do nothing if a quorum's hot keys signed this.

        Raises:
            Unavailable: the contract reverts.
        """
        hot = {evm_address(member.hot) for member in self.spec.judges}
        found = signers(message, certificate)
        if not hot.issuperset(found) or len(found) < quorum(len(hot)):
            raise Unavailable(f"a certificate of {len(found)} signers, expected a quorum of {len(hot)}")


class Client:
    """One process's client of the contracts. What it does not have is unavailable."""

    def __init__(self, contracts: Contracts, deployment: Deployment, address: str) -> None:
        self._contracts, self._deployment, self.address = contracts, deployment, address

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

    # ---- the escrow

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

    def verifier_set(self, _version: int) -> tuple[str, ...]:
        """The accounts that the spec names."""
        return tuple(evm_address(member.account) for member in self._contracts.spec.judges)

    def run(self, _run_id: bytes) -> EscrowState | None:
        """The escrow, once it is there."""
        spec = self._contracts.spec
        if now_s() < self._contracts.funded_s:
            return None
        prices = dearest(spec)
        cancelled_s, closes_at = self._contracts.cancelled_s, FOREVER_S
        if now_s() >= cancelled_s:
            closes_at = int(cancelled_s) + CLOSE_DELAY_S
        return EscrowState(
            buyer=evm_address(spec.buyer), epochs=len(prices), set_version=1, pending=0, deadline=FOREVER_S,
            closes_at=closes_at, budget=self._contracts.budget, epoch_cap=max(prices),
            reserved=self._contracts.reserved, paid=0, returned=0, spec_hash=digest(spec), holds=True, lot=1,
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

    def is_banned(self, _account: str) -> bool:
        """Nobody is, but in runs."""
        return False

    def minimum_stake(self, _role: int) -> int:
        """Of a lot."""
        return 1

    def hot_key(self, key: str) -> HotKey | None:
        """Whose hot key this is, and until when."""
        return self._contracts.hot_keys.get(key)

    # ---- the settlement

    def challenge_window(self) -> int:
        """In seconds."""
        return WINDOW_S

    def resolve_window(self) -> int:
        """In seconds."""
        return WINDOW_S

    def posted_epochs(self, _run_id: bytes, known: int = 0) -> int:
        """Epochs with a result, from the first on."""
        return max(known, len(self._contracts.results))

    def epoch_state(self, _run_id: bytes, epoch: int) -> EpochState:
        """The settlement of an epoch."""
        posted = self._contracts.results.get(epoch)
        phase = EpochPhase.NONE
        if posted is not None:
            phase = EpochPhase.FINAL if posted.is_final else EpochPhase.PROPOSED
        result = None if posted is None else posted.result
        return EpochState(
            phase=phase, until=0 if posted is None else int(posted.until_s),
            total=0 if result is None else result.total, claimed=0, challenger=NOBODY,
            digest=bytes(32) if posted is None else posted.digest,
            prev_result=bytes(32) if result is None else result.prev_result,
            root=bytes(32) if result is None else result.root,
            model_hash=bytes(32) if result is None else result.model_hash,
            proposer=NOBODY, bond=0, draw_from=0, jury=(), voted=0,
        )  # fmt: skip

    def propose(self, result: EpochResult, certificate: bytes) -> None:
        """Post a result that a quorum signed and the escrow has the money for; one that is there stays."""
        message, world = self._deployment.digest(result), self._contracts
        world.check(message, certificate)
        if result.epoch in world.results:
            return
        have = min(max(dearest(world.spec)), world.budget - world.reserved)
        if result.total > have:
            raise Unavailable(f"epoch {result.epoch} costs {result.total}, the escrow has {have} for it")
        world.results[result.epoch] = Posted(result, message, now_s() + WINDOW_S)

    def finalize(self, _run_id: bytes, epoch: int) -> None:
        """Make a result final whose window is over."""
        posted = self._contracts.results[epoch]
        if now_s() < posted.until_s:
            raise Unavailable(f"the window of epoch {epoch} is open")
        posted.is_final, posted.until_s = True, FOREVER_S

    def claim_all(self, _run_id: bytes, epoch: int, tree: PayoutTree, indices: Any = None) -> None:
        """Pay rows of a final result."""
        posted = self._contracts.results[epoch]
        if not posted.is_final or tree.root != posted.result.root:
            raise Unavailable(f"epoch {epoch} is not final, or has another table")
        chosen = range(len(tree.payouts)) if indices is None else indices
        posted.paid |= {tree.payouts[index].account for index in chosen}

    def proposals_of(self, *_where: Any) -> list[Any]:
        """Nobody signs two results; `Promises` sees to it."""
        return []

    def bonds_owed(self, _account: str) -> int:
        """None."""
        return 0

    def rewards_of(self, _account: str) -> int:
        """None."""
        return 0

    def entries_lacking(self, _account: str) -> int:
        """None."""
        return 0

    def evidence_window(self) -> int:
        """In seconds."""
        return WINDOW_S

    # ---- the court

    def cases_of(self, *_where: Any) -> list[Any]:
        """None that needs anybody."""
        return []

    def is_punished(self, offence_id: bytes) -> bool:
        """Whether a case of this offence was opened."""
        return any(order.offence_id == offence_id for order in self._contracts.cases)

    def is_beyond_cap(self, _order: SlashOrder) -> bool:
        """No case is."""
        return False

    def open_case(self, order: SlashOrder, certificate: bytes) -> None:
        """Open the case of a slash order that a quorum signed."""
        self._contracts.check(self._deployment.digest(order), certificate)
        self._contracts.cases.append(order)

    def report_equivocation(self, first: Any, _one: bytes, second: Any, _other: bytes) -> None:
        """Two commits of one node."""
        self._contracts.reported.append((first, second))
