"""Appeals over steps of rules with inner steps: the honest win, a lie loses to one honest signer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.node.trainer import Trainer
from assay.protocol.auditing.audits import case_id_of
from assay.protocol.errors import MalformedMessage
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST
from assay.testing.members import NODES
from assay.testing.specs import a_rule
from assay.training.data.shards import write_tokens
from assay.training.frozen import ALL_TRAINED
from assay.training.layout import layout_of
from assay.training.model.loss import use_one_thread
from assay.training.model.presets import gpt_spec
from assay.training.optimiser import inner
from assay.training.reference.gradient import reference_loss_and_gradient
from assay.training.reference.narrowing import OPERATORS_MAX, ends_of
from assay.training.reference.operators import TOKENS, run_one
from assay.training.transform.compress import distance_blocks
from assay.verifier.appeal import program
from assay.verifier.appeal.accused import step_of
from assay.verifier.appeal.answers import positions_of
from assay.verifier.appeal.evidence import evidence_of, holds, parse_evidence
from assay.verifier.appeal.fetch import evidence_bytes_max
from assay.verifier.appeal.program import END, HOLDS, STATE, WIDENING, operator_count, why_not
from assay.verifier.audit.tolerance import SAMPLES, WIDEST, step_widening
from tests.verifier.appeal.test_appeal import Party, a_party
from tests.verifier.audit.test_displacement import measured_class
from tests.verifier.audit.test_exact import CHEAT_ROUND, TEXT, a_run

pytestmark = pytest.mark.slow

STEPS = 3
METHODS = ("sparseloco", "muloco", "fedavg")  # AdamW, Muon and SGD inside
CHEATS = ("stale-parameters", "wrong-data", "random-update", "no-feedback", "other-base")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


def a_run_of(method: str, **choices) -> RunSpec:
    """A run whose rounds are several steps from public parameters."""
    moments = {} if method == "fedavg" else {"keeps_moments": False}
    usual = {"steps": STEPS, "segment": STEPS, "sequences": 1, "inner_lr_nano": 2_000_000, **moments}
    return replace(a_run(), rule=a_rule(method, **usual | choices))


def a_node(folder, behaviour: str, method: str, trainer_of=None, choices=None, **more) -> Party:
    write_tokens(folder / "data", [TEXT])
    more |= {} if trainer_of is None else {"trainer_of": lambda *_, **arguments: trainer_of(**arguments)}
    return a_party(
        folder, behaviour, base=a_run_of(method, **choices or {}),
        limits=lambda exec_class: measured_class(exec_class, steps=STEPS), **more,
    )  # fmt: skip


@pytest.fixture(scope="module", params=METHODS)
def honest(request, tmp_path_factory) -> Party:
    return a_node(tmp_path_factory.mktemp("honest"), "honest", request.param)


def towards(target: int):
    return lambda first, last, _told: next(i for i, end in enumerate(ends_of(first, last)) if end > target)


def test_an_honest_node_wins_whichever_operator_a_lying_quorum_names(honest):
    for target in {*range(0, len(honest.program), 11), *range(len(honest.program) - 8, len(honest.program))}:
        assert honest.verdict(towards(target)) == (target, True)


def test_a_program_is_as_long_as_it_is_said_to_be_and_its_evidence_within_what_jurors_accept(honest):
    assert len(honest.program) == operator_count(honest.spec, honest.commit)
    assert len({operator.name for operator in honest.program}) == len(honest.program)
    sizes = [
        len(evidence_of(honest.commit, honest.program, honest.sources, honest.told, honest.trace, index))
        for index in range(len(honest.program))
    ]
    assert max(sizes) <= evidence_bytes_max(honest.spec)


def test_a_signer_finds_every_position_before_the_finding_from_public_sources_alone(honest):
    sources = honest.sources
    body = positions_of(
        honest.spec, honest.limits, honest.commit, sources.theta_P, honest.tokens, ALL_TRAINED
    )

    assert body == b"".join(honest.known.positions)
    assert honest.doubted() == (len(honest.program) - 1, True)


def test_the_steps_are_those_that_an_audit_takes_in_the_reference_class(honest):
    spec, sources = honest.spec, honest.sources

    def gradient(theta_P, tokens):
        return reference_loss_and_gradient(
            spec.model, layout_of(spec.model), theta_P, tokens, compute=spec.compute
        )

    start = inner.fresh(spec.rule.local, sources.theta_P)
    end, _ = inner.run_steps(spec, CHEAT_ROUND, 0, STEPS, start, sources.theta_P, sources.tokens, gradient)
    by_name = dict(zip((one.name for one in honest.program), honest.told, strict=True))

    assert np.array_equal(by_name[f"step{STEPS - 1}/{STATE}"], np.stack((end.theta_P, *end.moments)))
    for step, row in enumerate(sources.tokens):
        assert np.array_equal(by_name[f"step{step}/{TOKENS}"], row[None])
    wide = [output for name, output in by_name.items() if name.endswith(WIDENING)]
    assert len(wide) == STEPS * SAMPLES
    assert np.array_equal(by_name[f"step{STEPS - 1}/widest"], np.max(wide, axis=0))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_false_step_loses_at_the_finding(tmp_path, method, cheat):
    party = a_node(tmp_path, cheat, method)

    assert party.doubted() == (len(party.program) - 1, False)


def bends(lie):
    """A trainer one of whose inner steps, or all, are others than the rule's."""

    class Bender(Trainer):
        def _work(self, round_id, before, tokens):
            if round_id < CHEAT_ROUND:
                return super()._work(round_id, before, tokens)
            true, inner.inner_step = inner.inner_step, lambda *step: lie(true, *step)
            try:
                return super()._work(round_id, before, tokens)
            finally:
                inner.inner_step = true

    return Bender


