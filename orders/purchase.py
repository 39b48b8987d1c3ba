"""Purchase: a buyer's transactions on the escrow of one run, checked before they cost anything.

Room: orders (edge: the chain). Every `check_` is pure and reports what the contract would refuse; a
transaction that is already on chain is found, not repeated.

    place --> open --deadline, or cancel and the close delay--> closed --refund--> over
               | topup
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.chain.client import EpochState, EscrowState
from assay.chain.commit_statement import evm_address
from assay.chain.penalties import check_absence, check_penalties
from assay.chain.state import EpochPhase
from assay.chain.statements import OPERATOR, VERIFIER, term_of
from assay.chain.text.times import span_text, time_text, when_text
from assay.chain.text.units import money_text, token_text
from assay.ledger.settlement.funding import check_close_delay, closing_s
from assay.orders.price.quote import Quote, check_spec_keeps
from assay.orders.sections import RUN_DAYS_MAX
from assay.participant.wallet.account import Account
from assay.participant.wallet.stake import one_of
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError, NotYet
from assay.protocol.params import RunSpec
from assay.verifier.audit.messages import longest_opening

DAY_S = 86_400
MINING_S = 60  # between looking at the chain's clock and being mined
OVER = (EpochPhase.FINAL, EpochPhase.SWEPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """What a node compares before it joins a run; the lot is the escrow's."""

    named: int  # nodes that the buyer chose
    least_nodes: int  # without which the run does not start
    start_by_s: int  # Unix time by which these may come; 0: as many are named
    seats: int
    operator_price: int  # token units for 10^6 accepted tokens
    accept_ppm: int  # of it, in epochs with a milestone, owed only if the model reaches it
    opening_bytes: int  # that an opening of a drawn step has at most
    opening_ms: int  # in which it must arrive at the verifiers
    absence_s: int  # for which one may be overdue before its node is slashed
    continues: bytes | None  # the run that it continues


@dataclass(frozen=True, slots=True, kw_only=True)
class Escrow:
    """A run's terms, and its money and results at a moment of chain time."""

    run_id: bytes
    terms: RunTerms
    now: int
    run: EscrowState
    epochs: tuple[EpochState, ...]

    @property
    def is_closed(self) -> bool:
        """Whether results are no longer accepted."""
        return self.now >= self.run.closes_at


def read_escrow(account: Account) -> Escrow | None:
    """The escrow of this account's run; None if nobody opened it.

    Raises:
        Unavailable: the endpoint is gone.
    """
    chain, run_id, spec = account.chain, account.run_id, account.spec
    run = chain.run(run_id)
    if run is None:
        return None
    terms = RunTerms(
        named=len(spec.nodes),
        least_nodes=spec.least_nodes,
        start_by_s=spec.start_by_s,
        seats=spec.seats,
        operator_price=spec.money.operator_price,
        accept_ppm=spec.money.accept.share_ppm,
        opening_bytes=longest_opening(spec),
        opening_ms=spec.timing.opening_ms,
        absence_s=spec.audit.absence_s,
        continues=spec.predecessor.run_id if spec.is_continued else None,
    )
    epochs = tuple(chain.epoch_state(run_id, epoch) for epoch in range(run.epochs))
    return Escrow(run_id=run_id, terms=terms, now=chain.timestamp(), run=run, epochs=epochs)


def need_escrow(account: Account) -> Escrow:
    """`read_escrow`, for a run that must be open.

    Raises:
        ConfigError: nobody opened the run.
    """
    found = read_escrow(account)
    if found is None:
        raise ConfigError(f"run {account.run_id.hex()[:16]} is not open: see `assay order place`")
    return found


# ---- opening


