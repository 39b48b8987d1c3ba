"""Steps of different size: trainers take what fits, auditors repeat what was counted, claims of more fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.node.messages import RepeatStep, StepRecord
from assay.node.service import Service
from assay.node.trainer import Trainer
from assay.protocol.messages import Outcome
from assay.protocol.params import ComputeSpec, Precision, RunSpec
from assay.protocol.types import NO_DIGEST
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.signed import a_spec
from assay.testing.specs import a_data_folder, a_rule
from assay.training.data.batches import batch_positions, batch_root
from assay.training.model.loss import use_one_thread
from assay.verifier.audit.limits import Limits, shipped
from assay.verifier.audit.worker import RecomputeWorker
from tests.faulty import a_faulty_trainer

pytestmark = pytest.mark.slow

NODE = peer("nora")
COMPUTE = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=1)
DEMO = a_spec(rounds=20, compute=COMPUTE, rule=a_rule(sequences=1, sequences_max=4))
INNER = a_spec(
    rounds=20,
    compute=COMPUTE,
    rule=a_rule("sparseloco", sequences=1, sequences_max=3, steps=4, segment=2, inner_lr_nano=2_000_000),
)
LATE = a_spec(rounds=20, compute=COMPUTE, rule=a_rule(sequences=1, sequences_max=4, read_lag=1, apply_lag=1))
BLOCKS = (0, 1)
both = pytest.mark.parametrize("spec", [DEMO, INNER], ids=["demo", "sparseloco"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    use_one_thread()
    return a_data_folder(tmp_path_factory.mktemp("data"))


def a_trainer(spec: RunSpec, data: Path, folder: Path, name: str = "honest") -> Trainer:
    from_round = 0 if name != "honest" else spec.rounds
    return a_faulty_trainer(
        name,
        from_round,
        spec=spec,
        run_id=RUN_ID,
        node=NODE,
        data=data,
        folder=folder / "node",
        salt_key=bytes(32),
    )


def sized_step(trainer: Trainer, sequences: int) -> StepRecord:
    """The first step of a trainer that has time for so many sequences of each inner step, and a half more."""
    trainer._sequence_us, trainer._rest_us = 2_000, 7_000
    left_ms = 7 + (2 * sequences + 1) * trainer.spec.rule.local.steps
    return trainer.step(0, a_digest("manifest"), 0, NO_DIGEST, left_ms=left_ms)


def audited(
    spec: RunSpec,
    data: Path,
    folder: Path,
    trainer: Trainer,
    record: StepRecord,
    limits: Limits | None = None,
) -> list[Outcome]:
    """What an auditor finds in each segment; in the reference class where there are limits."""
    worker = RecomputeWorker(spec=spec, data=data, folder=folder / "auditor", limits=limits)
    return [
        worker.examine(
            record.commit,
            record.update,
            trainer.steps.opening(0, list(BLOCKS), segment),
            list(BLOCKS),
            segment,
            in_reference=limits is not None,
        ).outcome
        for segment in range(max(spec.rule.segments, 1))
    ]


@both
@pytest.mark.parametrize("sequences", [1, 2, 3])
def test_a_step_is_as_large_as_it_has_time_for_and_an_auditor_repeats_it(
    data: Path, tmp_path: Path, spec: RunSpec, sequences: int
) -> None:
    trainer = a_trainer(spec, data, tmp_path)

    record = sized_step(trainer, sequences)

    commit = record.commit
    assert spec.step_sequences(commit.tokens) == sequences
    assert commit.batch_root == batch_root(spec, batch_positions(spec, NODE, 0, commit.tokens))
    assert set(audited(spec, data, tmp_path, trainer, record)) == {Outcome.MATCH}


@both
def test_who_claims_more_than_it_trained_is_found_in_whatever_segment_is_drawn(
    data: Path, tmp_path: Path, spec: RunSpec
) -> None:
    trainer = a_trainer(spec, data, tmp_path, "claims-more")

    record = sized_step(trainer, 1)

    assert record.commit.tokens == spec.most_tokens_per_step
    assert set(audited(spec, data, tmp_path, trainer, record)) == {Outcome.MISMATCH}


@pytest.mark.parametrize(("name", "outcome"), [("honest", Outcome.MATCH), ("claims-more", Outcome.MISMATCH)])
@pytest.mark.parametrize("dtype", list(Precision))
def test_another_class_judges_the_largest_steps_within_the_limits_that_were_measured_on_others(
    data: Path, tmp_path: Path, name: str, outcome: Outcome, dtype: Precision
) -> None:
    spec = replace(
        DEMO,
        compute=replace(COMPUTE, dtype=dtype),
        audit=replace(DEMO.audit, limits=shipped().digest()),
    )
    trainer = a_trainer(spec, data, tmp_path, name)

    record = sized_step(trainer, 4)

    assert record.commit.tokens == spec.most_tokens_per_step
    assert audited(spec, data, tmp_path, trainer, record, shipped()) == [outcome]


@both
def test_a_step_of_one_size_does_not_pass_for_one_of_another(
    data: Path, tmp_path: Path, spec: RunSpec
) -> None:
    """The commit's tokens say which batch an auditor repeats, whatever its batch root says."""
    trainer = a_trainer(spec, data, tmp_path)
    record = sized_step(trainer, 2)

    for tokens in (spec.tokens_per_step, spec.most_tokens_per_step):
        other = replace(record, commit=replace(record.commit, tokens=tokens))
        assert set(audited(spec, data, tmp_path, trainer, other)) == {Outcome.MISMATCH}


