"""Losses of nodes are drawn small, on the run's own scale, and a liar is at its edge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from assay.bundle.report.charts import MICRO, curve_of, medians_of
from assay.explorer.losses import (
    LOSS_COLUMNS,
    LOSS_COLUMNS_MAX,
    LOSS_NODES,
    SPARK_HEIGHT,
    SPARK_WIDTH,
    NodeLosses,
    node_losses,
    spark_path,
)
from assay.protocol.messages import LOSS_MICRO_MAX, Commit
from assay.protocol.types import PeerId
from tests.explorer.an_explorer import asking, golden_explored

RUN = golden_explored()
CHART, MEDIANS = RUN.charts[0], medians_of(RUN.report.rounds)
ONE = next(iter(RUN.commits.values()))[0]


def losses_of(commits: Mapping[PeerId, Mapping[int, Commit]]) -> NodeLosses:
    return node_losses(CHART, MEDIANS, commits)


def stating(losses: Mapping[int, int]) -> dict[int, Commit]:
    """Commits of a node that states these losses, in millionths, by round."""
    return {at: replace(ONE, loss_micro=loss) for at, loss in losses.items()}


def test_every_node_of_the_recorded_run_has_its_losses_on_the_scale_of_the_runs():
    found = losses_of(RUN.commits)

    assert found == RUN.losses and found.omitted == 0 and found.scale.band is None
    assert (found.scale.low, found.scale.high) == (CHART.low, CHART.high)
    assert {row.node: dict.fromkeys(at for at, _, _ in row.curve.points) for row in found.rows} == {
        node: dict.fromkeys(commits) for node, commits in RUN.commits.items()
    }
    for row in found.rows:
        assert row.curve.last == list(RUN.commits[row.node].values())[-1].loss_micro / MICRO


def test_however_many_nodes_and_rounds_there_is_a_bound_that_loses_no_extreme():
    every = {PeerId(bytes([at]) * 32): dict.fromkeys(range(3_000), ONE) for at in range(LOSS_NODES + 3)}
    first = next(iter(every))
    every[first] = {**every[first], **stating({1_234: 9_000_000, 1_236: 1})}

    found = losses_of(every)

    assert len(found.rows) == LOSS_NODES and found.omitted == 3
    assert sum(len(row.curve.points) for row in found.rows) <= LOSS_COLUMNS_MAX
    points = found.rows[0].curve.points
    assert (min(low for _, low, _ in points), max(high for _, _, high in points)) == (0.000001, 9.0)
    assert len(losses_of({first: every[first]}).rows[0].curve.points) == LOSS_COLUMNS


def test_who_states_an_absurd_loss_moves_nobody_elses_curve_and_is_drawn_at_the_edge():
    liar, *_ = RUN.commits
    lied = {**RUN.commits, liar: stating(dict.fromkeys(range(10), LOSS_MICRO_MAX))}

    found = losses_of(lied)

    assert found.scale == losses_of(RUN.commits).scale and found.rows[1:] == losses_of(RUN.commits).rows[1:]
    path = spark_path(found.scale, found.rows[0].curve, found.rows[0].last)
    assert set(re.findall(r"[ML]\d+ ([^L]+)", path)) == {"0"}
    assert found.rows[0].text.endswith("from 1,000.000 to 1,000.000")


def test_a_curve_goes_from_edge_to_edge_and_ends_with_the_last_figure():
    scale = replace(CHART, low=2.0, high=4.0, first=0, last=400)
    values = {at: 4.0 - at / 200 for at in range(401)}

    whole = spark_path(scale, curve_of("", values, 4), 400)
    early = spark_path(scale, curve_of("", {at: values[at] for at in range(100, 301)}, 1), 300)

    assert whole == "M0 0V15L75 15V30L150 30V45L225 45V60L300 60" and (SPARK_WIDTH, SPARK_HEIGHT) == (300, 60)
    assert early == "M75 15V45L225 45"
    assert spark_path(scale, curve_of("", {0: 3.0}), 0) == "M0 30L0 30"


def test_a_node_without_a_step_has_its_place_and_no_curve():
    first, *_ = RUN.commits
    losses = losses_of({**RUN.commits, first: {}})

    text = asking(replace(RUN, losses=losses)).get("/runs/golden").text

    assert losses.rows[0].text == f"no step of node {first.hex()[:8]}"
    assert text.count('<use href="#median"/>') == len(RUN.commits)
    assert text.count('<use href="#median"/><path') == len(RUN.commits) - 1


def test_a_run_without_an_accepted_step_has_no_losses():
    text = asking(replace(RUN, losses=None, charts=())).get("/runs/golden").text

    assert "by node" not in text and "No contribution was accepted." in text
