"""Drand in an order: by name, by the network's own words, or refused with a line that says why."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from assay.orders.check import check_order
from assay.orders.load import load_order
from assay.orders.spec import audit_spec
from assay.protocol.errors import ConfigError
from assay.protocol.randomness.drand import NO_DRAND, QUICKNET
from tests.a_drand import a_network, info

URL = "http://127.0.0.1:9/abc"


def an_order(folder: Path, verify: str, network: object = None):
    path = folder / "run.toml"
    path.write_text(f"[verify]\n{verify}\n")
    if network is not None:
        (folder / "info.json").write_text(network if isinstance(network, str) else json.dumps(network))
    return load_order(path)


def test_an_order_names_no_network_or_quicknet_or_one_of_its_own(tmp_path):
    assert audit_spec(an_order(tmp_path, "")).drand == NO_DRAND
    assert audit_spec(an_order(tmp_path, 'drand = "quicknet"')).drand == QUICKNET
    own = an_order(tmp_path, f'drand = "info.json"\ndrand_urls = ["{URL}"]', info(a_network()))
    assert audit_spec(own).drand == a_network()
    assert own.drand is not None and own.drand.urls == (URL,)


def test_a_network_may_begin_with_unix_time_and_have_a_round_a_second(tmp_path):
    fast = replace(a_network(), genesis_s=1, period_s=1)
    own = an_order(tmp_path, f'drand = "info.json"\ndrand_urls = ["{URL}"]', info(fast))
    assert audit_spec(own).drand == fast


def test_quicknet_may_be_asked_elsewhere(tmp_path):
    found = an_order(tmp_path, f'drand = "quicknet"\ndrand_urls = ["{URL}"]').drand
    assert found is not None and found.urls == (URL,)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (None, "cannot be read"),
        ("{", "not the description"),
        ("[]", "not the description"),
        ("[" * 10_000, "not the description"),
        ({**info(a_network()), "schemeID": "pedersen-bls-chained"}, "expected bls-unchained-g1-rfc9380"),
        ({**info(a_network()), "public_key": "zz"}, "not the description"),
        ({**info(a_network()), "public_key": "00" * 96}, "key"),
        ({**info(a_network()), "period": 0}, "whole numbers"),
        ({**info(a_network()), "period": True}, "whole numbers"),
        ({**info(a_network()), "period": 3600}, "period is 3600 s"),
        ({**info(a_network()), "genesis_time": "1"}, "whole numbers"),
        (info(a_network(genesis_s=int(time.time()) + 10**6)), "begins at"),
        ({key: told for key, told in info(a_network()).items() if key != "period"}, "not the description"),
    ],
)
def test_what_is_no_network_is_refused_with_its_file(tmp_path, network, words):
    with pytest.raises(ConfigError, match=words) as caught:
        an_order(tmp_path, f'drand = "info.json"\ndrand_urls = ["{URL}"]', network)
    assert "info.json" in str(caught.value)


def test_a_network_of_ones_own_needs_an_address_and_an_address_is_one(tmp_path):
    with pytest.raises(ConfigError, match="drand_urls"):
        an_order(tmp_path, 'drand = "info.json"', info(a_network()))
    with pytest.raises(ConfigError, match="drand_urls"):
        an_order(tmp_path, 'drand = "quicknet"\ndrand_urls = ["ftp://127.0.0.1"]')


def test_an_iteration_that_ends_before_the_round_can_be_there_is_refused_when_the_order_is_checked(tmp_path):
    (tmp_path / "run.toml").write_text('[verify]\ndrand = "quicknet"\n[timing]\niteration_s = 17\n')
    with pytest.raises(ConfigError, match="up to 17 s, so more is expected"):
        check_order(tmp_path / "run.toml")


def test_a_file_that_is_not_there_is_refused_when_the_order_is_checked(tmp_path):
    (tmp_path / "run.toml").write_text('[verify]\ndrand = "info.json"\n')
    with pytest.raises(ConfigError, match=r"info\.json: cannot be read"):
        check_order(tmp_path / "run.toml")
