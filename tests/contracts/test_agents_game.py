"""Games of agents with aims: no honest account loses by the rules of the model, and without each one does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.game.play import RULES, a_table, play
from tests.contracts.game.table import Table

pytestmark = pytest.mark.slow

TRIES = 4  # who signs first, and so who sits on a jury, is chance
LOST_WITHOUT = {
    "keepers challenge": (224, "buyer has "),
    "jurors are honest": (224, "buyer has "),
    "the accused appeal": (136, "operator 1 has "),
    "who opens a case is not betrayed": (725, "verifier 3 has "),
    "who signed an order defends it": (20015, "verifier 3 has "),
    "the next set vetoes": (20021, "verifier 3 has "),
}


@pytest.fixture(scope="module")
def table(anvil_binary: Path) -> Iterator[Table]:
    with a_table(anvil_binary) as found:
        yield found


@pytest.mark.parametrize(
    ("seed", "who"),
    [
        pytest.param(34, "steals_at_the_end", id="thefts for epochs after the last one of a run that closed"),
        pytest.param(
            1186, "contradicts_itself", id="thefts before their epochs, while the run waits for money"
        ),
    ],
)
def test_no_honest_account_loses_in_games_that_once_found_a_fault(table: Table, seed: int, who: str):
    for game in (play(table, seed) for _ in range(TRIES)):
        assert who in game.cast
        assert game.losses == ()
        if not game.excuses:
            return
    pytest.fail(f"{TRIES} games without a jury as the model assumes it: {game.excuses}")


@pytest.mark.parametrize("rule", RULES)
def test_an_honest_account_loses_where_a_rule_of_the_model_is_broken(table: Table, rule: str):
    seed, who = LOST_WITHOUT[rule]

    games = (play(table, seed, without=[rule]) for _ in range(TRIES))
    assert any(one.startswith(who) for game in games for one in game.losses)
