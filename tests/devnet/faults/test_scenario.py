"""A scenario: who misbehaves, beside an order and on the command line, and what every mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.devnet.faults.behaviours import NODE_CHEATS, parse_behaviour
from assay.devnet.faults.scenario import load_scenario
from assay.orders.load import load_order
from assay.orders.sections import RunFile
from assay.orders.toml import read_tables
from assay.protocol.errors import ConfigError

EXAMPLES = Path(__file__).parents[3] / "examples"
RUN = RunFile().run


def beside(tmp_path: Path, text: str) -> Path:
    """An order with this scenario beside it."""
    (tmp_path / "run.scenario.toml").write_text(text)
    return tmp_path / "run.toml"


def lines_of(order: Path | None, *chosen: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_scenario(RUN, order, chosen)
    return str(caught.value).splitlines()


def test_without_a_file_beside_the_order_everybody_is_honest(tmp_path):
    assert load_scenario(RUN, tmp_path / "run.toml", ()) == {}
    assert load_scenario(RUN, None, ()) == {}


def test_the_quickstart_has_one_cheater():
    assert load_scenario(RUN, EXAMPLES / "quickstart.toml", ()) == {"node-4": "stale-parameters@6"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.scenario.toml")), ids=lambda path: path.name)
def test_every_example_scenario_belongs_to_an_order_of_its_name(path):
    order = path.with_name(path.name.replace(".scenario", ""))
    run = read_tables(order, RunFile).run  # not the whole order: the base of some is trained first

    assert load_scenario(run, order, ())


def test_the_example_with_every_cheat_has_every_cheat_and_more_honest_nodes():
    path = EXAMPLES / "all-cheats.toml"
    run = load_order(path).run

    played = [parse_behaviour(text).name for text in load_scenario(run, path, ()).values()]

    assert sorted(played) == sorted(NODE_CHEATS)
    assert len(played) < run.nodes / 2


def test_the_command_line_adds_to_the_file_and_comes_before_it(tmp_path):
    path = beside(tmp_path, '[nodes]\n3 = "wrong-data"\n4 = "wrong-data"\n[verifiers]\n0 = "never-open"')

    found = load_scenario(RUN, path, ["2=no-feedback", "4=diverge@2", "v1=pass-all", "3=honest"])

    assert found == {
        "node-2": "no-feedback",
        "node-4": "diverge@2",
        "verifier-0": "never-open",
        "verifier-1": "pass-all",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[nodes]\n1 = "lazy"', "[nodes] 1 = \"lazy\": behaviour 'lazy' is unknown"),
        ('[nodes]\n1 = "pass-all"', "[nodes] 1 = \"pass-all\": behaviour 'pass-all' is unknown"),
        ('[nodes]\n5 = "diverge"', '[nodes] 5 = "diverge": no such node; nodes are 0 to 4'),
        ('[nodes]\n01 = "diverge"', '[nodes] 01 = "diverge": no such node'),
        ('[nodes]\n1 = "diverge@70"', "would begin in round 70 of a run whose last is 69"),
        ('[nodes]\n1 = "diverge@x"', "expected NAME@ROUND"),
        ('[nodes]\n1 = ["diverge"]', '[nodes] 1 = ["diverge"]: expected text'),
        ('[verifiers]\n1 = "diverge"', "[verifiers] 1 = \"diverge\": behaviour 'diverge' is unknown"),
        ('[verifiers]\n4 = "pass-all"', "no such verifier; verifiers are 0 to 3"),
        ('[node]\n1 = "diverge"', "[node]: unknown table; did you mean [nodes]?"),
        ("nodes", "run.scenario.toml: is not TOML"),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_what_was_expected(tmp_path, text, expected):
    (line,) = lines_of(beside(tmp_path, text))

    assert expected in line
    assert line.startswith(str(tmp_path / "run.scenario.toml"))


def test_a_mistake_is_blamed_on_where_it_was_made(tmp_path):
    path = beside(tmp_path, '[nodes]\n4 = "lazy"')

    lines = lines_of(path, "2=idle")

    assert [line.split(":")[0] for line in lines] == [str(tmp_path / "run.scenario.toml"), "command line"]


@pytest.mark.parametrize("text", ["2", "x=diverge", "v=pass-all", "=diverge", "vv1=pass-all"])
def test_a_choice_that_names_nobody_is_refused(text):
    (line,) = lines_of(None, text)

    assert "expected NODE=BEHAVIOUR" in line
