"""Appeals over rounds that begin with moments of the round before: a juror takes all inner steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.node.trainer import Trainer
from assay.protocol.auditing.audits import case_id_of
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.types import NO_DIGEST
from assay.protocol.update_rule import BLOCK_SIZE
from assay.training.frozen import ALL_TRAINED
from assay.training.layout import layout_of
from assay.training.model.loss import use_one_thread
from assay.training.model.presets import gpt_spec
from assay.training.optimiser import inner
from assay.training.reference.narrowing import OPERATORS_MAX, START
from assay.verifier.appeal import inner as judging
from assay.verifier.appeal.accused import step_of
from assay.verifier.appeal.answers import positions_of
from assay.verifier.appeal.evidence import evidence_of, holds, parse_evidence
from assay.verifier.appeal.fetch import evidence_bytes_max
from assay.verifier.appeal.program import FINDING, operator_count, why_not
from assay.verifier.audit.limits import Limits
from assay.verifier.audit.segment_limits import Seen, regime_of
from assay.verifier.audit.tolerance import step_widening
from tests.verifier.appeal.test_appeal import Party
from tests.verifier.appeal.test_inner_steps import (
    CHEATS,
    STEPS,
    Large,
    a_node,
    another_end,
    ended,
    forged,
    noise,
    noise_throughout,
    twice_as_far,
)
from tests.verifier.audit.test_displacement import measured_class
from tests.verifier.audit.test_exact import CHEAT_ROUND

pytestmark = pytest.mark.slow

METHODS = ("sparseloco", "muloco")  # AdamW and Muon inside, as buyers order them
SEGMENT = 2  # so that a round has two segments, of two steps and of one


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


def a_keeper(folder, behaviour: str, method: str, trainer_of=None, **choices) -> Party:
    """A node whose moments are kept."""
    kept = {"keeps_moments": True, "segment": SEGMENT} | choices
    return a_node(folder, behaviour, method, trainer_of, kept)


@pytest.fixture(scope="module", params=METHODS)
def honest(request, tmp_path_factory) -> Party:
    return a_keeper(tmp_path_factory.mktemp("honest"), "honest", request.param)


def test_an_honest_node_wins_and_its_evidence_is_within_what_jurors_accept(honest):
    assert honest.sources.start.count == CHEAT_ROUND * STEPS  # its moments were kept in all rounds before
    assert [one.name for one in honest.program] == [FINDING]
    assert operator_count(honest.spec, honest.commit) == 1
    assert honest.doubted() == (0, True)
    assert len(evidence(honest)) <= evidence_bytes_max(honest.spec)


def test_the_bound_on_evidence_covers_every_inner_state_of_a_wide_model(honest):
    wide = gpt_spec(layers=2, width=512, heads=2, context=8, vocabulary=257)
    layout, states = layout_of(wide), 1 + honest.spec.rule.segments
    shown = layout.parameters + 2 * layout.blocks * BLOCK_SIZE + states * 3 * layout.parameters

    assert evidence_bytes_max(replace(honest.spec, model=wide)) > 4 * shown


def test_a_signer_knows_no_position_but_the_start(honest):
    """What the finding says follows from what only the node has."""
    sources = honest.sources
    known = positions_of(
        honest.spec, honest.limits, honest.commit, sources.theta_P, honest.tokens, ALL_TRAINED
    )

    assert known == bytes(START)


def test_the_accused_claims_its_step_and_one_that_does_not_hold_is_not_appealed(honest, tmp_path):
    step = step_of(honest.spec, honest.limits, honest.commit, honest.sources)

    assert step.trace == honest.trace
    shown = evidence_of(step.commit, step.program, step.sources, step.outputs(0), step.trace, 0)
    assert shown == evidence(honest)
    cheat = a_keeper(tmp_path, "random-update", "muloco")
    with pytest.raises(ConfigError, match="does not hold"):
        step_of(cheat.spec, cheat.limits, cheat.commit, cheat.sources)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_false_step_loses(tmp_path, method, cheat):
    assert a_keeper(tmp_path, cheat, method).doubted() == (0, False)


def in_the_accused_round(lie):
    """A trainer one of whose inner steps are others than the rule's, by their number in the round."""

    class Bender(Trainer):
        def _work(self, round_id, before, tokens):
            true, numbers = inner.inner_step, iter(range(STEPS))
            if round_id == CHEAT_ROUND:
                inner.inner_step = lambda *step: lie(next(numbers), true, *step)
            try:
                return super()._work(round_id, before, tokens)
            finally:
                inner.inner_step = true

    return Bender


