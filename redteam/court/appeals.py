"""Appeals: lying quorums that take an honest node's stake, cheats that appeal, data that convict the honest.

Room: redteam. The step is a real one; every move and judgement is the production code's. The contract that
holds both sides to their times has tests of its own (contracts/test/Appeals.t.sol).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

import assay.verifier.appeal.program
import assay.verifier.audit.worker
from assay.protocol.auditing.audits import case_id_of
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Commit
from assay.protocol.messages import Outcome as Found
from assay.protocol.params import Precision, RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.nodes.test_bed import INNER_STEPS, Floats, StepClaim, TestBed, lab_of, lab_with_inner_steps
from assay.testing.learned import learned_by_heart
from assay.training.frozen import ALL_TRAINED
from assay.training.layout import Layout
from assay.training.model.initial import state_digest
from assay.training.optimiser.inner import InnerState
from assay.training.optimiser.step import Work
from assay.training.optimiser.step import encode as encode_step
from assay.training.reference.narrowing import START, claimed, ends_of, first_wrong
from assay.training.reference.operators import Array, Operator, run_one
from assay.training.reference.trace import output_digest, trace_of
from assay.training.transform.compress import distance_blocks
from assay.verifier.appeal.answers import positions_of
from assay.verifier.appeal.evidence import StepSources, compared_rows, evidence_of, holds, parse_evidence
from assay.verifier.appeal.program import FINDING, HOLDS, STATE, program_of, why_not
from assay.verifier.audit.limits import Limits, shipped
from assay.verifier.audit.segment_limits import MeasuredSegment, Regime, Seen
from assay.verifier.audit.tolerance import Doubles

Pick = Callable[[int, int, Sequence[bytes]], int]
KNOWN_LOSS = 1e-3  # nats
BEACONS = 4  # audits of one step
TIMES = np.float32(20)  # as large as parameters that were trained
WIDENS = "where a rounding leads far, limits widen or nothing is judged"
APPEAL_ATTACKS = Attacks(Where.CHAIN)


class Trial:
    """A convicted step, what its node claims of it, and the jury's judgement."""

    def __init__(
        self,
        lab: TestBed,
        told: StepClaim,
        theta_P: Floats | None = None,
        stepped: tuple[Commit, Sequence[InnerState]] | None = None,
    ) -> None:
        """theta_P: the round's parameters; None: those of the test bed. stepped: with inner steps, the commit
        and the inner state after each segment.
        """
        limits = shipped() if stepped is None else _measured(stepped[0].exec_class)
        self.spec: RunSpec = replace(lab.spec, audit=replace(lab.spec.audit, limits=limits.digest()))
        theta_P = lab.trainer.parameters.read(lab.round) if theta_P is None else theta_P
        commit = lab.keep(told) if stepped is None else stepped[0]
        self.lab, self.commit = lab, replace(commit, state=state_digest(theta_P))
        self.sources = StepSources(
            theta_P,
            lab.batch(),
            told.before.error_NC,
            told.after.error_NC,
            told.update,
            None if stepped is None else compared_rows(lab.spec.rule, stepped[1]),
            told.before.inner,
        )
        self.program: tuple[Operator, ...] = program_of(self.spec, limits, self.commit)
        arrays, self.outputs = self.sources.arrays(self.spec), list[Array]()
        for operator in self.program[:-1]:
            arrays[operator.name] = run_one(operator, arrays)
            self.outputs.append(arrays[operator.name])
        self.known = trace_of(map(output_digest, self.outputs)).positions

    def is_won(self, pick: Pick, bent: int | None = None) -> bool:
        """Whether the appeal withstands a defence that names parts so.

        Args:
            pick: The defence.
            bent: The operator whose output the accused falsified, if any.
        """
        outputs = [*self.outputs, HOLDS]
        if bent is not None:
            outputs[bent] = outputs[bent] + outputs[bent].dtype.type(1)
        trace = trace_of(map(output_digest, outputs))
        first, last, start = 0, len(self.program), bytes(START)
        while last - first > 1:
            told = claimed(trace.positions, first, last)
            part, edges = pick(first, last, told), (first, *ends_of(first, last))
            start = told[part - 1] if part else start
            first, last = edges[part], edges[part + 1]
        body = evidence_of(self.commit, self.program, self.sources, outputs, trace, first)
        evidence = parse_evidence(body, case_id_of(self.commit))
        positions = Digest(start), trace.positions[last]
        return holds(self.spec, self.program, evidence, positions, self.lab.trainer.tokens)

    def honestly(self, first: int, last: int, told: Sequence[bytes]) -> int:
        """The defence of who recomputed the gradient."""
        return first_wrong(self.known, first, last, told)


