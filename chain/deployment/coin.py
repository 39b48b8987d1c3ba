"""Coin: what a deployment demands of an ERC-20 that exists already, and where burnt tokens go.

Room: chain (edge).
"""

from __future__ import annotations

from typing import Any

from eth_utils.address import is_hex_address, to_checksum_address

from assay.chain.rpc import Rpc, artefact
from assay.chain.statements import Address
from assay.chain.text.units import DECIMALS
from assay.protocol.errors import AssayError, ConfigError

SINK = Address("0x000000000000000000000000000000000000dEaD")  # nobody has its key, and coins do not refuse it


def address_given(text: str) -> Address:
    """An address from a file.

    Raises:
        ConfigError: it is none, or its checksum is wrong.
    """
    is_plain = text[2:].lower() == text[2:]
    if not is_hex_address(text) or not (is_plain or to_checksum_address(text) == text):
        raise ConfigError(f"{text[:60]!a} is no address, expected 0x and 40 hexadecimal digits")
    return Address(to_checksum_address(text))


def check_coin(rpc: Rpc, address: Address) -> None:
    """Do nothing if the contracts can hold and pay the coin at this address, and the commands print it.

    A fee on transfers cannot be seen here: the contracts refuse the first deposit that arrives short.

    Raises:
        ConfigError: there is no contract, no ERC-20, or one of other decimals.
        Unavailable: the endpoint is gone.
    """
    where: Any = address
    if not rpc.read("coin", lambda: bytes(rpc.web3.eth.get_code(where))):
        raise ConfigError(f"[token] address {address}: there is no contract")
    coin = rpc.web3.eth.contract(address=where, abi=artefact("AssayToken")["abi"]).functions
    try:
        decimals = rpc.read("coin", lambda: int(coin.decimals().call()))
        rpc.read("coin", lambda: int(coin.balanceOf(rpc.address).call()))
        rpc.read("coin", lambda: int(coin.allowance(rpc.address, address).call()))
    except AssayError as error:
        raise ConfigError(f"[token] address {address}: no ERC-20 ({error})") from None
    if decimals != DECIMALS:
        raise ConfigError(
            f"[token] address {address}: a coin of {decimals} decimals, {DECIMALS} expected: "
            "all amounts in files and reports have that many"
        )
