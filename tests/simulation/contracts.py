"""Contracts: the escrow, the settlement and the court of a simulated run, as far as its processes use them.

A result that a quorum signed is proposed, final after a window, and paid by rows; a case opens on a slash
order that a quorum signed. Nobody challenges or vetoes here: what is false is a `Violation` elsewhere.

Where a ledger service keeps the books (`is_booked`), money moves as in the contracts: bonds and stakes are
locked, slashes carried out and paid, the escrow closes and is refunded; and `log` has an event of each move.
A process may then be killed at each transaction, before or after it is sent.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.events import (
    BondCollected,
    BondLocked,
    BondReleased,
    BondReturned,
    CaseClosed,
    CaseExecuted,
    CaseOpened,
    ChainEvent,
    Claimed,
    LogAnchored,
    Refunded,
    ResultFinalized,
    ResultProposed,
    RewardCollected,
    RunOpened,
    RunToppedUp,
    Slashed,
    SlashPaid,
    Staked,
)
from assay.chain.proofs.payout_tree import PayoutTree
from assay.chain.proposals import CertifiedResult
from assay.chain.rpc import ALREADY_DONE, Sent
from assay.chain.state import (
    AppealPhase,
    AppealState,
    CasePhase,
    CaseState,
    EpochPhase,
    EpochState,
    EscrowState,
    FinalEscrow,
    Head,
    HotKey,
    LotState,
    StakeState,
)
from assay.chain.statements import EpochResult, ModelRecord, SlashOrder, signers
from assay.ledger import accounts as chart
from assay.ledger.accounts import HOLDERS, Account
from assay.ledger.settlement.payouts import Settlement
from assay.protocol.agreement.quorum import quorum
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import Unavailable
from assay.protocol.params import PPM, Member, RunSpec
from assay.protocol.types import Address
from assay.testing.members import RUN_ID
from tests.simulation.chain_log import BLOCK_S, ChainLog
from tests.simulation.disk import HERE
from tests.simulation.judgement import dearest
from tests.simulation.one_thread import BEGUN_S, now_s

FOREVER_S = 1 << 40
CLOSE_DELAY_S = 3600
WINDOW_S = 10
NOBODY = evm_address(Address(bytes(20)))
LOT, BOND, CASE_BOND = 10_000_019, 1_009, 503  # token units
BUYERS_PPM, ACCUSERS_PPM = 200_000, 100_000  # of a slash; the rest burns


@dataclass
class Posted:
    """A result on chain."""

    result: EpochResult
    digest: bytes
    until_s: float
    proposer: str = NOBODY
    is_final: bool = False
    rows: dict[int, tuple[str, int]] = field(default_factory=dict)  # that were claimed: account and amount

    @property
    def paid(self) -> set[str]:
        """Accounts of which a row was claimed."""
        return {account for account, _ in self.rows.values()}

    @property
    def claimed(self) -> int:
        """Of its total."""
        return sum(amount for _, amount in self.rows.values())


@dataclass
class Case:
    """A case in court."""

    order: SlashOrder
    opener: str
    opened_s: int
    phase: CasePhase = CasePhase.OPEN
    payable_at: int = 0
    taken: int = 0

    @property
    def pot(self) -> int:
        """What was taken, until it is paid out."""
        return self.taken * (self.phase is CasePhase.EXECUTED)


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
    is_booked: bool = False
    close_delay_s: int = CLOSE_DELAY_S
    tables: Mapping[int, Settlement] = field(default_factory=dict)  # of epochs that are settled
    hot_keys: dict[str, HotKey] = field(default_factory=dict)
    results: dict[int, Posted] = field(default_factory=dict)
    certified: list[tuple[int, CertifiedResult]] = field(default_factory=list)  # with their blocks
    cases: list[SlashOrder] = field(default_factory=list)
    reported: list[Any] = field(default_factory=list)  # commits of whoever signed two for one round
    log: ChainLog = field(init=False)
    court: dict[bytes, Case] = field(default_factory=dict)
    anchors: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    stakes: Counter[tuple[int, str]] = field(default_factory=Counter)  # by role and account
    rewards: Counter[str] = field(default_factory=Counter)
    collected: Counter[str] = field(default_factory=Counter)  # of these
    bonds_owed: Counter[str] = field(default_factory=Counter)
    records: dict[bytes, ModelRecord] = field(default_factory=dict)
    returned: int = 0
    is_refunded: bool = False
    ended_s: int = FOREVER_S  # when the run's last result became final
    last_window_s: int = 0  # when the last window of a proposed result ends
    after: dict[int, dict[Account, int]] = field(default_factory=dict)  # all accounts after a block
    paid_in: int = 0  # what the log says that the buyer paid

    def __post_init__(self) -> None:
        self.log = ChainLog(self.tell_time)

    def stake(self, role: int, member: Member) -> None:
        """A member locks its lot before the run."""
        account = evm_address(member.account)
        self.stakes[role, account] += LOT
        self.log.add(Staked, BEGUN_S, account=account, role=role, amount=LOT)

    def tell_time(self) -> None:
        """Have the log say what happened by itself: the escrow was funded."""
        have = self.budget
        if have == self.paid_in:
            return
        spec, buyer = self.spec, evm_address(self.spec.buyer)
        if not self.paid_in:
            prices = dearest(spec)
            self.log.add(
                RunOpened, self.funded_s, run_id=RUN_ID, buyer=buyer, spec_hash=digest(spec),
                budget=self._budget_at(self.funded_s), epoch_cap=max(prices), epochs=len(prices),
                deadline=FOREVER_S, set_version=1,
            )  # fmt: skip
            self.paid_in = self._budget_at(self.funded_s)
        if more := have - self.paid_in:
            self.log.add(RunToppedUp, self.topped_s, run_id=RUN_ID, payer=buyer, amount=more)
        self.paid_in = have
        self.note()

    def note(self) -> None:
        """Note what is in all accounts after the newest event."""
        self.after[self.log.told[-1].block_number] = self.accounts()

    def go_back(self, blocks: int) -> None:
        """The chain's newest blocks are replaced."""
        first, last = self.log.go_back(blocks)
        again = [number for number in sorted(self.after) if number >= first]
        for found in [self.after.pop(number) for number in again][-1:]:
            self.after[last] = found

    def accounts(self) -> dict[Account, int]:
        """What the contracts owe to whom, and have: each account of the books that is not empty."""
        have = {HOLDERS[name]: amount for name, amount in self.held().items()}
        owed = {chart.budget(RUN_ID): self.free}
        for epoch, posted in self.results.items():
            if not posted.is_final:
                owed[chart.reserved(RUN_ID, epoch)] = posted.result.total
                owed[chart.bond(RUN_ID, epoch)] = BOND
        for (epoch, role, account), amount in self.payable().items():
            owed[chart.payable(role, account, epoch)] = amount
        owed |= {chart.stake(role, account): amount for (role, account), amount in self.stakes.items()}
        owed |= {chart.rewards(account): amount for account, amount in self.rewards.items()}
        owed |= {chart.bond_owed(account): amount for account, amount in self.bonds_owed.items()}
        for case_id, case in self.court.items():
            owed[chart.held(case_id)] = case.pot
            owed[chart.case_bond(case_id)] = CASE_BOND * (not case.phase.is_over)
        return {account: amount for account, amount in (have | owed).items() if amount}

    def payable(self) -> Counter[tuple[int, str, str]]:
        """Rows of final results that nobody claimed: epoch, role and account."""
        found: Counter[tuple[int, str, str]] = Counter()
        for epoch, posted in self.results.items():
            for index, row in enumerate(self.tables[epoch].rows if posted.is_final else ()):
                if index not in posted.rows:
                    found[epoch, row.role, evm_address(row.account)] += row.amount
        return found

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
        return self._budget_at(now_s())

    def _budget_at(self, at_s: float) -> int:
        if at_s < self.funded_s:
            return 0
        prices = dearest(self.spec)
        return sum(prices) if at_s >= self.topped_s else sum(prices[:2]) - (len(prices) > 1)

    def received(self, epoch: int) -> Counter[str]:
        """What each account was paid of an epoch, by the log."""
        found = Counter[str]()
        for one in self.log.told:
            if isinstance(one, Claimed) and one.epoch == epoch:
                found[one.account] += one.amount
        return found

    @property
    def paid_out(self) -> list[Case]:
        """Cases whose slash is final."""
        return [one for one in self.court.values() if one.phase is CasePhase.PAID]

    @property
    def slashes_left(self) -> bool:
        """Whether a case goes on, or the buyer has not its share of one that is over."""
        return self.rewards[evm_address(self.spec.buyer)] > 0 or not all(
            one.phase.is_over for one in self.court.values()
        )

    @property
    def paid(self) -> int:
        """What was claimed of its results."""
        return sum(posted.claimed for posted in self.results.values())

    @property
    def reserved(self) -> int:
        """What its results bind and was not claimed."""
        return sum(posted.result.total for posted in self.results.values()) - self.paid

    @property
    def free(self) -> int:
        """What is the buyer's."""
        return self.budget - self.reserved - self.paid - self.returned

    @property
    def closes_at(self) -> int:
        """From when on the escrow takes no results."""
        if now_s() < self.cancelled_s:
            return self.ended_s
        return min(self.ended_s, max(int(self.cancelled_s) + self.close_delay_s, self.last_window_s))

    def held(self) -> dict[str, int]:
        """What each contract that holds money has, by its name."""
        pots = sum(case.pot + CASE_BOND * (not case.phase.is_over) for case in self.court.values())
        bonds = BOND * sum(not posted.is_final for posted in self.results.values())
        return {
            "RunEscrow": self.budget - self.paid - self.returned,
            "StakeVault": self.stakes.total() + self.rewards.total() + pots,
            "EpochSettlement": bonds + self.bonds_owed.total(),
        }

    def shares(self, case: Case) -> dict[str, Any]:
        """Who has what of a slash."""
        to_buyer, to_challenger = case.taken * BUYERS_PPM // PPM, case.taken * ACCUSERS_PPM // PPM
        return {
            "buyer": evm_address(self.spec.buyer), "buyer_amount": to_buyer,
            "challenger": case.order.challenger, "challenger_amount": to_challenger,
            "burnt": case.taken - to_buyer - to_challenger,
        }  # fmt: skip

    def check(self, message: bytes, certificate: bytes) -> None:
        """Do nothing if a quorum's hot keys signed this.

        Raises:
            Unavailable: the contract reverts.
        """
        hot = {evm_address(member.hot) for member in self.spec.judges}
        found = signers(message, certificate)
        if not hot.issuperset(found) or len(found) < quorum(len(hot)):
            raise Unavailable(f"a certificate of {len(found)} signers, expected a quorum of {len(hot)}")


