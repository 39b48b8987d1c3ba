"""Runs share a scale only where their losses say the same, and compare at equal tokens and bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from assay.bundle.report.charts import CURVE_COLUMNS
from assay.explorer.explored import Explored
from assay.explorer.losses import Reached, loss_curves, reached
from assay.explorer.pages.methods import RUNS_DRAWN, Axis, MethodsPage, methods_page
from assay.explorer.pages.paging import ROWS_MAX, NoSuchPage
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest
from assay.training.methods.presets import METHODS
from tests.explorer.an_explorer import asking, golden, golden_explored
from tests.explorer.test_homes import live

RUN = golden_explored()


def a_run(name: str, method: str = "demo", *, start_s: int = 1000, **changes: Any) -> Explored:
    """The recorded run with another name, method, start, and these parts of its spec."""
    link = golden().links[0]
    first = replace(link, manifest=replace(link.manifest, time_s=start_s))
    spec = replace(golden().spec, rule=METHODS[method], **changes)
    return replace(RUN, name=name, delivered=replace(golden(), spec=spec, links=(first, *golden().links[1:])))


def with_losses(run: Explored, found: tuple[Reached, ...]) -> Explored:
    return replace(run, reached=found, loss_curves=loss_curves(found))


def with_data(**changes: Any) -> dict[str, Any]:
    return {"data": replace(golden().spec.data, **changes)}


def by(axis: Axis, *runs: Explored, like: str | None = None, page: int = 1) -> MethodsPage:
    return methods_page(runs, axis, like, page)


OTHERS = (
    a_run("other-data", "fedavg", start_s=10, **with_data(root=Digest(b"\x07" * 32))),
    a_run("pairs", start_s=9, compute=replace(golden().spec.compute, beta_micro=100_000)),
    with_losses(a_run("empty", start_s=8), ()),
)
QUICK = with_losses(
    a_run("quick", "muloco", start_s=1001),
    tuple(replace(one, bytes=one.bytes // 3, loss_micro=one.loss_micro - 90_000) for one in RUN.reached[:7]),
)
SERVED = (a_run("golden"), QUICK, a_run("golden-3", "diloco", start_s=999), *OTHERS, live(8))


def test_what_a_round_had_reached_counts_bytes_both_ways_of_one_node():
    rounds = RUN.report.rounds
    gap = replace(rounds[4], accepted=0, tokens=0, loss_micro=None, sent_bytes=0)

    found = reached((*rounds[:4], gap, *rounds[5:]))

    assert [one.rounds for one in found] == [at for at in range(1, len(rounds) + 1) if at != 5]
    assert found[0] == Reached(
        1, rounds[0].tokens, rounds[0].sent_bytes // rounds[0].accepted + rounds[0].aggregate_bytes,
        rounds[0].loss_micro.median,
    )  # fmt: skip
    assert found[4].bytes - found[3].bytes == (
        rounds[4].aggregate_bytes + rounds[5].sent_bytes // rounds[5].accepted + rounds[5].aggregate_bytes
    )
    assert found[-1].tokens == sum(one.tokens for one in rounds) - rounds[4].tokens


@pytest.mark.parametrize("axis", Axis)
def test_runs_of_one_scale_are_drawn_by_what_they_had_done_and_compared_where_all_have_been(axis: Axis):
    page = by(axis, *SERVED[:-1])
    assert page.chart is not None

    shown = [(one.method, one.head.name) for one in page.lines]
    assert shown == [("demo", "golden"), ("diloco", "golden-3"), ("muloco", "quick")]
    assert [line.name for line in page.chart.lines][2] == "muloco: quick"
    assert page.common == getattr(QUICK.reached[-1], axis.value)
    inside = [one for one in RUN.reached if getattr(one, axis.value) <= page.common]
    assert page.lines[0].common_micro == (inside[-1].loss_micro if inside else None)
    assert page.lines[2].common_micro == QUICK.reached[-1].loss_micro
    assert [at for at, _, _ in page.chart.lines[2].points] == [
        getattr(one, axis.value) for one in QUICK.reached
    ]
    assert (page.chart.first, page.chart.axis) == (0, axis.value)


def test_a_run_that_goes_on_has_no_traffic_yet_and_the_page_grows_with_it():
    tokens, traffic = by(Axis.TOKENS, *SERVED), by(Axis.BYTES, *SERVED)

    assert "live" in [one.head.name for one in tokens.lines] and tokens.follows is not None
    (line,) = [one for one in traffic.apart if one.head.name == "live"]
    assert (line.reason, line.has_scale) == ("its traffic is known once it is delivered", False)
    client = asking(*SERVED)
    assert 'data-live="/runs/live/events?known=8"' in client.get("/methods").text
    assert "data-live" not in client.get("/methods?x=bytes").text
    assert traffic.follows is None


CHANGES: dict[str, dict[str, Any]] = {
    "another loss": {"compute": replace(golden().spec.compute, beta_micro=100_000)},
    "other data": with_data(root=Digest(b"\x07" * 32)),
    "other data: Merkle root": with_data(tokenizer=Digest(b"\x07" * 32)),
    "the same data, cut otherwise": with_data(validation_tokens=golden().spec.data.validation_tokens + 1),
    "in windows of 65, not": {"model": replace(golden().spec.model, context=64)},
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_run_whose_loss_says_something_else_is_listed_apart_and_has_a_scale_of_its_own(reason: str):
    other = a_run("other", start_s=1, **CHANGES[reason])

    page = by(Axis.TOKENS, a_run("golden"), other)
    own = by(Axis.TOKENS, a_run("golden"), other, like="other")

    assert [one.head.name for one in page.lines] == ["golden"]
    (line,) = page.apart
    assert reason in line.reason and line.has_scale
    assert [one.head.name for one in own.lines] == ["other"] and own.apart[0].head.name == "golden"


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: {"seed": spec.seed + 1},
        lambda spec: {"data": replace(spec.data, source="named otherwise")},
        lambda spec: {"model": replace(spec.model, layers=7)},
    ],
)
def test_another_seed_name_or_model_shares_the_scale(change: Callable[[RunSpec], dict[str, Any]]):
    assert len(by(Axis.TOKENS, a_run("golden"), a_run("other", **change(golden().spec))).lines) == 2


def test_the_newest_are_drawn_and_the_rest_is_paged():
    runs = [a_run(f"run-{at}", start_s=1000 + at) for at in range(RUNS_DRAWN + 2)]

    first, second = by(Axis.TOKENS, *runs), by(Axis.TOKENS, *runs, page=2)

    assert [one.head.name for one in first.lines] == ["run-7", "run-6", "run-5", "run-4", "run-3", "run-2"]
    assert [one.head.name for one in second.lines] == ["run-1", "run-0"]
    with pytest.raises(NoSuchPage):
        by(Axis.TOKENS, *runs, page=3)
    text = asking(*runs).get("/methods?x=rounds").text
    assert 'href="/methods?like=run-7&amp;x=rounds&amp;page=2"' in text
    assert [f'class="line-{at}"' in text for at in range(RUNS_DRAWN + 1)] == [True] * RUNS_DRAWN + [False]


def test_as_many_runs_apart_are_listed_as_a_list_has():
    others = [
        a_run(f"run-{at}", start_s=1, **with_data(root=Digest(bytes([at]) * 32)))
        for at in range(ROWS_MAX + 2)
    ]

    page = by(Axis.TOKENS, a_run("golden"), *others)

    assert (len(page.apart), page.apart_omitted) == (ROWS_MAX, 2)


def test_a_run_that_diverges_leaves_the_drawing_and_flattens_no_other():
    wild = tuple(replace(one, loss_micro=one.loss_micro + 10**8 * (one.rounds > 3)) for one in RUN.reached)

    alone, beside = (
        by(Axis.TOKENS, a_run("golden")),
        by(Axis.TOKENS, a_run("golden"), with_losses(a_run("wild"), wild)),
    )

    assert alone.chart is not None and beside.chart is not None
    assert beside.chart.low == alone.chart.low
    assert beside.chart.high - beside.chart.low <= 1.25 * (alone.chart.high - alone.chart.low) + 1e-9
    rising = tuple(replace(one, loss_micro=10**6 * one.rounds) for one in RUN.reached)
    up = by(Axis.TOKENS, with_losses(a_run("rising"), rising)).chart
    assert up is not None and (up.low, up.high) == (1.0, float(RUN.reached[-1].rounds))


@pytest.mark.parametrize("query", ["x=joules", "like=none", "like=empty", "page=2", "page=0", "x="])
def test_no_page_of_another_axis_run_or_number(query: str):
    assert asking(*SERVED).get(f"/methods?{query}").status_code == 404


def test_every_link_of_the_page_leads_to_a_page_and_no_text_of_a_stranger_is_html():
    evil = replace(a_run("evil"), delivered=replace(golden(), spec=replace(golden().spec, name="<b>\u202e")))
    client = asking(*SERVED, evil)
    text = client.get("/methods?x=bytes").text

    links = re.findall(r'href="(/(?:methods|runs)[^"]*)"', text)
    assert len(links) > 10
    for link in links:
        assert client.get(link.replace("&amp;", "&")).status_code == 200, link
    assert "<b>" not in text and "<bdi>&lt;b&gt;" in text
    assert "No run here has" in asking(OTHERS[-1]).get("/methods").text
    twin = client.get("/methods.json?x=rounds").json()
    assert twin["axis"] == "rounds" and len(twin["chart"]["lines"]) == len(twin["lines"]) == 5


def test_a_curve_of_a_long_run_is_bounded():
    long = tuple(replace(RUN.reached[0], rounds=at, tokens=at * 7) for at in range(1, 10_001))

    page = by(Axis.TOKENS, with_losses(a_run("golden"), long))

    assert page.chart is not None and len(page.chart.lines[0].points) == CURVE_COLUMNS