def check_place(account: Account, quote: Quote) -> None:
    """Do nothing if spec, contracts and quote agree, and this account is the buyer.

    Raises:
        ConfigError: what does not agree.
        Unavailable: the endpoint is gone.
    """
    spec, chain = account.spec, account.chain
    check_spec_keeps(quote, spec)
    check_penalties(spec.money, chain.case_ppm_max())
    check_absence(spec.audit, chain.evidence_window())
    final = chain.final_escrow(account.run_id)
    need_s = closing_s(spec.audit, spec.timing, len(spec.verifiers), spec.money.epoch_rounds)
    check_close_delay(need_s, chain.close_delay(), final.newest_s - final.time_s)
    if evm_address(spec.buyer) != account.address:
        raise ConfigError(f"the spec's buyer is {evm_address(spec.buyer)}, this account is {account.address}")
    if {evm_address(member.account) for member in spec.judges} != set(chain.verifier_set()):
        raise ConfigError(
            f"the spec's verifiers are not those of the contracts, set {chain.set_version()}: "
            "no result of the run could be settled"
        )


def check_lots(account: Account, lot: int, deadline: int) -> None:
    """Do nothing if each operator and two thirds of the verifiers have locked what the run needs.

    Raises:
        ConfigError: whose lot is missing, too small, or bound for too short a time.
    """
    chain, spec = account.chain, account.spec
    operators = [evm_address(member.account) for member in spec.nodes]
    lacking = [
        f"the operator {operator} has locked {token_text(found.amount)} for this run, until "
        f"{time_text(found.until)}; expected {token_text(lot)} until {time_text(deadline)}"
        for operator in operators
        for found in [chain.lot_of(operator, OPERATOR, account.run_id)]
        if found.amount < lot or found.until < deadline
    ]
    if lacking:
        raise ConfigError("\n".join([*lacking, "it does that with `assay stake lock`"]))
    term, least = term_of(chain.set_version()), chain.stake_of(account.address, VERIFIER).minimum
    verifiers = [evm_address(member.account) for member in spec.judges]
    missing = [
        verifier
        for verifier in verifiers
        for found in [chain.lot_of(verifier, VERIFIER, term)]
        if found.amount < least or found.until < deadline
    ]
    if 3 * len(missing) >= len(verifiers):
        raise ConfigError(
            f"of {len(verifiers)} verifiers {len(missing)} have locked no lot of {token_text(least)} until "
            f"{time_text(deadline)}: {', '.join(missing)}"
        )


def check_found(escrow: Escrow, quote: Quote, spec: RunSpec) -> None:
    """Do nothing if a run that is open already is the quoted one.

    Raises:
        ConfigError: it was opened on other terms, with less money, or is over.
    """
    run = escrow.run
    terms = (quote.epoch_cap, spec.epochs, quote.lot, digest(spec))
    if (run.epoch_cap, run.epochs, run.lot, run.spec_hash) != terms:
        raise ConfigError(
            f"the run is open for {run.epochs} epochs of at most {token_text(run.epoch_cap)}, with lots of "
            f"{token_text(run.lot)}; quoted were {spec.epochs} of at most {token_text(quote.epoch_cap)}, "
            f"with lots of {token_text(quote.lot)}"
        )
    if escrow.is_closed:
        raise ConfigError(
            f"this run was opened before and closed {when_text(run.closes_at, escrow.now)}; "
            "a specification is opened once: change [run] seed for another"
        )
    if run.budget < quote.budget:
        raise ConfigError(
            f"the run is open with {token_text(run.budget)}, quoted were {token_text(quote.budget)}: "
            f"see `assay order topup --to {money_text(quote.budget).replace(',', '')}`"
        )


def deadline_after(account: Account, days: int, *, to_midnight: bool = False) -> int:
    """The chain time at which a run of this many days from now closes by itself.

    Args:
        account: The buyer's.
        days: From now.
        to_midnight: At the end of the UTC day before: all day long the same, while people carry files.

    Raises:
        ConfigError: too soon for the contract, or too far.
    """
    chain = account.chain
    if not 0 < days <= RUN_DAYS_MAX:
        raise ConfigError(f"{days} days: a run is open for 1 to {RUN_DAYS_MAX}")
    delay = chain.close_delay()
    now = chain.timestamp()
    deadline = now + days * DAY_S
    if to_midnight:
        deadline -= deadline % DAY_S
    if deadline - now < delay + MINING_S:
        raise ConfigError(f"{days} days: expected more than the close delay, {span_text(delay)}")
    return deadline


