"""Logs: reads the contracts' logs from an endpoint as typed events, in chain order.

Room: chain (edge). Event signatures and fields come from the
artefacts and chain/events.py; nothing is listed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, TypeVar

import requests
from eth_abi.abi import decode
from eth_utils.abi import collapse_if_tuple, event_abi_to_log_topic
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from web3.exceptions import Web3RPCError

from assay.chain.addresses import CONTRACTS, Deployment
from assay.chain.events import (
    EVENTS,
    OTHER_EVENTS,
    BondLocked,
    ChainEvent,
    Challenged,
    Gifted,
    ResultProposed,
    RunOpened,
    RunToppedUp,
    Staked,
)
from assay.chain.rpc import Rpc, artefact, whole
from assay.chain.state import field_names, snake
from assay.chain.statements import Address, EpochResult
from assay.protocol.errors import AssayError

E = TypeVar("E", bound=ChainEvent)
_TRANSFER = f"0x{keccak(text='Transfer(address,address,uint256)').hex()}"
BLOCKS_PER_QUESTION = 2_000  # public endpoints refuse much larger ranges
TIME_S_MAX = 253_402_300_799  # the last second of the year 9999, which dates can hold


def read_events(rpc: Rpc, deployment: Deployment, from_block: int, to_block: int) -> list[ChainEvent]:
    """All events of the deployment in these blocks, both included, by (block, log index).

    Raises:
        Unavailable: the endpoint gave no usable answer.
    """
    addresses = [deployment.address(contract) for contract in sorted(set(map(contract_of, EVENTS)))]
    asked = _query(rpc, {"address": addresses}, from_block, to_block)
    found = [event for event in asked if type(event) in EVENTS]
    found += _gifts(rpc, deployment, found, from_block, to_block)
    return sorted(found, key=lambda event: (event.block_number, event.log_index))


def _gifts(
    rpc: Rpc, deployment: Deployment, events: Iterable[ChainEvent], from_block: int, to_block: int
) -> list[ChainEvent]:
    """What transfers to the contracts that hold money exceed what the events account for, by transaction."""
    holders = {deployment.address(name): name for name in ("RunEscrow", "StakeVault", "EpochSettlement")}
    question = {
        "address": deployment.token,
        "topics": [_TRANSFER, None, [f"0x{holder[2:].lower():0>64}" for holder in sorted(holders)]],
    }
    left: dict[tuple[bytes, Address], int] = {}
    last: dict[tuple[bytes, Address], Any] = {}
    for log in _logs(rpc, question, from_block, to_block):
        place = bytes(log["transactionHash"]), Address(to_checksum_address(bytes(log["topics"][2])[12:]))
        left[place] = left.get(place, 0) + int.from_bytes(bytes(log["data"]), "big")
        last[place] = log
    for event in events:
        expected = _paid_in(deployment, event)
        if expected is not None:
            place = event.tx_hash, expected[0]
            left[place] = left.get(place, 0) - expected[1]
    return [
        Gifted(
            block_number=last[place]["blockNumber"],
            block_hash=bytes(last[place]["blockHash"]),
            block_time=last[place]["blockTimestamp"],
            tx_hash=place[0],
            log_index=last[place]["logIndex"],
            contract=holders[place[1]],
            amount=amount,
        )
        for place, amount in left.items()
        if amount > 0 and place in last
    ]


def _paid_in(deployment: Deployment, event: ChainEvent) -> tuple[Address, int] | None:
    """The contract that this event says tokens reached, and how many."""
    match event:
        case RunOpened():
            return deployment.run_escrow, event.budget
        case RunToppedUp():
            return deployment.run_escrow, event.amount
        case Staked() | BondLocked():
            return deployment.stake_vault, event.amount
        case ResultProposed() | Challenged():
            return deployment.epoch_settlement, event.bond
        case _:
            return None


def read_events_of(
    rpc: Rpc,
    deployment: Deployment,
    kind: type[E],
    indexed: tuple[str | list[str] | None, ...],
    from_block: int,
    to_block: int,
) -> list[E]:
    """The events of one kind with these indexed fields, as hexadecimal words, in chain order.

    Of a list of words any one, of None anything will do.

    Raises:
        Unavailable: the endpoint gave no usable answer.
    """
    (topic,) = (topic for topic, (known, _) in _by_topic().items() if known is kind)
    question = {
        "address": deployment.address(contract_of(kind)),
        "topics": [f"0x{topic.hex()}", *indexed],
    }
    return [event for event in _query(rpc, question, from_block, to_block) if isinstance(event, kind)]


def _query(rpc: Rpc, question: dict[str, Any], from_block: int, to_block: int) -> list[ChainEvent]:
    logs = _logs(rpc, question, from_block, to_block)
    found = rpc.read("events", lambda: [event for log in logs if (event := event_of(log)) is not None])
    return sorted(found, key=lambda event: (event.block_number, event.log_index))


def _logs(rpc: Rpc, question: dict[str, Any], from_block: int, to_block: int) -> list[Any]:
    """The logs that answer a question, each with the time of its block.

    Endpoints refuse answers of more than some 10,000 logs, which a stranger can have a few blocks hold. What
    is refused is asked again of half the blocks; more are asked of again with every answer.
    """
    found: list[Any] = []
    start, count = from_block, BLOCKS_PER_QUESTION
    while start <= to_block:
        end = min(start + count - 1, to_block)
        part: Any = {**question, "fromBlock": start, "toBlock": end}
        try:
            found += rpc.read("events", lambda part=part: list(rpc.web3.eth.get_logs(part)))  # type: ignore[misc]
        except AssayError as error:
            if start == end or not _is_refused(error.__cause__):
                raise
            count = (end - start + 1) // 2
        else:
            start, count = end + 1, min(2 * count, BLOCKS_PER_QUESTION)
    times: dict[bytes, int] = {}
    return rpc.read(
        "times of events",
        lambda: [
            {
                **log,
                "blockNumber": whole(log["blockNumber"]),
                "logIndex": whole(log["logIndex"]),
                "blockTimestamp": _time(rpc, log, times),
            }
            for log in found
        ],
    )


def _is_refused(cause: BaseException | None) -> bool:
    """Whether an endpoint answered that it will not answer a question, by JSON-RPC or by HTTP."""
    if isinstance(cause, requests.HTTPError):
        return cause.response.status_code in (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return isinstance(cause, Web3RPCError)


def _time(rpc: Rpc, log: Mapping[str, Any], times: dict[bytes, int]) -> int:
    """The time of a log's block in Unix seconds; endpoints that do not send it are asked for the block."""
    block = log["blockHash"]
    if block not in times:
        sent = log.get("blockTimestamp")
        time_s = rpc.web3.eth.get_block(block)["timestamp"] if sent is None else int(sent, 16)
        if not 0 < time_s <= TIME_S_MAX:
            raise ValueError(f"block {block.hex()} of {time_s} s")
        times[block] = time_s
    return times[block]


