"""Standby: a reserve says that it is ready to take over a verifier's seat, and a holder that it gives it up.

Room: verifier (edge). A reserve runs the same process as a verifier; without a seat its machines follow the
run and sign nothing in it. It is ready while it holds the parameters of the present round or of the one
before, so that it can judge, aggregate and propose as soon as a seat is handed over to it.

    file RESIGN in its folder --notice in a manifest--> no new audits --last audit ended--> a reserve's seat
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.protocol.identity import sign
from assay.protocol.messages import SeatNotice, SeatNoticeKind, SignedSeatNotice
from assay.protocol.permitted import may_give_notice
from assay.protocol.types import NO_PEER, RoundId

log = logging.getLogger(__name__)
RESIGN = "resign"  # a file in a verifier's folder: its operator asks it to give up its seat
REPEAT_S = 1.0  # a notice that no manifest carries yet may have been lost
BEHIND_MAX = 1  # rounds by which a ready reserve's parameters may lag behind the chain


class Standby:
    """One verifier's or reserve's notices."""

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        opened: Callable[[], RoundId],
        resigns: Callable[[], bool],
        broadcast: Callable[[SignedSeatNotice], None],
    ) -> None:
        """
        Args:
            me: The verifier or reserve.
            follower: Its chain.
            opened: The round whose parameters are here.
            resigns: Whether the operator asks it to give up its seat.
            broadcast: Passes our notice to the round and to all verifiers.
        """
        self._me, self._follower, self._opened = me, follower, opened
        self._resigns, self._broadcast = resigns, broadcast

    async def run(self) -> None:
        """Say what is due whenever the chain takes it, until the run is complete."""
        seat = NO_PEER
        while True:
            run_state = self._follower.run_state
            before, seat = seat, run_state.seat_of(self._me.me)
            if before != seat:
                fields = {"seat": (before if seat == NO_PEER else seat).hex()[:8]}
                log.info("seat handed over" if seat == NO_PEER else "seat taken", extra=fields)
            if run_state.is_complete:
                return
            notice = self.due_notice()
            if notice is not None:
                signature = sign(self._me.keys.peer, self._me.domain, notice)
                self._broadcast(SignedSeatNotice(notice=notice, signature=signature))
            await trio.sleep(REPEAT_S)

    def due_notice(self) -> SeatNotice | None:
        """Our notice if the next manifest may carry it, whether sent before or not."""
        run_state = self._follower.run_state
        resigns = self._resigns()
        if not resigns and self._opened() + BEHIND_MAX < run_state.round:
            return None
        notice = SeatNotice(
            run_id=self._me.run_id,
            round=run_state.round,
            holder=self._me.me,
            kind=SeatNoticeKind.RESIGN if resigns else SeatNoticeKind.READY,
        )
        return notice if may_give_notice(run_state, notice) else None
