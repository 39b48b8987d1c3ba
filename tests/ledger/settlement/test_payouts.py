"""Settlement: who earned what, to the unit, from the finalised chain alone."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.ledger.settlement.payouts import (
    REVEAL_WEIGHT,
    VERDICT_WEIGHT,
    UnpaidReason,
    settle,
)
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.messages import Outcome
from tests.ledger.a_run import RUN, a_history, a_spec, an_audit, peer

STEPS = {(r, f"node-{i}"): 1_000 for r in range(4) for i in range(3)}
SPEC = a_spec()


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 3), st.sampled_from(["node-0", "node-1", "node-2"])),
        st.integers(0, 10**9),
    ),
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    st.data(),
)
def test_rows_sum_exactly_to_the_price_of_what_is_paid(tokens, price, operators_ppm, data):
    verifiers_ppm = data.draw(st.integers(0, 10**6 - operators_ppm))
    money = replace(
        SPEC.money, price_per_mtoken=price, operators_ppm=operators_ppm, verifiers_ppm=verifiers_ppm
    )
    spec = replace(SPEC, money=money)

    table = settle(a_history(spec, tokens, beacon_shares={0: ["verifier-1", "verifier-3"]}), 0)

    gross = sum(tokens.values()) * price // 10**6
    assert table.total == gross
    assert table.tokens_paid == sum(tokens.values())
    assert all(row.amount > 0 for row in table.rows)
    if sum(tokens.values()):
        assert table.paid("operator") == gross * operators_ppm // 10**6
    assert table.paid("verifier") == gross * verifiers_ppm // 10**6


def test_equal_work_differs_by_one_unit_at_most_and_the_smaller_peer_gets_it():
    table = settle(a_history(SPEC, {(0, f"node-{i}"): 1_000 for i in range(3)}), 0)
    # 3,000 tokens cost 3,000 units, operators' 80 % of them are 2,400; of 3,002 they are 2,401.
    spec = replace(SPEC, money=replace(SPEC.money, price_per_mtoken=1_000_667))
    odd = settle(a_history(spec, {(0, f"node-{i}"): 1_000 for i in range(3)}), 0)

    assert [row.amount for row in table.rows if row.role == "operator"] == [800, 800, 800]
    assert [row.amount for row in odd.rows if row.role == "operator"] == [801, 800, 800]


def test_a_unit_left_over_goes_to_the_largest_remainder_and_not_to_the_smaller_peer():
    # Gross 10; of 8 for operators, 8 * 1/10 = 0.8, 8 * 2/10 = 1.6 and 8 * 7/10 = 5.6: two units are left.
    spec = replace(SPEC, money=replace(SPEC.money, price_per_mtoken=10**6))

    table = settle(a_history(spec, {(0, "node-0"): 1, (0, "node-1"): 2, (0, "node-2"): 7}), 0)

    assert [row.amount for row in table.rows if row.role == "operator"] == [1, 2, 5]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 40), min_size=3, max_size=3), st.integers(1, 300))
def test_units_left_over_go_one_each_to_the_largest_remainders_and_among_equals_to_the_smaller_peer(
    tokens, units
):
    whole = max(sum(tokens), 1)
    money = replace(SPEC.money, price_per_mtoken=units * 10**6 // whole, operators_ppm=10**6, verifiers_ppm=0)
    done = {(0, f"node-{i}"): count for i, count in enumerate(tokens)}

    table = settle(a_history(replace(SPEC, money=money), done), 0)

    amounts = {row.peer: row.amount for row in table.rows}
    gross = sum(tokens) * money.price_per_mtoken // 10**6
    for index, count in enumerate(tokens):
        floor, remainder = divmod(gross * count, whole)
        ahead = sum((gross * other % whole, -at) > (remainder, -index) for at, other in enumerate(tokens))
        left = gross - sum(gross * other // whole for other in tokens)
        assert amounts.get(peer(f"node-{index}"), 0) == floor + (ahead < left)


def test_rows_are_in_the_order_of_peers_whatever_the_order_of_the_work():
    table = settle(a_history(SPEC, {(0, "node-2"): 9, (1, "node-0"): 10**6, (2, "node-1"): 10**5}), 0)

    assert [row.peer for row in table.rows if row.role == "operator"] == [
        peer("node-0"),
        peer("node-1"),
        peer("node-2"),
    ]


def test_a_tables_hash_covers_the_rules_version_the_run_the_epoch_and_every_row():
    table = settle(a_history(SPEC, STEPS), 0)
    rows = [[row.role, row.peer, row.account, row.amount] for row in table.rows]
    plain = ["assay/payouts/1", 3, SPEC.deployment_id, RUN, 0, rows]

    assert table.table_hash == hashlib.sha256(cbor2.dumps(plain, canonical=True)).digest()


def test_an_upheld_fault_costs_the_node_all_of_its_epoch_and_nobody_else_anything():
    audit = an_audit("node-1", 2, AuditStatus.CONFIRMED, True, v0=Outcome.MISMATCH, v1=Outcome.MISMATCH)
    honest = settle(a_history(SPEC, STEPS), 0)

    table = settle(a_history(SPEC, STEPS, [audit]), 0)

    assert {(one.round, one.node) for one in table.unpaid} == {(r, peer("node-1")) for r in range(4)}
    assert {one.reason for one in table.unpaid} == {UnpaidReason.FAULT}
    assert table.tokens_paid == 8_000
    others = [row for row in honest.rows if row.role == "operator" and row.peer != peer("node-1")]
    assert [row for row in table.rows if row.role == "operator"] == others
    assert table.total < honest.total


def test_a_fault_of_one_epoch_leaves_the_next_alone():
    audit = an_audit("node-1", 2, AuditStatus.CONFIRMED, True, v0=Outcome.MISMATCH)
    later = {(r + 4, node): tokens for (r, node), tokens in STEPS.items()}

    table = settle(a_history(SPEC, later, [audit], epoch=1), 1)

    assert table.unpaid == () and table.tokens_paid == 12_000


def test_nothing_is_paid_from_the_faulty_step_on():
    run_state = a_history(SPEC, STEPS)
    guilty = replace(run_state.nodes[peer("node-1")], fault_round=2)

    table = settle(replace(run_state, nodes={**run_state.nodes, peer("node-1"): guilty}), 0)

    assert [(one.round, one.node) for one in table.unpaid] == [(2, peer("node-1")), (3, peer("node-1"))]
    assert table.tokens_paid == 10_000


def test_a_node_that_contradicted_itself_is_paid_for_nothing_from_that_round_on_and_is_told_why():
    run_state = a_history(SPEC, STEPS)
    liar = replace(run_state.nodes[peer("node-1")], fault_round=2, has_contradicted=True)

    table = settle(replace(run_state, nodes={**run_state.nodes, peer("node-1"): liar}), 0)

    assert [(one.round, one.reason) for one in table.unpaid] == [
        (2, UnpaidReason.CONTRADICTION),
        (3, UnpaidReason.CONTRADICTION),
    ]


@pytest.mark.parametrize("ruling", [AuditStatus.EXPIRED, AuditStatus.SUPERSEDED])
def test_an_accusation_that_was_not_answered_leaves_its_one_step_unpaid(ruling: AuditStatus):
    audit = an_audit("node-0", 1, ruling, True, v0=Outcome.MISMATCH)

    table = settle(a_history(SPEC, STEPS, [audit]), 0)

    assert [(one.round, one.node) for one in table.unpaid] == [(1, peer("node-0"))]
    assert table.tokens_paid == 11_000


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(Outcome.MISMATCH, UnpaidReason.ACCUSED), (Outcome.INCONCLUSIVE, UnpaidReason.UNJUDGED)],
)
def test_a_dispute_of_the_first_round_leaves_its_step_unpaid_as_any_other(outcome, reason):
    audit = replace(an_audit("node-0", 0, AuditStatus.EXPIRED, v0=outcome), dispute_opened_round=0)

    assert [one.reason for one in settle(a_history(SPEC, STEPS, [audit]), 0).unpaid] == [reason]


@pytest.mark.parametrize("due_s", [0, 1])
def test_a_node_whose_opening_was_overdue_is_late_with_one_step_and_not_at_fault(due_s):
    audit = replace(an_audit("node-0", 1, AuditStatus.CONFIRMED, True, v0=Outcome.WITHHELD), due_s=due_s)

    table = settle(a_history(SPEC, STEPS, [audit]), 0)

    assert [(one.round, one.reason) for one in table.unpaid] == [(1, UnpaidReason.LATE)]


def test_of_a_step_that_came_late_a_verdict_that_it_was_withheld_is_paid_and_one_that_it_was_false_is_not():
    audit = replace(
        an_audit("node-0", 1, AuditStatus.LATE, True, v0=Outcome.WITHHELD, v1=Outcome.MISMATCH), due_s=5
    )

    table = settle(a_history(SPEC, STEPS, [audit]), 0)

    assert [row.peer for row in table.rows if row.role == "verifier"] == [peer("verifier-0")]


@pytest.mark.parametrize(
    "verdicts", [{"v0": Outcome.INCONCLUSIVE}, {"v0": Outcome.INCONCLUSIVE, "v1": Outcome.MATCH}]
)
def test_a_judged_step_that_did_not_pass_is_unpaid_and_the_reason_is_that_nobody_could_judge_it(verdicts):
    audit = an_audit("node-0", 1, AuditStatus.EXPIRED, **verdicts)

    table = settle(a_history(SPEC, STEPS, [audit]), 0)

    assert [(one.round, one.node, one.reason) for one in table.unpaid] == [
        (1, peer("node-0"), UnpaidReason.UNJUDGED)
    ]


def test_a_known_answer_task_is_unpaid_unless_its_node_did_the_step_after_all():
    for ruling, unpaid in (
        (AuditStatus.KNOWN_ANSWER, 1),
        (AuditStatus.PASSED, 1),
        (AuditStatus.DISMISSED, 0),
    ):
        audit = replace(an_audit("node-0", 1, ruling, v0=Outcome.MATCH), is_known_answer=True)
        assert len(settle(a_history(SPEC, STEPS, [audit]), 0).unpaid) == unpaid


@pytest.mark.parametrize("ruling", [AuditStatus.PASSED, AuditStatus.DISMISSED, AuditStatus.EXPIRED])
def test_a_step_is_paid_when_nobody_judged_it_or_the_alarm_was_false(ruling):
    audit = an_audit("node-0", 1, ruling, alarm=ruling is AuditStatus.DISMISSED)

    assert settle(a_history(SPEC, STEPS, [audit]), 0).unpaid == ()


def test_verifiers_are_paid_for_verdicts_the_ruling_did_not_contradict_and_for_reveals():
    upheld = an_audit(
        "node-1", 0, AuditStatus.CONFIRMED, True, v0=Outcome.MISMATCH, v1=Outcome.WITHHELD, v2=Outcome.MATCH
    )
    dismissed = an_audit("node-0", 1, AuditStatus.DISMISSED, True, v0=Outcome.MISMATCH, v1=Outcome.MATCH)
    unsure = an_audit("node-2", 2, AuditStatus.EXPIRED, False, v3=Outcome.INCONCLUSIVE)

    table = settle(
        a_history(SPEC, STEPS, [upheld, dismissed, unsure], {0: ["verifier-2"], 1: ["verifier-2"]}), 0
    )

    amounts = {row.peer: row.amount for row in table.rows if row.role == "verifier"}
    weights = {
        "verifier-0": VERDICT_WEIGHT,  # right once, wrong once
        "verifier-1": 2 * VERDICT_WEIGHT,
        "verifier-2": 2 * REVEAL_WEIGHT,  # passed a fault: only its reveals count
    }
    whole = sum(weights.values())
    assert set(amounts) == {peer(name) for name in weights}
    for name, weight in weights.items():
        assert abs(amounts[peer(name)] - sum(amounts.values()) * weight / whole) < 1


@pytest.mark.parametrize(("fault_round", "is_paid"), [(-1, True), (0, False), (3, False), (4, True)])
def test_a_verifier_at_fault_earns_nothing_up_to_the_last_round_of_the_epoch(fault_round, is_paid):
    run_state = a_history(SPEC, STEPS, beacon_shares={0: ["verifier-0", "verifier-1"]})
    record = replace(run_state.verifiers[peer("verifier-0")], fault_round=fault_round)

    table = settle(replace(run_state, verifiers={**run_state.verifiers, peer("verifier-0"): record}), 0)

    assert (peer("verifier-0") in {row.peer for row in table.rows}) == is_paid
    assert peer("verifier-1") in {row.peer for row in table.rows}


def test_a_verdict_weighs_ten_shares():
    assert (REVEAL_WEIGHT, VERDICT_WEIGHT) == (1, 10)


def test_the_fee_goes_to_the_treasury_under_the_zero_peer():
    fee = settle(a_history(SPEC, STEPS), 0).rows[-1]

    assert (fee.role, fee.peer, fee.account) == ("fee", bytes(32), SPEC.money.treasury)


def test_whoever_finds_a_known_answer_is_paid_as_for_any_audit_and_whoever_passed_it_is_not():
    audit = replace(
        an_audit(
            "node-1", 0, AuditStatus.KNOWN_ANSWER, True,
            v0=Outcome.MISMATCH, v1=Outcome.WITHHELD, v2=Outcome.MATCH,
        ),
        is_known_answer=True,
    )  # fmt: skip
    spec = replace(SPEC, money=replace(SPEC.money, price_per_mtoken=1_000_000))

    table = settle(a_history(spec, STEPS, [audit]), 0)

    amounts = {row.peer: row.amount for row in table.rows if row.role == "verifier"}
    assert amounts.keys() == {peer("verifier-0"), peer("verifier-1")}
    assert abs(amounts[peer("verifier-0")] - amounts[peer("verifier-1")]) <= 1


def test_when_no_verifier_worked_their_share_is_part_of_the_fee():
    table = settle(a_history(SPEC, STEPS), 0)

    assert table.paid("verifier") == 0
    assert table.paid("fee") == table.total - table.paid("operator")


def test_an_epoch_without_accepted_work_has_an_empty_table():
    table = settle(a_history(SPEC, {}, beacon_shares={0: ["verifier-0"]}), 0)

    assert (table.rows, table.total, table.tree().root) == ((), 0, bytes(32))


def test_order_of_arrival_does_not_change_the_table():
    backwards = dict(reversed(list(STEPS.items())))

    assert settle(a_history(SPEC, backwards), 0) == settle(a_history(SPEC, STEPS), 0)


@pytest.mark.parametrize("off", [-1, 2])
def test_an_epoch_is_settled_when_it_is_ripe_and_not_before_or_long_after(off: int):
    run_state = a_history(SPEC, STEPS)
    settle(replace(run_state, round=run_state.round + 1), 0)

    with pytest.raises(ValueError, match="epoch 0 settles after round 9"):
        settle(replace(run_state, round=run_state.round + off), 0)