def event_of(log: Any) -> ChainEvent | None:
    """One log as an event; None for a log that nobody needs, such as Released or Reserved."""
    known = _by_topic().get(bytes(log["topics"][0]))
    if known is None:
        return None
    kind, inputs = known
    indexed = iter(bytes(topic) for topic in log["topics"][1:])
    plain = iter(decode([collapse_if_tuple(one) for one in inputs if not one["indexed"]], bytes(log["data"])))
    fields = {
        snake(one["name"]): _value(one["type"], decode([one["type"]], next(indexed))[0])
        if one["indexed"]
        else _value(one["type"], next(plain))
        for one in inputs
    }
    return kind(
        block_number=log["blockNumber"],
        block_hash=bytes(log["blockHash"]),
        block_time=log["blockTimestamp"],
        tx_hash=bytes(log["transactionHash"]),
        log_index=log["logIndex"],
        **fields,
    )


def _value(solidity: str, value: Any) -> Any:
    match solidity:
        case "address":
            return to_checksum_address(value)
        case "tuple":  # the only struct in an event
            return EpochResult(**dict(zip(field_names(EpochResult), value, strict=True)))
        case _:
            return value


@cache
def _by_topic() -> dict[bytes, tuple[type[ChainEvent], list[dict[str, Any]]]]:
    found = {}
    for kind in (*EVENTS, *OTHER_EVENTS):
        entry = _declared(contract_of(kind))[kind.__name__]
        found[bytes(event_abi_to_log_topic(entry))] = (kind, entry["inputs"])
    return found


def contract_of(kind: type[ChainEvent]) -> str:
    """The contract that declares an event, by its Solidity name."""
    (found,) = (contract for contract in CONTRACTS if kind.__name__ in _declared(contract))
    return found


@cache
def _declared(contract: str) -> dict[str, Any]:
    return {entry["name"]: entry for entry in artefact(contract)["abi"] if entry["type"] == "event"}
