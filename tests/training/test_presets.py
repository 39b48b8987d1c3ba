"""A rule is named by what its method is, whatever its sizes and rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.update_rule import Optimiser, Outer, RuleSpec, Transform, Values
from assay.training.methods.presets import DILOCO, METHODS, method_name


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_named_whatever_its_sizes_and_rates(name: str):
    rule = METHODS[name]
    other = replace(
        rule,
        local=replace(rule.local, sequences=17, clip_micro=3, schedule=replace(rule.outer.schedule)),
        compress=replace(rule.compress, values=Values.INT16, reset_rounds=2),
        outer=replace(rule.outer, kind=Outer.SGD, momentum_micro=1),
        apply_lag=2,
    )

    assert method_name(rule) == method_name(other) == name


@pytest.mark.parametrize(
    "rule",
    [
        replace(DILOCO, local=replace(DILOCO.local, optimiser=Optimiser.MUON), fragments=2),
        replace(METHODS["muloco"], compress=replace(METHODS["muloco"].compress, k=64)),
        replace(METHODS["muloco"], compress=replace(METHODS["muloco"].compress, transform=Transform.DCT)),
        replace(METHODS["muloco"], compress=replace(METHODS["muloco"].compress, rank=2)),
    ],
)
def test_a_rule_that_is_no_method_is_called_none(rule: RuleSpec):
    assert method_name(rule) == "another rule, muon inside"
