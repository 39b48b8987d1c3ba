"""Audits between classes of data that the model knows by heart: tables of docs/results/tolerance.md.

    python -m benchmarks.by_heart [--losses 0.1 0.01] [--methods muloco] [--models llama] [--seed 1]

Where a model has learned its batch, the terms of its gradient cancel, and rounding is as large as what is
left. An honest step must not be MISMATCH there, and a lie should. First table: steps of one gradient (DeMo),
per loss and step the findings of three audits. Second: whole trainers, by method, model and precision; steps
of several inner ones have two segments, and each is audited.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.node.trainer import Trainer
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.messages import Commit, Outcome
from assay.protocol.params import NO_ADAPTER, AdapterSpec, ComputeSpec, ModelSpec, Precision, RunSpec, Target
from assay.protocol.types import NO_DIGEST, Digest
from assay.redteam.attack import without
from assay.redteam.court.appeals import Trial, judged_between_classes
from assay.redteam.nodes.test_bed import SMALL, Floats, TestBed, data_spec, lab_of
from assay.testing.learned import NotLearned, learned_by_heart
from assay.testing.members import NODES, RUN_ID, a_digest
from assay.testing.specs import a_rule, a_spec
from assay.training.codec.contribution import decode_contribution
from assay.training.data.batches import batch_positions, batch_tokens
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.initial import BASE, state_digest
from assay.training.model.loss import FLOAT32_WHOLE, use_one_thread
from assay.training.model.presets import llama_spec
from assay.verifier.audit.limits import shipped
from assay.verifier.audit.worker import RecomputeWorker
from benchmarks.machine import machine

LOSSES = (0.1, 0.03, 1e-2, 1e-3, 1e-4)
AUDITS = 3
INNER = {"steps": 4, "segment": 2, "sequences": 1, "inner_lr_nano": 2_000_000}
METHODS = {"demo": {"sequences": 4}, "muloco": INNER, "diloco": INNER, "fedavg": INNER}
LLAMA = llama_spec(layers=1, width=64, heads=4, kv_heads=2, hidden=96, context=16)
MODELS = {
    "gpt": SMALL,
    "llama": LLAMA,
    "adapter": replace(LLAMA, adapter=AdapterSpec(rank=8, alpha=16, targets=tuple(Target))),
}
PRECISIONS = {"float32": FLOAT32_WHOLE, "bfloat16": ComputeSpec(dtype=Precision.BFLOAT16, micro_sequences=0)}


class OtherDataTrainer(Trainer):
    """Computes its gradients on its batch with every row turned by three tokens."""

    def _gradient(self, theta_P, tokens):
        return super()._gradient(theta_P, np.roll(tokens, 3, axis=1))


class HalfTrainer(Trainer):
    """Leaves half of its targets out."""

    def _gradient(self, theta_P, tokens):
        half = tokens.copy()
        half[:, tokens.shape[1] // 2 :] = ~half[:, tokens.shape[1] // 2 :]
        return super()._gradient(theta_P, half)


TRAINERS = {"honest": Trainer, "other data": OtherDataTrainer, "half": HalfTrainer}


def main() -> None:
    """Print both tables, a row for each loss and kind of step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--losses", nargs="+", type=float, default=LOSSES)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=tuple(METHODS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=tuple(MODELS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=tuple(PRECISIONS))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}")
    print("| loss | step | findings |\n|---|---|---|", flush=True)
    lab = lab_of(args.seed)
    known = lab.recompute_worker.parameters.read(lab.round)
    for loss in args.losses:
        theta_P = learned_by_heart(lab.spec.model, known, lab.batch(), loss_at_most=loss)
        for name, x in _steps(lab, theta_P).items():
            print(f"| {loss:g} | {name} | {', '.join(_findings(lab, x, theta_P))} |", flush=True)
    columns = ("method", "model", "precision", "loss", *TRAINERS)
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for model in args.models:
        for precision in args.precisions:
            for method in args.methods:
                for loss in args.losses:
                    found = _trainers(model, precision, method, loss, args.seed)
                    print(f"| {' | '.join((method, model, precision, f'{loss:g}', *found))} |", flush=True)


