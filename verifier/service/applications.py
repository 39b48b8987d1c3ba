"""Applications: lets nodes that a run's spec does not name ask for one of its free seats.

Room: verifier (edge: the chain, in threads). A stranger may connect while seats are free, and ask nothing but
this. Once its account has locked a lot for the run it is a guest, which is served manifests and blobs as a
member is. Once it says that it holds the present parameters, we sign that it may join: `protocol.membership`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.statements import OPERATOR
from assay.chain.text.times import time_text
from assay.chain.text.units import UNIT, money_text
from assay.network.host import Handler
from assay.participant.config import Participant
from assay.participant.files.application import Application
from assay.participant.files.record import Record, Role, check_record
from assay.participant.files.track_record import TrackRecord
from assay.participant.follower import Follower
from assay.participant.wallet.claims import open_chain
from assay.participant.wallet.delegation import delegation_fault
from assay.participant.wallet.track_records import track_record_fault
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import PeerFault, Unavailable
from assay.protocol.identity import sign
from assay.protocol.membership import may_join
from assay.protocol.messages import Admission, Member, SignedAdmission
from assay.protocol.params import RUN_NODES_MAX
from assay.protocol.types import NO_PEER, Address, PeerId

if TYPE_CHECKING:
    from assay.chain.client import Chain

log = logging.getLogger(__name__)
GUESTS_MAX = RUN_NODES_MAX  # each account has locked a lot; beyond, the oldest has to apply again
CHECKED_S = 60  # for which what the chain said of a guest is believed: many may wait for long
VOTED_S = 10  # between two votes for the same guest: a few of them within `ADMISSION_S`
WAITING_MAX = 8  # applications that wait while the chain is asked about another
REFUSED_S = (
    0.5  # after each one that the chain does not bear out: strangers do not spend our endpoint's calls
)


@dataclass(slots=True, kw_only=True)
class _Guest:
    """A node that has locked a lot, and what we last did for it; times by our clock."""

    member: Member
    track_record: TrackRecord | None = None  # of another run, if its account showed one that counts
    shown_s: int = 0  # when that was looked at
    checked_s: int = 0
    voted_s: int = -VOTED_S


class Applications:
    """One verifier's guests, and its votes on who joins."""

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        publish: Callable[[SignedAdmission], None],
        unix_s: Callable[[], int],
    ) -> None:
        """
        Args:
            me: The verifier.
            follower: Its chain of manifests.
            publish: Passes our admission to the round and to all verifiers.
            unix_s: The clock, Unix seconds.
        """
        self._me, self._follower, self._publish, self._unix_s = me, follower, publish, unix_s
        self._guests: dict[Address, _Guest] = {}
        self._asking = trio.Lock()
        self._chain: Chain | None = None
        self.handlers: Mapping[str, Handler] = {"apply": self._apply}

    def is_open(self) -> bool:
        """Whether strangers may connect."""
        return self._follower.run_state.free_seats > 0

    def knows(self, peer: PeerId) -> bool:
        """Whether this peer took a seat, or is a guest."""
        is_guest = any(guest.member.peer == peer for guest in self._guests.values())
        return is_guest or peer in self._follower.run_state.nodes

    async def _apply(self, peer: PeerId, body: bytes) -> bytes:
        """A node's application in; nothing out, or the reason why it cannot join now.

        Raises:
            MalformedMessage, PeerFault: it is not its sender's, or its account has not locked the lot.
            Unavailable: no seat is free, or too many ask at once.
        """
        application = decode(Application, body)
        record = application.record.record
        if record.peer != peer or record.role is not Role.NODE:
            raise PeerFault(peer, f"applies with the record of a {record.role.name.lower()}, or of another")
        if not may_join(self._follower.run_state, record.member):
            raise Unavailable("no seat is free for this node: all are taken, or its keys took part before")
        check_record(application.record, self._unix_s())
        guest = self._guests.get(record.account)
        if guest is None or guest.member != record.member or self._unix_s() >= guest.checked_s + CHECKED_S:
            guest = await self._checked(application)
        if application.is_ready:
            self._vote(guest)
        return b""

    async def _checked(self, application: Application) -> _Guest:
        """The guest that applies, whose lot we have just seen on our chain.

        Raises:
            PeerFault: the chain does not bear it out.
            Unavailable: too many ask at once.
        """
        if self._asking.statistics().tasks_waiting >= WAITING_MAX:
            raise Unavailable("others are applying: try again in a moment")
        record = application.record.record
        async with self._asking:
            fault = await trio.to_thread.run_sync(self._fault, record)
            if fault is not None:
                self._guests.pop(record.account, None)
                await trio.sleep(REFUSED_S)
                raise PeerFault(record.peer, fault)
            known = self._guests.get(record.account)
            if known is None or self._unix_s() >= known.shown_s + CHECKED_S:  # it may cost a call a verifier
                known = known or _Guest(member=record.member)
                known.track_record = await trio.to_thread.run_sync(self._track_record, application)
                known.shown_s = self._unix_s()
        self._guests.pop(record.account, None)
        if known.member != record.member or not known.checked_s:
            known = _Guest(member=record.member, track_record=known.track_record, shown_s=known.shown_s)
            log.info("guest", extra={"peer": record.peer.hex()[:8], "account": evm_address(record.account)})
        known.checked_s = self._unix_s()
        self._guests[record.account] = known
        while len(self._guests) > GUESTS_MAX:
            del self._guests[next(iter(self._guests))]
        return known

    def _vote(self, guest: _Guest) -> None:
        """Sign that a guest may join, unless we did a moment ago."""
        run_state, time_s = self._follower.run_state, max(self._unix_s(), self._follower.run_state.time_s)
        if time_s < guest.voted_s + VOTED_S or not may_join(run_state, guest.member):
            return
        guest.voted_s = time_s
        seat = run_state.seat_of(self._me.me)
        if seat == NO_PEER:
            return
        admission = Admission(run_id=self._me.run_id, time_s=time_s, member=guest.member, verifier=seat)
        if guest.track_record is not None:
            exec_class, clean = guest.track_record.exec_class, guest.track_record.clean
            admission = replace(admission, exec_class=exec_class, clean=clean)
        signature = sign(self._me.keys.peer, self._me.domain, admission)
        self._publish(SignedAdmission(admission=admission, signature=signature))

    def _fault(self, record: Record) -> str | None:
        """Why the chain does not let this node be held to its work; None if it does."""
        chain = self._chain = self._chain or open_chain(self._me)
        run, account = chain.run(self._me.run_id), evm_address(record.account)
        if run is None:
            return "this run is not open"
        lot = chain.lot_of(account, OPERATOR, self._me.run_id)
        if lot.amount < run.lot or lot.until < run.deadline:
            return (
                f"{account} has locked {money_text(lot.amount)} {UNIT} for this run, until "
                f"{time_text(lot.until)}; expected {money_text(run.lot)} until {time_text(run.deadline)}"
            )
        if chain.is_banned(account):
            return f"{account} is banned for ever"
        return delegation_fault(chain.hot_key(evm_address(record.hot)), account, run.deadline)

    def _track_record(self, application: Application) -> TrackRecord | None:
        """What a node showed of another run, if it counts here; what does not keeps nobody out."""
        if not application.track_record:
            return None
        (shown,), account = application.track_record, application.record.record.account
        chain = self._chain = self._chain or open_chain(self._me)
        fault: str | None = "it is of another account"
        if shown.account == account:
            version = chain.set_version_of(self._me.run_id)
            fault = track_record_fault(chain, self._me.deployment, version, shown, self._unix_s())
        if fault is not None:
            log.info("track record does not count", extra={"account": evm_address(account), "reason": fault})
            return None
        return shown
