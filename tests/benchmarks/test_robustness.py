"""Robustness: its cells are trained by what an order gets that names nothing."""

from assay.orders.method import order_rule
from assay.orders.sections import CommSection, RunSection, TrainSection
from assay.simulation.spec import load_sim
from benchmarks import minority, robustness


def test_both_tables_are_of_the_rule_and_the_method_that_an_order_has_by_default():
    for path in (robustness.SPEC, minority.SPEC):
        spec = load_sim(path)
        run = RunSection(nodes=8, rounds=spec.sim.rounds)
        by_default = order_rule(run, TrainSection(sequences=2), CommSection())
        assert spec.order.rule == by_default
        assert by_default.aggregation.name == robustness.DEFAULT
