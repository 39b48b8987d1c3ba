"""Steps drawn without replacement: trainer, auditor and juror take the seat from the commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from assay.bundle.replay.step import Replayed, _check_public
from assay.node.messages import RepeatStep, StepRecord, TakeStep, WorkAhead
from assay.node.trainer import Trainer
from assay.protocol.messages import Outcome
from assay.protocol.run_state import start
from assay.protocol.types import NO_DIGEST, RoundId
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.signed import a_spec
from assay.testing.specs import a_data_folder, a_rule
from assay.training.codec.contribution import decode_contribution
from assay.training.data.batches import batch_positions, batch_root, batch_tokens, read_tokens
from assay.training.model.loss import use_one_thread
from assay.training.optimiser.aggregate import encode_round
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.appeal.evidence import batch_of
from assay.verifier.audit.worker import RecomputeWorker

SPEC = a_spec(rule=a_rule(read_lag=1, apply_lag=1))
SPEC = replace(SPEC, data=replace(SPEC.data, replaces=False))
NODE, SEAT, BLOCKS = peer("nora"), 2, [0, 1]
TAKE = TakeStep(
    round=RoundId(0), tasks_from=0, parent=a_digest("manifest"), base=0, base_root=NO_DIGEST, seat=SEAT
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    use_one_thread()
    return a_data_folder(tmp_path_factory.mktemp("data"))


def a_trainer(data: Path, folder: Path) -> Trainer:
    return Trainer(spec=SPEC, run_id=RUN_ID, node=NODE, data=data, folder=folder, salt_key=bytes(32))


def taken(trainer: Trainer, request: TakeStep) -> StepRecord:
    record = trainer.answer(request)
    assert isinstance(record, StepRecord)
    return record


@pytest.mark.slow
def test_an_auditor_and_a_juror_repeat_a_step_on_the_sequences_of_its_seat(data, tmp_path):
    trainer = a_trainer(data, tmp_path / "node")
    record = taken(trainer, TAKE)
    commit = record.commit
    positions = batch_positions(SPEC, NODE, 0, commit.tokens, seat=SEAT)
    tokens = read_tokens(data, SPEC.data)
    opening = trainer.steps.opening(0, BLOCKS)
    auditor = RecomputeWorker(spec=SPEC, data=data, folder=tmp_path / "auditor")

    assert (commit.seat, commit.batch_root) == (SEAT, batch_root(SPEC, positions))
    assert np.array_equal(batch_of(SPEC, commit, tokens), batch_tokens(tokens, positions, SPEC.model.context))
    for seat, outcome in ((SEAT, Outcome.MATCH), (1, Outcome.MISMATCH)):
        claimed = replace(commit, seat=seat)
        found = auditor.examine(claimed, record.update, opening, BLOCKS)
        assert found.outcome is outcome


@pytest.mark.slow
@pytest.mark.parametrize(("seat", "faults"), [(SEAT, 0), (1, 1)])
def test_a_replay_takes_the_seat_that_the_chain_gives_the_node(data, tmp_path, seat, faults):
    record = taken(a_trainer(data, tmp_path / "node"), TAKE)
    run_state = start(SPEC, RUN_ID)
    nodes = {NODE: replace(run_state.nodes[NODE], seat=seat)}
    delivered: Any = SimpleNamespace(spec=SPEC, run_states=[replace(run_state, nodes=nodes)])
    done = Replayed(commit=record.commit)

    _check_public(
        done, delivered, RecomputeWorker(spec=SPEC, data=data, folder=tmp_path / "auditor"), record.update
    )

    assert len(done.faults) == faults


@pytest.mark.slow
def test_a_step_that_is_repeated_or_made_ahead_is_on_the_sequences_of_its_seat(data, tmp_path):
    records = []
    for name, is_ahead in (("one", True), ("other", False)):
        trainer = a_trainer(data, tmp_path / name)
        first = taken(trainer, TAKE)
        place: dict[str, Any] = {"round": RoundId(1), "base": 1, "base_root": first.commit.momentum_after}
        trainer._seat = 0
        if is_ahead:
            trainer.answer(WorkAhead(**place, tasks_from=0, seat=SEAT))
            assert trainer._done is not None
        updates = {NODE: decode_contribution(SPEC, trainer.layout, 0, first.update)}
        mean = mean_over_senders(updates, trainer.layout.blocks)
        trainer.apply(0, encode_round(SPEC.rule, mean, trainer.layout.blocks))
        trainer._seat = 0
        records.append(taken(trainer, replace(TAKE, **place)))

    assert records[0] == records[1]
    assert records[0].commit.seat == SEAT
    assert trainer.answer(RepeatStep(commit=records[1].commit, tasks_from=0)) == records[1]
