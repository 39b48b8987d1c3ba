"""Events: one dataclass per contract event; the ledger's books are computed from them.

Room: chain (pure). Fields are named after the event's inputs; a test compares
both lists. The contract whose interface has an event of this name emits it
(`logs.contract_of`). Amounts are integers in token units, times are Unix seconds
of chain time, addresses are checksummed text. (`block_hash`, `log_index`)
identifies an event for ever; a reorganisation may still undo its block.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.chain.statements import Address, EpochResult

SETTLED_BLOCKS = 64  # events of newer ones are asked for again, because the chain may go back


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEvent:
    """Base of all events: an event's position in the chain, and its block's time."""

    block_number: int
    block_hash: bytes
    block_time: int
    tx_hash: bytes
    log_index: int  # position within its block


@dataclass(frozen=True, slots=True, kw_only=True)
class Staked(ChainEvent):
    """`account` added `amount` to its stake in `role`."""

    account: Address
    role: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstakeRequested(ChainEvent):
    """`amount` left free stake; it is lost if the account contradicts itself."""

    account: Address
    role: int
    ticket: int
    amount: int
    ready_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstakeCancelled(ChainEvent):
    """The ticket's stake, worth `amount` now, is active again."""

    account: Address
    role: int
    ticket: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn(ChainEvent):
    """`amount` went from the vault to `account`; zero when a slash had taken all."""

    account: Address
    role: int
    ticket: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slashed(ChainEvent):
    """`amount == burnt + buyer_amount + challenger_amount` left `account`'s stake.

    With `payable_at` zero the slash is final, and the two rewards stay in the vault until a
    RewardCollected. Otherwise the amount stays in a pot until SlashPaid or SlashReversed.
    """

    account: Address
    role: int
    offence_id: bytes
    amount: int
    burnt: int
    buyer: Address
    buyer_amount: int
    challenger: Address
    challenger_amount: int
    payable_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashPaid(ChainEvent):
    """A pot was paid out: `burnt + buyer_amount + challenger_amount` is the slash's amount."""

    account: Address
    role: int
    offence_id: bytes
    burnt: int
    buyer: Address
    buyer_amount: int
    challenger: Address
    challenger_amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashReversed(ChainEvent):
    """A veto returned a pot: `amount` is `account`'s stake again."""

    account: Address
    role: int
    offence_id: bytes
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BondLocked(ChainEvent):
    """`account` locked `amount` as the bond of a case."""

    case_id: bytes
    account: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BondReturned(ChainEvent):
    """A case's bond was returned to `account`; it can be collected with its rewards."""

    case_id: bytes
    account: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BondBurnt(ChainEvent):
    """`account` lost a case's bond: the case was vetoed or never carried out."""

    case_id: bytes
    account: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCollected(ChainEvent):
    """`amount` of slash rewards and returned bonds went from the vault to `account`."""

    account: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKeyDelegated(ChainEvent):
    """`hot_key` may sign for `account` until `expiry`; `account` stays liable for its signatures for ever."""

    account: Address
    hot_key: Address
    expiry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PayeeNamed(ChainEvent):
    """What is owed to `account` is paid to `payee` from now on; zero: to the account itself."""

    account: Address
    payee: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOpened(ChainEvent):
    """`buyer` put `budget` into escrow for a run."""

    run_id: bytes
    buyer: Address
    spec_hash: bytes
    budget: int
    epoch_cap: int
    epochs: int
    deadline: int
    set_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToppedUp(ChainEvent):
    """`payer` added `amount` to the run's budget."""

    run_id: bytes
    payer: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClosing(ChainEvent):
    """The run takes results until `closes_at`."""

    run_id: bytes
    closes_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refunded(ChainEvent):
    """`amount` of free escrow went back to `buyer`."""

    run_id: bytes
    buyer: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultProposed(ChainEvent):
    """`total` is reserved for this epoch, and `proposer` locked `bond`, until it is final or rejected."""

    run_id: bytes
    epoch: int
    digest: bytes
    root: bytes
    table_hash: bytes
    model_hash: bytes
    total: int
    window_ends_at: int
    proposer: Address
    bond: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCertified(ChainEvent):
    """`result` was proposed with the certificate `cert`, by whichever transaction."""

    run_id: bytes
    epoch: int
    result: EpochResult
    cert: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenged(ChainEvent):
    """`challenger` challenged a result and locked `bond`."""

    run_id: bytes
    epoch: int
    challenger: Address
    reason_hash: bytes
    bond: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(ChainEvent):
    """A challenge ended: outcome 0 not answered in time, 1 the result is right, 2 it is wrong and falls."""

    run_id: bytes
    epoch: int
    outcome: int
    window_ends_at: int  # of the new window; zero if the result falls


