"""Latency is what agreed times, iterations and inclusion lists of the certified chain say, and no more."""

from __future__ import annotations

from dataclasses import replace

from assay.explorer.explored import Explored
from assay.explorer.latency import Arrivals, latency_of
from assay.explorer.pages.participants import node_page
from assay.protocol.messages import CertifiedManifest
from assay.protocol.types import Iteration
from tests.explorer.an_explorer import asking, golden, golden_explored
from tests.explorer.test_homes import HONEST, live

RUN, ROUNDS = golden_explored(), golden().calendar.rounds
PEER = HONEST.member.peer


def a_link(time_s: int, iteration: int) -> CertifiedManifest:
    link = golden().links[1]
    return replace(
        link,
        manifest=replace(link.manifest, time_s=time_s),
        block=replace(link.block, iteration=Iteration(iteration)),
    )


def test_seconds_of_rounds_and_leaders_given_up_follow_from_the_manifests():
    times = [100, 102, 103, 105, 165, 166, 168, 169, 171, 173, 175, 900]
    links = [a_link(time_s, 3 + at + 2 * (at >= 4)) for at, time_s in enumerate(times)]

    found = latency_of(links, 11, {PEER: Arrivals(lists=4, named=3), HONEST.member.hot: Arrivals(lists=2)})

    assert found is not None
    assert (found.median_s, found.most_s, found.slowest_s, found.slowest_round) == (2, 2, 60, 4)
    assert (found.rounds, found.rounds_given_up, found.iterations_given_up) == (11, 2, 4)
    assert found.arrivals == Arrivals(lists=6, named=3)
    assert latency_of(links[:1], 11, {}) is None


def test_the_recorded_run_gave_no_leader_up_and_its_page_says_how_long_rounds_took():
    found = RUN.latency

    assert found is not None and (found.slowest_s, found.slowest_round, found.rounds) == (9, 11, ROUNDS)
    assert (found.rounds_given_up, found.iterations_given_up) == (0, 0)
    text = asking().get("/runs/golden").text
    assert "<dt>nine rounds in ten, at most</dt><dd>2 s</dd>" in text and "iterations ended" not in text
    assert asking().get("/runs/golden.json").json()["latency"]["slowest_round"] == 11


def test_a_run_that_goes_on_has_the_time_of_its_rounds_and_none_before_the_second():
    begun, going = live(1), live(8)

    assert begun.latency is None and "Latency" not in asking(begun).get("/runs/live").text
    assert going.latency is not None and going.latency.rounds == 8
    assert "Time" in [chart.title for chart in going.charts]
    assert "Traffic" not in [chart.title for chart in going.charts]


def without(run: Explored, *rounds: int) -> Explored:
    """The run without the steps of one node in these rounds."""
    kept = {at: one for at, one in run.commits[PEER].items() if at not in rounds}
    return replace(run, commits={**run.commits, PEER: kept})


def test_a_node_is_told_in_how_many_rounds_it_was_absent_and_why():
    states = list(golden().run_states)
    states[6] = replace(states[6], late=frozenset({PEER}))
    run = replace(without(RUN, 3, 6, 7, 8), delivered=replace(golden(), run_states=tuple(states)))
    run = replace(run, unfunded=frozenset({8}))

    assert node_page(RUN, PEER, 1).absences == {}
    assert "A step of it was accepted in every round" in asking().get(f"/runs/golden/nodes/{PEER.hex()}").text
    assert node_page(run, PEER, 1).absences == {
        "no commit of it reached this manifest": 2,
        "it owed the opening of an earlier step": 1,
        "the round was not funded": 1,
    }
    text = asking(run).get(f"/runs/golden/nodes/{PEER.hex()}").text
    assert "2, as no commit of it reached this manifest; 1, as it owed the opening" in text


def test_rounds_that_nobody_paid_for_are_known():
    run = live(8, funding_reports={})

    assert RUN.unfunded == live(8).unfunded == frozenset() and run.unfunded == {7}


def test_each_round_says_how_many_verifiers_held_the_commit_in_time():
    page = node_page(RUN, PEER, 1)

    assert sum(one.lists_naming for one in page.rounds) == page.lists_naming > 0
    for one in page.rounds:
        assert one.lists == len(golden().links[one.round].manifest.inclusion_lists)
    assert '<td class="n">3 of 3</td>' in asking().get(f"/runs/golden/nodes/{PEER.hex()}").text
