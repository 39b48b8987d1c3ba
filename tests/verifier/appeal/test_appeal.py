"""An appeal over real steps: the honest win against any defence, a lie loses to one honest signer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import pytest

from assay.protocol.auditing.audits import case_id_of
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Commit
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import BLOCK_SIZE
from assay.testing.learned import learned_by_heart
from assay.testing.members import NODES, RUN_ID
from assay.testing.messages import a_commit
from assay.training.codec.contribution import decode_contribution
from assay.training.data.batches import batch_positions, batch_tokens, read_tokens
from assay.training.data.shards import write_tokens
from assay.training.execution.execution_class import execution_class
from assay.training.frozen import ALL_TRAINED
from assay.training.layout import layout_of
from assay.training.model.loss import use_one_thread
from assay.training.model.presets import gpt_spec
from assay.training.optimiser.aggregate import encode_round
from assay.training.optimiser.outer import rest_of
from assay.training.reference.narrowing import START, claimed, ends_of, first_wrong
from assay.training.reference.operators import run_one
from assay.training.reference.trace import Trace, output_digest, trace_of
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.appeal import program
from assay.verifier.appeal.answers import positions_of
from assay.verifier.appeal.evidence import (
    StepSources,
    batch_of,
    compared_rows,
    evidence_of,
    holds,
    parse_evidence,
)
from assay.verifier.appeal.fetch import evidence_bytes_max
from assay.verifier.appeal.program import HOLDS, program_of, why_not
from assay.verifier.audit.limits import Limits, shipped
from assay.verifier.audit.tolerance import WIDEST, step_widening
from tests.faulty import a_faulty_trainer
from tests.verifier.audit.test_dpo import dpo_run
from tests.verifier.audit.test_exact import CHEAT_ROUND, TEXT, a_run

pytestmark = pytest.mark.slow

# What changes more of a step than the limits between classes allow. Other lies are none in the step itself,
# or smaller than any hardware's noise: docs/contracts.md, "Appeals".
CHEATS = ("stale-parameters", "wrong-data", "random-update", "no-feedback", "other-base")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


@dataclass
class Party:
    """A node's step as it claims it, and what everybody can know of it."""

    spec: object
    commit: Commit
    sources: StepSources
    tokens: object
    limits: Limits

    def __post_init__(self):
        self.program = program_of(self.spec, self.limits, self.commit)
        arrays, self.outputs = self.sources.arrays(self.spec), []
        for operator in self.program[:-1]:
            arrays[operator.name] = run_one(operator, arrays)
            self.outputs.append(arrays[operator.name])
        self.known = trace_of(map(output_digest, self.outputs))  # by public sources alone
        self.claims([*self.outputs, HOLDS])

    def claims(self, outputs) -> None:
        self.told = outputs
        self.trace: Trace = trace_of(map(output_digest, outputs))

    def verdict(self, pick) -> tuple[int, bool]:
        """The operator that is left, and what jurors find who have the data and this evidence."""
        first, last, start = 0, len(self.program), START
        while True:
            told = claimed(self.trace.positions, first, last)
            part = pick(first, last, told)
            start, edges = (told[part - 1] if part else start), (first, *ends_of(first, last))
            first, last = edges[part], edges[part + 1]
            if last - first == 1:
                break
        body = evidence_of(self.commit, self.program, self.sources, self.told, self.trace, first)
        evidence = parse_evidence(body, case_id_of(self.commit))
        return first, holds(self.spec, self.program, evidence, (start, told[part]), self.tokens)

    def doubted(self) -> tuple[int, bool]:
        return self.verdict(lambda *cut: first_wrong(self.known.positions, *cut))


