"""A device trainer's steps are the trainer's to the byte: messages, commits and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from assay.node import device_trainer
from assay.node.device_trainer import DeviceTrainer, open_worker
from assay.node.messages import RepeatStep, StepRecord, TrainerStart
from assay.node.service import Service
from assay.node.trainer import Trainer
from assay.participant.compute import Workplace
from assay.protocol.errors import Diverged, Unavailable
from assay.protocol.messages import NO_OWN_DATA
from assay.protocol.params import ComputeSpec, Precision, Predecessor, RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import BLOCK_SIZE
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.signed import a_spec
from assay.testing.specs import a_data_folder, a_rule
from assay.training.codec.wire import decode_update, encode_aggregate
from assay.training.model.loss import gradient_on_device
from assay.training.optimiser import step as rules
from assay.training.optimiser.node_state import NodeState
from assay.verifier.aggregation.mean import mean_over_senders

NODE = peer("nora")
ROUNDS = 4
PREDECESSOR = Predecessor(run_id=a_digest("run"), manifest=a_digest("last"), rounds=500, outer=NO_DIGEST)
DEMO = a_spec(rounds=40, compute=ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=1))
LATE = replace(DEMO, rule=a_rule(read_lag=1))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_data_folder(tmp_path_factory.mktemp("data"))


def a_trainer(kind: type[Trainer], data: Path, folder: Path, spec: RunSpec = DEMO) -> Trainer:
    return kind(
        spec=spec, run_id=RUN_ID, node=NODE, data=data, folder=folder / kind.__name__, salt_key=b"k" * 32
    )


def step(trainer: Trainer, round_id: int, base: StepRecord | None) -> StepRecord:
    last, root = (0, NO_DIGEST) if base is None else (base.commit.round + 1, base.commit.momentum_after)
    return trainer.step(round_id, a_digest(f"before {round_id}"), last, root)


def applied(trainer: Trainer, record: StepRecord) -> Digest:
    blocks, rule = trainer.layout.blocks, trainer.spec.rule
    sent = decode_update(record.update, blocks, rule.compress.k, rule.compress.values)
    return trainer.apply(
        record.commit.round, encode_aggregate(mean_over_senders({NODE: sent}, blocks), blocks)
    )


def files(trainer: Trainer) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(trainer.steps.folder.iterdir())}


@pytest.mark.parametrize("spec", [DEMO, LATE], ids=["demo", "ahead"])
def test_steps_messages_and_files_are_the_same_bytes(data: Path, tmp_path: Path, spec: RunSpec):
    both = [a_trainer(kind, data, tmp_path, spec) for kind in (Trainer, DeviceTrainer)]
    base: StepRecord | None = None
    for round_id in range(ROUNDS):
        first, second = (step(trainer, round_id, base) for trainer in both)
        assert first == second and first.update
        base = None if round_id == 2 else first  # whose momentum is that of no accepted step
        for trainer in both:
            trainer.ahead(round_id + 1, round_id + 1, first.commit.momentum_after)
        assert len({applied(trainer, first) for trainer in both}) == 1
    assert files(both[0]) == files(both[1])
    assert np.count_nonzero(both[1].steps.private(ROUNDS).error_NC)


def test_the_error_is_read_from_the_disk_once_and_stays_on_the_device(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole, trainer = (a_trainer(kind, data, tmp_path) for kind in (Trainer, DeviceTrainer))
    base = None
    for round_id in range(2):
        base = step(whole, round_id, base)
        assert step(trainer, round_id, base and whole.steps.record(round_id - 1)) == base
        for one in (whole, trainer):
            applied(one, base)
    again = a_trainer(DeviceTrainer, data, tmp_path)  # a process that begins anew
    read: list[int] = []
    for round_id in range(2):
        applied(again, again.steps.record(round_id))
    private = again.steps.private

    def counted(base: int) -> NodeState | None:
        read.append(base)
        return private(base)

    monkeypatch.setattr(again.steps, "private", counted)

    for round_id in range(2, 5):
        base, last = step(whole, round_id, base), base
        assert step(again, round_id, last) == base
        for one in (whole, again):
            applied(one, base)

    assert read == [2]


def test_an_error_beyond_its_limit_is_carried_in_part(data: Path, tmp_path: Path):
    rule = replace(DEMO.rule, compress=replace(DEMO.rule.compress, reset_rounds=16))
    spec = replace(DEMO, rule=rule, predecessor=PREDECESSOR)
    both = [a_trainer(kind, data, tmp_path, spec) for kind in (Trainer, DeviceTrainer)]
    shape = (both[0].layout.blocks, BLOCK_SIZE)
    large = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * np.float32(1e-4)

    found = []
    for trainer in both:
        before = NodeState(large.copy(), None, 3)
        after, body = trainer._encode(3, before, trainer._work(0, before, spec.tokens_per_step))
        found.append((after.error_NC.tobytes(), after.base, body))

    assert found[0] == found[1]


@pytest.mark.parametrize("breaks", ["message", "keep"])
def test_a_step_that_was_not_kept_leaves_no_error_that_the_next_goes_on_from(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
):
    whole, trainer = (a_trainer(kind, data, tmp_path) for kind in (Trainer, DeviceTrainer))
    base = step(whole, 0, None)
    assert step(trainer, 0, None) == base
    for one in (whole, trainer):
        applied(one, base)
    with monkeypatch.context() as broken:
        where = trainer.steps if breaks == "keep" else rules
        broken.setattr(where, breaks, lambda *_: (_ for _ in ()).throw(OSError("disk is full")))
        with pytest.raises(OSError, match="disk is full"):
            step(trainer, 1, base)

    assert step(trainer, 1, base) == step(whole, 1, base)


def test_a_step_whose_files_are_damaged_is_repeated(data: Path, tmp_path: Path):
    trainer = a_trainer(DeviceTrainer, data, tmp_path)
    base = None
    for round_id in range(3):
        base = step(trainer, round_id, base)
        applied(trainer, base)
    kept, commit = files(trainer), base.commit
    for path in trainer.steps.folder.glob("momentum-*[12].npy"):
        path.unlink()

    assert trainer.answer(RepeatStep(commit=commit, tasks_from=0)) == base
    assert files(trainer) == kept
    with pytest.raises(Diverged, match="another commit"):
        trainer.repeat(replace(commit, loss_micro=commit.loss_micro + 1))
    follows = step(trainer, 3, base)
    assert follows.commit.momentum_before == commit.momentum_after


def test_a_gradient_that_is_not_finite_is_not_sent(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trainer, true = a_trainer(DeviceTrainer, data, tmp_path), gradient_on_device

    def broken(*given, **more):
        loss, gradient_P = true(*given, **more)
        gradient_P[7] = float("inf")
        return loss, gradient_P

    monkeypatch.setattr(device_trainer, "gradient_on_device", broken)
    with pytest.raises(Unavailable, match="not finite"):
        step(trainer, 0, None)
    assert not files(trainer)


@pytest.mark.parametrize(("method", "kind"), [("demo", DeviceTrainer), ("sparseloco", Trainer)])
def test_a_method_that_is_not_covered_is_trained_with_the_hosts_transforms(
    data: Path, tmp_path: Path, method: str, kind: type[Trainer]
):
    start = TrainerStart(
        spec=replace(DEMO, rule=a_rule(method)),
        run_id=RUN_ID,
        node=NODE,
        salt_key=bytes(32),
        workplace=Workplace(data=str(data), folder=str(tmp_path), base="", device="cpu", threads=1),
        known_answers=(),
    )
    assert type(open_worker(start)) is kind


@pytest.mark.parametrize(
    ("device", "processes", "module"),
    [("cpu", 1, "trainer"), ("cuda", 1, "device_trainer"), ("cuda", 2, "trainer")],
)
def test_where_a_nodes_gradient_lies_decides_which_of_both_it_starts(
    device: str, processes: int, module: str
):
    me = SimpleNamespace(
        config=SimpleNamespace(device=device, processes=processes),
        keys=SimpleNamespace(peer=bytes(32)),
        spec=DEMO,
        run_id=RUN_ID,
        me=NODE,
        workplace=Workplace(data="", folder="", base="", device=device, threads=1),
    )

    node: Any = SimpleNamespace(me=me, tasks=SimpleNamespace(shown=()), own_data=None, own=NO_OWN_DATA)

    found, _ = Service._trainer(node)

    assert found == f"assay.node.{module}"
