"""Money model: what the contracts should do with every unit, in plain integers.

Pure: no chain, no clock. One method per move of a client; `now` is the time of the block the move is in.
A method returns whether the move changed anything (False: it already was a fact), or raises `Refused` with
the contract's word for it. It says the rules a second time, so that a mistake has to be made twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from assay.chain.client import ChainParams, EpochPhase
from assay.chain.state import CasePhase

PPM = 10**6
ROLES = (0, 1)
FOREVER = 2**64 - 1
LOCK_S_MAX = 400 * 86_400
TERM = "term"  # of verifiers: the set that is current throughout
PROPOSER = "eve"  # who sends every result
CAP_PERIOD_S = 30 * 86_400
ANYTHING = "*"  # a certificate over other bytes recovers to anybody: the word for it is chance
Row = tuple[str, int]  # who is paid, and how much


class Refused(Exception):
    """A contract says no; `name` is its error's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def require(holds: bool, otherwise: str) -> None:
    """Refuses with this word unless it holds."""
    if not holds:
        raise Refused(otherwise)


@dataclass
class Stake:
    """One account's stake in one role."""

    free: int = 0
    locked: int = 0
    leaving: int = 0

    @property
    def active(self) -> int:
        return self.free + self.locked


@dataclass
class Lot:
    """What is locked for one run, or for a term."""

    amount: int = 0
    until: int = 0
    cases: int = 0


@dataclass
class Leaving:
    """A ticket."""

    who: str
    role: int
    ready_at: int
    amount: int


@dataclass
class Run:
    buyer: str
    cap: int
    epochs: int
    closes_at: int
    budget: int
    reserved: int = 0
    paid: int = 0
    returned: int = 0
    pending: int = 0
    holds: bool = True  # from the opening to the refund

    @property
    def free(self) -> int:
        return self.budget - self.reserved - self.paid - self.returned


@dataclass
class Result:
    phase: EpochPhase
    until: int
    digest: bytes
    rows: tuple[Row, ...]
    total: int
    claimed: int = 0
    challenger: str = ""
    proposer: str = ""
    bond: int = 0  # the proposer's
    lost: bytes = b""  # the predecessor that it names and that fell


@dataclass
class Case:
    phase: CasePhase
    offender: str
    role: int
    ppm: int
    run: str
    challenger: str
    opener: str
    veto_ends_at: int
    execute_by: int
    payable_at: int = 0
    pot: int = 0
    bond: int = 0


