"""Audits of steps that train an adapter, by every method, and of nodes that compute on another base."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pytest

from assay.node.messages import StepRecord
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.errors import ConfigError
from assay.protocol.messages import Outcome
from assay.protocol.params import AdapterSpec, RunSpec, Target
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.specs import a_data_folder, a_rule, a_spec
from assay.training.codec.contribution import decode_contribution
from assay.training.exact import initial_parameters
from assay.training.frozen import Frozen
from assay.training.layout import layout_of
from assay.training.model.initial import BASE, state_digest
from assay.training.model.loss import use_one_thread
from assay.training.model.presets import llama_spec
from assay.training.optimiser.aggregate import encode_round
from assay.training.rounded import encode
from assay.verifier.aggregation.registry import rule_of
from assay.verifier.audit.worker import RecomputeWorker
from tests.faulty import a_faulty_trainer

NODE = peer("nora")
SEED = Digest(hashlib.sha256(b"seed").digest())
MATCH, MISMATCH = Outcome.MATCH, Outcome.MISMATCH
WHOLE = llama_spec(layers=2, width=64, heads=4, kv_heads=2, hidden=96, context=16)
MODEL = replace(WHOLE, adapter=AdapterSpec(rank=8, alpha=16, targets=tuple(Target)))
INNER = {"steps": 5, "segment": 2, "sequences": 1, "inner_lr_nano": 2_000_000}
METHODS = {
    "demo": {},
    "sparseloco": INNER,
    "diloco": INNER,
    "muloco": INNER,
    "streaming-diloco": {**INNER, "fragments": 3},
    "fedavg": INNER,
}


def a_base() -> np.ndarray:
    layout = layout_of(WHOLE)
    return initial_parameters(3, layout.names, layout.shapes) * np.float32(3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FilePath:
    use_one_thread()
    folder = a_data_folder(tmp_path_factory.mktemp("data"))
    for bits in (0, 4):
        np.save(folder / f"{bits}-{BASE}", few_bits(bits).stored)
    return folder


def an_adapters_run(method: str, bits: int = 0) -> RunSpec:
    rule, adapter = a_rule(method, **METHODS[method]), replace(MODEL.adapter, base_bits=bits)
    model = replace(MODEL, adapter=adapter, base=state_digest(few_bits(bits).values()))
    return a_spec(rule=rule, rounds=20, model=model)


def few_bits(bits: int) -> Frozen:
    layout = layout_of(WHOLE)
    return Frozen(layout, encode(layout, a_base(), bits) if bits else a_base(), bits)


class Pair:
    """A node that trains an adapter, and an auditor that follows; every round is accepted."""

    def __init__(
        self, data: FilePath, folder: FilePath, method: str, cheat: str = "honest", bits: int = 0
    ) -> None:
        self.spec, self.base = an_adapters_run(method, bits), (0, NO_DIGEST)
        files = {"data": data, "base": data / f"{bits}-{BASE}"}
        self.auditor = RecomputeWorker(spec=self.spec, folder=folder / "auditor", **files)
        self.trainer = a_faulty_trainer(
            cheat,
            1,
            spec=self.spec,
            run_id=RUN_ID,
            node=NODE,
            folder=folder / "node",
            salt_key=bytes(32),
            **files,
        )

    def step(self) -> StepRecord:
        number = self.trainer.parameters.round
        return self.trainer.step(number, a_digest(f"manifest before {number}"), *self.base)

    def outcomes(self, record: StepRecord) -> list[Outcome]:
        """Of an audit of each segment."""
        commit, layout = record.commit, self.trainer.layout
        live = decode_contribution(self.spec, layout, int(commit.round), record.update).blocks_B.tolist()
        audit = self.spec.audit
        blocks = list(opened_blocks(SEED, NODE, audit, audit.floor_ppm, layout.blocks, live))
        return [
            self.auditor.examine(
                commit,
                record.update,
                self.trainer.steps.opening(int(commit.round), blocks, segment),
                blocks,
                segment,
            ).outcome
            for segment in range(max(self.spec.rule.segments, 1))
        ]

    def accept(self, record: StepRecord) -> None:
        number, layout, named = self.trainer.parameters.round, self.trainer.layout, self.spec.rule.aggregation
        update = decode_contribution(self.spec, layout, number, record.update)
        mean = rule_of(named.name, named.f, bytes(32))({NODE: update}, layout.blocks)
        body = encode_round(self.spec.rule, mean, layout.blocks)
        assert self.trainer.apply(number, body) == self.auditor.parameters.apply(number, body)
        self.base = (number + 1, record.commit.momentum_after)


@pytest.mark.parametrize(("method", "bits"), [*((method, 0) for method in METHODS), ("demo", 4)])
def test_an_honest_step_matches_and_moves_the_factors(data, tmp_path, method, bits):
    pair = Pair(data, tmp_path, method, bits=bits)
    before = pair.auditor.parameters.at(0).copy()
    for _ in range(2):
        record = pair.step()
        assert set(pair.outcomes(record)) == {MATCH}
        pair.accept(record)

    if pair.spec.rule.apply_lag == 0:
        assert not np.array_equal(pair.auditor.parameters.at(2), before)
    assert np.array_equal(pair.auditor.frozen.values(), few_bits(bits).values())
    assert len(record.update) < 4 * pair.trainer.layout.parameters


@pytest.mark.parametrize(("method", "bits"), [("demo", 0), ("muloco", 0), ("demo", 4)])
def test_a_step_computed_on_another_base_is_found_in_the_round_it_begins(data, tmp_path, method, bits):
    pair = Pair(data, tmp_path, method, cheat="other-base", bits=bits)
    record = pair.step()
    assert set(pair.outcomes(record)) == {MATCH}
    pair.accept(record)

    assert set(pair.outcomes(pair.step())) == {MISMATCH}


def test_a_step_that_ignores_the_base_is_found(data, tmp_path):
    pair = Pair(data, tmp_path, "demo")
    pair.trainer.frozen = Frozen(pair.trainer.frozen.layout, np.zeros_like(a_base()))

    assert pair.outcomes(pair.step()) == [MISMATCH]


def test_an_auditor_with_another_base_does_not_start_so_that_it_accuses_nobody(data, tmp_path):
    np.save(tmp_path / BASE, a_base() * np.float32(1.01))

    with pytest.raises(ConfigError, match="not the parameters this run starts from"):
        RecomputeWorker(spec=an_adapters_run("demo"), data=data, folder=tmp_path / "a", base=tmp_path / BASE)


@pytest.mark.parametrize("bits", [0, 4])
def test_the_reference_class_computes_the_same_gradient_but_for_rounding(data, tmp_path, bits):
    pair = Pair(data, tmp_path, "demo", bits=bits)
    theta = pair.auditor.parameters.at(0) + np.float32(0.01)
    tokens = np.random.default_rng(1).integers(0, 256, (2, 17))

    (loss, slope), (same, again) = (
        compute(theta, tokens) for compute in (pair.auditor.gradient, pair.auditor._reference_gradient)
    )

    assert loss == pytest.approx(same, rel=1e-5)
    assert np.linalg.norm(slope - again) < 1e-5 * np.linalg.norm(slope)
