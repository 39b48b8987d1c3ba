"""Chain client: reads the contracts of one deployment and sends one account's transactions to them.

Room: chain (edge). Blocking; async callers run it in a thread. Most calls are idempotent: a call whose
effect the chain already has returns `ALREADY_DONE`, so after a killed process or a reorganised chain the
caller repeats it. Calls that add up (transfers, stake, top-ups, unstake requests) are not idempotent; of an
account that signs by files they are until they are seen mined (signing/unsigned.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from assay.chain import statements
from assay.chain.addresses import Deployment
from assay.chain.deployment.deploy import deploy
from assay.chain.deployment.parameters import LOCALNET, MAINNET, UNIT, ChainParams
from assay.chain.permit import signed_permit
from assay.chain.proofs.payout_tree import PayoutTree
from assay.chain.reader import ChainReader, NotShown
from assay.chain.rpc import ALREADY_DONE, ChainRefused, Sent
from assay.chain.state import (
    AppealPhase,
    CasePhase,
    CaseState,
    DefencePhase,
    EpochPhase,
    EpochState,
    EscrowState,
    HotKey,
    StakeState,
    Ticket,
)
from assay.chain.statements import (
    CERT_ECDSA,
    EpochResult,
    ModelRecord,
    SlashOrder,
    Statement,
    Supersession,
    values,
)

__all__ = [
    "ALREADY_DONE",
    "LOCALNET",
    "MAINNET",
    "UNIT",
    "CasePhase",
    "CaseState",
    "Chain",
    "ChainParams",
    "ChainReader",
    "ChainRefused",
    "Deployment",
    "EpochPhase",
    "EpochState",
    "EscrowState",
    "HotKey",
    "Sent",
    "StakeState",
    "Ticket",
    "deploy",
]


NO_SALT = bytes(32)
CLAIM_ROWS_MAX = 32  # of one transaction, about a million gas


class Chain(ChainReader):
    """Transactions of one account on the contracts of one deployment.

    Every call may raise `Unavailable` (the endpoint is gone or slow), `ChainRefused` (a contract
    reverted; holds its error) or `ConfigError` (this client holds no key). Constructor arguments:
    see `ChainReader`.
    """

    # ---- money

    def fund_many(self, accounts: Sequence[str], *, token_amount: int, amount_wei: int) -> list[Sent]:
        """Sends each account tokens and gas, all in flight at once. Repeating it sends again.

        Raises:
            ConfigError: this account signs by files.
        """
        self._rpc.check_can_repeat("fund")
        pending: list[Sent] = []
        for to in accounts:
            if token_amount:
                pending.append(self._move("fund", "AssayToken", "transfer", to, token_amount, wait=False))
            if amount_wei:
                pending.append(self._rpc.send("fund", {"to": to, "value": amount_wei}, wait=False))
        return [self._rpc.settled("fund", one) for one in pending]

    def collect(self, account: str | None = None) -> Sent:
        """Pays an account's slash rewards and returned bonds out to it; anyone may."""
        payee = account or self.address
        return self._once(
            lambda: self.rewards_of(payee) == 0, lambda: self._move("collect", "StakeVault", "collect", payee)
        )

    # ---- stake

    def stake(self, role: int, amount: int) -> Sent:
        """Adds token units to this account's stake. Repeating it adds again."""
        return self._spend(amount, "stake", "StakeVault", "stake", role, amount)

    def ensure_lot(self, role: int, commitment: bytes, target: int, until: int) -> Sent:
        """Locks free stake until this account's lot has `target` token units and `until`, if it lacks either.

        Args:
            role: OPERATOR or VERIFIER.
            commitment: See `lot_of`. Locking is the account's consent to it.
            target: Token units.
            until: Chain time; the account is bound to no run or term that ends later.
        """
        lot = self.lot_of(self.address, role, commitment)
        if lot.amount >= target and lot.until >= until:
            return ALREADY_DONE
        added = max(target - lot.amount, 0)
        return self._move("lock", "StakeVault", "lock", role, commitment, added, max(until, lot.until))

    def release_lot(self, account: str, role: int, commitment: bytes) -> Sent:
        """Makes an account's lot free stake again once nothing about it can be disputed; anyone may."""
        return self._once(
            lambda: self.lot_of(account, role, commitment).until == 0,
            lambda: self._move("release", "StakeVault", "release", account, role, commitment),
        )

    def discharge(self, account: str, run_id: bytes, cert: bytes) -> Sent:
        """Ends what an operator's lot for a run is bound to, so that its evidence window begins; anyone may.

        Nothing is sent if the account has no such lot, or one that is bound to nothing any more.

        Args:
            account: Whose lot.
            run_id: The run that its node has left.
            cert: Of a quorum of the run's verifier set over `statements.Discharge`.
        """
        return self._once(
            lambda: self.lot_of(account, statements.OPERATOR, run_id).until <= self.timestamp(),
            lambda: self._move("discharge", "SlashCourt", "discharge", run_id, account, CERT_ECDSA, cert),
        )

    def delegate(self, hot_key: str, expiry: int, consent: bytes) -> Sent:
        """Lets `hot_key` sign for this account until `expiry` (Unix seconds).

        Args:
            consent: The hot key's signature over `statements.Delegation`.
        """
        return self._once(
            lambda: self.hot_key(hot_key) == HotKey(account=self.address, expiry=expiry),
            lambda: self._move("delegate", "StakeVault", "delegate", hot_key, expiry, consent),
        )

    def request_unstake(self, role: int, amount: int) -> int:
        """Starts unbonding `amount` token units of free stake; returns the withdrawal ticket."""
        sent = self._move("request unstake", "StakeVault", "requestUnstake", role, amount)
        receipt = self._rpc.receipt("request unstake", sent.tx_hash or b"")
        event = self._contract("StakeVault", "UnstakeRequested").events.UnstakeRequested()
        return int(event.process_receipt(receipt)[0]["args"]["ticket"])

    def cancel_unstake(self, ticket: int) -> Sent:
        """Makes a ticket's stake free again."""
        return self._once(
            lambda: self.ticket(ticket).is_spent,
            lambda: self._move("cancel unstake", "StakeVault", "cancelUnstake", ticket),
        )

    def withdraw(self, ticket: int) -> Sent:
        """Withdraws the remaining value of a ticket whose unbonding delay is over."""
        return self._once(
            lambda: self._is_own_and_spent(ticket),
            lambda: self._move("withdraw", "StakeVault", "withdraw", ticket),
        )

    # ---- a buyer's run

    def open_run(
        self,
        spec_hash: bytes,
        *,
        budget: int,
        epoch_cap: int,
        epochs: int,
        deadline: int,
        set_version: int | None = None,
        lot: int = 0,
        operators: Sequence[str] = (),
    ) -> bytes:
        """Opens a run, unless it is open, and returns its id.

        Args:
            spec_hash: 32 bytes; one buyer opens one specification once.
            budget: Token units pulled into escrow now.
            epoch_cap: Token units that one epoch may cost at most.
            epochs: How many epochs may be settled, numbered from 0.
            deadline: Chain time, Unix seconds, after which no result is taken. A run found open keeps the
                deadline it was opened with.
            set_version: The run's verifier set; the current one by default.
            lot: Token units that each operator has locked for this run; the vault's minimum by default.
            operators: Their accounts.
        """
        run_id = self.run_id_of(self.address, spec_hash)

        def is_open() -> bool:
            run = self.run(run_id)
            return run is not None and (run.epoch_cap, run.epochs) == (epoch_cap, epochs)

        def send() -> Sent:
            version = self.set_version() if set_version is None else set_version
            backing = lot or self.minimum_stake(statements.OPERATOR)
            seats = sorted(operators, key=lambda account: int(account, 16))
            terms = (spec_hash, budget, epoch_cap, epochs, deadline, version, backing, seats)
            return self._spend(budget, "open run", "RunEscrow", "openRun", *terms)

        self._once(is_open, send)
        return run_id

    def top_up(self, run_id: bytes, amount: int) -> Sent:
        """Adds to a run's budget. Repeating it adds again."""
        return self._spend(amount, "top up", "RunEscrow", "topUp", run_id, amount)

    def request_close(self, run_id: bytes) -> Sent:
        """Starts closing a run; results for work already done are accepted until the close delay is over."""
        return self._unless_refused(
            "AlreadyClosing", lambda: self._move("request close", "RunEscrow", "requestClose", run_id)
        )

    def refund(self, run_id: bytes) -> Sent:
        """Sends the unreserved budget of a closed run to its buyer; anyone may."""
        return self._unless_refused(
            "NothingToRefund", lambda: self._move("refund", "RunEscrow", "refund", run_id)
        )

    # ---- settlement

    def propose(self, result: EpochResult, cert: bytes) -> Sent:
        """Puts a certified result on chain, with a bond that returns when it is final; anyone may."""
        digest = self.deployment.digest(result)

        def send() -> Sent:
            bond = self.epoch_state(result.run_id, result.epoch).bond
            terms = (values(result), CERT_ECDSA, cert)
            return self._spend(bond, "propose", "EpochSettlement", "propose", *terms)

        return self._once(lambda: self.epoch_state(result.run_id, result.epoch).digest == digest, send)

    def challenge(self, run_id: bytes, epoch: int, reason_hash: bytes) -> Sent:
        """Challenges a result within its window; locks the bond."""

        def is_challenged() -> bool:
            return self.epoch_state(run_id, epoch).phase is EpochPhase.CHALLENGED

        def send() -> Sent:
            bond, terms = self.epoch_state(run_id, epoch).bond, (run_id, epoch, reason_hash)
            return self._spend(bond, "challenge", "EpochSettlement", "challenge", *terms)

        return self._once(is_challenged, send)

    def draw_jury(self, run_id: bytes, epoch: int) -> Sent:
        """Draws the jury of a challenge; anyone may, from the block `EpochState.draw_from`."""
        return self._once(
            lambda: self.epoch_state(run_id, epoch).draw_from == 0,
            lambda: self._move("draw jury", "EpochSettlement", "drawJury", run_id, epoch),
        )

    def vote(self, run_id: bytes, epoch: int, digest: bytes, is_right: bool) -> Sent:
        """Answers a challenge as a juror: whether the result with this digest is right."""
        return self._unless_refused(
            "AlreadyVoted",
            lambda: self._move("vote", "EpochSettlement", "vote", run_id, epoch, digest, is_right),
        )

    def timeout_challenge(self, run_id: bytes, epoch: int) -> Sent:
        """Ends an unanswered challenge: the result has a new window, half of the bond returns."""
        return self._once(
            lambda: self.epoch_state(run_id, epoch).phase is not EpochPhase.CHALLENGED,
            lambda: self._move("time out challenge", "EpochSettlement", "timeoutChallenge", run_id, epoch),
        )

    def enlist(self) -> Sent:
        """Puts this account on the list of juries, with an entry for each minimum of its verifier's stake."""
        sent = ALREADY_DONE
        while places := self.places_lacking(self.address):
            sent = self._move("enlist", "VerifierSet", "enlist", places)
        return sent

    def collect_bond(self, account: str | None = None) -> Sent:
        """Pays out an account's returned bonds and jurors' fees; anyone may."""
        payee = account or self.address
        return self._once(
            lambda: self.bonds_owed(payee) == 0,
            lambda: self._move("collect bond", "EpochSettlement", "collectBond", payee),
        )

    def clear_orphan(self, run_id: bytes, epoch: int) -> Sent:
        """Clears a result whose predecessor was rejected; anyone may."""
        return self._once(
            lambda: self.epoch_state(run_id, epoch).phase is EpochPhase.NONE,
            lambda: self._move("clear orphan", "EpochSettlement", "clearOrphan", run_id, epoch),
        )

    def finalize(self, run_id: bytes, epoch: int) -> Sent:
        """Makes a result final once its window is over; anyone may."""
        return self._once(
            lambda: self.epoch_state(run_id, epoch).phase >= EpochPhase.FINAL,
            lambda: self._move("finalize", "EpochSettlement", "finalize", run_id, epoch),
        )

    def claim(self, run_id: bytes, epoch: int, tree: PayoutTree, index: int) -> Sent:
        """Pays row `index` of the table to the account it names; anyone may."""
        payout, proof = tree.payouts[index], tree.proof(index)
        return self.claim_with_proof(run_id, epoch, index, payout.account, payout.amount, proof)

    def claim_with_proof(
        self, run_id: bytes, epoch: int, index: int, account: str, amount: int, proof: Sequence[bytes]
    ) -> Sent:
        """`claim` for a payee who holds only its own row and proof."""
        row = (index, account, amount, list(proof))
        return self._once(
            lambda: self.is_claimed(run_id, epoch, index),
            lambda: self._move("claim", "EpochSettlement", "claim", run_id, epoch, [row]),
        )

    def claim_all(
        self, run_id: bytes, epoch: int, tree: PayoutTree, indices: Sequence[int] | None = None
    ) -> list[Sent]:
        """Pays these rows of the table, or all, if they are not paid yet, many in a transaction; anyone may.

        A row that the contract or the coin refuses costs the others nothing.

        Raises:
            ChainRefused: one was refused; all that could be paid were.
        """
        wanted = range(len(tree.payouts)) if indices is None else indices
        rows = [
            (index, tree.payouts[index].account, tree.payouts[index].amount, list(tree.proof(index)))
            for index in wanted
            if not self.is_claimed(run_id, epoch, index)
        ]
        batches = [rows[at : at + CLAIM_ROWS_MAX] for at in range(0, len(rows), CLAIM_ROWS_MAX)]
        sent: list[Sent] = []
        last: ChainRefused | None = None
        while batches:
            batch = batches.pop(0)
            try:
                sent.append(self._move("claim", "EpochSettlement", "claim", run_id, epoch, batch))
            except ChainRefused as refused:
                if refused.name == "NothingToClaim":
                    continue
                if refused.name in ("InsufficientFunds", "WrongState"):
                    raise
                half = len(batch) // 2
                batches = [*([batch[:half], batch[half:]] if half else []), *batches]
                last = last if half else refused
        if last is not None:
            raise last
        return sent

    def name_payee(self, payee: str) -> Sent:
        """Names the address to which all that is owed to this account is paid from now on."""
        return self._once(
            lambda: self.payee_of(self.address) == payee,
            lambda: self._move("name payee", "RunEscrow", "namePayee", payee),
        )

    def sweep_unclaimed(self, run_id: bytes, epoch: int) -> Sent:
        """Returns payouts that were not claimed in time to the buyer; anyone may."""
        return self._once(
            lambda: self.epoch_state(run_id, epoch).phase == EpochPhase.SWEPT,
            lambda: self._move("sweep", "EpochSettlement", "sweepUnclaimed", run_id, epoch),
        )

    # ---- the court

    def report_equivocation(
        self,
        first: Statement | EpochResult,
        first_signature: bytes,
        second: Statement | EpochResult,
        second_signature: bytes,
        *,
        for_reward: bool = True,
    ) -> Sent:
        """Slashes and bans the signer of two contradicting statements, or of two results of one epoch.

        Args:
            first: One of them.
            first_signature: On `first`.
            second: Another value for the same slot; or another result for the same epoch.
            second_signature: On `second`.
            for_reward: Commit to the report first and reveal it a block later: the reporter's fee is
                then ours, and front-running earns nothing. False reveals it at once, without reward.
        """
        signer = statements.recover(self.deployment.digest(first), first_signature)
        offence_id = self.equivocation_id(signer, first)
        evidence = (values(first), first_signature, values(second), second_signature)
        function = "reportEquivocation" if isinstance(first, Statement) else "reportDoubleResult"

        def is_done() -> bool:  # for this contradiction or for another of the same account
            owner = self.hot_key(signer)
            return self.is_punished(offence_id) or (owner is not None and self.is_banned(owner.account))

        def send() -> Sent:
            salt = self.commit_to_report(offence_id) if for_reward else NO_SALT
            return self._move("report equivocation", "SlashCourt", function, *evidence, salt)

        def repeat_once() -> Sent:
            try:
                return send()
            except ChainRefused as refused:
                if refused.name not in ("NotCommitted", "WindowOver") or is_done():
                    raise
                return send()  # a reorganisation removed our commitment, or it expired

        return self._once(is_done, repeat_once)

    def commit_to_report(self, offence_id: bytes) -> bytes:
        """The salt of a commitment to report this offence, which counts for half of its window at least."""
        salt = self._rpc.secret(b"report" + offence_id)
        if self.report_ends_at(self.address, offence_id, salt) - self.report_window() // 2 < self.timestamp():
            commitment = self.report_commitment(self.address, offence_id, salt)
            self._move("commit report", "SlashCourt", "commitReport", commitment)
        return salt

    def open_case(self, slash_order: SlashOrder, cert: bytes) -> Sent:
        """Opens a case on an order that the run's set certified; locks the bond. Its id is the offence's."""

        def send() -> Sent:
            bond, terms = int(self._ask("SlashCourt", "caseBond")), (values(slash_order), CERT_ECDSA, cert)
            return self._spend(bond, "open case", "SlashCourt", "openCase", *terms)

        return self._once(lambda: self.is_punished(slash_order.offence_id), send)

    def veto_case(self, case_id: bytes, reason_hash: bytes, cert: bytes) -> Sent:
        """Cancels a case, possible until its pay-out; certificate over `statements.Veto`."""
        return self._once(
            lambda: self.case(case_id).phase == CasePhase.VETOED,
            lambda: self._move("veto case", "SlashCourt", "veto", case_id, reason_hash, CERT_ECDSA, cert),
        )

    def execute_case(self, case_id: bytes) -> Sent:
        """Executes a slash order after its veto window; anyone may."""
        return self._once(
            lambda: self.case(case_id).phase in (CasePhase.EXECUTED, CasePhase.PAID),
            lambda: self._move("execute case", "SlashCourt", "execute", case_id),
        )

    def pay_out_case(self, case_id: bytes) -> Sent:
        """Makes an executed slash final after its delay: shares and bond may be collected; anyone may."""
        return self._once(
            lambda: self.case(case_id).phase == CasePhase.PAID,
            lambda: self._move("pay out case", "SlashCourt", "payOut", case_id),
        )

    def expire_case(self, case_id: bytes) -> Sent:
        """Ends a case that was not executed in time; anyone may."""
        return self._once(
            lambda: self.case(case_id).phase == CasePhase.EXPIRED,
            lambda: self._move("expire case", "SlashCourt", "expire", case_id),
        )

    # ---- appeals

    def appeal_case(self, case_id: bytes, operators: int, positions: Sequence[bytes]) -> Sent:
        """Appeals a case against this account within its veto window; locks the bond.

        Args:
            case_id: The case, which is about a step of this account's node.
            operators: Of the step's program.
            positions: Of its trace, at the ends of the parts of the whole program.
        """

        def send() -> Sent:
            bond, terms = int(self._ask("AppealCourt", "bond")), (case_id, operators, list(positions))
            return self._spend(bond, "appeal", "AppealCourt", "appeal", *terms)

        return self._once(lambda: self.appeal(case_id).phase is not AppealPhase.NONE, send)

    def defend_order(
        self,
        case_id: bytes,
        part: int,
        positions: Sequence[bytes],
        statement: Statement,
        signature: bytes,
    ) -> Sent:
        """Defends an order that this account signed, by the first wrong part; locks the bond.

        Args:
            case_id: The case.
            part: The first part whose end is wrong.
            positions: As claimed by the appeal.
            statement: The accused's about its step, which shows that the order is about one.
            signature: Of the accused's hot key on it.
        """

        def send() -> Sent:
            bond, shown = int(self._ask("AppealCourt", "bond")), (values(statement), signature)
            terms = (case_id, part, list(positions), *shown)
            return self._spend(bond, "defend", "AppealCourt", "defend", *terms)

        return self._once(lambda: self.defence(case_id, self.address)[0].phase is not DefencePhase.NONE, send)

    def cut_part(self, case_id: bytes, defender: str, positions: Sequence[bytes]) -> Sent:
        """Cuts the part that a defender named, as the accused."""
        return self._once(
            lambda: self.defence(case_id, defender)[0].phase is not DefencePhase.CUT,
            lambda: self._move("cut", "AppealCourt", "cut", case_id, defender, list(positions)),
        )

    def choose_part(self, case_id: bytes, part: int, positions: Sequence[bytes]) -> Sent:
        """Names the first wrong part of the last cut, as a defender."""
        return self._once(
            lambda: self.defence(case_id, self.address)[0].phase is not DefencePhase.CHOOSE,
            lambda: self._move("choose", "AppealCourt", "choose", case_id, part, list(positions)),
        )

    def draw_appeal_jury(self, case_id: bytes, defender: str) -> Sent:
        """Draws the jury of a defence; anyone may, `AppealCourt.drawDelay` blocks after it was asked for."""
        return self._once(
            lambda: bool(self.defence(case_id, defender)[1].seats),
            lambda: self._move("draw jury", "AppealCourt", "drawJury", case_id, defender),
        )

    def vote_on_defence(self, case_id: bytes, defender: str, end: bytes, is_right: bool) -> Sent:
        """Answers as a juror whether the operator that is left leads to the position `end`."""
        return self._unless_refused(
            "AlreadyVoted",
            lambda: self._move("vote", "AppealCourt", "vote", case_id, defender, end, is_right),
        )

    def lapse_defence(self, case_id: bytes, defender: str) -> Sent:
        """Ends a defence whose next move did not come in time, or whose appeal ended; anyone may."""
        return self._once(
            lambda: self.defence(case_id, defender)[0].phase is DefencePhase.ENDED,
            lambda: self._move("lapse", "AppealCourt", "lapse", case_id, defender),
        )

    def conclude_appeal(self, case_id: bytes) -> Sent:
        """Ends an appeal that no defence succeeded against: the case is reversed; anyone may."""
        return self._once(
            lambda: self.appeal(case_id).phase is not AppealPhase.OPEN,
            lambda: self._move("conclude", "AppealCourt", "conclude", case_id),
        )

    # ---- models and verifiers

    def register_model(self, record: ModelRecord, cert: bytes) -> bytes:
        """Registers a model and returns its record id."""
        record_id = self.deployment.digest(record)
        self._once(
            lambda: self._ask("ModelRegistry", "entries", record_id)[2] != 0,
            lambda: self._move(
                "register model", "ModelRegistry", "register", values(record), CERT_ECDSA, cert
            ),
        )
        return record_id

    def supersede_model(self, statement: Supersession, cert: bytes) -> Sent:
        """Supersedes a model record by another, or withdraws it; certificate of the present set."""
        record_id, new, reason = statement.record_id, statement.new_record_id, statement.reason_hash
        return self._once(
            lambda: self.successor_of(record_id) == new,
            lambda: self._move(
                "supersede model", "ModelRegistry", "supersede", record_id, new, reason, CERT_ECDSA, cert
            ),
        )

    def anchor_log(self, run_id: bytes, size: int, root: bytes) -> Sent:
        """Anchors on chain the root that our log of a run has at `size` leaves.

        Raises:
            ChainRefused: `LogNotGrown`: a larger size is anchored, or this size with another root.
        """
        return self._once(
            lambda: self.log_anchor(self.address, run_id) == (size, root),
            lambda: self._move("anchor log", "ModelRegistry", "anchorLog", run_id, size, root),
        )

    def announce_record(self, peer: bytes, record: bytes) -> Sent:
        """Announces this account's signed record of a peer in the directory."""

        def last() -> bytes | None:
            (number,) = self.record_blocks([(self.address, peer)])
            return self.announced_record(self.address, peer, number) if number else None

        return self._once(
            lambda: _shown(last) == record,
            lambda: self._move("announce", "Directory", "announceRecord", peer, record),
        )

    def announce_run(self, run_id: bytes, run_file: bytes) -> Sent:
        """Announces the run file of a run that this account opened in the directory.

        Raises:
            ChainRefused: `OnlyBuyer`, or `BadLength`.
        """
        return self._once(
            lambda: _shown(lambda: self.announced_run(run_id)) == run_file,
            lambda: self._move("announce run", "Directory", "announceRun", run_id, run_file),
        )

    def rotate_verifiers(self, members: Sequence[str], from_epoch: int, cert: bytes) -> Sent:
        """Installs the next verifier set; `cert` is the current set's over `statements.Rotation`."""
        return self._move(
            "rotate verifiers", "VerifierSet", "rotate", list(members), from_epoch, CERT_ECDSA, cert
        )

    # ---- inside

    def _move(self, action: str, contract: str, function: str, *arguments: Any, wait: bool = True) -> Sent:
        return self._rpc.send(action, self._transaction(contract, function, *arguments), wait=wait)

    def _spend(self, amount: int, action: str, contract: str, function: str, *arguments: Any) -> Sent:
        """A call with which the contract takes token units: behind a permit for them, or else an approval."""
        call = self._transaction(contract, function, *arguments)
        # What was sent by files has used its approval, and wants no other.
        if not self._rpc.was_sent(action, call) and self._lacks_allowance(contract, amount):
            permit = self._permit(contract, amount)
            if permit is not None:
                call = self._transaction(contract, "permitAndCall", *permit, call["data"])
            else:  # the call sees the approval in the pending block
                where = self.deployment.address(contract)
                self._move("approve", "AssayToken", "approve", where, amount, wait=False)
        return self._rpc.send(action, call)

    def needs_approval(self, contract: str, amount: int) -> bool:
        """Whether a call with which a contract takes token units needs an approval before it."""
        # Asked with a permit for nothing: the endpoint gets to see it, and nobody has decided to pay.
        return self._lacks_allowance(contract, amount) and self._permit(contract, 0) is None

    def _lacks_allowance(self, contract: str, amount: int) -> bool:
        where = self.deployment.address(contract)
        return int(self._ask("AssayToken", "allowance", self.address, where)) < amount

    def _permit(self, contract: str, amount: int) -> tuple[int, int, int, bytes, bytes] | None:
        return signed_permit(
            self._rpc,
            token=self.deployment.token,
            chain_id=self.deployment.chain_id,
            spender=self.deployment.address(contract),
            amount=amount,
            now_s=self.timestamp(),
        )

    def _transaction(self, contract: str, function: str, *arguments: Any) -> dict[str, Any]:
        where = self._contract(contract, function)
        return {"to": where.address, "data": where.encode_abi(function, list(arguments))}

    def _once(self, is_done: Callable[[], bool], send: Callable[[], Sent]) -> Sent:
        """Sends unless it is done; a revert because another account was first counts as success.

        The other transaction may still be pending when ours reverts, so pending transactions are awaited
        before the revert is passed on.
        """
        if is_done():
            return ALREADY_DONE
        try:
            return send()
        except ChainRefused:
            if not is_done():
                self._rpc.wait_for_pending()
                if not is_done():
                    raise
            return ALREADY_DONE

    def _unless_refused(self, name: str, send: Callable[[], Sent]) -> Sent:
        try:
            return send()
        except ChainRefused as refused:
            if refused.name == name:
                return ALREADY_DONE
            raise

    def _is_own_and_spent(self, ticket: int) -> bool:
        found = self.ticket(ticket)
        return found.is_spent and found.account == self.address


def _shown(last: Callable[[], bytes | None]) -> bytes | None:
    """The last announcement; None also where the endpoint shows it no more, so that it is announced again."""
    try:
        return last()
    except NotShown:
        return None