@dataclass
class Model:
    """Everybody's money. Names stand for accounts; a run is named by its buyer and specification."""

    params: ChainParams
    balance: dict[str, int]
    term_until: int  # of the verifiers' lots
    burnt: int = 0
    stakes: dict[tuple[str, int], Stake] = field(default_factory=dict)
    lots: dict[tuple[str, int, str], Lot] = field(default_factory=dict)
    tickets: list[Leaving] = field(default_factory=list)
    delegated: set[str] = field(default_factory=set)
    banned: set[str] = field(default_factory=set)
    rewards: dict[str, int] = field(default_factory=dict)
    owed: dict[str, int] = field(default_factory=dict)  # bonds of challenges
    runs: dict[str, Run] = field(default_factory=dict)
    results: dict[tuple[str, int], Result] = field(default_factory=dict)
    levels: dict[tuple[str, int], int] = field(default_factory=dict)  # challenges that ended
    jurors_owed: int = 0
    usage: dict[tuple[str, int, str], tuple[int, int]] = field(default_factory=dict)  # last case, ppm
    paid_rows: set[tuple[str, int, int]] = field(default_factory=set)
    cases: dict[bytes, Case] = field(default_factory=dict)

    # ---- stake

    def stake_of(self, who: str, role: int) -> Stake:
        return self.stakes.setdefault((who, role), Stake())

    def stake(self, now: int, who: str, role: int, amount: int) -> bool:
        require(amount > 0, "ZeroAmount")
        require(who not in self.banned, "AccountBanned")
        found = self.stake_of(who, role)
        require(found.active + amount >= self._minimum(role), "BelowMinimum")
        self._pull(who, amount)
        found.free += amount
        return True

    def lock(self, now: int, who: str, role: int, of: str, amount: int, until: int) -> bool:
        found, lot = self.stake_of(who, role), self.lots.get((who, role, of), Lot())
        require(amount <= found.free, "NotEnoughStake")
        require(now < until <= now + LOCK_S_MAX and until >= lot.until, "BadUntil")
        require(lot.amount + amount > 0, "ZeroAmount")
        found.free -= amount
        found.locked += amount
        self.lots[who, role, of] = Lot(lot.amount + amount, until, lot.cases)
        return True

    def release(self, now: int, sender: str, who: str, role: int, of: str) -> bool:
        lot = self.lots.get((who, role, of))
        if lot is None:
            return False
        require(lot.cases == 0, "LotHeld")
        end = self._end_of(role, of)
        if end or sender != who:
            require(now >= min(end or lot.until, lot.until) + self.params.evidence_window_s, "TooEarly")
        del self.lots[who, role, of]
        amount = 0 if who in self.banned else lot.amount
        self.stake_of(who, role).locked -= amount
        self.stake_of(who, role).free += amount
        return True

    def discharge(self, now: int, sender: str, who: str, of: str) -> bool:
        require(of in self.runs, "UnknownRun")
        lot = self.lots.get((who, 0, of))
        if lot is None:
            raise Refused("NoLot")
        require(lot.until > now, "NotBound")
        lot.until = now
        return True

    def lot_worth(self, who: str, role: int, of: str) -> tuple[int, int, int]:
        lot = self.lots.get((who, role, of), Lot())
        return (0 if who in self.banned else lot.amount, lot.until, lot.cases)

    def _end_of(self, role: int, of: str) -> int:
        if role == 1:
            return FOREVER
        run = self.runs.get(of)
        return 0 if run is None else FOREVER if run.pending else run.closes_at

    def delegate(self, now: int, who: str) -> bool:
        if who in self.delegated:
            return False
        self.delegated.add(who)
        return True

    def unstake(self, now: int, who: str, role: int, amount: int) -> bool:
        found = self.stake_of(who, role)
        require(amount > 0, "ZeroAmount")
        require(amount <= found.free, "NotEnoughStake")
        left = found.active - amount
        require(left == 0 or left >= self._minimum(role), "BelowMinimum")
        found.free -= amount
        found.leaving += amount
        self.tickets.append(Leaving(who, role, now + self.params.unbonding_s, amount))
        return True

    def cancel(self, now: int, who: str, number: int) -> bool:
        ticket = self._ticket(number)
        if not ticket.amount:
            return False
        require(ticket.who == who, "NotYourTicket")
        amount, ticket.amount = self.ticket_worth(number), 0
        found = self.stake_of(who, ticket.role)
        found.leaving -= amount
        found.free += amount
        return True

    def withdraw(self, now: int, who: str, number: int) -> bool:
        ticket = self._ticket(number)
        if ticket.who == who and not ticket.amount:
            return False
        require(ticket.who == who, "NotYourTicket")
        require(now >= ticket.ready_at, "TooEarly")
        amount, ticket.amount = self.ticket_worth(number), 0
        self.stake_of(who, ticket.role).leaving -= amount
        self.balance[who] += amount
        return True

    def ticket_worth(self, number: int) -> int:
        ticket = self._ticket(number)
        return 0 if ticket.who in self.banned else ticket.amount

    def collect(self, now: int, who: str) -> bool:
        amount = self.rewards.pop(who, 0)
        self.balance[who] += amount
        return amount > 0

    # ---- a buyer's run

    def open_run(
        self, now: int, buyer: str, run: str, budget: int, cap: int, epochs: int, deadline: int
    ) -> bool:
        if run in self.runs:
            found = self.runs[run]
            require((found.cap, found.epochs) == (cap, epochs), "RunExists")
            return False
        require(deadline >= now + self.params.close_delay_s, "BadRun")
        require(deadline <= self.term_until, "NotStaked")
        self._pull(buyer, budget)
        self.runs[run] = Run(buyer, cap, epochs, deadline, budget)
        return True

    def top_up(self, now: int, payer: str, run: str, amount: int) -> bool:
        found = self._run(run)
        require(now < found.closes_at, "RunClosed")
        self._pull(payer, amount)
        found.budget += amount
        return True

    def request_close(self, now: int, run: str) -> bool:
        found = self._run(run)
        if now + self.params.close_delay_s >= found.closes_at:
            return False
        found.closes_at = now + self.params.close_delay_s
        return True

    def refund(self, now: int, run: str) -> bool:
        found = self._run(run)
        require(now >= found.closes_at, "NotClosed")
        require(found.pending == 0, "ResultsPending")
        free, found.returned = found.free, found.returned + found.free
        self.balance[found.buyer] += free
        did, found.holds = free > 0 or found.holds, False
        return did

    # ---- results

    def propose(
        self, now: int, run: str, epoch: int, previous: bytes, digest: bytes, rows: Sequence[Row], total: int
    ) -> bool:
        there = self.results.get((run, epoch))
        if there is not None and there.digest == digest:
            return False
        found = self._run(run)
        require(there is None, "WrongState")
        before = self.results.get((run, epoch - 1))
        require(
            previous == (bytes(32) if before is None else before.digest)
            and (epoch == 0 or before is not None),
            "WrongPrevious",
        )
        require(now < found.closes_at, "RunClosed")
        require(epoch < found.epochs, "EpochOutOfRange")
        require(total <= found.cap, "AboveEpochCap")
        require(total <= found.free, "AboveBudget")
        bond = self.bond(run, epoch)
        self._pull(PROPOSER, bond)
        found.reserved += total
        found.pending += 1
        until = now + self.params.challenge_window_s
        self.results[run, epoch] = Result(EpochPhase.PROPOSED, until, digest, tuple(rows), total)
        self.results[run, epoch].proposer, self.results[run, epoch].bond = PROPOSER, bond
        after = self.results.get((run, epoch + 1))
        if after is not None and after.lost == digest:
            after.lost = b""
        return True

    def bond(self, run: str, epoch: int) -> int:
        return self.params.challenge_bond << self.levels.get((run, epoch), 0)

    def challenge(self, now: int, who: str, run: str, epoch: int) -> bool:
        found = self.results.get((run, epoch))
        if found and found.phase is EpochPhase.CHALLENGED:
            return False
        found = self._result(run, epoch, EpochPhase.PROPOSED)
        require(now < found.until, "WindowOver")
        self._pull(who, self.bond(run, epoch))
        found.phase, found.challenger = EpochPhase.CHALLENGED, who
        found.until = now + self.params.resolve_window_s
        return True

    def judge(self, now: int, run: str, epoch: int, digest: bytes, is_right: bool) -> bool:
        """A jury is drawn and decides. What it earns divides among any number of seats."""
        found = self._result(run, epoch, EpochPhase.CHALLENGED)
        require(now < found.until, "WindowOver")
        asked = self.bond(run, epoch)
        lost = asked if is_right else found.bond
        self.jurors_owed += lost // 2
        if is_right:
            self._owe(found.proposer, lost // 2)
            self._reopen(now, run, epoch, found)
        else:
            self._owe(found.challenger, asked + lost // 2)
            self.levels[run, epoch] = self.levels.get((run, epoch), 0) + 1
            self._remove(now, run, epoch)
        return True

    def time_out(self, now: int, run: str, epoch: int) -> bool:
        there = self.results.get((run, epoch))
        if there is None or there.phase is not EpochPhase.CHALLENGED:
            return False
        found = self._result(run, epoch, EpochPhase.CHALLENGED)
        require(now >= found.until, "TooEarly")
        asked = self.bond(run, epoch)
        self._owe(found.challenger, asked // 2)
        self.burnt += asked - asked // 2
        self._reopen(now, run, epoch, found)
        return True

    def clear_orphan(self, now: int, run: str, epoch: int) -> bool:
        if (run, epoch) not in self.results:
            return False
        found = self._result(run, epoch, EpochPhase.PROPOSED, EpochPhase.CHALLENGED)
        require(bool(found.lost), "NotAnOrphan")
        if found.phase is EpochPhase.CHALLENGED:
            self._owe(found.challenger, self.bond(run, epoch))
        self._owe(found.proposer, found.bond)
        self._remove(now, run, epoch)
        return True

    def finalize(self, now: int, run: str, epoch: int) -> bool:
        there = self.results.get((run, epoch))
        if there and there.phase >= EpochPhase.FINAL:
            return False
        found = self._result(run, epoch, EpochPhase.PROPOSED)
        require(now >= found.until, "TooEarly")
        before = self.results.get((run, epoch - 1))
        in_order = epoch == 0 or (before is not None and before.phase >= EpochPhase.FINAL)
        require(in_order and not found.lost, "PreviousNotFinal")
        found.phase, found.until = EpochPhase.FINAL, now + self.params.claim_period_s
        self._owe(found.proposer, found.bond)
        found.bond = 0
        of = self.runs[run]
        of.pending -= 1
        if epoch + 1 == of.epochs:  # nothing can come after the last result
            of.closes_at = min(of.closes_at, now)
        return True

    def claim(self, now: int, run: str, epoch: int, index: int, rows: Sequence[Row]) -> bool:
        if (run, epoch, index) in self.paid_rows:
            return False
        found = self._result(run, epoch, EpochPhase.FINAL)
        require(tuple(rows) == found.rows, "WrongProof")
        who, amount = rows[index]
        require(found.claimed + amount <= found.total, "AboveTotal")
        found.claimed += amount
        self.paid_rows.add((run, epoch, index))
        self.runs[run].reserved -= amount
        self.runs[run].paid += amount
        self.balance[who] += amount
        return True

    def sweep(self, now: int, run: str, epoch: int) -> bool:
        there = self.results.get((run, epoch))
        if there and there.phase is EpochPhase.SWEPT:
            return False
        found = self._result(run, epoch, EpochPhase.FINAL)
        require(now >= found.until, "TooEarly")
        rest = found.total - found.claimed
        found.phase = EpochPhase.SWEPT
        self.runs[run].reserved -= rest
        self.runs[run].returned += rest
        self.balance[self.runs[run].buyer] += rest
        return True

    def collect_bond(self, now: int, who: str) -> bool:
        amount = self.owed.pop(who, 0)
        self.balance[who] += amount
        return amount > 0

    # ---- the court

    def report(self, now: int, who: str, offender: str, run: str, for_reward: bool) -> bool:
        if offender in self.banned:
            return False
        require(offender in self.delegated, "UnknownSigner")
        self.banned.add(offender)
        reporter = who if for_reward else ""
        for role in ROLES:
            found = self.stakes.pop((offender, role), Stake())
            taken = found.active + found.leaving
            paid = self._share_out(offender, taken, "", reporter)
            reporter = "" if paid else reporter
        return True

    def open_case(
        self, now: int, opener: str, case: bytes, offender: str, role: int, ppm: int, run: str, finder: str
    ) -> bool:
        if case in self.cases:
            return False
        require(0 < ppm <= self.params.case_ppm_max, "AboveCap")
        require(now < self._run(run).closes_at + self.params.evidence_window_s, "WindowOver")
        of = TERM if role else run
        last, used = self.usage.get((offender, role, of), (0, 0))
        used = 0 if now >= last + CAP_PERIOD_S else used
        require(used < self.params.case_ppm_max, "AboveCap")
        ppm = min(ppm, self.params.case_ppm_max - used)
        require((offender, role, of) in self.lots, "NoLot")
        self._pull(opener, self.params.case_bond)
        veto_ends_at = now + self.params.veto_window_s
        execute_by = veto_ends_at + self.params.execute_window_s
        self.cases[case] = Case(
            CasePhase.OPEN, offender, role, ppm, run, finder, opener, veto_ends_at, execute_by
        )
        self.cases[case].bond = self.params.case_bond
        self.usage[offender, role, of] = (now, used + ppm)
        self.lots[offender, role, of].cases += 1
        return True

    def veto(self, now: int, case: bytes) -> bool:
        found = self._case(case)
        if found.phase is CasePhase.VETOED:
            return False
        require(found.phase in (CasePhase.OPEN, CasePhase.EXECUTED), "WrongState")
        is_executed = found.phase is CasePhase.EXECUTED
        require(now < (found.payable_at if is_executed else found.execute_by), "WindowOver")
        if is_executed:
            require(found.offender not in self.banned, "AccountBanned")
            self._lot(found).amount += found.pot
            self.stake_of(found.offender, found.role).locked += found.pot
            found.pot = 0
        self._lot(found).cases -= 1
        found.phase = CasePhase.VETOED
        self._give_back_cap(now, found)
        self._burn_bond(found)
        return True

    def execute(self, now: int, case: bytes) -> bool:
        found = self._case(case)
        if found.phase in (CasePhase.EXECUTED, CasePhase.PAID):
            return False
        require(found.phase is CasePhase.OPEN, "WrongState")
        require(now >= found.veto_ends_at, "TooEarly")
        require(now < found.execute_by, "WindowOver")
        found.phase, found.payable_at = CasePhase.EXECUTED, now + self.params.payout_delay_s
        lot = self._lot(found)
        found.pot = 0 if found.offender in self.banned else -(-lot.amount * found.ppm // PPM)
        lot.amount -= found.pot
        self.stake_of(found.offender, found.role).locked -= found.pot
        return True

    def pay_out(self, now: int, case: bytes) -> bool:
        found = self._case(case)
        if found.phase is CasePhase.PAID:
            return False
        require(found.phase is CasePhase.EXECUTED, "WrongState")
        require(now >= found.payable_at, "TooEarly")
        found.phase = CasePhase.PAID
        self._lot(found).cases -= 1
        self._reward(found.opener, found.bond)
        self._share_out(found.offender, found.pot, self._buyer(found.run), found.challenger)
        found.bond = found.pot = 0
        return True

    def expire(self, now: int, case: bytes) -> bool:
        found = self._case(case)
        if found.phase is CasePhase.EXPIRED:
            return False
        require(found.phase is CasePhase.OPEN, "WrongState")
        require(now >= found.execute_by, "TooEarly")
        found.phase = CasePhase.EXPIRED
        self._give_back_cap(now, found)
        self._lot(found).cases -= 1
        self._burn_bond(found)
        return True

    # ---- inside

    def _lot(self, case: Case) -> Lot:
        return self.lots[case.offender, case.role, TERM if case.role else case.run]

    def _give_back_cap(self, now: int, case: Case) -> None:
        opened_at = case.execute_by - self.params.veto_window_s - self.params.execute_window_s
        if now >= opened_at + CAP_PERIOD_S:
            return
        place = (case.offender, case.role, TERM if case.role else case.run)
        last, used = self.usage[place]
        self.usage[place] = (last, used - case.ppm)

    def _owe(self, who: str, amount: int) -> None:
        if amount:
            self.owed[who] = self.owed.get(who, 0) + amount

    def _reopen(self, now: int, run: str, epoch: int, found: Result) -> None:
        found.phase, found.challenger = EpochPhase.PROPOSED, ""
        found.until = now + self.params.challenge_window_s
        self.levels[run, epoch] = self.levels.get((run, epoch), 0) + 1

    def _minimum(self, role: int) -> int:
        return self.params.min_verifier_stake if role else self.params.min_operator_stake

    def _pull(self, who: str, amount: int) -> None:
        require(self.balance[who] >= amount, "ERC20InsufficientBalance")
        self.balance[who] -= amount

    def _ticket(self, number: int) -> Leaving:
        found = self.tickets[number - 1 : number]
        return found[0] if found else Leaving("", 0, 0, 0)

    def _run(self, run: str) -> Run:
        require(run in self.runs, "UnknownRun")
        return self.runs[run]

    def _buyer(self, run: str) -> str:
        return self.runs[run].buyer if run in self.runs else ""

    def _result(self, run: str, epoch: int, *phases: EpochPhase) -> Result:
        found = self.results.get((run, epoch))
        if found is None or found.phase not in phases:
            raise Refused("WrongState")
        return found

    def _remove(self, now: int, run: str, epoch: int) -> None:
        found = self.results.pop((run, epoch))
        after = self.results.get((run, epoch + 1))
        if after is not None and not after.lost:
            after.lost = found.digest
        of = self.runs[run]
        of.reserved -= found.total
        of.pending -= 1
        of.closes_at = max(of.closes_at, now + self.params.challenge_window_s)

    def _case(self, case: bytes) -> Case:
        require(case in self.cases, "WrongState")
        return self.cases[case]

    def _burn_bond(self, case: Case) -> None:
        self.burnt += case.bond
        case.bond = 0

    def _reward(self, who: str, amount: int) -> None:
        if amount:
            self.rewards[who] = self.rewards.get(who, 0) + amount

    def _share_out(self, offender: str, amount: int, buyer: str, finder: str) -> int:
        """Returns what the accuser gets."""
        shares = (
            (buyer, amount * self.params.slash_buyer_ppm // PPM),
            (finder, min(self.params.accuser_fee, amount * 3 // 10)),
        )
        given = [share if who and who != offender else 0 for who, share in shares]
        for (who, _), share in zip(shares, given, strict=True):
            self._reward(who, share)
        self.burnt += amount - sum(given)
        return given[1]