def forged(lie):
    """A trainer that does its work, and claims another."""

    class Forger(Trainer):
        def _work(self, round_id, before, tokens):
            work = super()._work(round_id, before, tokens)
            return work if round_id < CHEAT_ROUND else lie(work)

    return Forger


def one_gradient(true, local, layout, lr, state, anchor_P, slope_P):
    noise_P = np.random.default_rng(0).standard_normal(len(slope_P)).astype(np.float32)
    if state.count == 1:
        slope_P = noise_P * (np.linalg.norm(slope_P) / np.linalg.norm(noise_P))
    return true(local, layout, lr, state, anchor_P, slope_P)


def longer_steps(true, local, layout, lr, *rest):
    return true(local, layout, lr * np.float32(1.2), *rest)


def fewer_steps(true, local, layout, lr, state, *rest):
    return replace(state, count=state.count + 1) if state.count == STEPS - 1 else true(
        local, layout, lr, state, *rest
    )  # fmt: skip


def own_moments(true, local, layout, lr, state, *rest):
    held = tuple(moment_P + np.float32(1e-3) for moment_P in state.moments)
    return true(local, layout, lr, replace(state, moments=held), *rest)


def noise(work):
    random_NC = np.random.default_rng(0).standard_normal(work.x_NC.shape).astype(np.float32)
    size = np.linalg.norm(work.x_NC) / np.linalg.norm(random_NC)
    return replace(work, x_NC=random_NC * np.float32(size))


def twice_as_far(work):
    return replace(work, x_NC=work.x_NC * np.float32(2))


def noise_throughout(work):
    """An end that the noise which is sent follows from."""
    way_P = work.start.theta_P - work.ends[-1].theta_P
    random_P = np.random.default_rng(0).standard_normal(len(way_P)).astype(np.float32)
    theta_P = work.start.theta_P - random_P * np.float32(np.linalg.norm(way_P) / np.linalg.norm(random_P))
    return ended(work, replace(work.ends[-1], theta_P=theta_P))


def another_end(work):
    end = work.ends[-1]
    return ended(work, replace(end, theta_P=end.theta_P + np.float32(1e-4)))


def louder_moments(work):
    end = work.ends[-1]
    return replace(work, ends=(replace(end, moments=tuple(part * np.float32(1.2) for part in end.moments)),))


def ended(work, end):
    spec = a_run_of("fedavg")  # NONE as basis, as all rules here
    x_NC = distance_blocks(spec.rule, layout_of(spec.model), work.start.theta_P, end.theta_P)
    return replace(work, x_NC=x_NC, ends=(*work.ends[:-1], end))


class Copier(Trainer):
    """Sends what another node's sequences lead to, in place of its own."""

    def _batch(self, round_id, theta_P, tokens):
        own, self.node = self.node, NODES[1] if round_id == CHEAT_ROUND else self.node
        try:
            return super()._batch(round_id, theta_P, tokens)
        finally:
            self.node = own


