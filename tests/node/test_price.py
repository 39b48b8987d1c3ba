"""The price below which a node joins no run."""

from __future__ import annotations

import pytest

from assay.node.service import check_price
from assay.protocol.errors import ConfigError
from assay.testing.specs import a_money_spec


def test_a_node_refuses_what_pays_it_less_than_its_reserve_price():
    money = a_money_spec(price_per_mtoken=1_000_001, operators_ppm=870_000)
    assert money.operator_price == 870_000
    check_price(money, 0)
    check_price(money, 870_000)
    with pytest.raises(
        ConfigError, match=r"pays a node 0\.870000 aUSD per 10\^6 tokens; least_price asks for"
    ):
        check_price(money, 870_001)
