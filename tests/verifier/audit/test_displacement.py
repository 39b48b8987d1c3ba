"""Inner steps between classes: what honest machines do matches, and every lie about a segment fails.

python -m tests.verifier.audit.test_displacement DATA FOLDER CASE DTYPE   a node's rounds
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.node.messages import StepRecord
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.messages import Outcome
from assay.protocol.params import ComputeSpec, Precision
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import BLOCK_SIZE, Optimiser
from assay.testing.specs import a_data_folder, a_rule
from assay.training.codec.contribution import decode_contribution
from assay.training.fragments import fragment_blocks
from assay.training.layout import Layout, from_blocks, to_blocks
from assay.training.model.loss import use_one_thread
from assay.training.optimiser import step as rules
from assay.training.optimiser.aggregate import encode_round
from assay.training.optimiser.inner import InnerState, fresh, inner_step, run_steps
from assay.training.transform.compress import distance_blocks
from assay.verifier.aggregation.registry import rule_of
from assay.verifier.audit.displacement import (
    ModelledSegment,
    as_one,
    gained,
    judge_movement,
    measure_movement,
    sharpened,
    worse_of,
)
from assay.verifier.audit.limits import Limits
from assay.verifier.audit.messages import Finding
from assay.verifier.audit.segment import OpenedSegment
from assay.verifier.audit.segment_limits import (
    FRESH_STEPS,
    SEGMENT_POLICIES,
    MeasuredSegment,
    Regime,
    Seen,
    regime_of,
)
from assay.verifier.audit.tolerance import Grade, grades
from assay.verifier.calibration.code_paths import PATHS
from tests.child_process import PYTHONPATH
from tests.verifier.audit.test_segment import Pair, committing, each_method, every_case

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
MATCH, MISMATCH, BORDERLINE = Outcome.MATCH, Outcome.MISMATCH, Outcome.BORDERLINE
ELSEWHERE = Digest(b"x" * 32)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_data_folder(tmp_path_factory.mktemp("data"))


def measured_class(node: Digest, *, steps: int = 2, **changes: object) -> Limits:
    """A calibration in which this class was measured, and honest blocks show no noise."""
    dtypes = (Precision.FLOAT32, Precision.BFLOAT16)
    rows = [
        MeasuredSegment(
            dtype=dtype, regime=regime, steps=steps, path="node", exec_class=node, blocks=1000,
            seen=(Seen(0, 0, 0, 0),) * regime.parts,
        )
        for dtype in dtypes
        for regime in Regime
    ]  # fmt: skip
    return Limits(segments=tuple(replace(row, **changes) for row in rows))


def elsewhere(pair: Pair) -> Pair:
    """The auditor of this pair has another class, and limits for it."""
    node, pair.recompute_worker.exec_class = pair.recompute_worker.exec_class, ELSEWHERE
    pair.recompute_worker.limits = measured_class(node)
    return pair


def a_pair(data: Path, folder: Path, name: str, *cheat: object, **more: object) -> Pair:
    return elsewhere(Pair(data, folder, name, *cheat, **more))


# ---- the truth


@every_case
def test_an_honest_step_matches_in_every_segment_of_every_round(data, tmp_path, name):
    pair = a_pair(data, tmp_path, name)
    for _ in range(3):
        record = pair.step()
        assert pair.outcomes(record) == [MATCH] * 3
        pair.accept(record)


def noisy(pair: Pair, monkeypatch, size: float) -> None:
    """The auditor's gradients differ by this much of their length, each time elsewhere."""
    rng, true = np.random.default_rng(1), pair.recompute_worker.gradient

    def gradient(theta, tokens):
        loss, slope = true(theta, tokens)
        noise = rng.standard_normal(slope.shape) * np.abs(slope)
        return loss, slope + (noise * (size * np.linalg.norm(slope) / np.linalg.norm(noise))).astype("f4")

    monkeypatch.setattr(pair.recompute_worker, "gradient", gradient)