def _towards(target: int) -> Pick:
    """A defence that ends at one operator, whatever is claimed."""
    return lambda first, last, _: next(part for part, end in enumerate(ends_of(first, last)) if end > target)


def _honest(lab: TestBed) -> StepClaim:
    return lab.claim(lab.truth())


@APPEAL_ATTACKS.attack(
    "a lying quorum takes an honest node's stake",
    26,
    "an appeal: a jury outside the signers recomputes one operator",
)
def _framed(is_defended: bool, seed: int) -> Outcome:
    """A lying quorum defends its order at every operator in turn; the appeal is the defence."""
    lab = lab_of(seed)
    trial = Trial(lab, _honest(lab))
    kept = sum(trial.is_won(_towards(target)) for target in range(len(trial.program)))
    count = len(trial.program)
    harm = "the node is banned and unpaid; its stake returns" if is_defended else "it loses its stake"
    return tallied(count, kept if is_defended else 0, 0.0, harm)


def _noise(lab: TestBed) -> StepClaim:
    random = np.random.default_rng(lab.seed)
    truth_NC = lab.truth()
    noise_NC = random.standard_normal(truth_NC.shape).astype(np.float32)
    return lab.claim(noise_NC * np.float32(np.linalg.norm(truth_NC) / np.linalg.norm(noise_NC)), cost=0.0)


@APPEAL_ATTACKS.attack(
    "appeal against a right order", 26, "one honest signer names the operator that is wrong"
)
def _cheats(is_defended: bool, seed: int) -> Outcome:
    """A cheat appeals, with its lie wherever it likes; one honest signer is the defence, or a friend is."""
    lab = lab_of(seed)
    trial = Trial(lab, _noise(lab))
    pick = trial.honestly if is_defended else _towards(2)  # where nothing is wrong
    bends = (None, *range(3, len(trial.program) - 1, 9))
    caught = sum(not trial.is_won(pick, bent) for bent in bends)
    return tallied(len(bends), caught, 0.0, "none: the bond is lost beside the stake")


@APPEAL_ATTACKS.attack(
    "a lying quorum takes the stake of an honest node with inner steps",
    26,
    "an appeal: all inner steps from public parameters, one operator for the jury",
)
def _framed_with_inner_steps(is_defended: bool, seed: int) -> Outcome:
    """As `_framed`, with Muon inside; the quorum tries every seventh operator, each step and the finding."""
    trial = _inner_trial(seed, is_honest=True)
    names = [operator.name for operator in trial.program]
    targets = [at for at, name in enumerate(names) if not at % 7 or name.endswith(("/" + STATE, FINDING))]
    kept = sum(trial.is_won(_towards(target)) for target in targets)
    harm = "the node is banned and unpaid; its stake returns" if is_defended else "it loses its stake"
    return tallied(len(targets), kept if is_defended else 0, 0.0, harm)