def a_party(
    folder,
    behaviour: str,
    run_id=RUN_ID,
    base=None,
    loss=None,
    limits=lambda _exec_class: shipped(),
    trainer_of=a_faulty_trainer,
    **changes,
) -> Party:
    """A node that behaves so in its last round, in which it is accused.

    base: a run with its data on disk. loss: that of parameters that know the batch of that round by heart.
    limits: of the run, by the node's class.
    """
    if base is None:
        base = a_run()
        write_tokens(folder / "data", [TEXT])
    spec = replace(base, state_every=1, **changes)
    agreed = limits(execution_class(spec.compute, "cpu"))
    spec = replace(spec, audit=replace(spec.audit, limits=agreed.digest()))
    node = NODES[0]
    trainer = trainer_of(
        behaviour, CHEAT_ROUND, spec=spec, run_id=run_id, node=node, data=folder / "data",
        folder=folder / "node", salt_key=bytes(32),
    )  # fmt: skip
    base_, root, blocks = 0, NO_DIGEST, trainer.layout.blocks
    tokens = read_tokens(folder / "data", spec.data)
    for number in range(CHEAT_ROUND + 1):
        if number == CHEAT_ROUND and loss is not None:
            positions = batch_positions(spec, node, number, spec.tokens_per_step)
            batch = batch_tokens(tokens, positions, spec.model.context)
            public = trainer.parameters.public
            public.theta_P[:] = learned_by_heart(spec.model, public.theta_P, batch, loss_at_most=loss)
        theta, rest = trainer.parameters.read(number).copy(), rest_of(trainer.parameters.public)
        step = trainer.step(number, Digest(hashlib.sha256(b"manifest %d" % number).digest()), base_, root)
        before = trainer.steps.private(step.commit.base)
        base_, root = number + 1, step.commit.momentum_after
        update = decode_contribution(spec, trainer.layout, number, step.update)
        trainer.apply(number, encode_round(spec.rule, mean_over_senders({node: update}, blocks), blocks))
    after, end_SP = trainer.steps.private(base_), compared_rows(spec.rule, trainer.steps.ends(CHEAT_ROUND))
    batch = batch_of(spec, step.commit, tokens)
    errors = before.error_NC, after.error_NC
    sources = StepSources(theta, batch, *errors, step.update, end_SP, before.inner, rest)
    return Party(spec, step.commit, sources, tokens, agreed)


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Party:
    return a_party(tmp_path_factory.mktemp("honest"), "honest")


def test_an_honest_node_wins_whichever_operator_a_lying_quorum_names(honest):
    for target in range(len(honest.program)):

        def towards(first, last, _told, target=target):
            return next(part for part, end in enumerate(ends_of(first, last)) if end > target)

        assert honest.verdict(towards) == (target, True)


def test_a_defence_by_who_recomputed_an_honest_step_ends_at_the_finding_and_fails(honest):
    assert honest.doubted() == (len(honest.program) - 1, True)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_false_step_loses_at_the_finding_to_who_recomputed_its_gradient(tmp_path, cheat):
    party = a_party(tmp_path, cheat)

    assert party.doubted() == (len(party.program) - 1, False)


def test_a_false_step_with_a_made_up_gradient_loses_wherever_the_lie_is(tmp_path):
    """The accused bends one output, so that what follows agrees with what it sent."""
    party = a_party(tmp_path, "random-update")
    for index in range(2, len(party.program) - 1, 7):
        bent = [*party.outputs, HOLDS]
        bent[index] = bent[index] + bent[index].dtype.type(1)
        party.claims(bent)

        assert party.doubted() == (index, False)


def test_a_gradient_made_to_fit_what_was_sent_loses_at_the_gradient(tmp_path):
    party = a_party(tmp_path, "random-update")
    fit = np.random.default_rng(0).standard_normal(party.outputs[-1].shape).astype(np.float32)
    party.claims([*party.outputs[:-1], fit, HOLDS])

    assert party.doubted() == (len(party.program) - 2, False)


def refused(party: Party, match: str, **changes) -> None:
    """Evidence of the finding in which this was changed shows nothing."""
    index = len(party.program) - 1 if "theta" not in changes else _first_with_theta(party)
    body = evidence_of(party.commit, party.program, party.sources, party.told, party.trace, index)
    evidence = replace(parse_evidence(body, case_id_of(party.commit)), **changes)
    positions = party.trace.positions[index], party.trace.positions[index + 1]
    with pytest.raises(MalformedMessage, match=match):
        holds(party.spec, party.program, evidence, positions, party.tokens)


def _first_with_theta(party: Party) -> int:
    return next(i for i, operator in enumerate(party.program) if operator.name == "0/forward/embed")


def test_every_source_is_the_one_that_the_commit_binds(honest):
    flipped = bytearray(honest.sources.before_NC.tobytes())
    flipped[0] ^= 1
    refused(honest, "private state", before=bytes(flipped))
    refused(honest, "private state", after=honest.sources.before_NC.tobytes())
    refused(honest, "message", update=honest.sources.update + b"\0")
    refused(honest, "bytes", before=bytes(flipped[:-4]))
    refused(honest, "bytes", outputs=b"x")
    theta = honest.sources.theta_P + np.float32(1)
    refused(honest, "parameters", theta=theta.tobytes())
    refused(honest, "finite", theta=np.full_like(theta, np.nan).tobytes())