@each_method
@pytest.mark.parametrize(
    ("dtype", "size"), [(Precision.FLOAT32, 2e-6), (Precision.BFLOAT16, 4e-3)], ids=["float32", "bfloat16"]
)
def test_noise_of_the_size_that_kernels_make_matches(data, tmp_path, monkeypatch, name, dtype, size):
    compute = ComputeSpec(dtype=dtype, micro_sequences=0)
    pair = a_pair(data, tmp_path, name, compute=compute)
    noisy(pair, monkeypatch, size)
    is_judged = (name, dtype) != ("muloco", Precision.BFLOAT16)  # whose noise leaves no direction to judge
    for _ in range(2):
        record = pair.step()
        assert pair.outcomes(record) == [MATCH if is_judged else Outcome.INCONCLUSIVE] * 3
        pair.accept(record)


def test_a_node_that_leans_in_every_segment_within_the_limits_is_noticed(data, tmp_path, monkeypatch):
    """T5 of each part by itself: here of the first moment, which no audit of the parameters would show."""
    pair = a_pair(data, tmp_path, "sparseloco")
    noisy(pair, monkeypatch, 2e-6)
    pair.drawn = lambda _: list(range(pair.trainer.layout.blocks))
    t1 = SEGMENT_POLICIES[Precision.FLOAT32, Regime.ADAMW][1].t1 * 1e-9
    layout = pair.trainer.layout
    way = np.random.default_rng(7).choice(np.array([-1, 1], np.float32), layout.parameters)

    def bias(start: InnerState, end: InnerState) -> InnerState:
        gain = end.moments[0] - start.moments[0] * np.float32(0.9**2)
        size_N11 = np.sqrt((to_blocks(layout, gain) ** 2).mean(axis=(1, 2), keepdims=True))
        size_P = from_blocks(layout, np.broadcast_to(size_N11, (layout.blocks, 64, 64)))
        bias = way * size_P * np.float32(t1 / 5)
        biased_P = end.moments[0] + bias
        is_possible_P = np.abs(biased_P) <= np.sqrt(end.moments[1])  # else it opens nothing
        return replace(end, moments=(np.where(is_possible_P, biased_P, end.moments[0]), end.moments[1]))

    told(monkeypatch, {0: bias})
    is_biased = []
    for _ in range(16):
        record = pair.step()
        found = pair.judge(record, 0)
        assert found.outcome is MATCH
        is_biased.append(found.is_biased)
        pair.accept(record)

    assert any(is_biased)


def test_an_honest_node_does_not_lean(data, tmp_path, monkeypatch):
    pair = a_pair(data, tmp_path, "sparseloco")
    noisy(pair, monkeypatch, 2e-6)
    pair.drawn = lambda _: list(range(pair.trainer.layout.blocks))
    for _ in range(16):
        record = pair.step()
        found = pair.judge(record, 0)
        assert (found.outcome, found.is_biased) == (MATCH, False)
        pair.accept(record)


# ---- what is not judged


@each_method
def test_without_limits_for_these_classes_precision_and_length_nothing_is_said(data, tmp_path, name):
    pair = Pair(data, tmp_path, name)
    node, pair.recompute_worker.exec_class = pair.recompute_worker.exec_class, ELSEWHERE
    record = pair.step()
    segments = measured_class(node).segments
    too_noisy = (Seen(10**8, 10**9, 10**9, 10**8),)
    for limits in (
        None,
        Limits(),
        measured_class(ELSEWHERE),
        measured_class(node, steps=1),
        measured_class(node, dtype=Precision.BFLOAT16),
        Limits(segments=tuple(replace(row, seen=too_noisy * row.regime.parts) for row in segments)),
    ):
        pair.recompute_worker.limits = limits
        # Where one step was measured, the last segment, which has one, is judged.
        is_short = limits is not None and bool(limits.segments) and limits.segments[0].steps == 1
        is_short = is_short and limits.segments[0].exec_class == node
        assert pair.outcomes(record)[:2] == [Outcome.INCONCLUSIVE] * 2
        assert pair.outcomes(record)[2] is (MATCH if is_short else Outcome.INCONCLUSIVE)


