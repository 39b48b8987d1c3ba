"""False state: attacks by one false step that nobody drew, through the private state that later steps carry.

Room: redteam. Later steps are honest by every audit, for an audit recomputes a step from the state that the
node claims to have begun with. What limits such a lie is the rule of the step itself: it bounds what a step
carries, in size and in life (training/optimiser/carry.py), and Muon's moments by the present gradient. The
defence that is switched off is that bound.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import assay.training.optimiser.carry
import assay.training.optimiser.muon
import assay.training.optimiser.step
import assay.verifier.audit.carried
import assay.verifier.audit.tolerance
from assay.protocol.messages import Outcome as Found
from assay.protocol.types import Digest
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.nodes.test_bed import Floats, TestBed, lab_of
from assay.training.methods.choices import Choices, method_rule
from assay.training.optimiser.carry import is_renewed
from assay.training.optimiser.inner import InnerState, inner_step
from assay.training.optimiser.matrices import matrices
from assay.training.optimiser.step import compress
from assay.verifier.audit.limits import shipped

STEERED = 0.75  # of a block's signs are the lie's; by chance a half are
STATE_ATTACKS = Attacks(Where.STEP)


@STATE_ATTACKS.attack(
    "no work beside a false momentum", 30, "the momentum that a step carries is bounded in size and in life"
)
def _free_ride(is_defended: bool, seed: int) -> Outcome:
    """After one false step that nobody drew: a momentum beside which no gradient leaves a bit, and no work.

    The node says that it is of another execution class, for in its own the sketch would show it.
    """
    lab = lab_of(seed)
    layout, steps, honest = lab.trainer.layout, lab.trainer.steps, lab.before
    earlier = steps.record(lab.round - 1)
    assert earlier is not None
    drawn = np.random.default_rng(seed).uniform(0.5, 1.0, (layout.blocks, 4096)).astype(np.float32)
    caught, sizes = 0, (1e10, 1e30)
    with ExitStack() as stack:
        stack.enter_context(without(lab.recompute_worker, "limits", shipped()))
        if not is_defended:
            for module in (assay.training.optimiser.step, assay.verifier.audit.carried):
                stack.enter_context(without(module, "carried_shares", _all_of_it))
            stack.enter_context(without(assay.verifier.audit.tolerance, "_excuses_all", lambda *_: False))
        for size in sizes:
            false = replace(honest, error_NC=drawn * np.float32(size))
            steps.keep(earlier, false, steps.tree(false))
            claim = lab.claim(np.zeros_like(false.error_NC), before=false, cost=0.0)
            claim = replace(claim, before=false)
            commit, blocks = lab.keep(claim), lab.drawn(claim.update)
            found = lab.recompute_worker.examine(
                replace(commit, exec_class=Digest(b"\x07" * 32)),
                claim.update,
                steps.opening(lab.round, blocks),
                blocks,
            )
            caught += found.outcome is Found.MISMATCH
    steps.keep(earlier, honest, steps.tree(honest))
    harm = "paid for every round of the run without a gradient" if caught < len(sizes) else "none"
    return tallied(len(sizes), caught, 0.0, harm)


@STATE_ATTACKS.attack(
    "Muon steps by a false momentum", 30, "Muon's moments are bounded by the present gradient"
)
def _obeyed_momentum(is_defended: bool, seed: int) -> Outcome:
    """The same with Muon: a false momentum that decides every later step, whatever its gradient."""
    local, layout = method_rule("muloco", Choices()).local, lab_of(seed).trainer.layout
    drawn = np.random.default_rng(seed)
    theta_P, lie_P, *slopes = (drawn.standard_normal(layout.parameters).astype(np.float32) for _ in range(4))
    caught, sizes = 0, (1e10, 1e30)
    unbounded = without(assay.training.optimiser.muon, "_share", lambda *_: np.float32(1))
    with nullcontext() if is_defended else unbounded:
        for size in sizes:
            false = InnerState(theta_P, (lie_P * np.float32(size), np.zeros_like(lie_P)), 100)
            one, other = (
                inner_step(local, layout, np.float32(0.02), false, theta_P, slope_P) for slope_P in slopes
            )
            matrix = matrices(layout)[0]
            caught += not np.array_equal(matrix.of(one.theta_P), matrix.of(other.theta_P))
    harm = (
        "none: each step needs its own gradient"
        if caught
        else "its matrices need no gradient until the reset"
    )
    return tallied(len(sizes), caught, 0.0, harm)


def _all_of_it(_rule: Any, _rounds: int, _base: int, _round: int, blocks: Any, *_: Any, **__: Any) -> Any:
    """`carried_shares` of a rule that bounds nothing."""
    return np.ones(len(blocks), np.float32)


@dataclass(frozen=True, slots=True)
class _Lie:
    """A false error in every block, in one direction.

    size: its length, in units of a step's work. last: told in the last step before the block's error begins
    anew; otherwise in the first one after that, which is the best time. So blocks are lied about one by one.
    """

    size: float
    is_last: bool = False


LIES = (_Lie(1), _Lie(8), _Lie(1e30), _Lie(1e30, is_last=True))


@STATE_ATTACKS.attack(
    "steer by one false state", 13, "the momentum that a step carries is bounded in size and in life"
)
def _steer(is_defended: bool, seed: int) -> Outcome:
    """The state is false once, and all work is honest after it: for how long does a block send the lie?"""
    lab = lab_of(seed)
    life = lab.spec.rule.compress.reset_rounds
    lasted = _rounds_steered(lab, is_defended)
    once, eight, most, last = (f"{rounds:.0f}" for rounds in lasted)
    harm = (
        f"of {life} steps a block sends the lie's signs in {once} where the lie is as large as a step, in "
        f"{eight} where it is eight times that, in {most} at most; in {last} if told in a block's last step"
    )
    steered = round(sum(lasted))
    return Outcome(attempts=life * len(LIES), caught=0, succeeded=steered, cost=1.0, harm=harm)


def _rounds_steered(lab: TestBed, is_defended: bool) -> list[float]:
    """For each lie the steps, in a block's mean, in which `STEERED` of what the block sends has its signs."""
    layout, rng = lab.trainer.layout, np.random.default_rng(lab.seed)
    life, size_N = lab.spec.rule.compress.reset_rounds, np.linalg.norm(lab.truth(), axis=1).astype(np.float32)
    common_NC, lie_NC = (_unit(rng, layout.blocks) for _ in range(2))
    errors_NC = [np.zeros((layout.blocks, 4096), np.float32) for _ in LIES]
    told_N = [np.full(layout.blocks, -1) for _ in LIES]
    steered = [0 for _ in LIES]
    with _bounded(is_defended):
        for number in range(3 * life):
            work_NC = size_N[:, None] * (common_NC * np.float32(0.5) + _unit(rng, layout.blocks))
            for at, lie in enumerate(LIES):
                moved = compress(lab.spec, layout, number, number, errors_NC[at], work_NC)
                error_NC, sent = moved.after_BC, moved.sent
                told_B = told_N[at][sent.blocks_B]
                is_lie_BK = np.sign(sent.value_BK) == np.sign(lie_NC[sent.blocks_B[:, None], sent.index_BK])
                is_steered_B = (told_B >= 0) & (number - told_B <= life) & (is_lie_BK.mean(axis=1) > STEERED)
                steered[at] += int(is_steered_B.sum())
                if life <= number < 2 * life:
                    due = (number + lie.is_last + np.arange(layout.blocks)) % life == 0
                    error_NC[due] = lie_NC[due] * (size_N[due, None] * np.float32(lie.size))
                    told_N[at][due] = number
                errors_NC[at] = error_NC
    return [count / layout.blocks for count in steered]