@APPEAL_ATTACKS.attack(
    "appeal against a right order about inner steps",
    26,
    "one honest signer names the operator that is wrong",
)
def _cheats_with_inner_steps(is_defended: bool, seed: int) -> Outcome:
    """A node that took no inner step appeals, with its lie wherever it likes."""
    trial = _inner_trial(seed, is_honest=False)
    pick = trial.honestly if is_defended else _towards(2)
    bends = (None, *range(3, len(trial.program) - 1, 61))
    caught = sum(not trial.is_won(pick, bent) for bent in bends)
    return tallied(len(bends), caught, 0.0, "none: the bond is lost beside the stake")


@APPEAL_ATTACKS.attack(
    "a lying quorum takes the stake of an honest node with kept moments",
    26,
    "an appeal: a jury is shown the moments and takes all inner steps",
)
def _framed_with_kept_moments(is_defended: bool, seed: int) -> Outcome:
    """As `_framed`, where rounds begin with kept moments: there is one operator to doubt."""
    trial = _inner_trial(seed, is_honest=True, keeps_moments=True)
    kept = trial.is_won(trial.honestly)
    harm = "the node is banned and unpaid; its stake returns" if is_defended else "it loses its stake"
    return tallied(1, int(kept and is_defended), 0.0, harm)


@APPEAL_ATTACKS.attack(
    "appeal about moments that only the cheat has", 26, "one honest signer doubts it; jurors are shown them"
)
def _cheats_with_kept_moments(is_defended: bool, seed: int) -> Outcome:
    """A node that took no inner step appeals; it shows its moments, others than it committed to, or none."""
    trial = _inner_trial(seed, is_honest=False, keeps_moments=True)
    start = trial.sources.start
    assert start is not None
    others = tuple(np.zeros_like(moment_P) for moment_P in start.moments)
    caught, starts = 0, (start, replace(start, moments=others), None)
    for shown in starts:
        trial.sources = replace(trial.sources, start=shown)
        try:
            caught += is_defended and not trial.is_won(trial.honestly)
        except MalformedMessage:  # nothing is shown, and the jury's time passes
            caught += is_defended
    return tallied(len(starts), caught, 0.0, "none: the bond is lost beside the stake")


@APPEAL_ATTACKS.attack(
    "appeal where no program decides the step (3 ways)", 26, "signers doubt every claim about it"
)
def _cheats_without_a_program(is_defended: bool, seed: int) -> Outcome:
    """A cheat appeals about a step that appeals do not cover; undefended, no signer has a trace of it."""
    lab = lab_of(seed)
    trial = Trial(lab, _noise(lab))
    spec, commit, limits = trial.spec, trial.commit, shipped()
    ways = (
        (replace(spec, rule=replace(spec.rule, read_lag=1)), commit),
        (replace(spec, audit=replace(spec.audit, limits=NO_DIGEST)), commit),
        (spec, replace(commit, state=NO_DIGEST)),
    )
    caught = 0
    for run, step in ways:
        theta_P, tokens = trial.sources.theta_P, lab.trainer.tokens
        known = positions_of(run, limits, step, theta_P, tokens, ALL_TRAINED) if is_defended else b""
        caught += known != b"" and why_not(run, limits, step) is not None  # by which a jury finds it wrong
    harm = "none: the bond is lost beside the stake" if is_defended else "nobody comes: it keeps its stake"
    return tallied(len(ways), caught, 0.0, harm)


