"""Simulated round: the figures of one round of a simulated training.

Room: simulation (pure).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimRound:
    """One simulated round. loss: mean over the honest nodes' batches. validation: in rounds that measure it.

    stratum_losses: `validation` of each stratum, where seats have data of their own and some is held out.
    found: attackers of whom an audit has found a lie. frozen_ppm: parameters that did not move.
    aggregate_bytes: 0 for a decoded rule, which has no wire form.
    """

    round: int
    loss: float
    validation: float | None
    update_bytes: float
    aggregate_bytes: int
    frozen_ppm: int
    stratum_losses: tuple[float, ...] = ()
    found: int = 0