def test_evidence_about_another_step_is_refused(honest):
    body = evidence_of(honest.commit, honest.program, honest.sources, honest.told, honest.trace, 0)
    with pytest.raises(MalformedMessage, match="expected"):
        parse_evidence(body, case_id_of(a_commit(3, NODES[0])))
    with pytest.raises(MalformedMessage):
        parse_evidence(body[:-1], case_id_of(honest.commit))


def test_what_no_program_decides_says_why(honest):
    spec, limits, commit = honest.spec, shipped(), honest.commit

    assert why_not(spec, limits, commit) is None
    assert "limits" in why_not(spec, None, commit)
    assert "limits" in why_not(replace(spec, audit=replace(spec.audit, limits=NO_DIGEST)), limits, commit)
    assert "state_every" in why_not(spec, limits, replace(commit, state=NO_DIGEST))
    lagging = replace(spec, rule=replace(spec.rule, read_lag=1))
    assert "other parameters" in why_not(lagging, limits, commit)
    theta_P = honest.sources.theta_P
    assert positions_of(lagging, limits, commit, theta_P, honest.tokens, ALL_TRAINED) == bytes(START)


def test_the_evidence_about_every_operator_is_within_what_jurors_accept(honest):
    sizes = [
        len(evidence_of(honest.commit, honest.program, honest.sources, honest.told, honest.trace, index))
        for index in range(len(honest.program))
    ]

    assert max(sizes) <= evidence_bytes_max(honest.spec)


def test_the_bound_on_evidence_covers_the_finding_of_a_wide_model_and_the_loss_of_a_large_vocabulary(honest):
    """Of the small model above, any digests of outputs would fit into what the longest program has."""
    wide = gpt_spec(layers=2, width=512, heads=2, context=8, vocabulary=257)
    layout = layout_of(wide)
    errors = 2 * 4 * layout.blocks * BLOCK_SIZE
    assert evidence_bytes_max(replace(honest.spec, model=wide)) > 4 * layout.parameters + errors
    words = gpt_spec(layers=1, width=8, heads=2, context=512, vocabulary=50_000)
    logits = 4 * honest.spec.rule.sequences_per_round * words.context * words.vocabulary
    assert evidence_bytes_max(replace(honest.spec, model=words)) > logits


@pytest.mark.parametrize("behaviour", ["honest", "stale-parameters"])
def test_steps_on_preference_pairs_are_appealed_like_others(tmp_path, behaviour):
    spec = dpo_run(tmp_path / "data", "demo")
    assert spec.compute.is_dpo

    party = a_party(tmp_path, behaviour, base=spec)

    assert party.doubted() == (len(party.program) - 1, behaviour == "honest")
    if behaviour == "honest":
        for target in range(0, len(party.program), 7):
            assert party.verdict(lambda first, last, _told, target=target: next(
                part for part, end in enumerate(ends_of(first, last)) if end > target
            )) == (target, True)  # fmt: skip


@pytest.mark.parametrize("loss", [1e-3, 1e-5])
def test_an_honest_step_on_data_known_by_heart_wins_since_limits_widen(tmp_path, monkeypatch, loss):
    for wide, is_won in (
        (step_widening, True),
        (lambda _, layout, *__: np.zeros(layout.blocks), False),
    ):
        monkeypatch.setattr(program, "step_widening", wide)  # without, its rounding is taken for a lie
        party = a_party(tmp_path / str(is_won), "honest", loss=loss)

        assert party.doubted() == (len(party.program) - 1, is_won)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_false_step_on_data_known_by_heart_loses_all_the_same(tmp_path, cheat):
    party = a_party(tmp_path, cheat, loss=1e-3)

    assert party.doubted() == (len(party.program) - 1, False)


def test_limits_that_are_widened_further_to_be_excused_lose_there(tmp_path):
    party = a_party(tmp_path, "stale-parameters")
    at = len(party.program) - 2
    assert party.program[at].name.endswith(program.WIDENING)
    wide = np.full_like(party.outputs[at], WIDEST / 2)
    arrays = dict(zip((one.name for one in party.program), party.outputs, strict=False))
    arrays |= party.sources.arrays(party.spec) | {party.program[at].name: wide}
    assert run_one(party.program[-1], arrays) == HOLDS  # it would be
    party.claims([*party.outputs[:at], wide, HOLDS])

    assert party.doubted() == (at, False)
