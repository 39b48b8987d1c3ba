"""Refresh: finds peers that moved, by the records that they announce in the directory, and dials them there.

Room: participant (edge: the chain and the folder of records, in threads). A record is taken under the rules
of one that was passed by hand, and kept where those are; without the chain all are dialled where they were.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import trio

from assay.chain.commit_statement import evm_address
from assay.network.host import Host, PeerAddress
from assay.participant.config import Config, Participant, read_run
from assay.participant.directory.find import record_in
from assay.participant.files.record import SignedRecord, learn_records, read_records, takes_place_of
from assay.participant.wallet.claims import open_chain
from assay.protocol.errors import AssayError, MalformedMessage, PeerFault
from assay.protocol.types import PeerId

if TYPE_CHECKING:
    from assay.chain.reader import ChainReader

A = TypeVar("A")
R = TypeVar("R")
log = logging.getLogger(__name__)
REFRESH_S = 600.0  # one call of the chain, and one more for each peer that announced since


async def refresh_records(me: Participant, host: Host) -> None:
    """Have the host dial each peer where its newest record says; ends only by cancellation."""
    seen: dict[PeerId, int] = {}
    chain: ChainReader | None = None
    reason = ""
    while True:
        try:
            if chain is None:
                chain = await _in_thread(open_chain, me)
            for signed in await _in_thread(lambda at: list(moved(me.config, at, me.me, seen)), chain):
                record = signed.record
                host.move(PeerAddress(peer=record.peer, host=record.host, port=record.port))
                log.info(
                    "peer moved",
                    extra={"peer": record.peer.hex()[:8], "host": record.host, "port": record.port},
                )
            reason = ""
        except AssayError as error:
            if reason != str(error):  # once, not every time
                reason = str(error)
                log.warning("directory not read", extra={"reason": reason})
        await trio.sleep(REFRESH_S)


async def _in_thread(work: Callable[[A], R], given: A) -> R:
    """In a thread that a process which ends does not wait for: the endpoint may be slow."""
    return await trio.to_thread.run_sync(
        work,
        given,
        abandon_on_cancel=True,  # type: ignore[call-arg]  # the stubs are of an older trio
    )


def moved(config: Config, chain: ChainReader, me: PeerId, seen: dict[PeerId, int]) -> Iterator[SignedRecord]:
    """The records of a run's peers that the directory has and that are newer than what is known here.

    Args:
        config: Of a participant; the folder of records takes what is found.
        chain: Of its network.
        me: Its own peer id, which is not looked for.
        seen: By peer, the block of the last announcement that was read; brought up to date.

    Raises:
        ConfigError: the run file or a known record is damaged.
        Unavailable: the endpoint is gone.
    """
    from assay.chain.reader import NotShown  # web3 takes a second to import

    now_s = int(time.time())
    given = [one for one in read_run(config)[0].content.records if one.record.peer != me]
    blocks = chain.record_blocks([(evm_address(one.record.account), one.record.peer) for one in given])
    news = [
        (one, block)
        for one, block in zip(given, blocks, strict=True)
        if block not in (0, seen.get(one.record.peer))
    ]
    if not news:
        return
    known = read_records(config.records, now_s)
    for one, block in news:
        peer, account = one.record.peer, one.record.account
        try:
            body = chain.announced_record(evm_address(account), peer, block)
            seen[peer] = block
            found = record_in(body, account, now_s)
        except (MalformedMessage, PeerFault, NotShown) as fault:  # one peer's, and no reason to miss others
            log.info("record not taken", extra={"peer": peer.hex()[:8], "reason": str(fault)})
            continue
        last = known.get(peer, one)
        if takes_place_of(last if takes_place_of(one, last) else one, found):
            learn_records(config.records, [found], now_s)
            yield found
