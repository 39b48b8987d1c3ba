"""Behaviours: the ways in which a participant of a local network can cheat or fail, by name.

Room: devnet (pure). They show that the defences work. Each falsifies one thing; `from_round` is the round in
which a node's begins. What a behaviour does is in `trainer`, `node` and `verifier` beside this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from assay.bundle.report.labels import Label
from assay.node.messages import TrainerStart
from assay.protocol.encoding.codec import Max
from assay.protocol.errors import ConfigError

HONEST = "honest"
NODE_CHEATS = {
    "stale-parameters": "computes the gradient at the parameters of the round before",
    "wrong-data": "trains on other sequences than the assigned ones",
    "claims-more": "claims the most tokens that a step may count for, and trains on one window",
    "random-update": "sends noise in place of a gradient, with error state that follows from it",
    "no-feedback": "does not subtract from its momentum what it sent",
    "other-base": "computes its gradients on another model, whose embedding differs, than the run's",
    "two-commits": "sends half of the verifiers one commit and the other half another",
    "withhold-opening": "never opens its momentum when drawn",
}
NODE_FAULTS = {
    "slow": "takes three seconds longer for its work in every round",
    "diverge": "holds one wrong bit in its parameters, once: an honest machine's memory fault",
}
VERIFIER_CHEATS = {
    "pass-all": "finds MATCH in every step and recomputes none",
    "accuse-all": "finds MISMATCH in every step and recomputes none",
    "never-open": "commits to every verdict and reveals none",
}
NODE_BEHAVIOURS = (HONEST, *NODE_CHEATS, *NODE_FAULTS)
VERIFIER_BEHAVIOURS = (HONEST, *VERIFIER_CHEATS)
SLASHED_VERIFIERS = ("pass-all", "accuse-all")  # whose verdicts a committee proves false


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a participant does from `from_round` on."""

    name: str = HONEST
    from_round: int = 6

    def at(self, round_id: int) -> str:
        """The behaviour in force in a round."""
        return self.name if round_id >= self.from_round else HONEST

    def label(self) -> Label:
        """How a report counts a node of this behaviour."""
        if self.name not in NODE_CHEATS:
            return Label(behaviour=self.name, is_cheat=False, false_from=None)
        false_from: int | None = self.from_round
        if self.name == "two-commits":  # equivocation: the pair of commits is the evidence, not an audit
            false_from = None
        elif self.name == "stale-parameters" and not self.from_round:  # there are no older parameters
            false_from = 1
        return Label(behaviour=f"{self.name}@{self.from_round}", is_cheat=True, false_from=false_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyTrainerStart:
    """The start of a trainer that misbehaves."""

    TAG: ClassVar[bytes] = b"assay/worker/faulty-trainer-start/1"
    start: TrainerStart
    behaviour: Annotated[str, Max(64)]
    from_round: int


def parse_behaviour(text: str) -> Behaviour:
    """A node's behaviour: `NAME` or `NAME@ROUND`.

    Raises:
        ConfigError: no such behaviour, or a round that is no number.
    """
    name, _, start = text.partition("@")
    if name not in NODE_BEHAVIOURS:
        raise ConfigError(f"behaviour {name!r} is unknown; expected one of {', '.join(NODE_BEHAVIOURS)}")
    if start and not (start.isascii() and start.isdigit()):
        raise ConfigError(f"behaviour {text!r}: expected NAME@ROUND, {start!r} is no round")
    return Behaviour(name, int(start)) if start else Behaviour(name)
