"""Trainers that misbehave, for tests of what finds them."""

from __future__ import annotations

from typing import Any

from assay.devnet.faults.trainer import KINDS, FaultyTrainer


def a_faulty_trainer(name: str, from_round: int, **arguments: Any) -> FaultyTrainer:
    """A trainer with a behaviour, or an honest one of that class."""
    trainer = KINDS.get(name, FaultyTrainer)(**arguments)
    trainer.misbehave_from(from_round)
    return trainer
