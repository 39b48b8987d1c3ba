"""Chain reader: view calls and events of one deployment's contracts; needs no key.

Room: chain (edge). Blocking; async callers run it in a thread. Nothing is
cached between calls, because a restarted local chain may lose a few seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Literal

from eth_typing import BlockNumber
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from web3.contract import Contract

from assay.chain.addresses import CONTRACTS, Deployment, created_address
from assay.chain.deployment.code_check import OWN_CODE, check_code, links_of
from assay.chain.deployment.parameters import GETTERS, ChainParams
from assay.chain.events import (
    Appealed,
    CaseOpened,
    ChainEvent,
    Cut,
    LotLocked,
    LotReleased,
    RecordAnnounced,
    ResultCertified,
    RunAnnounced,
    SetRotated,
    UnstakeRequested,
)
from assay.chain.logs import E, read_events, read_events_of
from assay.chain.proofs.event_proof import EventProof
from assay.chain.proofs.event_prover import prove_event
from assay.chain.proposals import CertifiedResult
from assay.chain.rpc import Rpc, artefact, whole
from assay.chain.signing.signer import Signer
from assay.chain.state import (
    AppealState,
    CaseState,
    DefenceState,
    EpochPhase,
    EpochState,
    EscrowState,
    FinalEscrow,
    Head,
    HotKey,
    JuryState,
    LotState,
    S,
    StakeState,
    Ticket,
    state_of,
)
from assay.chain.statements import (
    OPERATOR,
    VERIFIER,
    Address,
    EpochResult,
    SlashOrder,
    Statement,
    term_of,
)
from assay.chain.views import view_call, view_values
from assay.protocol.errors import ConfigError, NotYet, Unavailable

CREATED_WITHIN = 256  # blocks after its own in which all contracts of a deployment are made
EPOCHS_END = 1 << 32  # an escrow has no more
PAGE = 256  # entries of a list that one call reads
ENTRIES_AT_ONCE = 64  # on the list of juries, about three million gas


class NotShown(Unavailable):
    """The directory names a block with an announcement, and the endpoint shows none there.

    It lags, has pruned the block's logs, or the chain went back.
    """


class ChainReader:
    """Read access to the contracts of one deployment; every call may raise `Unavailable`.

    Args:
        rpc_url: HTTP JSON-RPC endpoint.
        deployment: The contracts' addresses.
        key: What signs the account's transactions, or its 32-byte private key; None only reads.
        receipt_s_max: Seconds that a transaction waits to be mined.
    """

    def __init__(
        self,
        rpc_url: str,
        deployment: Deployment,
        key: Signer | bytes | None = None,
        *,
        receipt_s_max: float = 60.0,
    ) -> None:
        self.deployment = deployment
        self._rpc = Rpc(rpc_url, key, receipt_s_max=receipt_s_max)
        self._contracts: dict[tuple[str, str], Contract] = {}
        self._as_of: int | None = None
        self._fixed_numbers: dict[tuple[str, str], int] = {}

    def as_of(self, number: int) -> ChainReader:
        """A reader whose view calls answer as after this block, while the endpoint keeps that state."""
        found = copy(self)
        found._as_of = number
        return found

    @property
    def address(self) -> Address:
        """Address of the account that sends transactions."""
        return self._rpc.address

    def check_deployment(self) -> None:
        """Do nothing if this endpoint's chain has this deployment.

        Raises:
            ConfigError: another chain id, no contracts there, other code than this release's, another
                deployment's contracts, or contracts that refer to others than the deployment names.
        """
        eth, made = self._rpc.web3.eth, {}
        chain_id = self._rpc.read("check chain", lambda: eth.chain_id)
        if chain_id != self.deployment.chain_id:
            raise ConfigError(f"wrong chain: id {chain_id}, {self.deployment.chain_id} expected")
        for name in CONTRACTS:
            where = self.deployment.address(name)
            code = self._rpc.read("check chain", lambda where=where: bytes(eth.get_code(where)))  # type: ignore[misc]
            if not code:
                raise ConfigError(f"wrong chain: no {name} at {where}")
            if name not in OWN_CODE:
                continue  # the token may be any ERC-20; which one, the others say
            made[name] = check_code(name, where, code, artefact(name))
            found = made[name]["deploymentId"]
            if found != self.deployment.deployment_id:
                raise ConfigError(
                    f"wrong chain: {name} belongs to deployment {found.hex()[:8]}, "
                    f"{self.deployment.deployment_id.hex()[:8]} expected"
                )
        for name, immutables in made.items():
            for getter, other in links_of(artefact(name)["abi"]):
                used, expected = to_checksum_address(immutables[getter][-20:]), self.deployment.address(other)
                if str(used) != expected:
                    raise ConfigError(f"{name} works with {used} as its {getter}, {expected} expected")

    def check_created(self) -> None:
        """Do nothing if this release's constructors made the deployment's contracts, after its block.

        Whoever creates a contract by other code may have that write stakes and runs into its storage, and
        immutables beyond their bounds into its code, before it returns this release's.

        Raises:
            ConfigError: a contract was made by other code, or by no transaction of those blocks.
            Unavailable: the endpoint is gone, or has not these blocks' transactions.
        """
        first = self.deployment.block
        missing = {self.deployment.address(name): name for name in OWN_CODE}
        last = min(self.block_number(), first + CREATED_WITHIN)
        for number in range(first, last + 1):
            for where, code in self._rpc.read("check chain", lambda at=number: self._created(at)):  # type: ignore[misc]
                if (name := missing.pop(where, None)) is None:
                    continue
                if not code.startswith(bytes.fromhex(artefact(name)["bytecode"][2:])):
                    raise ConfigError(f"{name} at {where} was made by other code: send it no transactions")
            if not missing:
                return
        where, name = next(iter(missing.items()))
        within = f"blocks {first} to {last}"
        raise ConfigError(
            f"{name} at {where} was made by no transaction of {within}: send it no transactions"
        )

    def _created(self, number: int) -> list[tuple[Address, bytes]]:
        """Where a block's transactions make contracts, and by which code."""
        block: Any = self._rpc.web3.eth.get_block(BlockNumber(number), True)
        return [
            (created_address(sent["from"], whole(sent["nonce"])), bytes(sent["input"]))
            for sent in block["transactions"]
            if sent.get("to") is None
        ]

    def code_hash(self, contract: str) -> bytes:
        """The keccak-256 of a contract's code on chain, immutables included."""
        where: Any = self.deployment.address(contract)
        return keccak(self._rpc.read("code", lambda: bytes(self._rpc.web3.eth.get_code(where))))

    def parameters(self) -> ChainParams:
        """The deployment's immutable parameters, and the token's present supply."""
        found = {
            name: int(self._ask(contract, getter, *given))
            for name, (contract, getter, given) in GETTERS.items()
        }
        return ChainParams(challenge_bond=self.epoch_state(bytes(32), 0).bond, **found)

    def gas_balance(self) -> int:
        """The balance for gas of this client's account, in wei."""
        whose: Any = self.address
        return self._rpc.read("balance", lambda: int(self._rpc.web3.eth.get_balance(whose)))

    def in_flight(self) -> int:
        """Transactions of this client's account, from any process, that are sent and not mined yet."""
        return self._rpc.in_flight()

    def check_mined(self) -> None:
        """Do nothing if all that this client's account has sent, from any process, is mined.

        Raises:
            NotYet: a transaction is not, so that what contracts answer is about to change.
            Unavailable: the endpoint is gone.
        """
        if self.in_flight():
            raise NotYet(f"a transaction of {self.address} is not mined yet: run this again once it is")

    def block_number(self) -> int:
        """The newest block's number."""
        return self._rpc.read("block", lambda: whole(self._rpc.web3.eth.block_number))

    def block_hash(self, number: int) -> bytes:
        """The hash of a block of this chain."""
        eth = self._rpc.web3.eth
        return self._rpc.read("block", lambda: bytes(eth.get_block(BlockNumber(number))["hash"]))

    def head(self, at: int | Literal["latest", "finalized"] = "latest") -> Head:
        """Number, hash and time of a block.

        Raises:
            Unavailable: the endpoint does not have it.
        """
        eth = self._rpc.web3.eth
        found = self._rpc.read("block", lambda: eth.get_block(BlockNumber(at) if isinstance(at, int) else at))
        number, time_s = self._rpc.read("block", lambda: _place(found))
        return Head(number=number, hash=bytes(found["hash"]), time_s=time_s)

    def randomness(self, number: int) -> bytes:
        """The randomness of a block, `block.prevrandao` of contracts: 32 bytes that no one party chose."""
        eth = self._rpc.web3.eth
        return self._rpc.read("block", lambda: bytes(eth.get_block(BlockNumber(number))["mixHash"]))

    def first_since(self, time_s: int, last: int) -> int:
        """The deployment's first block at or after a time, Unix seconds; `last` + 1 if it comes later."""
        first, end = self.deployment.block, last + 1
        while first < end:
            middle = (first + end) // 2
            if self.head(middle).time_s < time_s:
                first = middle + 1
            else:
                end = middle
        return first

    def timestamp(self) -> int:
        """The newest block's time, Unix seconds. Windows run on this clock."""
        return self._rpc.read("block", lambda: whole(self._rpc.web3.eth.get_block("latest")["timestamp"]))

    def token_balance(self, account: str | None = None) -> int:
        """An account's ERC-20 balance in token units; this client's by default."""
        return int(self._ask("AssayToken", "balanceOf", account or self.address))

    def token_decimals(self) -> int:
        """Decimals of the deployment's token."""
        return self._fixed("AssayToken", "decimals")

    def sinks(self) -> set[Address]:
        """Where the vault and the settlement send what nobody gets."""
        return {Address(self._ask(name, "sink")) for name in ("StakeVault", "EpochSettlement")}

    def stake_of(self, account: str, role: int) -> StakeState:
        """Stake of an account in a role."""
        active, unbonding = self._ask("StakeVault", "stakeOf", account, role)
        return StakeState(
            active=active,
            free=self._ask("StakeVault", "freeOf", account, role),
            unbonding=unbonding,
            minimum=self.minimum_stake(role),
        )

    def minimum_stake(self, role: int) -> int:
        """The least stake, and the least lot of a verifier, that counts in a role."""
        return int(self._ask("StakeVault", "minStake", role))

    def lot_of(self, account: str, role: int, commitment: bytes) -> LotState:
        """What an account has locked for a commitment.

        Args:
            account: Whose.
            role: OPERATOR or VERIFIER.
            commitment: Of an operator the run's id, of a verifier `statements.term_of` the set's number.
        """
        amount, until, cases = self._ask("StakeVault", "lotOf", account, role, commitment)
        return LotState(amount=amount, until=until, cases=cases)

    def commitment_end(self, role: int, commitment: bytes) -> int:
        """When a commitment was or will be over, chain time; 0 before it began, 2^64 - 1 if unknown."""
        return int(self._ask("RunEscrow", "endOf", role, commitment))

    def can_release(self, account: str, role: int, commitment: bytes) -> bool:
        """Whether anybody can make this lot free stake again now."""
        lot = self.lot_of(account, role, commitment)
        return lot.until > 0 and not lot.cases and self.timestamp() >= self.release_at(lot, role, commitment)

    def release_at(self, lot: LotState, role: int, commitment: bytes) -> int:
        """From when anybody can make this lot free stake again if no case is open then, chain time.

        By what is known now: a run may end sooner, and a node that leaves it may be discharged.
        """
        end = self.commitment_end(role, commitment)
        return min(end or lot.until, lot.until) + self.evidence_window()

    def set_version_of(self, run_id: bytes) -> int:
        """The number of the verifier set that a run was opened with."""
        return int(self._ask("RunEscrow", "setVersionOf", run_id))

    def commitment_of(self, order: SlashOrder) -> bytes:
        """The commitment of the lot that a slash order reaches: a run, or a term in its set."""
        if order.role == OPERATOR:
            return order.run_id
        return term_of(self.set_version_of(order.run_id))

    def ticket(self, ticket: int) -> Ticket:
        """An unstake ticket, with its present value."""
        account, role, ready_at, amount = self._ask("StakeVault", "tickets", ticket)
        return Ticket(
            account=account,
            role=role,
            ready_at=ready_at,
            is_spent=amount == 0,
            amount=self._ask("StakeVault", "ticketValue", ticket),
        )

    def tickets_of(self, account: Address) -> dict[int, Ticket]:
        """Every unstake ticket of an account, in any role, spent ones included, ascending."""
        events = self._events_of(UnstakeRequested, (_word(account),), self.deployment.block)
        found = {event.ticket: self.ticket(event.ticket) for event in events}
        return {number: ticket for number, ticket in sorted(found.items()) if ticket.account == account}

    def close_delay(self) -> int:
        """Seconds between a buyer's close request and the end of a run."""
        return self._fixed("RunEscrow", "closeDelay")

    def case_ppm_max(self) -> int:
        """The most that one slash order may take of a lot, in millionths."""
        return self._fixed("SlashCourt", "casePpmMax")

    def evidence_window(self) -> int:
        """Seconds after a run's end in which a case about it can be opened."""
        return self._fixed("SlashCourt", "evidenceWindow")

    def veto_window(self) -> int:
        """Seconds from the opening of a case to its execution, in which its accused may appeal."""
        return self._fixed("SlashCourt", "vetoWindow")

    def unbonding_delay(self) -> int:
        """Seconds between an unstake request and the withdrawal."""
        return self._fixed("StakeVault", "unbondingDelay")

    def entries_lacking(self, account: str) -> int:
        """Entries that an account's verifier's stake allows beyond those it has on the list of juries."""
        stake = self.stake_of(account, VERIFIER)
        return stake.active // stake.minimum - int(self._ask("VerifierSet", "entriesOf", account))

    def places_lacking(self, account: str) -> list[int]:
        """Where an account enlists with the entries that it lacks, at most one transaction's."""
        lacking = self.entries_lacking(account)
        # One without stake gives up its place; the others go to the end, wherever that is by then.
        return [int(self._ask("VerifierSet", "roomForEntry"))] * min(lacking, ENTRIES_AT_ONCE)

    def is_beyond_cap(self, order: SlashOrder) -> bool:
        """Whether no case can be opened on a slash order: others took all that cases may take of its lot."""
        if self.is_punished(order.offence_id):
            return False
        return not self.slash_cap_left(order.offender, order.role, self.commitment_of(order))

    def slash_cap_left(self, account: str, role: int, commitment: bytes) -> int:
        """Millionths of an account's lot that slash orders may still take in this period."""
        return int(self._ask("SlashCourt", "capLeft", account, role, commitment))

    def challenge_window(self) -> int:
        """Seconds in which a result can be challenged."""
        return self._fixed("EpochSettlement", "challengeWindow")

    def resolve_window(self) -> int:
        """Seconds in which the jury of a challenge answers."""
        return self._fixed("EpochSettlement", "resolveWindow")

    def proposals_of(self, run_id: bytes, from_block: int, to_block: int) -> list[CertifiedResult]:
        """The results proposed for a run in these blocks, with their certificates, in chain order."""
        events = self._events_of(ResultCertified, (_word(run_id),), from_block, to_block)
        return [CertifiedResult(result=one.result, certificate=one.cert) for one in events]

    def cases_of(self, run_id: bytes, from_block: int, to_block: int) -> list[CaseOpened]:
        """The cases opened against members of a run in these blocks, both included, in chain order."""
        return self._events_of(CaseOpened, (None, None, _word(run_id)), from_block, to_block)

    def appeal(self, case_id: bytes) -> AppealState:
        """The appeal of a case; of phase NONE if nobody appealed."""
        return self._state(AppealState, "AppealCourt", "getAppeal", case_id)

    def defence(self, case_id: bytes, defender: str) -> tuple[DefenceState, JuryState]:
        """A member's defence of an appealed order, and its jury, without seats until it is drawn."""
        return (
            self._state(DefenceState, "AppealCourt", "getDefence", case_id, defender),
            self._state(JuryState, "AppealCourt", "getJury", case_id, defender),
        )

    def defences(self, case_id: bytes) -> Iterator[tuple[Address, DefenceState, JuryState]]:
        """Every signer of an appealed order, with its defence and its jury; nobody if nobody appealed."""
        appeal = self.appeal(case_id)
        for seat, account in enumerate(self.verifier_set(appeal.version) if appeal.version else ()):
            if appeal.signers >> seat & 1:
                yield account, *self.defence(case_id, account)

    def appeal_windows(self) -> tuple[int, int]:
        """Blocks from a defence's last move to its jury, and seconds in which that answers."""
        return self._fixed("AppealCourt", "drawDelay"), self._fixed("AppealCourt", "voteWindow")

    def appeal_positions(self, case_id: bytes, from_block: int) -> tuple[bytes, ...]:
        """What the accused claimed when it appealed; empty if that was before `from_block`."""
        found = self._events_of(Appealed, (_word(case_id),), from_block)
        return found[-1].positions if found else ()

    def cut_positions(self, case_id: bytes, defender: str, from_block: int) -> tuple[bytes, ...]:
        """What the accused claimed of the part that a defender named last; empty if it has not yet."""
        found = self._events_of(Cut, (_word(case_id), _word(defender)), from_block)
        return found[-1].positions if found else ()

    def _events_of(
        self, kind: type[E], indexed: tuple[str | list[str] | None, ...], first: int, last: int | None = None
    ) -> list[E]:
        """`read_events_of` these blocks, both included; without the last, to the newest."""
        last = self.block_number() if last is None else last
        return read_events_of(self._rpc, self.deployment, kind, indexed, first, last)

    def rewards_of(self, account: str) -> int:
        """Slash rewards and returned bonds waiting for `collect`, token units."""
        return int(self._ask("StakeVault", "rewards", account))

    def hot_key(self, hot_key: str) -> HotKey | None:
        """The account that a hot key signs for; None if it has none."""
        account, expiry, is_replaced = self._ask("StakeVault", "hotKeys", hot_key)
        return HotKey(account=account, expiry=expiry, is_replaced=is_replaced) if int(account, 16) else None

    def account_of(self, hot_key: str) -> Address:
        """The account that delegated to a hot key once, the zero address if none did."""
        found: Address = self._ask("StakeVault", "accountOf", hot_key)
        return found

    def hot_key_of(self, account: str) -> Address:
        """The hot key that an account delegated last, the zero address before the first."""
        found: Address = self._ask("StakeVault", "hotKeyOf", account)
        return found

    def verifier_set(self, version: int | None = None) -> tuple[Address, ...]:
        """The accounts of a set, ascending, as in a certificate's bitmap; of the current one by default."""
        number = self.set_version() if version is None else version
        return tuple(self._ask("VerifierSet", "members", number))

    def set_version(self) -> int:
        """The current verifier set's number, from 1."""
        return int(self._ask("VerifierSet", "currentVersion"))

    def installed_s(self, version: int, from_block: int) -> int | None:
        """When a set became the current one, if that was in this block or later; Unix seconds."""
        found = self._events_of(SetRotated, (_word(term_of(version)),), from_block)
        return found[-1].block_time if found else None

    def run_id_of(self, buyer: str, spec_hash: bytes) -> bytes:
        """The run's id, whether opened or not: a function of deployment, buyer and specification."""
        return bytes(self._ask("RunEscrow", "runIdOf", buyer, spec_hash))

    def run(self, run_id: bytes) -> EscrowState | None:
        """The run's escrow; None if there is no such run."""
        state = self._state(EscrowState, "RunEscrow", "getRun", run_id)
        return state if int(state.buyer, 16) else None

    def final_escrow(self, run_id: bytes) -> FinalEscrow:
        """The run's escrow at the finalised block, which no reorganisation can change."""
        eth = self._rpc.web3.eth
        number, time_s = self._rpc.read("finalised block", lambda: _place(eth.get_block("finalized")))
        found = self._ask("RunEscrow", "getRun", run_id, block=number)
        state = self._rpc.read("RunEscrow.getRun", lambda: state_of(EscrowState, found))
        return FinalEscrow(
            block=number,
            time_s=time_s,
            newest_s=self.timestamp(),
            escrow=state if int(state.buyer, 16) else None,
            judges=self.verifier_set(state.set_version) if int(state.buyer, 16) else (),
        )

    def epoch_state(self, run_id: bytes, epoch: int) -> EpochState:
        """Settlement state of one epoch."""
        return self._state(EpochState, "EpochSettlement", "getEpoch", run_id, epoch)

    def posted_epochs(self, run_id: bytes, known: int = 0) -> int:
        """How many epochs of a run have a result, from the first on; at least `known`, which had one."""

        def has_result(epoch: int) -> bool:
            return self.epoch_state(run_id, epoch).phase is not EpochPhase.NONE

        count, ahead = known, 1
        while ahead < EPOCHS_END and has_result(count + ahead - 1):  # an endpoint may say so of every epoch
            count, ahead = count + ahead, 2 * ahead
        while ahead > 1:
            ahead //= 2
            count += ahead * has_result(count + ahead - 1)
        return count

    def payee_of(self, account: str) -> Address:
        """The address to which an account has its money paid: by default the account itself."""
        return Address(self._ask("RunEscrow", "payeeOf", account))

    def is_claimed(self, run_id: bytes, epoch: int, index: int) -> bool:
        """Whether row `index` of the payout table was paid."""
        return bool(self._ask("EpochSettlement", "isClaimed", run_id, epoch, index))

    def case(self, case_id: bytes) -> CaseState:
        """State of a court case."""
        return self._state(CaseState, "SlashCourt", "getCase", case_id)

    def report_commitment(self, account: str, offence_id: bytes, salt: bytes) -> bytes:
        """What an account commits to that is going to report an offence."""
        return bytes(self._ask("SlashCourt", "commitmentOf", account, offence_id, salt))

    def report_ends_at(self, account: str, offence_id: bytes, salt: bytes) -> int:
        """Until when an account's commitment to report an offence counts, chain time; 0 if it made none."""
        commitment = self.report_commitment(account, offence_id, salt)
        made_at = int(self._ask("SlashCourt", "commitments", account, commitment)[1])
        return made_at + self.report_window() if made_at else 0

    def report_window(self) -> int:
        """Seconds for which a commitment to report counts."""
        return self._fixed("SlashCourt", "reportWindow")

    def pot_of(self, offence_id: bytes) -> int:
        """Slashed token units of a case that are neither paid out nor returned yet."""
        _, _, is_open, amount, _, _, _ = self._ask("StakeVault", "pots", offence_id)
        return int(amount) if is_open else 0

    def case_bond(self, case_id: bytes) -> int:
        """The bond that a case still holds, token units."""
        return int(self._ask("StakeVault", "bonds", case_id)[1])

    def bonds_owed(self, account: str) -> int:
        """Bonds and jurors' fees waiting for `collect_bond`, token units."""
        return int(self._ask("EpochSettlement", "bondsOwed", account))

    def model_of(self, record_id: bytes) -> bytes | None:
        """Model digest of a record, as results contain it; None if there is no such record."""
        _, model_hash, registered_at, _ = self._ask("ModelRegistry", "entries", record_id)
        return bytes(model_hash) if registered_at else None

    def successor_of(self, record_id: bytes) -> bytes | None:
        """Record that supersedes a model record, all zero if withdrawn; None while the record is valid."""
        superseded_at, new_record_id, _ = self._ask("ModelRegistry", "successions", record_id)
        return bytes(new_record_id) if superseded_at else None

    def is_punished(self, offence_id: bytes) -> bool:
        """Whether an offence was already slashed or has a case."""
        return bool(self._ask("SlashCourt", "punished", offence_id))

    def is_banned(self, account: str) -> bool:
        """Whether an account equivocated, was slashed and can never stake again."""
        return bool(self._ask("StakeVault", "banned", account))

    def log_anchor(self, ledger_service: str, run_id: bytes) -> tuple[int, bytes] | None:
        """Size and root that a ledger service last anchored for its log of a run; None before the first."""
        size, root = self._ask("ModelRegistry", "logAnchor", ledger_service, run_id)
        return (int(size), bytes(root)) if size else None

    def equivocation_id(self, signer: str, statement: Statement | EpochResult) -> bytes:
        """Offence id of an equivocation by `signer` in a statement's slot, or about a result's epoch."""
        if isinstance(statement, EpochResult):
            given = (self.account_of(signer), statement.run_id, statement.epoch)
            return bytes(self._ask("SlashCourt", "doubleResultId", *given))
        return bytes(
            self._ask(
                "SlashCourt",
                "equivocationId",
                signer,
                statement.run_id,
                statement.epoch,
                statement.kind,
                statement.slot,
            )
        )

    def events(self, from_block: int, to_block: int | None = None) -> list[ChainEvent]:
        """All events of the deployment's contracts in these blocks, both included, in chain order."""
        last = self.block_number() if to_block is None else to_block
        return read_events(self._rpc, self.deployment, from_block, last)

    # ---- the directory: bytes of strangers, which the caller has to check

    def run_block(self, run_id: bytes) -> int:
        """In which block a run was announced last; 0 if it was not."""
        return int(self._ask("Directory", "runBlock", run_id))

    def announced_run(self, run_id: bytes) -> bytes | None:
        """The run file that a run's buyer announced last; None if there is none."""
        number = self.run_block(run_id)
        if not number:
            return None
        found = self._events_of(RunAnnounced, (_word(run_id),), number, number)
        return _last(found, number).run_file

    def record_blocks(self, whose: Sequence[tuple[Address, bytes]]) -> list[int]:
        """For each account and its peer, in which block its last record is; 0 if there is none."""
        found: list[int] = []
        for at in range(0, len(whose), PAGE):
            page = whose[at : at + PAGE]
            found += self._ask(
                "Directory", "recordBlocks", [account for account, _ in page], [peer for _, peer in page]
            )
        if len(found) != len(whose):
            raise Unavailable(f"{self._rpc.url}: {len(found)} blocks of records, {len(whose)} asked for")
        return found

    def announced_record(self, account: Address, peer: bytes | None, number: int) -> bytes:
        """The last record of an account in a block: of this peer, or of any."""
        indexed = (_word(account), None if peer is None else _word(peer))
        found = self._events_of(RecordAnnounced, indexed, number, number)
        return _last(found, number).record

    def staker_block(self, account: Address) -> int:
        """In which block an account on the list of stakers announced last; 0 if it is not on the list."""
        return int(self._ask("Directory", "stakerBlock", account))

    def newest_runs(self, count_max: int) -> tuple[int, list[bytes]]:
        """How many runs were announced, and the ids of the newest ones, newest first."""
        total, found = self._newest("runCount", "runs", count_max)
        return total, [bytes(run_id) for run_id in found]

    def newest_stakers(self, count_max: int) -> tuple[int, list[Address]]:
        """How many accounts announced a record and had stake, and the newest of them, newest first."""
        total, found = self._newest("stakerCount", "stakers", count_max)
        return total, [Address(account) for account in found]

    def _newest(self, counter: str, pages: str, count_max: int) -> tuple[int, list[Any]]:
        total = int(self._ask("Directory", counter))
        found: list[Any] = []
        for first in range(max(total - count_max, 0), total, PAGE):
            found += self._ask("Directory", pages, first, min(PAGE, total - first))
        return total, found[::-1]

    def lots_locked(self, run_ids: Collection[bytes], from_block: int, to_block: int) -> list[LotLocked]:
        """Every lot that was locked for one of these runs in these blocks, both included, in chain order."""
        return self._events_of(LotLocked, (None, [_word(one) for one in run_ids]), from_block, to_block)

    def lots_of_term(self, version: int, from_block: int, to_block: int) -> list[LotLocked | LotReleased]:
        """What was locked for terms of a verifier set, and released, in these blocks, in chain order."""
        which = (None, _word(term_of(version)))
        found: list[LotLocked | LotReleased] = [
            *self._events_of(LotLocked, which, from_block, to_block),
            *self._events_of(LotReleased, which, from_block, to_block),
        ]
        return sorted(found, key=lambda event: (event.block_number, event.log_index))

    def prove(self, event: ChainEvent) -> EventProof:
        """Proof that this event is in its block. `Unavailable` also if the hashes cannot be recomputed."""
        return prove_event(self._rpc, event)

    def _state(self, kind: type[S], contract: str, function: str, *arguments: Any) -> S:
        found = self._ask(contract, function, *arguments)
        return self._rpc.read(f"{contract}.{function}", lambda: state_of(kind, found))

    def _ask(self, contract: str, function: str, *arguments: Any, block: int | None = None) -> Any:
        """A view call, at an earlier block, at that of `as_of`, or else at the newest one."""
        call: Any = {
            "to": self.deployment.address(contract),
            "data": view_call(contract, function, arguments),
        }
        number = self._as_of if block is None else block
        at = "latest" if number is None else BlockNumber(number)
        eth = self._rpc.web3.eth
        return self._rpc.read(
            f"{contract}.{function}", lambda: view_values(contract, function, bytes(eth.call(call, at)))
        )

    def _fixed(self, contract: str, function: str) -> int:
        """A number that is part of a contract's code: asked for once."""
        if (contract, function) not in self._fixed_numbers:
            self._fixed_numbers[contract, function] = int(self._ask(contract, function))
        return self._fixed_numbers[contract, function]

    def _contract(self, name: str, entry: str) -> Contract:
        """A contract of the deployment, as far as one function or event; made at its first use.

        At each call web3 checks and searches the whole ABI it was given, which takes longer than the call.
        """
        if (name, entry) not in self._contracts:
            make: Any = self._rpc.web3.eth.contract
            abi = [one for one in artefact(name)["abi"] if one.get("name") == entry]
            where = self.deployment.address(name)
            self._contracts[name, entry] = make(address=where, abi=abi)
        return self._contracts[name, entry]


def _word(value: bytes | str) -> str:
    """32 bytes, or an address, as an indexed field of an event."""
    return f"0x{value.hex()}" if isinstance(value, bytes) else f"0x{value[2:].lower():0>64}"


def _last(found: Sequence[E], number: int) -> E:
    """The last announcement of a block that the directory names.

    Raises:
        NotShown: there is none.
    """
    if not found:
        raise NotShown(f"the directory names block {number}, in which this endpoint shows no announcement")
    return found[-1]


def _place(block: Mapping[str, Any]) -> tuple[int, int]:
    """A block's number and its time, Unix seconds."""
    return whole(block["number"]), whole(block["timestamp"])
