"""Order bounds: what an order may cost in all, with a budget that follows from its price."""

from __future__ import annotations

import pytest

from assay.chain.text.units import DECIMALS, TOKENS_MAX
from assay.orders.load import load_order
from assay.orders.sections import STDLIB_BYTES, DataSection
from assay.protocol.errors import ConfigError

ROUNDS = 1_000_000
LARGE = {"run.rounds": ROUNDS, "train.sequences": 4096}


def test_an_automatic_budget_is_at_most_all_tokens():
    epochs, tokens = ROUNDS // 10, 10 * 5 * 4096 * 128  # of every seat in one epoch

    def budget(price: int) -> int:
        return -(-epochs * (tokens * price // 10**6) * 105 // 100)

    most = TOKENS_MAX * 10**DECIMALS
    price = most * 100 * 10**6 // (105 * epochs * tokens)
    while budget(price) > most:
        price -= 1
    beyond = next(more for more in range(price, price + 1000) if budget(more) > most)

    assert load_order(None, {**LARGE, "budget.price_per_mtoken": beyond - 1}).budget_units() <= most
    with pytest.raises(ConfigError, match="more than can be held"):
        load_order(None, {**LARGE, "budget.price_per_mtoken": beyond})


def test_a_source_is_read_whole_unless_the_order_bounds_it():
    assert DataSection(source="text").bytes_max == 1 << 50  # the largest bound that can be written
    assert DataSection(source="text", max_bytes=7).bytes_max == DataSection(max_bytes=7).bytes_max == 7
    assert DataSection().bytes_max == STDLIB_BYTES == 6_000_000
