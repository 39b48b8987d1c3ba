"""The published gas figures are what the committed artefacts use."""

from __future__ import annotations

from pathlib import Path

from tests.contracts.gas import measure, published

TOLERANCE = 0.005  # zero bytes of addresses, and nothing else


def test_every_published_figure_is_what_the_move_uses(anvil_binary: Path):
    told = published()
    found = {cost.move: cost.gas for cost in measure(anvil_binary)}

    assert list(told) == list(found)
    for move, gas in found.items():
        assert abs(gas - told[move]) <= TOLERANCE * gas, f"{move}: {gas} used, {told[move]} published"
