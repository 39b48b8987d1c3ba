"""Attack: one adversary, run with its defence switched on and off.

Room: redteam (pure but for `without`, which replaces one name for a while). An adversary acts in `attempts`,
each of which is caught, succeeds, or neither. Its defence is switched off here, by an argument or by
replacing one named function; production code has no such switch. An attack that succeeds only undefended
shows that the defence is what stops it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class Where(enum.Enum):
    """The part of the system that the adversary attacks."""

    STEP = "the recomputed step"
    CHAIN = "the state transition"
    ROUND = "what a verifier lets pass"
    BYTES = "the decoders"
    CONTRACTS = "the contracts"


class AttackResult(enum.Enum):
    """Result of an attack against this system."""

    CAUGHT = "caught"  # it is proved or refused, and does not succeed
    HARMLESS = "harmless"  # nobody is accused, and it gains nothing
    OPEN = "open"  # it succeeds, sometimes or always


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Counts over some attempts.

    cost: of an attempt to the adversary, in honest steps' work. harm: its effect or gain, as text.
    """

    attempts: int
    caught: int
    succeeded: int
    cost: float
    harm: str

    def __post_init__(self) -> None:
        assert 0 <= self.caught <= self.attempts and 0 <= self.succeeded <= self.attempts


Run = Callable[[bool, int], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An adversary. `run(is_defended, seed)` runs it."""

    name: str
    number: int  # attacks of one kind share one
    where: Where
    defence: str
    run: Run
    has_off: bool = True  # whether the defence can be switched off here
    is_slow: bool = False  # seconds to minutes: left out of quick runs


class Attacks(list[Attack]):
    """Attacks on one part of the system, in the order in which they are defined."""

    def __init__(self, where: Where) -> None:
        super().__init__()
        self._where = where

    def attack(
        self, name: str, number: int, defence: str, *, where: Where | None = None, has_off: bool = True
    ) -> Callable[[Run], Run]:
        """Add the adversary that the function below runs; the arguments are its fields."""

        def add(run: Run) -> Run:
            self.append(
                Attack(
                    name=name,
                    number=number,
                    where=where or self._where,
                    defence=defence,
                    run=run,
                    has_off=has_off,
                )
            )
            return run

        return add


def tallied(attempts: int, caught: int, cost: float, harm: str) -> Outcome:
    """The outcome of attempts of which each is caught or succeeds."""
    return Outcome(attempts=attempts, caught=caught, succeeded=attempts - caught, cost=cost, harm=harm)


def finding_of(outcome: Outcome) -> AttackResult:
    """The attack's result, from an outcome with the defence on."""
    if outcome.succeeded:
        return AttackResult.OPEN
    return AttackResult.CAUGHT if outcome.caught else AttackResult.HARMLESS


def together(outcomes: list[Outcome]) -> Outcome:
    """The outcomes of several seeds as one; the cost is their mean, the harm the last one's."""
    return Outcome(
        attempts=sum(one.attempts for one in outcomes),
        caught=sum(one.caught for one in outcomes),
        succeeded=sum(one.succeeded for one in outcomes),
        cost=sum(one.cost for one in outcomes) / len(outcomes),
        harm=outcomes[-1].harm,
    )


@contextmanager
def without(target: Any, name: str, stand_in: Any, *, unless: bool = False) -> Iterator[None]:
    """Replace `target.name`, which must exist, by `stand_in` for as long as the block runs, or do nothing."""
    true = getattr(target, name)
    setattr(target, name, true if unless else stand_in)
    try:
        yield
    finally:
        setattr(target, name, true)