def test_almost_fresh_moments_are_judged_by_limits_of_their_own(data, tmp_path):
    pair = a_pair(data, tmp_path, "sparseloco")
    rows = pair.recompute_worker.limits.segments
    pair.recompute_worker.limits = Limits(
        segments=tuple(row for row in rows if row.regime is not Regime.FRESH)
    )
    record = pair.step()
    assert pair.outcomes(record) == [Outcome.INCONCLUSIVE] * 3  # after 0, 2 and 4 steps
    pair.accept(record)
    assert pair.outcomes(pair.step()) == [MATCH] * 3


# ---- lies. Each is committed to, and all that follows is computed truly from it.


@each_method
@pytest.mark.parametrize("cheat", ["stale-parameters", "wrong-data", "random-update", "no-feedback"])
def test_a_cheat_is_found_in_the_round_it_begins_in_whichever_segment_is_drawn(data, tmp_path, name, cheat):
    pair = a_pair(data, tmp_path, name, cheat, 1)
    record = pair.step()
    assert pair.outcomes(record) == [MATCH] * 3
    pair.accept(record)

    record = pair.step()

    shows_in = (0,) if (name, cheat) == ("streaming", "stale-parameters") else (0, 1, 2)
    if (name, cheat) == ("streaming", "stale-parameters"):
        return  # its fragments have moved by too little to be told from noise after one round
    assert pair.outcomes(record) == [MISMATCH if s in shows_in else MATCH for s in range(3)]


def told(monkeypatch, lies: dict[int, Callable[[InnerState, InnerState], InnerState]]) -> None:
    """A node that says something else of where these segments ended, and goes on from there."""

    def segments(spec, round_id, start, anchor, tokens, gradient):
        local = spec.rule.local
        for number, first in enumerate(range(0, local.steps, local.segment)):
            last = min(first + local.segment, local.steps)
            state, loss = run_steps(spec, round_id, first, last, start, anchor, tokens, gradient)
            start = lies[number](start, state) if number in lies else state
            yield start, loss

    monkeypatch.setattr(rules, "segments", segments)


def moved(end: InnerState, start: InnerState, times: float) -> InnerState:
    return replace(end, theta_P=start.theta_P + (end.theta_P - start.theta_P) * np.float32(times))


def tossed(end: InnerState, start: InnerState, size: float) -> InnerState:
    """Something small of the same direction everywhere: a bias."""
    way = np.abs(end.theta_P - start.theta_P).mean()
    return replace(end, theta_P=end.theta_P + np.float32(size * way))


def scaled(end: InnerState, first: float = 1.0, second: float = 1.0) -> InnerState:
    return replace(end, moments=(end.moments[0] * np.float32(first), end.moments[1] * np.float32(second)))


STATE_LIES = {
    "no way at all": lambda start, end: moved(end, start, 0),
    "half of the way": lambda start, end: moved(end, start, 0.5),
    "the other way": lambda start, end: moved(end, start, -1),
    "a bias of a fiftieth": lambda start, end: tossed(end, start, 0.02),
    "one step too many in the count": lambda start, end: replace(end, count=end.count + 1),
    "the count of the start": lambda start, end: replace(end, count=start.count),
}
MOMENT_LIES = {
    "moments as they were": lambda start, end: replace(end, moments=start.moments),
    "first moment turned": lambda start, end: scaled(end, first=-1),
    "first moment louder by a fiftieth": lambda start, end: scaled(end, first=1.02),
    "second moment halved": lambda start, end: scaled(end, second=0.5),
    "second moment of zero": lambda start, end: scaled(end, second=0),
    "something put into the first moment": lambda start, end: replace(
        end, moments=(end.moments[0] + np.float32(1e-3), end.moments[1])
    ),
}

