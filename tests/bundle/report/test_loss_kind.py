"""A run's loss is named as what it is wherever people read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.bundle.report.charts import charts_of
from assay.bundle.report.loss_kind import DPO, NEXT_TOKEN, loss_kind
from assay.bundle.report.training_page import report_lines, training_page
from assay.testing.specs import a_spec
from tests.bundle.registry.test_model_card import a_report


@pytest.mark.parametrize(("beta_micro", "kind"), [(0, NEXT_TOKEN), (100_000, DPO)])
def test_a_run_with_beta_minimises_the_loss_of_dpo_and_any_other_that_of_the_next_token(beta_micro, kind):
    spec = a_spec()

    assert loss_kind(replace(spec, compute=replace(spec.compute, beta_micro=beta_micro))) == kind


def test_the_report_of_a_dpo_run_says_dpo_loss_and_nats_per_pair():
    report = a_report()

    chart, page = charts_of(report, DPO)[0], training_page(report, DPO)

    assert (chart.title, chart.unit) == ("DPO loss", "nats per preference pair")
    assert "nats per token" not in page and "DPO loss, first and last round" in page
    assert any(line.startswith("DPO loss, first") for line in report_lines(report, DPO))
    assert charts_of(report)[0].title == "Loss"
