"""Audit worker: recomputes drawn steps for a verifier, in the child process that holds torch.

Room: verifier (edge: checkpoint files; runs as an `assay.participant.worker` worker). It follows the run's
parameters as every honest process does, and recomputes what a given step should have been.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.participant.compute import ComputeWorker
from assay.protocol.auditing.audits import REFERENCE
from assay.protocol.encoding.codec import Message, decode, digest
from assay.protocol.errors import AssayError, Diverged, MalformedMessage, Unavailable
from assay.protocol.messages import NO_OWN_DATA, Commit, Outcome, OwnData
from assay.protocol.openings import InnerOpening, Opening
from assay.protocol.params import NO_ACCEPT, RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import BLOCK_SIDE
from assay.training.codec.contribution import decode_contribution
from assay.training.codec.wire import Update
from assay.training.data.batches import read_tokens, validation_tokens
from assay.training.data.choices import read_choices
from assay.training.data.own_data import own_batch
from assay.training.execution.execution_class import execution_class
from assay.training.execution.threads import prepare
from assay.training.layout import to_blocks
from assay.training.model.initial import frozen_parameters
from assay.training.model.loss import loss_and_gradient
from assay.training.model.sampling import step_batch
from assay.training.optimiser.carry import mean_block
from assay.training.optimiser.inner import Gradient, InnerState, fresh, roots_of, run_steps
from assay.training.optimiser.node_state import NodeState
from assay.training.optimiser.public_state import THETA, PublicState, kept_rounds
from assay.training.optimiser.schedule import rate
from assay.training.optimiser.step import begin, gradient_sketch, sampled_digest, way_sketch
from assay.training.reference.narrowing import START as START_POSITION
from assay.training.transform.blocked_dct import row_lengths
from assay.training.transform.compress import in_basis
from assay.verifier.audit.bias_memory import BiasMemory
from assay.verifier.audit.carried import carried, carried_as_shown, is_synced
from assay.verifier.audit.displacement import ModelledSegment, as_one, judge_movement, wider, worse_of
from assay.verifier.audit.exact import check_opening, compare
from assay.verifier.audit.limits import Limits, agreed_limits
from assay.verifier.audit.messages import (
    AnswerItem,
    Evaluate,
    Evaluated,
    Examine,
    Examined,
    Finding,
    ItemAnswered,
    Judged,
    JudgeOperator,
    RecomputeStart,
    Remade,
    RemakeStep,
    Traced,
    TraceStep,
    opening_bytes_max,
    shown_bytes_max,
)
from assay.verifier.audit.remake import Remake
from assay.verifier.audit.segment import OpenedSegment, check_inner_opening, check_reached
from assay.verifier.audit.segment_limits import limits_of, regime_of
from assay.verifier.audit.tolerance import (
    SAMPLES,
    WIDEST,
    Doubles,
    floor_of,
    jitter_seed,
    judge,
    judged_blocks,
    step_widening,
)

MEMORY = "remembered.cbor"
_REFERENCE = "assay.training.reference.gradient"  # half a second, which a run without limits saves
_EVALUATION = "assay.training.reference.evaluation"  # likewise
_CHOICES = "assay.training.reference.choices"  # likewise
_ROUNDING = "assay.training.reference.rounding"  # likewise
_APPEALS = "assay.verifier.appeal.answers"  # likewise
log = logging.getLogger(__name__)
_OURS = (AssayError, OSError, MemoryError, RuntimeError)  # errors of which our own machine may be the cause
_INCONCLUSIVE = Finding(Outcome.INCONCLUSIVE, NO_DIGEST, 0, 0)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A drawn step, and what its recompute begins with. sent: its message. opening: not checked yet."""

    commit: Commit
    sent: Update
    opening: Opening | InnerOpening
    blocks: list[int]
    segment: int
    drawn_by: Digest
    theta_P: NDArray[np.float32]
    batch: NDArray[np.int64]

    @property
    def round(self) -> int:
        return int(self.commit.round)


