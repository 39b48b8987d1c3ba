"""A run names its rule of aggregation; a name that nobody knows is refused before anybody trains."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from protocol.errors import ConfigError
from protocol.rule import AggregationSpec
from tests.builders import a_spec
from tests.specs import a_rule
from verifier import service
from verifier.rules import RULE_NAMES, check_aggregation

UNKNOWN = [
    "", "mea", "mean ", "Mean", "+mean", "mean+", "mean+mean", "standing", "nnm", "nnm+mean", "standing+krum",
    "trimmed-mean+clipping", "decoded-vote",
]  # fmt: skip


@pytest.mark.parametrize("name", RULE_NAMES)
def test_every_rule_an_order_may_name_is_one(name):
    check_aggregation(AggregationSpec(name=name, f=1))


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_that_is_no_rule_is_refused(name):
    with pytest.raises(ValueError, match="no rule of aggregation is named"):
        check_aggregation(AggregationSpec(name=name, f=0))


def test_a_verifier_does_not_begin_a_run_whose_rule_it_does_not_know(monkeypatch):
    """Each round would be refused alike by all, and nothing would ever move while everybody is paid."""
    rule = a_rule()
    spec = a_spec(rule=replace(rule, aggregation=AggregationSpec(name="newer-than-us", f=0)))
    monkeypatch.setattr(service, "open_participant", lambda _config: SimpleNamespace(spec=spec))

    with pytest.raises(ConfigError, match='no rule of aggregation is named "newer-than-us"'):
        trio.run(service.run_verifier, None)
