"""Audits of steps on completions: no node chooses what it samples, or what that earns, or skips it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.node.trainer import Trainer
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.grpo import FIGURE_TOKENS, REWARD_MAX, Reward
from assay.protocol.messages import Outcome
from assay.protocol.params import ComputeSpec, check_spec
from assay.protocol.types import NO_DIGEST
from assay.testing.members import RUN_ID, a_digest
from assay.testing.specs import a_rule
from assay.training.codec.contribution import decode_contribution
from assay.training.data.mask import visible
from assay.training.data.rollouts import figures
from assay.training.model.sampling import step_batch
from assay.verifier.appeal.program import why_not
from assay.verifier.audit import worker
from assay.verifier.audit.limits import shipped
from assay.verifier.audit.messages import Finding
from assay.verifier.audit.worker import RecomputeWorker
from tests.training.tasks import COMPUTE, GRPO, a_grpo_run, sums
from tests.verifier.audit.test_masked import MATCH, MISMATCH, NODE, SEED, outcomes

EASY = replace(GRPO, reward=Reward.PREFIX, group=2)  # some prefix is right by chance, if steps are tried


def rewarded(rows: np.ndarray, earned: list[int]) -> np.ndarray:
    """Rollouts of groups of two that say that they earned this."""
    other = rows.copy()
    for number, micro in enumerate(earned):
        total = earned[number // 2 * 2] + earned[number // 2 * 2 + 1]
        digits = micro.to_bytes(3, "big") + total.to_bytes(4, "big")
        other[number, -FIGURE_TOKENS:] = ~np.frombuffer(digits, np.uint8).astype(np.int64)
    return other


class RewardedTrainer(Trainer):
    """Says of its first completion that it was right."""

    def _batch(self, round_id, theta_P, tokens):
        return rewarded(super()._batch(round_id, theta_P, tokens), [REWARD_MAX] + [0] * 7)


class BestOfTrainer(Trainer):
    """Samples for as many rounds as it takes and keeps the best completions of each place."""

    def _batch(self, round_id, theta_P, tokens):
        best = super()._batch(round_id, theta_P, tokens)
        for other_round in range(100, 130):
            place = replace(self.spec, seed=other_round)  # the same prompts would be as good
            rows = step_batch(place, self.layout, theta_P, self.tokens, self.node, round_id, tokens)
            better = figures(rows, 2)[0] > figures(best, 2)[0]
            for first in range(0, len(rows), 2):
                if better[first : first + 2].any():
                    best[first : first + 2] = rows[first : first + 2]
        return best


class OtherNoiseTrainer(Trainer):
    """Samples as in another round, at its own prompts."""

    def _batch(self, round_id, theta_P, tokens):
        return super()._batch(round_id + 1, theta_P, tokens)


class ShortTrainer(Trainer):
    """Ends every completion after its first token, to sample less."""

    def _batch(self, round_id, theta_P, tokens):
        rows = super()._batch(round_id, theta_P, tokens)
        first = np.argmax(rows >= 0, axis=1)
        rows[np.arange(len(rows)), first + 1] = 0
        rows[np.arange(len(rows)), first + 2] = ~0
        return rewarded(rows, [0, 333_333] * 4)


class IdleTrainer(Trainer):
    """Takes it that no completion earns anything, which has no gradient, and samples nothing."""

    def _batch(self, round_id, theta_P, tokens):
        return np.full((self.spec.rule.sequences_per_round, self.spec.model.context + 1), ~0, np.int64)


LIARS = (RewardedTrainer, BestOfTrainer, ShortTrainer)


@pytest.mark.parametrize("grpo", [GRPO, EASY])
@pytest.mark.parametrize("micro", [0, 3])
def test_an_honest_step_matches(tmp_path, grpo, micro):
    spec = a_grpo_run(tmp_path, grpo=grpo)
    spec = replace(spec, compute=replace(spec.compute, micro_sequences=micro))

    assert outcomes(tmp_path, spec) == {MATCH}


@pytest.mark.parametrize("kind", LIARS)
def test_a_step_on_completions_that_were_chosen_or_rewarded_otherwise_is_found(tmp_path, kind):
    assert outcomes(tmp_path, a_grpo_run(tmp_path, grpo=EASY), kind) == {MISMATCH}


class TaughtTrainer(Trainer):
    """Puts the right sum where it sampled a wrong one."""

    def _batch(self, round_id, theta_P, tokens):
        rows = super()._batch(round_id, theta_P, tokens)
        rows[0][rows[0] >= 0] = ~0
        rows[0][4:6] = [visible(rows[0])[0] + visible(rows[0])[2] - ord("0"), GRPO.end]
        return rewarded(rows, [REWARD_MAX] + [0] * 7)


@pytest.mark.parametrize(
    ("kind", "outcome"), [(Trainer, MATCH), (RewardedTrainer, MISMATCH), (TaughtTrainer, MISMATCH)]
)
def test_the_rewards_of_sums_are_recomputed_from_their_prompts(tmp_path, kind, outcome):
    sums_spec = a_grpo_run(tmp_path, grpo=replace(EASY, reward=Reward.ARITHMETIC), stream=sums)

    assert outcomes(tmp_path, sums_spec, kind) == {outcome}


class LargeTrainer(Trainer):
    """Has time for the largest step."""

    def _step_tokens(self, left_ms):
        return self.spec.most_tokens_per_step


def test_a_larger_step_has_the_completions_of_more_prompts_and_matches(tmp_path):
    passes = replace(COMPUTE, micro_sequences=4)
    spec, seen = a_grpo_run(tmp_path, rule=a_rule(sequences=4, sequences_max=12), compute=passes), []

    class Watched(LargeTrainer):
        def _batch(self, round_id, theta_P, tokens):
            seen.append([super(Watched, self)._batch(round_id, theta_P, 16 * n) for n in (4, 12)])
            return seen[-1][1]

    assert outcomes(tmp_path, spec, Watched) == {MATCH}
    ((small, large),) = seen
    assert (len(small), len(large)) == (4, 12)
    assert np.array_equal(large[:4], small)  # the same completions, whatever follows


def judged(folder, spec, kind, **changes) -> tuple[Finding, object]:
    """The finding on a first step, and the sketch digest that its node sealed."""
    trainer = kind(
        spec=spec, run_id=RUN_ID, node=NODE, folder=folder / "node", data=folder, salt_key=bytes(32)
    )
    record = trainer.step(0, a_digest("manifest before 0"), 0, NO_DIGEST)
    auditor = RecomputeWorker(spec=spec, folder=folder / "auditor", data=folder)
    live = decode_contribution(spec, trainer.layout, 0, record.update).blocks_B.tolist()
    blocks = list(opened_blocks(SEED, NODE, spec.audit, spec.audit.floor_ppm, trainer.layout.blocks, live))
    commit = replace(record.commit, **changes)
    sealed = record.sketches[0]
    found = auditor.examine(
        commit, record.update, trainer.steps.opening(0, blocks, 0), blocks, committed=sealed
    )
    return found, sealed


@pytest.mark.parametrize("kind", [IdleTrainer, OtherNoiseTrainer])
def test_a_step_without_a_gradient_shows_that_nobody_sampled(tmp_path, kind):
    found, sealed = judged(tmp_path, a_grpo_run(tmp_path), kind)

    assert found.outcome is MISMATCH and found.recomputed != sealed


def test_the_sealed_sketch_alone_tells_a_step_without_a_gradient_from_none(tmp_path, monkeypatch):
    found, sealed = judged(tmp_path, a_grpo_run(tmp_path), Trainer)
    assert found.outcome is MATCH and found.recomputed == sealed

    (tmp_path / "idle").mkdir()
    spec = a_grpo_run(tmp_path / "idle")
    for module in (worker, __import__("assay.training.optimiser.step", fromlist=["step"])):
        monkeypatch.setattr(module, "sampled_digest", lambda *_: NO_DIGEST)

    assert judged(tmp_path / "idle", spec, IdleTrainer)[0].outcome is MATCH  # without the defence


def test_two_patterns_of_a_dispute_have_two_witnesses_of_a_step_without_a_gradient(tmp_path):
    spec = a_grpo_run(tmp_path)
    trainer = Trainer(
        spec=spec, run_id=RUN_ID, node=NODE, folder=tmp_path / "node", data=tmp_path, salt_key=bytes(32)
    )
    record = trainer.step(0, a_digest("manifest before 0"), 0, NO_DIGEST)
    auditor = RecomputeWorker(spec=spec, folder=tmp_path / "auditor", data=tmp_path)
    opening = trainer.steps.opening(0, [0], 0)

    found = [
        auditor.examine(record.commit, record.update, opening, [0], pattern=a_digest(name)).witness
        for name in ("one", "other")
    ]
    assert found[0] != found[1]


def test_a_step_of_another_execution_class_is_not_judged_and_no_program_decides_one(tmp_path):
    spec = a_grpo_run(tmp_path)
    found, _ = judged(tmp_path, spec, RewardedTrainer, exec_class=a_digest("another class"))

    assert found.outcome is Outcome.INCONCLUSIVE
    trainer = Trainer(
        spec=spec, run_id=RUN_ID, node=NODE, folder=tmp_path / "other", data=tmp_path, salt_key=bytes(32)
    )
    commit = trainer.step(0, a_digest("manifest before 0"), 0, NO_DIGEST).commit
    assert "its rollouts are sampled" in str(why_not(spec, None, commit))


def test_a_spec_of_grpo_with_limits_inner_steps_or_beta_is_refused():
    check_spec(a_grpo_run(None))
    sound = a_grpo_run(None)
    compute: ComputeSpec = sound.compute
    for spec, reason in (
        (replace(sound, audit=replace(sound.audit, limits=shipped().digest())), "one execution class"),
        (replace(sound, rule=a_rule("diloco", sequences=8)), "without inner steps"),
        (replace(sound, compute=replace(compute, beta_micro=100_000)), "no beta beside a group"),
        (replace(sound, rule=a_rule("demo", sequences=6)), "a multiple of the group, 4"),
        (replace(sound, compute=replace(compute, grpo=replace(GRPO, group=1))), "groups of 1"),
        (replace(sound, compute=replace(compute, grpo=replace(GRPO, group=65))), "groups of 65"),
        (replace(sound, compute=replace(compute, grpo=replace(GRPO, completion=0))), "up to 0 tokens"),
        (replace(sound, compute=replace(compute, grpo=replace(GRPO, completion=10))), "expected 1 to 9"),
        (replace(sound, compute=replace(compute, grpo=replace(GRPO, end=256))), "token 256 ends"),
        (replace(sound, model=replace(sound.model, vocabulary=255)), "255"),
    ):
        with pytest.raises(ValueError, match=reason):
            check_spec(spec)
    check_spec(replace(sound, compute=replace(compute, grpo=replace(GRPO, completion=9))))
