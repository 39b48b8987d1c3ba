"""Calendar: which rounds of a run train, which epoch they belong to, and when each epoch can be settled.

Room: protocol (pure). A run trains for the rounds that were ordered, or for fewer if its escrow closes
earlier: so the calendar follows from the run state (`RunState.calendar`), not from the spec alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """The calendar of a run that trains in rounds 0 to `rounds` - 1; epochs count from 0."""

    rounds: int
    epoch_rounds: int
    closing_rounds: int  # after which a step's audit has ended

    @property
    def last_round(self) -> int:
        """The round whose manifest completes the chain, once training and all audits are over."""
        return self.rounds - 1 + self.closing_rounds

    @property
    def epochs(self) -> int:
        """Number of epochs (settlements); the last one may be shorter."""
        return -(-self.rounds // self.epoch_rounds)

    def epoch_of(self, round_id: int) -> int:
        """The epoch of a round."""
        return round_id // self.epoch_rounds

    def epoch_end(self, epoch: int) -> int:
        """The round after an epoch's last step: the result names the parameters it begins with."""
        return min((epoch + 1) * self.epoch_rounds, self.rounds)

    def settled_at(self, epoch: int) -> int:
        """The round whose manifest makes `epoch` final for settlement: nothing in it changes later."""
        return self.epoch_end(epoch) - 1 + self.closing_rounds

    def kept_from(self, round_id: int) -> int:
        """The first round of those that this round's manifest may still change, or has just made final."""
        epoch = self.epoch_of(round_id)
        while epoch and round_id <= self.settled_at(epoch - 1) + 1:
            epoch -= 1
        return epoch * self.epoch_rounds

    def ripe_at(self, round_id: int) -> int | None:
        """The epoch that this round's manifest makes final for settlement, if there is one."""
        last = round_id - self.closing_rounds
        epoch = self.epoch_of(last)
        return epoch if 0 <= last < self.rounds and self.settled_at(epoch) == round_id else None
