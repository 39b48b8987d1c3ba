"""Order actions: what a buyer does with a run's escrow.

Room: api (edge: reads the chain).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from assay.api.actions.action import Action, OfRun, Owner, Plan, TimeGiven, checked_address, raw, short
from assay.api.http.problems import Problem
from assay.api.schemas import AddressText, AmountGiven, Asked, HashGiven
from assay.chain.state import EscrowState
from assay.chain.text.times import span_text, time_text
from assay.chain.text.units import token_text


class _Place(Asked):
    spec_hash: HashGiven
    budget: AmountGiven
    epoch_cap: AmountGiven
    epochs: Annotated[int, Field(ge=1, lt=2**32)]
    deadline: TimeGiven
    lot: AmountGiven
    operators: Annotated[tuple[AddressText, ...], Field(max_length=256, strict=False)]


class _TopUp(OfRun):
    amount: AmountGiven


def _place(owner: Owner, given: _Place) -> Plan:
    budget, cap, lot = int(given.budget), int(given.epoch_cap), int(given.lot)
    operators = sorted(map(checked_address, given.operators), key=lambda account: int(account, 16))
    judges = owner.chain.set_version()
    return Plan(
        arguments=(
            raw(given.spec_hash), budget, cap, given.epochs, given.deadline, judges, lot, operators,
        ),
        summary=f"open run of spec {short(given.spec_hash)} with {token_text(budget)} in escrow, of which "
        f"each of {given.epochs} epochs may cost {token_text(cap)}, until {time_text(given.deadline)}; "
        f"each of {len(operators)} operators has {token_text(lot)} locked",
        pays=budget,
    )  # fmt: skip


def _top_up(owner: Owner, given: _TopUp) -> Plan:
    amount, buyer = int(given.amount), opened(owner, given.run_id).buyer
    # The contract takes money from anybody; a link could have somebody pay for a stranger's order.
    whose = "your" if buyer == owner.account else f"another account's ({buyer}, which gets the rest)"
    return Plan(
        arguments=(raw(given.run_id), amount),
        summary=f"add {token_text(amount)} to {whose} run {short(given.run_id)}",
        pays=amount,
    )


def _cancel(owner: Owner, given: OfRun) -> Plan:
    if opened(owner, given.run_id).buyer != owner.account:
        raise Problem(403, "only the run's buyer may close it")
    delay = span_text(owner.chain.close_delay())
    return Plan(
        arguments=(raw(given.run_id),),
        summary=f"ask to close run {short(given.run_id)}; results are paid for {delay} more",
    )


def _refund(owner: Owner, given: OfRun) -> Plan:
    run = opened(owner, given.run_id)
    rest, to = token_text(run.free), owner.named(run.buyer)
    return Plan(
        arguments=(raw(given.run_id),),
        summary=f"end run {short(given.run_id)} and send the rest of {rest} to its buyer, {to}",
    )


def opened(owner: Owner, run_id: str) -> EscrowState:
    """The escrow of a run.

    Raises:
        Problem: nobody has opened it.
    """
    found = owner.chain.run(raw(run_id))
    if found is None:
        raise Problem(404, "no run of this id was opened")
    return found


ORDERS: Mapping[str, Action] = {
    "order.place": Action(
        "RunEscrow", "openRun", _Place, _place, gas=400_000, does="opens a run", takes="budget"
    ),
    "order.topup": Action(
        "RunEscrow",
        "topUp",
        _TopUp,
        _top_up,
        gas=200_000,
        does="adds to a run's budget, also a stranger's",
        takes="amount",
    ),
    "order.cancel": Action(
        "RunEscrow", "requestClose", OfRun, _cancel, does="asks to close a run of the account"
    ),
    "order.refund": Action(
        "RunEscrow", "refund", OfRun, _refund, does="ends a closed run and sends the rest to its buyer"
    ),
}