@STATE_ATTACKS.attack(
    "stay away when a false state begins anew", 13, "a missed round is made up for in the next step"
)
def _absent(is_defended: bool, seed: int) -> Outcome:
    """A state is false once, and its node misses one round in `life`, that of block 0; its work is honest.

    Whoever makes it again from other rounds' work has another state as long as anything of the lie is left,
    so that no later step can be accused.
    """
    lab = lab_of(seed)
    layout, rng, life = lab.trainer.layout, np.random.default_rng(seed), lab.spec.rule.compress.reset_rounds
    false_NC = _unit(rng, layout.blocks)
    true_NC, base = np.zeros_like(false_NC), life + 1
    with without(assay.training.optimiser.carry, "is_renewed", _in_its_round, unless=is_defended):
        for number in range(life + 1, 3 * life):
            if number % life:
                work_NC = _unit(rng, layout.blocks)
                false_NC, true_NC = (
                    compress(lab.spec, layout, base, number, error_NC, work_NC).after_BC
                    for error_NC in (false_NC, true_NC)
                )
                base = number + 1
    left = int((false_NC != true_NC).any(axis=1).sum())
    harm = f"none: {left} of {layout.blocks} blocks have anything of it two lives later; undefended one has"
    return tallied(1, int(left == 0), 1.0, harm)


def _in_its_round(rule: Any, _base: int, round_id: int, blocks: Any, fragment_B: Any) -> Any:
    """`is_renewed` of a rule by which a block begins anew in its own round alone."""
    return is_renewed(rule, round_id, round_id, blocks, fragment_B)


def _unit(rng: np.random.Generator, blocks: int) -> Floats:
    """Rows of length one."""
    rows = rng.standard_normal((blocks, 4096), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def _bounded(is_defended: bool) -> AbstractContextManager[Any]:
    return (
        nullcontext() if is_defended else without(assay.training.optimiser.step, "carried_shares", _all_of_it)
    )
