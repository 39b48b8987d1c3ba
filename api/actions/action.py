"""Action: what an account may have planned, as one function of one contract, and what its owner reads first.

Room: api (edge: plans read the chain and the books). Whoever sends a link chooses the parameters, so a
summary says what is paid, to whom, and what can be lost. What the chain would refuse now is refused when
the calls are rehearsed (`Gateway.unsigned`); a plan itself checks what the summary needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from eth_utils.address import to_checksum_address
from pydantic import Field

from assay.api.gateway import Gateway
from assay.api.http.problems import Problem
from assay.api.schemas import Asked, HashGiven
from assay.api.server import Server
from assay.chain.statements import OPERATOR, VERIFIER, Address

ROLES = {"operator": OPERATOR, "verifier": VERIFIER}
RoleGiven = Literal["operator", "verifier"]
NumberGiven = Annotated[int, Field(ge=0, lt=2**63)]
TimeGiven = Annotated[int, Field(ge=0, lt=2**63, json_schema_extra={"format": "unix-time"})]


class Nothing(Asked):
    """No parameters."""


class OfRun(Asked):
    run_id: HashGiven


class OfEpoch(OfRun):
    epoch: NumberGiven


@dataclass(frozen=True, slots=True)
class Owner:
    """The account that is to sign, and where plans for it look things up."""

    account: str
    chain: Gateway
    server: Server

    def named(self, account: str) -> str:
        """An account, as its owner or a stranger reads it, with the address that its money is paid to."""
        payee = self.chain.payee_of(account)
        whose = f"this account ({account})" if account == self.account else f"another account ({account})"
        return whose if payee == account else f"{whose}, at the address {payee} that it named"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The arguments of an action's function."""

    arguments: tuple[Any, ...]
    summary: str  # text that the account's owner reads before signing
    pays: int = 0  # token units that the contract takes from the account


@dataclass(frozen=True, slots=True)
class Action:
    """One function of a contract, and how it is planned from an action's parameters.

    does: In words, for who chooses among actions. takes: Argument that is the sum which the function takes
    from the account, or a word for a sum that is no argument; empty: it takes none.
    """

    contract: str
    function: str
    asked: type[Asked]
    plan: Callable[[Owner, Any], Plan]
    does: str = field(kw_only=True)
    takes: str = field(default="", kw_only=True)
    gas: int = 300_000  # of a call that pays, where the endpoint cannot rehearse it behind its approval


def raw(text: str) -> bytes:
    """The bytes of a hash that was given."""
    return bytes.fromhex(text[2:])


def short(text: str) -> str:
    """A hash that was given, as summaries name it."""
    return text[2:10]


def checked_address(text: str) -> Address:
    """An address that was given, with its checksum.

    Raises:
        Problem: it has a checksum, and that of another address: a typing error.
    """
    found = Address(to_checksum_address(text))
    if text[2:] not in (text[2:].lower(), text[2:].upper()) and text != found:
        raise Problem(422, f"the address {text} has a typing error: its checksum is wrong")
    return found
