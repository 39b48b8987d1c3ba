"""Test bed: a node that can falsify any part of a step, and the auditor that recomputes it.

Room: redteam (edge: files of one temporary folder). Node and auditor are the production `Trainer` and
`RecomputeWorker`, on a model small enough for thousands of audits. An adversary stores its step in the node's
own files, and it is opened from there; its claims about the step are free.

Shape suffixes: P = parameters, N = blocks, C = 4096.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.node.messages import StepRecord
from assay.node.trainer import Trainer
from assay.protocol.auditing.commitments import commitment_of
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.messages import Commit, Outcome
from assay.protocol.params import (
    ComputeSpec,
    DataSpec,
    ModelSpec,
    Precision,
    RunSpec,
    check_spec,
)
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.protocol.update_rule import RuleSpec
from assay.testing.members import NODES, RUN_ID
from assay.testing.run import a_spec
from assay.training.codec.contribution import decode_contribution
from assay.training.data.batches import batch_positions, batch_root, describe
from assay.training.data.shards import write_tokens
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.loss import FLOAT32_WHOLE, loss_and_gradient, use_one_thread
from assay.training.model.presets import gpt_spec
from assay.training.model.sampling import step_batch
from assay.training.optimiser.aggregate import encode_round
from assay.training.optimiser.node_state import NodeState
from assay.training.optimiser.schedule import rate
from assay.training.optimiser.step import Work, gradient_sketch
from assay.training.optimiser.step import encode as encode_step
from assay.training.transform.compress import gradient_blocks
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.audit.limits import Limits
from assay.verifier.audit.messages import Finding
from assay.verifier.audit.worker import RecomputeWorker

Floats = NDArray[np.float32]
SMALL = gpt_spec(layers=1, width=64, heads=2, context=16)  # 22 blocks
SEQUENCES = 8  # of a step, so that an eighth can be skipped
INNER_STEPS = 3  # of a round, where there are any
ROUNDS_BEFORE = 3  # honest rounds, so that momentum and old parameters exist
NODE, PEER = NODES[0], NODES[1]


def text(seed: int, count: int = 20_000) -> NDArray[np.uint8]:
    """Synthetic bytes with a pattern to learn."""
    drawn = np.frombuffer(hashlib.shake_256(b"redteam text %d" % seed).digest(count), np.uint8)
    return (np.cumsum(drawn % 5) % 64 + 32).astype(np.uint8)


def data_spec(folder: Path, seed: int) -> DataSpec:
    """The text in a folder, and its description in a run's spec."""
    return describe(
        write_tokens(folder, [text(seed)]), validation_tokens=500, source="made up", licence="none"
    )


def lab_spec(
    seed: int,
    data: DataSpec,
    *,
    model: ModelSpec = SMALL,
    rule: RuleSpec | None = None,
    blocks: int = 16,
    compute: ComputeSpec = FLOAT32_WHOLE,
) -> RunSpec:
    """A run of this model over this text in which every step is drawn."""
    base = a_spec(seed=seed, rounds=100_000)
    demo = method_rule(
        "demo", Choices(sequences=SEQUENCES, warmup_rounds=0, k=32, lr_nano=2_000_000, floor_ppm=0, f=1)
    )
    spec = replace(
        base, model=model, data=data, rule=rule or demo, audit=replace(base.audit, blocks=blocks),
        compute=compute,
    )  # fmt: skip
    check_spec(spec)
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClaim:
    """A step as an adversary claims it. The defaults of `TestBed.honest` are the truth.

    before: the claimed private state before it. after: the claimed one after it.
    sketches: the ones it commits to. cost: of the work really done, in honest steps. tokens: that it says
    it trained on; 0: the run's least.
    """

    before: NodeState
    after: NodeState
    update: bytes
    sketches: tuple[Digest, ...]
    cost: float = 1.0
    tokens: int = 0


