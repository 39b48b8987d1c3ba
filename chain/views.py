"""Views: calls of the contracts' view functions and what these return, by the committed interfaces.

Room: chain (pure). web3 would check a contract's interface and the arguments anew at each call, in twice the
time of all else that a call takes.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from typing import Any

from eth_abi.abi import decode, encode
from eth_utils.abi import collapse_if_tuple, function_abi_to_4byte_selector
from eth_utils.address import to_checksum_address

from assay.chain.rpc import artefact


def view_call(contract: str, function: str, arguments: Sequence[Any]) -> bytes:
    """Selector and arguments of a view function.

    Raises:
        EncodingError: the arguments are not of its types.
        ValueError: they are more or fewer, or bytes of a fixed size have another.
    """
    selector, types, _ = _shape(contract, function)
    for kind, value in zip(types, arguments, strict=True):
        if kind == "bytes32" and len(value) != 32:  # which eth_abi would fill up
            raise ValueError(f"{contract}.{function}: {len(value)} bytes as bytes32")
    return selector + encode(types, arguments)


def view_values(contract: str, function: str, returned: bytes) -> Any:
    """What a view function returned: one value, or a named tuple of several.

    Structures are named tuples with the interface's names, too; addresses have their checksum.

    Raises:
        DecodingError: the bytes are no values of its types.
    """
    _, _, outputs = _shape(contract, function)
    values = decode([collapse_if_tuple(one) for one in outputs], returned)
    found = _named({"type": "tuple", "components": outputs}, values)
    return found[0] if len(outputs) == 1 else found


@cache
def _shape(contract: str, function: str) -> tuple[bytes, list[str], list[dict[str, Any]]]:
    """A function's selector, the types of its arguments, and what it returns."""
    (entry,) = (
        one for one in artefact(contract)["abi"] if one["type"] == "function" and one["name"] == function
    )
    types = [collapse_if_tuple(one) for one in entry["inputs"]]
    return bytes(function_abi_to_4byte_selector(entry)), types, entry["outputs"]


def _named(kind: dict[str, Any], value: Any) -> Any:
    name = kind["type"]
    if name.endswith("]"):
        one = {**kind, "type": name[: name.rindex("[")]}
        return [_named(one, each) for each in value]
    if name == "tuple":
        fields = kind["components"]
        return _structure(tuple(one["name"] for one in fields))(*map(_named, fields, value))
    return to_checksum_address(value) if name == "address" else value


@cache
def _structure(fields: tuple[str, ...]) -> Any:
    return namedtuple("structure", fields, rename=True)  # some have no name
