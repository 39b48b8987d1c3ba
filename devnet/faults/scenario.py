"""Scenario: which members of a local network misbehave, from a file beside its order and the command line.

Room: devnet (edge: reads one file). `quickstart.toml` runs with `quickstart.scenario.toml`, if that exists:

    [nodes]
    4 = "stale-parameters@6"
    [verifiers]
    1 = "pass-all"
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from assay.devnet.faults.behaviours import HONEST, VERIFIER_BEHAVIOURS, parse_behaviour
from assay.orders.config_errors import ConfigProblem
from assay.orders.load import COMMAND_LINE
from assay.orders.sections import RunSection, Section
from assay.orders.toml import read_tables
from assay.protocol.errors import ConfigError

SUFFIX = ".scenario.toml"


class ScenarioFile(Section):
    """A scenario file: behaviours by a participant's number."""

    nodes: dict[str, str] = Field(default_factory=dict)  # NAME or NAME@ROUND
    verifiers: dict[str, str] = Field(default_factory=dict)  # NAME


def load_scenario(run: RunSection, order: Path | None, chosen: Iterable[str]) -> dict[str, str]:
    """The behaviour of each participant that is not honest, by its name in the network ("node-4").

    Args:
        run: How many there are, and how long the run is.
        order: The order's file, beside which the scenario is; None without.
        chosen: `4=NAME@ROUND` and `v1=NAME` from the command line; they come before the file's.

    Raises:
        ConfigError: one line for each problem, with its place and what was expected.
    """
    path = None if order is None else order.with_suffix(SUFFIX)
    file = read_tables(path, ScenarioFile) if path is not None and path.exists() else ScenarioFile()
    played = {("nodes", number): (text, str(path)) for number, text in file.nodes.items()}
    played |= {("verifiers", number): (text, str(path)) for number, text in file.verifiers.items()}
    played |= {_member(text): (text.partition("=")[2], COMMAND_LINE) for text in chosen}
    problems = []
    for place, (text, origin) in played.items():
        reason = _problem(run, place, text)
        if reason:
            problems.append(f"{origin}: {ConfigProblem(place, text, reason).text()}")
    if problems:
        raise ConfigError("\n".join(problems))
    return {
        f"{table.removesuffix('s')}-{number}": text
        for (table, number), (text, _) in played.items()
        if text != HONEST
    }


def _member(text: str) -> tuple[str, str]:
    member, sign, _ = text.partition("=")
    if not sign or not member.removeprefix("v").isdigit():
        raise ConfigError(
            f"--behave {text!r}: expected NODE=BEHAVIOUR or vVERIFIER=BEHAVIOUR, for example "
            "2=stale-parameters or v1=pass-all"
        )
    return "verifiers" if member.startswith("v") else "nodes", member.removeprefix("v")


def _problem(run: RunSection, place: tuple[str, str], text: str) -> str:
    """What is wrong with one behaviour; empty if nothing is."""
    table, number = place
    count = run.seat_count if table == "nodes" else run.verifiers
    if number not in map(str, range(count)):
        return f"no such {table.removesuffix('s')}; {table} are 0 to {count - 1}"
    if table == "verifiers":
        expected = ", ".join(VERIFIER_BEHAVIOURS)
        known = text in VERIFIER_BEHAVIOURS
        return "" if known else f"behaviour {text!r} is unknown; expected one of {expected}"
    try:
        behaviour = parse_behaviour(text)
    except ConfigError as fault:
        return str(fault)
    if behaviour.name == HONEST or behaviour.from_round < run.rounds:
        return ""
    return (
        f"would begin in round {behaviour.from_round} of a run whose last is {run.rounds - 1}; "
        f"write {behaviour.name}@ROUND"
    )
