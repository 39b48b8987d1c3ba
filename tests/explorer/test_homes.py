"""The homes of an operator and of a buyer add up what the chain says, and name the commands that mend."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.bundle.milestone import MilestoneState, milestone_text, milestones_of
from assay.bundle.read import Delivered
from assay.bundle.report.progress import drafts
from assay.bundle.report.spending import costs_of
from assay.chain.commit_statement import evm_address
from assay.explorer.explored import Explored, explore
from assay.explorer.pages.buyer import buyer_page, order_page
from assay.explorer.pages.operator import PAY_ROWS_MAX, SEATS_MAX, OperatorPage, operator_page
from assay.explorer.pages.paging import NoSuchPage
from assay.explorer.pages.participants import node_page
from assay.protocol.params import MILESTONES_MAX, Milestone
from assay.protocol.run_state import IDLE_ROUNDS, NodeRecord, RunState
from assay.protocol.types import PeerId
from tests.explorer.an_explorer import account_of, asking, golden, golden_explored
from tests.test_guides import parsed

RUN = golden_explored()
LAST = golden().run_states[-1]
BANNED = next(record for record in LAST.nodes.values() if record.banned)
HONEST = next(record for record in LAST.nodes.values() if not record.banned)


def as_far_as(manifests: int) -> Delivered:
    """The recorded run as one that is followed and has got so far."""
    run = golden()
    tables = {at: one for at, one in run.tables.items() if run.calendar.settled_at(at) < manifests}
    return replace(
        run, links=run.links[:manifests], run_states=run.run_states[: manifests + 1], tables=tables,
        settled={}, sizes={}, report=None, is_followed=True,
    )  # fmt: skip


def live(manifests: int = 8, name: str = "live", **changes: Any) -> Explored:
    """A run that goes on, whose newest state is another in these parts."""
    run = as_far_as(manifests)
    states = (*run.run_states[:-1], replace(run.run_states[-1], **changes))
    return explore(name, replace(run, run_states=states))


def changed(state: RunState, peer: PeerId, **changes: Any) -> Mapping[PeerId, NodeRecord]:
    return {**state.nodes, peer: replace(state.nodes[peer], **changes)}


def page_of(*runs: Explored, record: NodeRecord = HONEST, page: int = 1) -> OperatorPage:
    return operator_page(runs, record.member.account, page)


# ---- an operator's home


def test_an_operator_is_told_what_its_nodes_earned_in_settled_epochs_and_since():
    behind = live(12)
    found = page_of(RUN, behind)
    mine = [row for table in golden().tables.values() for row in table.rows if row.peer == HONEST.member.peer]
    due = [row for table in behind.drafts.values() for row in table.rows if row.peer == HONEST.member.peer]

    assert found.paid == sum(row.amount for row in mine) > 0
    assert found.due == sum(row.amount for row in due) > 0
    assert found.pay_rows == len(mine)
    assert [(one.head.name, one.epoch, one.index is None) for one in found.pay] == [
        ("live", 1, True), ("live", 0, True), ("golden", 1, False), ("golden", 0, False)
    ]  # fmt: skip
    going, done = found.seats
    assert (going.due, going.paid, done.due, done.paid) == (found.due, 0, 0, found.paid)
    seconds = golden().links[11].manifest.time_s - golden().links[0].manifest.time_s
    assert going.per_hour == found.due * 3600 // seconds
    assert (going.status, done.status, going.phase, done.phase) == ("training", "over", "training", "over")


def test_a_nodes_last_accepted_round_and_its_silence_are_told():
    links = list(golden().links[:8])
    for at in (6, 7):
        manifest = links[at].manifest
        kept = tuple(one for one in manifest.commits if one.commit.node != HONEST.member.peer)
        links[at] = replace(links[at], manifest=replace(manifest, commits=kept))
    run = as_far_as(8)
    silent = explore("live", replace(run, links=tuple(links)))

    (line,) = page_of(silent).seats
    (whole,) = page_of(live(8)).seats

    assert (line.last_round, line.silent_rounds, line.last_s) == (5, 2, links[5].manifest.time_s)
    assert (whole.last_round, whole.silent_rounds) == (7, 0)
    joined = changed(run.run_states[-1], HONEST.member.peer, joined_round=7)
    fresh = replace(live(8, nodes=joined), commits={**silent.commits, HONEST.member.peer: {}})
    (newcomer,) = page_of(fresh).seats
    assert (newcomer.last_round, newcomer.silent_rounds, newcomer.status) == (None, 1, "new")


def test_every_unpaid_step_is_counted_by_its_reason_with_the_round_and_the_audit_behind_it():
    found = page_of(RUN, record=BANNED)
    mine = {step: reason for step, reason in RUN.unpaid.items() if step[1] == BANNED.member.peer}

    counts = Counter(reason.text for reason in mine.values())
    assert {one.newest.reason: one.steps for one in found.reasons} == counts and len(counts) == 2
    assert [one.round for one in found.unpaid] == sorted((int(at) for at, _ in mine), reverse=True)
    for one in found.reasons:
        assert one.newest.round == max(
            int(at) for (at, _), why in mine.items() if why.text == one.newest.reason
        )
    assert {(one.proof_round, one.is_audit) for one in found.unpaid} == {(BANNED.fault_round, True)}
    text = asking().get(f"/operators/{account_of(RUN)}").text
    assert f"/audits/{BANNED.fault_round}/{BANNED.member.peer.hex()}" in text


def test_a_step_that_no_audit_decided_is_borne_out_by_its_own_manifest():
    step = next(step for step, reason in RUN.unpaid.items() if step[1] == BANNED.member.peer)
    without = replace(RUN, audits={})

    (line, *_) = page_of(without, record=BANNED).unpaid

    assert not line.is_audit and line.proof_round == BANNED.fault_round
    text = asking(without).get(f"/operators/{account_of(RUN)}").text
    assert f'manifest of round <a href="/runs/golden/rounds/{BANNED.fault_round}"' in text and step


STATE = as_far_as(8).run_states[-1]
PEER = HONEST.member.peer
AFTER: dict[str, tuple[Explored, str]] = {
    "a false step": (RUN, "assay appeal open FILE.toml 2 --dry-run"),
    "two commits": (
        live(nodes=changed(STATE, PEER, fault_round=4, has_contradicted=True)), "assay stake show FILE.toml",
    ),
    "an opening that never came": (
        live(nodes=changed(STATE, PEER, fault_round=4)), "assay stake show FILE.toml",
    ),
    "an opening that is owed": (live(late=frozenset({PEER})), "assay node run FILE.toml"),
    "no money": (live(funding_reports={}), "assay watch FILE.toml"),
    "silence": (
        replace(live(), commits={**live().commits, PEER: {0: live().commits[PEER][0]}}),
        "assay doctor FILE.toml",
    ),
    "bias": (live(nodes=changed(STATE, PEER, is_suspect=True)), "assay doctor FILE.toml"),
    "a seat that was left": (
        live(nodes=changed(STATE, PEER, has_left=True)), "assay stake release FILE.toml",
    ),
    "a run that is over": (RUN, "assay stake release FILE.toml"),
    "settled pay": (RUN, "assay claim FILE.toml"),
}  # fmt: skip


@pytest.mark.parametrize("condition", AFTER)
def test_each_condition_has_one_line_with_the_command_that_mends_it(condition: str):
    run, command = AFTER[condition]
    record = BANNED if condition == "a false step" else HONEST

    found = [one.command for one in page_of(run, record=record).advice]

    assert found.count(command) == 1
    text = asking(run).get(f"/operators/{evm_address(record.member.account)}").text
    assert f"<code>{command}</code>" in text


def test_a_healthy_node_of_a_run_that_goes_on_is_told_nothing():
    assert page_of(live()).advice == []
    assert (
        "Nothing at present." in asking(live()).get(f"/operators/{evm_address(HONEST.member.account)}").text
    )


def test_a_silent_node_is_told_once_it_was_silent_for_long_and_when_its_seat_may_go():
    for accepted, is_told in ((5, False), (4, True)):  # the newest round is 7
        commits = {**live().commits, PEER: {accepted: live().commits[PEER][accepted]}}
        advice = page_of(replace(live(), commits=commits)).advice
        assert bool(advice) is is_told and not any("take its seat" in one.text for one in advice)
    idle = changed(STATE, PEER, missed=IDLE_ROUNDS, heard_s=0)
    (one,) = page_of(replace(live(nodes=idle), commits=commits)).advice
    assert "another node may take its seat" in one.text


def test_every_command_of_an_operators_and_a_buyers_home_is_taken_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "FILE.toml").write_text("")
    (tmp_path / "golden").mkdir()
    monkeypatch.chdir(tmp_path)
    whole = replace(RUN, files={"index.json": tmp_path / "FILE.toml"})
    waiting = live(funding_reports={})
    pages = [asking(whole).get("/runs/golden/order"), asking(waiting).get("/runs/live/order")]
    pages += [
        asking(run).get(f"/operators/{evm_address(one.member.account)}")
        for run, _ in AFTER.values()
        for one in (BANNED, HONEST)
    ]
    found = {
        re.sub(r"<[^>]+>", "", one)
        for page in pages
        for one in re.findall(r"<code>(assay .*?)</code>", page.text)
    }

    found.remove("assay run verify")  # the footer's, in a sentence

    names = set()
    for command in found:
        filled = command.replace("ROUND", "7").replace("PEER", PEER.hex()).replace("AMOUNT", "1")
        names.add(parsed(shlex.split(filled)[1:]))

    assert {"run fetch", "run verify", "receipt make", "order topup", "buyer run", "appeal open"} <= names
    assert len(names) > 12


@pytest.mark.parametrize(
    "account",
    [
        "0x" + "00" * 20,
        "0x" + "00" * 19,
        "00" * 20,
        "0X" + "00" * 20,
        "0x" + "0g" * 20,
        "x",
        "0x" + "０" * 40,
    ],
)
@pytest.mark.parametrize("role", ["operators", "buyers", "verifiers"])
def test_an_account_without_a_part_in_these_runs_or_a_word_that_is_none_is_told(role: str, account: str):
    found = asking().get(f"/{role}/{account}")

    assert found.status_code == 404 and "There is no" in found.text


def test_an_account_may_be_written_in_any_case():
    account = account_of(RUN)
    assert {
        asking().get(f"/operators/0x{one}.json").text
        for one in (account[2:].lower(), account[2:].upper(), account[2:])
    } == {asking().get(f"/operators/{account}.json").text}


def test_the_page_of_an_operator_with_many_nodes_stays_small():
    runs = [live(name=f"run-{at}", late=frozenset({PEER})) for at in range(3)]
    many = [replace(runs[at % 3], name=f"run-{at}") for at in range(2 * SEATS_MAX)]
    many += [replace(RUN, name=f"done-{at}") for at in range(4)]

    found = page_of(*many)
    page = asking(*many).get(f"/operators/{evm_address(HONEST.member.account)}")

    assert found.seat_count == len(many) and len(found.seats) == SEATS_MAX
    assert len(found.pay) <= 2 * SEATS_MAX + PAY_ROWS_MAX
    assert found.paid == 4 * page_of(RUN).paid
    assert len(page.content) < 200_000


def test_a_nodes_page_of_a_run_that_goes_on_ends_at_its_newest_round():
    found = node_page(live(8), PEER, 1)

    assert [one.round for one in found.rounds] == list(range(8))
    assert asking(live(8)).get(f"/runs/live/nodes/{PEER.hex()}").status_code == 200


# ---- a buyer's home


def test_a_buyer_sees_the_spend_against_the_budget_of_every_epoch():
    found = order_page(RUN, 1)
    spec = golden().spec

    assert [one.budget for one in found.epochs] == [spec.epoch_price(0), spec.epoch_price(1)]
    assert [one.spent for one in found.epochs] == [table.total for table in golden().tables.values()]
    assert found.settled == found.order.spent == sum(one.spent for one in found.epochs)
    assert found.order.budget == sum(one.budget for one in found.epochs)
    assert found.samples == RUN.report.samples and len(found.samples) == 3
    assert sum(found.uncharged.values()) == sum(one.steps_unpaid for one in found.epochs) > 0
    assert sum(one.tokens for one in found.epochs) == found.tokens


def test_of_a_run_that_goes_on_the_open_epochs_count_as_they_stand():
    run = live(8)
    found = order_page(run, 1)

    assert [one.is_settled for one in found.epochs] == [False, False] and found.settled == 0
    assert found.order.spent == sum(table.total for table in run.drafts.values()) > 0
    assert found.order.rounds_ordered == golden().spec.rounds
    assert (found.order.rounds, found.order.phase) == (8, "training")
    times = [link.manifest.time_s for link in golden().links[:8]]
    assert found.order.left_s == round((golden().spec.rounds - 8) * (times[-1] - times[0]) / 7)
    page = asking(run).get("/runs/live/order").text
    assert "assay buyer run FILE.toml" in page and "assay run fetch" not in page
    nothing = explore("live", as_far_as(0))
    assert order_page(nothing, 1).order.spent == 0
    assert asking(nothing).get("/runs/live/order").status_code == 200


def test_an_order_that_waits_for_money_says_so_with_the_command():
    waiting = live(funding_reports={})
    assert "assay order topup FILE.toml --to AMOUNT" in asking(waiting).get("/runs/live/order").text
    assert "topup" not in asking(live()).get("/runs/live/order").text


def test_a_milestone_says_what_was_measured_and_what_the_buyer_does_not_owe():
    (found,) = order_page(RUN, 1).milestones
    table, spec = golden().tables[1], golden().spec

    assert (found.state, found.score) == (MilestoneState.MISSED, table.score)
    gross = table.tokens_paid * spec.money.price_per_mtoken // 10**6
    assert found.at_stake == found.kept == gross - table.total == order_page(RUN, 1).kept > 0


def with_milestones(run: Delivered, *milestones: tuple[int, int]) -> Delivered:
    asked = tuple(Milestone(epoch=epoch, most_loss_micro=most) for epoch, most in milestones)
    accept = replace(run.spec.money.accept, milestones=asked)
    spec = replace(run.spec, money=replace(run.spec.money, accept=accept))
    states = tuple(replace(state, spec=spec) for state in run.run_states)
    return replace(run, spec=spec, run_states=states)


def test_a_milestone_is_reached_at_exactly_the_loss_that_was_asked():
    score = golden().tables[1].score
    assert score is not None
    loss = score.loss_micro
    for most, state in ((loss, MilestoneState.REACHED), (loss - 1, MilestoneState.MISSED)):
        (found,) = milestones_of(with_milestones(golden(), (1, most)))
        assert found.state is state and bool(found.kept) is (state is MilestoneState.MISSED)


def test_a_milestone_ahead_has_at_stake_what_its_epoch_can_cost_at_most():
    run = as_far_as(8)
    (found,) = milestones_of(run)
    assert (found.state, found.kept) == (MilestoneState.AHEAD, 0)
    assert found.at_stake == run.spec.epoch_price(1) * run.spec.money.accept.share_ppm // 10**6


def test_an_epoch_that_was_cut_short_or_not_measured_owes_all_of_its_price():
    run = with_milestones(golden(), (0, 1), (1, 1))
    first, second = milestones_of(run)
    assert (first.state, first.kept) == (MilestoneState.UNMEASURED, 0)
    assert second.state is MilestoneState.MISSED
    cut = replace(
        run,
        run_states=(*run.run_states[:-1], replace(run.run_states[-1], training_rounds=run.spec.rounds - 2)),
    )
    whole, part = milestones_of(cut)
    assert (part.state, part.kept, part.at_stake) == (MilestoneState.CUT_SHORT, 0, 0)
    assert whole.state is MilestoneState.UNMEASURED
    assert "was cut short, so all of its price is owed" in milestone_text(cut, 1)


def test_a_buyers_home_lists_its_orders_those_that_go_on_first():
    found = buyer_page((RUN, live()), golden().spec.buyer, 1)

    assert [one.head.name for one in found.orders] == ["live", "golden"]
    assert [(one.missed, one.milestones) for one in found.orders] == [(0, 1), (1, 1)]
    assert [one.left_s is None for one in found.orders] == [False, True]
    with pytest.raises(NoSuchPage, match="that 0x0000"):
        buyer_page((RUN,), bytes(20), 1)
    with pytest.raises(NoSuchPage):
        buyer_page((RUN,), golden().spec.buyer, 2)


def test_the_page_of_an_order_with_as_many_milestones_as_may_be_stays_small():
    run = with_milestones(golden(), *((at, at + 1) for at in range(MILESTONES_MAX)))
    page = asking(explore("golden", run)).get("/runs/golden/order")

    assert page.status_code == 200 and len(page.content) < 200_000


def test_what_an_order_costs_is_one_line_for_every_ordered_epoch_also_those_that_never_came():
    run = as_far_as(3)
    found = costs_of(run, drafts(run.run_states[-1], 0))

    assert [(one.first_round, one.last_round, bool(one.spent)) for one in found] == [
        (0, 9, True),
        (10, 19, False),
    ]
