"""Explorers: where a run may be fetched, by the records that its members announced in the directory.

Room: participant (edge: the chain, DNS). An address is a stranger's word and nothing more: what comes from
there is checked against the run's id. It must not have a reader ask something in the reader's own network: an
address that is not public is left out, unless the network itself is on this machine.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from assay.chain.commit_statement import evm_address
from assay.network.public import is_public
from assay.participant.directory.find import record_in
from assay.participant.files.record import Record, Role, SignedRecord, takes_place_of
from assay.participant.files.run_file import RunFile
from assay.protocol.errors import MalformedMessage, PeerFault

if TYPE_CHECKING:
    from assay.chain.reader import ChainReader

HOLDERS_MAX = 16  # that are asked, the buyer and the verifiers first
_FIRST = (Role.BUYER, Role.LEDGER, Role.VERIFIER, Role.WATCHTOWER, Role.NODE)


def newest_records(chain: ChainReader, run: RunFile, now_s: int) -> list[Record]:
    """The record of each member of a run, by role and peer: the announced one where it is newer.

    Raises:
        Unavailable: the endpoint is gone.
    """
    from assay.chain.reader import NotShown  # web3 takes a second to import

    given = sorted(run.content.records, key=lambda one: (one.record.role, one.record.peer))
    blocks = chain.record_blocks([(evm_address(one.record.account), one.record.peer) for one in given])
    found = list[SignedRecord]()
    for one, block in zip(given, blocks, strict=True):
        newer = one
        if block:
            account = one.record.account
            try:
                newer = record_in(
                    chain.announced_record(evm_address(account), one.record.peer, block), account, now_s
                )
            except (MalformedMessage, PeerFault, NotShown):
                newer = one
        found.append(newer if takes_place_of(one, newer) else one)
    return [one.record for one in found]


def holders(
    records: Sequence[Record], *, is_local: bool, resolve: Callable[[str], Sequence[str]] | None = None
) -> list[str]:
    """Addresses of explorers at which a run may be fetched, `HOLDERS_MAX` at most.

    Args:
        records: Of the run's members.
        is_local: Whether the network is on this machine: then an address may be too.
        resolve: IP addresses of a host; by default as this machine resolves it.
    """
    named = dict.fromkeys(
        one.explorer for one in sorted(records, key=lambda one: _FIRST.index(one.role)) if one.explorer
    )
    found = [url for url in named if is_local or _is_public(url, resolve or addresses_of)]
    return found[:HOLDERS_MAX]


def is_local(endpoints: Sequence[str]) -> bool:
    """Whether a network is on this machine alone, by the endpoints that its invitation names."""
    hosts = [urlsplit(url).hostname or "" for url in endpoints]
    return bool(hosts) and all(host in ("localhost", "127.0.0.1", "::1") for host in hosts)


def addresses_of(host: str) -> list[str]:
    """The IP addresses of a host; none where it has none."""
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def _is_public(url: str, resolve: Callable[[str], Sequence[str]]) -> bool:
    found = resolve(urlsplit(url).hostname or "")
    return bool(found) and all(is_public(one) for one in found)