class Impossible(Trainer):
    """Ends the round before the accused one in moments that no gradients have, and is honest from there."""

    def _work(self, round_id, before, tokens):
        work = super()._work(round_id, before, tokens)
        if round_id != CHEAT_ROUND - 1:
            return work
        end = work.ends[-1]
        moments = np.sqrt(end.moments[1]) * np.float32(8) + np.float32(1e-9), end.moments[1]
        return replace(work, ends=(*work.ends[:-1], replace(end, moments=moments)))


def test_an_honest_round_from_a_start_that_no_steps_lead_to_loses_as_it_does_in_an_audit(
    tmp_path, monkeypatch
):
    party = a_keeper(tmp_path, "impossible", "sparseloco", Impossible)
    assert party.doubted() == (0, False)

    monkeypatch.setattr(judging, "check_reached", lambda *_: None)
    party = a_keeper(tmp_path / "unchecked", "impossible", "sparseloco", Impossible)
    assert party.doubted() == (0, True)


def false_start(number, true, local, layout, lr, state, *rest):
    """Moments that the step before did not end in."""
    if number == 0:
        state = replace(state, moments=tuple(moment_P + np.float32(1e-3) for moment_P in state.moments))
    return true(local, layout, lr, state, *rest)


def one_step_longer(at):
    def lie(number, true, local, layout, lr, *rest):
        return true(local, layout, lr * np.float32(1.5 if number == at else 1), *rest)

    return lie


def false_middle(work):
    """A first segment that ends elsewhere; the last one, and so the message, is what honest work leads to."""
    first, *rest = work.ends
    return replace(work, ends=(replace(first, theta_P=first.theta_P + np.float32(1e-3)), *rest))


