"""Game table: the strategies of `assay audit game` against the numbers of a default order.

Room: cli (pure). The game is simulation/game.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich import box
from rich.table import Table

from assay.orders.amounts import DECIMALS, UNIT, scaled
from assay.orders.load import load_order
from assay.orders.spec import audit_spec
from assay.protocol.params import PPM
from assay.simulation.game import Market, Played, play_all

_WORK = Fraction(4, 5)  # of a step's pay: what its work costs


@dataclass(frozen=True, slots=True)
class Game:
    """What each strategy earned, the most profitable first; amounts in units of 10^-6 token."""

    played: list[Played]


def default_market(known: float) -> Market:
    """The numbers of an order that says nothing, for a step of 1,024 tokens.

    Args:
        known: Share of audits that are known-answer tasks.
    """
    order = load_order(None)
    budget, compress = order.budget, order.rule.compress
    pay = int(1_024 * budget.price_per_mtoken * Fraction(str(budget.operators)) / PPM)
    return Market(
        audit=audit_spec(order),
        operator_stake=scaled(budget.operator_stake, DECIMALS),
        verifier_stake=scaled(budget.verifier_stake, DECIMALS),
        slash_ppm=scaled(budget.slash, 6),
        verifier_slash_ppm=scaled(budget.verifier_slash, 6),
        step_pay=pay,
        step_cost=int(pay * _WORK),
        audit_pay=pay,
        audit_cost=int(pay * _WORK),
        lasting=compress.reset_rounds,
        known_ppm=round(known * PPM),
    )


def play(market: Market, epochs: int, seed: int) -> list[Played]:
    """Every strategy, the most profitable first."""
    return sorted(play_all(market, epochs, seed), key=lambda one: -one.advantage)


def game_table(played: Sequence[Played]) -> Table:
    """One row per strategy: what it earns in an epoch beyond honesty."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("strategy", f"{UNIT} an epoch, honest", "dishonest less honest", "+-", "lies", "found", ""):
        table.add_column(name, justify="left" if name in ("strategy", "") else "right")
    for one in played:
        table.add_row(
            one.name,
            f"{one.honest / 10**DECIMALS:,.6f}",
            f"{one.advantage / 10**DECIMALS:+,.6f}",
            f"{2 * one.error / 10**DECIMALS:,.6f}",
            f"{one.lies:,}",
            f"{one.found:,}",
            "PAYS" if one.is_profitable else "",
        )
    return table
