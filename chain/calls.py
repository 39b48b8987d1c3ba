"""Calls: reads a transaction's call by the contracts' committed interfaces, for a person who is to sign it.

Room: chain (pure). Only what can be shown in full is read: a call whose bytes are more than its arguments is
refused, since whatever is not shown is signed all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError, EncodingError
from eth_utils.abi import collapse_if_tuple, function_abi_to_4byte_selector
from eth_utils.address import to_checksum_address

from assay.chain.addresses import CONTRACTS, Deployment
from assay.chain.rpc import artefact
from assay.chain.statements import Address
from assay.chain.text.times import time_text
from assay.chain.text.units import token_text
from assay.protocol.errors import ConfigError

# By the names that the contracts give their arguments.
_MONEY = {"amount", "value", "budget", "epochCap", "lot", "total"}
_MOMENTS = {"expiry", "until", "deadline"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a transaction calls, as text."""

    contract: str | None  # its Solidity name; None if no deployment says what is at the address
    function: str
    arguments: Mapping[str, str]  # by name, in order; of a structure by its path


def read_call(to: Address, data: bytes, deployment: Deployment | None) -> Call:
    """The call in a transaction's data.

    Args:
        to: The receiver.
        data: Selector and arguments.
        deployment: Names the receiver, and addresses among the arguments; without it any contract is taken.

    Raises:
        ConfigError: the receiver is none of the deployment's contracts, or has no such function, or the
            arguments are not exactly these bytes.
    """
    contracts = _at(to, deployment)
    entries = (entry for one in contracts for entry in _functions(one))
    entry = next((one for one in entries if _selector(one) == data[:4]), None)
    if entry is None:
        where = "any contract of a network" if deployment is None else f"{contracts[0]} at {to}"
        raise ConfigError(f"0x{data[:4].hex()} is no function of {where}")
    if entry["name"] == "permitAndCall":
        raise ConfigError("permitAndCall: a call within a call, which no file to sign holds: it is not shown")
    types = [collapse_if_tuple(one) for one in entry["inputs"]]
    try:
        values = decode(types, data[4:])
        is_whole = encode(types, values) == data[4:]
    except (DecodingError, EncodingError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{entry['name']}: damaged arguments ({type(error).__name__})") from None
    if not is_whole:
        raise ConfigError(
            f"{entry['name']}: the data hold more than the arguments, so not all of it can be shown"
        )
    names = {} if deployment is None else {deployment.address(one): one for one in CONTRACTS}
    return Call(
        contract=None if deployment is None else contracts[0],
        function=f"{entry['name']}({','.join(types)})",
        arguments=dict(_shown(entry["inputs"], values, "", names)),
    )


def _at(to: Address, deployment: Deployment | None) -> list[str]:
    if deployment is None:
        return list(CONTRACTS)
    found = [one for one in CONTRACTS if deployment.address(one) == to]
    if not found:
        raise ConfigError(f"{to} is no contract of this network")
    return found


def _functions(contract: str) -> Iterator[dict[str, Any]]:
    return (
        one
        for one in artefact(contract)["abi"]
        if one["type"] == "function" and one["stateMutability"] not in ("view", "pure")
    )


def _selector(entry: dict[str, Any]) -> bytes:
    return bytes(function_abi_to_4byte_selector(entry))  # type: ignore[arg-type]


def _shown(
    inputs: Sequence[dict[str, Any]], values: Sequence[Any], path: str, names: Mapping[Address, str]
) -> Iterator[tuple[str, str]]:
    """Names and texts of values, structures and their lists part by part."""
    for entry, value in zip(inputs, values, strict=True):
        name = f"{path}{entry['name']}"
        if entry["type"] == "tuple":
            yield from _shown(entry["components"], value, f"{name}.", names)
        elif entry["type"] == "tuple[]":
            yield name, f"{len(value)} of them"
            for index, one in enumerate(value):
                yield from _shown(entry["components"], one, f"{name}[{index}].", names)
        else:
            yield name, _text(entry["name"], value, names)


def _text(name: str, value: Any, names: Mapping[Address, str]) -> str:
    match value:
        case bytes():
            return f"0x{value.hex()}"
        case tuple() | list():
            return f"[{', '.join(_text(name, one, names) for one in value)}]"
        case bool():
            return str(value).lower()
        case int() if name in _MONEY:
            return f"{value} ({token_text(value)})"
        case int() if name in _MOMENTS:
            return f"{value} ({time_text(value)})"
        case str() if value.startswith("0x"):  # no function of ours takes text
            address = Address(to_checksum_address(value))
            return f"{address} ({names[address]})" if address in names else address
    return ascii(value) if isinstance(value, str) else str(value)
