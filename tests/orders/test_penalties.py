"""An order whose penalties the slash court would refuse is refused before anybody pays or starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.chain.client import LOCALNET, MAINNET
from assay.chain.penalties import check_penalties
from assay.devnet.run import run_localnet
from assay.orders.check import check_order
from assay.orders.load import load_order
from assay.orders.price.quote import quote_of
from assay.orders.spec import money_spec
from assay.protocol.errors import ConfigError
from assay.protocol.types import Address

NOBODY = Address(bytes(20))


def an_order(folder: Path, budget: str) -> Path:
    path = folder / "run.toml"
    path.write_text(f'[run]\nname = "harsh"\n[budget]\n{budget}\n')
    return path


@pytest.mark.parametrize("params", [MAINNET, LOCALNET])
def test_the_default_order_can_be_carried_out(params):
    check_penalties(money_spec(load_order(None), NOBODY), params.case_ppm_max)


@pytest.mark.parametrize("name", ["slash_ppm", "withheld_ppm", "verifier_slash_ppm"])
def test_a_penalty_may_reach_the_cap_and_not_exceed_it(name):
    money = replace(money_spec(load_order(None), NOBODY), **{name: 250_000})
    others = {"slash_ppm": 1, "withheld_ppm": 1, "verifier_slash_ppm": 1, name: 250_000}
    money = replace(money, **others)

    check_penalties(money, 250_000)
    with pytest.raises(ConfigError, match=r"takes 0\.25 of a lot.* at most 0\.249999"):
        check_penalties(money, 249_999)


@pytest.mark.parametrize("budget", ["slash = 0.300001", "withheld = 0.5", "verifier_slash = 1.0"])
@pytest.mark.parametrize(
    "use",
    [
        check_order,
        lambda path: quote_of(load_order(path)),
        lambda path: run_localnet(path, {}, (), None, as_json=True),
    ],
)
def test_check_quote_and_start_refuse_a_penalty_above_the_cap(tmp_path, budget, use):
    with pytest.raises(ConfigError, match=r"of a lot, the slash court of this deployment at most 0\.3"):
        use(an_order(tmp_path, budget))