def check_start(account: Account, deadline: int) -> None:
    """Do nothing if a run that waits for nodes can start before it closes, and may still do so.

    Raises:
        ConfigError: both times.
    """
    start_by, now = account.spec.start_by_s, account.chain.timestamp()
    if start_by and now >= start_by:
        raise ConfigError(
            f"this run had to start {when_text(start_by, now)}, and {account.config.run} is of no more use: "
            "remove it for one with a later time, for which operators lock other lots"
        )
    last = deadline - account.chain.close_delay()
    if start_by > last:
        raise ConfigError(
            f"the run may start until {time_text(start_by)}, and closes from {time_text(last)} on: "
            "expected more --days, or less [run] start_within_s"
        )


def place(account: Account, quote: Quote, deadline: int) -> Escrow:
    """Open the run with the quoted escrow, or find it open; call after `check_place`.

    Raises:
        ConfigError: the account holds less than the budget, or a member lacks its lot.
        ChainRefused: the contract refused.
    """
    check_wallet(account, quote.budget)
    check_lots(account, quote.lot, deadline)
    account.chain.open_run(
        digest(account.spec),
        budget=quote.budget,
        epoch_cap=quote.epoch_cap,
        epochs=account.spec.epochs,
        deadline=deadline,
        lot=quote.lot,
        operators=[evm_address(member.account) for member in account.spec.nodes],
    )
    return need_escrow(account)


# ---- while it is open, and after


def check_wallet(account: Account, amount: int) -> None:
    """Do nothing if the account holds this amount.

    Raises:
        ConfigError: it holds less.
    """
    held = account.chain.token_balance()
    if held < amount:
        raise ConfigError(f"{token_text(amount)} to put up, and {account.address} holds {token_text(held)}")


def to_top_up(escrow: Escrow, *, amount: int | None, to: int | None) -> int:
    """The amount to add: `amount`, or the difference of the budget to `to`; 0 if it is reached.

    Raises:
        ConfigError: neither or both were given, or the run is closed.
    """
    added = one_of(amount, to, max((to or 0) - escrow.run.budget, 0))
    if added and escrow.is_closed:
        raise ConfigError(f"the run closed {when_text(escrow.run.closes_at, escrow.now)}: it takes no money")
    return added


def check_cancel(account: Account, escrow: Escrow) -> bool:
    """Whether cancelling has an effect: False if the run closes as early without.

    Raises:
        ConfigError: this account is not the buyer.
    """
    if escrow.run.buyer != account.address:
        raise ConfigError(f"only the buyer {escrow.run.buyer} may cancel, this account is {account.address}")
    return escrow.now + account.chain.close_delay() < escrow.run.closes_at


def check_refund(escrow: Escrow) -> bool:
    """Whether there is anything to return.

    Raises:
        NotYet: the message says until when.
    """
    run = escrow.run
    if not escrow.is_closed:
        raise NotYet(
            f"the run is open until {when_text(run.closes_at, escrow.now)}; "
            "`assay order cancel` ends it earlier, after the close delay"
        )
    if run.pending:
        waiting = [
            f"epoch {epoch} ({state.phase.name.lower()}, {time_text(state.until)})"
            for epoch, state in enumerate(escrow.epochs)
            if state.phase not in (EpochPhase.NONE, *OVER)
        ]
        raise NotYet(
            f"{run.pending} results are neither final nor rejected: {', '.join(waiting)}; "
            "nothing returns before they are"
        )
    return run.free > 0