def _steps(lab: TestBed, theta_P: Floats) -> dict[str, Floats]:
    """The honest step, and lies about it."""
    rng = np.random.default_rng(0)
    honest = lab.x_of(lab.batch(), theta=theta_P)
    size = np.abs(honest).mean()
    noise = rng.standard_normal((2, *honest.shape)).astype(np.float32) * size
    return {
        "honest": honest,
        "parameters of before": lab.x_of(lab.batch()),
        "other data": lab.x_of(np.roll(lab.batch(), 7), theta=theta_P),
        "noise of 10 %": (honest + np.float32(0.1) * noise[0]).astype(np.float32),
        "noise alone": noise[1],
    }


def _findings(lab: TestBed, x: Floats, theta_P: Floats) -> list[str]:
    told = lab.claim(x)
    auditor, trial = lab.recompute_worker, Trial(lab, told, theta_P)
    with ExitStack() as patched:
        patched.enter_context(without(auditor, "limits", shipped()))
        patched.enter_context(without(auditor.parameters, "read", lambda _round: theta_P))
        return [judged_between_classes(trial, told, beacon).name for beacon in range(AUDITS)]


def _trainers(model: str, precision: str, method: str, loss: float, seed: int) -> Iterator[str]:
    """How often each kind of trainer's first step was found what."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            spec, theta_P = _learned_run(folder, MODELS[model], precision, method, loss, seed)
        except NotLearned as error:
            yield str(error)
            return
        for kind, trainer in TRAINERS.items():
            counts = Counter(one.name for one in _audits(spec, folder, folder / kind, trainer, theta_P))
            yield ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def _learned_run(
    folder: Path, model: ModelSpec, precision: str, method: str, loss: float, seed: int
) -> tuple[RunSpec, Floats]:
    """A run, and parameters that know node 0's first batch."""
    whole = layout_of(replace(model, adapter=NO_ADAPTER))
    base = initial_parameters(3, whole.names, whole.shapes) * np.float32(3)
    if model.is_adapted:
        model = replace(model, base=state_digest(base))
        np.save(folder / BASE, base)
    data = data_spec(folder / "data", seed)
    rule = a_rule(method, **METHODS[method])
    spec = a_spec(data=data, rule=rule, model=model, compute=PRECISIONS[precision], rounds=20)
    spec = replace(spec, audit=replace(spec.audit, limits=shipped().digest()))
    auditor = _auditor(spec, folder, folder / "reader")
    batch = batch_tokens(
        auditor.tokens, batch_positions(spec, NODES[0], 0, spec.tokens_per_step), spec.model.context
    )
    start_P = auditor.parameters.read(0)
    return spec, learned_by_heart(spec.model, start_P, batch, loss_at_most=loss, frozen=auditor.frozen)


def _auditor(spec: RunSpec, folder: Path, own: Path) -> RecomputeWorker:
    files = {"data": folder / "data", "base": folder / BASE if spec.model.is_adapted else None}
    return RecomputeWorker(spec=spec, folder=own, limits=shipped(), **files)


def _audits(
    spec: RunSpec, folder: Path, own: Path, kind: type[Trainer], theta_P: Floats
) -> Iterator[Outcome]:
    auditor = _auditor(spec, folder, own / "auditor")
    trainer = kind(
        spec=spec, run_id=RUN_ID, node=NODES[0], folder=own / "node", salt_key=bytes(32),
        data=folder / "data", base=folder / BASE if spec.model.is_adapted else None,
    )  # fmt: skip
    auditor.parameters.read = trainer.parameters.read = trainer.parameters.at = lambda _round: theta_P
    record = trainer.step(0, a_digest("manifest before 0"), 0, NO_DIGEST)
    commit, layout = record.commit, trainer.layout
    assert isinstance(commit, Commit)
    live = decode_contribution(spec, layout, 0, record.update).blocks_B.tolist()
    for beacon in range(AUDITS):
        seed = Digest(hashlib.sha256(b"beacon %d" % beacon).digest())
        blocks = list(opened_blocks(seed, NODES[0], spec.audit, spec.audit.floor_ppm, layout.blocks, live))
        for segment in range(max(spec.rule.segments, 1)):
            opening = trainer.steps.opening(0, blocks, segment)
            yield auditor.examine(commit, record.update, opening, blocks, segment, in_reference=True).outcome


if __name__ == "__main__":
    main()
