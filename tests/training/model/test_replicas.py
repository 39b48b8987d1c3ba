"""Replicas: groups computed side by side lead to the bits of one after another, in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.protocol.errors import ConfigError
from assay.protocol.params import ComputeSpec, Family, ModelSpec, Precision
from assay.testing.specs import a_model
from assay.training.execution.execution_class import execution_class
from assay.training.execution.threads import prepare
from assay.training.layout import layout_of
from assay.training.model import replicas
from assay.training.model.loss import loss_and_gradient, use_one_thread, use_threads
from assay.training.model.presets import PRESETS
from assay.training.model.replicas import in_order, use_replicas

LLAMA = replace(PRESETS["llama-1m"], layers=1, context=32)
PLAIN = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2)
KINDS = {
    "float32": PLAIN,
    "bfloat16": replace(PLAIN, dtype=Precision.BFLOAT16),
    "pairs": replace(PLAIN, beta_micro=300_000),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    use_replicas(1, "cpu")
    use_one_thread()


def a_batch(model: ModelSpec, sequences: int) -> np.ndarray:
    """The second group has nothing to learn, and the last is half a group."""
    tokens = np.random.default_rng(3).integers(0, model.vocabulary, (sequences, model.context + 1))
    tokens[2:4] = ~tokens[2:4]
    tokens[:, :3] = ~tokens[:, :3]
    return tokens


def both(model: ModelSpec, compute: ComputeSpec, sequences: int = 8) -> tuple[float, np.ndarray]:
    layout = layout_of(model)
    theta_P = np.random.default_rng(1).standard_normal(layout.parameters).astype(np.float32) * 0.02
    return loss_and_gradient(model, layout, theta_P, a_batch(model, sequences), compute=compute)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", [a_model(), LLAMA], ids=["gpt", "llama"])
def test_as_many_replicas_as_you_like_compute_the_same_bits(model: ModelSpec, kind: str, threads: int):
    use_threads(threads)
    sequences = 8 if kind == "pairs" else 7
    loss, gradient = both(model, KINDS[kind], sequences)
    assert np.count_nonzero(gradient)
    for count in (2, 3, 64):
        use_replicas(count, "cpu")
        found, found_P = both(model, KINDS[kind], sequences)
        assert (found, found_P.tobytes()) == (loss, gradient.tobytes())


def test_the_family_of_the_other_model_is_llama():
    assert LLAMA.family is Family.LLAMA


def test_a_class_is_the_same_with_replicas(tmp_path):
    alone = execution_class(PLAIN)
    prepare(tmp_path, device="cpu", threads=1, replicas=2)
    assert execution_class(PLAIN) == alone


def test_groups_are_computed_side_by_side_and_no_more_than_there_are_replicas(
    monkeypatch: pytest.MonkeyPatch,
):
    met = threading.Barrier(2)
    from assay.training.model import loss as losses

    true = losses._loss

    def meeting(*given):
        met.wait(timeout=60)  # breaks unless two are under way at once
        return true(*given)

    monkeypatch.setattr(losses, "_loss", meeting)
    use_replicas(2, "cpu")
    both(a_model(), replace(PLAIN, micro_sequences=4), 8)


def test_results_come_in_order_and_wait_to_be_taken_before_more_begins():
    begun: list[int] = []

    def work(at: int) -> int:
        begun.append(at)
        return at

    found = in_order(work, 9, 3)
    for at in range(9):
        assert next(found) == at
        assert max(begun) <= at + 3
    assert sorted(begun) == list(range(9))


def test_an_error_of_a_replica_is_raised_at_its_place():
    def work(at: int) -> int:
        if at == 1:
            raise ArithmeticError("group 1")
        return at

    found = in_order(work, 4, 2)
    assert next(found) == 0
    with pytest.raises(ArithmeticError, match="group 1"):
        next(found)


@pytest.mark.parametrize("names", [["A"], ["A", "B"], []])
def test_devices_that_are_not_there_or_differ_are_refused(monkeypatch: pytest.MonkeyPatch, names: list[str]):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda at: names[at])
    with pytest.raises(ConfigError, match=r"replicas = 2: expected as many devices of one kind, found \["):
        use_replicas(2, "cuda")


def test_of_more_devices_than_replicas_the_first_are_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", "AAB".__getitem__)
    use_replicas(2, "cuda")
    assert replicas.places("cuda", 5) == ["cuda:0", "cuda:1"]
    assert replicas.places("cuda", 1) == ["cuda"]
