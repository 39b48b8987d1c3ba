"""Odds rows: a person's numbers in, figures with their formula out, and mistakes in words."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from assay.cli.audit.odds import Question, answers, odds_of
from assay.cli.main import app
from assay.orders.check import deterrence_words
from assay.protocol.errors import ConfigError
from assay.testing.specs import an_audit_spec
from assay.verifier.audit import odds

RULES = an_audit_spec(probation=4, floor_ppm=50_000, blocks=64)


def asked(**changes) -> Question:
    given = {"rate": 0.05, "cheat": 0.1, "steps": 1000, **changes}
    return Question(**given)


def value(name: str, **changes):
    return next(one for one in answers(asked(**changes)) if one.name == name)


def test_the_figures_are_those_of_the_formulas_in_token_units():
    rate, power = Fraction(1, 20), Fraction(19, 20)
    found = value("stake if a false step saves the cost of a step", cost=0.01, stake=10, late=3)
    need = odds.stake_against_laziness(10_000, rate, power, in_flight=3)

    assert found.value == -(-10 * need // 3)
    assert found.is_met is True
    assert value("stake if a false step saves the cost of a step", cost=0.01, stake=0.1).is_met is False
    assert value("detected within the run").value == odds.caught(rate * power / 10, 1000)
    sabotage = odds.stake_against_sabotage(5_000_000, rate, power, steps=1)
    assert value("stake against sabotage", gain=5, slash=0.5).value == 2 * sabotage
    assert value("stake against sabotage", gain=5, slash=0.5, false_steps=64).value == 2 * sabotage
    assert value("stake against sabotage", gain=5, slash=0.5, runs=20).value == 40 * sabotage
    bribe = value("auditor's stake against bribery", stake=1000, slash=0.5, auditor_stake=9_999)
    assert (bribe.value, bribe.is_met) == (10_000 * 10**6, False)


def test_a_liar_who_refuses_to_open_is_deterred_by_what_that_costs():
    open_, silent = (
        value(f"saving per step deterred{how}", stake=1000, slash=0.5, withheld=0.01).value
        for how in ("", " if the node refuses to open")
    )
    assert silent == open_ // 50


def test_without_known_answers_no_pay_beats_lazy_passing():
    assert value("least pay that deters lazy auditing", cost=0.01).value is None
    paid = value("least pay that deters lazy auditing", cost=0.01, known=0.005, auditor_stake=1)
    assert paid.value == odds.auditor_pay(10_000, Fraction(1, 200), 1_000_000)


def test_probation_finds_more_than_the_floor_alone():
    assert value("same, with probation", probation=4).value > value("detected within the run").value


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 1.5}, {"cheat": -0.1}, {"steps": -1}, {"power": 2}, {"stake": 0.00000001}, {"cost": -1},
        {"gain": 1, "false_steps": 0}, {"rate": 0, "cost": 1}, {"rate": 0.0, "probation": 3},
        {"rate": 0.0000001, "probation": 1}, {"cost": 1, "known": 7}, {"stake": 1, "slash": 3},
        {"stake": 1, "runs": 0}, {"gain": 1, "lasting": 0}, {"cost": 1, "idle": 0},
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_the_operators_mistake(wrong):
    with pytest.raises(ConfigError, match=r"^odds: "):
        answers(asked(**wrong))


def test_every_figure_names_its_formula_its_source_and_what_it_assumes():
    found = answers(asked(cost=0.01, price=0.02, stake=5, gain=1, known=0.01, probation=3, withheld=0.5))
    assert len(found) == 12
    assert all(one.formula and one.source and one.assumes for one in found)
    assert odds_of(asked()).answers[0].name == "detected within the run"


def test_the_command_prints_a_table_or_json_and_refuses_with_one_line():
    shown = CliRunner().invoke(app, ["audit", "odds", "--rate", "0.05", "--cost", "0.01"])
    assert shown.exit_code == 0
    assert "99.1446%" in shown.stdout
    plain = CliRunner().invoke(app, ["audit", "odds", "--json"])
    assert json.loads(plain.stdout)["asked"]["cheat"] == 0.1


def test_an_order_says_which_saving_its_stake_deters__of_what_is_lost():
    words = deterrence_words(RULES, 12, stake=10**9, slash_ppm=500_000, step_pay=10_000)

    saving = odds.saving_deterred(10**9 // 2, Fraction(1, 20), Fraction(19, 20), in_flight=12)
    assert f"{saving / 10**6:.6f} aUSD a step ({saving / 10_000:,.1f} times its pay)" in words
    assert "968 steps" in words
