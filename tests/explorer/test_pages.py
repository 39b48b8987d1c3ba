"""Pages say what the certified chain says, are linked with each other, and have a JSON twin each."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from dataclasses import replace

import pytest

from assay.chain.commit_statement import evm_address
from assay.chain.text.units import money_text
from assay.explorer.explored import explore
from assay.explorer.pages.paging import ROWS_MAX, NoSuchPage, cut
from assay.explorer.pages.participants import node_page
from assay.explorer.pages.round import audit_page
from assay.explorer.pages.run import audits_page, run_page
from assay.explorer.render import _loss, _when, json_of
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.encoding.codec import encode
from assay.protocol.types import PeerId
from assay.testing.members import a_member, peers
from tests.explorer.an_explorer import addresses, asking, golden, golden_explored, rulings

pytestmark = pytest.mark.slow

RUN = golden_explored()
BANNED = next(peer for peer, record in golden().run_states[-1].nodes.items() if record.banned)
KINDS = addresses(RUN)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_page_is_html_and_the_same_value_as_json(kind: str):
    client, address = asking(), KINDS[kind]

    page = client.get(address)
    twin = client.get("/index.json" if address == "/" else f"{address}.json")

    assert (page.status_code, twin.status_code) == (200, 200)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert twin.headers["content-type"] == "application/json"
    assert page.text.count("<h1>") == 1 and '<html lang="en">' in page.text
    assert twin.json()


def test_every_link_of_every_page_leads_to_a_page():
    client, seen, left = asking(), set(), ["/"]
    while left:
        address = left.pop()
        if address in seen or address.startswith("#"):
            continue
        seen.add(address)
        found = client.get(address)
        assert found.status_code == 200, address
        if found.headers["content-type"].startswith("text/html"):
            links = re.findall(r'(?:href|src)="([^"]+)"', found.text)
            left += map(html.unescape, links)

    assert set(KINDS.values()) <= seen
    assert len(seen) > 100


def test_a_runs_page_adds_up_what_its_tables_pay_and_counts_what_became_of_its_audits():
    page = run_page(RUN)

    assert sum(page.paid.values()) == sum(table.total for table in golden().tables.values())
    found = Counter(ruling.value for ruling in rulings())
    assert page.audits == found and found["confirmed"] == 1 and found["superseded"] > 0
    assert page.steps == sum(len(link.manifest.commits) for link in golden().links)
    assert page.steps_unpaid == sum(len(table.unpaid) for table in golden().tables.values()) > 0
    assert money_text(sum(page.paid.values())) in asking().get("/runs/golden").text


def test_a_node_is_told_of_each_round_whether_it_was_accepted_and_paid_and_why_not():
    (page,) = [node_page(RUN, BANNED, 1)]
    by_round = {line.round: line for line in page.rounds}
    node_paid = sum(table.rows[at].amount for table in golden().tables.values()
                    for at, row in enumerate(table.rows) if row.peer == BANNED)  # fmt: skip

    assert (by_round[2].audit, by_round[2].reason) == (
        "confirmed",
        "a fault of its node had been confirmed before",
    )
    assert page.state == "banned: the fault in round 2 is confirmed"
    assert [line.round for line in page.rounds] == list(range(golden().spec.rounds))
    assert page.paid == node_paid


def test_an_audit_names_the_manifests_that_carry_what_it_shows():
    step = next(step for step, audit in RUN.audits.items() if audit.ruling is AuditStatus.CONFIRMED)

    page = audit_page(RUN, int(step[0]), step[1])

    assert page.status == "confirmed" and {one.outcome for one in page.verdicts} == {"mismatch"}
    for line in page.verdicts:
        assert line.committed_round < line.carried_round
        assert {line.committed_round, line.carried_round, int(step[0])} <= set(page.evidence)
    assert step in golden().run_states[page.drawn_by + 1].audits
    assert step not in golden().run_states[page.drawn_by].audits


def test_lists_are_cut_into_pages_and_no_page_is_beyond_the_last():
    rows = list(range(2 * ROWS_MAX + 1))

    parts = [cut(rows, page)[0] for page in (1, 2, 3)]

    assert [one for part in parts for one in part] == rows and len(parts[2]) == 1
    assert cut([], 1)[0] == [] and cut(rows[:ROWS_MAX], 1)[1].pages == 1
    for page in (0, 4):
        with pytest.raises(NoSuchPage):
            cut(rows, page)


def test_audits_are_listed_by_status():
    passed = audits_page(RUN, 1, "passed")

    assert {line.status for line in passed.rows} == {"passed"} and passed.paging.rows == rulings().count(
        AuditStatus.PASSED
    )
    with pytest.raises(NoSuchPage, match="there are passed"):
        audits_page(RUN, 1, "lost")
    assert "?status=passed" in asking().get("/runs/golden/audits").text


@pytest.mark.parametrize(
    "address",
    [
        "/runs/other", "/runs/golden/rounds/99", "/runs/golden/rounds/-1", "/runs/golden/rounds/x",
        "/runs/golden/rounds/7.5", "/runs/golden/rounds?page=0", "/runs/golden/rounds?page=2",
        "/runs/golden/rounds?page=99999999999999999999", "/runs/golden/nodes/abc",
        f"/runs/golden/nodes/{BANNED.hex().upper()}", f"/runs/golden/nodes/{BANNED.hex()}20",
        f"/runs/golden/nodes/{'ab' * 32}", f"/runs/golden/verifiers/{BANNED.hex()}",
        f"/runs/golden/audits/20/{BANNED.hex()}", "/runs/golden/epochs/2", "/runs/golden/epochs/0/8",
        "/runs/golden/epochs/0/-1", "/runs/golden/audits?status=lost", "/runs/golden/settlements/2.json",
        "/runs/golden/rounds/99.cbor", "/static/none.css", "/runs/golden/", "//runs/golden",
        "/docs", "/openapi.json",
    ],
)  # fmt: skip
def test_what_does_not_exist_is_a_page_that_says_so(address: str):
    found = asking().get(address)

    assert found.status_code == 404
    is_json = address.split("?")[0].endswith(".json")
    title = found.json()["title"] if is_json else re.search("<h1>(.*)</h1>", found.text)[1]
    assert title == "Not Found"
    assert "Traceback" not in found.text


def test_evidence_is_the_protocols_own_bytes():
    client = asking()

    assert client.get("/runs/golden/spec.cbor").content == encode(golden().spec)
    for at in (0, 7, 20):
        assert client.get(f"/runs/golden/rounds/{at}.cbor").content == encode(golden().links[at])
    assert client.get("/runs/golden/deployment.json").json() == json.loads(golden().deployment.to_json())
    settlement = client.get("/runs/golden/settlements/1.json").json()
    assert settlement["digest"] == golden().settled[1].digest.hex()


def test_figures_at_their_bounds_are_written():
    assert [_when(one) for one in (0, 2**64 - 1)] == ["1970-01-01 00:00:00", str(2**64 - 1)]
    assert [_loss(one) for one in (31_250, 49, 50, 1_234_567_890)] == [
        "0.0313",
        "0.0000",
        "0.0001",
        "1,234.5679",
    ]


def test_peers_in_json_are_hexadecimal():
    text = json_of(node_page(RUN, PeerId(next(iter(RUN.commits))), 1))

    assert json.loads(text)["peer"] == next(iter(RUN.commits)).hex()


def test_an_epoch_with_a_milestone_says_what_was_measured_and_what_it_cost():
    score = golden().tables[1].score
    assert score is not None

    found = asking().get("/runs/golden/epochs/1").text

    assert (
        f"held-out loss {score.loss_micro / 10**6:.4f}, at most 1.0000 asked: missed, 20 % of the price"
        in found
    )
    assert "Milestone" not in asking().get("/runs/golden/epochs/0").text


def test_a_nodes_page_draws_its_own_loss_beside_the_median_of_all_nodes():
    page = node_page(RUN, BANNED, 1)
    assert page.loss is not None
    own, median = page.loss.lines

    assert own.points == tuple(
        (at, one.loss_micro / 1e6, one.loss_micro / 1e6) for at, one in RUN.commits[BANNED].items()
    )
    assert [low for _, low, _ in median.points] == [one.loss_micro.median / 1e6 for one in RUN.report.rounds]
    assert page.loss.text in asking().get(f"/runs/golden/nodes/{BANNED.hex()}").text
    twin = asking().get(f"/runs/golden/nodes/{BANNED.hex()}.json").json()
    assert [tuple(one) for one in twin["loss"]["lines"][0]["points"]] == list(own.points)


def test_a_node_that_joined_later_is_compared_since_then_and_one_without_a_step_has_no_curve():
    states = list(golden().run_states)
    record = replace(states[-1].nodes[BANNED], joined_round=4)
    states[-1] = replace(states[-1], nodes={**states[-1].nodes, BANNED: record})
    commits = {at: one for at, one in RUN.commits[BANNED].items() if at in (6, 7)}
    joined = replace(
        RUN, delivered=replace(golden(), run_states=tuple(states)), commits={**RUN.commits, BANNED: commits}
    )
    silent = replace(joined, commits={**RUN.commits, BANNED: {}})

    chart = node_page(joined, BANNED, 1).loss
    last = golden().spec.rounds - 1
    assert chart is not None and (chart.first, chart.last) == (4, last)
    assert [[at for at, _, _ in line.points] for line in chart.lines] == [[6, 7], list(range(4, last + 1))]
    assert node_page(silent, BANNED, 1).loss is None
    assert "<figure" not in asking(silent).get(f"/runs/golden/nodes/{BANNED.hex()}").text


def test_a_nodes_page_says_how_often_verifiers_held_its_commit_in_time():
    delivered = golden()
    link, *others = delivered.links
    late, *lists = link.manifest.inclusion_lists  # a verifier that held nothing in time
    late = replace(late, inclusion_list=replace(late.inclusion_list, nodes=b"\0"))
    link = replace(link, manifest=replace(link.manifest, inclusion_lists=(late, *lists)))
    run = explore("golden", replace(delivered, links=(link, *others)))
    assert any(one.named < one.lists for one in run.arrivals.values())
    for peer, commits in run.commits.items():
        lists = named = 0
        for at in commits:
            members = tuple(run.delivered.run_states[at].nodes)
            place = members.index(peer)
            for one in run.delivered.links[at].manifest.inclusion_lists:
                lists += 1
                named += one.inclusion_list.nodes[place // 8] >> place % 8 & 1
        assert (run.arrivals[peer].lists, run.arrivals[peer].named) == (lists, named) and lists > 0
        address = f"/runs/golden/nodes/{peer.hex()}"
        assert f"of {lists} lists</dd>" in asking(run).get(address).text
        twin = asking(run).get(f"{address}.json").json()
        assert twin["lists_naming"] == sum(one["lists_naming"] for one in twin["rounds"]) == named


def test_a_reserve_has_pages_and_holds_no_seat():
    one = a_member(peers("reserve", 1)[0])
    run = explore("golden", replace(golden(), spec=replace(golden().spec, reserves=(one,))))
    client = asking(run)

    verifier = client.get(f"/runs/golden/verifiers/{one.peer.hex()}")
    auditor = client.get(f"/verifiers/{evm_address(one.account)}")

    assert (verifier.status_code, auditor.status_code) == (200, 200)
    assert "Holds no verifier" in verifier.text
    assert client.get("/runs/golden").text.count("holds no seat") == 1
