"""Scenario: what befalls one local network, as a TOML file or drawn from a seed.

Room: tests (pure, but for one file). Participants are named as in the network's folder; `clocks` says by how
many seconds one is ahead, `behaviours` are those of `assay localnet --behave`.

    nodes = 3
    behaviours = ["2=wrong-data@2"]

    [clocks]
    verifier-1 = -2.5

    [[faults]]
    kind = "partition"
    whom = "verifier-3 node-1"
    round = 2
    seconds = 10.0
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from assay.devnet.faults.behaviours import HONEST, NODE_BEHAVIOURS, VERIFIER_BEHAVIOURS
from assay.orders.sections import Section
from assay.orders.toml import read_tables
from assay.protocol.errors import ConfigError

ROUNDS, ROUNDS_LEFT = 24, 4  # no drawn fault begins in the last ones
SKEW_S = 4.0  # that a clock is off at most; docs/protocol.md says what a larger difference does
CHAIN = "chain"
Kind = Literal[
    "kill",  # kill -9
    "kill worker",  # of the process that computes for it
    "freeze",  # SIGSTOP, for a while; also of the chain
    "reorganise",  # the chain's newest block gives way to an empty one
    "rot",  # a bit of a file flips while the participant runs; `node-1/steps` says in which
    "rot down",  # it is killed, and a bit flips before it is started again
    "fill disk",  # no write of it or of its worker adds to a file, for a while
    "partition",  # those that are named reach only each other and the chain, for a while
    "flood",  # the run's reserve attacks a verifier, for a while
]
LASTING = ("freeze", "fill disk", "partition", "flood")
# What seeds draw from. Later kinds are drawn afterwards, so that a seed keeps the faults that it had.
_DRAWN = (
    "kill", "kill worker", "freeze", "freeze chain", "reorganise chain", "rot", "rot down", "fill disk"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that comes from outside, once a round is final. One that lasts has `seconds` or `until`."""

    kind: Kind
    whom: str  # a participant, the chain, or of a partition everybody on one side
    round: int
    seconds: float = 0.0
    until: int = 0  # the round that ends it

    @property
    def names(self) -> tuple[str, ...]:
        """Whom it befalls."""
        return tuple(one.partition("/")[0] for one in self.whom.split())

    def __str__(self) -> str:
        lasts = f" until {self.until}" if self.until else f" for {self.seconds:.0f} s" if self.seconds else ""
        return f"{self.kind} {self.whom} at {self.round}{lasts}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens in one run."""

    seed: int = 0  # of what the faults themselves draw: which file, which bit
    nodes: int = 3
    verifiers: int = 4
    rounds: int = ROUNDS
    behaviours: tuple[str, ...] = ()
    clocks: tuple[tuple[str, float], ...] = ()  # seconds by which they are ahead
    faults: tuple[Fault, ...] = ()  # ascending by round

    @property
    def has_reserve(self) -> bool:
        """Whether the run has a reserve, which does nothing but flood."""
        return any(fault.kind == "flood" for fault in self.faults)

    def __str__(self) -> str:
        clocks = (f"clock of {name} {seconds:+.1f} s" for name, seconds in self.clocks)
        return "; ".join((f"{self.nodes} nodes", *self.behaviours, *clocks, *map(str, self.faults)))


def planned(seed: int) -> Scenario:
    """The scenario of a seed."""
    draw = random.Random(seed)
    nodes, verifiers = draw.choice((3, 4, 5)), Scenario().verifiers
    names = participants(nodes, verifiers)
    chosen = {
        f"{draw.randrange(nodes)}": draw.choice((HONEST, *NODE_BEHAVIOURS)),
        f"v{draw.randrange(verifiers)}": draw.choice((HONEST, HONEST, *VERIFIER_BEHAVIOURS)),
    }
    faults = []
    for _ in range(draw.randrange(1, 7)):
        drawn = draw.choice(_DRAWN)
        kind: Kind = next(one for one in _KINDS if one == drawn or f"{one} {CHAIN}" == drawn)
        seconds = draw.uniform(1, 25) if kind in LASTING else 0.0
        round_id, name = draw.randrange(ROUNDS - ROUNDS_LEFT), draw.choice(names)
        faults.append(Fault(kind, name if drawn == kind else CHAIN, round_id, seconds))
    behaviours = tuple(f"{who}={what}" for who, what in chosen.items() if what != HONEST)
    clocks = tuple((name, draw.uniform(-SKEW_S, SKEW_S)) for name in names if draw.random() < 0.2)
    if draw.random() < 0.3:
        apart = " ".join(draw.sample(names, draw.randrange(1, 4)))
        faults.append(Fault("partition", apart, draw.randrange(ROUNDS - ROUNDS_LEFT), draw.uniform(1, 25)))
    if draw.random() < 0.3:
        victim = f"verifier-{draw.randrange(verifiers)}"
        faults.append(Fault("flood", victim, draw.randrange(ROUNDS - ROUNDS_LEFT), draw.uniform(5, 25)))
    faults.sort(key=lambda one: one.round)
    return Scenario(seed, nodes, verifiers, ROUNDS, behaviours, clocks, tuple(faults))


