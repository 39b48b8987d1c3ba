"""Evaluator: measures the model after each epoch with a milestone, commits to what it found, and opens it.

Room: verifier (edge: the recompute worker, the store). The score is of the reference class, so honest
verifiers find the same to the last digit; from more than f of them follows whether a share of the epoch's
price is owed (docs/protocol.md section 6a). Nothing of a score is said before the last manifest that may
carry a commitment is final.

    end of epoch --> score (durable) --> commitment, until a manifest has it --> last of these --> evaluation
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
from assay.protocol.auditing.commitments import derived_salt
from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.errors import AssayError, Unavailable
from assay.protocol.identity import sign
from assay.protocol.messages import (
    Evaluation,
    EvaluationCommitment,
    Score,
    SignedEvaluation,
    SignedEvaluationCommitment,
)
from assay.protocol.permitted import may_commit_evaluation, may_open_evaluation
from assay.protocol.types import NO_DIGEST, Digest, RoundId
from assay.verifier.audit.messages import AnswerItem, Evaluate, Evaluated, ItemAnswered

log = logging.getLogger(__name__)
REPEAT_S = 1.0  # while no manifest has what we say: it may have been lost, or the worker was


class Evaluator:
    """One verifier's measurements of a run's milestones."""

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        state_sync: StateSync,
        broadcast: Callable[[SignedEvaluationCommitment | SignedEvaluation], None],
    ) -> None:
        """
        Args:
            me: The verifier.
            follower: Its chain of manifests.
            state_sync: Its recompute worker.
            broadcast: Passes what we say to our round and to the other verifiers.
        """
        self._me, self._follower, self._state_sync, self._broadcast = me, follower, state_sync, broadcast

    async def run(self) -> None:
        """Measure what is due, and say what was found, until the run is over; at once without milestones."""
        if not self._me.spec.money.accept.milestones:
            return
        async with trio.open_nursery() as nursery:  # a measurement may last while an earlier one is opened
            nursery.start_soon(self._measure)
            nursery.start_soon(self._tell)

    async def _measure(self) -> None:
        while not self._follower.run_state.is_complete:
            now = int(self._follower.run_state.round)
            for epoch in self.due():
                try:
                    await self._measured(epoch)
                except AssayError as error:  # the next turn tries again
                    log.warning("model not measured", extra={"epoch": epoch, "reason": str(error)})
            self._say()
            await self._after(now)

    async def _tell(self) -> None:
        while not self._follower.run_state.is_complete:
            now = int(self._follower.run_state.round)
            self._say()
            await self._after(now)

    async def _after(self, round_id: int) -> None:
        """Wait for the manifest of this round, but not for longer than a while."""
        with trio.move_on_after(REPEAT_S):
            await self._follower.grown(round_id)

    def _say(self) -> None:
        for message in self.sayable():
            self._broadcast(message)

    def due(self) -> list[int]:
        """Epochs whose model is to be measured: a commitment of ours may come, or is to be opened."""
        return [epoch for epoch in self._awaited() if self._found(epoch) is None]

    def sayable(self) -> list[SignedEvaluationCommitment | SignedEvaluation]:
        """What the next manifest may carry of our evaluations and our commitments to them."""
        run_state, keys = self._follower.run_state, self._me.keys
        said: list[SignedEvaluationCommitment | SignedEvaluation] = []
        for epoch in self._awaited():
            score = self._found(epoch)
            if score is None:
                continue
            found = self._evaluation(epoch, score)
            commitment = self._commitment(epoch, digest(found))
            if may_commit_evaluation(run_state, commitment):
                signature = sign(keys.peer, self._me.domain, commitment)
                said.append(SignedEvaluationCommitment(commitment=commitment, signature=signature))
            elif may_open_evaluation(run_state, found):
                signature = sign(keys.peer, self._me.domain, found)
                said.append(SignedEvaluation(evaluation=found, signature=signature))
        return said

    def _found(self, epoch: int) -> Score | None:
        body = self._me.store.value(_name(epoch))
        return None if body is None else decode(Score, body)

    def _awaited(self) -> list[int]:
        return [one.epoch for one in self._me.spec.money.accept.milestones if self._is_awaited(one.epoch)]

    def _is_awaited(self, epoch: int) -> bool:
        """Whether the next manifest may carry our commitment, or a later one opens what we committed to."""
        run_state = self._follower.run_state
        record = run_state.evaluations.get((epoch, run_state.seat_of(self._me.me)))
        if record is not None:
            return record.score is None and run_state.is_measured(epoch)
        return may_commit_evaluation(run_state, self._commitment(epoch, NO_DIGEST))

    async def _measured(self, epoch: int) -> None:
        end = RoundId(self._follower.run_state.calendar.epoch_end(epoch))
        await self._state_sync.reach(end)
        score = await self._scored(epoch, end)
        # First, so that we never commit to what we could not open after a restart.
        self._me.store.set_value(_name(epoch), encode(score))
        log.info(
            "model measured",
            extra={
                "epoch": epoch,
                "held_out": score.loss_micro / 1e6,
                "acc_count": score.acc_count,
                "acc_norm_count": score.acc_norm_count,
            },
        )

    async def _scored(self, epoch: int, end: RoundId) -> Score:
        """The score of the parameters that this round begins with; audits that are due come in between."""
        spec, child = self._me.spec, self._state_sync.child
        losses, answers = [], []
        for unit in range(spec.money.accept.sequences // spec.compute.drawn_sequences):
            self._check_awaited(epoch)
            losses.append(await child.call(Evaluate(round=end, unit=unit), Evaluated))
        for item in range(spec.choices.items):
            self._check_awaited(epoch)
            answers.append(await child.call(AnswerItem(round=end, item=item), ItemAnswered))
        nats = (struct.unpack(">d", part.loss)[0] for part in losses)
        return Score(
            loss_micro=mean_micro(nats, sum(part.targets for part in losses)),
            acc_count=sum(one.acc for one in answers),
            acc_norm_count=sum(one.acc_norm for one in answers),
        )

    def _check_awaited(self, epoch: int) -> None:
        if not self._is_awaited(epoch):
            raise Unavailable(f"epoch {epoch} is not measured, and no manifest takes a commitment any more")

    def _evaluation(self, epoch: int, score: Score) -> Evaluation:
        place = self._me.run_id + epoch.to_bytes(8, "big")
        return Evaluation(
            run_id=self._me.run_id,
            epoch=epoch,
            verifier=self._follower.run_state.seat_of(self._me.me),
            score=score,
            salt=derived_salt(bytes(self._me.keys.peer), b"evaluation", place),
        )

    def _commitment(self, epoch: int, evaluation: Digest) -> EvaluationCommitment:
        seat = self._follower.run_state.seat_of(self._me.me)
        return EvaluationCommitment(run_id=self._me.run_id, epoch=epoch, verifier=seat, evaluation=evaluation)


def _name(epoch: int) -> str:
    """Key under which the store keeps the score after an epoch: at most 256 of them, 40 bytes each."""
    return f"evaluation/{epoch}"
