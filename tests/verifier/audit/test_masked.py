"""Audits of steps on masked data: the mask is in the auditor's shards, so it is not the node's to choose."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.node.trainer import Trainer
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.messages import Commit, Outcome
from assay.protocol.params import ComputeSpec, Precision, RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.specs import TEXT, a_rule, a_spec
from assay.training.codec.contribution import decode_contribution
from assay.training.data.batches import describe
from assay.training.data.mask import visible
from assay.training.execution.execution_class import execution_class
from assay.training.model.loss import use_one_thread
from assay.verifier.audit import worker
from assay.verifier.audit.limits import Limits, shipped
from assay.verifier.audit.worker import RecomputeWorker
from tests.training.data.test_mask import masked_data

NODE = peer("nora")
SEED = Digest(hashlib.sha256(b"seed").digest())
MATCH, MISMATCH = Outcome.MATCH, Outcome.MISMATCH
INNER = {"steps": 4, "segment": 2, "sequences": 1, "inner_lr_nano": 2_000_000}
METHODS = {"demo": {}, "muloco": INNER, "diloco": INNER}


class UnmaskedTrainer(Trainer):
    """Trains on every token that it reads."""

    def _gradient(self, theta_P, tokens):
        return super()._gradient(theta_P, visible(tokens))


class OtherMaskTrainer(Trainer):
    """Leaves out one target more in each sequence."""

    def _gradient(self, theta_P, tokens):
        last = np.maximum.accumulate(np.where(tokens >= 0, np.arange(tokens.shape[1]), 0), axis=1)[:, -1]
        less = tokens.copy()
        less[np.arange(len(less)), last] = ~visible(tokens)[np.arange(len(less)), last]
        return super()._gradient(theta_P, less)


def masked_run(folder: Path, method: str, share: float) -> RunSpec:
    """A run on data of which this share is masked; the folder is written."""
    use_one_thread()
    tokens = np.where(np.random.default_rng(5).random(len(TEXT)) < share, ~TEXT.astype(np.int64), TEXT)
    manifest = masked_data(folder, tokens, 256)
    data = describe(manifest, validation_tokens=2000, source="x", licence="y")
    return a_spec(data=data, rule=a_rule(method, **METHODS[method]), rounds=20)


def outcomes(folder: Path, spec: RunSpec, kind: type[Trainer] = Trainer, limits=None) -> set[Outcome]:
    """Of audits of a first step, one of each segment; in the reference class where there are limits."""
    auditor = RecomputeWorker(spec=spec, folder=folder / "auditor", data=folder, limits=limits)
    trainer = kind(
        spec=spec, run_id=RUN_ID, node=NODE, folder=folder / "node", data=folder, salt_key=bytes(32)
    )
    record = trainer.step(0, a_digest("manifest before 0"), 0, NO_DIGEST)
    layout, commit = trainer.layout, record.commit
    live = decode_contribution(spec, layout, 0, record.update).blocks_B.tolist()
    blocks = list(opened_blocks(SEED, NODE, spec.audit, spec.audit.floor_ppm, layout.blocks, live))
    assert isinstance(commit, Commit)
    return {
        auditor.examine(
            commit,
            record.update,
            trainer.steps.opening(0, blocks, segment),
            blocks,
            segment,
            in_reference=limits is not None,
        ).outcome
        for segment in range(max(spec.rule.segments, 1))
    }


@pytest.mark.parametrize("method", METHODS)
def test_an_honest_step_matches_and_one_that_trains_on_masked_tokens_is_found(tmp_path, method):
    for kind, expected in ((Trainer, MATCH), (UnmaskedTrainer, MISMATCH), (OtherMaskTrainer, MISMATCH)):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        assert outcomes(folder, masked_run(folder, method, 0.8), kind) == {expected}


@pytest.mark.parametrize(("kind", "expected"), [(Trainer, MATCH), (UnmaskedTrainer, MISMATCH)])
def test_another_execution_class_finds_the_same(tmp_path, kind, expected):
    limits = shipped()
    spec = masked_run(tmp_path, "demo", 0.8)
    spec = replace(spec, audit=replace(spec.audit, limits=limits.digest()))

    assert outcomes(tmp_path, spec, kind, limits) == {expected}


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_without_a_target_is_a_step_that_matches(tmp_path, method):
    assert outcomes(tmp_path, masked_run(tmp_path, method, 1)) == {MATCH}


def test_a_batch_without_a_target_accuses_nobody_in_another_class(tmp_path):
    assert MISMATCH not in outcomes(tmp_path, masked_run(tmp_path, "demo", 1), limits=shipped())


@pytest.mark.parametrize("method", METHODS)
def test_nobody_is_accused_between_classes_where_a_gradients_terms_cancel(tmp_path, method, monkeypatch):
    limits = shipped()
    spec = masked_run(tmp_path, method, 0.8)
    spec = replace(spec, audit=replace(spec.audit, limits=limits.digest()))

    monkeypatch.setattr(worker, "step_widening", lambda _, layout, *__: np.full(layout.blocks, 1e9))

    assert outcomes(tmp_path, spec, UnmaskedTrainer, limits) == {Outcome.INCONCLUSIVE}
    assert outcomes(tmp_path, spec, Trainer, limits) <= {MATCH, Outcome.INCONCLUSIVE}


def measured_here() -> Limits:
    """The shipped limits of one path, as if of this machine's class: inner steps have no others."""
    limits, computes = shipped(), [ComputeSpec(dtype=dtype, micro_sequences=0) for dtype in Precision]
    here = {compute.dtype: execution_class(compute) for compute in computes}
    classes, segments = (
        tuple(replace(row, exec_class=here[row.dtype]) for row in rows if row.path == "native")
        for rows in (limits.classes, limits.segments)
    )
    return Limits(classes, segments)


@pytest.mark.parametrize("method", METHODS)
def test_what_no_rounding_explains_is_accused_all_the_same(tmp_path, method, monkeypatch):
    spec, limits = masked_run(tmp_path, method, 0.8), measured_here()
    spec = replace(spec, audit=replace(spec.audit, limits=limits.digest()))

    monkeypatch.setattr(worker, "step_widening", lambda _, layout, *__: np.full(layout.blocks, 100.0))

    assert outcomes(tmp_path, spec, UnmaskedTrainer, limits) == {MISMATCH}
