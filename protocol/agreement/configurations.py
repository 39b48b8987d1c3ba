"""Configurations: by whose keys the seats of a run's verifiers sign, from one hand-over to the next.

Room: protocol (pure). A seat keeps its name, the key of its first holder, in every message; a hand-over
changes by whose key its signatures are checked from then on. Configuration c is the assignment after c
hand-overs. Its number is the high part of an iteration's, so votes, blocks and certificates name it without a
field of their own, and no signature of one configuration means anything in another. Configuration 0, in
which every seat's key is its name, is all that a run without hand-overs knows. Rules: docs/decisions/0051.

    iteration = configuration << 32 | place in it, from 1
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import HandOver
from assay.protocol.types import Iteration, PeerId

PLACE_BITS = 32  # of an iteration's number; at ten iterations a second, 13 years of one configuration


@dataclass(frozen=True, slots=True)
class Configuration:
    """The assignment of keys to seats after these hand-overs, oldest first, and all those before it."""

    hand_overs: tuple[HandOver, ...] = ()

    @property
    def number(self) -> int:
        """How many hand-overs there were."""
        return len(self.hand_overs)

    def key(self, seat: PeerId) -> PeerId:
        """The key of the seat's holder: that of its last hand-over, or its name."""
        return next((one.holder for one in reversed(self.hand_overs) if one.seat == seat), seat)

    def seat_of(self, holder: PeerId) -> PeerId:
        """The seat that a key holds, or held: at most one in a run. Of a key that never held one, itself."""
        return next((one.seat for one in self.hand_overs if one.holder == holder), holder)

    def after(self, hand_overs: tuple[HandOver, ...]) -> Configuration:
        """The configuration after a manifest that hands these seats over; this one if it hands over none."""
        return Configuration(self.hand_overs + hand_overs) if hand_overs else self

    def of(self, iteration: Iteration) -> Configuration:
        """The configuration, this or an earlier one, whose keys sign in an iteration.

        Raises:
            MalformedMessage: it is of a later one.
        """
        number = number_of(iteration)
        if number > self.number:
            raise MalformedMessage(
                f"iteration {iteration} is of configuration {number}, expected {self.number} at most"
            )
        return Configuration(self.hand_overs[:number])


FIRST = Configuration()


def number_of(iteration: Iteration) -> int:
    """The number of the configuration that an iteration belongs to."""
    return iteration >> PLACE_BITS


def before_first(number: int) -> Iteration:
    """The number before a configuration's first iteration; 0 in configuration 0."""
    return Iteration(number << PLACE_BITS)
