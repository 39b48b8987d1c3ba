"""Rotation: which verifier's seat is handed over to which reserve, as a fact of the certified chain.

Room: protocol (pure). A spec may name reserves beside its verifiers. A seat has a cause to change hands
when its holder resigned, is at fault or is absent. While a reserve is ready to take it the seat *retires*:
no later step draws it. Once no audit can find a verdict of its holder false any more, the next manifest
hands it over, so that a fault in an audit is always the present holder's. Nobody chooses: the first seat with
a cause, ascending, goes to the first ready reserve, in an order that follows from the first drand round of
the run's chain.

Absence is what more than f leaders say, round by round, at its beginning and `ABSENCE_ROUNDS` later: none of
the manifests in between that asked for the seat's share had it. After a given-up iteration a leader may leave
out shares that came in time, so one that lies must not suffice. Who is absent is asked in rounds without a
gap until more than f leaders have asked, and then not for a while: were it one round at a time, the same
leader would have its turn again and again, as pauses and turns are both regular. Rules: docs/decisions/0051.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from assay.protocol.agreement.configurations import FIRST, Configuration
from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.messages import Manifest, SeatNotice, SeatNoticeKind
from assay.protocol.randomness.drand import randomness
from assay.protocol.types import NO_DIGEST, Digest, PeerId

ABSENCE_ROUNDS = 64  # between the first and the last manifest that asked for an absent verifier's share
READY_ROUNDS = 64  # for which a reserve's notice that it is ready counts
NOTICE_ROUNDS = 16  # for which a notice may wait for a manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A seat whose share was missing each time that it was asked for, up to the last manifest."""

    since: int  # the round of the first such manifest
    until: int  # of the last
    leaders: frozenset[PeerId]  # seats that led the last of them, in rounds without a gap

    def is_agreed(self, verifier_count: int) -> bool:
        """Whether more than f leaders have asked in vain, round by round, so that a pause may follow."""
        return len(self.leaders) > faults_tolerated(verifier_count)

    def is_long(self, verifier_count: int) -> bool:
        """Whether the seat may be handed over for it."""
        return self.is_agreed(verifier_count) and self.until - self.since >= ABSENCE_ROUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """What the chain records of the seats of verifiers and of those who may take one."""

    configuration: Configuration = FIRST  # by whose keys the next round's seats sign
    handed: tuple[int, ...] = ()  # the rounds of the manifests that handed a seat over
    order: Digest = NO_DIGEST  # the first drand round's randomness, which orders the reserves
    ready: Mapping[PeerId, int] = field(default_factory=dict)  # reserve -> the round of its last such notice
    resigned: frozenset[PeerId] = frozenset()  # holders and reserves
    absent: Mapping[PeerId, Absence] = field(default_factory=dict)  # by seat

    def at(self, round_id: int) -> Configuration:
        """The configuration whose keys signed what the manifest of this round carries."""
        return Configuration(self.configuration.hand_overs[: bisect_left(self.handed, round_id)])

    def may_hold(self, holder: PeerId) -> bool:
        """Whether a reserve may still take a seat: it held none before and did not resign."""
        held = {one.holder for one in self.configuration.hand_overs}
        return holder not in held and holder not in self.resigned

    def may_say(
        self, notice: SeatNotice, seats: Collection[PeerId], reserves: Collection[PeerId], now: int
    ) -> bool:
        """Whether the manifest of round `now` may carry this notice, its run and signature aside.

        A reserve is ready again once half of its last notice's time is over: none can crowd others out.
        """
        if not now - NOTICE_ROUNDS <= notice.round <= now:
            return False
        is_reserve = notice.holder in reserves and self.may_hold(notice.holder)
        if notice.kind is SeatNoticeKind.READY:
            known = self.ready.get(notice.holder)
            return is_reserve and (known is None or known + READY_ROUNDS // 2 <= notice.round)
        holds = any(self.configuration.key(seat) == notice.holder for seat in seats)
        return (holds or is_reserve) and notice.holder not in self.resigned

    def next_holder(self, reserves: Iterable[PeerId], now: int) -> PeerId | None:
        """The reserve that takes the next seat, were it handed over by the manifest of round `now`."""
        fit = [
            one
            for one in reserves
            if self.may_hold(one) and one in self.ready and now <= self.ready[one] + READY_ROUNDS
        ]
        return min(fit, key=lambda one: _place(self.order, one), default=None)

    def has_cause(self, seat: PeerId, verifier_count: int) -> bool:
        """Whether a seat's holder resigned or is absent; that it is at fault, its record says."""
        absence = self.absent.get(seat)
        is_absent = absence is not None and absence.is_long(verifier_count)
        return is_absent or self.configuration.key(seat) in self.resigned

    def after(self, manifest: Manifest, asked: Iterable[PeerId], leader: PeerId) -> Rotation:
        """The record after one more manifest, led by `leader`, that asked these seats for their shares."""
        now, absent = int(manifest.round), dict(self.absent)
        shared = {share.verifier for share in manifest.beacon_shares}
        for seat in asked:
            if seat in shared:
                absent.pop(seat, None)
                continue
            before = absent.get(seat, Absence(since=now, until=now, leaders=frozenset()))
            earlier = before.leaders if before.until == now - 1 else frozenset()
            absent[seat] = replace(before, until=now, leaders=earlier | {leader})
        for one in manifest.hand_over:
            absent.pop(one.seat, None)
        notices = [signed.notice for signed in manifest.seat_notices]
        ready = {one.holder: int(one.round) for one in notices if one.kind is SeatNoticeKind.READY}
        order = self.order
        if order == NO_DIGEST and manifest.drand:
            order = Digest(randomness(manifest.drand))
        return Rotation(
            configuration=self.configuration.after(manifest.hand_over),
            handed=self.handed + (now,) * len(manifest.hand_over),
            order=order,
            ready={**self.ready, **ready},
            resigned=self.resigned | {one.holder for one in notices if one.kind is SeatNoticeKind.RESIGN},
            absent=absent,
        )


UNROTATED = Rotation()  # of a run in which no seat was handed over


def _place(order: Digest, reserve: PeerId) -> bytes:
    return hashlib.sha256(b"assay/reserve/1" + order + reserve).digest()
