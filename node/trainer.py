"""Trainer: computes a node's steps, in the child process that holds torch.

Room: node (edge: files of one folder; runs as an `assay.participant.worker` worker). A step is on disk, with
the momentum it leads to, before its commit can be signed; requested again for the same round it returns the
same step, so a crash can never lead to two different commits for one round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from assay.node.messages import RepeatStep, StepRecord, TakeStep, TrainerStart, WorkAhead
from assay.node.steps import StepFiles
from assay.participant.batch_size import step_tokens
from assay.participant.compute import AtRound, ComputeWorker
from assay.protocol.auditing.commitments import commitment_of, derived_salt
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import Message
from assay.protocol.errors import Diverged, Unavailable
from assay.protocol.known_answers import trained_as
from assay.protocol.messages import LOSS_MICRO_MAX, NO_OWN_DATA, Commit, OwnData
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.training.data.batches import batch_positions, batch_root, read_own_tokens, read_tokens
from assay.training.exact import is_finite
from assay.training.execution.execution_class import execution_class
from assay.training.execution.threads import prepare
from assay.training.model.initial import frozen_parameters
from assay.training.model.loss import loss_and_gradient
from assay.training.model.sampling import step_batch
from assay.training.optimiser import step as rules
from assay.training.optimiser.momentum_root import zero_root
from assay.training.optimiser.node_state import NodeState, start_private
from assay.training.optimiser.public_state import THETA, PublicState, kept_rounds

NOTHING = NodeState(np.zeros((0, 0), np.float32))  # private state for computing a gradient only
ROOM_BYTES_MAX = 1 << 28  # buffers kept between steps; a larger model allocates them anew each time


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Work done before its round began, from the private state of this base and root."""

    round: int
    before: tuple[int, Digest]
    tokens: int
    work: rules.Work


T = TypeVar("T", bound="Trainer")
R = TypeVar("R")


