"""Picture: its figures are those of the delivered run, whoever looks."""

from __future__ import annotations

from collections import Counter

from assay.cli.watch.picture import MoneyView
from assay.protocol.params import PPM
from assay.protocol.types import PeerId
from tests.cli.watch.a_screen import a_picture, chronicle_of, golden

ALL = len(golden().links)


def test_what_was_paid_is_what_the_delivered_tables_pay():
    found, tables = a_picture(ALL), golden().tables

    rows = [row for table in tables.values() for row in table.rows]
    for node in found.nodes:
        assert node.paid == sum(row.amount for row in rows if row.peer == node.peer)
    assert found.spent == sum(table.total for table in tables.values())
    assert found.paid == sum(row.amount for row in rows if row.role != "fee")
    assert found.earned == 0 and found.state == "over"


def test_what_is_earned_becomes_pay_when_its_epoch_is_settled():
    money = golden().spec.money
    tokens = golden().links[0].manifest.commits[0].commit.tokens
    step = tokens * money.price_per_mtoken * money.operators_ppm // PPM // 10**6

    assert {node.earned for node in a_picture(1).nodes} == {step}
    due = Counter[PeerId]()
    for table in golden().tables.values():
        due.update({row.peer: row.amount for row in table.rows if row.role == "operator"})
    # All steps of the epochs that are not settled, before some are not paid, and a milestone is missed.
    trained = a_picture(golden().spec.rounds).nodes
    assert all(node.earned + node.paid >= due[node.peer] for node in trained if node.status != "banned")
    for node in a_picture(ALL).nodes:
        expected = 0 if node.status == "banned" else due[node.peer]
        assert (node.paid, node.earned) == (expected, 0)


def test_one_person_sees_its_own_pay_and_stake():
    node, stakes = golden().spec.nodes[1].peer, {one.peer: 7 for one in golden().spec.nodes}

    mine, everybodys = (a_picture(ALL, me, MoneyView(stakes=stakes)) for me in (node, None))

    assert mine.paid == next(one.paid for one in mine.nodes if one.peer == node) < everybodys.paid
    assert (mine.stake, everybodys.stake) == (7, 7 * len(stakes))


def test_audits_are_counted_once_and_pending_ones_are_named():
    last = chronicle_of(ALL).state
    found = a_picture(ALL)

    assert found.failed == sum(record.banned for record in last.nodes.values()) > 0
    assert found.passed + found.failed <= found.drawn
    middle = a_picture(8)
    assert {one.node for one in middle.audits} == {one.peer for one in middle.nodes if one.is_drawn} != set()


def test_a_proven_fault_is_an_alarm():
    alarms = [event.text for event in a_picture(ALL).events if event.is_alarm]

    assert any("is banned: a fault is proven" in text for text in alarms)


def test_time_left_follows_the_pace_and_ends_with_training():
    training, closing = a_picture(8), a_picture(golden().spec.rounds + 4)

    assert training.left_s == round(training.round_s * (training.rounds - 8))
    assert closing.left_s is None and closing.state == "closing"
    assert a_picture(0).state == "waiting" and a_picture(0).paid_an_hour is None


def test_losses_are_those_of_the_commits():
    found = a_picture(3)

    first = [signed.commit.loss_micro for signed in golden().links[0].manifest.commits]
    assert found.losses[0] == sum(first) / len(first) / 10**6 and len(found.losses) == 3