# Steps from such a state magnify every rounding, or no steps lead to it: it may be found once more.
ILL_CONDITIONED = {
    "second moment of zero", "something put into the first moment", "one step too many in the count",
}  # fmt: skip


@pytest.mark.parametrize("segment", [0, 1, 2])
@pytest.mark.parametrize("lie", [*STATE_LIES, *MOMENT_LIES])
@pytest.mark.parametrize("name", ["sparseloco", "streaming", "fedavg"])
def test_a_lie_about_a_state_is_found_when_its_segment_is_drawn_and_in_no_other(
    data, tmp_path, monkeypatch, name, lie, segment
):
    if name == "fedavg" and lie in MOMENT_LIES:
        pytest.skip("SGD has no moments")
    pair = a_pair(data, tmp_path, name)
    pair.accept(pair.step())
    told(monkeypatch, {segment: (STATE_LIES | MOMENT_LIES)[lie]})
    record = pair.step()
    monkeypatch.undo()

    for s in range(segment + 1 if lie in ILL_CONDITIONED else 3):
        assert pair.judge(record, s).outcome is (MISMATCH if s == segment else MATCH)


@every_case
def test_a_node_that_sends_another_distance_than_it_went_is_found_in_every_segment(
    data, tmp_path, monkeypatch, name
):
    pair = a_pair(data, tmp_path, name)
    true = distance_blocks
    monkeypatch.setattr(rules, "distance_blocks", lambda *a: true(*a) * np.float32(1.01))
    record = pair.step()
    monkeypatch.undo()

    assert pair.outcomes(record) == [MISMATCH] * 3


@every_case
@pytest.mark.parametrize("what", ["kept", "signs", "a quiet block"])
def test_a_message_that_is_not_the_rules_of_the_distance_is_found(data, tmp_path, monkeypatch, name, what):
    """Of what is kept back; of what is sent; and of blocks that are not this round's."""
    pair = a_pair(data, tmp_path, name)
    if what == "a quiet block" and pair.spec.rule.fragments == 1:
        pytest.skip("every block is sent in every round")
    pair.accept(pair.step())
    true = rules.compress

    def other(spec, layout, base, round_id, before, x, **how):
        found = true(spec, layout, base, round_id, before, x, **how)
        if what == "kept":
            return replace(found, after_BC=found.after_BC + np.float32(1e-3))
        if what == "signs":
            factors = found.factors and replace(found.factors, left_BSR=-found.factors.left_BSR)
            return replace(found, sent=replace(found.sent, value_BK=-found.sent.value_BK), factors=factors)
        after = found.after_BC.copy()
        mine = fragment_blocks(layout, spec.rule.fragments) == round_id % spec.rule.fragments
        after[~mine] += np.float32(1e-3)
        return replace(found, after_BC=after)

    monkeypatch.setattr(rules, "compress", other)
    record = pair.step()
    monkeypatch.undo()

    assert pair.outcomes(record) == [MISMATCH] * 3


# ---- judged by hand

LR = np.float32(2e-3)
LAYOUT = Layout(("a", "b"), ((128, 64), (70,)))
BLOCKS = list(range(LAYOUT.blocks))


def a_walk(steps: int = 5, optimiser: Optimiser = Optimiser.ADAMW, lr: np.float32 = LR) -> ModelledSegment:
    method = "diloco" if optimiser is Optimiser.ADAMW else "fedavg"
    local, rng = a_rule(method, clip_micro=0).local, np.random.default_rng(3)
    start = state = fresh(local, rng.standard_normal(LAYOUT.parameters).astype(np.float32))
    for _ in range(steps):
        slope = rng.standard_normal(LAYOUT.parameters).astype(np.float32)
        state = inner_step(local, LAYOUT, lr, state, start.theta_P, slope)
    return ModelledSegment(local, Precision.FLOAT32, LAYOUT, steps, lr, start, state)