def _transaction(send: Callable[..., Any]) -> Callable[..., Any]:
    """In place of a client's method: who sends it may be killed before, or before it hears of it."""

    @functools.wraps(send)
    def sent(client: Client, *args: Any, **more: Any) -> Any:
        here = HERE.get()
        if here is None or not client._contracts.is_booked:
            return send(client, *args, **more)
        return here.write(lambda: _sent(send, client, *args, **more))

    return sent


def _sent(send: Callable[..., Any], client: Client, *args: Any, **more: Any) -> Any:
    client._contracts.tell_time()
    found = send(client, *args, **more)
    client._contracts.note()
    return found


class Client:
    """One process's client of the contracts. What it does not have is unavailable."""

    def __init__(self, contracts: Contracts, deployment: Deployment, address: str) -> None:
        self._contracts, self._deployment, self.address = contracts, deployment, address
        self.deployment = deployment

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

    def head(self, at: str = "latest") -> Head:
        """The newest block, or the newest that is final."""
        return self._contracts.log.place(at)

    def block_hash(self, number: int) -> bytes:
        """Of a block."""
        return self._contracts.log.hash_of(number)

    def token_balance(self, account: str) -> int:
        """Of a contract."""
        found = self._contracts.held()
        (name,) = [name for name in found if self._deployment.address(name) == account]
        return found[name]

    # ---- the escrow

    def close_delay(self) -> int:
        """Of the escrow."""
        return self._contracts.close_delay_s

    def set_version_of(self, _run_id: bytes) -> int:
        """The only set."""
        return 1

    def hot_key_of(self, account: str) -> str:
        """The hot key that the spec names."""
        (found,) = [one.hot for one in self._contracts.spec.judges if evm_address(one.account) == account]
        return evm_address(found)

    def verifier_set(self, _version: int | None = None) -> tuple[str, ...]:
        """The accounts that the spec names."""
        return tuple(evm_address(member.account) for member in self._contracts.spec.judges)

    def run(self, _run_id: bytes) -> EscrowState | None:
        """The escrow, once it is there."""
        spec = self._contracts.spec
        if now_s() < self._contracts.funded_s:
            return None
        prices, world = dearest(spec), self._contracts
        pending = sum(not posted.is_final for posted in world.results.values()) * world.is_booked
        return EscrowState(
            buyer=evm_address(spec.buyer), epochs=len(prices), set_version=1, pending=pending,
            deadline=FOREVER_S, closes_at=world.closes_at, budget=world.budget, epoch_cap=max(prices),
            reserved=world.reserved, paid=world.paid, returned=world.returned, spec_hash=digest(spec),
            holds=not world.is_refunded, lot=1,
        )  # fmt: skip

    @_transaction
    def request_close(self, _run_id: bytes) -> Sent:
        """The buyer has the escrow close after the delay."""
        world = self._contracts
        if self.address != evm_address(world.spec.buyer):
            raise Unavailable(f"{self.address} is not the buyer")
        world.cancelled_s = min(world.cancelled_s, now_s())
        return ALREADY_DONE

    @_transaction
    def refund(self, run_id: bytes) -> None:
        """Return what is free to the buyer, once the escrow has closed and no result waits."""
        world, escrow = self._contracts, self.run(run_id)
        assert escrow is not None
        if now_s() < escrow.closes_at or escrow.pending:
            raise Unavailable(f"the escrow is open until {escrow.closes_at}, {escrow.pending} results wait")
        if amount := world.free:
            world.returned += amount
            world.log.add(Refunded, run_id=run_id, buyer=escrow.buyer, amount=amount)
        world.is_refunded = True

    def can_release(self, *_lot: Any) -> bool:
        """No lot is released here."""
        return False

    def stake_of(self, account: str, role: int) -> StakeState:
        """What is left of it."""
        if not self._contracts.is_booked:
            raise Unavailable("no stakes are kept")
        active = self._contracts.stakes[role, account]
        return StakeState(active=active, free=0, unbonding=0, minimum=1)

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
            total=0 if result is None else result.total, claimed=0 if posted is None else posted.claimed,
            challenger=NOBODY,
            digest=bytes(32) if posted is None else posted.digest,
            prev_result=bytes(32) if result is None else result.prev_result,
            root=bytes(32) if result is None else result.root,
            model_hash=bytes(32) if result is None else result.model_hash,
            proposer=NOBODY, bond=0, draw_from=0, jury=(), voted=0,
        )  # fmt: skip

    @_transaction
    def propose(self, result: EpochResult, certificate: bytes) -> None:
        """Post a result that a quorum signed and the escrow has the money for; one that is there stays."""
        message, world = self._deployment.digest(result), self._contracts
        world.check(message, certificate)
        if result.epoch in world.results:
            return
        have = min(max(dearest(world.spec)), world.free)
        if result.total > have:
            raise Unavailable(f"epoch {result.epoch} costs {result.total}, the escrow has {have} for it")
        if world.is_booked and now_s() >= world.closes_at:
            raise Unavailable(f"epoch {result.epoch} comes too late: closed at {world.closes_at}")
        until_s = int(now_s()) + WINDOW_S
        world.last_window_s = max(world.last_window_s, int(until_s))
        world.log.add(
            ResultProposed, run_id=result.run_id, epoch=result.epoch, digest=message, root=result.root,
            table_hash=result.table_hash, model_hash=result.model_hash, total=result.total,
            window_ends_at=int(until_s), proposer=self.address, bond=BOND,
        )  # fmt: skip
        world.certified.append((self.block_number(), CertifiedResult(result=result, certificate=certificate)))
        world.results[result.epoch] = Posted(result, message, until_s, self.address)

    @_transaction
    def finalize(self, run_id: bytes, epoch: int) -> None:
        """Make a result final whose window is over."""
        world, posted = self._contracts, self._contracts.results[epoch]
        if now_s() < posted.until_s:
            raise Unavailable(f"the window of epoch {epoch} is open")
        if posted.is_final:
            return
        posted.is_final, posted.until_s = True, FOREVER_S
        world.log.add(
            ResultFinalized, run_id=run_id, epoch=epoch, digest=posted.digest, total=posted.result.total,
            claim_ends_at=FOREVER_S,
        )  # fmt: skip
        if world.is_booked:
            world.bonds_owed[posted.proposer] += BOND
            world.log.add(BondReleased, run_id=run_id, epoch=epoch, account=posted.proposer, amount=BOND)
            if epoch + 1 == len(dearest(world.spec)):
                world.ended_s = int(now_s())

    @_transaction
    def claim_all(self, run_id: bytes, epoch: int, tree: PayoutTree, indices: Any = None) -> None:
        """Pay rows of a final result."""
        posted = self._contracts.results[epoch]
        if not posted.is_final or tree.root != posted.result.root:
            raise Unavailable(f"epoch {epoch} is not final, or has another table")
        chosen = range(len(tree.payouts)) if indices is None else indices
        for index in chosen:
            if index not in posted.rows:
                row = tree.payouts[index]
                posted.rows[index] = row.account, row.amount
                self._contracts.log.add(
                    Claimed, run_id=run_id, epoch=epoch, index=index, account=row.account, amount=row.amount
                )

    def is_claimed(self, _run_id: bytes, epoch: int, index: int) -> bool:
        """Whether a row of a result was paid."""
        return index in self._contracts.results[epoch].rows

    def proposals_of(self, _run_id: bytes, first: int, last: int) -> list[CertifiedResult]:
        """The results that were posted in these blocks."""
        return [one for number, one in self._contracts.certified if first <= number <= last]

    def bonds_owed(self, account: str) -> int:
        """What the settlement owes it."""
        return self._contracts.bonds_owed[account]

    @_transaction
    def collect_bond(self, account: str | None = None) -> None:
        """Pay an account's bonds out."""
        payee = account or self.address
        if amount := self._contracts.bonds_owed.pop(payee, 0):
            self._contracts.log.add(BondCollected, account=payee, amount=amount)

    def rewards_of(self, account: str) -> int:
        """What the vault owes it."""
        return self._contracts.rewards[account]

    @_transaction
    def collect(self, account: str | None = None) -> None:
        """Pay an account's rewards out."""
        payee = account or self.address
        if amount := self._contracts.rewards.pop(payee, 0):
            self._contracts.collected[payee] += amount
            self._contracts.log.add(RewardCollected, account=payee, amount=amount)

    def entries_lacking(self, _account: str) -> int:
        """None."""
        return 0

    def evidence_window(self) -> int:
        """In seconds."""
        return WINDOW_S

    # ---- the court

    def cases_of(self, *_where: Any) -> list[Any]:
        """Those that were opened."""
        return [one for one in self._contracts.log.told if isinstance(one, CaseOpened)]

    def case(self, case_id: bytes) -> CaseState:
        """A case as it is now."""
        found = self._contracts.court[case_id]
        order, veto_ends_at = found.order, found.opened_s + WINDOW_S
        return CaseState(
            phase=found.phase, role=order.role, ppm=order.ppm, veto_ends_at=veto_ends_at,
            execute_by=FOREVER_S, payable_at=found.payable_at, offender=order.offender, signers=0,
            challenger=order.challenger, opener=found.opener, run_id=order.run_id,
            evidence_hash=order.evidence_hash, lot=order.run_id,
        )  # fmt: skip

    def appeal(self, _case_id: bytes) -> AppealState:
        """Nobody appeals."""
        return AppealState(
            phase=AppealPhase.NONE, answer_by=0, operators=0, playing=0, signers=0, version=1, accused=NOBODY,
            opener=NOBODY, run_id=RUN_ID, positions=bytes(32), bond_id=bytes(32),
        )  # fmt: skip

    def pot_of(self, case_id: bytes) -> int:
        """What a case holds."""
        return self._contracts.court[case_id].pot

    def case_bond(self, case_id: bytes) -> int:
        """Of the account that opened it."""
        return CASE_BOND * (not self._contracts.court[case_id].phase.is_over)

    def veto_window(self) -> int:
        """In seconds."""
        return WINDOW_S

    def veto_case(self, case_id: bytes, _reason: bytes, _certificate: bytes) -> None:
        """No quorum signs the veto of a case: manifests imply all that are opened here."""
        raise AssertionError(f"a quorum vetoes case {case_id.hex()[:8]}")

    def is_punished(self, offence_id: bytes) -> bool:
        """Whether a case of this offence was opened."""
        return any(order.offence_id == offence_id for order in self._contracts.cases)

    def is_beyond_cap(self, _order: SlashOrder) -> bool:
        """No case is."""
        return False

    @_transaction
    def open_case(self, order: SlashOrder, certificate: bytes) -> None:
        """Open the case of a slash order that a quorum signed."""
        world, case_id = self._contracts, order.offence_id
        world.check(self._deployment.digest(order), certificate)
        if world.is_booked:
            if case_id in world.court:
                return
            world.court[case_id] = Case(order, self.address, int(now_s()))
            world.log.add(
                CaseOpened, case_id=case_id, offender=order.offender, run_id=order.run_id, epoch=order.epoch,
                role=order.role, ppm=order.ppm, evidence_hash=order.evidence_hash,
                challenger=order.challenger, veto_ends_at=int(now_s()) + WINDOW_S, execute_by=FOREVER_S,
            )  # fmt: skip
            world.log.add(BondLocked, case_id=case_id, account=self.address, amount=CASE_BOND)
        world.cases.append(order)

    @_transaction
    def execute_case(self, case_id: bytes) -> None:
        """Take what a case names from the offender's lot."""
        world, case = self._contracts, self._contracts.court[case_id]
        if case.phase is not CasePhase.OPEN or now_s() < case.opened_s + WINDOW_S:
            raise Unavailable(f"case {case_id.hex()[:8]} is {case.phase.name}")
        order, place = case.order, (case.order.role, case.order.offender)
        case.taken = -(-world.stakes[place] * order.ppm // PPM)
        case.phase, case.payable_at = CasePhase.EXECUTED, int(now_s()) + WINDOW_S
        world.stakes[place] -= case.pot
        world.log.add(
            Slashed, account=order.offender, role=order.role, offence_id=case_id, amount=case.pot,
            payable_at=case.payable_at, **world.shares(case),
        )  # fmt: skip
        world.log.add(CaseExecuted, case_id=case_id, amount=case.pot, payable_at=case.payable_at)

    @_transaction
    def pay_out_case(self, case_id: bytes) -> None:
        """Make a slash final."""
        world, case = self._contracts, self._contracts.court[case_id]
        if case.phase is not CasePhase.EXECUTED or now_s() < case.payable_at:
            raise Unavailable(f"case {case_id.hex()[:8]} is {case.phase.name}")
        order, shares = case.order, world.shares(case)
        world.log.add(CaseClosed, case_id=case_id, outcome=int(CasePhase.PAID))
        world.log.add(BondReturned, case_id=case_id, account=case.opener, amount=CASE_BOND)
        world.log.add(SlashPaid, account=order.offender, role=order.role, offence_id=case_id, **shares)
        world.rewards[case.opener] += CASE_BOND
        world.rewards[shares["buyer"]] += shares["buyer_amount"]
        world.rewards[shares["challenger"]] += shares["challenger_amount"]
        case.phase = CasePhase.PAID

    def report_equivocation(self, first: Any, _one: bytes, second: Any, _other: bytes) -> None:
        """Two commits of one node."""
        self._contracts.reported.append((first, second))

    # ---- the registry

    def events(self, first: int) -> list[ChainEvent]:
        """All events from this block on: each transaction is in a block once its sender knows of it."""
        self._contracts.tell_time()
        log = self._contracts.log
        found = (one for one in log.told if one.block_number >= first)
        return [replace(one, block_hash=log.hash_of(one.block_number)) for one in found]

    @_transaction
    def register_model(self, record: ModelRecord, certificate: bytes) -> bytes:
        """Put a model on record that a quorum signed, whose run's last result is final."""
        world, record_id = self._contracts, self._deployment.digest(record)
        world.check(record_id, certificate)
        last = world.results[max(world.results)]
        if not last.is_final or record.last_result != last.digest:
            raise Unavailable("the model is not that of the last final result")
        world.records[record_id] = record
        return record_id

    def log_anchor(self, ledger_service: str, _run_id: bytes) -> tuple[int, bytes] | None:
        """The size and root that it anchored last."""
        return self._contracts.anchors.get(ledger_service)

    @_transaction
    def anchor_log(self, run_id: bytes, size: int, root: bytes) -> None:
        """Anchor a larger log than the last."""
        world = self._contracts
        if size <= world.anchors.get(self.address, (0, b""))[0]:
            raise Unavailable(f"{size} entries are no more than were anchored")
        world.anchors[self.address] = size, root
        world.log.add(LogAnchored, ledger_service=self.address, run_id=run_id, size=size, root=root)
