"""Trainer: trainers that falsify their steps, or that hold a wrong bit.

Room: devnet (edge: runs as an `assay.participant.worker` worker, as `assay.node.trainer` does). Each class
overrides the one part of a production step that it falsifies; known-answer tasks stay what they are.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.devnet.faults.behaviours import FaultyTrainerStart
from assay.node.steps import write_durably
from assay.node.trainer import Trainer
from assay.protocol.known_answers import trained_as
from assay.protocol.types import Digest
from assay.protocol.update_rule import PPM
from assay.training.frozen import Frozen
from assay.training.layout import Layout
from assay.training.optimiser.node_state import NodeState
from assay.training.optimiser.step import Work, encode

Floats = NDArray[np.float32]
LONGER_S = 3.0


class FaultyTrainer(Trainer):
    """A trainer that misbehaves from a round on; this one does not."""

    from_round = 0

    def misbehave_from(self, round_id: int) -> None:
        """Begin in this round."""
        self.from_round = round_id

    def is_false(self, round_id: int) -> bool:
        """Whether this round's step is to be falsified."""
        return round_id >= self.from_round and not self.is_task(round_id)

    def ahead(self, round_id: int, base: int, base_root: Digest, *, left_ms: int = 0) -> bool:
        """No work ahead for a false step: it would be done by the parameters' round, not by its own."""
        return not self.is_false(round_id) and super().ahead(round_id, base, base_root, left_ms=left_ms)


class StaleParameters(FaultyTrainer):
    """Computes the gradient at the parameters of the round before, once it has seen one pass."""

    _stale_P: Floats | None = None

    def apply(self, round_id: int, aggregate: bytes) -> Digest:
        self._stale_P = super()._read(round_id)
        return super().apply(round_id, aggregate)

    def _read(self, round_id: int) -> Floats:
        if self._stale_P is None or not self.is_false(round_id):
            return super()._read(round_id)
        return self._stale_P


class WrongData(FaultyTrainer):
    """Trains on other sequences than the assigned ones."""

    def _trained_as(self, round_id: int) -> int:
        return trained_as(self.spec, round_id) if self.is_false(round_id) else super()._trained_as(round_id)


class ClaimsMore(FaultyTrainer):
    """Claims the largest step that the run pays for, and trains on one window in each inner step."""

    def _batch(self, round_id: int, theta_P: Floats, tokens: int) -> NDArray[np.int64]:
        rows = super()._batch(round_id, theta_P, tokens)
        if not self.is_false(round_id):
            return rows
        parts = np.split(rows, self.spec.rule.local.steps)
        return np.concatenate([part[: self.spec.compute.trained_per_window] for part in parts])

    def _step_tokens(self, left_ms: int) -> int:
        is_false = self.is_false(self.parameters.round)
        return self.spec.most_tokens_per_step if is_false else super()._step_tokens(left_ms)


class RandomUpdate(FaultyTrainer):
    """Sends noise of the right size in place of a gradient."""

    def _gradient(self, theta_P: Floats, tokens: NDArray[np.int64]) -> tuple[float, Floats]:
        loss, gradient = super()._gradient(theta_P, tokens)
        round_id = self.parameters.round
        if not self.is_false(round_id):
            return loss, gradient
        noise = np.random.default_rng(round_id).standard_normal(len(gradient)).astype(np.float32)
        return loss, noise * (np.linalg.norm(gradient) / np.linalg.norm(noise))


class OtherBase(FaultyTrainer):
    """Computes its gradients on another model: one whose embedding is longer by a hundredth."""

    def _gradient(self, theta_P: Floats, tokens: NDArray[np.int64]) -> tuple[float, Floats]:
        if not self.is_false(self.parameters.round):
            return super()._gradient(theta_P, tokens)
        if not self.spec.model.is_adapted:
            return super()._gradient(_longer(self.layout, theta_P), tokens)
        own, self.frozen = (
            self.frozen,
            Frozen(self.frozen.layout, _longer(self.frozen.layout, self.frozen.values())),
        )
        try:
            return super()._gradient(theta_P, tokens)
        finally:
            self.frozen = own


def _longer(layout: Layout, flat_P: Floats) -> Floats:
    """The same parameters, but for a longer embedding."""
    at, shape = layout.offsets()["embed"]
    changed_P = flat_P.copy()
    changed_P[at : at + int(np.prod(shape))] *= np.float32(1.01)
    return changed_P


class NoFeedback(FaultyTrainer):
    """Does not subtract from its momentum what it sent."""

    def _encode(self, round_id: int, before: NodeState, work: Work) -> tuple[NodeState, bytes]:
        if not self.is_false(round_id):
            return super()._encode(round_id, before, work)
        after, update = encode(self.spec, self.layout, round_id, before, work)
        beta = np.float32(self.spec.rule.compress.feedback_micro / PPM)
        return replace(after, error_NC=before.error_NC * beta + work.x_NC), update


class Slow(FaultyTrainer):
    """Takes longer for its work, as a larger model would."""

    def _work(self, round_id: int, before: NodeState, tokens: int) -> Work:
        if round_id >= self.from_round:
            time.sleep(LONGER_S)
        return super()._work(round_id, before, tokens)

    def ahead(self, round_id: int, base: int, base_root: Digest, *, left_ms: int = 0) -> bool:
        """Work ahead, which is no lie."""
        return Trainer.ahead(self, round_id, base, base_root, left_ms=left_ms)


class Diverge(FaultyTrainer):
    """Holds one wrong bit in its parameters of one round, once: after a reset it is honest."""

    def __init__(self, *, folder: Path, **more: Any) -> None:
        super().__init__(folder=folder, **more)
        self._scar = folder / "diverged"

    def misbehave_from(self, round_id: int) -> None:
        super().misbehave_from(round_id)
        self._flip()

    def apply(self, round_id: int, aggregate: bytes) -> Digest:
        digest = super().apply(round_id, aggregate)
        return self.parameters.digest() if self._flip() else digest

    def reset(self) -> None:
        super().reset()
        write_durably(self._scar, b"once")

    def _flip(self) -> bool:
        """Flip one bit of the parameters if it is time; returns whether it was."""
        if self.parameters.round != self.from_round or self._scar.exists():
            return False
        self.parameters.at(self.parameters.round).view(np.uint32)[0] ^= 1
        return True


KINDS = {
    "stale-parameters": StaleParameters,
    "wrong-data": WrongData,
    "claims-more": ClaimsMore,
    "random-update": RandomUpdate,
    "other-base": OtherBase,
    "no-feedback": NoFeedback,
    "slow": Slow,
    "diverge": Diverge,
}  # the others are honest trainers: their nodes misbehave


def open_worker(start: FaultyTrainerStart) -> FaultyTrainer:
    """The trainer that a start describes; sets this process up to compute."""
    trainer = KINDS.get(start.behaviour, FaultyTrainer).open(start.start)
    trainer.misbehave_from(start.from_round)
    return trainer


START = FaultyTrainerStart
