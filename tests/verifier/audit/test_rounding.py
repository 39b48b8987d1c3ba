"""Audits between classes of parameters that somebody chose so that a rounding leads far."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.node.trainer import Trainer
from assay.protocol.auditing.audits import REFERENCE
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.messages import Commit, Outcome
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import NODES, RUN_ID, a_digest
from assay.testing.specs import TEXT, a_rule, a_spec, data_of
from assay.training.codec.contribution import decode_contribution
from assay.training.data.shards import write_tokens
from assay.training.model.loss import use_one_thread
from assay.training.reference.rounding import jittered_gradient
from assay.verifier.audit import worker
from assay.verifier.audit.limits import shipped
from assay.verifier.audit.messages import Examine, Examined
from assay.verifier.audit.worker import RecomputeWorker

TIMES = np.float32(30)  # as large as the first parameters
SEED = Digest(hashlib.sha256(b"seed").digest())
MATCH, MISMATCH, INCONCLUSIVE = Outcome.MATCH, Outcome.MISMATCH, Outcome.INCONCLUSIVE


class NoiseTrainer(Trainer):
    """Sends noise, a thousand times as large as a gradient that it did not compute."""

    def _gradient(self, theta_P, tokens):
        loss, slope_P = super()._gradient(theta_P, tokens)
        noise_P = np.random.default_rng(0).standard_normal(len(slope_P)).astype(np.float32)
        return loss, noise_P * np.abs(slope_P).max() * np.float32(1000)


class Step:
    """A node's first step from large parameters, and an auditor that can judge it in either class."""

    def __init__(self, folder: Path, kind: type[Trainer] = Trainer) -> None:
        use_one_thread()
        write_tokens(folder / "data", [TEXT])
        spec = a_spec(rule=a_rule(), data=data_of(TEXT), rounds=20)
        spec = replace(spec, audit=replace(spec.audit, limits=shipped().digest()))
        self.folder = folder
        self.auditor = RecomputeWorker(
            spec=spec, folder=folder / "auditor", data=folder / "data", limits=shipped()
        )
        trainer = kind(
            spec=spec, run_id=RUN_ID, node=NODES[0], folder=folder / "node", data=folder / "data",
            salt_key=bytes(32),
        )  # fmt: skip
        large_P = trainer.parameters.read(0) * TIMES
        for one in (self.auditor, trainer):
            one.parameters.read = one.parameters.at = lambda _round: large_P
        record = trainer.step(0, a_digest("manifest before 0"), 0, NO_DIGEST)
        assert isinstance(record.commit, Commit)
        self.commit, self.update = record.commit, record.update
        live = decode_contribution(spec, trainer.layout, 0, record.update).blocks_B.tolist()
        self.blocks = list(
            opened_blocks(SEED, NODES[0], spec.audit, spec.audit.floor_ppm, trainer.layout.blocks, live)
        )
        self.opening = trainer.steps.opening(0, self.blocks, 0)

    def outcome(self) -> Outcome:
        """Judged in the reference class."""
        seen = self.commit, self.update, self.opening, self.blocks
        return self.auditor.examine(*seen, in_reference=True).outcome


def test_an_honest_machine_of_another_class_is_not_accused(tmp_path, monkeypatch):
    step = Step(tmp_path)

    assert step.outcome() is INCONCLUSIVE
    monkeypatch.setattr(worker, "step_widening", lambda _, layout, *__: np.zeros(layout.blocks))
    assert step.outcome() is MISMATCH  # as limits alone say


def test_where_nothing_can_be_told_a_lie_is_not_judged_either(tmp_path):
    assert Step(tmp_path, NoiseTrainer).outcome() is INCONCLUSIVE


def test_the_node_cannot_be_accused_because_a_jittered_result_is_not_finite(tmp_path, monkeypatch):
    step = Step(tmp_path)

    def overflows(*_: object, **__: object) -> None:
        raise FloatingPointError

    monkeypatch.setattr("assay.training.reference.rounding.jittered_gradient", overflows)
    assert step.outcome() is INCONCLUSIVE


@pytest.mark.parametrize(("kind", "expected"), [(Trainer, MATCH), (NoiseTrainer, MISMATCH)])
def test_an_auditor_of_the_nodes_class_judges_bit_for_bit_what_the_reference_class_cannot(
    tmp_path, kind, expected
):
    step = Step(tmp_path, kind)
    (tmp_path / "opening").write_bytes(step.opening)
    request = Examine(
        commit=step.commit, update=step.update, opening=str(tmp_path / "opening"),
        blocks=tuple(step.blocks), segment=0, committed=NO_DIGEST, pattern=NO_DIGEST, drawn_by=SEED,
        in_reference=True,
    )  # fmt: skip

    examined = step.auditor.answer(request)

    assert isinstance(examined, Examined)
    assert (examined.finding.outcome, examined.exec_class) == (expected, step.auditor.exec_class)


def test_an_auditor_of_another_class_says_that_it_cannot_judge(tmp_path):
    step = Step(tmp_path)
    foreign = replace(step.commit, exec_class=Digest(b"f" * 32))
    (tmp_path / "opening").write_bytes(step.opening)
    request = Examine(
        commit=foreign, update=step.update, opening=str(tmp_path / "opening"),
        blocks=tuple(step.blocks), segment=0, committed=NO_DIGEST, pattern=NO_DIGEST, drawn_by=SEED,
        in_reference=True,
    )  # fmt: skip

    examined = step.auditor.answer(request)

    assert isinstance(examined, Examined)
    assert (examined.finding.outcome, examined.exec_class) == (INCONCLUSIVE, REFERENCE)


def test_how_a_gradient_is_jittered_follows_from_the_draw_which_nobody_knew_who_signed_the_commit(
    tmp_path, monkeypatch
):
    step, seeds = Step(tmp_path), list[bytes]()

    def noted(*args, seed: bytes, **more):
        seeds.append(seed)
        return jittered_gradient(*args, seed=seed, **more)

    monkeypatch.setattr("assay.training.reference.rounding.jittered_gradient", noted)
    (tmp_path / "opening").write_bytes(step.opening)

    def seeds_of(drawn_by: Digest) -> list[bytes]:
        seeds.clear()
        request = Examine(
            commit=replace(step.commit, exec_class=Digest(b"f" * 32)), update=step.update,
            opening=str(tmp_path / "opening"), blocks=tuple(step.blocks), segment=0, committed=NO_DIGEST,
            pattern=NO_DIGEST, drawn_by=drawn_by, in_reference=True,
        )  # fmt: skip
        step.auditor.answer(request)
        return list(seeds)

    other = Digest(hashlib.sha256(b"another seed").digest())

    assert seeds_of(SEED) == seeds_of(SEED) != []
    assert not {*seeds_of(SEED)} & {*seeds_of(other)}
