"""Rotation: which verifier's seat is handed over to which reserve, as a fact of the certified chain.

Room: protocol (pure). A spec may name reserves beside its verifiers. A seat has a cause to change hands
when its holder resigned, is at fault or is absent. While a reserve is ready to take it the seat *retires*:
no later step draws it. Once no audit can find a verdict of its holder false any more, the next manifest
hands it over, so that a fault in an audit is always the present holder's. Nobody chooses: the first seat with
a cause, ascending, goes to the first ready reserve, in an order that follows from the first drand round of
the run's chain.

Absence is what more than f leaders say: of so many manifests in a row, all of which might have had a share of
the beacon, an inclusion list, a verdict or a commitment to one of the seat's holder, none had any. A lying
leader may leave out what came in time, so one must not suffice; and whoever takes part in anything is not
absent, whether its share is asked for meanwhile or not. Rules: docs/decisions/0051 and 0057.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from assay.protocol.agreement.configurations import FIRST, Configuration
from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.messages import Manifest, SeatNotice, SeatNoticeKind
from assay.protocol.randomness.drand import randomness
from assay.protocol.types import NO_DIGEST, Digest, PeerId

ABSENCE_ROUNDS = 64  # manifests in a row without anything of a seat's holder, after which it is absent
READY_ROUNDS = 64  # for which a reserve's notice that it is ready counts
NOTICE_ROUNDS = 16  # for which a notice may wait for a manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """The manifests in a row, up to the last one, that had nothing of a seat's holder."""

    count: int = 0
    leaders: frozenset[PeerId] = frozenset()  # seats that led them

    def is_long(self, verifier_count: int) -> bool:
        """Whether the seat may be handed over for it."""
        return self.count >= ABSENCE_ROUNDS and len(self.leaders) > faults_tolerated(verifier_count)


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

    def after(
        self, manifest: Manifest, seats: Iterable[PeerId], asked: Collection[PeerId], leader: PeerId
    ) -> Rotation:
        """The record after one more manifest, led by `leader`, that asked some of these seats for shares.

        What is not asked for its share could be heard of only in a manifest with commits, by its list.
        """
        now, heard = int(manifest.round), _heard(manifest)
        missing = (one for one in seats if one not in heard and (manifest.commits or one in asked))
        absent = {seat: one for seat, one in self.absent.items() if seat not in heard}
        for seat in missing:
            before = absent.get(seat, Absence())
            absent[seat] = Absence(count=before.count + 1, leaders=before.leaders | {leader})
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


def _heard(manifest: Manifest) -> frozenset[PeerId]:
    """The seats of which a manifest has something that their holders signed in the last few rounds."""
    return frozenset((
        *(one.verifier for one in manifest.beacon_shares),
        *(one.inclusion_list.verifier for one in manifest.inclusion_lists),
        *(one.commitment.verifier for one in manifest.commitments),
        *(one.verdict.verifier for one in manifest.verdicts),
    ))  # fmt: skip


def _place(order: Digest, reserve: PeerId) -> bytes:
    return hashlib.sha256(b"assay/reserve/1" + order + reserve).digest()