def _inner_trial(seed: int, *, is_honest: bool, keeps_moments: bool = False) -> Trial:
    """A step of a node that took its inner steps, or made their end up."""
    lab, record = lab_with_inner_steps(seed, keeps_moments=keeps_moments)
    steps, round_id, commit = lab.trainer.steps, lab.round, record.commit
    before, after, ends = steps.private(commit.base), steps.private(round_id + 1), steps.ends(round_id)
    assert before is not None and after is not None and ends is not None
    update, end = record.update, ends[-1]
    if not is_honest:
        spec, layout, start_P = lab.spec, lab.trainer.layout, lab.trainer.parameters.read(round_id)
        noise_P = np.random.default_rng(seed).standard_normal(len(start_P)).astype(np.float32)
        way_P = end.theta_P - start_P
        far = np.float32(np.linalg.norm(way_P) / np.linalg.norm(noise_P))
        ends = (replace(end, theta_P=start_P + noise_P * far),)
        x_NC = distance_blocks(spec.rule, layout, start_P, ends[-1].theta_P)
        after, update = encode_step(spec, layout, round_id, before, Work(x_NC, 5.0, ends))
        commit = replace(
            commit,
            update=blob_digest(update),
            momentum_after=steps.tree(after).root,
            inner=steps.inner_digests(ends),
        )
    told = StepClaim(before=before, after=after, update=update, sketches=record.sketches)
    return Trial(lab, told, stepped=(commit, ends))


def _measured(exec_class: Digest) -> Limits:
    """Limits for a round of inner steps of this class, as tight as any are."""
    row = MeasuredSegment(
        dtype=Precision.FLOAT32,
        regime=Regime.MUON,
        steps=INNER_STEPS,
        path="test bed",
        exec_class=exec_class,
        blocks=1,
        seen=(Seen(0, 0, 0, 0),) * Regime.MUON.parts,
    )
    return Limits(segments=(row,))


@APPEAL_ATTACKS.attack("data known by heart convict honest nodes of another class", 30, WIDENS)
def _by_heart(is_defended: bool, seed: int) -> Outcome:
    """The model knows a buyer's data."""
    lab = lab_of(seed)
    read = lab.recompute_worker.parameters.read(lab.round)
    known_P = learned_by_heart(lab.spec.model, read, lab.batch(), loss_at_most=KNOWN_LOSS)
    return _rounded(is_defended, lab, known_P)


@APPEAL_ATTACKS.attack("parameters that multiply rounding convict them", 30, WIDENS)
def _multiplied(is_defended: bool, seed: int) -> Outcome:
    """A buyer's model multiplies what was rounded."""
    lab = lab_of(seed)
    return _rounded(is_defended, lab, lab.recompute_worker.parameters.read(lab.round) * TIMES)


def _rounded(is_defended: bool, lab: TestBed, theta_P: Floats) -> Outcome:
    """From these parameters auditors of another class judge an honest step, and a jury does."""
    auditor = lab.recompute_worker
    told = lab.claim(lab.x_of(lab.batch(), theta=theta_P))
    with ExitStack() as stack:
        stack.enter_context(without(auditor, "limits", shipped()))
        stack.enter_context(without(auditor.parameters, "read", lambda _round: theta_P))
        for module in (assay.verifier.audit.worker, assay.verifier.appeal.program):
            stack.enter_context(without(module, "step_widening", _nothing_rounds, unless=is_defended))
        trial = Trial(lab, told, theta_P)
        found = [judged_between_classes(trial, told, beacon) for beacon in range(BEACONS)]
        is_kept = trial.is_won(trial.honestly)
    convicted = found.count(Found.MISMATCH) + (not is_kept)
    silent = found.count(Found.INCONCLUSIVE)
    harm = f"nobody is convicted; {silent} of {BEACONS} audits judge nothing, so the step is unpaid"
    return Outcome(attempts=BEACONS + 1, caught=0, succeeded=convicted, cost=1.0, harm=harm)


def _nothing_rounds(_spec: RunSpec, layout: Layout, *_: object) -> Doubles:
    return np.zeros(layout.blocks)


def judged_between_classes(trial: Trial, told: StepClaim, beacon: int) -> Found:
    """What an auditor of another class finds of a step, by the blocks that this beacon draws."""
    lab, blocks = trial.lab, trial.lab.drawn(told.update, beacon)
    opening = lab.trainer.steps.opening(lab.round, blocks)
    judge = lab.recompute_worker.examine
    return judge(trial.commit, told.update, opening, blocks, in_reference=True).outcome
