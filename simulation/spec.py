"""Simulation spec: one simulated training, read from a TOML file.

Room: simulation (edge: reads the file and what it names). Model, data, training and wire are as in a run
file; [sim] sets the attackers, their attack, and the aggregation rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from assay.orders.config_errors import problems_of
from assay.orders.load import resolve
from assay.orders.order import Order
from assay.orders.sections import (
    CommSection,
    DataSection,
    ModelSection,
    Positive,
    RunFile,
    RunSection,
    Section,
    TrainSection,
    VerifySection,
)
from assay.orders.spec import build_spec
from assay.orders.toml import read_toml
from assay.protocol.errors import ConfigError
from assay.protocol.params import DataSpec, Member, RunSpec
from assay.protocol.types import NO_DIGEST, Address, Digest, PeerId
from assay.simulation.attacks.catalogue import ATTACKS
from assay.verifier.aggregation.names import DECODED_NAMES, RULE_NAMES

RuleName = Literal[(*RULE_NAMES, *DECODED_NAMES)]  # type: ignore[valid-type]
AttackName = Literal[(*ATTACKS,)]  # type: ignore[valid-type]


class SimSection(Section):
    """[sim]: the nodes, how many of them attack, how, and the rule that aggregates."""

    nodes: Annotated[int, Field(ge=1, le=128)] = 8
    liars: Annotated[int, Field(ge=0, le=63)] = 0  # the last ones; they replace honest nodes
    attack: AttackName = "none"
    lies_from: Annotated[int, Field(ge=0)] = 0  # the first round of the attack; they are honest before
    audited: bool = False  # by the rates of an order's defaults: who is found lying is gone
    rule: RuleName | None = None  # default: the method's rule
    f: Annotated[int, Field(ge=0, le=63)] | None = None  # Byzantine nodes the rule tolerates; default: liars
    rounds: Positive = 100
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    validate_every: Positive = 20  # rounds between validation losses
    validation_sequences: Positive = 32


class SimFile(Section):
    """A whole simulation file as written. Paths in it are relative to its folder."""

    sim: SimSection = SimSection()
    model: ModelSection = ModelSection()
    data: Annotated[tuple[DataSection, ...], Field(strict=False, min_length=1, max_length=64)] = (
        DataSection(),
    )
    train: TrainSection = TrainSection()
    comm: CommSection = CommSection()


@dataclass(frozen=True, slots=True)
class SimSpec:
    """A simulation, and the order that would train the same."""

    sim: SimSection
    order: Order

    @property
    def tolerated(self) -> int:
        """The number of Byzantine nodes the rule is to tolerate."""
        return self.sim.liars if self.sim.f is None else self.sim.f

    @property
    def rule(self) -> str:
        """The aggregation rule: the one written, or the method's."""
        return self.order.rule.aggregation.name


def sim_of(file: SimFile, folder: Path) -> SimSpec:
    """The simulation of these tables; relative paths start at `folder`.

    Raises:
        ConfigError: a file that is named cannot be read, or its content is not what its key expects.
    """
    sim, comm = file.sim, file.comm
    if sim.rule is not None:
        comm = comm.model_copy(update={"aggregation": sim.rule})
    run = RunSection(name="sim", seed=sim.seed, rounds=sim.rounds, nodes=sim.nodes)
    verify = VerifySection(limits="none")
    tables = RunFile(run=run, model=file.model, data=file.data, train=file.train, comm=comm, verify=verify)
    return SimSpec(sim, resolve(tables, folder))


def load_sim(path: Path, **changes: object) -> SimSpec:
    """The simulation a file describes; `changes` replace keys of its [sim].

    Raises:
        ConfigError: one line for each problem, with the file, the key and what was expected.
    """
    raw = read_toml(path)
    try:
        spec = sim_of(SimFile.model_validate({**raw, "sim": {**raw.get("sim", {}), **changes}}), path.parent)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {p.text()}" for p in problems_of(error, SimFile))) from None
    except ConfigError as fault:
        raise ConfigError(f"{path}: {fault}") from None
    sim, faults = spec.sim, []
    if spec.order.run.own_data:
        faults.append("[run] own_data: a simulation has the order's data alone, expected 0")
    if sim.nodes <= 2 * max(sim.liars, spec.tolerated):
        faults.append(f"[sim] nodes = {sim.nodes}: expected more than twice liars and f")
    if sim.attack != "none" and not sim.liars:
        faults.append(f'[sim] attack = "{sim.attack}": no node carries it out; expected liars of at least 1')
    if sim.attack == "none" and sim.liars:
        faults.append(f"[sim] liars = {sim.liars}: expected an attack")
    if spec.rule.endswith("krum") and sim.nodes < 2 * spec.tolerated + 3:
        faults.append(f'[sim] rule = "{spec.rule}": expected at least {2 * spec.tolerated + 3} nodes')
    if spec.rule.startswith("bucketing+") and -(-sim.nodes // 2) <= 2 * spec.tolerated:
        faults.append(f'[sim] rule = "{spec.rule}": pairs need more than {4 * spec.tolerated} nodes')
    if faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return spec


def sim_run_spec(spec: SimSpec, data: DataSpec, base: Digest = NO_DIGEST) -> RunSpec:
    """The run that is simulated: real sizes, invented members and money."""

    def members(role: int, count: int) -> list[Member]:
        heads = [bytes((role,)) + n.to_bytes(2, "big") for n in range(count)]
        return [
            Member(peer=PeerId(h + bytes(29)), account=Address(h + bytes(17)), hot=Address(h + bytes(17)))
            for h in heads
        ]

    nobody = Address(b"\xff" * 20)
    return build_spec(
        spec.order,
        deployment_id=Digest(bytes(32)),
        data=data,
        buyer=nobody,
        treasury=nobody,
        nodes=members(1, spec.sim.nodes),
        verifiers=members(2, 1),
        base=base,
    )