LIES = {
    "a false gradient in one step": bends(one_gradient),
    "steps longer by a fifth": bends(longer_steps),
    "fewer steps": bends(fewer_steps),
    "noise as message": forged(noise),
    "a message twice as large": forged(twice_as_far),
    "noise throughout": forged(noise_throughout),
    "another end": forged(another_end),
    "what another node did": Copier,
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_an_inner_step_or_about_its_end_loses_at_the_finding(tmp_path, method, lie):
    party = a_node(tmp_path, lie, method, LIES[lie])

    assert party.doubted() == (len(party.program) - 1, False)


@pytest.mark.parametrize("lie", [bends(own_moments), forged(louder_moments)], ids=["before", "after"])
@pytest.mark.parametrize("method", ["sparseloco", "muloco"])
def test_moments_of_its_own_lose_too(tmp_path, method, lie):
    party = a_node(tmp_path, "own moments", method, lie)

    assert party.doubted() == (len(party.program) - 1, False)


def test_an_end_that_was_never_committed_shows_nothing(tmp_path):
    """A node that committed to another count of steps, or shows another state than it committed to."""
    counted = a_node(
        tmp_path / "count", "count", "sparseloco",
        forged(lambda work: replace(work, ends=(replace(work.ends[-1], count=STEPS + 1),))),
    )  # fmt: skip
    refused(counted, "inner state")
    party = a_node(tmp_path / "honest", "honest", "sparseloco")
    end_SP = party.sources.end_SP
    refused(party, "inner state", end=(end_SP + np.float32(1e-3)).tobytes())
    refused(party, "inner state", end=end_SP[::-1].tobytes())
    refused(party, "finite", end=np.full_like(end_SP, np.nan).tobytes())
    refused(party, "bytes", end=b"")
    party.commit = replace(party.commit, inner=())
    refused(party, "inner state")


def refused(party: Party, match: str, **changes) -> None:
    index = len(party.program) - 1
    assert END in party.program[index].inputs
    body = evidence_of(party.commit, party.program, party.sources, party.told, party.trace, index)
    evidence = replace(parse_evidence(body, case_id_of(party.commit)), **changes)
    with pytest.raises(MalformedMessage, match=match):
        holds(party.spec, party.program, evidence, party.trace.positions[index:], party.tokens)


def test_a_false_step_loses_wherever_its_node_bends_its_claim(tmp_path):
    party = a_node(tmp_path, "random-update", "muloco")
    states = [i for i, one in enumerate(party.program) if one.name.endswith(("/" + STATE, "/widest"))]
    for index in (*range(2, len(party.program) - 1, 97), *states):
        bent = [*party.outputs, HOLDS]
        bent[index] = bent[index] + bent[index].dtype.type(1)
        party.claims(bent)

        assert party.doubted() == (index, False)


def test_a_state_made_to_fit_what_was_sent_loses_at_the_step(tmp_path):
    party = a_node(tmp_path, "random-update", "sparseloco")
    at = max(i for i, one in enumerate(party.program) if one.name.endswith("/" + STATE))
    party.claims([*party.outputs[:at], party.sources.end_SP, *party.outputs[at + 1 :], HOLDS])

    assert party.doubted() == (at, False)


def test_limits_that_are_widened_further_to_be_excused_lose_there(tmp_path):
    party = a_node(tmp_path, "stale-parameters", "sparseloco")
    at = max(i for i, one in enumerate(party.program) if one.name.endswith(WIDENING))
    party.claims(
        [*party.outputs[:at], np.full_like(party.outputs[at], WIDEST), *party.outputs[at + 1 :], HOLDS]
    )

    assert party.doubted() == (at, False)


class Large(Trainer):
    """Of a run whose parameters are ten times as large as they were, from the accused round on."""

    def apply(self, round_id, aggregate):
        digest = super().apply(round_id, aggregate)
        if self.parameters.round == CHEAT_ROUND:
            self.parameters.public.theta_P[:] *= np.float32(10)
        return digest


@pytest.mark.parametrize("method", ["sparseloco", "muloco"])
def test_an_honest_step_from_parameters_that_multiply_rounding_wins_since_limits_widen(
    tmp_path, monkeypatch, method
):
    for wide, is_won in (
        (step_widening, True),
        (lambda _, layout, *__: np.zeros(layout.blocks), False),
    ):
        monkeypatch.setattr(program, "step_widening", wide)  # without, its rounding is taken for a lie
        party = a_node(tmp_path / str(is_won), "honest", method, Large)

        assert party.doubted() == (len(party.program) - 1, is_won)


def test_rounds_of_several_segments_are_judged_by_where_they_end(tmp_path):
    for behaviour, is_won in (("honest", True), ("random-update", False)):
        party = a_node(tmp_path / behaviour, behaviour, "sparseloco", choices={"segment": 1})

        assert len(party.commit.inner) == STEPS
        assert party.doubted() == (len(party.program) - 1, is_won)


def test_what_no_program_decides_says_why(honest):
    spec, limits, commit = honest.spec, honest.limits, honest.commit
    rule, local = spec.rule, spec.rule.local

    def reason(limits=limits, commit=commit, **changes):
        return why_not(replace(spec, **changes), limits, commit)

    assert reason() is None
    assert "parameters of its own" in reason(rule=replace(rule, fragments=2))
    assert "other parameters" in reason(rule=replace(rule, read_lag=1))
    assert "no limits were measured" in reason(commit=replace(commit, exec_class=NO_DIGEST))
    longer = replace(rule, local=replace(local, steps=STEPS + 1))
    more = replace(commit, tokens=commit.tokens * (STEPS + 1) // STEPS)
    assert "of no step of this run" in reason(rule=longer)
    assert f"for {STEPS + 1} inner steps" in reason(rule=longer, commit=more)


def test_a_round_of_one_step_is_judged_at_the_rate_of_that_step(tmp_path):
    """Its parameters have to follow from the moments that it ended in, with next to no rounding."""
    party = a_node(tmp_path, "honest", "sparseloco", choices={"steps": 1, "segment": 1})

    assert party.doubted() == (len(party.program) - 1, True)


def test_a_program_as_long_as_can_be_narrowed_down_is_one(honest, monkeypatch):
    count = operator_count(honest.spec, honest.commit)
    for most, is_one in ((count, True), (count - 1, False)):
        monkeypatch.setattr(program, "OPERATORS_MAX", most)
        assert (why_not(honest.spec, honest.limits, honest.commit) is None) == is_one


def test_a_program_longer_than_can_be_narrowed_down_is_none(honest):
    local = replace(honest.spec.rule.local, steps=OPERATORS_MAX // 200)
    spec = replace(honest.spec, rule=replace(honest.spec.rule, local=local))
    limits = measured_class(honest.commit.exec_class, steps=local.steps)

    commit = replace(honest.commit, tokens=spec.tokens_per_step)
    assert operator_count(spec, commit) > OPERATORS_MAX
    assert "can be narrowed down" in why_not(spec, limits, commit)
    fewer = replace(honest.spec, model=gpt_spec(layers=40, width=64, heads=2, context=16))
    assert operator_count(fewer, replace(commit, tokens=fewer.tokens_per_step)) < OPERATORS_MAX


def test_the_accused_runs_its_step_again_for_each_piece_of_evidence(honest):
    step = step_of(honest.spec, honest.limits, honest.commit, honest.sources)

    assert step.trace == honest.trace
    for index in (0, 5, len(step.program) // 2, len(step.program) - 1):
        shown = evidence_of(step.commit, step.program, step.sources, step.outputs(index), step.trace, index)
        assert shown == evidence_of(step.commit, step.program, step.sources, honest.told, honest.trace, index)


def test_a_finding_without_an_end_has_no_output(honest):
    arrays = dict(zip((one.name for one in honest.program), honest.told, strict=True))
    arrays |= honest.sources.arrays(honest.spec)

    assert np.array_equal(run_one(honest.program[-1], arrays), HOLDS)
    far = arrays | {END: arrays[END] + np.float32(1)}
    with pytest.raises(ArithmeticError, match="off by"):
        run_one(honest.program[-1], far)
    short = arrays | {f"step{STEPS - 1}/{STATE}": arrays[END][:, :-1]}
    with pytest.raises(ValueError, match="inner state"):
        run_one(honest.program[-1], short)
    assert honest.program[-1].name == program.FINDING
