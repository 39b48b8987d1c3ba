"""Appeals: lying quorums that take an honest node's stake, and cheats that appeal.

Room: redteam. The step is a real one; every move and judgement is the production code's. The contract that
holds both sides to their times has tests of its own (contracts/test/Appeals.t.sol).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from assay.protocol.params import RunSpec
from assay.protocol.types import Digest
from assay.redteam.attack import Attack, Outcome, Where, tallied
from assay.redteam.test_bed import StepClaim, TestBed, lab_of
from assay.training.reference.narrowing import START, claimed, ends_of, first_wrong
from assay.training.reference.operators import Array, Operator, run_one
from assay.training.reference.trace import output_digest, trace_of
from assay.verifier.appeal.evidence import StepSources, case_id_of, evidence_of, holds, parse_evidence
from assay.verifier.appeal.program import HOLDS, program_of
from assay.verifier.audit.limits import shipped

Pick = Callable[[int, int, Sequence[bytes]], int]


class Trial:
    """A convicted step, what its node claims of it, and the jury's judgement."""

    def __init__(self, lab: TestBed, told: StepClaim) -> None:
        self.spec: RunSpec = replace(lab.spec, audit=replace(lab.spec.audit, limits=shipped().digest()))
        self.lab, self.commit = lab, lab.keep(told)
        theta_P = lab.trainer.parameters.read(lab.round)
        self.sources = StepSources(
            theta_P, lab.batch(), told.before.error_NC, told.after.error_NC, told.update
        )
        self.program: tuple[Operator, ...] = program_of(self.spec, shipped(), self.commit)
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


def _cheats(is_defended: bool, seed: int) -> Outcome:
    """A cheat appeals, with its lie wherever it likes; one honest signer is the defence, or a friend is."""
    lab = lab_of(seed)
    trial = Trial(lab, _noise(lab))
    pick = trial.honestly if is_defended else _towards(2)  # where nothing is wrong
    bends = (None, *range(3, len(trial.program) - 1, 9))
    caught = sum(not trial.is_won(pick, bent) for bent in bends)
    return tallied(len(bends), caught, 0.0, "none: the bond is lost beside the stake")


APPEAL_ATTACKS = (
    Attack(name="a lying quorum takes an honest node's stake", number=26, where=Where.CHAIN, run=_framed,
           defence="an appeal: a jury outside the signers recomputes one operator"),
    Attack(name="appeal against a right order", number=26, where=Where.CHAIN, run=_cheats,
           defence="one honest signer names the operator that is wrong"),
)  # fmt: skip
