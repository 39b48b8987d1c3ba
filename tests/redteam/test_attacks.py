"""Every attack is stopped by the defence its row names, and by nothing else: without it, it succeeds."""

from __future__ import annotations

import ast

import pytest

import assay.testing.run
from assay.redteam.attack import Attack, AttackResult, Outcome, Where, finding_of, together, without
from assay.redteam.court.contracts import ROOT, TESTS, adversaries_of, endings
from assay.redteam.table import ATTACKS
from assay.training.model.loss import use_one_thread

pytestmark = pytest.mark.slow

QUICK = [attack for attack in ATTACKS if not attack.is_slow]
SWITCHED = [attack for attack in QUICK if attack.has_off]
SEEDS = (1, 2, 3)  # who is drawn, and by whom, is chance: one seed may never ask the liar
# What this system does not stop. A row that leaves or joins this list changes docs/threat-model.md as well.
OPEN = {
    "momentum injection, one block, once",
    "steer by one false state",
    "own data: worthless data",
    "two of four verifiers pass a node's lies",
    "three of four verifiers frame a node",
    "five liars of eight nodes",
    "a score by agreement of more than f (2 ways)",
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    use_one_thread()


def by_name(attacks: list[Attack]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("attack", attacks, ids=lambda attack: attack.name)


def undefended_outcome(attack: Attack) -> Outcome:
    """Of the seeds up to the first with which it succeeds; of all, where the defence only makes it rarer."""
    outcomes: list[Outcome] = []
    for seed in SEEDS:
        outcomes.append(attack.run(False, seed))
        if outcomes[-1].succeeded and attack.name not in OPEN:
            break
    return together(outcomes)


@by_name(SWITCHED)
def test_it_succeeds_without_the_defence_and_less_or_not_at_all_with_it(attack: Attack) -> None:
    defended = together([attack.run(True, seed) for seed in SEEDS])
    undefended = undefended_outcome(attack)

    assert undefended.succeeded, undefended
    assert undefended.succeeded / undefended.attempts > defended.succeeded / defended.attempts
    assert (finding_of(defended) is AttackResult.OPEN) == (attack.name in OPEN), defended


@by_name([attack for attack in QUICK if not attack.has_off])
def test_what_has_no_defence_to_switch_off_is_said_to_be_open_or_gains_nothing(attack: Attack) -> None:
    outcome = attack.run(True, 1)

    assert not outcome.caught
    assert (finding_of(outcome) is AttackResult.OPEN) == (attack.name in OPEN), outcome


def test_names_tell_attacks_apart_and_every_room_is_attacked() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert {attack.where for attack in ATTACKS} == set(Where)
    assert {attack.name for attack in ATTACKS} >= OPEN


def test_every_number_of_the_catalogue_has_a_row() -> None:
    assert {attack.number for attack in ATTACKS} == set(range(1, 41))


@pytest.mark.parametrize("name", TESTS)
def test_a_row_against_the_contracts_names_tests_that_are_there(name: str) -> None:
    for test in adversaries_of(name):
        path, function = test.split("::")
        tree = ast.parse((ROOT / path).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_one_case_that_does_not_pass_keeps_its_test_from_passing() -> None:
    said = "tests/a.py::test_x[1, 2 b] PASSED [ 3%]\ntests/a.py::test_x[3] SKIPPED\ntests/a.py::test_y PASSED"

    assert endings(said) == {"tests/a.py::test_x": {"PASSED", "SKIPPED"}, "tests/a.py::test_y": {"PASSED"}}


def test_an_outcome_is_open_as_soon_as_one_attempt_succeeds() -> None:
    def outcome(caught: int, succeeded: int) -> Outcome:
        return Outcome(attempts=3, caught=caught, succeeded=succeeded, cost=1.0, harm="")

    assert finding_of(outcome(3, 0)) is AttackResult.CAUGHT
    assert finding_of(outcome(0, 0)) is AttackResult.HARMLESS
    assert finding_of(outcome(2, 1)) is AttackResult.OPEN
    assert finding_of(together([outcome(3, 0), outcome(2, 1)])) is AttackResult.OPEN
    assert together([outcome(3, 0), outcome(1, 0)]).caught == 4


def test_a_defence_that_was_switched_off_is_on_again_whatever_happens() -> None:
    true = assay.testing.run.a_network

    def fails() -> None:
        with without(assay.testing.run, "a_network", None):
            assert assay.testing.run.a_network is None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert assay.testing.run.a_network is true
    with pytest.raises(AttributeError), without(assay.testing.run, "no such defence", None):
        pass
