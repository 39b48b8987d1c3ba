"""Providers: reads the chain from several RPC endpoints and accepts only what all of them agree on.

Room: chain (edge: HTTP endpoints). An endpoint's operator can omit a log or serve another
chain, and the books would follow. So heads, the finalised block and logs are read from every endpoint
and compared by block hash: while they differ, nothing is booked or settled.

    urls --head, finalised, hash of a block, events--> the common answer, or what differs and where
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from web3.exceptions import BlockNotFound

from assay.chain.addresses import Deployment
from assay.chain.events import ChainEvent
from assay.chain.logs import read_events
from assay.chain.rpc import Rpc, whole
from assay.protocol.errors import Unavailable

T = TypeVar("T")
log = logging.getLogger(__name__)


class ProvidersDisagree(Unavailable):
    """Two endpoints disagree about the chain; which one is wrong is unknown."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest block that every endpoint has."""

    number: int
    hash: bytes


class Providers:
    """Chain data on which all endpoints agree. Blocking; one thread at a time."""

    def __init__(self, urls: Sequence[str], deployment: Deployment, *, one_suffices: bool = False) -> None:
        """Sends no request yet.

        Args:
            urls: HTTP JSON-RPC endpoints; a single one is trusted.
            deployment: The deployment whose events are read.
            one_suffices: Whether to continue with the others while some are unavailable.
        """
        self._rpcs = [Rpc(url) for url in dict.fromkeys(urls)]
        self._deployment, self._one_suffices = deployment, one_suffices

    def check(self) -> None:
        """Do nothing if all endpoints are on one chain.

        Raises:
            ProvidersDisagree, Unavailable: see `head`.
        """
        if len(self._rpcs) > 1:
            self.head()

    def head(self) -> Head:
        """The newest block that all have; checks also that they agree on the newest finalised block.

        Raises:
            ProvidersDisagree: they have different blocks of one number.
            Unavailable: one of them does not answer, and all are needed.
        """
        if len(self._rpcs) > 1:
            final = min(number for _, number in self._ask("finalised block", _finalised))
            self._hash("finalised block", final)
        number = min(number for _, number in self._ask("newest block", _newest))
        found = self._hash("block", number)
        if found is None:
            raise Unavailable(f"block {number} is gone: the chain was reorganised during the query")
        return Head(number, found)

    def block_hash(self, number: int) -> bytes | None:
        """The hash of a block, by its number; None if there is none.

        Raises:
            ProvidersDisagree, Unavailable: see `head`.
        """
        return self._hash("block", number)

    def events(self, from_block: int, to_block: int) -> list[ChainEvent]:
        """All events of the deployment in these blocks, both included, in chain order.

        Raises:
            ProvidersDisagree: one has an event that another lacks or has with other contents.
            Unavailable: one of them does not answer, and all are needed.
        """
        answers = self._ask("events", lambda rpc: read_events(rpc, self._deployment, from_block, to_block))
        (first, expected), *others = answers
        for url, answer in others:
            for event, other in zip([*expected, None], [*answer, None], strict=False):
                if event != other:
                    raise ProvidersDisagree(_difference(first, event, url, other))
        return expected

    def _hash(self, what: str, number: int) -> bytes | None:
        (first, expected), *others = self._ask(what, lambda rpc: _hash_of(rpc, number))
        for url, answer in others:
            if answer != expected:
                raise ProvidersDisagree(
                    f"{what} {number}: {_short(expected)} at {first}, {_short(answer)} at {url}; nothing is "
                    "booked or settled until they agree"
                )
        return expected

    def _ask(self, what: str, question: Callable[[Rpc], T]) -> list[tuple[str, T]]:
        answers: list[tuple[str, T]] = []
        for rpc in self._rpcs:
            try:
                answers.append((url_text(rpc.url), question(rpc)))
            except Unavailable as error:
                if len(self._rpcs) == 1:
                    raise
                log.warning("endpoint unavailable", extra={"endpoint": url_text(rpc.url), "query": what})
                if not self._one_suffices:
                    raise Unavailable(
                        f"{what}: {url_text(rpc.url)} is unreachable, one_rpc_suffices is not set ({error})"
                    ) from None
        if not answers:
            raise Unavailable(f"{what}: all {len(self._rpcs)} endpoints are unreachable")
        return answers


def url_text(url: str) -> str:
    """An endpoint's URL for logs, without path and user name, which may hold API keys."""
    found = urlsplit(url)
    return f"{found.scheme}://{found.hostname}" + (f":{found.port}" if found.port else "")


def _newest(rpc: Rpc) -> int:
    return rpc.read("newest block", lambda: whole(rpc.web3.eth.block_number))


def _finalised(rpc: Rpc) -> int:
    return rpc.read("finalised block", lambda: whole(rpc.web3.eth.get_block("finalized")["number"]))


def _hash_of(rpc: Rpc, number: int) -> bytes | None:
    def ask() -> bytes | None:
        try:
            return bytes(rpc.web3.eth.get_block(number)["hash"])
        except BlockNotFound:
            return None

    return rpc.read("block", ask)


def _difference(first: str, event: Any, second: str, other: Any) -> str:
    """Names the differing event, its block and the endpoint that has it."""
    both = [one for one in (event, other) if one is not None]
    number, index = min((one.block_number, one.log_index) for one in both)

    def at(url: str, found: ChainEvent | None) -> str:
        if found is None or (found.block_number, found.log_index) != (number, index):
            return f"none at {url}"
        return f"{type(found).__name__} in block {_short(found.block_hash)} at {url}"

    return (
        f"log {index} of block {number}: {at(first, event)}, {at(second, other)}; nothing is booked or "
        "settled until they agree"
    )


def _short(found: bytes | None) -> str:
    return "none" if found is None else found.hex()