LIES = {
    "moments of its own": in_the_accused_round(false_start),
    "a longer first step": in_the_accused_round(one_step_longer(0)),
    "a longer last step": in_the_accused_round(one_step_longer(STEPS - 1)),
    "a false middle": forged(false_middle),
    "noise as message": forged(noise),
    "a message twice as large": forged(twice_as_far),
    "noise throughout": forged(noise_throughout),
    "another end": forged(another_end),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_any_part_of_the_round_loses(tmp_path, method, lie):
    assert a_keeper(tmp_path, lie, method, LIES[lie]).doubted() == (0, False)


def test_a_last_step_that_its_own_moments_do_not_lead_to_loses_by_what_classes_may_differ(tmp_path):
    """A segment of one AdamW step follows from what it ended in: a part in twenty thousand is too far."""

    def further(work):
        before, end = work.ends[-2:]
        way_P = (end.theta_P - before.theta_P) * np.float32(5e-5)
        return ended(work, replace(end, theta_P=end.theta_P + way_P))

    assert a_keeper(tmp_path, "further", "sparseloco", forged(further)).doubted() == (0, False)


def test_a_start_that_the_step_before_did_not_end_in_shows_nothing(honest):
    """Nor does one that is withheld: a juror who sees nothing votes wrong when its time is over."""
    start = np.frombuffer(parsed(honest).start, "<f4")
    refused(honest, "before", start=(start + np.float32(1e-3)).tobytes())
    refused(honest, "bytes", start=b"")
    refused(honest, "inner state", start_count=parsed(honest).start_count + 1)
    for count in (-1, 2**48 + 1, 2**63, 2**64 - 1):  # the codec takes the last two
        refused(honest, "steps", start_count=count)
    refused(honest, "finite", start=np.full_like(start, np.nan).tobytes())


def test_ends_that_were_never_committed_show_nothing(honest):
    ends = np.frombuffer(parsed(honest).end, "<f4").copy()
    for at in (0, -1):  # of the first segment, and of the last
        bent = ends.copy()
        bent[at] += np.float32(1e-3)
        refused(honest, "inner state", end=bent.tobytes())
    refused(honest, "bytes", end=ends[: len(ends) // 2].tobytes())


def test_a_step_that_begins_afresh_shows_no_start(honest, tmp_path):
    """As every node's first does, and whoever joins again."""

    class Newcomer(Trainer):
        def step(self, round_id, parent, base, root, *, left_ms=0):
            is_new = round_id == CHEAT_ROUND
            return super().step(round_id, parent, 0 if is_new else base, NO_DIGEST if is_new else root)

    party = a_keeper(tmp_path, "honest", "muloco", Newcomer)
    assert party.commit.base == 0 and party.sources.start is None
    assert party.doubted() == (0, True)
    refused(party, "bytes of start, expected 0", start=parsed(honest).start)
    refused(party, "after 1 steps, expected 0 to 0", start_count=1)


def test_moments_that_are_renewed_in_the_round_are_zero_whatever_was_carried(tmp_path):
    for behaviour, is_won in (("honest", True), ("random-update", False)):
        party = a_keeper(tmp_path / behaviour, behaviour, "muloco", reset_rounds=CHEAT_ROUND)

        assert party.sources.start.count > 0  # bound by the commit, and not gone on from
        assert party.doubted() == (0, is_won)


def test_an_honest_step_from_parameters_that_multiply_rounding_wins_since_limits_widen(tmp_path, monkeypatch):
    for wide, is_won in ((step_widening, True), (lambda _, layout, *__: np.zeros(layout.blocks), False)):
        monkeypatch.setattr(judging, "step_widening", wide)
        party = a_keeper(tmp_path / str(is_won), "honest", "sparseloco", Large)

        assert party.doubted() == (0, is_won)


def test_a_rounding_that_leads_beyond_all_numbers_convicts_nobody(tmp_path, monkeypatch):
    """As in an audit, which judges nothing then; but no rounding excuses a message that does not follow."""
    true = judging._run

    def unless_jittered(*arguments):
        if arguments[-1] == ():
            raise FloatingPointError("not finite")
        return true(*arguments)

    monkeypatch.setattr(judging, "jittered_operators", lambda *_: ())
    monkeypatch.setattr(judging, "_run", unless_jittered)
    for lie, is_won in ((Large, True), (forged(noise), False)):
        party = a_keeper(tmp_path / str(is_won), "honest", "sparseloco", lie)

        assert party.doubted() == (0, is_won)


def test_what_no_juror_can_compute_says_why(honest):
    spec, limits, commit = honest.spec, honest.limits, honest.commit
    rule, local = spec.rule, spec.rule.local

    def reason(rule=rule, limits=limits, commit=commit):
        changed = replace(spec, rule=rule)
        return why_not(changed, limits, replace(commit, tokens=changed.tokens_per_step))

    assert reason() is None
    assert "of its own" in reason(rule=replace(rule, fragments=2))
    longer = replace(local, segment=STEPS + 1, steps=STEPS + 1)
    assert f"for {STEPS + 1} inner steps" in reason(rule=replace(rule, local=longer))
    assert reason(rule=replace(rule, local=replace(local, steps=10 * STEPS))) is None  # segments are as long
    most = replace(local, steps=OPERATORS_MAX // 200)
    assert "jurors compute" in reason(rule=replace(rule, local=most))
    for row in limits.segments:  # of fresh moments and of others, as the commit does not tell
        if row.regime in {regime_of(local, 0), regime_of(local, 5)}:
            rows = tuple(one for one in limits.segments if one.regime is not row.regime)
            assert "no limits" in reason(limits=Limits(segments=rows))
    assert "no limits" in reason(limits=measured_class(commit.exec_class, steps=SEGMENT - 1))
    noisy = tuple(
        replace(row, steps=1, seen=(Seen(10**8, 10**9, 10**9, 10**8),) * len(row.seen))
        for row in limits.segments
    )  # the last segment is a shorter one
    assert "no limits" in reason(limits=Limits(segments=(*limits.segments, *noisy)))
    even = replace(rule, local=replace(local, steps=2 * SEGMENT))  # here it is as long as all others
    assert reason(rule=even, limits=Limits(segments=(*limits.segments, *noisy))) is None


def evidence(party: Party) -> bytes:
    return evidence_of(party.commit, party.program, party.sources, party.told, party.trace, 0)


def parsed(party: Party):
    return parse_evidence(evidence(party), case_id_of(party.commit))


def refused(party: Party, match: str, **changes) -> None:
    with pytest.raises(MalformedMessage, match=match):
        holds(
            party.spec, party.program, replace(parsed(party), **changes), party.trace.positions, party.tokens
        )
