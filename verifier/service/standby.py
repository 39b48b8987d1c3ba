"""Standby: a reserve says that it is ready to take over a verifier's seat.

Room: verifier (edge). A reserve runs the same process as a verifier; without a seat its machines follow the
run and sign nothing in it. It is ready while it holds the parameters of the present round or of the one
before, so that it can judge, aggregate and propose as soon as a seat is handed over to it.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.protocol.identity import sign
from assay.protocol.messages import SeatNotice, SeatNoticeKind, SignedSeatNotice
from assay.protocol.state_transition import may_give_notice
from assay.protocol.types import RoundId

REPEAT_S = 10.0  # a notice that no manifest carries yet may have been lost
BEHIND_MAX = 1  # rounds by which a ready reserve's parameters may lag behind the chain


class Standby:
    """One reserve's notices."""

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        opened: Callable[[], RoundId],
        broadcast: Callable[[SignedSeatNotice], None],
    ) -> None:
        """
        Args:
            me: The reserve; a verifier says nothing.
            follower: Its chain.
            opened: The round whose parameters are here.
            broadcast: Passes our notice to the round and to all verifiers.
        """
        self._me, self._follower, self._opened, self._broadcast = me, follower, opened, broadcast

    async def run(self) -> None:
        """Say that we are ready whenever the chain takes it; ends only by cancellation."""
        while not self._follower.run_state.is_complete:
            notice = self.due_notice()
            if notice is not None:
                signature = sign(self._me.keys.peer, self._me.domain, notice)
                self._broadcast(SignedSeatNotice(notice=notice, signature=signature))
            await trio.sleep(REPEAT_S)

    def due_notice(self) -> SeatNotice | None:
        """Our notice if we are ready and the next manifest may carry it, whether sent before or not."""
        run_state = self._follower.run_state
        if self._opened() + BEHIND_MAX < run_state.round:
            return None
        notice = SeatNotice(
            run_id=self._me.run_id,
            round=run_state.round,
            holder=self._me.me,
            kind=SeatNoticeKind.READY,
        )
        return notice if may_give_notice(run_state, notice) else None