def shown(walked: ModelledSegment, end: InnerState | None = None) -> OpenedSegment:
    end = end or walked.end
    parts = tuple(to_blocks(LAYOUT, one).reshape(-1, BLOCK_SIZE) for one in (end.theta_P, *end.moments))
    return OpenedSegment(walked.start, end.count, parts, parts[0])


LIMITS = SEGMENT_POLICIES[Precision.FLOAT32, Regime.ADAMW]
FRESH_BF16 = SEGMENT_POLICIES[Precision.BFLOAT16, Regime.FRESH]


def judged(walked: ModelledSegment, opened: OpenedSegment, limits=LIMITS) -> Finding:
    return judge_movement(walked, opened, limits, BLOCKS, recomputed=NO_DIGEST)[0]


def test_one_block_that_went_elsewhere_is_named():
    walked = a_walk()
    theta, *moments = shown(walked).end
    for part in range(3):
        parts = [theta.copy(), *(moment.copy() for moment in moments)]
        parts[part][1] *= np.float32(1.5)
        found = judged(walked, replace(shown(walked), end=tuple(parts)))
        assert (found.outcome, found.block) == (MISMATCH, 1)


@pytest.mark.parametrize("method", ["muloco", "diloco"])
def test_where_adamw_takes_a_first_step_a_gradient_of_nearly_zero_may_turn_and_nowhere_else(method):
    """1 % of what a block gained, in one parameter: an honest machine's there, a lie in the next segment."""
    local, rng = a_rule(method, clip_micro=0).local, np.random.default_rng(3)
    state = fresh(local, rng.standard_normal(LAYOUT.parameters).astype(np.float32))
    tensors = {name: slice(at, at + math.prod(shape)) for name, (at, shape) in LAYOUT.offsets().items()}

    def judged_after_two_steps(state: InnerState) -> tuple[InnerState, dict[str, Outcome]]:
        end = state
        for _ in range(2):
            slope = rng.standard_normal(LAYOUT.parameters).astype(np.float32)
            slope[tensors["b"]] *= end.count >= 6  # a word that occurs late
            end = inner_step(local, LAYOUT, LR, end, end.theta_P, slope)
        walked = ModelledSegment(local, Precision.FLOAT32, LAYOUT, 2, LR, state, end)
        limits, found = SEGMENT_POLICIES[Precision.FLOAT32, regime_of(local, state.count)], {}
        assert judged(walked, shown(walked), limits).outcome is MATCH
        for name, where in tensors.items():
            end_P = end.theta_P.copy()
            end_P[where.start] += np.float32(0.01 * np.linalg.norm((end_P - state.theta_P)[where]))
            found[name] = judged(walked, shown(walked, replace(end, theta_P=end_P)), limits).outcome
        return end, found

    for _ in range(3):
        state, _ = judged_after_two_steps(state)
    state, first = judged_after_two_steps(state)
    _, later = judged_after_two_steps(state)
    assert first == {"a": MISMATCH, "b": MATCH}
    assert later == {"a": MISMATCH, "b": MISMATCH}


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_block_that_no_gradient_reached_holds_no_lie_however_small(part):
    """Embeddings of tokens that no text has: decay moves them alone."""
    local, rng = a_rule("diloco", clip_micro=0).local, np.random.default_rng(3)
    start = end = fresh(local, rng.standard_normal(LAYOUT.parameters).astype(np.float32))
    at, shape = LAYOUT.offsets()["b"]
    unreached = slice(at, at + math.prod(shape))
    for _ in range(5):
        slope = rng.standard_normal(LAYOUT.parameters).astype(np.float32)
        slope[unreached] = 0
        end = inner_step(local, LAYOUT, LR, end, end.theta_P, slope)
    walked = ModelledSegment(local, Precision.FLOAT32, LAYOUT, 5, LR, start, end)
    parts = [end.theta_P.copy(), *(moment.copy() for moment in end.moments)]
    parts[part][unreached] += np.float32((1e-6, 1e-12, 1e-12)[part])
    lie = InnerState(parts[0], tuple(parts[1:]), end.count)

    assert judged(walked, shown(walked)).outcome is MATCH
    assert judged(walked, shown(walked, replace(end, theta_P=np.nextafter(end.theta_P, 9)))).outcome is MATCH
    assert judged(walked, shown(walked, lie)).outcome is MISMATCH