class TestBed:
    """A node after some honest rounds, a peer, and an auditor, all at one round.

    limits: of the auditor, for steps that it judges in the reference class. choices: those of `lab_spec`.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        rounds: int = ROUNDS_BEFORE,
        limits: Limits | None = None,
        **choices: Any,
    ) -> None:
        use_one_thread()
        self.seed, self.data, self.folder = seed, folder / "data", folder
        self.spec = lab_spec(seed, data_spec(self.data, seed), **choices)
        self.trainers = {peer: self._trainer(peer) for peer in (NODE, PEER)}
        self.recompute_worker = RecomputeWorker(
            spec=self.spec, data=self.data, folder=folder / "auditor", limits=limits
        )
        self.bases: dict[PeerId, tuple[int, Digest]] = dict.fromkeys(self.trainers, (0, NO_DIGEST))
        for _ in range(rounds):
            self.pass_round()

    @property
    def round(self) -> int:
        """The round to train."""
        return self.recompute_worker.parameters.round

    @property
    def trainer(self) -> Trainer:
        """The adversary's trainer."""
        return self.trainers[NODE]

    @property
    def parent(self) -> Digest:
        """The manifest of the round before."""
        return Digest(hashlib.sha256(b"lab %d %d" % (self.seed, self.round)).digest())

    @property
    def before(self) -> NodeState:
        """The adversary's private state, as bound by the chain."""
        found = self.trainer.steps.private(self.bases[NODE][0])
        assert found is not None
        return found

    def step_of(self, peer: PeerId) -> StepRecord:
        """An honest node's step of this round."""
        return self.trainers[peer].step(self.round, self.parent, *self.bases[peer])

    def pass_round(self) -> dict[PeerId, StepRecord]:
        """A round in which everybody is honest; returns the records of its steps."""
        records = {peer: self.step_of(peer) for peer in sorted(self.trainers)}
        number, layout = self.round, self.trainer.layout
        updates = {
            peer: decode_contribution(self.spec, layout, number, record.update)
            for peer, record in records.items()
        }
        aggregate = encode_round(self.spec.rule, mean_over_senders(updates, layout.blocks), layout.blocks)
        for peer, record in records.items():
            self.trainers[peer].apply(number, aggregate)
            self.bases[peer] = (number + 1, record.commit.momentum_after)
        self.recompute_worker.parameters.apply(number, aggregate)
        return records

    # ---- what an adversary may compute, and claim

    def batch(
        self, round_id: int | None = None, node: PeerId = NODE, tokens: int | None = None
    ) -> NDArray[np.int64]:
        """The sequences assigned to this node in a round, in a step of so many tokens or the least."""
        number, theta = self.round if round_id is None else round_id, self.trainer.parameters.read(self.round)
        return step_batch(
            self.spec,
            self.trainer.layout,
            theta,
            self.trainer.tokens,
            node,
            number,
            tokens or self.spec.tokens_per_step,
        )

    def x_of(
        self,
        tokens: NDArray[np.int64],
        *,
        theta: Floats | None = None,
        compute: ComputeSpec = FLOAT32_WHOLE,
    ) -> Floats:
        """What a gradient over these tokens adds to the momentum. Shape (N, C)."""
        layout = self.trainer.layout
        at = self.trainer.parameters.read(self.round) if theta is None else theta
        _, slope = loss_and_gradient(self.spec.model, layout, at, tokens, compute=compute)
        return self.entering(slope)

    def entering(self, slope_P: Floats) -> Floats:
        """A gradient as it enters the momentum of this round."""
        lr = rate(self.spec.rule.outer.schedule, self.spec.rounds, self.round)
        return gradient_blocks(self.spec.rule, self.trainer.layout, slope_P, lr)

    def truth(self) -> Floats:
        """What an honest node adds to its momentum in this round."""
        return self.x_of(self.batch())

    def claim(
        self, x_NC: Floats, *, spec: RunSpec | None = None, before: NodeState | None = None, cost: float = 1.0
    ) -> StepClaim:
        """The step that follows from this work, with consistent error state."""
        began = self.before if before is None else before
        after, update = encode_step(
            spec or self.spec, self.trainer.layout, self.round, began, Work(x_NC=x_NC, loss=5.0)
        )
        return StepClaim(
            before=self.before, after=after, update=update, sketches=self.sketch(x_NC), cost=cost
        )

    def sketch(self, x_NC: Floats) -> tuple[Digest, ...]:
        """The committed sketch of this work."""
        return (gradient_sketch(self.parent, x_NC),)

    def bf16(self) -> ComputeSpec:
        """Less precision than the run ordered."""
        return ComputeSpec(dtype=Precision.BFLOAT16, micro_sequences=0)

    # ---- the audit

    def drawn(self, update: bytes, beacon: int = 0) -> list[int]:
        """The blocks that this beacon opens of this message."""
        layout = self.trainer.layout
        live = decode_contribution(self.spec, layout, self.round, update).blocks_B.tolist()
        seed = Digest(hashlib.sha256(b"beacon %d %d" % (self.seed, beacon)).digest())
        return list(
            opened_blocks(seed, NODE, self.spec.audit, self.spec.audit.floor_ppm, layout.blocks, live)
        )

    def keep(self, claim: StepClaim) -> Commit:
        """Store a claimed step where an honest one would be, and sign for it."""
        steps, salt = self.trainer.steps, Digest(os.urandom(32))
        tokens = claim.tokens or self.spec.tokens_per_step
        tree = steps.tree(claim.after)
        commit = Commit(
            run_id=RUN_ID,
            round=RoundId(self.round),
            node=NODE,
            parent=self.parent,
            state=self.trainer.parameters.digest(),
            batch_root=batch_root(self.spec, batch_positions(self.spec, NODE, self.round, tokens)),
            update=blob_digest(claim.update),
            update_bytes=len(claim.update),
            base=claim.before.base,
            momentum_before=steps.tree(claim.before).root,
            momentum_after=tree.root,
            inner=(),
            commitment=commitment_of(salt, claim.sketches),
            exec_class=self.recompute_worker.exec_class,
            tokens=tokens,
            loss_micro=5_000_000,
        )
        record = StepRecord(commit=commit, update=claim.update, salt=salt, sketches=claim.sketches)
        steps.keep(record, claim.after, tree)
        return commit

    def judge(self, claim: StepClaim, beacon: int = 0) -> Finding:
        """The auditor's finding on a claimed step when this beacon draws its blocks."""
        commit, blocks = self.keep(claim), self.drawn(claim.update, beacon)
        opening = self.trainer.steps.opening(self.round, blocks)
        return self.recompute_worker.examine(commit, claim.update, opening, blocks)

    def is_caught(self, claim: StepClaim, beacon: int = 0) -> bool:
        """Whether the audit opens a dispute: a mismatch, or a sketch that differs from the committed one.

        The latter is how `protocol/auditing/audits.py` treats a MATCH whose sketch differs from the node's.
        """
        found = self.judge(claim, beacon)
        return found.outcome is Outcome.MISMATCH or found.recomputed != claim.sketches[0]

    def _trainer(self, peer: PeerId) -> Trainer:
        return Trainer(
            spec=self.spec, run_id=RUN_ID, node=peer, data=self.data,
            folder=self.folder / peer.hex()[:8], salt_key=peer,
        )  # fmt: skip


