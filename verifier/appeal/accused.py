"""Accused: conducts an appeal for the account that a case accuses, until it has ended.

Room: verifier (edge: the chain, a folder). Moves are due within hours or days, so this looks now and then;
killed and started again it goes on, since everything follows from the chain and the node's own step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from assay.chain.state import AppealPhase, CasePhase, DefencePhase
from assay.protocol.auditing.audits import case_id_of
from assay.protocol.errors import ConfigError
from assay.protocol.messages import Commit
from assay.protocol.params import RunSpec
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.model.initial import state_digest
from assay.training.reference.gradient import run
from assay.training.reference.narrowing import claimed
from assay.training.reference.operators import Array, Operator
from assay.training.reference.trace import Trace, traced
from assay.verifier.appeal.evidence import StepSources, evidence_of
from assay.verifier.appeal.program import program_of, why_not
from assay.verifier.audit.limits import Limits

if TYPE_CHECKING:
    from assay.chain.client import Chain

POLL_S = 5.0


@dataclass(frozen=True, slots=True)
class Step:
    """A step as its node claims it, by the trace of its program, whose last output says that it holds.

    outputs: those before the operator with an index, as far as it reads them. They are computed again: all of
    them at once take more memory than training does.
    """

    commit: Commit
    sources: StepSources
    program: Sequence[Operator]
    outputs: Callable[[int], Sequence[Array]]
    trace: Trace


def step_of(
    spec: RunSpec, limits: Limits | None, commit: Commit, sources: StepSources, frozen: Frozen = ALL_TRAINED
) -> Step:
    """Run the program of one's own step.

    Raises:
        ConfigError: no program decides it, the parameters are not the commit's, or the step does not hold, so
            that an appeal would be lost.
    """
    reason = why_not(spec, limits, commit)
    if reason is not None or limits is None:
        raise ConfigError(f"no appeal covers this step: {reason}")
    if state_digest(sources.theta_P, sources.rest) != commit.state:
        raise ConfigError("the parameters of that round are not on this disk")
    program, arrays = program_of(spec, limits, commit), sources.arrays(spec, frozen)
    try:
        trace, _ = traced(program, arrays)
    except ArithmeticError as error:
        raise ConfigError(f"the step does not hold, so its appeal would be lost: {error}") from None
    return Step(commit, sources, program, partial(_outputs, program, arrays), trace)


def _outputs(program: tuple[Operator, ...], arrays: Mapping[str, Array], index: int) -> list[Array]:
    """The outputs before an operator; of those that it does not read an empty array."""
    wanted, found = program[index].inputs, list[Array]()
    if index:
        run(
            program[:index],
            arrays,
            lambda one, output: found.append(output if one.name in wanted else output[:0]),
        )
    return found


def conduct(
    chain: Chain,
    step: Step,
    save: Callable[[int, bytes], Path],
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Appeal, answer every defence, and reverse the case once none is left.

    Args:
        chain: The accused account's.
        step: Its step.
        save: Keeps the evidence about the operator with this index, for jurors; returns where.
        wait: Between two looks.

    Yields:
        A line for each move.

    Raises:
        ConfigError: there is no such case, or it is past its veto window.
        ChainRefused: a contract refuses a move.
    """
    case_id, positions = case_id_of(step.commit), step.trace.positions
    case, count = chain.case(case_id), len(step.program)
    if chain.appeal(case_id).phase is AppealPhase.NONE:
        if case.phase is not CasePhase.OPEN or chain.timestamp() >= case.veto_ends_at:
            raise ConfigError(f"case {case_id.hex()[:8]} cannot be appealed any more: {case.phase.name}")
        chain.appeal_case(case_id, count, claimed(positions, 0, count))
        yield f"appealed case {case_id.hex()}: {count} operators"
    shown: set[int] = set()
    while (appeal := chain.appeal(case_id)).phase is AppealPhase.OPEN:
        for account, defence, _ in chain.defences(case_id):
            if defence.phase is DefencePhase.CUT and chain.timestamp() < defence.until:
                chain.cut_part(case_id, account, claimed(positions, defence.first, defence.last))
                yield f"cut operators {defence.first} to {defence.last} for {account}"
            if defence.phase is DefencePhase.JURY and defence.first not in shown:
                shown.add(defence.first)
                outputs = step.outputs(defence.first)
                body = evidence_of(
                    step.commit, step.program, step.sources, outputs, step.trace, defence.first
                )
                yield f"evidence for jurors about operator {defence.first}: {save(defence.first, body)}"
        if not appeal.playing and chain.timestamp() >= appeal.answer_by:
            chain.conclude_appeal(case_id)
            continue
        wait(POLL_S)
    yield f"the appeal has ended: {appeal.phase.name}"
