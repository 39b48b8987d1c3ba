"""A model that is divided among processes has the bits of one process, and no process holds all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.node.trainer import Trainer
from assay.protocol.errors import ConfigError
from assay.protocol.params import ComputeSpec, Family, ModelSpec, Precision
from assay.protocol.types import NO_DIGEST
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.signed import a_spec
from assay.testing.specs import a_data_folder, a_model, a_rule
from assay.training.execution import processes
from assay.training.execution.challenge import fingerprint
from assay.training.execution.threads import prepare
from assay.training.layout import layout_of
from assay.training.model import sharded
from assay.training.model.loss import loss_and_gradient, use_one_thread
from tests.training.model.test_adapter import ALL_SEVEN, TOKENS, factors_of, frozen_of
from tests.training.model.test_replicas import KINDS, LLAMA, both

MODELS = {
    "gpt": a_model(layers=2),
    "llama": LLAMA,
    "tied": replace(a_model(), is_tied=True),
    "qwen2": replace(LLAMA, family=Family.QWEN2),
    "qwen3": replace(LLAMA, family=Family.QWEN3, head_width=24),
    "gemma": replace(LLAMA, family=Family.GEMMA, head_width=24, is_tied=True),
}


def test_without_one_of_its_processes_a_pass_ends_in_an_error_and_the_others_end_with_the_first():
    processes.start(3, "cpu", 1)
    whole, others = sharded.current(), list(processes._started)
    assert whole is not None
    others[0].kill()
    others[0].join()

    with pytest.raises((OSError, RuntimeError)):
        both(a_model(), KINDS["float32"])

    processes.stop(whole)
    assert not any(one.is_alive() for one in others)


@pytest.fixture(scope="module", params=[2, 3])
def whole(request: pytest.FixtureRequest) -> Iterator[sharded.Sharded]:
    use_one_thread()
    processes.start(request.param, "cpu", 1)
    found = sharded.current()
    assert found is not None
    yield found
    processes.stop(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_as_many_processes_as_you_like_compute_the_same_bits(
    whole: sharded.Sharded, model: ModelSpec, kind: str
):
    sequences = 8 if kind == "pairs" else 7
    found, found_P = both(model, KINDS[kind], sequences)
    assert list(whole) == list(layout_of(model).names)  # it was divided
    sharded.become(None)
    loss, gradient = both(model, KINDS[kind], sequences)
    sharded.become(whole)

    assert np.count_nonzero(gradient)
    assert (found, found_P.tobytes()) == (loss, gradient.tobytes())


def test_a_class_is_the_same_and_a_trainers_steps_are(whole: sharded.Sharded, tmp_path: Path):
    data = a_data_folder(tmp_path / "data")
    compute = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=1)
    spec, found = a_spec(rounds=20, compute=compute, rule=a_rule(sequences=5)), []
    for name, one in (("alone", None), ("sharded", whole)):
        sharded.become(one)
        trainer = Trainer(
            spec=spec, run_id=RUN_ID, node=peer("nora"), data=data, folder=tmp_path / name, salt_key=bytes(32)
        )
        found.append((fingerprint(compute), trainer.step(0, a_digest("before"), 0, NO_DIGEST)))

    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_only_what_a_kernel_reads_is_whole(
    whole: sharded.Sharded, kind: str, monkeypatch: pytest.MonkeyPatch
):
    model = replace(LLAMA, layers=6, context=24)  # no activation has the shape of a matrix
    alive: list[int] = []
    kept_shapes: set[tuple[int, ...]] = set()
    gather, kept = whole.gather, whole._kept

    def counted(name: str) -> torch.Tensor:
        alive.append(sum(not one.expired() for one in whole._gathered))
        return gather(name)

    def noted(tensor: torch.Tensor) -> Any:
        if isinstance(found := kept(tensor), torch.Tensor):
            kept_shapes.add(tuple(found.shape))
        return found

    monkeypatch.setattr(whole, "gather", counted)
    monkeypatch.setattr(whole, "_kept", noted)
    both(model, KINDS[kind])

    shapes = set(layout_of(model).shapes)
    assert kept_shapes and kept_shapes.isdisjoint(shapes | {shape[::-1] for shape in shapes})
    assert len(alive) > 6 * 9 * 2 and max(alive) <= 2  # of 57 tensors; the next is asked for before one goes
    size = -(-layout_of(model).parameters // whole.count)
    assert size <= sum(size for _, size, _ in whole._places.values()) < size * 1.01


def test_what_an_adapter_leaves_as_it_is_is_not_divided(
    whole: sharded.Sharded, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(whole, "begin", None)  # no pass of several begins
    given = layout_of(ALL_SEVEN), factors_of(ALL_SEVEN), TOKENS

    _, gradient = loss_and_gradient(ALL_SEVEN, *given, compute=KINDS["float32"], frozen=frozen_of(ALL_SEVEN))

    assert np.count_nonzero(gradient)


def test_replicas_of_a_divided_model_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="replicas = 2 and processes = 3: expected one of them to be 1"):
        prepare(tmp_path, device="cpu", threads=1, replicas=2, processes=3)


def test_devices_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda at: "A")
    with pytest.raises(ConfigError, match=r"processes = 2: expected as many devices of one kind, found \["):
        processes.start(2, "cuda", 1)
