"""Views: the same bytes as web3 sends, and the same values as it reads."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from eth_abi import abi
from eth_abi.exceptions import DecodingError, EncodingError
from eth_utils.abi import collapse_if_tuple
from eth_utils.address import to_checksum_address
from web3 import Web3
from web3.providers.base import BaseProvider

from assay.chain.addresses import CONTRACTS
from assay.chain.rpc import artefact
from assay.chain.views import view_call, view_values

WHERE = to_checksum_address("0x" + "ab" * 20)
VIEWS = [
    pytest.param(contract, entry, id=f"{contract}.{entry['name']}")
    for contract in CONTRACTS
    for entry in artefact(contract)["abi"]
    if entry["type"] == "function" and entry["stateMutability"] in ("view", "pure")
]


class Recording(BaseProvider):
    """Answers every call with the same bytes and keeps what was asked."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer, self.data = answer, ""

    def make_request(self, method: Any, params: Any) -> Any:
        assert method == "eth_call"
        self.data = params[0]["data"]
        return {"jsonrpc": "2.0", "id": 1, "result": f"0x{self.answer.hex()}"}


def a_value(kind: dict[str, Any], dice: Random) -> Any:
    name = kind["type"]
    if name.endswith("]"):
        one, size = name[:-1].rsplit("[", 1)
        return [a_value({**kind, "type": one}, dice) for _ in range(int(size or dice.randrange(1, 4)))]
    if name == "tuple":
        return tuple(a_value(one, dice) for one in kind["components"])
    if name == "address":
        return to_checksum_address(dice.randbytes(20))
    if name == "bool":
        return dice.random() < 0.5
    if name == "string":
        return "words"
    if name.startswith("uint"):
        return dice.getrandbits(int(name[4:]))
    return dice.randbytes(int(name[5:] or 70))


@pytest.mark.parametrize(("contract", "entry"), VIEWS)
def test_a_view_is_called_and_read_as_by_web3(contract: str, entry: dict[str, Any]):
    dice = Random(entry["name"])
    given = [a_value(one, dice) for one in entry["inputs"]]
    told = [a_value(one, dice) for one in entry["outputs"]]
    answer = abi.encode([collapse_if_tuple(one) for one in entry["outputs"]], told)
    provider = Recording(answer)
    made: Any = Web3(provider, middleware=[]).eth.contract(address=WHERE, abi=[entry], decode_tuples=True)

    found = made.functions[entry["name"]](*given).call()

    ours = view_values(contract, entry["name"], answer)
    assert f"0x{view_call(contract, entry['name'], given).hex()}" == provider.data
    assert ours == found
    assert getattr(ours, "_fields", None) == getattr(found, "_fields", None)


def test_arguments_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="31 bytes as bytes32"):
        view_call("RunEscrow", "getRun", [bytes(31)])
    with pytest.raises(ValueError, match="longer"):
        view_call("RunEscrow", "getRun", [bytes(32), 1])
    with pytest.raises(EncodingError):
        view_call("AssayToken", "balanceOf", [b"nobody"])


@pytest.mark.parametrize("returned", [b"", bytes(31), b"\xff" * 32])
def test_bytes_that_are_no_values_are_refused(returned: bytes):
    with pytest.raises(DecodingError):
        view_values("AssayToken", "decimals", returned)