class Trainer(ComputeWorker):
    """Parameters of recent rounds, private states of recent steps, and the data."""

    REQUESTS: ClassVar = (*ComputeWorker.REQUESTS, TakeStep, WorkAhead, RepeatStep)

    def __init__(
        self,
        *,
        spec: RunSpec,
        run_id: Digest,
        node: PeerId,
        data: Path,
        folder: Path,
        salt_key: bytes,
        base: Path | None = None,
        device: str = "cpu",
        known_answers: frozenset[int] = frozenset(),
        own: OwnData = NO_OWN_DATA,
    ) -> None:
        """data: The folder of the run's tokens or, where `own` binds the node to some, of its own."""
        keep = kept_rounds(spec)
        parameters = PublicState(spec, folder / THETA, keep, base, holds_rest=True)
        super().__init__(parameters, frozen_parameters(spec, base))
        self.spec, self.run_id, self.node = spec, run_id, node
        self.device, self.known_answers, self.own = device, known_answers, own
        self._tasks_from = self._seat = 0
        self._salt_key = salt_key
        self.layout = self.parameters.layout
        is_own = own != NO_OWN_DATA
        self.tokens = read_own_tokens(data, spec.data) if is_own else read_tokens(data, spec.data)
        self.steps = StepFiles(
            folder, run_id=run_id, node=node, rule=spec.rule, layout=self.layout, keep=keep
        )
        self._done: _Ahead | None = None
        self._room: NDArray[np.float32] | None = None
        self._spent_s = 0.0  # on sequences, in the present request
        self._sequence_us = self._rest_us = 0  # of the last step: of a sequence; of all that is done once

    @classmethod
    def open(cls: type[T], start: TrainerStart) -> T:
        """The trainer that a start describes; sets this process up to compute."""
        place = start.workplace
        prepare(
            Path(place.folder),
            device=place.device,
            threads=place.threads,
            replicas=place.replicas,
            processes=place.processes,
            is_checkpointing=place.is_checkpointing,
        )
        return cls(
            spec=start.spec,
            run_id=start.run_id,
            node=start.node,
            salt_key=start.salt_key,
            data=Path(start.own_data or place.data),
            own=start.own,
            folder=Path(place.folder),
            base=place.base_path,
            device=place.device,
            known_answers=frozenset(map(int, start.known_answers)),
        )

    def answer(self, request: Message) -> Message:
        """Do what a request asks for, see `ComputeWorker.answer`."""
        if isinstance(request, TakeStep | WorkAhead | RepeatStep):
            self._tasks_from = request.tasks_from
            self._seat = request.commit.seat if isinstance(request, RepeatStep) else request.seat
        match request:
            case TakeStep():
                place = int(request.round), request.parent, request.base, request.base_root
                return self.step(*place, left_ms=request.left_ms)
            case WorkAhead():
                self.ahead(int(request.round), request.base, request.base_root, left_ms=request.left_ms)
                return AtRound(round=RoundId(self.parameters.round))
            case RepeatStep():
                return self.repeat(request.commit)
        return super().answer(request)

    def step(
        self, round_id: int, parent: Digest, base: int, base_root: Digest, *, left_ms: int = 0
    ) -> StepRecord:
        """This round's step: computed once, durable, the same when requested again.

        Args:
            round_id: The round to train; the parameters must be there.
            parent: Digest of the manifest before.
            base: 1 + the round of the last accepted step; 0 before the first.
            base_root: The root of the private state that the chain has after that step.
            left_ms: How long it may take; as many sequences as fit, of those that the run allows.

        Raises:
            Diverged: the parameters are of another round.
            Unavailable: the gradient is not finite.
        """
        known = self.steps.record(round_id)
        if known is not None and known.commit.parent == parent:
            return known
        if self.parameters.round != round_id:
            raise Diverged(f"asked for a step of round {round_id} while at round {self.parameters.round}")
        began, self._spent_s = time.monotonic(), 0.0
        rule, tokens = self.spec.rule, self._step_tokens(left_ms)
        ahead, self._done = self._done, None
        work: rules.Work | None = None
        with ThreadPoolExecutor(1) as beside:  # BLAKE3 and file reads release the GIL
            reading = beside.submit(self._before, base, base_root)
            if rule.is_gradient and ahead is None:  # the root is hashed meanwhile
                work = self._work(round_id, NOTHING, tokens)
            before, root_before = reading.result()
        if ahead is not None and (ahead.round, ahead.before) == (round_id, (before.base, root_before)):
            work, tokens = ahead.work, ahead.tokens
        elif work is None:
            work = self._work(round_id, before, tokens)
        if not (np.isfinite(work.loss) and self._is_finite(work)):
            # If sent, its states could not be opened, and withholding an opening is slashed.
            raise Unavailable(f"round {round_id}: the gradient is not finite, so there is nothing to send")
        state = NO_DIGEST if round_id % self.spec.state_every else self.parameters.digest()
        record = self._keep(round_id, parent, state, before, root_before, work, tokens)
        self._rest_us = int((time.monotonic() - began - self._spent_s) * 1e6)
        return record

    def repeat(self, commit: Commit) -> StepRecord:
        """Do a recent step of ours again, whose files are damaged, and keep it again.

        Raises:
            Diverged: what it began from is not here any more, or repeating it leads to another commit.
        """
        self._done = None  # its gradient may lie where the repeated one will
        before, round_id = self._repeated(commit), int(commit.round)
        work, root = self._work(round_id, before, commit.tokens), commit.momentum_before
        return self._keep(round_id, commit.parent, commit.state, before, root, work, commit.tokens, commit)

    def _repeated(self, commit: Commit) -> NodeState:
        """The private state before a step of ours; the step that led to it is repeated if need be."""
        for is_repeated in (False, True):
            found = self.steps.private(commit.base)
            if found is not None and self.steps.tree(found).root == commit.momentum_before:
                return found
            earlier = self.steps.record(commit.base - 1) if commit.base else None
            if earlier is None or is_repeated:
                break
            self.repeat(earlier.commit)
        raise Diverged(f"the private state before round {int(commit.round)} is not on this disk any more")

    def _keep(
        self,
        round_id: int,
        parent: Digest,
        state: Digest,
        before: NodeState,
        root_before: Digest,
        work: rules.Work,
        tokens: int,
        expected: Commit | None = None,
    ) -> StepRecord:
        """Commit to a step's work and keep it; nothing is kept if another commit was expected."""
        base = before.base  # it is used up
        after, update = self._encode(round_id, before, work)
        tree = self.steps.tree(after)
        place = round_id.to_bytes(8, "big") + parent + root_before
        salt = derived_salt(self._salt_key, b"commit", place)
        sketches = self._sketches(work, parent)
        commit = Commit(
            run_id=self.run_id,
            round=RoundId(round_id),
            node=self.node,
            parent=parent,
            state=state,
            batch_root=self._batch_root(round_id, tokens),
            update=blob_digest(update),
            update_bytes=len(update),
            base=base,
            momentum_before=root_before,
            momentum_after=tree.root,
            inner=self.steps.inner_digests(work.ends),
            commitment=commitment_of(salt, sketches),
            exec_class=execution_class(self.spec.compute, self.device),
            tokens=tokens,
            loss_micro=min(int(work.loss * 1e6), LOSS_MICRO_MAX),
            seat=self._seat,
        )
        if expected not in (None, commit):
            raise Diverged(f"round {round_id} repeated leads to another commit")
        record = StepRecord(commit=commit, update=update, salt=salt, sketches=sketches)
        self.steps.keep(record, after, tree, work.ends)
        return record

    def ahead(self, round_id: int, base: int, base_root: Digest, *, left_ms: int = 0) -> bool:
        """Do the local work of a round before its manifest exists, if its parameters are known.

        Rules that read old parameters (`read_lag`) can work during consensus: all inputs are known except
        whether the last contribution is accepted, which is assumed. `step` uses the work done here if the
        assumption held.

        A round's known-answer task waits for its round while the chain has no announcement of the list: the
        announcement may be in the manifest before it.

        Args:
            round_id: The round after the one that the parameters are of.
            base: 1 + the round of the contribution that is assumed accepted.
            base_root: The root of the private state after it.
            left_ms: As in `step`.

        Returns:
            Whether any work was done.
        """
        is_known = self.steps.record(round_id) is not None
        may_be_false = round_id in self.known_answers and not self._tasks_from
        is_next = round_id == self.parameters.round + 1
        if not self.spec.rule.read_lag or is_known or may_be_false or not is_next:
            return False
        before, root = self._before(base, base_root)
        self._spent_s, tokens = 0.0, self._step_tokens(left_ms)
        self._done = _Ahead(round_id, (before.base, root), tokens, self._work(round_id, before, tokens))
        return True

    def _step_tokens(self, left_ms: int) -> int:
        """The tokens of a step that may take `left_ms`, by what the last one took."""
        return step_tokens(self.spec, self._sequence_us, left_ms * 1000 - self._rest_us)

    def _work(self, round_id: int, before: NodeState, tokens: int) -> rules.Work:
        """A round's local work on `tokens` tokens, from the private state before it."""
        theta, spent = self._read(round_id), self._spent_s
        batch = self._timed(lambda: self._batch(self._trained_as(round_id), theta, tokens))
        work = self._local(round_id, before, theta, batch)
        took_us = int((self._spent_s - spent) * 1e6)
        self._sequence_us = max(took_us * self.spec.model.context // tokens, 1)
        return work

    def _timed(self, work: Callable[[], R]) -> R:
        """Do what takes its time by the sequence."""
        began = time.monotonic()
        done = work()
        self._spent_s += time.monotonic() - began
        return done

    def _local(
        self, round_id: int, before: NodeState, theta_P: NDArray[np.float32], batch: NDArray[np.int64]
    ) -> rules.Work:
        """A round's local work on this batch."""

        def gradient(
            theta_P: NDArray[np.float32], rows: NDArray[np.int64]
        ) -> tuple[float, NDArray[np.float32]]:
            return self._timed(lambda: self._gradient(theta_P, rows))

        # No two works are in use at once: work done ahead is used or discarded before the next.
        work = rules.local(self.spec, self.layout, theta_P, before, batch, round_id, gradient, self._room)
        if self.spec.rule.is_gradient and work.x_NC.nbytes <= ROOM_BYTES_MAX:
            self._room = work.x_NC
        return work

    def _is_finite(self, work: rules.Work) -> bool:
        parts = (work.x_NC, *(part for end in work.ends for part in (end.theta_P, *end.moments)))
        return all(is_finite(part) for part in parts)

    def _sketches(self, work: rules.Work, pattern: Digest) -> tuple[Digest, ...]:
        return rules.sketches(self.layout, work, pattern)

    def _batch(self, round_id: int, theta_P: NDArray[np.float32], tokens: int) -> NDArray[np.int64]:
        """The sequences of a step of `tokens` tokens, at the parameters that its work starts from."""
        return step_batch(
            self.spec, self.layout, theta_P, self.tokens, self.node, round_id, tokens,
            device=self.device, frozen=self.frozen, own=self.own, seat=self._seat,
        )  # fmt: skip

    def _batch_root(self, round_id: int, tokens: int) -> Digest:
        positions = batch_positions(self.spec, self.node, round_id, tokens, self.own, self._seat)
        return batch_root(self.spec, positions, self.own)

    def is_task(self, round_id: int) -> bool:
        """Whether this round's step is a known-answer task that the node's announcement covers."""
        return round_id in self.known_answers and 0 < self._tasks_from <= round_id

    def _trained_as(self, round_id: int) -> int:
        """The round whose sequences this round's work takes."""
        return trained_as(self.spec, round_id) if self.is_task(round_id) else round_id

    def _read(self, round_id: int) -> NDArray[np.float32]:
        """The parameters that a round's work starts from."""
        return self.parameters.read(round_id)

    def _encode(self, round_id: int, before: NodeState, work: rules.Work) -> tuple[NodeState, bytes]:
        """The private state after a round's work, and the update; `before` is used up."""
        return rules.encode(self.spec, self.layout, round_id, before, work, uses_up=True)

    def _gradient(
        self, theta_P: NDArray[np.float32], tokens: NDArray[np.int64]
    ) -> tuple[float, NDArray[np.float32]]:
        return loss_and_gradient(
            self.spec.model,
            self.layout,
            theta_P,
            tokens,
            compute=self.spec.compute,
            device=self.device,
            frozen=self.frozen,
        )

    def reset(self) -> None:
        """Discard the parameters, as a diverged node must.

        The steps stay: accepted ones can still be drawn, and a node that cannot open them is slashed.
        Their momentum needs no trust: it is used only if it has the root that the chain has.
        """
        super().reset()
        self._done = None

    def _before(self, base: int, base_root: Digest) -> tuple[NodeState, Digest]:
        """The private state after the last accepted step if its root is the chain's, else a fresh one.

        Returns:
            The state and its root. The root is recomputed from the file's content.
        """
        found = self.steps.private(base) if base else None
        if found is not None and self.steps.tree(found).root == base_root:
            return found, base_root
        return start_private(self.layout), zero_root(self.run_id, self.spec.rule, self.layout.blocks)


START, open_worker = TrainerStart, Trainer.open