@functools.lru_cache(maxsize=1)
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="assay-redteam-")


@functools.lru_cache(maxsize=4)
def lab_of(seed: int) -> TestBed:
    """The test bed of a seed, made once per process: adversaries leave no trace in it."""
    return TestBed(Path(_scratch().name) / f"lab-{seed}", seed)


@functools.lru_cache(maxsize=4)
def lab_between_classes(seed: int) -> TestBed:
    """One whose auditor judges nodes of other classes, within the limits that ship."""
    return TestBed(Path(_scratch().name) / f"between-{seed}", seed, limits=Limits())


@functools.lru_cache(maxsize=4)
def lab_of_sizes(seed: int) -> TestBed:
    """One of a run in which a step may have four times as many sequences as the least."""
    choices = Choices(
        sequences=SEQUENCES, sequences_max=4 * SEQUENCES, warmup_rounds=0, k=32, lr_nano=2_000_000,
        floor_ppm=0, f=1,
    )  # fmt: skip
    compute = replace(FLOAT32_WHOLE, micro_sequences=SEQUENCES)
    folder = Path(_scratch().name) / f"sizes-{seed}"
    return TestBed(folder, seed, rounds=1, rule=method_rule("demo", choices), compute=compute)


@functools.lru_cache(maxsize=4)
def lab_with_inner_steps(seed: int, *, keeps_moments: bool = False) -> tuple[TestBed, StepRecord]:
    """One whose rounds are steps of Muon from public parameters, and the adversary's honest step.

    keeps_moments: the rounds begin with the moments of the round before.
    """
    choices = Choices(
        sequences=2,
        steps=INNER_STEPS,
        segment=INNER_STEPS,
        inner_warmup_rounds=0,
        keeps_moments=keeps_moments,
    )
    folder = Path(_scratch().name) / f"inner-{keeps_moments}-{seed}"
    lab = TestBed(folder, seed, rule=method_rule("muloco", choices))
    return lab, lab.step_of(NODE)
