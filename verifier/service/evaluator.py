"""Evaluator: measures the model after each epoch that has a milestone, and says what it found.

Room: verifier (edge: the recompute worker). The score is of the reference class, so honest verifiers find
the same to the last digit; from more than f of them follows whether a share of the epoch's price is owed
(docs/protocol.md section 6a).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

import trio

from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.following.sync import StateSync
from assay.protocol.acceptance import mean_micro
from assay.protocol.errors import AssayError, Unavailable
from assay.protocol.identity import sign
from assay.protocol.messages import Evaluation, Score, SignedEvaluation
from assay.protocol.state_transition import may_evaluate
from assay.protocol.types import RoundId
from assay.verifier.audit.messages import AnswerItem, Evaluate, Evaluated, ItemAnswered

log = logging.getLogger(__name__)
_ANY = Score(loss_micro=0, acc_count=0, acc_norm_count=0)  # admissible whatever the run's bounds
REPEAT_S = 1.0  # while an evaluation of ours is in no manifest: it may have been lost, or the worker was


class Evaluator:
    """One verifier's measurements of a run's milestones."""

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        state_sync: StateSync,
        broadcast: Callable[[SignedEvaluation], None],
    ) -> None:
        """
        Args:
            me: The verifier.
            follower: Its chain of manifests.
            state_sync: Its recompute worker.
            broadcast: Passes our evaluation to our round and to the other verifiers.
        """
        self._me, self._follower, self._state_sync, self._broadcast = me, follower, state_sync, broadcast
        self._found: dict[int, Score] = {}

    async def run(self) -> None:
        """Measure what is due until the run is over; at once if it has no milestones."""
        if not self._me.spec.money.accept.milestones:
            return
        while not self._follower.run_state.is_complete:
            for epoch in self.due():
                try:
                    self._broadcast(self._signed(epoch, await self._measured(epoch)))
                except AssayError as error:  # the next turn tries again
                    log.warning("model not measured", extra={"epoch": epoch, "reason": str(error)})
            await trio.sleep(REPEAT_S)

    def due(self) -> list[int]:
        """Epochs whose evaluation by us the next manifest may carry."""
        run_state = self._follower.run_state
        return [
            one.epoch
            for one in run_state.spec.money.accept.milestones
            if may_evaluate(run_state, self._evaluation(one.epoch, _ANY))
        ]

    async def _measured(self, epoch: int) -> Score:
        if epoch not in self._found:
            end = RoundId(self._follower.run_state.calendar.epoch_end(epoch))
            await self._state_sync.reach(end)
            score = self._found[epoch] = await self._scored(epoch, end)
            log.info(
                "model measured",
                extra={
                    "epoch": epoch,
                    "held_out": score.loss_micro / 1e6,
                    "acc_count": score.acc_count,
                    "acc_norm_count": score.acc_norm_count,
                },
            )
        return self._found[epoch]

    async def _scored(self, epoch: int, end: RoundId) -> Score:
        """The score of the parameters that this round begins with; audits that are due come in between."""
        spec, child = self._me.spec, self._state_sync.child
        losses, answers = [], []
        for unit in range(spec.money.accept.sequences // spec.compute.drawn_sequences):
            self._check_due(epoch)
            losses.append(await child.call(Evaluate(round=end, unit=unit), Evaluated))
        for item in range(spec.choices.items):
            self._check_due(epoch)
            answers.append(await child.call(AnswerItem(round=end, item=item), ItemAnswered))
        nats = (struct.unpack(">d", part.loss)[0] for part in losses)
        return Score(
            loss_micro=mean_micro(nats, sum(part.targets for part in losses)),
            acc_count=sum(one.acc for one in answers),
            acc_norm_count=sum(one.acc_norm for one in answers),
        )

    def _check_due(self, epoch: int) -> None:
        if epoch not in self.due():
            raise Unavailable(f"epoch {epoch} is settled, and its model is not measured yet")

    def _evaluation(self, epoch: int, score: Score) -> Evaluation:
        seat = self._follower.run_state.seat_of(self._me.me)
        return Evaluation(run_id=self._me.run_id, epoch=epoch, verifier=seat, score=score)

    def _signed(self, epoch: int, score: Score) -> SignedEvaluation:
        found = self._evaluation(epoch, score)
        return SignedEvaluation(evaluation=found, signature=sign(self._me.keys.peer, self._me.domain, found))
