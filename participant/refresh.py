"""Refresh: finds peers that moved, by the records that they announce in the directory or that other members
have, and dials them there.

Room: participant (edge: the chain and the folder of records, in threads). A record is taken under the rules
of one that was passed by hand, and one from the directory is kept where those are. What only members tell is
forgotten with the process, because the keys of a member may be in several runs; and it must name the hot key
that is known, since the account has not confirmed another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

import trio

from assay.chain.commit_statement import evm_address
from assay.network.host import Host, PeerAddress
from assay.participant.config import Participant
from assay.participant.directory.find import record_in
from assay.participant.files.record import (
    AHEAD_S_MAX,
    OWN_RECORD,
    SignedRecord,
    check_record,
    learn_records,
    read_record,
    read_records,
    takes_place_of,
)
from assay.participant.wallet.claims import open_chain
from assay.protocol.encoding.codec import Max, decode, encode
from assay.protocol.errors import AssayError, MalformedMessage, PeerFault
from assay.protocol.types import PeerId

if TYPE_CHECKING:
    from assay.chain.reader import ChainReader

A = TypeVar("A")
R = TypeVar("R")
log = logging.getLogger(__name__)
REFRESH_S = 600.0  # one call of the chain, and one more for each peer that announced since
LOOK_S = 30.0  # between looks for members that connected since
ASK = "records"  # the request by which members ask each other
ANSWER_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewerRecords:
    """The answer to `records`: of a run's members, the records that are newer than its file's."""

    TAG: ClassVar[bytes] = b"assay/newer-records/1"
    records: Annotated[tuple[SignedRecord, ...], Max(256)]


class Records:
    """The newest record of each member of a run that its file names, as this process knows them."""

    def __init__(
        self, given: Iterable[SignedRecord], folder: Path, own: SignedRecord | None, me: PeerId
    ) -> None:
        """Begin with what is in files.

        Args:
            given: The run file's.
            folder: Of the records that were passed by hand; it takes what is found.
            own: Our own record, if it says where this process is: the same keys may be in other runs.
            me: Our peer id, of which no record is looked for.

        Raises:
            ConfigError: a record in a file is damaged.
        """
        now_s = int(time.time())
        self._folder, self._me = folder, me
        self._given = {one.record.peer: one for one in given}
        self._newer: dict[PeerId, SignedRecord] = {}
        self._told: dict[PeerId, SignedRecord] = {}  # by members, and our own: what we tell
        self._seen: dict[PeerId, int] = {}  # the block of the last announcement that was read
        for one in read_records(folder, now_s).values():
            if self._is_news(one):
                self._newer[one.record.peer] = one
        if own is not None and self._is_news(own):
            self._newer[me] = self._told[me] = own

    @property
    def members(self) -> frozenset[PeerId]:
        """Whose records these are, but for ours."""
        return frozenset(self._given) - {self._me}

    async def answer(self, peer: PeerId, body: bytes) -> bytes:
        """What a member that asks is told: our record and others' of this run, if newer than its file's."""
        return encode(NewerRecords(records=tuple(self._told.values())))

    def announced(self, chain: ChainReader) -> Iterator[SignedRecord]:
        """The records that the directory has and that are newer than what is known here, now known.

        Raises:
            ConfigError: a record cannot be kept.
            Unavailable: the endpoint is gone.
        """
        from assay.chain.reader import NotShown  # web3 takes a second to import

        now_s = int(time.time())
        given = [self._given[peer] for peer in self.members]
        if not given:
            return
        blocks = chain.record_blocks([(evm_address(one.record.account), one.record.peer) for one in given])
        for one, block in zip(given, blocks, strict=True):
            peer, account = one.record.peer, one.record.account
            if block in (0, self._seen.get(peer)):
                continue
            try:
                body = chain.announced_record(evm_address(account), peer, block)
                self._seen[peer] = block
                found = record_in(body, account, now_s)
            except (MalformedMessage, PeerFault, NotShown) as fault:  # one peer's, no reason to miss others
                log.info("record not taken", extra={"peer": peer.hex()[:8], "reason": str(fault)})
                continue
            if self._is_news(found):
                learn_records(self._folder, [found], now_s)
                self._newer[peer] = found
                yield found

    def told(self, body: bytes) -> list[SignedRecord]:
        """Those records of a member's answer that are newer than what is known to this process; now they are.

        A record whose hot key is not the known one's waits for the chain, where its account has to announce
        it. So does a number from the future: after it, none of the next days' would be newer.

        Raises:
            MalformedMessage: it is no answer.
        """
        now_s, found = int(time.time()), list[SignedRecord]()
        for signed in decode(NewerRecords, body).records:
            record, known = signed.record, self._known(signed.record.peer)
            if (
                known is None
                or record.peer == self._me  # of another process of our keys
                or not takes_place_of(known, signed)
                or record.hot != known.record.hot
                or record.sequence > now_s + AHEAD_S_MAX
            ):
                continue
            try:
                check_record(signed, now_s)
            except PeerFault as fault:
                log.info("record not taken", extra={"peer": record.peer.hex()[:8], "reason": str(fault)})
                break  # who tells one such may tell hundreds
            self._newer[record.peer] = signed
            self._told = {**self._told, record.peer: signed}  # a new one: `answer` may be reading the other
            found.append(signed)
        return found

    def _known(self, peer: PeerId) -> SignedRecord | None:
        return self._newer.get(peer) or self._given.get(peer)

    def _is_news(self, found: SignedRecord) -> bool:
        known = self._known(found.record.peer)
        return known is not None and takes_place_of(known, found)


async def refresh_records(me: Participant, host: Host, records: Records) -> None:
    """Have the host dial each peer where its newest record says; ends only by cancellation."""
    chain: ChainReader | None = None
    reason = ""
    asked_at: dict[PeerId, float] = {}
    looked_at = -REFRESH_S

    while True:
        if trio.current_time() - looked_at >= REFRESH_S:
            looked_at = trio.current_time()
            try:
                if chain is None:
                    chain = await _in_thread(open_chain, me)
                _move(host, await _in_thread(lambda at: list(records.announced(at)), chain))
                reason = ""
            except AssayError as error:
                if reason != str(error):  # once, not every time
                    reason = str(error)
                    log.warning("directory not read", extra={"reason": reason})
        there = records.members & host.connected()
        asked_at = {peer: at for peer, at in asked_at.items() if peer in there}  # who comes back has news
        for peer in there:
            if trio.current_time() - asked_at.get(peer, -REFRESH_S) >= REFRESH_S:
                asked_at[peer] = trio.current_time()
                try:
                    body = await host.request(peer, ASK, b"", timeout_s=ANSWER_S)
                    _move(host, await host.in_thread(peer, records.told, body))
                except AssayError as error:  # of an earlier release, for example
                    log.info("records not told", extra={"peer": peer.hex()[:8], "reason": str(error)})
        await trio.sleep(LOOK_S)


def own_record(me: Participant) -> SignedRecord | None:
    """The record that this participant's keys signed last, if it is of a process on this one's port.

    Raises:
        ConfigError: it is damaged.
    """
    path = me.config.keys / OWN_RECORD
    found = read_record(path, int(time.time())) if path.exists() else None
    return found if found is not None and found.record.port == me.config.port else None


def _move(host: Host, found: list[SignedRecord]) -> None:
    for signed in found:
        record = signed.record
        host.move(PeerAddress(peer=record.peer, host=record.host, port=record.port))
        log.info(
            "peer moved", extra={"peer": record.peer.hex()[:8], "host": record.host, "port": record.port}
        )


async def _in_thread(work: Callable[[A], R], given: A) -> R:
    """In a thread that a process which ends does not wait for: the endpoint may be slow."""
    return await trio.to_thread.run_sync(
        work,
        given,
        abandon_on_cancel=True,  # type: ignore[call-arg]  # the stubs are of an older trio
    )
