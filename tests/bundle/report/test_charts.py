"""Charts have a bounded size, lose no extreme, and no single liar flattens a curve."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.bundle.read import read
from assay.bundle.report.charts import (
    CURVE_COLUMNS,
    CURVE_HEIGHT,
    CURVE_WIDTH,
    Chart,
    band_path,
    charts_of,
    curve_of,
    figure_html,
    line_path,
)
from assay.bundle.report.loss_kind import DPO, GRPO
from assay.bundle.report.training import TrainingReport, training_report
from assay.protocol.messages import Score


@pytest.fixture(scope="module")
def report(recorded_run: Path) -> TrainingReport:
    return training_report(read(recorded_run))


def a_chart(values: dict[int, float], low: float, high: float) -> Chart:
    return Chart(
        title="Loss", caption="", unit="nats", decimals=3, low=low, high=high, first=min(values),
        last=max(values), lines=(curve_of("median", values),),
    )  # fmt: skip


def places(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](\S+) (-?[\d.]+)", path)]


@given(st.dictionaries(st.integers(0, 10**6), st.floats(0, 2**64), min_size=1, max_size=2000))
def test_a_curve_is_bounded_and_keeps_both_extremes(values: dict[int, float]):
    values = dict(sorted(values.items()))

    curve = curve_of("loss", values)

    assert len(curve.points) == min(len(values), CURVE_COLUMNS)
    assert min(low for _, low, _ in curve.points) == min(values.values())
    assert max(high for _, _, high in curve.points) == max(values.values())
    path = line_path(a_chart(values, min(values.values()), max(values.values())), curve)
    assert len(path) < 2 * CURVE_COLUMNS * 14 + 20
    assert all(0 <= x <= CURVE_WIDTH and 0 <= y <= CURVE_HEIGHT for x, y in places(path))


def test_a_single_spike_of_a_long_run_is_on_its_curve():
    values = dict.fromkeys(range(10000), 1.0) | {4_321: 9.0, 4_322: 0.5}

    curve = curve_of("loss", values)

    assert len(curve.points) == CURVE_COLUMNS
    assert [point for point in curve.points if point[1:] != (1.0, 1.0)] == [(4_300, 0.5, 9.0)]


def test_a_falling_curve_falls_from_the_left_edge_to_the_right_one():
    chart = a_chart({0: 5.0, 5: 4.0, 10: 3.0}, 3.0, 5.0)

    assert places(line_path(chart, chart.lines[0])) == [(0, 0), (300, 80), (600, 160)]


def test_a_single_round_is_a_short_line():
    chart = a_chart({7: 5.0}, 5.0, 5.0)

    assert len(places(line_path(chart, chart.lines[0]))) == 2


def test_a_node_that_states_an_absurd_loss_stretches_the_scale_by_a_quarter_at_most(report: TrainingReport):
    lie = replace(report.rounds[5], loss_micro=replace(report.rounds[5].loss_micro, highest=10**9))
    lied = replace(report, rounds=(*report.rounds[:5], lie, *report.rounds[6:]))

    honest, chart = charts_of(report)[0], charts_of(lied)[0]

    lines = [point for line in chart.lines for point in line.points]
    low, high = min(point[1] for point in lines), max(point[2] for point in lines)
    assert chart.lines == honest.lines
    assert high < chart.high <= high + 0.25 * (high - low)
    assert all(0 <= y <= CURVE_HEIGHT for _, y in places(band_path(chart)))


def test_the_charts_show_loss_steps_audits_traffic_time_and_cost(report: TrainingReport):
    charts = {chart.title: chart for chart in charts_of(report)}

    assert list(charts) == ["Loss", "Nodes and steps", "Audits", "Traffic", "Time", "Cost"]
    assert charts["Cost"].lines[0].last == report.totals.spent / 1e6
    assert {line.name: line.last for line in charts["Audits"].lines}["fault confirmed"] == 0
    assert charts["Audits"].lines[2].points[2][2] == 1  # round 2, in which the cheat began
    assert all(chart.low == 0 for title, chart in charts.items() if title != "Loss")


def scored(report: TrainingReport, *losses: float) -> TrainingReport:
    """The report as if verifiers had agreed on these held-out losses after the first epochs."""
    scores = [Score(loss_micro=int(loss * 1e6), acc_count=0, acc_norm_count=0) for loss in losses]
    given = [*scores, *[None] * (len(report.epochs) - len(scores))]
    pairs = zip(report.epochs, given, strict=True)
    return replace(report, epochs=tuple(replace(epoch, score=one) for epoch, one in pairs))


def test_the_agreed_held_out_loss_is_drawn_beside_the_training_loss(report: TrainingReport):
    first, second = report.epochs[0].last_round, report.epochs[1].last_round

    chart = charts_of(scored(report, 5.25, 7.5))[0]

    assert [line.name for line in chart.lines] == ["median of the nodes", "held out, as verifiers agreed"]
    assert chart.lines[1].points == ((first, 5.25, 5.25), (second, 7.5, 7.5))
    assert chart.high >= 7.5 and "held out, as verifiers agreed from 5.250 to 7.500" in chart.text
    assert "as the verifiers measured it" in figure_html(chart) and 'class="line-1"' in figure_html(chart)
    plain = charts_of(scored(report))[0]
    assert len(plain.lines) == 1 and "verifiers" not in plain.caption


def test_one_agreed_loss_is_a_short_line_where_it_was_measured(report: TrainingReport):
    chart = charts_of(scored(report, 5.25))[0]

    (first, _), (last, _) = places(line_path(chart, chart.lines[1]))
    at = report.epochs[0].last_round * CURVE_WIDTH / chart.last
    assert first == pytest.approx(at, abs=0.1) and abs(last - first) <= 4


def test_a_held_out_loss_of_another_kind_than_nodes_state_is_not_on_their_scale(report: TrainingReport):
    assert len(charts_of(scored(report, 5.25, 7.5), GRPO)[0].lines) == 1
    assert len(charts_of(scored(report, 5.25, 7.5), DPO)[0].lines) == 2


def test_a_chart_says_in_words_what_it_shows_and_its_lines_differ_without_colour(report: TrainingReport):
    chart = charts_of(report)[1]

    html = figure_html(chart)

    assert f'aria-label="{chart.text}"' in html and "accepted from 4 to 3" in chart.text
    assert [f'class="line-{at}"' in html for at in range(4)] == [True, True, True, False]