def test_a_first_step_is_the_smallest_and_what_it_took_decides_the_next(data: Path, tmp_path: Path) -> None:
    trainer = a_trainer(DEMO, data, tmp_path)
    first = trainer.step(0, a_digest("manifest"), 0, NO_DIGEST, left_ms=10**9)
    assert first.commit.tokens == DEMO.tokens_per_step
    assert trainer._sequence_us > 0 and trainer._rest_us > 0
    trainer.apply(0, b"")

    second = trainer.step(1, a_digest("next"), 0, NO_DIGEST, left_ms=10**9)

    assert second.commit.tokens == DEMO.most_tokens_per_step


def test_asked_again_with_more_time_a_trainer_returns_the_same_step(data: Path, tmp_path: Path) -> None:
    trainer = a_trainer(DEMO, data, tmp_path)
    record = sized_step(trainer, 2)

    assert trainer.step(0, a_digest("manifest"), 0, NO_DIGEST, left_ms=10**9) == record


def test_a_step_whose_files_are_lost_is_repeated_in_its_own_size(data: Path, tmp_path: Path) -> None:
    trainer = a_trainer(DEMO, data, tmp_path)
    record = sized_step(trainer, 3)
    trainer._sequence_us = 10**12

    assert trainer.answer(RepeatStep(commit=record.commit, tasks_from=0)) == record


def test_work_ahead_is_of_the_size_that_was_chosen_then(data: Path, tmp_path: Path) -> None:
    trainer = a_trainer(LATE, data, tmp_path)
    first = trainer.step(0, a_digest("manifest"), 0, NO_DIGEST)
    trainer._sequence_us = trainer._rest_us = 1_000
    assert trainer.ahead(1, 1, first.commit.momentum_after, left_ms=4)
    trainer.apply(0, b"")
    trainer._sequence_us = 10**12

    second = trainer.step(1, a_digest("next"), 1, first.commit.momentum_after, left_ms=10**9)

    assert LATE.step_sequences(second.commit.tokens) == 3


def left_ms(spec: RunSpec, passed_s: float, sending_s: float) -> int:
    service = SimpleNamespace(me=SimpleNamespace(spec=spec), _sending_s=sending_s)
    return Service._left_ms(service, passed_s)  # type: ignore[arg-type]


def test_a_node_leaves_time_for_what_is_past_and_for_sending() -> None:
    assert DEMO.timing.collect_ms == 5_000
    assert left_ms(DEMO, 0.0, 0.0) == 2_500
    assert left_ms(DEMO, 1.0, 0.25) == 1_250
    assert left_ms(DEMO, 3.0, 0.0) == 0
    assert left_ms(a_spec(), 0.0, 0.0) == 0