def test_a_first_step_that_is_the_only_one_leaves_no_room_in_the_parameters():
    local, rng = a_rule("diloco", clip_micro=0).local, np.random.default_rng(3)
    start = replace(
        fresh(local, rng.standard_normal(LAYOUT.parameters).astype(np.float32)), count=FRESH_STEPS
    )
    slope = rng.standard_normal(LAYOUT.parameters).astype(np.float32)
    end = inner_step(local, LAYOUT, LR, start, start.theta_P, slope)
    walked = ModelledSegment(local, Precision.FLOAT32, LAYOUT, 1, LR, start, end)
    assert gained(walked, BLOCKS)[1].times_B.min() > 1
    assert judged(walked, shown(walked)).outcome is MATCH
    assert judged(walked, shown(walked, moved(end, start, 1.0002))).outcome is MISMATCH


def test_what_is_a_little_beyond_a_limit_is_borderline_and_never_a_mismatch():
    walked = a_walk()
    for part in range(1, 3):
        t1 = LIMITS[part].t1 * 1e-9
        for times, outcome in ((0.5, MATCH), (2.5, BORDERLINE), (20, MISMATCH)):
            factor = [1.0, 1.0, 1.0]
            factor[part] += times * t1
            lie = scaled(walked.end, *factor[1:])
            assert judged(walked, shown(walked, lie)).outcome is outcome


def test_what_two_machines_rounding_can_do_counts_for_nothing():
    """Parameters of ten thousand times the way: one unit in their last place is no lie."""
    walked = a_walk(lr=np.float32(2e-5))
    near = replace(walked.end, theta_P=np.nextafter(walked.end.theta_P, np.float32(9)))
    far = replace(walked.end, theta_P=walked.end.theta_P * np.float32(1 + 1e-4))

    assert judged(walked, shown(walked, near)).outcome is MATCH
    raw_B = measure_movement(walked, gained(walked, BLOCKS), shown(walked, near))[0].rho_B
    assert np.median(raw_B) > 5 * LIMITS[0].t1 * 1e-9
    assert judged(walked, shown(walked, far)).outcome is MISMATCH


def test_one_step_leaves_no_room_in_the_parameters_even_where_fresh_moments_are_noisy():
    """They follow from the opened moments by element; over more steps, what noise made of them is unknown."""
    for steps, outcome in ((1, MISMATCH), (5, MATCH)):
        walked = a_walk(steps)
        lie = moved(walked.end, walked.start, 1.01)
        assert judged(walked, shown(walked, lie), FRESH_BF16).outcome is outcome
        assert judged(walked, shown(walked), FRESH_BF16).outcome is MATCH


def test_moments_with_noise_and_the_parameters_that_follow_from_them_match_after_one_step():
    walked = a_walk(1)
    noise = np.random.default_rng(1).standard_normal(LAYOUT.parameters).astype(np.float32)
    slope = walked.end.moments[0] / np.float32(0.1) + noise * np.float32(4e-3)
    theirs = inner_step(walked.local, LAYOUT, walked.lr, walked.start, walked.start.theta_P, slope)

    assert judged(walked, shown(walked, theirs), FRESH_BF16).outcome is MATCH
    far = measure_movement(walked, gained(walked, BLOCKS), shown(walked, theirs))[0]
    assert grades(far, sharpened(walked, FRESH_BF16)[0]).worst is Grade.PASSED
    straight = np.linalg.norm(theirs.theta_P - walked.end.theta_P)
    assert straight > 0.02 * np.linalg.norm(walked.end.theta_P - walked.start.theta_P)