def participants(nodes: int, verifiers: int) -> list[str]:
    """Everybody whom a fault may befall."""
    return [
        *(f"verifier-{n}" for n in range(verifiers)), *(f"node-{n}" for n in range(nodes)), "ledger", "buyer"
    ]  # fmt: skip


def written(scenario: Scenario) -> str:
    """The scenario as a file's text, which `read` inverts."""
    keys = ("seed", "nodes", "verifiers", "rounds", "behaviours")
    lines = [f"{key} = {json.dumps(getattr(scenario, key))}" for key in keys]
    if scenario.clocks:
        lines += ["", "[clocks]", *(f"{name} = {seconds}" for name, seconds in scenario.clocks)]
    for fault in scenario.faults:
        lines += [
            "",
            "[[faults]]",
            f'kind = "{fault.kind}"',
            f'whom = "{fault.whom}"',
            f"round = {fault.round}",
        ]
        lines += [f"{key} = {getattr(fault, key)}" for key in ("seconds", "until") if getattr(fault, key)]
    return "\n".join((*lines, ""))


def read(path: Path) -> Scenario:
    """A scenario's file.

    Raises:
        ConfigError: unknown keys, or values that no network can play: one line each.
    """
    file = read_tables(path, _File)
    faults = (Fault(one.kind, one.whom, one.round, one.seconds, one.until) for one in file.faults)
    clocks = tuple(file.clocks.items())
    ordered = tuple(sorted(faults, key=lambda one: one.round))
    scenario = Scenario(
        file.seed, file.nodes, file.verifiers, file.rounds, tuple(file.behaviours), clocks, ordered
    )
    if problems := list(_problems(scenario)):
        raise ConfigError("\n".join(f"{path}: {one}" for one in problems))
    return scenario


class _Fault(Section):
    kind: Kind
    whom: str
    round: int = Field(ge=0)
    seconds: float = Field(0.0, ge=0)
    until: int = Field(0, ge=0)


class _File(Section):
    seed: int = 0
    nodes: int = Field(3, ge=1)
    verifiers: int = Field(4, ge=1)
    rounds: int = Field(ROUNDS, ge=1)
    behaviours: list[str] = Field(default_factory=list)
    clocks: dict[str, float] = Field(default_factory=dict)
    faults: list[_Fault] = Field(default_factory=list)


def _problems(scenario: Scenario) -> Iterator[str]:
    names = participants(scenario.nodes, scenario.verifiers)
    verifiers = [name for name in names if name.startswith("verifier")]
    for name, _ in scenario.clocks:
        if name not in names:
            yield f"clocks: {name} is nobody, expected one of {', '.join(names)}"
    for fault in scenario.faults:
        may = {"freeze": [*names, CHAIN], "reorganise": [CHAIN], "flood": verifiers}.get(fault.kind, names)
        for name in fault.names:
            if name not in may:
                yield f"{fault}: {name} is not one of {', '.join(may)}"
        if len(fault.names) != 1 and (fault.kind != "partition" or not fault.names):
            yield f"{fault}: whom names {len(fault.names)}, expected one, or of a partition a side"
        if fault.round > scenario.rounds:
            yield f"{fault}: the run has {scenario.rounds} rounds"
        if bool(fault.seconds) + (fault.until > fault.round) != (fault.kind in LASTING):
            wanted = (
                "seconds, or a later round as until" if fault.kind in LASTING else "neither seconds nor until"
            )
            yield f"{fault}: expected {wanted}"


_KINDS: tuple[Kind, ...] = get_args(Kind)
