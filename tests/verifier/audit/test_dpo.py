"""Audits of steps on preference pairs: no node chooses what is preferred, or beta."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.node.trainer import Trainer
from assay.protocol.params import ComputeSpec, Precision, RunSpec, check_spec
from assay.testing.specs import a_rule, a_spec
from assay.training.data.batches import describe
from assay.training.data.mask import visible
from assay.training.data.preferences import with_reference
from assay.training.model.loss import loss_and_gradient, use_one_thread
from assay.verifier.audit.limits import shipped
from tests.training.data.test_mask import masked_data
from tests.verifier.audit.test_masked import MATCH, MISMATCH, outcomes

DPO = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2, beta_micro=100_000)
METHODS = {"demo": {"sequences": 4}, "diloco": {"steps": 4, "segment": 2, "sequences": 2}}


class SwappedTrainer(Trainer):
    """Takes the rejected for the chosen in one pair."""

    def _gradient(self, theta_P, tokens):
        other = tokens.copy()
        other[:2] = tokens[[1, 0]]
        return super()._gradient(theta_P, other)


class NextTokenTrainer(Trainer):
    """Trains on the next token of both completions, which takes half the thought."""

    def _gradient(self, theta_P, tokens):
        plain = replace(self.spec.compute, beta_micro=0)
        return loss_and_gradient(self.spec.model, self.layout, theta_P, tokens, compute=plain)


class OtherReferenceTrainer(Trainer):
    """Takes another figure for the reference model's than the data say."""

    def _gradient(self, theta_P, tokens):
        return super()._gradient(
            theta_P, np.stack([with_reference(row, 9.0 * at) for at, row in enumerate(tokens)])
        )


LIARS = (SwappedTrainer, NextTokenTrainer, OtherReferenceTrainer)


def dpo_run(folder: Path, method: str) -> RunSpec:
    """A run on pairs whose completions are the second half of each sequence."""
    use_one_thread()
    context = a_spec().model.context
    draw = np.random.default_rng(7)
    rows = draw.integers(0, 256, (120, context + 1))
    rows[:, : context // 2] = ~rows[:, : context // 2]
    rows[:, -4:] = ~visible(rows[:, -4:])
    pairs = np.stack(
        [with_reference(row, float(n)) for row, n in zip(rows, draw.uniform(20, 60, 120), strict=True)]
    )
    manifest = masked_data(folder, pairs.reshape(-1), 256)
    data = describe(manifest, validation_tokens=12 * (context + 1), source="x", licence="y")
    return a_spec(data=data, compute=DPO, rule=a_rule(method, **METHODS[method]), rounds=20)


class LargeTrainer(Trainer):
    """Has time for the largest step."""

    def _step_tokens(self, left_ms):
        return self.spec.most_tokens_per_step


@pytest.mark.parametrize("method", METHODS)
def test_a_larger_step_has_more_whole_pairs_and_matches(tmp_path, method):
    spec = dpo_run(tmp_path, method)
    local = replace(spec.rule.local, sequences=2, sequences_max=6)
    spec = replace(
        spec, rule=replace(spec.rule, local=local), compute=replace(spec.compute, micro_sequences=2)
    )
    check_spec(spec)

    assert outcomes(tmp_path, spec, LargeTrainer) == {MATCH}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", LIARS)
def test_a_step_on_other_preferences_is_found(tmp_path, method, kind):
    assert outcomes(tmp_path, dpo_run(tmp_path, method), kind) == {MISMATCH}


@pytest.mark.parametrize("method", METHODS)
def test_an_honest_step_of_dpo_matches(tmp_path, method):
    assert outcomes(tmp_path, dpo_run(tmp_path, method)) == {MATCH}


@pytest.mark.parametrize(("kind", "expected"), [(Trainer, MATCH), *((liar, MISMATCH) for liar in LIARS)])
def test_another_execution_class_finds_the_same_in_the_reference_class(tmp_path, kind, expected):
    limits = shipped()
    spec = dpo_run(tmp_path, "demo")
    spec = replace(spec, audit=replace(spec.audit, limits=limits.digest()))

    assert outcomes(tmp_path, spec, kind, limits) == {expected}