def test_what_a_moment_forgets_is_no_movement():
    """Where gradients have become small against the moments, what they add is what counts."""
    walked = a_walk()
    slope = np.full(LAYOUT.parameters, 1e-6, np.float32)
    end = inner_step(walked.local, LAYOUT, LR, walked.end, walked.start.theta_P, slope)
    later = ModelledSegment(walked.local, Precision.FLOAT32, LAYOUT, 1, LR, walked.end, end)

    _, first, second = gained(later, BLOCKS)

    assert first.size_B.max() < 1e-6 * np.abs(walked.end.moments[0]).max() * BLOCK_SIZE
    assert second.size_B.max() < 1e-6 * np.abs(walked.end.moments[1]).max() * BLOCK_SIZE


def test_a_distance_that_is_no_number_is_the_largest():
    walked = a_walk(1)
    theta, first, second = shown(walked).end
    opened = replace(shown(walked), end=(theta, first, -second))

    assert np.isinf(measure_movement(walked, gained(walked, BLOCKS), opened)[0].rho_B).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_where_our_own_steps_do_not_stay_finite_nothing_is_said(value, part):
    walked = a_walk()
    parts = [walked.end.theta_P, *walked.end.moments]
    parts[part] = parts[part].copy()
    parts[part][5] = value
    ours = replace(walked, end=InnerState(parts[0], tuple(parts[1:]), walked.end.count))

    found, measured = judge_movement(ours, shown(walked), LIMITS, BLOCKS, recomputed=NO_DIGEST)

    assert (found.outcome, measured) == (BORDERLINE, ())


def test_a_start_of_its_nodes_own_that_overflows_is_a_lie_unless_the_run_itself_does(
    data, tmp_path, monkeypatch
):
    """No class can say where such steps lead: their node would be judged by nobody, and compute nothing."""
    pair = a_pair(data, tmp_path, "elastic")
    record = committing(pair, 0, lambda one: replace(one, theta_P=np.full_like(one.theta_P, 1e30)))
    assert pair.judge(record, 1).outcome is MISMATCH

    def overflows(theta_P, _tokens):
        return np.nan, np.full_like(theta_P, np.nan)

    monkeypatch.setattr(pair.recompute_worker, "_reference_gradient", overflows)
    assert pair.judge(record, 1).outcome is BORDERLINE


def test_no_block_to_open_is_a_match_and_another_count_is_not():
    walked = a_walk()
    empty = replace(shown(walked), end=tuple(part[:0] for part in shown(walked).end))

    assert judge_movement(walked, empty, LIMITS, [], recomputed=NO_DIGEST)[0].outcome is MATCH
    wrong = replace(shown(walked), count=walked.end.count + 1)
    assert judged(walked, wrong).outcome is MISMATCH


