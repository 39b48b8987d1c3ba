"""Games of agents with aims: no honest account loses by the rules of the model, and without each one does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.game.play import RULES, a_table, play
from tests.contracts.game.table import Table

pytestmark = pytest.mark.slow

LOST_WITHOUT = {
    "keepers challenge": (224, "buyer has "),
    "jurors are honest": (224, "buyer has "),
    "the accused appeal": (166, "operator 1 has "),
    "who opens a case is not betrayed": (725, "verifier 3 has "),
}


@pytest.fixture(scope="module")
def table(anvil_binary: Path) -> Iterator[Table]:
    with a_table(anvil_binary) as found:
        yield found


def test_no_honest_account_loses_by_a_theft_after_the_last_epoch_of_a_run_that_closed(table: Table):
    game = play(table, 34)

    assert "steals_at_the_end" in game.cast
    assert (game.losses, game.excuses) == ((), frozenset())


@pytest.mark.parametrize("rule", RULES)
def test_an_honest_account_loses_where_a_rule_of_the_model_is_broken(table: Table, rule: str):
    seed, who = LOST_WITHOUT[rule]

    assert any(one.startswith(who) for one in play(table, seed, without=[rule]).losses)


def test_the_same_seed_is_the_same_game_and_costs_nobody_honest_anything_by_the_rules(table: Table):
    first = play(table, 725)
    moves, block = table.reached.copy(), table.bank.block_number()
    second = play(table, 725)

    assert first == second
    assert first.losses == ()
    assert table.bank.block_number() == block and table.reached != moves
