"""A run names its rule of aggregation; a name that nobody knows is refused before anybody trains."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from assay.participant.keys.keyring import Keys
from assay.protocol.errors import ConfigError
from assay.protocol.update_rule import AggregationSpec, Transform, Wire
from assay.testing.members import a_hot_key, a_peer_key
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule
from assay.verifier.aggregation.names import DECODED_NAMES, RULE_NAMES
from assay.verifier.aggregation.registry import check_aggregation
from assay.verifier.service import process as service

UNKNOWN = [
    "",
    "mea",
    "mean ",
    "Mean",
    "+mean",
    "mean+",
    "mean+mean",
    "reputation",
    "nnm",
    "nnm+mean",
    "reputation+krum",
    "trimmed-mean+clipping",
    "reputation+decoded-vote",
]


def a_rule_of(name, wire=Wire.UNION, f=0):
    return replace(a_rule(), aggregation=AggregationSpec(name=name, wire=wire, f=f))


@pytest.mark.parametrize("name", RULE_NAMES)
@pytest.mark.parametrize("wire", Wire)
def test_every_rule_an_order_may_name_is_one_on_either_wire(name, wire):
    check_aggregation(a_rule_of(name, wire, f=1))


@pytest.mark.parametrize("name", DECODED_NAMES)
def test_a_decoded_rule_makes_signs_of_a_dct_and_nothing_else(name):
    check_aggregation(a_rule_of(name, Wire.SIGNS, f=1))

    flat = a_rule_of(name, Wire.SIGNS, f=1)
    flat = replace(flat, compress=replace(flat.compress, transform=Transform.NONE))
    for rule in (a_rule_of(name, Wire.UNION, f=1), flat):
        with pytest.raises(ValueError, match="expected the wire SIGNS, the transform DCT"):
            check_aggregation(rule)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_that_is_no_rule_is_refused(name):
    with pytest.raises(ValueError, match="no rule of aggregation is named"):
        check_aggregation(a_rule_of(name))


def test_a_verifier_does_not_begin_a_run_whose_rule_it_does_not_know(monkeypatch):
    """Each round would be refused alike by all, and nothing would ever move while everybody is paid."""
    spec = a_spec(rule=a_rule_of("newer-than-us"))
    keys = Keys(peer=a_peer_key("vera"), account=a_hot_key("account"), hot=a_hot_key("vera"))
    monkeypatch.setattr(service, "open_participant", lambda _config: SimpleNamespace(spec=spec, keys=keys))

    with pytest.raises(ConfigError, match='no rule of aggregation is named "newer-than-us"'):
        trio.run(service.run_verifier, None)