@given(
    st.sampled_from([1, 5]),
    st.sampled_from(list(Optimiser)[1:]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(0, 2),
)
def test_any_finite_end_from_any_finite_start_ends_in_a_verdict(steps, optimiser, value, began, part):
    with np.errstate(all="ignore"):
        walked = a_walk(steps, optimiser)
        parts = [one.copy() for one in shown(walked).end]
        part = min(part, len(parts) - 1)
        parts[part][0, :2000] = np.float32(value)
        theta = walked.start.theta_P.copy()
        theta[:1000] = np.float32(began)
        walked = replace(walked, start=replace(walked.start, theta_P=theta))
        opened = replace(shown(walked), end=tuple(parts))
    found, measured = judge_movement(walked, opened, LIMITS[: len(parts)], BLOCKS, recomputed=NO_DIGEST)

    assert found.outcome in (MATCH, MISMATCH, BORDERLINE)
    assert 0 <= found.distance_ppb <= 10**12
    for one in measured:
        assert not np.isnan(one.rho_B).any()


def test_the_watch_sees_every_part_with_the_same_weight_and_blocks_of_their_own():
    walked = a_walk()
    theirs = replace(
        walked.end,
        theta_P=walked.end.theta_P * np.float32(1 + 1e-6),
        moments=(walked.end.moments[0] * np.float32(1 + 1e-2), walked.end.moments[1]),
    )
    measured = measure_movement(walked, gained(walked, BLOCKS), shown(walked, theirs))
    limits = [replace(limit, profile=1000) for limit in LIMITS]

    one, numbers, limit = as_one(measured, limits, BLOCKS, LAYOUT.blocks)

    count = len(BLOCKS)
    assert numbers == list(range(3 * count)) and limit is limits[1]
    lengths = [float(np.linalg.norm(one.residual_BC[at : at + count])) for at in (0, count, 2 * count)]
    assert lengths == pytest.approx([1, 1, 0])


def test_the_worse_finding_counts():
    findings = [Finding(outcome, NO_DIGEST, 0, 0) for outcome in (MATCH, BORDERLINE, MISMATCH)]
    for at, one in enumerate(findings):
        for also, other in enumerate(findings):
            assert worse_of(one, other) is findings[max(at, also)]


# ---- real machines, as far as one can be several


DTYPES = ("float32", "bfloat16")
WALKED = ("sparseloco", "sparseloco, of the transform", "streaming", "fedavg")


@pytest.fixture(scope="module")
def there(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a machine with other kernels did: a folder for each method and precision."""
    folder = tmp_path_factory.mktemp("there")
    where = {**os.environ, **PATHS["aten-default"].environment, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.verifier.audit.test_displacement", str(data), str(folder)],
        env={**where, "PYTHONPATH": PYTHONPATH}, cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WALKED)
def test_an_auditor_on_other_kernels_matches_an_honest_node_and_finds_one_that_skips(
    data, there, tmp_path, name, dtype
):
    compute = ComputeSpec(dtype=Precision[dtype.upper()], micro_sequences=0)
    pair = Pair(data, tmp_path, name, compute=compute)
    recompute_worker = pair.recompute_worker
    for number in range(3):
        step = cbor2.loads((there / name / dtype / f"{number}.cbor").read_bytes())
        record, is_false = decode(StepRecord, step["record"]), number == 2
        node = record.commit.exec_class
        if node == recompute_worker.exec_class:
            pytest.skip("this machine has no other kernels")
        recompute_worker.limits = measured_class(node)
        for segment, opening in enumerate(step["openings"]):
            found = recompute_worker.examine(record.commit, record.update, opening, step["blocks"], segment)
            expected = MISMATCH if is_false and segment == 1 else MATCH
            assert found.outcome is expected, (number, segment, found)
        recompute_worker.parameters.apply(number, step["aggregate"])


def _rounds(data: Path, folder: Path, name: str, dtype: str) -> None:
    """Three rounds of a node, the last of which has a segment that was not walked, with all openings."""
    use_one_thread()
    compute = ComputeSpec(dtype=Precision[dtype.upper()], micro_sequences=0)
    pair = Pair(data, folder, name, compute=compute)
    for number in range(3):
        with pytest.MonkeyPatch.context() as patch:
            if number == 2:
                told(patch, {1: lambda start, end: replace(start, count=end.count)})
            record = pair.step()
        layout, named = pair.trainer.layout, pair.spec.rule.aggregation
        update = decode_contribution(pair.spec, layout, number, record.update)
        mean = rule_of(named.name, named.f, bytes(32))({pair.trainer.node: update}, layout.blocks)
        step = {
            "record": encode(record),
            "openings": [encode(pair.opening(record, segment)) for segment in range(3)],
            "blocks": pair.drawn(record),
            "aggregate": encode_round(pair.spec.rule, mean, layout.blocks),
        }
        (folder / f"{number}.cbor").write_bytes(cbor2.dumps(step))
        pair.accept(record)


if __name__ == "__main__":
    for one, precision in product(WALKED, DTYPES):
        _rounds(Path(sys.argv[1]), Path(sys.argv[2]) / one / precision, one, precision)
