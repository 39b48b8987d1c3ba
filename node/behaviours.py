"""Behaviours: ways in which a test node cheats or fails, to show that the defences work.

Room: node (pure). A local network selects them by name (`--behave 2=stale-parameters`); an honest operator's
configuration has no such key. Each falsifies one part of the step; `from_round` is the round in which it
begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.protocol.errors import ConfigError

CHEATS = {
    "stale-parameters": "computes the gradient at the parameters of the round before",
    "wrong-data": "trains on other sequences than the assigned ones",
    "random-update": "sends noise in place of a gradient and keeps its books straight",
    "no-feedback": "does not subtract from its momentum what it sent",
    "two-commits": "tells half of the verifiers one commit and the other half another",
    "withhold-opening": "never opens its momentum when drawn",
}
FAULTS = {
    "diverge": "holds one wrong bit in its parameters, once: an honest machine's memory fault",
}
NAMES = ("honest", *CHEATS, *FAULTS)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a node does from `from_round` on."""

    name: str = "honest"
    from_round: int = 6

    def at(self, round_id: int) -> str:
        """The behaviour in force in a round."""
        return self.name if round_id >= self.from_round else "honest"


def parse_behaviour(text: str) -> Behaviour:
    """`NAME` or `NAME@ROUND`.

    Raises:
        ConfigError: no such behaviour, or a round that is no number.
    """
    name, _, start = text.partition("@")
    if name not in NAMES:
        raise ConfigError(f"behaviour {name!r} is unknown; expected one of {', '.join(NAMES)}")
    if start and not (start.isascii() and start.isdigit()):
        raise ConfigError(f"behaviour {text!r}: expected NAME@ROUND, {start!r} is no round")
    return Behaviour(name, int(start) if start else 6)
