"""Move calls: plans an action as contract calls, with the token units that it pulls from the account.

Room: api (edge: reads the chain and the books). Amounts arrive as text in whole token units; an
approval is for exactly the next call's amount.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from assay.api.config import RUN_NAME
from assay.api.gateway import Gateway
from assay.api.http.problems import Problem
from assay.api.moves import Call
from assay.api.payouts import payouts
from assay.api.schemas import AddressText, AmountGiven, Asked, HashGiven
from assay.api.server import Server
from assay.chain.state import EscrowState
from assay.chain.statements import OPERATOR, VERIFIER
from assay.chain.text.units import token_text

ROLES = {"operator": OPERATOR, "verifier": VERIFIER}
_Role = Literal["operator", "verifier"]
_Number = Annotated[int, Field(ge=0, lt=2**63)]
_GAS = {"stake": 300_000, "openRun": 400_000, "topUp": 200_000}  # for calls whose approval is not mined yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An action as contract calls."""

    calls: tuple[Call, ...]
    amount: int  # token units that leave the account's wallet
    summary: str  # text that the account's owner reads before signing


class _Stake(Asked):
    role: _Role
    amount: AmountGiven


class _Ticket(Asked):
    ticket: _Number


class _Claim(Asked):
    run: Annotated[str, Field(pattern=RUN_NAME)]
    epoch: _Number
    index: _Number


class _Place(Asked):
    spec_hash: HashGiven
    budget: AmountGiven
    epoch_cap: AmountGiven
    epochs: Annotated[int, Field(ge=1, lt=2**32)]
    deadline: _Number
    lot: AmountGiven
    operators: Annotated[tuple[AddressText, ...], Field(max_length=256, strict=False)]


class _Run(Asked):
    run_id: HashGiven


class _TopUp(Asked):
    run_id: HashGiven
    amount: AmountGiven


_ACTIONS: dict[str, type[BaseModel]] = {
    "stake.add": _Stake,
    "stake.remove": _Stake,
    "stake.withdraw": _Ticket,
    "claim": _Claim,
    "order.place": _Place,
    "order.topup": _TopUp,
    "order.cancel": _Run,
    "order.refund": _Run,
}


def plan(server: Server, account: str, action: str, parameters: Mapping[str, Any]) -> Planned:
    """The contract calls of an action.

    Raises:
        Problem: unknown action, parameters not as documented, or not this account's to take.
    """
    kind = _ACTIONS.get(action)
    if kind is None:
        raise Problem(422, f"no action {action[:32]!r}; expected one of {', '.join(_ACTIONS)}")
    try:
        given = kind.model_validate(dict(parameters))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"])
        raise Problem(422, f"parameters.{where}: {first['msg'][:200]}") from None
    return _planned(server, server.chain(), account, action, given)


def _planned(server: Server, chain: Gateway, account: str, action: str, given: BaseModel) -> Planned:
    match action, given:
        case "stake.add", _Stake(role=role, amount=amount):
            calls = _paid(chain, account, "StakeVault", "stake", int(amount), ROLES[role], int(amount))
            return Planned(calls=calls, amount=int(amount), summary=f"stake {_money(amount)} as {role}")
        case "stake.remove", _Stake(role=role, amount=amount):
            call = chain.call_of("StakeVault", "requestUnstake", ROLES[role], int(amount))
            return Planned(calls=(call,), amount=0, summary=f"start to leave with {_money(amount)} as {role}")
        case "stake.withdraw", _Ticket(ticket=ticket):
            found = chain.ticket(ticket)
            if found.account != account or found.is_spent:
                raise Problem(404, "this account has no such ticket")
            call = chain.call_of("StakeVault", "withdraw", ticket)
            return Planned(calls=(call,), amount=0, summary=f"withdraw the stake of ticket {ticket}")
        case "claim", _Claim():
            return _claim(server, chain, given)
        case "order.place", _Place():
            return _place(chain, account, given)
        case "order.topup", _TopUp(run_id=run_id, amount=amount):
            buyer, raw = _run(chain, run_id).buyer, bytes.fromhex(run_id[2:])
            calls = _paid(chain, account, "RunEscrow", "topUp", int(amount), raw, int(amount))
            # The contract takes money from anybody; a link could have somebody pay for a stranger's order.
            whose = "your" if buyer == account else f"another account's ({buyer}, which gets the rest)"
            summary = f"add {_money(amount)} to {whose} run {run_id[2:10]}"
            return Planned(calls=calls, amount=int(amount), summary=summary)
        case _, _Run(run_id=run_id):
            run = _run(chain, run_id)
            function, verb = ("refund", "take the rest of") if action == "order.refund" else (
                "requestClose", "ask to close")  # fmt: skip
            if action == "order.cancel" and run.buyer != account:
                raise Problem(403, "only the run's buyer may close it")
            call = chain.call_of("RunEscrow", function, bytes.fromhex(run_id[2:]))
            return Planned(calls=(call,), amount=0, summary=f"{verb} run {run_id[2:10]}")
    raise AssertionError(f"action {action} has no case")


def _claim(server: Server, chain: Gateway, given: _Claim) -> Planned:
    served_run = server.catalogue.find(given.run)
    run_id = served_run.spec()[1]
    with served_run.opened() as db:
        table = payouts(db, run_id, given.epoch)
    if given.index >= len(table.rows):
        raise Problem(404, f"the table of epoch {given.epoch} has {len(table.rows)} rows")
    row = table.rows[given.index]
    proof = [bytes.fromhex(one[2:]) for one in row.proof]
    paid = (given.index, row.account, int(row.amount), proof)
    call = chain.call_of("EpochSettlement", "claim", run_id, given.epoch, [paid])
    return Planned(
        calls=(call,), amount=0, summary=f"pay {_money(row.amount)} of epoch {given.epoch} to {row.account}"
    )


def _place(chain: Gateway, account: str, given: _Place) -> Planned:
    budget = int(given.budget)
    calls = _paid(
        chain, account, "RunEscrow", "openRun", budget,
        bytes.fromhex(given.spec_hash[2:]), budget, int(given.epoch_cap), given.epochs, given.deadline,
        chain.set_version(), int(given.lot), sorted(given.operators, key=lambda account: int(account, 16)),
    )  # fmt: skip
    summary = f"open run of spec {given.spec_hash[2:10]} with {_money(given.budget)} in escrow"
    return Planned(calls=calls, amount=budget, summary=summary)


def _paid(
    chain: Gateway, account: str, contract: str, function: str, amount: int, *arguments: Any
) -> tuple[Call, ...]:
    """A call that pulls `amount` tokens, preceded by an approval of exactly that amount if needed."""
    call = chain.call_of(contract, function, *arguments, gas=_GAS[function])
    if chain.token_balance(account) < amount:
        raise Problem(409, f"the account holds less than {token_text(amount)}")
    if chain.allowance(account, contract) >= amount:
        return (call,)
    spender = chain.deployment.address(contract)
    return chain.call_of("AssayToken", "approve", spender, amount), call


def _run(chain: Gateway, run_id: str) -> EscrowState:
    found = chain.run(bytes.fromhex(run_id[2:]))
    if found is None:
        raise Problem(404, "no run of this id was opened")
    return found


def _money(amount: str) -> str:
    return token_text(int(amount))
