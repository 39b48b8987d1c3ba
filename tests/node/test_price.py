"""The price below which a node joins no run."""

from __future__ import annotations

import pytest

from assay.node.service import check_price
from assay.protocol.errors import ConfigError
from assay.protocol.params import AcceptSpec, Milestone
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


def test_what_depends_on_the_model_does_not_count_for_the_reserve_price():
    accept = AcceptSpec(share_ppm=250_000, sequences=1, milestones=(Milestone(epoch=0, most_loss_micro=1),))
    money = a_money_spec(price_per_mtoken=1_000_001, operators_ppm=870_000, accept=accept)
    assert (money.operator_price, money.sure_operator_price) == (870_000, 652_500)
    check_price(money, 652_500)
    with pytest.raises(ConfigError, match=r"0\.652500 aUSD .* where the model misses its milestones"):
        check_price(money, 652_501)
