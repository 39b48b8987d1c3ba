"""Planning: an action as contract calls, with the token units that they take from the account.

Room: api (edge: reads the chain and the books). Amounts arrive as text in token units; an approval is for
exactly the next call's amount. docs/api.md says which functions are no actions, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from eth_utils.abi import function_abi_to_4byte_selector
from pydantic import ValidationError

from assay.api.actions.action import Action, Owner
from assay.api.actions.court import COURT
from assay.api.actions.orders import ORDERS
from assay.api.actions.settlement import SETTLEMENT
from assay.api.actions.stake import STAKE
from assay.api.http.problems import Problem
from assay.api.moves import Call
from assay.api.schemas import ActionAnswer, ActionsAnswer
from assay.api.server import Server
from assay.chain.rpc import artefact
from assay.chain.text.units import token_text

ACTIONS: Mapping[str, Action] = {**STAKE, **ORDERS, **SETTLEMENT, **COURT}
SEPARATOR = "; "  # of actions, in `actions_text`


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An action as contract calls."""

    calls: tuple[Call, ...]
    amount: int  # token units that leave the account's wallet
    summary: str  # text that the account's owner reads before signing


def plan(server: Server, account: str, action: str, parameters: Mapping[str, Any]) -> Planned:
    """The contract calls of an action.

    Raises:
        Problem: unknown action, parameters not as documented, or not this account's to take.
    """
    kind = ACTIONS.get(action)
    if kind is None:
        raise Problem(422, f"no action {action[:32]!r}; expected one of {', '.join(ACTIONS)}")
    try:
        given = kind.asked.model_validate(dict(parameters))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"])
        raise Problem(422, f"parameters.{where}: {first['msg'][:200]}") from None
    owner = Owner(account, server.chain(), server)
    made = kind.plan(owner, given)
    call = owner.chain.call_of(kind.contract, kind.function, *made.arguments, gas=kind.gas)
    return Planned(
        calls=(*_approval(owner, kind.contract, made.pays), call), amount=made.pays, summary=made.summary
    )


def _approval(owner: Owner, contract: str, amount: int) -> tuple[Call, ...]:
    """The approval of exactly this amount before a call that takes it, if one is needed."""
    chain = owner.chain
    if chain.token_balance(owner.account) < amount:
        raise Problem(409, f"the account holds less than {token_text(amount)}")
    if chain.allowance(owner.account, contract) >= amount:
        return ()
    return (chain.call_of("AssayToken", "approve", chain.deployment.address(contract), amount),)


@cache
def actions_answer() -> ActionsAnswer:
    """Every action with its function and its parameters, for programs that make forms of them."""

    def one(name: str, kind: Action) -> ActionAnswer:
        abi = artefact(kind.contract)["abi"]
        (entry,) = (part for part in abi if part["type"] == "function" and part["name"] == kind.function)
        return ActionAnswer.of(
            kind,
            name=name,
            selector=function_abi_to_4byte_selector(entry).hex(),
            inputs=entry["inputs"],
            parameters=kind.asked.model_json_schema(),
        )

    return ActionsAnswer(actions=[one(name, kind) for name, kind in ACTIONS.items()])


def actions_text() -> str:
    """Every action with its parameters, those that may be left out with a question mark."""

    def parameters(kind: Action) -> str:
        return ", ".join(
            name + "?" * (not one.is_required()) for name, one in kind.asked.model_fields.items()
        )

    return SEPARATOR.join(f"{name} {{{parameters(kind)}}}" for name, kind in ACTIONS.items())