@dataclass(frozen=True, slots=True)
class Redone:
    """The two sides of a comparison: what the node opened, and what was recomputed.

    before_BC, after_BC: the error as opened. x_BC: what local work adds, recomputed. sketch: digest of
    its sketch in a pattern. is_equal: whether the commit binds it, as far as the opening shows.
    mean: `mean_block` of all blocks of x. floor: the size that smaller blocks count as, between classes.
    """

    before_BC: NDArray[np.float32]
    after_BC: NDArray[np.float32]
    x_BC: NDArray[np.float32]
    sketch: Callable[[Digest], Digest]
    is_equal: bool
    mean: float = 0.0
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class _Opened:
    """A checked opening of inner steps. x_BC: the round's claimed displacement. start: of the segment."""

    before_BC: NDArray[np.float32]
    after_BC: NDArray[np.float32]
    x_BC: NDArray[np.float32]
    shown: OpenedSegment
    start: InnerState


class RecomputeWorker(ComputeWorker):
    """Parameters of recent rounds and the data: all that a recompute needs.

    limits: tolerances for steps of other execution classes; without them such steps are not judged, nor are
    inner steps of a class that was not measured against this one.
    memory: file of the bias memory, which outlives this process; None keeps nothing.
    """

    REQUESTS: ClassVar = (
        *ComputeWorker.REQUESTS,
        Examine,
        Evaluate,
        AnswerItem,
        RemakeStep,
        TraceStep,
        JudgeOperator,
    )

    def __init__(
        self,
        *,
        spec: RunSpec,
        data: Path,
        folder: Path,
        base: Path | None = None,
        device: str = "cpu",
        limits: Limits | None = None,
        memory: Path | None = None,
    ) -> None:
        super().__init__(
            PublicState(spec, folder / THETA, kept_rounds(spec), base), frozen_parameters(spec, base)
        )
        self.spec, self.device, self.limits = spec, device, limits
        self.exec_class = execution_class(spec.compute, device)
        self.tokens, self.choices = read_tokens(data, spec.data), read_choices(data, spec)
        if limits is not None or spec.money.accept != NO_ACCEPT:
            importlib.import_module(_REFERENCE)  # compiles it, if need be, before an audit is due
        self.watch = BiasMemory(memory, digest(spec))
        self._remake: Remake | None = None

    def answer(self, request: Message) -> Message:
        """Do what a request asks for, see `ComputeWorker.answer`."""
        if isinstance(request, RemakeStep):
            return self._made_again(request)
        if isinstance(request, TraceStep):
            return Traced(positions=self._trace(request.commit))
        if isinstance(request, JudgeOperator):
            return Judged(is_right=self._judge(request))
        if isinstance(request, Evaluate):
            return self.evaluate(request.round, request.unit)
        if isinstance(request, AnswerItem):
            return self.answer_item(request.round, request.item)
        if not isinstance(request, Examine):
            return super().answer(request)
        try:
            opening = Path(request.opening).read_bytes()
        except OSError as error:
            raise Unavailable(f"opening {request.opening}: {error.strerror}") from None
        try:
            return self._examined(request, opening)
        except _OURS:
            raise
        except Exception:
            # Of numbers that nobody foresaw: without an answer the step would be paid.
            log.exception("audit ended in an error", extra={"round": int(request.commit.round)})
            return Examined(finding=_INCONCLUSIVE, exec_class=self.exec_class)

    def _examined(self, request: Examine, opening: bytes) -> Examined:
        seen = request.commit, request.update, opening, list(request.blocks), request.segment
        is_own = request.commit.exec_class == self.exec_class
        asked = {name: getattr(request, name) for name in ("committed", "pattern", "drawn_by", "own")}
        judge_in = partial(self.examine, *seen, **asked)
        found = judge_in(in_reference=request.in_reference)
        if is_own and request.in_reference and found.outcome is Outcome.INCONCLUSIVE:
            # Who says that it judged there is compared with nobody then; the step is judged all the same.
            return Examined(finding=judge_in(in_reference=False), exec_class=self.exec_class)
        is_exact = is_own and not request.in_reference
        return Examined(finding=found, exec_class=self.exec_class if is_exact else REFERENCE)

    def evaluate(self, round_id: int, unit: int) -> Evaluated:
        """The loss of a held-out unit under theta of a recent round, in the reference class.

        Raises:
            Diverged: that round is ahead of us or too old.
        """
        spec, theta_P = self.spec, self.parameters.at(round_id)
        sequences, one = spec.money.accept.sequences, slice(unit, unit + 1)
        tokens = validation_tokens(self.tokens, spec, sequences, units=one)
        loss, targets = 0.0, 0
        if len(tokens):  # else fewer are held out than are asked for
            evaluation = importlib.import_module(_EVALUATION)
            loss, targets = evaluation.unit_loss(
                spec.model, theta_P, tokens, compute=spec.compute, frozen=self.frozen
            )
        return Evaluated(loss=struct.pack(">d", loss), targets=targets)

    def answer_item(self, round_id: int, item: int) -> ItemAnswered:
        """How the model of a recent round answers an item of the run's choices, in the reference class.

        Raises:
            Diverged: that round is ahead of us or too old.
        """
        assert self.choices is not None, "only a run with choices has items"
        theta_P, chosen = self.parameters.at(round_id), self.choices.items[item]
        found = importlib.import_module(_CHOICES).answer(self.spec.model, theta_P, chosen, frozen=self.frozen)
        return ItemAnswered(acc=found.acc, acc_norm=found.acc_norm)

    def batch(self, commit: Commit, round_id: int | None = None) -> NDArray[np.int64]:
        """The sequences of a step, as many as its commit counts: `step_batch` of its round, or this one."""
        theta_P = self.parameters.read(int(commit.round))
        spec, layout, place = (
            self.spec,
            self.parameters.layout,
            (commit.node, int(commit.round) if round_id is None else round_id, commit.tokens),
        )
        return step_batch(
            spec, layout, theta_P, self.tokens, *place,
            device=self.device, frozen=self.frozen, seat=commit.seat,
        )  # fmt: skip

    def examine(
        self,
        commit: Commit,
        update: bytes,
        opening: bytes,
        blocks: list[int],
        segment: int = 0,
        *,
        committed: Digest = NO_DIGEST,
        pattern: Digest = NO_DIGEST,
        drawn_by: Digest = NO_DIGEST,
        in_reference: bool = False,
        own: OwnData = NO_OWN_DATA,
    ) -> Finding:
        """Recompute the drawn part of a step and judge the opened blocks against it.

        Args:
            commit: The step.
            update: Its message.
            opening: An encoded `Opening`; of a rule with inner steps, an `InnerOpening`.
            blocks: The drawn blocks, ascending.
            segment: The drawn segment of inner steps.
            committed: In a dispute, the sketch digest that the node has opened, if it has; a recompute that
                does not yield it is a mismatch.
            pattern: In a dispute, the pattern that the witness sketch is drawn from.
            drawn_by: The seed that drew the step, see `jitter_seed`.
            in_reference: Judge in the reference class although the step is of this machine's own.
            own: What binds the node to data of its own, if it brings some: the opening shows what of them
                the drawn part of the step took.

        Raises:
            MalformedMessage: these bytes are not the opening the commit binds. The fault is the
                sender's, which need not be the node: not a verdict.
        """
        spec, layout = self.spec, self.parameters.layout
        is_exact = commit.exec_class == self.exec_class and not in_reference
        if not is_exact and self.limits is None:
            return _INCONCLUSIVE
        round_id = int(commit.round)
        theta_P, sent = self.parameters.read(round_id), decode_contribution(spec, layout, round_id, update)
        opened = self._decoded(opening, len(blocks))
        shown = (opened if isinstance(opened, Opening) else opened.opening).windows
        if own == NO_OWN_DATA and shown:
            raise MalformedMessage("opening: windows of data that are everybody's")
        batch = self.batch(commit) if own == NO_OWN_DATA else own_batch(spec, commit, own, shown, segment)
        drawn = _Drawn(commit, sent, opened, blocks, segment, drawn_by, theta_P, batch)
        if not is_exact and not spec.rule.is_gradient:
            return self._between_classes(drawn, pattern)
        redo = self._one_gradient if spec.rule.is_gradient else self._one_segment
        gradient = self.gradient if is_exact else self._reference_gradient
        # a Byzantine node's state may overflow; the audit must still end in a verdict
        with np.errstate(all="ignore"):
            redone = redo(drawn, gradient)
            recomputed = redone.sketch(commit.parent)
            witness = NO_DIGEST if pattern == NO_DIGEST else redone.sketch(pattern)
            if not is_exact and self.limits is not None:
                limit = self.limits.of(commit.exec_class, spec.compute.dtype)
                shown_BC = redone.before_BC, redone.after_BC
                size = {"mean": redone.mean, "floor": redone.floor}
                judged = partial(
                    judge,
                    spec.rule.compress,
                    limit,
                    blocks,
                    carried_as_shown(spec, layout, commit, blocks, shown_BC, sent, redone.x_BC, **size),
                    redone.after_BC,
                    sent,
                    redone.x_BC,
                    floor=redone.floor,
                    recomputed=recomputed,
                )
                found, measured = judged()
                found = replace(found, witness=witness)
                if found.outcome is not Outcome.MATCH or measured is None:
                    return self._unless_rounding(
                        found,
                        drawn,
                        lambda see: see(theta_P, batch),
                        lambda wide: judged(widening_B=wide[0][blocks])[0].outcome,
                    )
                return replace(found, is_biased=self.watch.is_biased(commit, measured, blocks, limit))
            return compare(
                spec.rule.compress,
                blocks,
                is_synced(spec, layout, round_id)[blocks],
                carried(spec, layout, commit, blocks, redone.before_BC, redone.x_BC, redone.mean),
                redone.after_BC,
                sent,
                redone.x_BC,
                recomputed=recomputed,
                is_work_equal=redone.is_equal and committed in (NO_DIGEST, recomputed),
                witness=witness,
            )

    def _decoded(self, opening: bytes, block_count: int) -> Opening | InnerOpening:
        spec = self.spec
        size_max = opening_bytes_max(spec.rule, self.parameters.layout, block_count) + shown_bytes_max(spec)
        if spec.rule.is_gradient:
            return decode(Opening, opening, size_max)
        return decode(InnerOpening, opening, size_max)

    def _one_gradient(self, drawn: _Drawn, gradient: Gradient) -> Redone:
        """The gradient of the whole step."""
        spec, layout, blocks, opened = self.spec, self.parameters.layout, drawn.blocks, drawn.opening
        assert isinstance(opened, Opening), "of a rule without inner steps"
        before, after = check_opening(opened, drawn.commit, blocks, spec.rule, layout.blocks)
        _loss, slope_P = gradient(drawn.theta_P, drawn.batch)
        x_NC = judged_blocks(spec, layout, drawn.round, slope_P)
        # Where our gradient is not finite an honest node has none to send: a commit is then false.
        is_equal = bool(np.isfinite(slope_P).all())
        return Redone(
            before,
            after,
            x_NC[blocks],
            lambda pattern: gradient_sketch(pattern, x_NC, sampled_digest(spec, drawn.batch)),
            is_equal,
            mean_block(spec.rule, row_lengths(x_NC)),
            floor_of(x_NC),
        )

    def _one_segment(self, drawn: _Drawn, gradient: Gradient) -> Redone:
        """Recompute the inner steps of the drawn segment, from the state before them that the node opened."""
        layout, commit = self.parameters.layout, drawn.commit
        opened = self._opened_segment(drawn)
        start, (first, last) = opened.start, _steps_of(self.spec, drawn.segment)
        end, loss = run_steps(
            self.spec, drawn.round, first, last, start, drawn.theta_P, drawn.batch, gradient
        )
        digest = roots_of(commit.run_id, layout, end).digest
        is_equal = bool(np.isfinite(loss)) and digest == commit.inner[drawn.segment]
        return Redone(
            opened.before_BC,
            opened.after_BC,
            opened.x_BC,
            lambda pattern: way_sketch(layout, start, end, pattern),
            is_equal,
        )

    def _between_classes(self, drawn: _Drawn, pattern: Digest) -> Finding:
        """Another class: judge the segment's displacement, and the message against its last state."""
        spec, layout, commit, blocks = self.spec, self.parameters.layout, drawn.commit, drawn.blocks
        assert self.limits is not None
        local, (first, last) = spec.rule.local, _steps_of(spec, drawn.segment)
        # a Byzantine node's state may overflow; the audit must still end in a verdict
        with np.errstate(all="ignore"):
            opened = self._opened_segment(drawn)
            start = opened.start
            walk = partial(run_steps, spec, drawn.round, first, last, start, drawn.theta_P, drawn.batch)
            limits = limits_of(
                self.limits.segments,
                commit.exec_class,
                spec.compute.dtype,
                regime_of(local, start.count),
                last - first,
            )
            if limits is None:
                return _INCONCLUSIVE
            end, _ = walk(self._reference_gradient)
            recomputed = way_sketch(layout, start, end, commit.parent)
            lr = rate(local.schedule, *spec.in_line(drawn.round), steps=local.steps, step=last - 1)
            walked = ModelledSegment(local, spec.compute.dtype, layout, last - first, lr, start, end)
            judged = partial(judge_movement, walked, opened.shown, blocks=blocks, recomputed=recomputed)
            found, measured = judged(limits)
            if opened.shown.start is not None and self._is_start_at_fault(drawn, walked):
                found = replace(found, outcome=Outcome.MISMATCH)
            else:
                found = self._unless_rounding(
                    found,
                    drawn,
                    walk,
                    lambda wide: judged(wider(limits, max(one_N.max() for one_N in wide)))[0].outcome,
                )
            # From the opened last parameters on, every machine computes the same bits.
            compared = compare(
                spec.rule.compress,
                blocks,
                is_synced(spec, layout, drawn.round)[blocks],
                carried(spec, layout, drawn.commit, blocks, opened.before_BC, opened.x_BC, 0.0),
                opened.after_BC,
                drawn.sent,
                opened.x_BC,
                recomputed=recomputed,
                is_work_equal=True,
            )
            witness = NO_DIGEST if pattern == NO_DIGEST else way_sketch(layout, start, end, pattern)
        found = replace(worse_of(found, compared), witness=witness)
        if found.outcome is not Outcome.MATCH or not measured:
            return found
        seen = as_one(measured, limits, blocks, layout.blocks)
        return replace(found, is_biased=self.watch.is_biased(commit, *seen))

    def _is_start_at_fault(self, drawn: _Drawn, walked: ModelledSegment) -> bool:
        """Whether a segment overflows from the start that its node opened, and not from public parameters.

        A run may come to nothing by itself, but then it does so for everybody. A node could not have ended
        in the finite state that it committed to, and no other class can say where it should have.
        """
        if walked.end.is_finite:
            return False
        first, last = _steps_of(self.spec, drawn.segment)
        start = fresh(self.spec.rule.local, drawn.theta_P)
        seen = drawn.theta_P, drawn.batch, self._reference_gradient
        return run_steps(self.spec, drawn.round, first, last, start, *seen)[0].is_finite

    def _opened_segment(self, drawn: _Drawn) -> _Opened:
        """The node's opening of a segment, checked.

        Raises:
            MalformedMessage: it is not what the commit binds.
        """
        spec, layout, commit, blocks = self.spec, self.parameters.layout, drawn.commit, drawn.blocks
        opened = drawn.opening
        assert isinstance(opened, InnerOpening), "of a rule with inner steps"
        before_BC, after_BC = check_opening(opened.opening, commit, blocks, spec.rule, layout.blocks)
        shown = check_inner_opening(opened, commit, spec.rule, layout, blocks, drawn.segment)
        start = shown.start
        if drawn.segment == 0 or start is None:
            private = NodeState(np.zeros((0, 0), np.float32), start, commit.base)
            start = begin(spec, layout, drawn.theta_P, private, drawn.round)
        check_reached(spec.rule, commit, drawn.theta_P, start, drawn.segment * spec.rule.local.segment)
        start_BC = to_blocks(layout, drawn.theta_P)[blocks].reshape(shown.last_BC.shape)
        way_BSS = (start_BC - shown.last_BC).reshape(len(blocks), BLOCK_SIDE, BLOCK_SIDE)
        return _Opened(before_BC, after_BC, in_basis(spec.rule, way_BSS), shown, start)

    def _made_again(self, request: RemakeStep) -> Remade:
        """How a step differs that is made again from the state of the one before, or as the first one.

        Raises:
            Diverged: the one before was not made here, or the parameters are not at its round.
        """
        commit = request.commit
        if request.is_first:
            self._remake = Remake(self.parameters, self.batch, self.gradient, commit.base)
        if self._remake is None or self._remake.base != commit.base:
            raise Diverged(f"the state of before round {int(commit.round)} was not made here")
        self._remake.step(commit, is_task=request.is_task, is_compared=request.is_compared)
        differs, is_behind = self._remake.differs, self._remake.is_behind
        return Remade(differs=differs, is_behind=is_behind, exec_class=self.exec_class)

    def _trace(self, commit: Commit) -> bytes:
        """The positions before a step's finding; none behind the first where no program decides the step.

        No juror may be shown data that only one node has.
        """
        if self.limits is None or self.spec.brings_data(commit.node):
            return bytes(START_POSITION)
        answers = importlib.import_module(_APPEALS)
        theta_P = self.parameters.read(int(commit.round))
        found: bytes = answers.positions_of(self.spec, self.limits, commit, theta_P, self.tokens, self.frozen)
        return found

    def _judge(self, request: JudgeOperator) -> bool:
        """Whether a shown operator is right; without limits none is."""
        if self.limits is None:
            return False
        answers = importlib.import_module(_APPEALS)
        try:
            found: bool = answers.is_right(self.spec, self.limits, request, self.tokens, self.frozen)
        except _OURS:
            raise
        except Exception:
            log.exception("evidence ended in an error", extra={"index": request.index})
            return False
        return found

    def gradient(
        self, theta_P: NDArray[np.float32], tokens: NDArray[np.int64]
    ) -> tuple[float, NDArray[np.float32]]:
        """Loss and gradient of a batch in this machine's class."""
        return loss_and_gradient(
            self.spec.model,
            self.parameters.layout,
            theta_P,
            tokens,
            compute=self.spec.compute,
            device=self.device,
            frozen=self.frozen,
        )

    def _unless_rounding(
        self,
        found: Finding,
        drawn: _Drawn,
        walk: Callable[[Gradient], object],
        widened: Callable[[list[Doubles]], Outcome],
    ) -> Finding:
        """The finding; INCONCLUSIVE where it is against the node and rounding alone explains it.

        Honest classes differ by rounding. Where little is left of a gradient's terms (a batch that the model
        knows by heart, or one that contradicts itself), or where the model multiplies what was rounded, it
        exceeds every limit.

        Args:
            found: Between classes.
            drawn: The step; its commit and the seed that drew it decide how the gradient is jittered.
            walk: Takes the step's gradients once more; only where the finding is against the node.
            widened: The outcome within limits that grow as the rounding does, by the `widening` of each
                gradient, of all blocks. Where it is MISMATCH too, no rounding explains the step.
        """
        if found.outcome not in (Outcome.MISMATCH, Outcome.BORDERLINE):
            return found
        wide: dict[int, Doubles] = {}  # by gradient

        def is_explained() -> bool:
            if found.outcome is Outcome.MISMATCH:
                return widened(list(wide.values())) is not Outcome.MISMATCH
            return any((one_N[drawn.blocks] > 1).any() for one_N in wide.values())

        for sample in range(SAMPLES):
            numbers = itertools.count()
            seed = jitter_seed(drawn.commit, sample, drawn.drawn_by)
            walk(partial(self._see_widened, wide, numbers, seed, drawn.round))
            if wide and is_explained():
                return replace(found, outcome=Outcome.INCONCLUSIVE)
        return found

    def _see_widened(
        self,
        wide: dict[int, Doubles],
        numbers: Iterator[int],
        seed: bytes,
        round_id: int,
        theta_P: NDArray[np.float32],
        tokens: NDArray[np.int64],
    ) -> tuple[float, NDArray[np.float32]]:
        """The reference class's gradient; how far a rounding leads in it is added to `wide`."""
        spec, model, layout, compute = self.spec, self.spec.model, self.parameters.layout, self.spec.compute
        loss, slope_P = self._reference_gradient(theta_P, tokens)
        if np.isfinite(slope_P).all():
            jittered = importlib.import_module(_ROUNDING).jittered_gradient
            wide_N = np.full(layout.blocks, WIDEST)
            with suppress(FloatingPointError):
                moved_P = jittered(
                    model, layout, theta_P, tokens, compute=compute, seed=seed, frozen=self.frozen
                )
                wide_N = step_widening(spec, layout, round_id, slope_P, moved_P)
            number = next(numbers)
            wide[number] = np.maximum(wide.get(number, wide_N), wide_N)
        return loss, slope_P

    def _reference_gradient(
        self, theta_P: NDArray[np.float32], tokens: NDArray[np.int64]
    ) -> tuple[float, NDArray[np.float32]]:
        """The gradient with the bits that every machine computes; not a number where it is not finite."""
        reference = importlib.import_module(_REFERENCE).reference_loss_and_gradient
        model, layout, compute = self.spec.model, self.parameters.layout, self.spec.compute
        try:
            found: tuple[float, NDArray[np.float32]] = reference(
                model, layout, theta_P, tokens, compute=compute, frozen=self.frozen
            )
        except FloatingPointError:
            return math.nan, np.full_like(theta_P, np.nan)
        return found


def _steps_of(spec: RunSpec, segment: int) -> tuple[int, int]:
    """The inner steps of a segment, the last exclusive."""
    first = segment * spec.rule.local.segment
    return first, min(first + spec.rule.local.segment, spec.rule.local.steps)


def open_worker(start: RecomputeStart) -> RecomputeWorker:
    """The recompute worker that a start describes; sets this process up to compute."""
    place, folder = start.workplace, Path(start.workplace.folder)
    prepare(
        folder,
        device=place.device,
        threads=place.threads,
        replicas=place.replicas,
        processes=place.processes,
        is_checkpointing=place.is_checkpointing,
    )
    return RecomputeWorker(
        spec=start.spec,
        data=Path(place.data),
        folder=folder,
        base=place.base_path,
        device=place.device,
        limits=agreed_limits(start.spec, Path(start.limits) if start.limits else None),
        memory=folder / MEMORY,
    )


START = RecomputeStart