@dataclass(frozen=True, slots=True, kw_only=True)
class BondReleased(ChainEvent):
    """`amount` of an epoch's bonds is `account`'s; the settlement holds it until BondCollected."""

    run_id: bytes
    epoch: int
    account: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BondForfeited(ChainEvent):
    """`amount` of an epoch's bonds was burnt."""

    run_id: bytes
    epoch: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BondCollected(ChainEvent):
    """`amount` of bonds and jurors' fees went from the settlement to `account`."""

    account: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRejected(ChainEvent):
    """The result was rejected and `total` is unreserved again."""

    run_id: bytes
    epoch: int
    digest: bytes
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFinalized(ChainEvent):
    """Payees may claim; what is left after `claim_ends_at` may be swept."""

    run_id: bytes
    epoch: int
    digest: bytes
    total: int
    claim_ends_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(ChainEvent):
    """Row `index` of the epoch's table was paid: `amount` to `account`."""

    run_id: bytes
    epoch: int
    index: int
    account: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept(ChainEvent):
    """`amount` that was not claimed in time went back to `buyer`."""

    run_id: bytes
    epoch: int
    buyer: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivocation(ChainEvent):
    """`hot_key` of `account` signed two values for one slot, or two results for one epoch."""

    account: Address
    offence_id: bytes
    run_id: bytes
    hot_key: Address
    value_a: bytes
    value_b: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOpened(ChainEvent):
    """A slash order entered its veto window; `case_id` is the offence id."""

    case_id: bytes
    offender: Address
    run_id: bytes
    epoch: int
    role: int
    ppm: int
    evidence_hash: bytes
    challenger: Address
    veto_ends_at: int
    execute_by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseClosed(ChainEvent):
    """The case ended for good: outcome 2 vetoed (nothing remains slashed), 4 expired, 5 paid out."""

    case_id: bytes
    outcome: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseExecuted(ChainEvent):
    """`amount` was slashed by a slash order; a veto can reverse it before `payable_at`."""

    case_id: bytes
    amount: int
    payable_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCommitted(ChainEvent):
    """`reporter` committed to evidence that it will reveal later."""

    reporter: Address
    commitment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRotated(ChainEvent):
    """Verifier set `version` is the current one from here."""

    version: int
    set_hash: bytes
    from_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRegistered(ChainEvent):
    """A run's model was registered."""

    record_id: bytes
    run_id: bytes
    model_hash: bytes
    data_inventory_hash: bytes
    config_hash: bytes
    parent: bytes
    last_result: bytes
    by: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSuperseded(ChainEvent):
    """The record was superseded by `new_record_id`, or withdrawn (all zero)."""

    record_id: bytes
    new_record_id: bytes
    reason_hash: bytes
    by: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAnchored(ChainEvent):
    """`ledger_service` anchored the root of its log of the run at `size` leaves; moves no money."""

    ledger_service: Address
    run_id: bytes
    size: int
    root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LotLocked(ChainEvent):
    """`account` added `amount` to its lot for `commitment`, which it may be held to until `until`."""

    account: Address
    role: int
    commitment: bytes
    amount: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LotReleased(ChainEvent):
    """`account`'s whole lot for `commitment`, `amount` by then, is free stake again."""

    account: Address
    role: int
    commitment: bytes
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAnnounced(ChainEvent):
    """`account` said where its `peer` is; what `record` holds, nobody has checked."""

    account: Address
    peer: bytes
    record: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnnounced(ChainEvent):
    """The run's buyer published its run file; what `run_file` holds, nobody has checked."""

    run_id: bytes
    run_file: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Appealed(ChainEvent):
    """The accused of a case claims `positions` of its step's trace; defences begin until `answer_by`."""

    case_id: bytes
    run_id: bytes
    operators: int
    positions: tuple[bytes, ...]
    answer_by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(ChainEvent):
    """The accused cut the part that `defender` named; the next move, until `until`, is the defender's."""

    case_id: bytes
    defender: Address
    positions: tuple[bytes, ...]
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gifted(ChainEvent):
    """`amount` reached a contract by a plain transfer: it is owed to nobody and stays there.

    Not an event of a contract: it is what the token's transfers to the contract exceed what the other events
    of the same transaction account for.
    """

    contract: str  # its Solidity name
    amount: int


# Asked for one kind at a time: the books do not read them, whose size strangers decide.
OTHER_EVENTS: tuple[type[ChainEvent], ...] = (
    LotLocked, LotReleased, ResultCertified, RecordAnnounced, RunAnnounced, Appealed, Cut,
)  # fmt: skip
EVENTS: tuple[type[ChainEvent], ...] = (  # what the books read, all at once
    Staked, UnstakeRequested, UnstakeCancelled, Withdrawn, Slashed, SlashPaid, SlashReversed, BondLocked,
    BondReturned, BondBurnt, RewardCollected, HotKeyDelegated, PayeeNamed, RunOpened, RunToppedUp,
    RunClosing, Refunded, ResultProposed, Challenged, Resolved, BondReleased, BondForfeited,
    BondCollected, ResultRejected, ResultFinalized, Claimed, Swept, Equivocation, CaseOpened, CaseClosed,
    CaseExecuted, ReportCommitted, SetRotated, ModelRegistered, ModelSuperseded, LogAnchored,
)  # fmt: skip
